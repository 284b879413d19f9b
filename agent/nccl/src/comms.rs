//! Table of communicators by their handles.
//!
//! NCCL reuses addresses. A handle stands for the communicator that was created last with it, until
//! the program destroys that communicator.
//!
//! Lookups take no lock. Inserting and removing take a lock that is held only for the change; if
//! the lock cannot be acquired, for example in a child forked meanwhile, the change is skipped.
#![expect(unsafe_code, reason = "lends what a static pointer leads to, and keeps handles")]

use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::thread;

use ddp_doctor_agent::blackbox::Seat;
use ddp_doctor_agent::identity;
use ddp_doctor_proto::Op;

use crate::abi::Comm;
use crate::comm_memory::CommMemory;
use crate::sink::{self, Outer, Sink};

/// Maximum number of communicators at a time. More than any program has, since NCCL allocates
/// device memory for each.
const ENTRIES: usize = 4096;
/// Entries that are searched for a handle.
const PROBES: usize = 64;
/// A removed entry. The search continues behind it.
const GONE: usize = 1;

/// Owner of a communicator.
mod whose {
    /// Not used yet.
    pub(super) const UNKNOWN: u8 = 0;
    /// Used by a framework whose calls are recorded in the same box.
    pub(super) const FRAMEWORK: u8 = 1;
    /// Used by the program directly.
    pub(super) const PROGRAM: u8 = 2;
}

/// Another thread is registering the communicator in the box at this moment.
const REGISTERING: u32 = u32::MAX;

/// Name of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// Unique among communicators, and the same on all ranks.
    pub(crate) hash: u64,
    /// Index among the communicators with that hash, from 0.
    pub(crate) occurrence: u32,
    /// NCCL's own hash, which may be shared by communicators derived from one parent.
    pub(crate) in_nccl: u64,
    /// First bytes of the unique ids with which ranks join later, see [`identity::magic_of`].
    pub(crate) magic: u64,
}

/// A communicator that this process is a rank of.
#[derive(Debug)]
pub(crate) struct Communicator {
    /// The box in which it is registered, see [`Sink::name`]. After a fork there is another box or
    /// none.
    pub(crate) sink: usize,
    /// Its group number in that box; 0: not registered yet.
    group: AtomicU32,
    /// Its name on all ranks.
    pub(crate) name: Name,
    /// Name given by the program.
    description: Vec<u8>,
    /// This process's rank in it.
    pub(crate) rank: u32,
    /// Number of ranks.
    pub(crate) size: u32,
    /// Calls return before they are complete.
    pub(crate) non_blocking: bool,
    /// CUDA device; -1: unknown.
    pub(crate) device: i32,
    /// Number of divisions so far.
    divisions: AtomicU32,
    whose: AtomicU8,
    /// NCCL's handle, while it is in the table.
    pub(crate) handle: Comm,
    /// Device memory that NCCL holds for it.
    pub(crate) held: CommMemory,
}

// SAFETY: the handle is used as a name; code that passes it to NCCL ensures that it is valid.
unsafe impl Send for Communicator {}
// SAFETY: as above.
unsafe impl Sync for Communicator {}

impl Communicator {
    pub(crate) fn new(sink: Sink, name: Name, description: &[u8]) -> Self {
        Self {
            sink: sink.name(),
            group: AtomicU32::new(0),
            name,
            description: description.to_vec(),
            rank: 0,
            size: 0,
            non_blocking: false,
            device: -1,
            divisions: AtomicU32::new(0),
            whose: AtomicU8::new(whose::UNKNOWN),
            handle: ptr::null_mut(),
            held: CommMemory::new(),
        }
    }

    /// Whether both are the same communicator.
    pub(crate) fn is(&self, other: &Self) -> bool {
        ptr::eq(self, other)
    }

    /// Its group number in the box. Registers it first if necessary; 0: the box has no room, or
    /// another thread is registering it.
    #[inline]
    pub(crate) fn group(&self, sink: Sink) -> u32 {
        match self.group.load(Ordering::Acquire) {
            0 => self.register(sink),
            REGISTERING => 0,
            group => group,
        }
    }

    /// Its group number in the box, if it is registered.
    pub(crate) fn registered(&self) -> Option<u32> {
        let group = self.group.load(Ordering::Acquire);
        (group != 0 && group != REGISTERING).then_some(group)
    }

    #[cold]
    fn register(&self, sink: Sink) -> u32 {
        let (order, failure) = (Ordering::AcqRel, Ordering::Acquire);
        if let Err(known) = self.group.compare_exchange(0, REGISTERING, order, failure) {
            return if known == REGISTERING { 0 } else { known };
        }
        let group = sink.communicator(&sink::Communicator {
            op: Op::Unspecified,
            takes_all: false,
            name: identity::name(self.name.hash, self.name.occurrence).as_bytes(),
            description: &self.description,
            seat: Seat { rank: self.rank, size: self.size },
            returns_to: 0,
        });
        self.group.store(group, Ordering::Release);
        group
    }

    /// Marks it as created by a framework, inside one of the framework's calls.
    pub(crate) fn is_made_by_framework(&self) {
        self.whose.store(whose::FRAMEWORK, Ordering::Relaxed);
    }

    /// Whether a framework created it or was the first to use it.
    #[inline]
    pub(crate) fn is_of_framework(&self) -> bool {
        self.whose.load(Ordering::Relaxed) == whose::FRAMEWORK
    }

    /// The framework's call that uses this communicator now. The first use decides whether a
    /// communicator belongs to a framework; one of the program has no outer call.
    #[inline]
    pub(crate) fn outer(&self) -> Outer {
        let outer = sink::outer();
        match self.whose.load(Ordering::Relaxed) {
            whose::FRAMEWORK => outer,
            whose::PROGRAM => Outer::Nothing,
            _ => {
                let is_framework = matches!(outer, Outer::Call(_));
                let whose = [whose::PROGRAM, whose::FRAMEWORK][usize::from(is_framework)];
                self.whose.store(whose, Ordering::Relaxed);
                if is_framework { outer } else { Outer::Nothing }
            }
        }
    }

    /// Counts a division, in which all ranks take part, and returns its 1-based number.
    pub(crate) fn divide(&self) -> u32 {
        self.divisions.fetch_add(1, Ordering::Relaxed) + 1
    }
}

struct Entry {
    handle: AtomicUsize,
    /// Never freed, since another thread may be about to use it.
    communicator: AtomicPtr<Communicator>,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry { handle: AtomicUsize::new(0), communicator: AtomicPtr::new(ptr::null_mut()) }
}; ENTRIES];

/// Locked while the table changes.
static CHANGING: Mutex<()> = Mutex::new(());

/// The communicator that a handle stands for.
#[inline]
pub(crate) fn find(handle: Comm) -> Option<&'static Communicator> {
    let entry = places(handle)
        .map_while(|entry| match entry.handle.load(Ordering::Acquire) {
            0 => None,
            found => Some((found, entry)),
        })
        .find_map(|(found, entry)| (found == handle.addr()).then_some(entry))?;
    let communicator = entry.communicator.load(Ordering::Acquire);
    // SAFETY: null, or a communicator that was leaked before it was stored.
    unsafe { communicator.as_ref() }
}

/// Makes the handle stand for this communicator. `None`: no room, or the lock is not available.
pub(crate) fn insert(
    handle: Comm,
    mut communicator: Communicator,
) -> Option<&'static Communicator> {
    if handle.addr() <= GONE {
        return None;
    }
    with_lock(|| {
        let known = places(handle).find(|it| it.handle.load(Ordering::Relaxed) == handle.addr());
        let free = || places(handle).find(|it| it.handle.load(Ordering::Relaxed) <= GONE);
        let entry = known.or_else(free)?;
        communicator.handle = handle;
        let communicator: &'static Communicator = Box::leak(Box::new(communicator));
        let pointer = ptr::from_ref(communicator).cast_mut();
        entry.communicator.store(pointer, Ordering::Release);
        entry.handle.store(handle.addr(), Ordering::Release);
        Some(communicator)
    })
    .flatten()
}

/// Removes the handle and returns its communicator.
pub(crate) fn remove(handle: Comm) -> Option<&'static Communicator> {
    let found = find(handle)?;
    with_lock(|| {
        let entry = places(handle).find(|it| it.handle.load(Ordering::Relaxed) == handle.addr());
        if let Some(entry) = entry {
            entry.handle.store(GONE, Ordering::Release);
            entry.communicator.store(ptr::null_mut(), Ordering::Release);
        }
    })?;
    Some(found)
}

/// Entries in which a handle may be.
#[inline]
fn places(handle: Comm) -> impl Iterator<Item = &'static Entry> {
    // Addresses of one allocation size differ in their middle bits.
    let first = (handle.addr() >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - 12);
    (0..PROBES).filter_map(move |i| TABLE.get((first + i) % ENTRIES))
}

fn with_lock<T>(work: impl FnOnce() -> T) -> Option<T> {
    for _ in 0..1000 {
        match CHANGING.try_lock() {
            Ok(_lock) => return Some(work()),
            Err(std::sync::TryLockError::Poisoned(_)) => return None,
            Err(std::sync::TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn communicator(group: u32) -> Communicator {
        Communicator {
            sink: 0,
            group: AtomicU32::new(group),
            name: Name { hash: 0, occurrence: 0, in_nccl: 0, magic: 0 },
            description: Vec::new(),
            rank: 0,
            size: 1,
            non_blocking: false,
            device: -1,
            divisions: AtomicU32::new(0),
            whose: AtomicU8::new(whose::UNKNOWN),
            handle: ptr::null_mut(),
            held: CommMemory::new(),
        }
    }

    #[test]
    fn reused_handle_is_another_communicator() {
        let handle = |n: usize| ptr::without_provenance_mut::<libc::c_void>(0x7000_0000 + n * 64);
        for n in 0..500 {
            assert!(insert(handle(n), communicator(n as u32 + 1)).is_some());
        }
        for n in 0..500 {
            assert_eq!(find(handle(n)).and_then(Communicator::registered), Some(n as u32 + 1));
        }
        for n in (0..500).step_by(2) {
            assert_eq!(remove(handle(n)).and_then(Communicator::registered), Some(n as u32 + 1));
            assert!(find(handle(n)).is_none());
        }
        assert!(remove(handle(0)).is_none());
        insert(handle(0), communicator(7000));
        insert(handle(1), communicator(7001));
        assert_eq!(find(handle(0)).and_then(Communicator::registered), Some(7000));
        assert_eq!(find(handle(1)).and_then(Communicator::registered), Some(7001));
        assert_eq!(find(handle(3)).and_then(Communicator::registered), Some(4));
        assert!(insert(ptr::null_mut(), communicator(1)).is_none());
        assert!(find(ptr::null_mut()).is_none());
    }
}
