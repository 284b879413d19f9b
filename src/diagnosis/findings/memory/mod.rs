//! Memory that runs out, or will.

pub(crate) mod fragmentation;
pub(crate) mod host_memory;
pub(crate) mod memory_creep;
pub(crate) mod memory_skew;
pub(crate) mod oom_forecast;
pub(crate) mod out_of_memory;
