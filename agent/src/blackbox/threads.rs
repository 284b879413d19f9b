//! The calling thread's entry in the table of threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use ddp_doctor_proto::blackbox::{PUBLISHED, inside, thread};

use super::nesting::{Frame, Nesting};
use crate::sys;

/// What a thread knows of itself. It has no destructor: a thread that is ending can still use it.
#[derive(Debug)]
pub(super) struct Local {
    /// The writer that the rest is about; 0: none.
    writer: Cell<u64>,
    entry: Cell<Option<u16>>,
    id: Cell<u32>,
    pub(super) nesting: Nesting,
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            writer: Cell::new(0),
            entry: Cell::new(None),
            id: Cell::new(0),
            nesting: Nesting::new(),
        }
    };
}

impl Local {
    /// Runs `work` for the calling thread; `None` where it has no memory of its own any more.
    #[inline]
    pub(super) fn with<T>(work: impl FnOnce(&Self) -> T) -> Option<T> {
        LOCAL.try_with(work).ok()
    }

    /// Whether it is registered with that writer.
    #[inline]
    pub(super) fn belongs_to(&self, writer: u64) -> bool {
        self.writer.get() == writer
    }

    /// Registers it, with the entry and generation that it was given, if any.
    pub(super) fn register(&self, writer: u64, given: Option<(u16, u16)>) {
        self.writer.set(writer);
        self.entry.set(given.map(|(entry, _)| entry));
        self.id
            .set(given.map_or(0, |(entry, generation)| thread::id(entry, generation)));
        self.nesting.clear();
    }

    /// Number of the thread in records; 0: it found no room.
    #[inline]
    pub(super) fn id(&self) -> u32 {
        self.id.get()
    }

    /// Its entry in the table.
    #[inline]
    pub(super) fn entry(&self) -> Option<u16> {
        self.entry.get()
    }
}

/// Words of one thread's entry.
type Entry = [AtomicU64; ddp_doctor_proto::blackbox::THREAD_WORDS];

/// Takes an entry that nobody used, or that a dead thread has left, for a thread. Gives the
/// generation of the entry; `None` where another thread was faster or the owner lives.
///
/// A published entry with the same `tid` is a dead thread's: numbers are used again.
pub(super) fn take(entry: &Entry, tid: u32, may_live: impl FnOnce(u32) -> bool) -> Option<u16> {
    let found = entry[thread::TID].load(Ordering::Acquire);
    let generation = match thread::parse(found) {
        Some((owner, _)) if owner != tid && may_live(owner) => return None,
        Some((_, generation)) => generation.wrapping_add(1),
        None => return None,
    };
    let unpublished = u64::from(generation) << 32 | u64::from(tid);
    entry[thread::TID]
        .compare_exchange(found, unpublished, Ordering::Acquire, Ordering::Relaxed)
        .ok()?;
    fence(Ordering::Release);
    Some(generation)
}

/// Fills an entry that is the caller's, and publishes it.
pub(super) fn publish(entry: &Entry, tid: u32, generation: u16, name: u32) {
    entry[thread::NAME].store(u64::from(name), Ordering::Relaxed);
    set_inside(entry, None);
    entry[thread::RECORDS].store(0, Ordering::Relaxed);
    let word = PUBLISHED | u64::from(generation) << 32 | u64::from(tid);
    entry[thread::TID].store(word, Ordering::Release);
}

/// Says what the owner of an entry is inside of. Only the owner calls this.
#[inline]
pub(super) fn set_inside(entry: &Entry, frame: Option<Frame>) {
    let frame = frame.unwrap_or(Frame {
        kind: inside::NOTHING,
        ..Frame::default()
    });
    // A dead predecessor may have left it odd.
    let odd = entry[thread::LOCK].load(Ordering::Relaxed) | 1;
    entry[thread::LOCK].store(odd, Ordering::Relaxed);
    fence(Ordering::Release);
    let what = frame.kind | u64::from(frame.op.number()) << 8 | u64::from(frame.group) << 32;
    entry[thread::INSIDE].store(what, Ordering::Relaxed);
    entry[thread::CALL].store(frame.call, Ordering::Relaxed);
    entry[thread::SINCE].store(frame.since, Ordering::Relaxed);
    entry[thread::SITE].store(u64::from(frame.site), Ordering::Relaxed);
    entry[thread::LOCK].store(odd.wrapping_add(1), Ordering::Release);
}

/// Counts a record of the owner.
#[inline]
pub(super) fn count_record(entry: &Entry) {
    let records = entry[thread::RECORDS].load(Ordering::Relaxed);
    entry[thread::RECORDS].store(records.wrapping_add(1), Ordering::Relaxed);
}

/// The calling thread's number and name.
pub(super) fn this_thread() -> (u32, [u8; 16], usize) {
    let (name, length) = sys::thread_name();
    (sys::thread_id(), name, length)
}
