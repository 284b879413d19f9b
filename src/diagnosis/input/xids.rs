//! The meaning of the errors of NVIDIA's GPUs (Xid), as NVIDIA documents it.

use super::event::GpuFaultKind;

/// The usual reason of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A kernel of the program.
    Code,
    /// The GPU or its connections.
    Hardware,
    /// The driver, or the firmware of the GPU.
    Driver,
    /// Not known here.
    Unknown,
    /// Nothing that ends the work on the GPU: a note.
    Note,
    /// Another error, or the end of a process.
    Consequence,
}

/// The meaning of an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meaning {
    /// The sentence goes on after "reported Xid 79: ".
    pub(crate) what: &'static str,
    /// Its usual reason.
    pub(crate) reason: Reason,
    /// The GPU does not work until it is reset.
    pub(crate) is_lasting: bool,
    /// What to do.
    pub(crate) next: &'static str,
}

const fn meaning(
    what: &'static str,
    reason: Reason,
    is_lasting: bool,
    next: &'static str,
) -> Meaning {
    Meaning { what, reason, is_lasting, next }
}

const FIND_KERNEL: &str = "Find the kernel that accesses memory outside of its tensors: CUDA_LAUNCH_BLOCKING=1, \
                           compute-sanitizer. If no kernel of the program is at fault, check the GPU.";
const REPLACE: &str = "Drain the host, reset the GPU (nvidia-smi --gpu-reset) or reboot, and have it examined if the error \
                       returns: nvidia-smi -q, dmesg | grep -i xid.";
const RESTART: &str = "Start the job again. The GPU replaces the faulty memory when it is reset (nvidia-smi \
                       --gpu-reset); have it examined if the error returns: nvidia-smi -q -d ECC,ROW_REMAPPER.";
const CHECK_LINKS: &str = "Drain the host and check the links and their errors: nvidia-smi nvlink --status, nvidia-smi \
                           nvlink -e, dmesg | grep -i xid.";
const DRIVER: &str =
    "Reset the GPU (nvidia-smi --gpu-reset) or reboot the host, and update the driver.";
const RESEAT: &str = "Reboot the host. If the error returns, have the GPU, its slot, its power and its cooling examined.";
const LATER: &str = "Reset the GPU when the host is next drained (nvidia-smi --gpu-reset).";
const CATALOG: &str =
    "Look up the number in NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors).";

/// The meaning of what a GPU reported.
pub(crate) const fn of_fault(kind: GpuFaultKind) -> Meaning {
    match kind {
        GpuFaultKind::Xid(xid) => of_xid(xid),
        GpuFaultKind::UncorrectedErrors(_) => meaning(
            "its memory had errors that it could not correct",
            Reason::Hardware,
            false,
            RESTART,
        ),
        GpuFaultKind::Lost => {
            meaning("its driver can no longer reach it", Reason::Hardware, true, RESEAT)
        }
        GpuFaultKind::Unknown => {
            meaning("an error without a number", Reason::Unknown, false, CATALOG)
        }
    }
}

/// Whether a process that uses the GPU cannot go on after an error with this number.
#[must_use]
pub const fn ends_processes(xid: u64) -> bool {
    matches!(of_xid(xid).reason, Reason::Code | Reason::Hardware | Reason::Driver)
}

/// The meaning of an error with this number.
pub(crate) const fn of_xid(xid: u64) -> Meaning {
    use Reason::{Code, Consequence, Driver, Hardware, Note, Unknown};
    match xid {
        13 => meaning("a kernel raised an exception", Code, false, FIND_KERNEL),
        31 => meaning("a kernel accessed memory that is not mapped", Code, false, FIND_KERNEL),
        43 => meaning("it stopped the work of a process after an error", Code, false, FIND_KERNEL),
        45 => meaning("the driver ended the work of a process", Consequence, false, CATALOG),
        48 => {
            meaning("its memory had an error that it could not correct", Hardware, false, REPLACE)
        }
        62 => meaning("its internal controller halted", Hardware, true, REPLACE),
        63 => meaning("it will replace faulty memory at the next reset", Note, false, LATER),
        64 => meaning("it could not replace faulty memory", Hardware, true, REPLACE),
        74 => meaning("an NVLink failed", Hardware, true, CHECK_LINKS),
        79 => meaning("it has fallen off the bus", Hardware, true, RESEAT),
        92 => meaning("its memory had many errors, which it corrected", Note, false, LATER),
        94 => meaning("a memory error ended the process that used it", Hardware, false, RESTART),
        95 => meaning("a memory error affects all processes on it", Hardware, true, REPLACE),
        109 => {
            meaning("a kernel prevented it from switching to other work", Code, false, FIND_KERNEL)
        }
        119 => meaning("its firmware (GSP) does not answer", Driver, true, DRIVER),
        120 => meaning("its firmware (GSP) failed", Driver, true, DRIVER),
        121 => meaning("its link to the processor (C2C) failed", Hardware, false, REPLACE),
        140 => {
            meaning("its memory had an error that it could not correct", Hardware, true, REPLACE)
        }
        145 | 149 => meaning("an NVLink failed", Hardware, true, CHECK_LINKS),
        _ => meaning("see NVIDIA's Xid catalog", Unknown, false, CATALOG),
    }
}
