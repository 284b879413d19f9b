//! Device memory that NCCL itself holds, as reported per communicator since NCCL 2.29.7.
//!
//! A communicator must exist while it is queried. It is therefore queried by the program's own
//! thread, directly after a call on it has succeeded. If the program aborts it from another thread
//! meanwhile, the abort waits for the query. A query reads counters of the communicator: it does
//! not block and makes no driver call. Non-blocking communicators are not queried, since a query
//! would complete their pending calls.
//!
//! NCCL allocates memory when a communicator is created and when a call needs a new connection,
//! mostly in the first calls. Later calls are queried more and more rarely.
//!
//! Off unless `DDP_DOCTOR_GPU_MEMORY=1` is set, since it has not run on a GPU yet.
#![expect(unsafe_code, reason = "asks NCCL")]

use std::env;
use std::ffi::{c_int, c_void};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::communicator::Communicator;
use super::table;
use crate::cuda::device_memory;
use crate::nccl::Function;
use crate::nccl::abi::{SUCCESS, Status};
use crate::recording::black_box::BlackBox;

/// If set, NCCL does not count memory and logs a warning for each query.
const NOT_COUNTED: &str = "NCCL_DISABLE_MEM_MANAGER";
/// A communicator is queried after calls whose number is a power of two or a multiple of this.
const EVERY: u32 = 1024;
/// Minimum change of the held bytes that is recorded.
const STEP: u64 = 1 << 20;
/// Interval at which [`CommMemory::close`] checks for running queries.
const SHORTLY: Duration = Duration::from_micros(50);
/// Set in [`CommMemory::asking`] once no more queries may start.
const GONE: u32 = 1 << 31;
/// How long the release of a communicator waits for running queries. A query takes less than a
/// microsecond unless its thread is descheduled; only in a forked child it may never end.
const PATIENCE: Duration = Duration::from_secs(2);

static MEM_STATS: Function = Function::new(c"pncclCommMemStats");

/// Queries are enabled and this NCCL supports them.
static IS_ASKED: AtomicBool = AtomicBool::new(false);
/// Device of the rank: that of the first communicator.
static DEVICE: AtomicI32 = AtomicI32::new(NO_DEVICE);
const NO_DEVICE: i32 = -1;
/// Bytes that all communicators hold on that device.
static HELD: AtomicU64 = AtomicU64::new(0);
/// Value of [`HELD`] that was recorded last.
static RECORDED: AtomicU64 = AtomicU64::new(0);

/// Memory held by one communicator.
#[derive(Debug)]
pub(super) struct CommMemory {
    /// Number of running queries, and [`GONE`].
    asking: AtomicU32,
    /// Number of successful calls.
    calls: AtomicU32,
    bytes: AtomicU64,
    /// It shares its parent's memory; NCCL reports the memory of both for each of them.
    is_anothers: AtomicBool,
}

impl CommMemory {
    pub(super) const fn new() -> Self {
        Self {
            asking: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            is_anothers: AtomicBool::new(false),
        }
    }

    /// Runs a query unless the communicator is about to be released.
    fn ask(&self, question: impl FnOnce() -> Option<u64>) -> Option<u64> {
        let before = self.asking.fetch_add(1, Ordering::SeqCst);
        let answer = (before & GONE == 0).then(question).flatten();
        self.asking.fetch_sub(1, Ordering::SeqCst);
        answer
    }

    /// Forbids further queries and waits for running ones.
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

/// Memory of the parent before a communicator is derived from it.
pub(super) type ParentMemory = Option<(&'static Communicator, u64)>;

/// Queries the parent before a communicator is derived from it.
pub(super) fn before_division(parent: &'static Communicator) -> ParentMemory {
    ask(parent).map(|bytes| (parent, bytes))
}

/// Records the memory after a communicator was created, with or without a parent.
pub(super) fn after_creation(
    black_box: BlackBox,
    communicator: &'static Communicator,
    parent: ParentMemory,
) {
    prepare(communicator.device);
    if let Some((parent, before)) = parent
        && let (Some(both), own) = (ask(parent), ask(communicator))
    {
        // The creation increased the parent's memory to the same value, so both share it.
        let is_anothers = own == Some(both) && both > before;
        let held = &communicator.held;
        held.is_anothers.store(is_anothers, Ordering::Relaxed);
        take(parent, both);
        record(black_box);
    }
    look(black_box, communicator);
}

/// Called after a call on this communicator returned `status`.
#[inline]
pub(crate) fn after_call(black_box: BlackBox, communicator: &'static Communicator, status: Status) {
    if !IS_ASKED.load(Ordering::Relaxed) || status != SUCCESS {
        return;
    }
    let calls = communicator.held.calls.fetch_add(1, Ordering::Relaxed) + 1;
    if calls.is_power_of_two() || calls.is_multiple_of(EVERY) {
        look(black_box, communicator);
    }
}

/// Called before the program releases the communicator.
pub(crate) fn before_release(communicator: &Communicator) {
    if IS_ASKED.load(Ordering::Relaxed) {
        communicator.held.close();
    }
}

/// Called after the program released the communicator.
pub(crate) fn after_release(black_box: BlackBox, communicator: &'static Communicator) {
    if IS_ASKED.load(Ordering::Relaxed) {
        take(communicator, 0);
        record(black_box);
    }
}

fn prepare(device: c_int) {
    let first = DEVICE.compare_exchange(NO_DEVICE, device, Ordering::AcqRel, Ordering::Relaxed);
    if first.is_ok() && device_memory::is_enabled() {
        let counts = env::var_os(NOT_COUNTED).is_none_or(|value| value == "0");
        let is_asked = counts && !MEM_STATS.address().is_null();
        IS_ASKED.store(is_asked, Ordering::Release);
    }
}

#[cold]
fn look(black_box: BlackBox, communicator: &'static Communicator) {
    if communicator.held.is_anothers.load(Ordering::Relaxed) {
        return;
    }
    if let Some(bytes) = ask(communicator) {
        take(communicator, bytes);
        record(black_box);
    }
}

/// Bytes that NCCL holds for the communicator; `None`: unknown.
fn ask(communicator: &'static Communicator) -> Option<u64> {
    let is_meant = IS_ASKED.load(Ordering::Acquire)
        && !communicator.non_blocking
        && communicator.device == DEVICE.load(Ordering::Relaxed);
    if !is_meant {
        return None;
    }
    communicator.held.ask(|| {
        // The handle may have been released and reused for another communicator.
        let is_here = table::find(communicator.handle).is_some_and(|it| it.is(communicator));
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
    // SAFETY: this is the function's type since 2.29.7, `bytes` is valid for the write, and the
    // communicator exists: the program is in a call on it, and its release waits for the query.
    let status = unsafe {
        let function: unsafe extern "C" fn(*mut c_void, c_int, *mut u64) -> Status =
            mem::transmute(function);
        function(communicator.handle, TOTAL, &mut bytes)
    };
    if status != SUCCESS {
        // Further queries would log warnings again.
        IS_ASKED.store(false, Ordering::Release);
        return None;
    }
    Some(bytes)
}

/// Sets the bytes that a communicator holds.
fn take(communicator: &Communicator, bytes: u64) {
    let before = communicator.held.bytes.swap(bytes, Ordering::AcqRel);
    // Wraps around, so that negative differences are added correctly.
    HELD.fetch_add(bytes.wrapping_sub(before), Ordering::AcqRel);
}

/// Records what all communicators hold if it changed by at least [`STEP`].
fn record(black_box: BlackBox) {
    let (held, recorded) = (HELD.load(Ordering::Acquire), RECORDED.load(Ordering::Acquire));
    if held.abs_diff(recorded) < STEP {
        return;
    }
    let is_first = RECORDED.compare_exchange(recorded, held, Ordering::AcqRel, Ordering::Relaxed);
    if let (Ok(_), Ok(device)) = (is_first, u32::try_from(DEVICE.load(Ordering::Relaxed))) {
        black_box.held_by_nccl(device, held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_communicator_is_not_queried() {
        let held = CommMemory::new();
        assert_eq!(held.ask(|| Some(7)), Some(7));
        held.close();
        assert_eq!(held.ask(|| unreachable!("it is gone")), None);
        held.close();
    }

    #[test]
    fn close_waits_for_running_queries() {
        for _ in 0..200 {
            let held = CommMemory::new();
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
