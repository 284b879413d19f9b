//! GPUs: their faults, and what they do while ranks wait.

pub(crate) mod gpu_fault;
pub(crate) mod states;
mod xids;
