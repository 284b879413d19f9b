//! The calling thread's entry in the table of threads.

use std::cell::Cell;

use ddp_doctor_proto::blackbox::{inside, thread};

use super::nesting::{Frame, Nesting};
use super::protocol::thread::enter;
pub(super) use super::protocol::thread::{Entry, publish, take};
use crate::sync::Ordering;
use crate::sys;

/// Thread-local state. It has no destructor, so a thread that is ending can still use it.
#[derive(Debug)]
pub(super) struct Local {
    /// The writer with which the thread is registered; 0: none.
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
    /// Runs `work` for the calling thread; `None`: its thread-local storage is destroyed.
    #[inline]
    pub(super) fn with<T>(work: impl FnOnce(&Self) -> T) -> Option<T> {
        LOCAL.try_with(work).ok()
    }

    /// Whether the thread is registered with that writer.
    #[inline]
    pub(super) fn belongs_to(&self, writer: u64) -> bool {
        self.writer.get() == writer
    }

    /// Registers the thread with a writer. `given`: its entry and generation, if there was room.
    pub(super) fn register(&self, writer: u64, given: Option<(u16, u16)>) {
        self.writer.set(writer);
        self.entry.set(given.map(|(entry, _)| entry));
        self.id.set(given.map_or(0, |(entry, generation)| thread::id(entry, generation)));
        self.nesting.clear();
    }

    /// Number of the thread in records; 0: there was no room.
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

/// Stores the innermost call or wait of an entry's owner. Called only by the owner.
#[inline]
pub(super) fn set_inside(entry: &Entry, frame: Option<Frame>) {
    let frame = frame.unwrap_or(Frame { kind: inside::NOTHING, ..Frame::default() });
    let what = frame.kind | u64::from(frame.op.number()) << 8 | u64::from(frame.group) << 32;
    enter(entry, [what, frame.call, frame.since, u64::from(frame.site)]);
}

/// Counts a record of the owner.
#[inline]
pub(super) fn count_record(entry: &Entry) {
    let records = entry[thread::RECORDS].load(Ordering::Relaxed);
    entry[thread::RECORDS].store(records.wrapping_add(1), Ordering::Relaxed);
}

/// Thread id, name and length of the name of the calling thread.
pub(super) fn this_thread() -> (u32, [u8; 16], usize) {
    let (name, length) = sys::thread_name();
    (sys::thread_id(), name, length)
}
