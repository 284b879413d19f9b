//! Kernel data about ranks and their host: processes, memory, control groups, scheduling, environment;
//! and what drivers report about GPUs and network ports.

pub mod environment;
pub mod gpus;
pub mod memory;
pub mod ports;
pub mod scheduling;
