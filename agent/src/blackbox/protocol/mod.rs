//! How producers and readers of a black box meet without a lock: in terms of words and nothing else.
//!
//! Files and mappings are the callers' business, so that `tests/loom.rs` can run this very code under
//! a model checker, which tries the interleavings and the memory orders that the language allows.

pub(crate) mod ring;
pub(crate) mod strings;
pub(crate) mod thread;

use crate::sync::{AtomicU64, Ordering};

/// Adds `amount` to a counter of what is taken, unless that would exceed `capacity`; what it was.
pub(crate) fn take(counter: &AtomicU64, amount: u64, capacity: u64) -> Option<u64> {
    counter
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |taken| {
            taken.checked_add(amount).filter(|&sum| sum <= capacity)
        })
        .ok()
}
