//! When a stream has come to a call: events of the CUDA driver, put behind calls and asked for by a thread
//! of its own.
//!
//! Off unless `DDP_DOCTOR_NCCL_COMPLETION=1`, since it has not been run on a GPU yet. Nothing is put on a
//! stream that is captured, or of which that is not known. Where no event is free, a call is not followed:
//! that a call is complete is told late or not at all, never too early.

use std::env;
use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::comms::Communicator;
use crate::driver::{
    self, Answer, Capture, SUCCESS, current_context, event_create, event_query, event_record,
};
use crate::records::Work;
use crate::sink::{self, Sink};

/// Switches it on where it is "1".
const SWITCH: &str = "DDP_DOCTOR_NCCL_COMPLETION";
/// Calls that are followed at a time. Those of one device only: a rank has one.
const MOST: usize = 512;
/// Places that are looked at for a free event.
const PROBES: usize = 32;
/// How often the events are asked for.
const EVERY: Duration = Duration::from_millis(2);
/// `CUDA_ERROR_NOT_READY`
const NOT_READY: Answer = 600;

/// What a place is: in this order, again and again from [`FREE`].
const EMPTY: u8 = 0;
const FREE: u8 = 1;
const TAKEN: u8 = 2;
const RECORDED: u8 = 3;

struct Place {
    is: AtomicU8,
    event: AtomicPtr<c_void>,
    /// Of the device that the event is of.
    context: AtomicPtr<c_void>,
    call: AtomicU64,
    /// The box that knows the call, by its name.
    sink: AtomicUsize,
    /// The call is the framework's, and this is a part of it.
    is_part: AtomicBool,
}

static PLACES: [Place; MOST] = [const {
    Place {
        is: AtomicU8::new(EMPTY),
        event: AtomicPtr::new(ptr::null_mut()),
        context: AtomicPtr::new(ptr::null_mut()),
        call: AtomicU64::new(0),
        sink: AtomicUsize::new(0),
        is_part: AtomicBool::new(false),
    }
}; MOST];

/// Events were made, and the thread that asks was started.
static ASKING: AtomicBool = AtomicBool::new(false);

/// Makes events for the device that the calling thread uses, and begins to ask for them.
pub(crate) fn prepare() {
    /// `CU_EVENT_DISABLE_TIMING`
    const NO_TIMING: c_uint = 2;
    if env::var_os(SWITCH).is_none_or(|value| value != "1") {
        return;
    }
    let Some(context) = current_context() else {
        return;
    };
    if ASKING.swap(true, Ordering::AcqRel) {
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
    // Without the thread no place ever becomes free again, and that is all.
    driver::in_a_thread(c"ddp-nccl-done", context, ask);
}

/// Asks for the events until the process ends.
fn ask() {
    while !driver::is_ending() {
        for place in &PLACES {
            if place.is.load(Ordering::Acquire) == RECORDED && !driver::is_ending() {
                look(place);
            }
        }
        thread::sleep(EVERY);
    }
}

/// Asks for one event, and tells of the call if the stream has come to it.
fn look(place: &Place) {
    let answer = event_query(place.event.load(Ordering::Relaxed));
    if answer == Some(NOT_READY) {
        return;
    }
    // The box may have been closed meanwhile. After an error nothing is known of the call.
    let open = sink::named(place.sink.load(Ordering::Relaxed));
    if let (Some(sink), Some(SUCCESS)) = (open, answer) {
        let call = place.call.load(Ordering::Relaxed);
        match place.is_part.load(Ordering::Relaxed) {
            true => sink.part_done(call),
            false => sink.completed(call),
        }
    }
    place.is.store(FREE, Ordering::Release);
}

/// Follows a call that has just been put on its stream; whether it will be told when it is complete.
#[inline]
pub(crate) fn after(sink: Sink, communicator: &Communicator, work: &Work, call: u64) -> bool {
    can_follow(communicator, work, call) && follow(sink, work, call, false)
}

/// Follows what a framework's call has just put on a stream.
#[inline]
pub(crate) fn after_part(sink: Sink, communicator: &Communicator, work: &Work, call: u64) {
    if can_follow(communicator, work, call) {
        follow(sink, work, call, true);
    }
}

#[inline]
fn can_follow(communicator: &Communicator, work: &Work, call: u64) -> bool {
    // What does not block is put on the stream later, by another thread.
    let is_there = work.capture == Capture::No && work.count > 0 && !communicator.non_blocking;
    is_there && call != 0 && ASKING.load(Ordering::Relaxed)
}

fn follow(sink: Sink, work: &Work, call: u64, is_part: bool) -> bool {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let Some(context) = current_context() else {
        return false;
    };
    let first = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut places = (0..PROBES).filter_map(|i| PLACES.get((first + i) % MOST));
    let free = places.find(|place| {
        place.context.load(Ordering::Relaxed) == context
            && place
                .is
                .compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    });
    let Some(place) = free else { return false };
    let recorded = event_record(place.event.load(Ordering::Relaxed), work.handle);
    if recorded != Some(SUCCESS) || (is_part && !sink.follow(call)) {
        place.is.store(FREE, Ordering::Release);
        return false;
    }
    place.call.store(call, Ordering::Relaxed);
    place.sink.store(sink.name(), Ordering::Relaxed);
    place.is_part.store(is_part, Ordering::Relaxed);
    place.is.store(RECORDED, Ordering::Release);
    true
}
