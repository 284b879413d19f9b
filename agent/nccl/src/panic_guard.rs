//! Keeps panics of this library from the program.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of this library. A panic does not reach the program.
pub(crate) fn guarded<T: Default>(work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        // Dropping the payload might panic again.
        mem::forget(payload);
        T::default()
    })
}
