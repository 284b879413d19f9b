//! Memory that runs out, or will.

pub(crate) mod fragmentation;
pub(crate) mod growers;
pub(crate) mod host_memory;
pub(crate) mod memory_creep;
pub(crate) mod memory_skew;
pub(crate) mod oom_forecast;
pub(crate) mod out_of_memory;

use crate::words::Ranks;

/// "; ranks 1 and 2 are affected too": the ranks of a finding other than the one that it describes.
pub(crate) fn too(ranks: &[u32], described: u32, what: &str) -> String {
    let others: Vec<u32> = ranks.iter().copied().filter(|rank| *rank != described).collect();
    match &others[..] {
        [] => String::new(),
        others => format!("; {} {what} too", Ranks(others).with("is", "are")),
    }
}

/// Advice against fragmentation.
pub(crate) const FRAGMENTATION_REMEDY: &str =
    "Set PYTORCH_ALLOC_CONF=expandable_segments:True (older PyTorch: PYTORCH_CUDA_ALLOC_CONF).";
