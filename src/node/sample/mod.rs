//! Kernel data about ranks and their host: processes, memory, control groups, scheduling, environment.

pub mod cgroup;
pub mod environment;
pub mod memory;
pub mod proc;
pub mod scheduling;
