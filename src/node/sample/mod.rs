//! Kernel data about ranks and their host: processes, memory, control groups, scheduling, environment.

pub mod environment;
pub mod memory;
pub mod scheduling;
