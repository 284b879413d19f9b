//! Names of the versions and settings that processes report, and which of them ranks compare.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Prefix of settings that are environment variables.
pub(crate) const VARIABLE: &str = "env.";
/// The GPU that a rank exchanges data from, by a unique name.
pub(crate) const GPU: &str = "gpu";
/// Index of that GPU in the process.
pub(crate) const GPU_NUMBER: &str = "gpu.number";
/// Rank on its host, set by the launcher.
pub(crate) const LOCAL_RANK: &str = "init.local_rank";
/// Variable with the beginning of the name of the pipe to PyTorch's Flight Recorder.
pub(crate) const FLIGHT_RECORDER: &str = "env.TORCH_NCCL_DEBUG_INFO_PIPE_FILE";
/// Variables that turn off the watchdog of a process group by the value 0.
pub(crate) const WATCHDOG: [&str; 2] =
    ["env.TORCH_NCCL_ASYNC_ERROR_HANDLING", "env.NCCL_ASYNC_ERROR_HANDLING"];
/// Versions that ranks should share: name of the setting, name for users, and whether it matters to
/// NCCL only.
pub(crate) const VERSIONS: [(&str, &str, bool); 5] = [
    ("nccl", "NCCL", true),
    ("torch", "PyTorch", false),
    ("torch.cuda", "PyTorch's CUDA", true),
    ("nvidia-driver", "NVIDIA's driver", true),
    ("ddp-doctor", "ddp-doctor", false),
];

/// Parts of names of NCCL's variables that may differ between ranks or hosts: addresses, output,
/// observation. `NCCL_VERSION` is set by container images and has no effect.
const OWN: [&str; 15] = [
    "IFNAME",
    "_HCA",
    "_GID_INDEX",
    "HOSTID",
    "HOSTNAME",
    "DEBUG",
    "PROFILE",
    "INSPECTOR",
    "_RAS_",
    "THREAD_NAME",
    "CPU_AFFINITY",
    "BLOCKING_WAIT",
    "ERROR_HANDLING",
    "ENABLE_TIMING",
    "NCCL_VERSION",
];
/// Suffixes of such names.
const OWN_ENDS: [&str; 7] = ["_FILE", "_DIR", "_PATH", "_DUMP", "_IP", "_PORT", "_ADDR"];

/// Hash of a setting. Processes whose combined hashes are equal reported the same. `None`: the
/// setting is not compared.
pub(crate) fn fingerprint(name: &str, value: &str) -> Option<u64> {
    let is_version = VERSIONS.iter().any(|(version, ..)| *version == name);
    let is_compared = is_version || name.strip_prefix(VARIABLE).is_some_and(must_agree);
    is_compared.then(|| {
        let mut hasher = DefaultHasher::new();
        (name, value).hash(&mut hasher);
        hasher.finish()
    })
}

/// Whether a variable affects communication between ranks, so that all ranks should have the same
/// value.
pub fn must_agree(name: &str) -> bool {
    match name {
        "TORCH_DISTRIBUTED_DEBUG"
        | "TORCH_DIST_INIT_BARRIER"
        | "TORCH_DIST_USE_NCCL2"
        | "TORCH_GLOO_LAZY_INIT"
        | "TORCH_NCCL_RANKS_PER_ROOT"
        | "TORCH_NCCL_USE_COMM_NONBLOCKING"
        | "GLOO_DEVICE_TRANSPORT" => true,
        name => {
            name.starts_with("NCCL_")
                && !OWN.iter().any(|own| name.contains(own))
                && !OWN_ENDS.iter().any(|end| name.ends_with(end))
        }
    }
}

/// The effect of a value, if known: values with the same effect do not differ.
pub fn meaning(name: &str, value: Option<&str>) -> Option<String> {
    let value = value?.to_ascii_lowercase();
    let is_default = match name {
        // The other levels only affect logging.
        "TORCH_DISTRIBUTED_DEBUG" => value != "detail",
        "TORCH_DIST_USE_NCCL2" => value != "0",
        "TORCH_DIST_INIT_BARRIER" | "TORCH_GLOO_LAZY_INIT" | "TORCH_NCCL_USE_COMM_NONBLOCKING" => {
            value == "0"
        }
        name => name.ends_with("_DISABLE") && value == "0",
    };
    (!is_default).then_some(value)
}
