//! Memory that runs out, or will.

pub(crate) mod fragmentation;
pub(crate) mod growers;
pub(crate) mod host_memory;
pub(crate) mod memory_creep;
pub(crate) mod memory_skew;
pub(crate) mod oom_forecast;
pub(crate) mod out_of_memory;

/// Advice against fragmentation.
pub(crate) const FRAGMENTATION_REMEDY: &str =
    "Set PYTORCH_ALLOC_CONF=expandable_segments:True (older PyTorch: PYTORCH_CUDA_ALLOC_CONF).";
