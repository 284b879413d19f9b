//! Kernel data about ranks and their host: processes, memory, control groups, scheduling, environment;
//! and what drivers report about GPUs.

pub mod environment;
pub mod gpus;
pub mod memory;
pub mod scheduling;
