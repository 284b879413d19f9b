//! Events that NCCL has begun.
//!
//! NCCL keeps what it is given for an event and hands it back as the parent of others, from other threads,
//! after the event's end, and even in other processes. So it is given a number which says by itself whether
//! it still means anything, and no address.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::progress::Moving;

/// Events that are remembered: those that have not ended, and the latest of those that have.
const MOST: usize = 4096;
/// Places that are looked at for one that is free.
const PROBES: usize = 64;
/// In the number of an event: it has not ended. So no number is 0.
const OPEN: usize = 1;
/// Where the place is in the number; the generation is above it.
const PLACE_SHIFT: u32 = 1;
const GENERATION_SHIFT: u32 = PLACE_SHIFT + MOST.trailing_zeros();

/// What is known of an event.
#[derive(Debug)]
pub(super) struct Event {
    /// The number of whatever is or was here last, [`OPEN`] until that has ended.
    number: AtomicUsize,
    kind: AtomicU64,
    /// The number of the event that it is part of; 0: none.
    pub(super) parent: AtomicUsize,
    /// The record's number of the call; 0: it has none (yet).
    call: AtomicU64,
    /// Parts of its kernel that have not ended; 0: nobody counts them.
    left: AtomicU32,
    /// All parts have ended.
    is_done: AtomicBool,
    /// That it is done was told.
    is_told: AtomicBool,
    /// What it was called with, of a message: the rest of it comes later.
    pub(super) stream: AtomicPtr<c_void>,
    pub(super) is_captured: AtomicBool,
    /// What another plugin gave for it.
    pub(super) next: AtomicPtr<c_void>,
    /// Of a transfer over the network, or a step of one: how far it is.
    pub(super) moving: Moving,
}

static EVENTS: [Event; MOST] = [const {
    Event {
        number: AtomicUsize::new(0),
        kind: AtomicU64::new(0),
        parent: AtomicUsize::new(0),
        call: AtomicU64::new(0),
        left: AtomicU32::new(0),
        is_done: AtomicBool::new(false),
        is_told: AtomicBool::new(false),
        stream: AtomicPtr::new(ptr::null_mut()),
        is_captured: AtomicBool::new(false),
        next: AtomicPtr::new(ptr::null_mut()),
        moving: Moving::new(),
    }
}; MOST];

/// Begins an event: its number and itself; `None`: too many have not ended.
pub(super) fn begin(kind: u64, parent: usize) -> Option<(usize, &'static Event)> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    (0..PROBES).find_map(|_| {
        let place = NEXT.fetch_add(1, Ordering::Relaxed) % MOST;
        let event = EVENTS.get(place)?;
        let before = event.number.load(Ordering::Relaxed);
        let generation = (before >> GENERATION_SHIFT) + 1;
        let number = generation << GENERATION_SHIFT | place << PLACE_SHIFT | OPEN;
        if before & OPEN != 0 {
            return None;
        }
        let taken =
            event
                .number
                .compare_exchange(before, number, Ordering::AcqRel, Ordering::Relaxed);
        taken.ok()?;
        event.kind.store(kind, Ordering::Relaxed);
        event.parent.store(parent, Ordering::Relaxed);
        event.call.store(0, Ordering::Relaxed);
        event.left.store(0, Ordering::Relaxed);
        event.is_done.store(false, Ordering::Relaxed);
        event.is_told.store(false, Ordering::Relaxed);
        event.next.store(ptr::null_mut(), Ordering::Relaxed);
        Some((number, event))
    })
}

/// The event of a number; `None`: it is forgotten, or none of this process.
pub(super) fn find(number: usize) -> Option<&'static Event> {
    let event = EVENTS.get((number >> PLACE_SHIFT) % MOST)?;
    event.is(number).then_some(event)
}

/// Events of a kind that have not ended, with their numbers.
pub(super) fn under_way(kind: u64) -> impl Iterator<Item = (usize, &'static Event)> {
    EVENTS.iter().filter_map(move |event| {
        let number = event.number.load(Ordering::Acquire);
        (number & OPEN != 0 && event.kind() == kind).then_some((number, event))
    })
}

impl Event {
    /// Whether it still is that of this number, and has not ended.
    pub(super) fn is_under_way(&self, number: usize) -> bool {
        number & OPEN != 0 && self.number.load(Ordering::Acquire) == number
    }

    /// Whether it still is that of this number.
    pub(super) fn is(&self, number: usize) -> bool {
        number & OPEN != 0 && self.number.load(Ordering::Acquire) | OPEN == number
    }

    /// A bit of [`kind`](super::layout::kind).
    pub(super) fn kind(&self) -> u64 {
        self.kind.load(Ordering::Relaxed)
    }

    /// What another plugin gave for it; null: nothing.
    pub(super) fn next(&self) -> *mut c_void {
        self.next.load(Ordering::Acquire)
    }

    /// It has ended. What is known of it stays until its place is needed.
    pub(super) fn end(&self, number: usize) {
        let ended = number & !OPEN;
        if self.is_under_way(number) {
            // Before somebody else has the place.
            self.moving.forget();
        }
        // Whoever ends it twice ends nothing.
        self.number
            .compare_exchange(number, ended, Ordering::AcqRel, Ordering::Relaxed)
            .ok();
    }

    /// The record's number of its call; 0: none.
    pub(super) fn call(&self) -> u64 {
        self.call.load(Ordering::SeqCst)
    }

    /// Its kernel has so many parts that are to end.
    pub(super) fn expect(&self, parts: u8) {
        self.left.store(u32::from(parts), Ordering::SeqCst);
    }

    /// Its call was recorded. Gives its number where the kernel has ended already.
    pub(super) fn recorded(&self, call: u64) -> Option<u64> {
        self.call.store(call, Ordering::SeqCst);
        self.done()
    }

    /// A part of its kernel has ended. Gives the call if that was the last one.
    pub(super) fn part_ended(&self) -> Option<u64> {
        let counted = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        if counted == Ok(1) {
            self.is_done.store(true, Ordering::SeqCst);
        }
        self.done()
    }

    /// The call, once: when it is known and all parts have ended, whichever came last.
    fn done(&self) -> Option<u64> {
        let call = self.call();
        let is_done = call != 0 && self.is_done.load(Ordering::SeqCst);
        (is_done && !self.is_told.swap(true, Ordering::SeqCst)).then_some(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_one_event_for_ever() {
        let (first, event) = begin(7, 0).unwrap();
        assert_eq!(find(first).map(Event::kind), Some(7));
        event.end(first);
        // Others may still name it as their parent.
        assert_eq!(find(first).map(Event::kind), Some(7));
        for _ in 0..2 * MOST {
            let (number, event) = begin(8, 0).unwrap();
            assert_ne!(number, first);
            event.end(number);
        }
        assert!(find(first).is_none(), "its place was needed");
        for wrong in [0, 2, 0x0dea_d000, usize::MAX] {
            assert!(find(wrong).is_none(), "{wrong:x}");
        }
    }

    #[test]
    fn a_call_is_done_once_whatever_comes_first() {
        let (number, event) = begin(2, 0).unwrap();
        event.expect(2);
        assert_eq!(event.recorded(5), None);
        assert_eq!(event.part_ended(), None);
        assert_eq!(event.part_ended(), Some(5));
        assert_eq!(event.part_ended(), None);
        event.end(number);
        let (number, event) = begin(2, 0).unwrap();
        event.expect(1);
        assert_eq!(event.part_ended(), None);
        assert_eq!(event.recorded(6), Some(6));
        event.end(number);
        // Nobody counts its parts.
        let (number, event) = begin(2, 0).unwrap();
        assert_eq!(event.recorded(7), None);
        assert_eq!(event.part_ended(), None);
        event.end(number);
    }
}
