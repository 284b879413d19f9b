//! Reads the facts of this machine.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ddp_doctor_host::cgroup::MemoryGroup;
use ddp_doctor_host::files::Dir;
use ddp_doctor_host::gpu::Gpus;
use ddp_doctor_host::names;
use ddp_doctor_host::private;
use ddp_doctor_host::proc;
use ddp_doctor_host::sys;
use ddp_doctor_host::sys::Resource;
use ddp_doctor_node::launch::rendezvous::Rendezvous;
use ddp_doctor_node::launch::shape::Shape;
use ddp_doctor_node::sample::environment;

use super::facts::{
    Container, Directory, Facts, GpuLink, GpuState, Interface, Limit, MemoryLimit, Resolved,
};
use super::packages;

/// Time limit for a name or a file system that may not answer.
const ANSWER: Duration = Duration::from_secs(5);
/// File system type of memory (`TMPFS_MAGIC` of linux/magic.h), as `/proc/mounts` names it.
const MEMORY_FILE_SYSTEMS: [&str; 2] = ["tmpfs", "ramfs"];
/// Prefixes of variables that affect communication.
const PREFIXES: [&str; 4] = ["NCCL_", "TORCH_", "GLOO_", "TP_SOCKET_"];
/// Other variables that rules read.
const VARIABLES: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING"];
/// Interface flags of linux/if.h.
const UP: u32 = 0x1;
const LOOPBACK: u32 = 0x8;
const RUNNING: u32 = 0x40;
/// Number of the capability `CAP_IPC_LOCK`.
const IPC_LOCK: u32 = 14;
/// Where the kernel lists InfiniBand and RoCE devices.
const INFINIBAND: &str = "/sys/class/infiniband";
/// What NVIDIA's driver says of itself.
const DRIVER: &str = "/proc/driver/nvidia/version";
/// Where NVIDIA's driver lists GPUs.
const GPUS: &str = "/proc/driver/nvidia/gpus";
/// Where the kernel lists PCI devices.
const PCI: &str = "/sys/bus/pci/devices";
/// Exists while that module is loaded.
const PEER_MEMORY: &str = "/sys/module/nvidia_peermem";
/// Bytes of a device's configuration that every user may read.
const PUBLIC_CONFIGURATION: usize = 64;
/// Beginning of the extended capabilities in it, with their maximum number, and of these the number of Access Control
/// Services with the control register and its bits that redirect requests and completions (linux/pci_regs.h).
const CAPABILITIES: usize = 0x100;
const MAX_CAPABILITIES: usize = 64;
const ACCESS_CONTROL: u32 = 0x0D;
const ACCESS_CONTROL_REGISTER: usize = 6;
const REDIRECTS: u8 = 0x04 | 0x08;

/// The facts of this machine for a command. May take seconds.
#[must_use]
pub(super) fn facts(command: &[OsString], shape: &Shape, meeting: Option<&Rendezvous>) -> Facts {
    let host = sys::host_name();
    let master = meeting.map(|it| it.host.clone());
    let resolved = [Some(host.clone()), master]
        .into_iter()
        .flatten()
        .map(|name| (name.clone(), resolve(&name)));
    let shared_memory = Path::new(private::SHARED_MEMORY);
    let packages = packages::versions(command);
    Facts {
        names: resolved.collect(),
        machine: format!("{} {} {}", host, proc::boot_id(), network()),
        host,
        node_rank: meeting.and_then(|it| it.rank),
        ranks: shape.ranks,
        shared_memory: directory(vec![shared_memory.to_owned()]),
        has_shared_memory: is_in_memory(&read("/proc/mounts"), shared_memory),
        run_dir: directory(run_dirs()),
        memlock: limit(Resource::LockedMemory),
        may_lock: has_capability(&read("/proc/self/status"), IPC_LOCK),
        descriptors: limit(Resource::Descriptors),
        memory: memory(),
        container: container(),
        interfaces: interfaces(),
        infiniband: entries(Path::new(INFINIBAND)),
        ephemeral_ports: ports(&read("/proc/sys/net/ipv4/ip_local_port_range")),
        variables: variables(std::env::vars_os()),
        unread_packages: packages.as_ref().err().cloned(),
        versions: versions(packages.unwrap_or_default()),
        gpus: gpus(),
        gpu_links: gpu_links(Path::new(GPUS), Path::new(PCI)),
        gpu_states: gpu_states(),
        kernel: kernel(&read("/proc/sys/kernel/osrelease")),
        has_open_driver: read(DRIVER).contains("Open Kernel Module"),
        has_peer_memory: Path::new(PEER_MEMORY).exists(),
        has_unified_memory: environment::has_nvidia_driver()
            .then(|| Path::new("/dev/nvidia-uvm").exists()),
        coordinator: None,
        probe_port: 0,
        probe_answer: 0,
    }
    .bounded()
}

/// What a name resolves to on this machine.
#[must_use]
pub(super) fn resolve(name: &str) -> Resolved {
    let host = name.to_owned();
    let addresses = sys::within(ANSWER, move || {
        (host.as_str(), 0).to_socket_addrs().map(|all| {
            let mut addresses: Vec<IpAddr> = all.map(|it| it.ip()).collect();
            addresses.dedup();
            addresses
        })
    });
    match addresses {
        Some(Ok(addresses)) if !addresses.is_empty() => Resolved { addresses, error: None },
        Some(Ok(_)) => unresolved("it has no address".into()),
        Some(Err(error)) => unresolved(error.to_string()),
        None => unresolved(format!("no answer within {} s", ANSWER.as_secs())),
    }
}

fn unresolved(error: String) -> Resolved {
    Resolved { addresses: Vec::new(), error: Some(error) }
}

fn read(path: &str) -> String {
    proc::read_lossy(path).unwrap_or_default()
}

/// The network namespace of this process.
fn network() -> String {
    let link = fs::read_link("/proc/self/ns/net");
    link.map(|it| it.display().to_string()).unwrap_or_default()
}

fn limit(resource: Resource) -> Limit {
    let (soft, hard) = sys::limit(resource);
    Limit { soft, hard }
}

/// Whether `/proc/PID/status` lists a capability as effective.
fn has_capability(status: &str, number: u32) -> bool {
    let mask = status
        .lines()
        .find_map(|it| it.strip_prefix("CapEff:"))
        .and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> number & 1 == 1)
}

/// Whether the last mount at a path is a file system in memory.
fn is_in_memory(mounts: &str, path: &Path) -> bool {
    let mut at_path = mounts.lines().rev().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        (Path::new(fields.next()?) == path).then(|| fields.next())?
    });
    let file_system = at_path.next();
    file_system.is_some_and(|it| MEMORY_FILE_SYSTEMS.contains(&it))
}

/// The directory for run directories, which need not exist, and those above it.
fn run_dirs() -> Vec<PathBuf> {
    let given = std::env::var_os(environment::RUN_DIR).map(PathBuf::from);
    let requested = given.unwrap_or_else(|| PathBuf::from(names::RUNS));
    let wanted = std::path::absolute(&requested).unwrap_or(requested);
    wanted.ancestors().map(Path::to_owned).collect()
}

/// Space in the first of these directories that exists, and whether a file can be created there. Links of other users are
/// not followed.
fn directory(paths: Vec<PathBuf>) -> Directory {
    let shown = paths[0].display().to_string();
    let examined = sys::within(ANSWER, move || {
        let is_there = |it: &io::Result<Dir>| {
            !it.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let mut opened = paths.iter().map(|path| (path, Dir::open(path)));
        let (path, dir) = opened
            .find(|(_, dir)| is_there(dir))
            .unwrap_or_else(|| (&paths[0], Err(io::ErrorKind::NotFound.into())));
        let space = dir.as_ref().ok().and_then(|it| sys::space(&it.readable().ok()?).ok());
        let probe = OsString::from(format!(".ddp-doctor-check-{}", names::new_job()));
        let created = dir.and_then(|dir| {
            dir.new_file(&probe)?;
            // What remains is empty.
            dir.remove_file(&probe).ok();
            Ok(())
        });
        (path.display().to_string(), space, created)
    });
    let Some((shown, space, created)) = examined else {
        return Directory {
            path: shown,
            error: Some(format!("no answer within {} s", ANSWER.as_secs())),
            ..Directory::default()
        };
    };
    Directory {
        path: shown,
        free: space.map(|it| it.free),
        total: space.map(|it| it.total),
        error: created.err().map(|it| it.to_string()),
    }
}

fn memory() -> Option<MemoryLimit> {
    let usage = MemoryGroup::parse(&read("/proc/self/cgroup"))?.tightest()?;
    Some(MemoryLimit { used: usage.used, limit: usage.limit })
}

fn container() -> Option<Container> {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let exists = |path: &str| Path::new(path).exists();
    if is_set("KUBERNETES_SERVICE_HOST") {
        Some(Container::Kubernetes)
    } else if exists("/.dockerenv") {
        Some(Container::Docker)
    } else if exists("/run/.containerenv") {
        Some(Container::Podman)
    } else if is_set("APPTAINER_CONTAINER") || is_set("SINGULARITY_CONTAINER") {
        Some(Container::Apptainer)
    } else if is_set("container") {
        Some(Container::Other)
    } else {
        None
    }
}

fn interfaces() -> Vec<Interface> {
    let mut found: Vec<Interface> = Vec::new();
    for it in sys::interfaces().unwrap_or_default() {
        let index = found.iter().position(|known| known.name == it.name).unwrap_or_else(|| {
            found.push(Interface {
                name: it.name,
                is_up: it.flags & (UP | RUNNING) == UP | RUNNING,
                is_loopback: it.flags & LOOPBACK != 0,
                addresses: Vec::new(),
            });
            found.len() - 1
        });
        found[index].addresses.extend(it.address);
    }
    found
}

fn entries(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|it| it.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn ports(range: &str) -> Option<(u16, u16)> {
    let mut numbers = range.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn variables(all: impl Iterator<Item = (OsString, OsString)>) -> BTreeMap<String, String> {
    let affects =
        |name: &str| PREFIXES.iter().any(|it| name.starts_with(it)) || VARIABLES.contains(&name);
    let texts = all.filter_map(|(name, value)| {
        Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
    });
    texts.filter(|(name, _)| affects(name)).collect()
}

fn versions(mut versions: BTreeMap<String, String>) -> BTreeMap<String, String> {
    versions.insert("ddp-doctor".into(), env!("CARGO_PKG_VERSION").into());
    if let Some(driver) = driver(&read(DRIVER)) {
        versions.insert("nvidia-driver".into(), driver);
    }
    versions
}

/// The version in the driver's own words: `NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15 …`.
fn driver(text: &str) -> Option<String> {
    let mut words = text.lines().next()?.split_whitespace();
    let is_version = |word: &&str| {
        let parts: Vec<&str> = word.split('.').collect();
        parts.len() >= 2 && parts.iter().all(|it| it.parse::<u32>().is_ok())
    };
    words.find(is_version).map(str::to_owned)
}

/// Models of the GPUs that the driver lists.
fn gpus() -> Vec<String> {
    let models = entries(Path::new(GPUS)).into_iter().map(|gpu| {
        let text = read(&format!("{GPUS}/{gpu}/information"));
        let model = text.lines().find_map(|it| it.strip_prefix("Model:"));
        model.map_or_else(|| "unknown".to_owned(), |it| it.trim().to_owned())
    });
    models.collect()
}

/// PCIe links of the GPUs in a folder of NVIDIA's driver. In virtual machines and containers, the kernel
/// may not report them.
fn gpu_links(gpus: &Path, devices: &Path) -> Vec<GpuLink> {
    let links = entries(gpus).into_iter().filter_map(|address| {
        let width = |name: &str| -> Option<u32> {
            let text = fs::read_to_string(devices.join(&address).join(name)).ok()?;
            text.trim().parse().ok()
        };
        let (width, max_width) = (width("current_link_width")?, width("max_link_width")?);
        let device = devices.join(&address);
        let domain = fs::read_to_string(device.join("iommu_group/type")).unwrap_or_default();
        Some(GpuLink {
            address,
            width,
            max_width,
            redirects: redirects_above(&device),
            is_translated: domain.starts_with("DMA"),
        })
    });
    links.collect()
}

/// Whether a switch above a PCI device redirects transfers between devices; `None`: unknown. Transfers through the port
/// of the root complex take that way in any case.
fn redirects_above(device: &Path) -> Option<bool> {
    let device = fs::canonicalize(device).ok()?;
    let above = device.ancestors().skip(1).map(|it| fs::read(it.join("config")));
    let mut bridges: Vec<Vec<u8>> = above.map_while(Result::ok).collect();
    bridges.pop();
    let known: Vec<Option<bool>> = bridges.iter().map(|it| redirects(it)).collect();
    let is_known = !known.contains(&None);
    known.contains(&Some(true)).then_some(true).or(is_known.then_some(false))
}

/// Whether the configuration of a PCIe bridge redirects transfers between devices below it.
fn redirects(configuration: &[u8]) -> Option<bool> {
    if configuration.len() <= PUBLIC_CONFIGURATION {
        return None;
    }
    let mut at = CAPABILITIES;
    for _ in 0..MAX_CAPABILITIES {
        let Some(header) = configuration.get(at..).and_then(|it| it.first_chunk()) else { break };
        let header = u32::from_le_bytes(*header);
        if header & 0xFFFF == ACCESS_CONTROL {
            let control = configuration.get(at + ACCESS_CONTROL_REGISTER);
            return Some(control.is_some_and(|it| it & REDIRECTS != 0));
        }
        at = (header >> 20) as usize;
        if at < CAPABILITIES {
            break;
        }
    }
    Some(false)
}

/// The version of the kernel in its own words: `5.15.0-122-generic`.
fn kernel(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// What the driver reports of the GPUs; empty without one, or if it does not answer.
fn gpu_states() -> Vec<GpuState> {
    let read = || {
        let all = Gpus::find().into_iter().flat_map(|gpus| gpus.read());
        let states = all.map(|(sample, settings)| GpuState {
            index: sample.gpu.map_or(0, |gpu| gpu.index),
            used: sample.processes.iter().filter_map(|it| it.memory).sum(),
            pids: sample.processes.iter().map(|it| it.pid).collect(),
            needs_reset: sample.remapping_pending == Some(true)
                || sample.remapping_failed == Some(true),
            memory_errors: sample.uncorrected_errors.unwrap_or(0),
            is_persistent: settings.is_persistent,
            is_partitioned: settings.is_partitioned,
            clock_mhz: settings.clock_mhz,
            default_clock_mhz: settings.default_clock_mhz,
            active_links: sample.active_links,
        });
        states.collect()
    };
    sys::within(ANSWER, read).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_this_machine_are_read() {
        let facts = facts(&[], &Shape::from_command(&[], &|_| None), None);
        assert_eq!(facts.host, sys::host_name());
        assert!(facts.descriptors.soft > 0 && facts.descriptors.soft <= facts.descriptors.hard);
        let loopback = facts.interfaces.iter().find(|it| it.name == "lo").unwrap();
        assert!(loopback.is_loopback);
        assert!(facts.run_dir.total.unwrap() > 0);
        assert!(facts.versions.contains_key("ddp-doctor"));
        assert!(facts.ephemeral_ports.unwrap().0 > 1000);
    }

    #[test]
    fn last_mount_decides_whether_memory_is_shared() {
        let shm = Path::new("/dev/shm");
        for (mounts, expected) in [
            ("tmpfs /dev/shm tmpfs rw 0 0\n", true),
            ("tmpfs /dev tmpfs rw 0 0\n", false),
            ("tmpfs /dev/shm tmpfs rw 0 0\n/dev/sda /dev/shm ext4 rw 0 0\n", false),
            ("", false),
        ] {
            assert_eq!(is_in_memory(mounts, shm), expected, "{mounts}");
        }
    }

    #[test]
    fn texts_of_the_kernel_and_the_driver_are_read() {
        assert!(has_capability("Name:\tx\nCapEff:\t000001ffffffffff\n", IPC_LOCK));
        assert!(!has_capability("CapEff:\t0000000000000000\n", IPC_LOCK));
        assert!(!has_capability("", IPC_LOCK));
        assert_eq!(ports("32768\t60999\n"), Some((32768, 60999)));
        assert_eq!(ports("x"), None);
        let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan\nGCC version: 12.2\n";
        assert_eq!(driver(text).as_deref(), Some("570.86.15"));
        assert_eq!(driver(""), None);
    }

    #[test]
    fn variables_that_affect_communication_are_kept() {
        let all = [("NCCL_ALGO", "ring"), ("HOME", "/"), ("GLOO_SOCKET_IFNAME", "e")];
        let kept = variables(all.into_iter().map(|(a, b)| (a.into(), b.into())));
        let names: Vec<&String> = kept.keys().collect();
        assert_eq!(names, ["GLOO_SOCKET_IFNAME", "NCCL_ALGO"]);
    }

    #[test]
    fn links_of_gpus_that_the_kernel_reports_are_read() {
        let root = tempfile::tempdir().unwrap();
        let (gpus, devices) = (root.path().join("gpus"), root.path().join("devices"));
        let addresses = ["0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0"];
        for (address, widths) in addresses.into_iter().zip([Some("8"), Some("x"), None]) {
            fs::create_dir_all(gpus.join(address)).unwrap();
            let Some(width) = widths else { continue };
            fs::create_dir_all(devices.join(address)).unwrap();
            fs::write(devices.join(address).join("current_link_width"), width).unwrap();
            fs::write(devices.join(address).join("max_link_width"), "16\n").unwrap();
        }
        let address = addresses[0].to_owned();
        let link = GpuLink {
            address: address.clone(),
            width: 8,
            max_width: 16,
            redirects: Some(false),
            is_translated: false,
        };
        assert_eq!(gpu_links(&gpus, &devices), [link]);
        for (kind, is_translated) in [("identity\n", false), ("DMA-FQ\n", true)] {
            let group = devices.join(&address).join("iommu_group");
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("type"), kind).unwrap();
            assert_eq!(gpu_links(&gpus, &devices)[0].is_translated, is_translated, "{kind}");
        }
        assert_eq!(gpu_links(&root.path().join("no"), &devices), []);
    }

    #[test]
    fn switches_that_redirect_transfers_are_found_above_a_gpu() {
        let root = tempfile::tempdir().unwrap();
        let port = root.path().join("pci0000:3a/0000:3a:00.0");
        let switch = port.join("0000:3b:00.0/0000:3c:10.0");
        fs::create_dir_all(switch.join("0000:3d:00.0")).unwrap();
        // The capability of errors (1), then that of access control at 0x148.
        let configuration = |control: u8| {
            let mut all = vec![0; 4096];
            all[CAPABILITIES..][..4].copy_from_slice(&[0x01, 0x00, 0x82, 0x14]);
            all[0x148..][..4].copy_from_slice(&[0x0D, 0x00, 0x01, 0x00]);
            all[0x148 + ACCESS_CONTROL_REGISTER] = control;
            all
        };
        let above = |of_port: &[u8], of_switch: &[u8]| {
            fs::write(port.join("config"), of_port).unwrap();
            fs::write(switch.parent().unwrap().join("config"), of_port).unwrap();
            fs::write(switch.join("config"), of_switch).unwrap();
            redirects_above(&switch.join("0000:3d:00.0"))
        };
        let (plain, all) = (configuration(0x01), configuration(0x1D));
        assert_eq!(above(&plain, &all), Some(true));
        assert_eq!(above(&plain, &plain), Some(false));
        assert_eq!(above(&plain[..64], &plain[..64]), None);
        assert_eq!(above(&plain[..256], &plain[..256]), Some(false), "no extended capabilities");
        fs::remove_file(switch.join("config")).unwrap();
        fs::write(port.join("config"), &all).unwrap();
        assert_eq!(
            redirects_above(&switch),
            Some(false),
            "below the port of the root complex only"
        );
    }

    #[test]
    fn versions_of_kernels_are_read() {
        assert_eq!(kernel("5.15.0-122-generic\n"), Some((5, 15)));
        assert_eq!(kernel("6.8"), Some((6, 8)));
        assert_eq!(kernel(""), None);
    }

    #[test]
    fn name_that_does_not_resolve_has_a_reason() {
        assert!(resolve("no-such-host.invalid").error.is_some());
        assert!(resolve("127.0.0.1").error.is_none());
    }
}
