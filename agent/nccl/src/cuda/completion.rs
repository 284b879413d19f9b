//! Detects when calls are complete on their streams, by CUDA events that are recorded after the
//! calls and polled by a separate thread.
//!
//! Off unless `DDP_DOCTOR_NCCL_COMPLETION=1` is set: its cost has not been measured on a GPU. No event is
//! recorded on a stream that is captured or may be captured. If no event is free, the call is not
//! tracked: completion is reported late or never, but not too early.

use std::env;
use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::driver::{
    self, Answer, SUCCESS, current_context, event_create, event_query, event_record,
};
use crate::communicators::Communicator;
use crate::recording::black_box::{self, BlackBox};
use crate::recording::call_records::Work;

/// Enables completion events if set to "1".
const SWITCH: &str = "DDP_DOCTOR_NCCL_COMPLETION";
/// Maximum number of calls tracked at a time, all on one device: a rank has one.
const MAX_CALLS: usize = 512;
/// Places that are searched for a free event.
const PROBES: usize = 32;
/// Polling interval.
const EVERY: Duration = Duration::from_millis(2);
/// `CUDA_ERROR_NOT_READY`
const NOT_READY: Answer = 600;

/// State of a place. It starts as [`EMPTY`] and then cycles through the others, in this order.
const EMPTY: u8 = 0;
const FREE: u8 = 1;
const TAKEN: u8 = 2;
const RECORDED: u8 = 3;

struct Place {
    is: AtomicU8,
    event: AtomicPtr<c_void>,
    /// CUDA context of the event.
    context: AtomicPtr<c_void>,
    call: AtomicU64,
    /// The box that has the call, see [`BlackBox::id`].
    black_box: AtomicUsize,
    /// The call is the framework's, and the event stands for a part of it.
    is_part: AtomicBool,
}

static PLACES: [Place; MAX_CALLS] = [const {
    Place {
        is: AtomicU8::new(EMPTY),
        event: AtomicPtr::new(ptr::null_mut()),
        context: AtomicPtr::new(ptr::null_mut()),
        call: AtomicU64::new(0),
        black_box: AtomicUsize::new(0),
        is_part: AtomicBool::new(false),
    }
}; MAX_CALLS];

/// The events were created and the polling thread was started.
static IS_STARTED: AtomicBool = AtomicBool::new(false);

/// Creates events for the calling thread's device and starts the polling thread.
pub(crate) fn start() {
    /// `CU_EVENT_DISABLE_TIMING`
    const NO_TIMING: c_uint = 2;
    if env::var_os(SWITCH).is_none_or(|value| value != "1") {
        return;
    }
    let Some(context) = current_context() else {
        return;
    };
    if IS_STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    for place in &PLACES {
        let mut event = ptr::null_mut();
        if event_create(&mut event, NO_TIMING) != Some(SUCCESS) {
            break;
        }
        place.event.store(event, Ordering::Relaxed);
        place.context.store(context, Ordering::Relaxed);
        place.is.store(FREE, Ordering::Release);
    }
    // If the thread cannot be started, no place becomes free again and later calls are not tracked.
    driver::in_a_thread(c"ddp-nccl-done", context, poll_events);
}

/// Polls the events until the process exits.
fn poll_events() {
    while !driver::is_ending() {
        for place in &PLACES {
            if place.is.load(Ordering::Acquire) == RECORDED && !driver::is_ending() {
                poll(place);
            }
        }
        thread::sleep(EVERY);
    }
}

/// Polls one event and records the completion of its call.
fn poll(place: &Place) {
    let answer = event_query(place.event.load(Ordering::Relaxed));
    if answer == Some(NOT_READY) {
        return;
    }
    // The box may have been closed meanwhile. After a driver error the call's state is unknown.
    let open = black_box::with_id(place.black_box.load(Ordering::Relaxed));
    if let (Some(black_box), Some(SUCCESS)) = (open, answer) {
        let call = place.call.load(Ordering::Relaxed);
        if place.is_part.load(Ordering::Relaxed) {
            black_box.part_done(call);
        } else {
            black_box.completed(call);
        }
    }
    place.is.store(FREE, Ordering::Release);
}

/// Tracks a call that was just enqueued. Returns whether its completion will be recorded.
#[inline]
pub(crate) fn track(
    black_box: BlackBox,
    communicator: &Communicator,
    work: &Work,
    call: u64,
) -> bool {
    can_track(communicator, work, call) && record_event(black_box, work, call, false)
}

/// Tracks a part of a framework's call that was just enqueued.
#[inline]
pub(crate) fn track_part(black_box: BlackBox, communicator: &Communicator, work: &Work, call: u64) {
    if can_track(communicator, work, call) {
        record_event(black_box, work, call, true);
    }
}

#[inline]
fn can_track(communicator: &Communicator, work: &Work, call: u64) -> bool {
    // Non-blocking communicators enqueue the work later, on another thread.
    let is_there = work.enqueues && !communicator.non_blocking;
    is_there && call != 0 && IS_STARTED.load(Ordering::Relaxed)
}

fn record_event(black_box: BlackBox, work: &Work, call: u64, is_part: bool) -> bool {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let Some(context) = current_context() else {
        return false;
    };
    let first = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut places = (0..PROBES).filter_map(|i| PLACES.get((first + i) % MAX_CALLS));
    let free = places.find(|place| {
        place.context.load(Ordering::Relaxed) == context
            && place.is.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    });
    let Some(place) = free else { return false };
    let recorded = event_record(place.event.load(Ordering::Relaxed), work.handle);
    if recorded != Some(SUCCESS) || (is_part && !black_box.follow(call)) {
        place.is.store(FREE, Ordering::Release);
        return false;
    }
    place.call.store(call, Ordering::Relaxed);
    place.black_box.store(black_box.id(), Ordering::Relaxed);
    place.is_part.store(is_part, Ordering::Relaxed);
    place.is.store(RECORDED, Ordering::Release);
    true
}
