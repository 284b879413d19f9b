//! Table of profiler events.
//!
//! NCCL returns the handle of an event as the parent of other events: from other threads, after the
//! event's end, and even to other processes. The handle is therefore not an address but a number
//! from which a stale event can be recognized.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::network_transfers::Progress;

/// Capacity: events that have not ended, and the latest of those that have.
const MAX_EVENTS: usize = 4096;
/// Places that are searched for a free one.
const PROBES: usize = 64;
/// Bit of an event's number: it has not ended. Makes every number nonzero.
const OPEN: usize = 1;
/// Position of the place in the number; the generation is above it.
const PLACE_SHIFT: u32 = 1;
const GENERATION_SHIFT: u32 = PLACE_SHIFT + MAX_EVENTS.trailing_zeros();

/// State of an event.
#[derive(Debug)]
pub(super) struct Event {
    /// Number of the current or last event at this place, without [`OPEN`] once it has ended.
    number: AtomicUsize,
    kind: AtomicU64,
    /// Number of the parent event; 0: none.
    pub(super) parent: AtomicUsize,
    /// Id of the recorded call; 0: not recorded (yet).
    call: AtomicU64,
    /// Kernel parts that have not ended; 0: not counted.
    left: AtomicU32,
    /// All kernel parts have ended.
    is_done: AtomicBool,
    /// The completion was recorded.
    is_told: AtomicBool,
    /// Stream of a message, known before its peer.
    pub(super) stream: AtomicPtr<c_void>,
    pub(super) is_captured: AtomicBool,
    /// Event of the other plugin; null: none.
    pub(super) next: AtomicPtr<c_void>,
    /// Progress of a network transfer or of one of its steps.
    pub(super) progress: Progress,
}

static EVENTS: [Event; MAX_EVENTS] = [const {
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
        progress: Progress::new(),
    }
}; MAX_EVENTS];

/// Begins an event and returns it with its number; `None`: too many have not ended.
pub(super) fn begin(kind: u64, parent: usize) -> Option<(usize, &'static Event)> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    (0..PROBES).find_map(|_| {
        let place = NEXT.fetch_add(1, Ordering::Relaxed) % MAX_EVENTS;
        let event = EVENTS.get(place)?;
        let before = event.number.load(Ordering::Relaxed);
        let generation = (before >> GENERATION_SHIFT) + 1;
        let number = generation << GENERATION_SHIFT | place << PLACE_SHIFT | OPEN;
        if before & OPEN != 0 {
            return None;
        }
        let taken =
            event.number.compare_exchange(before, number, Ordering::AcqRel, Ordering::Relaxed);
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

/// The event with a number; `None`: its place was reused, or the number is from another process.
pub(super) fn find(number: usize) -> Option<&'static Event> {
    let event = EVENTS.get((number >> PLACE_SHIFT) % MAX_EVENTS)?;
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
    /// Whether this place still holds the event with this number, and it has not ended.
    pub(super) fn is_under_way(&self, number: usize) -> bool {
        number & OPEN != 0 && self.number.load(Ordering::Acquire) == number
    }

    /// Whether this place still holds the event with this number.
    pub(super) fn is(&self, number: usize) -> bool {
        number & OPEN != 0 && self.number.load(Ordering::Acquire) | OPEN == number
    }

    /// The kind, a bit of [`kind`](super::layout::kind).
    pub(super) fn kind(&self) -> u64 {
        self.kind.load(Ordering::Relaxed)
    }

    /// Event of the other plugin; null: none.
    pub(super) fn next(&self) -> *mut c_void {
        self.next.load(Ordering::Acquire)
    }

    /// Ends the event. Its state remains until the place is reused.
    pub(super) fn end(&self, number: usize) {
        let ended = number & !OPEN;
        if self.is_under_way(number) {
            // Must happen before the place can be reused.
            self.progress.forget();
        }
        // Ending an event twice has no effect.
        self.number.compare_exchange(number, ended, Ordering::AcqRel, Ordering::Relaxed).ok();
    }

    /// Id of its recorded call; 0: none.
    pub(super) fn call(&self) -> u64 {
        self.call.load(Ordering::SeqCst)
    }

    /// Sets the number of kernel parts that have to end.
    pub(super) fn expect(&self, parts: u8) {
        self.left.store(u32::from(parts), Ordering::SeqCst);
    }

    /// Sets the id of its recorded call. Returns the id if the kernel has already ended.
    pub(super) fn recorded(&self, call: u64) -> Option<u64> {
        self.call.store(call, Ordering::SeqCst);
        self.done()
    }

    /// Counts the end of a kernel part. Returns the call if it was the last one.
    pub(super) fn part_ended(&self) -> Option<u64> {
        let counted =
            self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if counted == Ok(1) {
            self.is_done.store(true, Ordering::SeqCst);
        }
        self.done()
    }

    /// Returns the call once, when its id is known and all parts have ended.
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
    fn stale_number_finds_no_event() {
        let (first, event) = begin(7, 0).unwrap();
        assert_eq!(find(first).map(Event::kind), Some(7));
        event.end(first);
        // Other events may still name it as their parent.
        assert_eq!(find(first).map(Event::kind), Some(7));
        for _ in 0..2 * MAX_EVENTS {
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
    fn call_completes_once_in_any_order() {
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
        // Without `expect` the parts are not counted.
        let (number, event) = begin(2, 0).unwrap();
        assert_eq!(event.recorded(7), None);
        assert_eq!(event.part_ended(), None);
        event.end(number);
    }
}
