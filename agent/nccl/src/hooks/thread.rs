//! Call state of a thread.
//!
//! NCCL calls its own exported functions, which are hooked. Only the outermost call of a thread is
//! the program's.

use std::cell::{Cell, RefCell};

use super::groups::Gathered;
use crate::nccl::abi::{SUCCESS, Status};

/// Call state of a thread.
pub(super) struct Thread {
    /// The thread is in a call of the program; further calls are NCCL's own.
    inside: Cell<bool>,
    /// Number of open groups.
    pub(super) depth: Cell<u32>,
    pub(super) group: RefCell<Gathered>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            inside: Cell::new(false),
            depth: Cell::new(0),
            group: RefCell::new(Gathered::new()),
        }
    };
}

/// Makes a call of the program through `recorded`, which gets the thread's state. A call made by
/// NCCL itself, or by a thread that is ending, is made by `real` alone.
pub(super) fn outermost(
    real: impl FnOnce() -> Status,
    recorded: impl FnOnce(&Thread, &mut dyn FnMut() -> Status) -> Status,
) -> Status {
    let mut real = Some(real);
    let mut call = || real.take().map_or(SUCCESS, |real| real());
    let recorded = THREAD.try_with(|thread| {
        if thread.inside.replace(true) {
            return None;
        }
        let status = recorded(thread, &mut call);
        thread.inside.set(false);
        Some(status)
    });
    match recorded {
        Ok(Some(status)) => status,
        _ => call(),
    }
}
