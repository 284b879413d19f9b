//! What a node observes of its GPUs.

use std::sync::Arc;

use ddp_doctor_proto::GpuSlowdown;

/// A GPU of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuIdentity {
    /// Host name of the node.
    pub host: Arc<str>,
    /// As its driver names it: "GPU-…".
    pub uuid: Arc<str>,
    /// Its place, "0000:1b:00"; empty: unknown.
    pub pci: Arc<str>,
    /// Model; empty: unknown.
    pub name: Arc<str>,
    /// Number by which its driver lists it.
    pub index: u32,
}

/// The state of a GPU at one moment; what is not supported is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuSample {
    /// Share of the last moments in which a kernel ran, in percent.
    pub busy: Option<u32>,
    /// Share of the last moments in which its memory was read or written, in percent.
    pub memory_busy: Option<u32>,
    /// Bytes of memory that no process holds.
    pub memory_free: Option<u64>,
    /// Bytes of memory.
    pub memory_total: Option<u64>,
    /// Processes that compute on it, each with the bytes that it holds; a limited number.
    pub processes: Vec<(u32, Option<u64>)>,
    /// Power in milliwatts.
    pub power: Option<u32>,
    /// Limit of the power in force, in milliwatts.
    pub power_limit: Option<u32>,
    /// Clock of its processors in MHz.
    pub clock: Option<u32>,
    /// Maximum of that clock.
    pub max_clock: Option<u32>,
    /// What slows that clock.
    pub slowdown: GpuSlowdown,
    /// Temperature in degrees Celsius.
    pub celsius: Option<u32>,
    /// Generation of its PCIe link, as in use and as possible.
    pub pcie_generation: Option<u32>,
    /// Maximum of that generation.
    pub max_pcie_generation: Option<u32>,
    /// Lanes of its PCIe link that are in use.
    pub pcie_width: Option<u32>,
    /// Lanes that its PCIe link can have.
    pub max_pcie_width: Option<u32>,
    /// Packets that were repeated on that link.
    pub pcie_replays: Option<u64>,
    /// Memory errors that could not be corrected, since the driver was loaded.
    pub uncorrected_errors: Option<u64>,
    /// Whether rows of its memory will be replaced at the next reset, or could not be.
    pub needs_reset: bool,
    /// Number of its NVLinks.
    pub links: Option<u32>,
    /// Number of those that are up.
    pub active_links: Option<u32>,
    /// Damaged packets on its NVLinks.
    pub link_errors: Option<u64>,
    /// Packets that were repeated on its NVLinks.
    pub link_retries: Option<u64>,
    /// The driver can no longer reach it.
    pub lost: bool,
}

/// What a GPU reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuFaultKind {
    /// An error with NVIDIA's number for it.
    Xid(u64),
    /// This many memory errors that could not be corrected.
    UncorrectedErrors(u64),
    /// The driver can no longer reach the GPU.
    Lost,
    /// An error without a number.
    Unknown,
}
