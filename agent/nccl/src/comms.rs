//! Which communicator a handle is.
//!
//! NCCL gives the same address again once a communicator is gone: so a handle stands for the one that
//! was made last with it, and for none from the moment on at which the program gives it back.
//!
//! Looking one up takes no lock. Making and forgetting one does, a lock that nobody holds while anything
//! else is done; who cannot have it at once, as in a child that was forked meanwhile, goes without.
#![expect(
    unsafe_code,
    reason = "lends what a static pointer leads to, and keeps handles"
)]

use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::thread;

use ddp_doctor_agent::blackbox::Seat;
use ddp_doctor_agent::identity;
use ddp_doctor_proto::Op;

use crate::abi::Comm;
use crate::held::Held;
use crate::sink::{self, Outer, Sink};

/// Communicators at a time. More than any program has: NCCL itself takes memory on the device for each.
const ENTRIES: usize = 4096;
/// Entries that are looked at for a handle.
const PROBES: usize = 64;
/// An entry that was in use: those behind it may still be meant.
const GONE: usize = 1;

/// Whose a communicator is.
mod whose {
    /// It was not used yet.
    pub(super) const UNKNOWN: u8 = 0;
    /// A framework's, whose calls are recorded in the same box.
    pub(super) const FRAMEWORK: u8 = 1;
    /// The program's own.
    pub(super) const PROGRAM: u8 = 2;
}

/// Another thread tells the box of the communicator at this moment.
const BEING_TOLD: u32 = u32::MAX;

/// What a communicator is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// Which no other one has, on any rank.
    pub(crate) hash: u64,
    /// The n-th communicator with that hash.
    pub(crate) occurrence: u32,
    /// NCCL's own hash of it, which several may have that were made out of one.
    pub(crate) in_nccl: u64,
    /// What the ids begin with of those who come to it later.
    pub(crate) magic: u64,
}

/// A communicator that this process is a rank of.
#[derive(Debug)]
pub(crate) struct Communicator {
    /// The box that knows it, by its name: after a fork there is another one, or none.
    pub(crate) sink: usize,
    /// Its number there; 0: the box was not told of it.
    group: AtomicU32,
    /// What names it on all ranks.
    pub(crate) name: Name,
    /// What the program calls it.
    description: Vec<u8>,
    /// This process's rank in it.
    pub(crate) rank: u32,
    /// Number of its ranks.
    pub(crate) size: u32,
    /// Its calls come back before they are done.
    pub(crate) non_blocking: bool,
    /// Its device; -1: not known.
    pub(crate) device: i32,
    /// How often others were made out of it.
    divisions: AtomicU32,
    whose: AtomicU8,
    /// What NCCL calls it, while the table has it.
    pub(crate) handle: Comm,
    /// What it holds of the device's memory.
    pub(crate) held: Held,
}

// SAFETY: the handle is a name; whoever hands it to NCCL sees to it that it is there.
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
            held: Held::new(),
        }
    }

    /// Whether this is that one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        ptr::eq(self, other)
    }

    /// Its number in the box, which is told of it where it was not; 0: it finds no room there, or another
    /// thread is telling of it.
    #[inline]
    pub(crate) fn group(&self, sink: Sink) -> u32 {
        match self.group.load(Ordering::Acquire) {
            0 => self.tell(sink),
            BEING_TOLD => 0,
            group => group,
        }
    }

    /// Its number in the box, if it was told of it.
    pub(crate) fn told(&self) -> Option<u32> {
        let group = self.group.load(Ordering::Acquire);
        (group != 0 && group != BEING_TOLD).then_some(group)
    }

    #[cold]
    fn tell(&self, sink: Sink) -> u32 {
        let (order, failure) = (Ordering::AcqRel, Ordering::Acquire);
        if let Err(known) = self.group.compare_exchange(0, BEING_TOLD, order, failure) {
            return if known == BEING_TOLD { 0 } else { known };
        }
        let group = sink.communicator(&sink::Communicator {
            op: Op::Unspecified,
            takes_all: false,
            name: identity::name(self.name.hash, self.name.occurrence).as_bytes(),
            description: &self.description,
            seat: Seat {
                rank: self.rank,
                size: self.size,
            },
            returns_to: 0,
        });
        self.group.store(group, Ordering::Release);
        group
    }

    /// A framework has made it, inside of a call of its.
    pub(crate) fn is_made_by_framework(&self) {
        self.whose.store(whose::FRAMEWORK, Ordering::Relaxed);
    }

    /// Whether a framework has made it, or was the first to use it.
    #[inline]
    pub(crate) fn is_of_framework(&self) -> bool {
        self.whose.load(Ordering::Relaxed) == whose::FRAMEWORK
    }

    /// What a framework's call is that asks this communicator for something now. One of the program's own is
    /// used by the program, wherever that comes to it: whose it is, is decided at its first use.
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

    /// Another one is made out of it, by all its ranks: the how manieth, from 1.
    pub(crate) fn divide(&self) -> u32 {
        self.divisions.fetch_add(1, Ordering::Relaxed) + 1
    }
}

struct Entry {
    handle: AtomicUsize,
    /// Never freed: another thread may be about to use it.
    communicator: AtomicPtr<Communicator>,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        handle: AtomicUsize::new(0),
        communicator: AtomicPtr::new(ptr::null_mut()),
    }
}; ENTRIES];

/// Held by who changes the table.
static CHANGING: Mutex<()> = Mutex::new(());

/// The communicator that a handle stands for now.
#[inline]
pub(crate) fn find(handle: Comm) -> Option<&'static Communicator> {
    let entry = places(handle)
        .map_while(|entry| match entry.handle.load(Ordering::Acquire) {
            0 => None,
            found => Some((found, entry)),
        })
        .find_map(|(found, entry)| (found == handle.addr()).then_some(entry))?;
    let communicator = entry.communicator.load(Ordering::Acquire);
    // SAFETY: null, or one that was leaked before it was stored.
    unsafe { communicator.as_ref() }
}

/// From now on the handle stands for this communicator.
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

/// The handle stands for nothing any more. Gives what it stood for.
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

/// Where a handle may stand.
#[inline]
fn places(handle: Comm) -> impl Iterator<Item = &'static Entry> {
    // Addresses of one kind differ in their middle bits.
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
            name: Name {
                hash: 0,
                occurrence: 0,
                in_nccl: 0,
                magic: 0,
            },
            description: Vec::new(),
            rank: 0,
            size: 1,
            non_blocking: false,
            device: -1,
            divisions: AtomicU32::new(0),
            whose: AtomicU8::new(whose::UNKNOWN),
            handle: ptr::null_mut(),
            held: Held::new(),
        }
    }

    #[test]
    fn a_handle_that_is_given_again_is_another_communicator() {
        let handle = |n: usize| ptr::without_provenance_mut::<libc::c_void>(0x7000_0000 + n * 64);
        for n in 0..500 {
            assert!(insert(handle(n), communicator(n as u32 + 1)).is_some());
        }
        for n in 0..500 {
            assert_eq!(
                find(handle(n)).and_then(Communicator::told),
                Some(n as u32 + 1)
            );
        }
        for n in (0..500).step_by(2) {
            assert_eq!(
                remove(handle(n)).and_then(Communicator::told),
                Some(n as u32 + 1)
            );
            assert!(find(handle(n)).is_none());
        }
        assert!(remove(handle(0)).is_none());
        insert(handle(0), communicator(7000));
        insert(handle(1), communicator(7001));
        assert_eq!(find(handle(0)).and_then(Communicator::told), Some(7000));
        assert_eq!(find(handle(1)).and_then(Communicator::told), Some(7001));
        assert_eq!(find(handle(3)).and_then(Communicator::told), Some(4));
        assert!(insert(ptr::null_mut(), communicator(1)).is_none());
        assert!(find(ptr::null_mut()).is_none());
    }
}
