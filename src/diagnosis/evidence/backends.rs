//! Backends and their names.

/// PyTorch's names of backends that run on NCCL. "nccl" is one of two implementations, depending on
/// the version and `TORCH_DIST_USE_NCCL2`; the others are chosen by name (2.15). Hooks fire for all
/// of them.
const ON_NCCL: [&str; 5] = ["nccl", "nccl2", "nccl-legacy", "nccl-lazy", "nccl4py"];

/// Whether a backend runs on NCCL, by its name without a device.
pub fn is_nccl(name: &str) -> bool {
    ON_NCCL.contains(&name)
}

/// Whether a group runs on NCCL alone: "nccl", or by device as "cuda:nccl2".
pub fn is_on_nccl(backend: &str) -> bool {
    backend.split(',').all(|part| is_nccl(part.rsplit(':').next().unwrap_or(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_on_nccl_match_by_name_and_by_device() {
        for backend in ["nccl", "cuda:nccl", "nccl2", "cuda:nccl2", "nccl-lazy", "nccl-legacy"] {
            assert!(is_on_nccl(backend), "{backend}");
        }
        for backend in ["", "gloo", "cpu:gloo,cuda:nccl2", "ncclx", "nccl3", "nccl2:cuda"] {
            assert!(!is_on_nccl(backend), "{backend}");
        }
    }
}
