//! What a node reports about itself before a job starts, as plain data.
//!
//! Facts of other nodes are bounded by [`Facts::bounded`] before a rule reads them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ddp_doctor_proto::words::plain;
use serde::{Deserialize, Serialize};

/// Maximum number of characters of one text.
const MAX_TEXT: usize = 256;
/// Maximum number of characters of a sentence.
const MAX_SENTENCE: usize = 4096;
/// Maximum number of entries of one list.
const MAX_ENTRIES: usize = 128;

/// What a node reports about itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Name of the host.
    pub host: String,
    /// Identity of the machine and its network: processes with the same value share both.
    pub machine: String,
    /// Rank of the node or process in the launch.
    pub node_rank: Option<u32>,
    /// Ranks that the command starts on this node.
    pub ranks: Option<u32>,
    /// The directory of shared memory.
    pub shared_memory: Directory,
    /// Whether it is a file system of its own in memory.
    pub has_shared_memory: bool,
    /// The directory in which a run would write its evidence.
    pub run_dir: Directory,
    /// Limit of locked memory, in bytes.
    pub memlock: Limit,
    /// Whether the process may lock memory beyond that limit.
    pub may_lock: bool,
    /// Limit of open file descriptors.
    pub descriptors: Limit,
    /// The control group that limits the memory of this process, in bytes.
    pub memory: Option<MemoryLimit>,
    /// The kind of container that the process runs in.
    pub container: Option<Container>,
    /// Network interfaces, in the system's order.
    pub interfaces: Vec<Interface>,
    /// InfiniBand and RoCE devices.
    pub infiniband: Vec<String>,
    /// What this node's own name and that of the master resolve to.
    pub names: BTreeMap<String, Resolved>,
    /// The coordinator that the node will use, if it has one of its own.
    pub coordinator: Option<Coordinator>,
    /// Range of ephemeral ports.
    pub ephemeral_ports: Option<(u16, u16)>,
    /// Variables of the environment that affect communication.
    pub variables: BTreeMap<String, String>,
    /// Versions by name.
    pub versions: BTreeMap<String, String>,
    /// Why those of Python packages were not read, though the command names an interpreter.
    pub unread_packages: Option<String>,
    /// Models of the GPUs that the driver lists.
    pub gpus: Vec<String>,
    /// PCIe links of those GPUs, as far as the kernel reports them.
    pub gpu_links: Vec<GpuLink>,
    /// What the driver reports of those GPUs.
    pub gpu_states: Vec<GpuState>,
    /// Version of the kernel: major and minor number.
    pub kernel: Option<(u32, u32)>,
    /// Whether the driver of the GPUs is NVIDIA's with open kernel modules.
    pub has_open_driver: bool,
    /// Whether the module `nvidia_peermem` is loaded, by which network cards access the memory of GPUs.
    pub has_peer_memory: bool,
    /// Whether the driver's device of unified memory is accessible; `None`: there is no driver.
    pub has_unified_memory: Option<bool>,
    /// Port at which this node answers probes.
    pub probe_port: u16,
    /// What it answers.
    pub probe_answer: u64,
}

/// The PCIe link of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuLink {
    /// Address of the GPU: "0000:3b:00.0".
    pub address: String,
    /// Number of lanes in use.
    pub width: u32,
    /// Number of lanes that the GPU has.
    pub max_width: u32,
    /// Whether a switch above it redirects transfers between devices; `None`: unknown, since only root may read that.
    pub redirects: Option<bool>,
    /// Whether the IOMMU translates its addresses.
    pub is_translated: bool,
}

/// What the driver reports of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuState {
    /// Number by which the driver lists it.
    pub index: u32,
    /// Bytes of its memory that processes hold, as far as known.
    pub used: u64,
    /// Processes that use it, as the driver numbers them.
    pub pids: Vec<u32>,
    /// Whether faulty memory is to be replaced at the next reset, or could not be.
    pub needs_reset: bool,
    /// Memory errors that it could not correct, since the driver was loaded.
    pub memory_errors: u64,
    /// Whether the driver keeps its state while no process uses it.
    pub is_persistent: Option<bool>,
    /// Whether it is partitioned (MIG).
    pub is_partitioned: Option<bool>,
    /// Clock that applications are set to, in MHz.
    pub clock_mhz: Option<u32>,
    /// Default of that clock.
    pub default_clock_mhz: Option<u32>,
    /// Number of its NVLinks that are up.
    pub active_links: Option<u32>,
}

/// A coordinator that runs apart from the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coordinator {
    /// Its address as given.
    pub address: String,
    /// Why it cannot be used; `None`: it answers.
    pub error: Option<String>,
}

/// A directory and its file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Directory {
    /// Path.
    pub path: String,
    /// Free space for this user, in bytes; `None`: unknown.
    pub free: Option<u64>,
    /// Size of the file system, in bytes.
    pub total: Option<u64>,
    /// Why no file can be created.
    pub error: Option<String>,
}

/// A limit of the system; `u64::MAX`: unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The limit in effect.
    pub soft: u64,
    /// What a process may raise it to.
    pub hard: u64,
}

/// The limit of a control group, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimit {
    /// Bytes in use.
    pub used: u64,
    /// Limit.
    pub limit: u64,
}

/// A kind of container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Container {
    /// A pod of Kubernetes.
    Kubernetes,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// Apptainer or Singularity.
    Apptainer,
    /// Another one.
    Other,
}

impl Container {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "a pod of Kubernetes",
            Self::Docker => "a Docker container",
            Self::Podman => "a Podman container",
            Self::Apptainer => "an Apptainer container",
            Self::Other => "a container",
        }
    }
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Whether it is up and has a carrier.
    pub is_up: bool,
    /// Whether it is a loopback interface.
    pub is_loopback: bool,
    /// Its addresses, in the system's order.
    pub addresses: Vec<IpAddr>,
}

/// What a name resolves to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resolved {
    /// The addresses, in the system's order.
    pub addresses: Vec<IpAddr>,
    /// Why there are none.
    pub error: Option<String>,
}

impl Facts {
    /// The same facts with bounded texts and lists, and without control characters.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        for it in [&mut self.host, &mut self.machine] {
            *it = text(it);
        }
        for directory in [&mut self.shared_memory, &mut self.run_dir] {
            directory.path = text(&directory.path);
            directory.error = directory.error.as_deref().map(text);
        }
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.address = text(&coordinator.address);
            coordinator.error = coordinator.error.as_deref().map(long_text);
        }
        self.interfaces.truncate(MAX_ENTRIES);
        for interface in &mut self.interfaces {
            interface.name = text(&interface.name);
            interface.addresses.truncate(MAX_ENTRIES);
        }
        self.gpu_links.truncate(MAX_ENTRIES);
        for link in &mut self.gpu_links {
            link.address = text(&link.address);
        }
        self.gpu_states.truncate(MAX_ENTRIES);
        for state in &mut self.gpu_states {
            state.pids.truncate(MAX_ENTRIES);
        }
        for list in [&mut self.infiniband, &mut self.gpus] {
            list.truncate(MAX_ENTRIES);
            list.iter_mut().for_each(|it| *it = text(it));
        }
        let names = self.names.into_iter().take(MAX_ENTRIES).map(|(name, mut resolved)| {
            resolved.addresses.truncate(MAX_ENTRIES);
            resolved.error = resolved.error.as_deref().map(text);
            (text(&name), resolved)
        });
        self.names = names.collect();
        self.variables = texts(self.variables);
        self.versions = texts(self.versions);
        self.unread_packages = self.unread_packages.as_deref().map(long_text);
        self
    }
}

fn texts(map: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let texts = map.iter().take(MAX_ENTRIES);
    texts.map(|(name, value)| (text(name), text(value))).collect()
}

/// A text of another node, of limited length and without control characters.
#[must_use]
pub fn text(text: &str) -> String {
    shortened(text, MAX_TEXT)
}

/// A sentence of another node, likewise.
#[must_use]
pub fn long_text(text: &str) -> String {
    shortened(text, MAX_SENTENCE)
}

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", plain(&text[..at])),
        None => plain(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_others_are_bounded() {
        let long = "x".repeat(MAX_TEXT * 2);
        let many = |suffix: &str| -> Vec<String> {
            let numbers = 0..MAX_ENTRIES * 2;
            numbers.map(|it| format!("{it}{suffix}")).collect()
        };
        let facts = Facts {
            host: "a\x1b[2J".into(),
            gpus: many(&long),
            variables: many("").into_iter().map(|it| (it.clone(), it)).collect(),
            interfaces: vec![Interface::default(); MAX_ENTRIES * 2],
            gpu_links: vec![GpuLink::default(); MAX_ENTRIES * 2],
            ..Facts::default()
        }
        .bounded();
        assert_eq!(facts.host, "a\u{fffd}[2J");
        assert_eq!((facts.gpus.len(), facts.variables.len()), (MAX_ENTRIES, MAX_ENTRIES));
        assert_eq!(facts.gpus[0].chars().count(), MAX_TEXT + 1);
        assert_eq!((facts.interfaces.len(), facts.gpu_links.len()), (MAX_ENTRIES, MAX_ENTRIES));
    }
}
