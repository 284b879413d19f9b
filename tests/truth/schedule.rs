//! Which tests run beside each other: live runs wait most of their time, so there are more of them than processors;
//! those that measure processor time run alone.

use std::sync::{Condvar, Mutex, PoisonError};

/// What runs now.
struct Running {
    /// Live runs.
    live: usize,
    replays: usize,
    /// A live run that has, or waits for, the machine for itself.
    alone: bool,
}

static RUNNING: Mutex<Running> = Mutex::new(Running {
    live: 0,
    replays: 0,
    alone: false,
});
static CHANGED: Condvar = Condvar::new();

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Most live runs at a time.
fn most_live() -> usize {
    2 * processors()
}

/// Threads of the test harness.
pub(crate) fn threads() -> usize {
    most_live() + processors()
}

/// Permission to run; dropped when the test is over.
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

/// Waits until the condition holds, and changes what runs.
fn enter(
    may: impl Fn(&Running) -> bool,
    change: fn(&mut Running),
    leave: fn(&mut Running),
) -> Turn {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let running = CHANGED.wait_while(running, |running| !may(running));
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
    // Tests that come later wait from now on.
    let turn = enter(
        |running| !running.alone,
        |running| running.alone = true,
        |running| running.alone = false,
    );
    drop(enter(
        |running| running.live == 0 && running.replays == 0,
        |_| {},
        |_| {},
    ));
    turn
}

/// Waits for the turn of a replay.
pub(crate) fn replay() -> Turn {
    enter(
        |running| !running.alone,
        |running| running.replays += 1,
        |running| running.replays -= 1,
    )
}
