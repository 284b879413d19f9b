//! Lock-free protocols between writers and readers of a black box, defined on words alone.
//!
//! Files and maps are handled by the callers, so that `tests/loom.rs` can run this code in a model
//! checker that explores interleavings and memory orders.

pub(crate) mod ring;
pub(crate) mod strings;
pub(crate) mod thread;

use crate::sync::{AtomicU64, Ordering};

/// Adds `amount` to a counter of used entries, unless the sum would exceed `capacity`. Returns the
/// old value.
pub(crate) fn take(counter: &AtomicU64, amount: u64, capacity: u64) -> Option<u64> {
    counter
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |taken| {
            taken.checked_add(amount).filter(|&sum| sum <= capacity)
        })
        .ok()
}
