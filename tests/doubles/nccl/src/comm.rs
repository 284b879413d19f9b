//! A communicator, as one rank has it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use crate::arithmetic::DataType;
use crate::handles::Handles;
use crate::mesh::{Aborted, Lane, Mesh};
use crate::pointers::Buffer;
use crate::{Result, Status, driver, lock, refuse};

pub(crate) static COMMS: Handles<Arc<Comm>> = Handles::new(0x5500_0000_0000);

/// The first number of a reduction that a program defines.
const FIRST_DEFINED: i32 = 5;

/// NCCL's hash of a communicator, and what the ids begin with of those who come to it later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub(crate) hash: u64,
    pub(crate) magic: u64,
}

impl Name {
    /// Of one that is made out of another.
    pub(crate) const fn of(hash: u64) -> Self {
        Self { hash, magic: hash }
    }
}

/// A communicator. It is there from the call that asks for it on, and usable once the ranks have met.
#[derive(Debug)]
pub(crate) struct Comm {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) device: i32,
    pub(crate) is_blocking: bool,
    pub(crate) name: Name,
    /// Of the device.
    pub(crate) memory: Arc<Memory>,
    /// It was connected for collectives: that takes memory.
    is_connected: AtomicBool,
    /// How often others were made out of it, by all its ranks.
    children: AtomicU32,
    mesh: OnceLock<Mesh>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Work that was put into streams, and that is done. It is done in this order.
    launched: u64,
    done: u64,
    /// Collectives that were executed.
    collectives: u64,
    /// What `ncclCommGetAsyncError` says.
    error: Option<Status>,
    is_aborted: bool,
    is_finalized: bool,
    /// For what it is connected to a peer: 1 to send, 2 to receive.
    connected: HashMap<usize, u8>,
    /// Reductions that the program has defined, which may be gone again.
    reductions: Vec<Option<(DataType, Factor)>>,
}

/// What a defined reduction multiplies by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    Value(Vec<u8>),
    /// To be read when it is needed.
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

    /// Another one is about to be made out of it: the how manieth, from 1.
    pub(crate) fn next_child(&self) -> u32 {
        self.children.load(Ordering::Relaxed) + 1
    }

    /// It is being made.
    pub(crate) fn have_child(&self) -> u32 {
        self.children.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// What a handle stands for.
    pub(crate) fn of(handle: usize, function: &str) -> Result<Arc<Self>> {
        if handle == 0 {
            let why = format!("{function} : comm argument is NULL");
            return refuse(Status::INVALID_ARGUMENT, why);
        }
        match COMMS.get(handle) {
            Some(comm) => Ok(comm),
            None => refuse(
                Status::INVALID_ARGUMENT,
                format!("{function} : comm argument is no communicator"),
            ),
        }
    }

    /// The ranks have met.
    pub(crate) fn has_met(&self, mesh: Mesh) {
        if lock(&self.state).is_aborted {
            mesh.abort();
        }
        // It is set once: by whoever the communicator was made by.
        self.mesh.set(mesh).ok();
    }

    /// What carries it. `Err`: the ranks have not met yet.
    pub(crate) fn mesh(&self) -> Result<&Mesh> {
        match self.mesh.get() {
            Some(mesh) => Ok(mesh),
            None => refuse(
                Status::INVALID_ARGUMENT,
                "the communicator is used before the call that makes it has ended".into(),
            ),
        }
    }

    /// A collective is about to be made.
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

    /// A place in the order.
    pub(crate) fn ticket(&self) -> u64 {
        let mut state = lock(&self.state);
        state.launched += 1;
        state.launched
    }

    /// Waits until the work before this one is done.
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

    /// Waits until all work is done and all ranks say so; at once where that has been.
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

    // --- What ranks agree on beside their streams

    /// Tells these ranks something and takes what they say, in their order. Blocks until all have.
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

    /// For what this rank is not connected to a peer yet, of what it wants to be; it is from now on.
    pub(crate) fn newly_connected(&self, peer: usize, wanted: u8) -> u8 {
        let mut state = lock(&self.state);
        let connected = state.connected.entry(peer).or_insert(0);
        let new = wanted & !*connected;
        *connected |= wanted;
        new
    }

    // --- Reductions that the program defines

    /// The number of a new one. Ranks have other numbers for the same.
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

/// What communicators have taken of the device's memory, one or several that share it.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    taken: Mutex<Vec<(usize, usize)>>,
}

impl Memory {
    /// Bytes that every communicator takes when it is made, …
    pub(crate) const OF_ONE: usize = 4 << 20;
    /// … and when its first collective is called.
    pub(crate) const OF_COLLECTIVES: usize = 8 << 20;

    pub(crate) fn take(&self, bytes: usize) -> Result<()> {
        let address = driver::allocate(bytes)?;
        lock(&self.taken).push((address.expose_provenance(), bytes));
        Ok(())
    }

    pub(crate) fn bytes(&self) -> u64 {
        lock(&self.taken)
            .iter()
            .map(|(_, bytes)| *bytes as u64)
            .sum()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (address, _) in lock(&self.taken).drain(..) {
            // The driver has taken it back where that has ended before.
            driver::free(address).ok();
        }
    }
}

/// What ranks say to one another beside their streams.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(crate) enum Control {
    Finalize = 1,
    Split = 2,
    Shrink = 3,
    Window = 4,
    Grow = 5,
}
