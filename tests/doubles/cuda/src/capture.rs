//! Captures of streams into graphs, and the calls that they forbid to other threads.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};

use crate::{Result, Status, lock};

/// `CUstreamCaptureMode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

impl Mode {
    pub(crate) fn new(number: u32) -> Result<Self> {
        match number {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(Status::INVALID_VALUE),
        }
    }

    pub(crate) fn number(self) -> u32 {
        self as u32
    }
}

/// A capture in progress.
#[derive(Debug)]
struct Capture {
    id: u64,
    mode: Mode,
    thread: ThreadId,
    is_spoilt: bool,
}

static UNDER_WAY: Mutex<Vec<Capture>> = Mutex::new(Vec::new());
static LAST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Sets the capture mode of this thread; returns the previous one.
pub(crate) fn exchange(mode: Mode) -> Mode {
    MODE.replace(mode)
}

pub(crate) fn begin(mode: Mode) -> u64 {
    let id = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    lock(&UNDER_WAY).push(Capture { id, mode, thread: thread::current().id(), is_spoilt: false });
    id
}

pub(crate) fn end(id: u64) -> Result<()> {
    let mut under_way = lock(&UNDER_WAY);
    let at = under_way.iter().position(|it| it.id == id).ok_or(Status::CAPTURE_UNMATCHED)?;
    let capture = &under_way[at];
    if capture.mode != Mode::Relaxed && capture.thread != thread::current().id() {
        return Err(Status::CAPTURE_WRONG_THREAD);
    }
    if under_way.remove(at).is_spoilt {
        return Err(Status::CAPTURE_INVALIDATED);
    }
    Ok(())
}

pub(crate) fn spoil(id: u64) {
    for capture in lock(&UNDER_WAY).iter_mut() {
        capture.is_spoilt |= capture.id == id;
    }
}

pub(crate) fn is_spoilt(id: u64) -> bool {
    lock(&UNDER_WAY).iter().any(|it| it.id == id && it.is_spoilt)
}

/// Called before any operation that is unsafe during a capture. Fails, and invalidates the capture,
/// while one is in progress that forbids it, by the rules of `cuThreadExchangeStreamCaptureMode`.
pub(crate) fn may_disturb() -> Result<()> {
    let mode = MODE.get();
    let me = thread::current().id();
    let mut is_forbidden = false;
    for capture in lock(&UNDER_WAY).iter_mut() {
        let forbids = match mode {
            Mode::Relaxed => false,
            Mode::ThreadLocal => capture.thread == me && capture.mode != Mode::Relaxed,
            Mode::Global => {
                capture.mode == Mode::Global
                    || (capture.thread == me && capture.mode != Mode::Relaxed)
            }
        };
        capture.is_spoilt |= forbids;
        is_forbidden |= forbids;
    }
    if is_forbidden {
        return Err(Status::CAPTURE_UNSUPPORTED);
    }
    Ok(())
}
