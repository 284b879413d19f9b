//! The GPUs of this host, as the libraries of their vendors report them.
//!
//! These libraries are loaded at run time, and belong to a driver: without the driver, nothing is loaded.

use std::env;
use std::ffi::OsString;
use std::path::Path;

use ddp_doctor_proto::v1;

mod nvml;

/// Variable with the path of the library to load, whether or not there is a driver.
pub const LIBRARY_VARIABLE: &str = "DDP_DOCTOR_NVML_LIBRARY";

/// Something observed of the GPUs of this host.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// The state of a GPU.
    Sample(Box<v1::GpuSample>),
    /// A GPU reported a fault.
    Fault(v1::GpuFault),
}

/// Settings of a GPU, as far as known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether the driver keeps its state while no process uses it.
    pub is_persistent: Option<bool>,
    /// Whether it is partitioned.
    pub is_partitioned: Option<bool>,
    /// Clock that applications are set to, in MHz.
    pub clock_mhz: Option<u32>,
    /// Default of that clock.
    pub default_clock_mhz: Option<u32>,
}

/// A vendor of GPUs.
struct Vendor {
    /// Name under which the system finds its library.
    library: &'static str,
    /// Files of which one exists if its driver is loaded.
    driver: &'static [&'static str],
    /// Variable that names another library.
    variable: &'static str,
    /// The state and settings of its GPUs, read with this library.
    read: fn(&OsString) -> Vec<(v1::GpuSample, Settings)>,
    /// Observes its GPUs with this library, until the function returns false or they cannot be observed.
    observe: fn(&OsString, &mut dyn FnMut(Observation) -> bool),
}

/// All vendors.
static VENDORS: [Vendor; 1] = [Vendor {
    library: "libnvidia-ml.so.1",
    driver: &["/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg"],
    variable: LIBRARY_VARIABLE,
    read: nvml::read,
    observe: nvml::observe,
}];

/// The GPUs of a vendor whose driver is loaded.
pub struct Gpus {
    vendor: &'static Vendor,
    library: OsString,
}

impl std::fmt::Debug for Gpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpus").field("library", &self.library).finish_non_exhaustive()
    }
}

impl Gpus {
    /// Finds the vendors with a driver on this host. Reads the environment and asks whether files exist.
    #[must_use]
    pub fn find() -> Vec<Self> {
        let present = VENDORS.iter().filter_map(|vendor| {
            let has_driver = || vendor.driver.iter().any(|path| Path::new(path).exists());
            let given = env::var_os(vendor.variable).filter(|it| !it.is_empty());
            let library = given.or_else(|| has_driver().then(|| vendor.library.into()))?;
            Some(Self { vendor, library })
        });
        present.collect()
    }

    /// The state and settings of the GPUs; empty if the library cannot be used. May block as long as the driver does.
    #[must_use]
    pub fn read(&self) -> Vec<(v1::GpuSample, Settings)> {
        (self.vendor.read)(&self.library)
    }

    /// Observes the GPUs: about once a second the state of each of them, and faults when they are reported. Ends when
    /// the function returns false, or at once if the library cannot be used. May block as long as the driver does.
    pub fn observe(&self, mut take: impl FnMut(Observation) -> bool) {
        (self.vendor.observe)(&self.library, &mut take);
    }
}
