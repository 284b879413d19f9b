//! What the lock-free protocols of the black box are made of. The model checker that runs them
//! (`tests/loom.rs`) has a module of this name with its own.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
