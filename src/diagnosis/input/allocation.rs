//! Failed allocations, parsed from the text of exceptions.

/// A failed allocation, in bytes; `None`: not in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failed {
    /// The allocation was on a device, not in host memory.
    pub on_device: bool,
    /// Requested size.
    pub asked: Option<u64>,
    /// Total memory of the device.
    pub total: Option<u64>,
    /// Free memory of the device.
    pub free: Option<u64>,
    /// Memory that the allocator had given to tensors.
    pub allocated: Option<u64>,
    /// Memory that the allocator held beyond that.
    pub unallocated: Option<u64>,
}

/// Texts of failed allocations: PyTorch's device allocators ("CUDA out of memory. Tried to allocate
/// …") and host allocator ("`DefaultCPUAllocator`: can't allocate memory"), CUDA's libraries, and
/// the kernel's `ENOMEM`.
const SAYINGS: [&str; 5] = [
    "out of memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "_STATUS_ALLOC_FAILED",
    "OutOfMemoryError",
];
/// Exception types of failed allocations, with any text: Python's, and the one `NumPy` derives from
/// it.
const TYPES: [&str; 2] = ["MemoryError", "_ArrayMemoryError"];
/// Words before the requested size, in PyTorch and in `NumPy`.
const ASKED: [&str; 3] = ["Tried to allocate ", "tried to allocate ", "Unable to allocate "];
/// Words that imply a device.
const DEVICES: [&str; 7] = ["CUDA", "Cuda failure", "HIP ", "XPU ", "CUBLAS", "CUDNN", "NCCL"];

/// Units of sizes, each 1024 times the preceding one.
pub(crate) const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Parses the text of an exception, "Type: message"; `None`: it is not a failed allocation.
pub fn failed(text: &str) -> Option<Failed> {
    let kind = text.split(':').next().unwrap_or_default().rsplit('.').next().unwrap_or_default();
    let says = SAYINGS.iter().any(|saying| text.contains(saying));
    if !says && !TYPES.contains(&kind) {
        return None;
    }
    let after = |words: &str| {
        let (_, rest) = text.split_once(words)?;
        bytes(rest)
    };
    let before = |words: &str| {
        let (rest, _) = text.split_once(words)?;
        // The last two words, as in "… of which 3.81 GiB".
        let start = rest.trim_end().rmatch_indices(' ').nth(1);
        bytes(rest.get(start.map_or(0, |(at, _)| at + 1)..)?)
    };
    Some(Failed {
        on_device: DEVICES.iter().any(|device| text.contains(device)),
        asked: ASKED.iter().find_map(|words| after(words)),
        total: after("total capacity of "),
        free: before(" is free"),
        allocated: before(" is allocated by PyTorch"),
        unallocated: before(" is reserved by PyTorch but unallocated"),
    })
}

/// Parses "20.00 GiB …" or "80000 bytes".
fn bytes(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let number: f64 = words.next()?.parse().ok()?;
    let unit = words.next()?.trim_end_matches(['.', ',', ';', ')']);
    let power = match unit {
        "bytes" | "byte" => 0,
        unit => UNITS.iter().position(|it| *it == unit)?,
    };
    let bytes = number * f64::from(1_u32 << 10).powi(power as i32);
    (bytes.is_finite() && bytes >= 0.0).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_allocations_of_pytorch_are_parsed() {
        let text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a \
                    total capacity of 39.50 GiB of which 3.75 GiB is free. Including non-PyTorch memory, \
                    this process has 35.74 GiB memory in use. Of the allocated memory 35.25 GiB is \
                    allocated by PyTorch, and 12.50 MiB is reserved by PyTorch but unallocated.";
        let gib = |it: f64| Some((it * f64::from(1 << 30)) as u64);
        assert_eq!(
            failed(text),
            Some(Failed {
                on_device: true,
                asked: gib(20.0),
                total: gib(39.5),
                free: gib(3.75),
                allocated: gib(35.25),
                unallocated: Some(25 << 19),
            })
        );
    }

    #[test]
    fn host_allocations_are_parsed() {
        let pytorch = "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: \
                       can't allocate memory: you tried to allocate 80000000000 bytes. Error code 12 \
                       (Cannot allocate memory)";
        let numpy = "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.50 MiB for an array \
                     with shape (3, 65536) and data type float64";
        for (text, asked) in [
            (pytorch, Some(80_000_000_000)),
            (numpy, Some(3 << 19)),
            ("MemoryError", None),
            ("OSError: [Errno 12] Cannot allocate memory", None),
        ] {
            let failed = failed(text).unwrap();
            assert_eq!((failed.on_device, failed.asked), (false, asked), "{text}");
        }
    }

    #[test]
    fn other_exceptions_are_ignored() {
        for text in [
            "ValueError: bad sample",
            "RuntimeError: Expected all tensors to be on the same device",
            "KeyError: 'memory'",
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that \
             dataloader's workers are out of shared memory.",
        ] {
            assert_eq!(failed(text), None, "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_ignored() {
        for text in [
            "MemoryError: Tried to allocate ",
            "MemoryError: Tried to allocate x GiB",
            "MemoryError: Tried to allocate 1e999 EiB",
            "MemoryError: Tried to allocate -1 GiB",
            "MemoryError:  is free",
            "MemoryError: é is free",
        ] {
            assert_eq!(failed(text), Some(Failed::default()), "{text}");
        }
    }
}
