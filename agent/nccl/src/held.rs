//! What NCCL itself holds of the device's memory: what it says of each communicator, from 2.29.7 on.
//!
//! A communicator must be there while it is asked. A thread of ours could never know that it is, without one
//! of the program's having to wait for it. So it is asked by the program's own thread, inside of a call of
//! that very communicator which has just succeeded: the program may not give back what it is using. Should it
//! abort the communicator from another thread all the same, that waits for the few instructions which a
//! question takes. NCCL answers with what it counts in the communicator: it waits for nothing, and calls no driver.
//! Where calls come back before they are done it would also complete those, and is not asked.
//!
//! NCCL takes memory when a communicator is made, and when a call needs a connection that there is not yet. That
//! is at the first calls; so they are asked after, and later ones more and more rarely.
//!
//! Off unless `DDP_DOCTOR_GPU_MEMORY=1`, since it has not been run on a GPU yet.
#![expect(unsafe_code, reason = "asks NCCL")]

use std::env;
use std::ffi::{c_int, c_void};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::abi::{SUCCESS, Status};
use crate::comms::{self, Communicator};
use crate::memory;
use crate::real::Function;
use crate::sink::Sink;

/// With it NCCL counts nothing, and complains of each question.
const NOT_COUNTED: &str = "NCCL_DISABLE_MEM_MANAGER";
/// After calls whose number is a power of two it is asked, and after each of so many.
const EVERY: u32 = 1024;
/// That it holds so many bytes more or less is worth a record.
const STEP: u64 = 1 << 20;
/// How often it looks whether it has.
const SHORTLY: Duration = Duration::from_micros(50);
/// In what counts the questions: there are to be no more.
const GONE: u32 = 1 << 31;
/// For how long whoever gives a communicator back lets a question come to its end. It takes less than a
/// microsecond, unless its thread has to make way for others meanwhile; for ever only in a forked child.
const PATIENCE: Duration = Duration::from_secs(2);

static MEM_STATS: Function = Function::new(c"pncclCommMemStats");

/// It is asked for, and NCCL can say it.
static IS_ASKED: AtomicBool = AtomicBool::new(false);
/// The device that is a rank's: that of the first communicator.
static DEVICE: AtomicI32 = AtomicI32::new(NO_DEVICE);
const NO_DEVICE: i32 = -1;
/// Bytes that all communicators hold there, …
static HELD: AtomicU64 = AtomicU64::new(0);
/// … and that were recorded.
static TOLD: AtomicU64 = AtomicU64::new(0);

/// What one communicator holds.
#[derive(Debug)]
pub(crate) struct Held {
    /// Questions that are under way, and [`GONE`].
    asking: AtomicU32,
    /// Calls that succeeded.
    calls: AtomicU32,
    bytes: AtomicU64,
    /// It uses another communicator's memory, and NCCL says of both what both hold.
    is_anothers: AtomicBool,
}

impl Held {
    pub(crate) const fn new() -> Self {
        Self {
            asking: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            is_anothers: AtomicBool::new(false),
        }
    }

    /// Asks, unless the communicator is about to be gone.
    fn ask(&self, question: impl FnOnce() -> Option<u64>) -> Option<u64> {
        let before = self.asking.fetch_add(1, Ordering::SeqCst);
        let answer = (before & GONE == 0).then(question).flatten();
        self.asking.fetch_sub(1, Ordering::SeqCst);
        answer
    }

    /// There are to be no more questions. Waits for those that are under way.
    fn close(&self) {
        if self.asking.fetch_or(GONE, Ordering::SeqCst) & !GONE == 0 {
            return;
        }
        let began = Instant::now();
        while self.asking.load(Ordering::SeqCst) & !GONE != 0 && began.elapsed() < PATIENCE {
            thread::sleep(SHORTLY);
        }
    }
}

/// What a communicator that another one is to be made out of holds before that.
pub(crate) type Before = Option<(&'static Communicator, u64)>;

/// Asked before one is made out of it, by a call of the program's.
pub(crate) fn before_division(parent: &'static Communicator) -> Before {
    ask(parent).map(|bytes| (parent, bytes))
}

/// A communicator was made, out of another one or by itself.
pub(crate) fn made(sink: Sink, communicator: &'static Communicator, parent: Before) {
    prepare(communicator.device);
    if let Some((parent, before)) = parent
        && let (Some(both), own) = (ask(parent), ask(communicator))
    {
        // What it took was taken by the other one, too: they have one memory.
        let is_anothers = own == Some(both) && both > before;
        let held = &communicator.held;
        held.is_anothers.store(is_anothers, Ordering::Relaxed);
        take(parent, both);
        tell(sink);
    }
    look(sink, communicator);
}

/// A call of this communicator, by this thread, came back like that.
#[inline]
pub(crate) fn after(sink: Sink, communicator: &'static Communicator, status: Status) {
    if !IS_ASKED.load(Ordering::Relaxed) || status != SUCCESS {
        return;
    }
    let calls = communicator.held.calls.fetch_add(1, Ordering::Relaxed) + 1;
    if calls.is_power_of_two() || calls.is_multiple_of(EVERY) {
        look(sink, communicator);
    }
}

/// The program is about to give the communicator back.
pub(crate) fn leaves(communicator: &Communicator) {
    if IS_ASKED.load(Ordering::Relaxed) {
        communicator.held.close();
    }
}

/// It has given it back.
pub(crate) fn left(sink: Sink, communicator: &'static Communicator) {
    if IS_ASKED.load(Ordering::Relaxed) {
        take(communicator, 0);
        tell(sink);
    }
}

fn prepare(device: c_int) {
    let first = DEVICE.compare_exchange(NO_DEVICE, device, Ordering::AcqRel, Ordering::Relaxed);
    if first.is_ok() && memory::is_wanted() {
        let counts = env::var_os(NOT_COUNTED).is_none_or(|value| value == "0");
        let is_asked = counts && !MEM_STATS.address().is_null();
        IS_ASKED.store(is_asked, Ordering::Release);
    }
}

#[cold]
fn look(sink: Sink, communicator: &'static Communicator) {
    if communicator.held.is_anothers.load(Ordering::Relaxed) {
        return;
    }
    if let Some(bytes) = ask(communicator) {
        take(communicator, bytes);
        tell(sink);
    }
}

/// What NCCL says that it holds; `None`: it does not.
fn ask(communicator: &'static Communicator) -> Option<u64> {
    let is_meant = IS_ASKED.load(Ordering::Acquire)
        && !communicator.non_blocking
        && communicator.device == DEVICE.load(Ordering::Relaxed);
    if !is_meant {
        return None;
    }
    communicator.held.ask(|| {
        // Nobody has given it back, and been given the handle again for another one.
        let is_here = comms::find(communicator.handle).is_some_and(|it| it.is(communicator));
        is_here.then(|| question(communicator)).flatten()
    })
}

fn question(communicator: &Communicator) -> Option<u64> {
    /// `ncclStatGpuMemTotal`
    const TOTAL: c_int = 3;
    let function = MEM_STATS.address();
    if function.is_null() {
        return None;
    }
    let mut bytes = 0;
    // SAFETY: this is the function's type since 2.29.7, `bytes` is valid for the write, and the communicator
    // is there: the program is in a call of it, and whoever gives it back waits for the answer.
    let status = unsafe {
        let function: unsafe extern "C" fn(*mut c_void, c_int, *mut u64) -> Status =
            mem::transmute(function);
        function(communicator.handle, TOTAL, &mut bytes)
    };
    if status != SUCCESS {
        // It would complain again.
        IS_ASKED.store(false, Ordering::Release);
        return None;
    }
    Some(bytes)
}

/// A communicator holds that now.
fn take(communicator: &Communicator, bytes: u64) {
    let before = communicator.held.bytes.swap(bytes, Ordering::AcqRel);
    // What is less is more after it has gone around.
    HELD.fetch_add(bytes.wrapping_sub(before), Ordering::AcqRel);
}

/// Records what all communicators hold, where it has changed much.
fn tell(sink: Sink) {
    let (held, told) = (HELD.load(Ordering::Acquire), TOLD.load(Ordering::Acquire));
    if held.abs_diff(told) < STEP {
        return;
    }
    let is_first = TOLD.compare_exchange(told, held, Ordering::AcqRel, Ordering::Relaxed);
    if let (Ok(_), Ok(device)) = (is_first, u32::try_from(DEVICE.load(Ordering::Relaxed))) {
        sink.held_by_nccl(device, held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_once_it_is_about_to_be_gone() {
        let held = Held::new();
        assert_eq!(held.ask(|| Some(7)), Some(7));
        held.close();
        assert_eq!(held.ask(|| unreachable!("it is gone")), None);
        held.close();
    }

    #[test]
    fn whoever_gives_it_back_lets_a_question_end() {
        for _ in 0..200 {
            let held = Held::new();
            let is_there = AtomicBool::new(true);
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while held
                            .ask(|| Some(u64::from(is_there.load(Ordering::SeqCst))))
                            .inspect(|there| assert_eq!(*there, 1))
                            .is_some()
                        {}
                    });
                }
                scope.spawn(|| {
                    held.close();
                    is_there.store(false, Ordering::SeqCst);
                });
            });
        }
    }
}
