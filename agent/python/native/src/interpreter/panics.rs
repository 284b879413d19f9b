//! Keeps panics within this library.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`; returns `None` if it panics.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(payload) => {
            // Dropping the payload might panic again.
            mem::forget(payload);
            None
        }
    }
}
