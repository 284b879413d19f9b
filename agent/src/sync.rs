//! Primitives of the black box's lock-free protocols. The model checker test (`tests/loom.rs`)
//! replaces this module with its own.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
