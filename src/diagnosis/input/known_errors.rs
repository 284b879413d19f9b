//! Errors whose cause is not the line that raised them, by parts of their texts, and what to do about them.

use super::xids;

/// Parts of texts, and what to do.
const KNOWN: [(&str, &str); 20] = [
    ("Mismatched NCCL version detected", DIFFERENT_NCCL),
    ("could not open device directory", HIDDEN_DEVICES),
    ("uncorrectable ECC error", FAULTY_DEVICE),
    ("uncorrectable NVLink error", FAULTY_DEVICE),
    ("GPU has fallen off the bus", FAULTY_DEVICE),
    ("HW Exception by GPU node", FAULTY_AMD_DEVICE),
    ("Memory access fault by GPU node", FAULTY_AMD_DEVICE),
    ("Error while creating shared memory segment", FULL_SHARED_MEMORY),
    ("Error: failed to extend /dev/shm", FULL_SHARED_MEMORY),
    (
        "memory limit (OOMKilled)",
        "Raise the memory limit of the container, or reduce the memory of its processes: fewer data-loader workers, \
         a smaller prefetch_factor.",
    ),
    ("DataLoader worker (pid", LOST_WORKER),
    ("insufficient shared memory (shm)", LOST_WORKER),
    (
        "EADDRINUSE",
        "Choose another port (MASTER_PORT, --rdzv-endpoint), or end the process that uses it: \
         ss -ltnp shows it.",
    ),
    ("(gai error: ", UNRESOLVED_NAME),
    ("No space left on device", FULL_DISK),
    ("Disk quota exceeded", FULL_DISK),
    (
        "cannot open shared object file",
        "Install that library on the host of the rank, or name its folder in LD_LIBRARY_PATH: compare the environment \
         with that of other hosts.",
    ),
    (
        "CUDA error: unspecified launch failure",
        "Check the kernel's log for an error of the GPU (dmesg | grep -i xid). Without one, find the kernel that fails: \
         compute-sanitizer.",
    ),
    (
        "unhandled cuda error",
        "Run again with NCCL_DEBUG=WARN: NCCL then states which call of CUDA failed. Check that nothing else fills the device \
         (nvidia-smi).",
    ),
    (
        "Cuda failure",
        "Check that the driver supports the CUDA of this NCCL (nvidia-smi), and that nothing else uses the device: \
         an earlier error of a kernel also leads to it.",
    ),
];
const UNRESOLVED_NAME: &str = "Check the name (MASTER_ADDR, --rdzv-endpoint), and how that host resolves names: getent \
                               hosts NAME.";
const FULL_DISK: &str = "Free space where the program writes, or raise the quota (df -h, df -i, quota -s), and remove \
                         what was written in part.";
const HIDDEN_DEVICES: &str = "Give the processes access to /dev/dri: docker run --device /dev/dri, and the group \
                              that owns the devices.";
const FAULTY_DEVICE: &str = "Drain the host, and check the device: nvidia-smi -q, dmesg | grep -i xid. No \
                             line of the program causes this error.";
const FAULTY_AMD_DEVICE: &str = "Check the device (dmesg, rocm-smi --showrasinfo), and run the job without it. An \
                                 access beyond a tensor in a kernel of the program causes the same error.";
const FULL_SHARED_MEMORY: &str = "Make room in /dev/shm: NCCL connects the ranks of a host through it (df -h \
                                  /dev/shm; docker run --shm-size, or --ipc=host).";
const LOST_WORKER: &str = "Find out how the worker process ended: it passes batches through /dev/shm (df -h \
                           /dev/shm; docker run --shm-size), and the kernel kills it if the host has no \
                           memory left (dmesg).";
const DIFFERENT_NCCL: &str = "Install the same NCCL on all hosts: the one in PyTorch's packages may differ from one on \
                              LD_LIBRARY_PATH. NCCL_DEBUG=VERSION prints the one that is loaded.";

/// What precedes the number of an error of the driver of NVIDIA.
const XID: &str = "Xid ";

/// What to do about an error with this text, if that does not depend on the line that raised it.
#[must_use]
pub fn advice(text: &str) -> Option<&'static str> {
    if let Some((_, rest)) = text.split_once(XID) {
        let number = rest.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok()?;
        return Some(xids::of_xid(number).next);
    }
    let known = KNOWN.iter().find(|(part, _)| text.contains(part));
    known.map(|(_, advice)| *advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_driver_are_of_kernels_or_of_the_device() {
        let starts = |text, advised: &str| advice(text).is_some_and(|it| it.starts_with(advised));
        assert!(starts("Xid 31 of GPU 0000:1b:00: MMU Fault", "Find the kernel"));
        assert!(starts("Xid 79 of GPU 0000:1b:00: lost", "Reboot the host"));
        assert_eq!(advice("KeyError: 'x'"), None);
    }
}
