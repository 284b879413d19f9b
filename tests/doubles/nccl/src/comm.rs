//! A communicator of one rank.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use crate::arithmetic::DataType;
use crate::handles::Handles;
use crate::mesh::{Aborted, Lane, Mesh};
use crate::pointers::Buffer;
use crate::{Result, Status, driver, lock, refuse};

pub(crate) static COMMS: Handles<Arc<Comm>> = Handles::new(0x5500_0000_0000);

/// First number of program-defined reductions.
const FIRST_DEFINED: i32 = 5;

/// NCCL's hash of a communicator, and the number from which the ids for growing it are derived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub(crate) hash: u64,
    pub(crate) magic: u64,
}

impl Name {
    /// Name of a communicator created from another one.
    pub(crate) const fn new(hash: u64) -> Self {
        Self { hash, magic: hash }
    }
}

/// A communicator. It exists from the creating call on, and is usable once the ranks have met.
#[derive(Debug)]
pub(crate) struct Comm {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) device: i32,
    pub(crate) is_blocking: bool,
    pub(crate) name: Name,
    /// Device memory taken by the communicator.
    pub(crate) memory: Arc<Memory>,
    /// Whether it was connected for collectives, which takes memory.
    is_connected: AtomicBool,
    /// Number of communicators created from this one, by all its ranks.
    children: AtomicU32,
    mesh: OnceLock<Mesh>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Amount of work put into streams, and of work done, in the same order.
    launched: u64,
    done: u64,
    /// Number of executed collectives.
    collectives: u64,
    /// Result of `ncclCommGetAsyncError`.
    error: Option<Status>,
    is_aborted: bool,
    is_finalized: bool,
    /// Directions in which it is connected, by peer: 1 to send, 2 to receive.
    connected: HashMap<usize, u8>,
    /// Program-defined reductions; `None` once undefined.
    reductions: Vec<Option<(DataType, Factor)>>,
}

/// Factor of a program-defined reduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    Value(Vec<u8>),
    /// Read when the collective runs.
    InMemory(Buffer),
}

impl Comm {
    pub(crate) fn new(
        rank: usize,
        ranks: usize,
        device: i32,
        is_blocking: bool,
        name: Name,
        memory: Arc<Memory>,
    ) -> Arc<Self> {
        Arc::new(Self {
            rank,
            ranks,
            device,
            is_blocking,
            name,
            memory,
            is_connected: AtomicBool::new(false),
            children: AtomicU32::new(0),
            mesh: OnceLock::new(),
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// 1-based number of the next communicator created from this one.
    pub(crate) fn next_child(&self) -> u32 {
        self.children.load(Ordering::Relaxed) + 1
    }

    /// Counts a communicator created from this one; returns its number.
    pub(crate) fn have_child(&self) -> u32 {
        self.children.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The communicator of a handle. `function` is for the error message.
    pub(crate) fn find(handle: usize, function: &str) -> Result<Arc<Self>> {
        if handle == 0 {
            let why = format!("{function} : comm argument is NULL");
            return refuse(Status::INVALID_ARGUMENT, why);
        }
        match COMMS.get(handle) {
            Some(comm) => Ok(comm),
            None => refuse(
                Status::INVALID_ARGUMENT,
                format!("{function} : comm argument is not a communicator"),
            ),
        }
    }

    /// Stores the connections once the ranks have met.
    pub(crate) fn has_met(&self, mesh: Mesh) {
        if lock(&self.state).is_aborted {
            mesh.abort();
        }
        // Only the creating call sets it.
        self.mesh.set(mesh).ok();
    }

    /// The connections. Fails until the ranks have met.
    pub(crate) fn mesh(&self) -> Result<&Mesh> {
        match self.mesh.get() {
            Some(mesh) => Ok(mesh),
            None => refuse(
                Status::INVALID_ARGUMENT,
                "the communicator is used before the call that makes it has ended".into(),
            ),
        }
    }

    /// Takes the memory for collectives before the first one.
    pub(crate) fn connect(&self) -> Result<()> {
        if self.is_connected.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.memory.take(Memory::OF_COLLECTIVES)
    }

    pub(crate) fn set_error(&self, error: Option<Status>) {
        lock(&self.state).error = error;
    }

    pub(crate) fn error(&self) -> Option<Status> {
        lock(&self.state).error
    }

    pub(crate) fn abort(&self) {
        lock(&self.state).is_aborted = true;
        self.changed.notify_all();
        if let Some(mesh) = self.mesh.get() {
            mesh.abort();
        }
    }

    // --- The order of work

    /// Position of new work in the communicator's order.
    pub(crate) fn ticket(&self) -> u64 {
        let mut state = lock(&self.state);
        state.launched += 1;
        state.launched
    }

    /// Waits until all earlier work is done.
    pub(crate) fn wait_for_turn(&self, ticket: u64) -> std::result::Result<(), Aborted> {
        let state = lock(&self.state);
        let is_early = |it: &mut State| it.done + 1 < ticket && !it.is_aborted;
        let waited = self.changed.wait_while(state, is_early);
        if waited.unwrap_or_else(PoisonError::into_inner).is_aborted {
            return Err(Aborted);
        }
        Ok(())
    }

    pub(crate) fn is_done(&self) {
        lock(&self.state).done += 1;
        self.changed.notify_all();
    }

    /// The number of the next collective.
    pub(crate) fn next_collective(&self) -> u64 {
        let mut state = lock(&self.state);
        state.collectives += 1;
        state.collectives
    }

    /// Waits until the work of all ranks is done. Returns at once if it was finalized before.
    pub(crate) fn finalize(&self) -> Result<()> {
        let mesh = self.mesh()?;
        {
            let state = lock(&self.state);
            let is_busy = |it: &mut State| it.done < it.launched && !it.is_aborted;
            let waited = self.changed.wait_while(state, is_busy);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            if state.is_aborted || state.is_finalized {
                return Ok(());
            }
            state.is_finalized = true;
        }
        let all: Vec<usize> = mesh.others().collect();
        self.gather(&all, Control::Finalize, &[]).map(|_| ())
    }

    // --- Agreement between ranks, outside of streams

    /// Sends a message to these ranks and returns theirs, in the same order. Blocks until all have
    /// sent.
    pub(crate) fn gather(
        &self,
        ranks: &[usize],
        what: Control,
        said: &[u8],
    ) -> Result<Vec<Vec<u8>>> {
        let mesh = self.mesh()?;
        for rank in ranks {
            mesh.send(*rank, Lane::Control, what as u64, said);
        }
        let mut answers = Vec::with_capacity(ranks.len());
        for rank in ranks {
            match mesh.take(*rank, Lane::Control) {
                Ok(message) if message.tag == what as u64 => answers.push(message.bytes),
                Ok(_) => {
                    mesh.hang();
                    return Err(Status::INTERNAL_ERROR);
                }
                Err(Aborted) => return Err(Status::INTERNAL_ERROR),
            }
        }
        Ok(answers)
    }

    /// Marks directions as connected to a peer; returns those that were not connected before.
    pub(crate) fn newly_connected(&self, peer: usize, wanted: u8) -> u8 {
        let mut state = lock(&self.state);
        let connected = state.connected.entry(peer).or_insert(0);
        let new = wanted & !*connected;
        *connected |= wanted;
        new
    }

    // --- Program-defined reductions

    /// Defines a reduction; returns its number, which differs between ranks.
    pub(crate) fn define(&self, kind: DataType, factor: Factor) -> i32 {
        let mut state = lock(&self.state);
        let reductions = &mut state.reductions;
        let free = reductions.iter().position(Option::is_none);
        let at = free.unwrap_or(reductions.len());
        if at == reductions.len() {
            reductions.push(None);
        }
        reductions[at] = Some((kind, factor));
        i32::try_from(at * self.ranks + self.rank).unwrap_or(0) + FIRST_DEFINED
    }

    fn defined_at(&self, number: i32) -> Option<usize> {
        let at = usize::try_from(number.checked_sub(FIRST_DEFINED)?).ok()?;
        (at % self.ranks == self.rank).then_some(at / self.ranks)
    }

    pub(crate) fn defined(&self, number: i32) -> Option<(DataType, Factor)> {
        let at = self.defined_at(number)?;
        lock(&self.state).reductions.get(at)?.clone()
    }

    pub(crate) fn undefine(&self, number: i32) -> Option<()> {
        let at = self.defined_at(number)?;
        let known = lock(&self.state).reductions.get_mut(at)?.take();
        known.map(|_| ())
    }
}

/// Device memory taken by one communicator, or by several that share it.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    taken: Mutex<Vec<(usize, usize)>>,
}

impl Memory {
    /// Bytes that every communicator takes when it is created.
    pub(crate) const OF_ONE: usize = 4 << 20;
    /// Bytes that a communicator takes when its first collective is called.
    pub(crate) const OF_COLLECTIVES: usize = 8 << 20;

    pub(crate) fn take(&self, bytes: usize) -> Result<()> {
        let address = driver::allocate(bytes)?;
        lock(&self.taken).push((address.expose_provenance(), bytes));
        Ok(())
    }

    pub(crate) fn bytes(&self) -> u64 {
        lock(&self.taken).iter().map(|(_, bytes)| *bytes as u64).sum()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (address, _) in lock(&self.taken).drain(..) {
            // Fails if the driver has already released the memory.
            driver::free(address).ok();
        }
    }
}

/// Kind of a message between ranks outside of streams.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(crate) enum Control {
    Finalize = 1,
    Split = 2,
    Shrink = 3,
    Window = 4,
    Grow = 5,
}
