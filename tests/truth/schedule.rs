//! Limits on concurrent tests: live runs mostly wait, so that more of them run than there are
//! processors; runs that measure processor time run alone.

use std::sync::{Condvar, Mutex, PoisonError};

/// Tests in progress.
struct Running {
    live: usize,
    replays: usize,
    /// Whether a live run has the machine to itself, or waits for that.
    alone: bool,
}

static RUNNING: Mutex<Running> = Mutex::new(Running { live: 0, replays: 0, alone: false });
static CHANGED: Condvar = Condvar::new();

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Maximum number of concurrent live runs.
fn most_live() -> usize {
    2 * processors()
}

/// Threads of the test harness.
pub(crate) fn threads() -> usize {
    most_live() + processors()
}

/// Permission to run, held until the test ends.
pub(crate) struct Turn {
    leave: fn(&mut Running),
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        (self.leave)(&mut running);
        CHANGED.notify_all();
    }
}

/// Waits until `may` holds, then applies `change`; dropping the turn applies `leave`.
fn enter(
    may: impl Fn(&Running) -> bool,
    change: fn(&mut Running),
    leave: fn(&mut Running),
) -> Turn {
    let guard = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let running = CHANGED.wait_while(guard, |running| !may(running));
    change(&mut running.unwrap_or_else(PoisonError::into_inner));
    Turn { leave }
}

/// Waits for the turn of a live run.
pub(crate) fn live(alone: bool) -> Turn {
    if !alone {
        let most = most_live();
        return enter(
            |running| !running.alone && running.live < most,
            |running| running.live += 1,
            |running| running.live -= 1,
        );
    }
    // From here on, later tests wait.
    let turn = enter(
        |running| !running.alone,
        |running| running.alone = true,
        |running| running.alone = false,
    );
    drop(enter(|running| running.live == 0 && running.replays == 0, |_| {}, |_| {}));
    turn
}

/// Waits for the turn of a replay.
pub(crate) fn replay() -> Turn {
    enter(|running| !running.alone, |running| running.replays += 1, |running| running.replays -= 1)
}
