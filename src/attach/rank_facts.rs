//! What ranks state about themselves besides their stacks: memory, limits, versions, connections, steps.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

use ddp_doctor_diagnosis::words::{self, Ranks};
use ddp_doctor_host::cgroup::{self, MemoryGroup};
use ddp_doctor_host::proc::{self, Stat};
use ddp_doctor_host::source_files::ProcessRoot;
use ddp_doctor_host::sys;
use ddp_doctor_node::blocked;
use ddp_doctor_node::stack_reader::maps::{self, Loaded};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{ProcessState, v1};
use serde::{Deserialize, Serialize};
use sysinfo::{Pid, Process, ProcessRefreshKind, ProcessesToUpdate, System};

use super::find::RankProcess;
use super::outside::{self, Question};
use super::ras;
use step::Step;

mod step;

/// Time limit for what is read in the memory of ranks.
const MAX_READ: Duration = Duration::from_secs(2);
/// Maximum number of ranks whose connections to each other are read.
const MAX_CONNECTED: usize = 64;
/// Maximum number of entries of a folder of packages that are read.
const MAX_PACKAGES: usize = 16_384;
/// File with the version of the driver of NVIDIA's GPUs.
const DRIVER: &str = "/sys/module/nvidia/version";

/// Versions of the libraries in a process; `None`: unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// PyTorch.
    pub torch: Option<String>,
    /// NCCL.
    pub nccl: Option<ras::Version>,
}

impl Versions {
    /// The versions in a process.
    #[must_use]
    pub fn read(pid: u32) -> Self {
        let images = maps::images(pid).unwrap_or_default();
        Self { torch: torch_version(pid, &images), nccl: ras::version_in(pid, &images) }
    }
}

/// What is in the memory of a rank; `None`: unknown.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Contents {
    /// Versions of its libraries.
    versions: Versions,
    /// Its training step.
    step: Option<Step>,
}

impl Contents {
    /// The contents of a process.
    #[must_use]
    pub fn read(pid: u32) -> Self {
        Self { versions: Versions::read(pid), step: Step::read(pid) }
    }
}

/// Facts about a rank; `None`: unknown.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// State of its process.
    pub state: Option<ProcessState>,
    /// Memory of it, of its host and of its control group, without the number of the process.
    pub memory: v1::MemorySample,
    /// Number of processes that the kernel killed in its control group for lack of memory.
    pub oom_kills: Option<u64>,
    /// Number of processors that its control group may use.
    pub processors: Option<f64>,
    /// Versions of its libraries.
    pub versions: Versions,
    /// Version of the driver of its GPUs.
    pub driver: Option<String>,
    /// Its training step.
    pub step: Option<Step>,
    /// Ranks on this host to which it has a TCP connection, ascending.
    pub connected_to: Vec<u32>,
}

/// The facts about ranks, in their order.
#[must_use]
pub fn read(ranks: &[RankProcess]) -> Vec<Facts> {
    let driver = fs::read_to_string(DRIVER).ok().map(|it| it.trim().to_owned());
    let contents = contents(ranks);
    let connected = connections(ranks);
    let each = ranks.iter().zip(contents).zip(connected).zip(resident(ranks));
    let facts = each.map(|(((rank, Contents { versions, step }), connected_to), rss)| {
        let lines = proc::cgroups(rank.pid);
        let group = MemoryGroup::parse(&lines);
        let usage = group.as_ref().and_then(MemoryGroup::tightest);
        let memory = v1::MemorySample {
            unix_ns: Timestamp::now().0,
            rss,
            cgroup_used: usage.map(|it| it.used),
            cgroup_limit: usage.map(|it| it.limit),
            cgroup_held: usage.and_then(|it| it.reclaims),
            cgroup_slowed: usage.and_then(|it| it.throttled),
            ..v1::MemorySample::default()
        };
        Facts {
            state: Stat::read(rank.pid).ok().map(|it| it.state()),
            memory,
            oom_kills: group.as_ref().and_then(MemoryGroup::oom_kills),
            processors: cgroup::processors(&lines),
            versions,
            driver: driver.clone(),
            step,
            connected_to,
        }
    });
    facts.collect()
}

impl Facts {
    /// Settings with the versions, as a rank under `run` reports them.
    #[must_use]
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let nccl =
            self.versions.nccl.map(|(major, minor, patch)| format!("{major}.{minor}.{patch}"));
        let known = [
            ("torch", self.versions.torch.clone()),
            ("nccl", nccl),
            ("nvidia-driver", self.driver.clone()),
        ];
        known.into_iter().filter_map(|(name, version)| Some((name, version?))).collect()
    }

    /// All facts in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        parts.extend(self.state.map(|it| it.to_string()));
        parts.extend(self.step.as_ref().map(ToString::to_string));
        parts.extend(self.memory.rss.map(|it| format!("memory {}", words::bytes(it))));
        let group = self.memory.cgroup_used.zip(self.memory.cgroup_limit);
        parts.extend(group.map(|(used, limit)| {
            format!("control group {} of {}", words::bytes(used), words::bytes(limit))
        }));
        let reclaims = self.memory.cgroup_held.filter(|&it| it > 0);
        parts.extend(reclaims.map(|it| format!("its limit reached {it} times")));
        let kills = self.oom_kills.filter(|&it| it > 0);
        parts.extend(kills.map(|it| format!("{it} killed in it for lack of memory")));
        parts.extend(self.processors.map(|it| format!("{it:.1} CPUs")));
        let name = |name: &str| match name {
            "torch" => "PyTorch",
            "nccl" => "NCCL",
            _ => "driver",
        };
        parts.extend(
            self.settings().into_iter().map(|(it, version)| format!("{} {version}", name(it))),
        );
        if !self.connected_to.is_empty() {
            parts.push(format!("connected to {}", Ranks(&self.connected_to)));
        }
        parts.join(" · ")
    }
}

/// Memory in the resident sets of ranks, in bytes; `None` also for a zombie.
fn resident(ranks: &[RankProcess]) -> Vec<Option<u64>> {
    let pids: Vec<Pid> = ranks.iter().map(|it| Pid::from_u32(it.pid)).collect();
    let mut system = System::new();
    let what = ProcessRefreshKind::nothing().with_memory().without_tasks();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&pids), true, what);
    let memory = |pid: &Pid| system.process(*pid).map(Process::memory).filter(|&it| it > 0);
    pids.iter().map(memory).collect()
}

/// What the user should know about ranks that have ended: the kernel may have killed them for lack of memory.
#[must_use]
pub fn note_on_kills(facts: &[Facts]) -> Option<String> {
    let kills = facts.iter().filter_map(|it| it.oom_kills).max().filter(|&it| it > 0)?;
    Some(format!(
        "in the control group of the ranks, the kernel has killed {kills} {} for lack of memory since the group was created",
        if kills == 1 { "process" } else { "processes" }
    ))
}

/// The contents of ranks, which may be of another user.
fn contents(ranks: &[RankProcess]) -> Vec<Contents> {
    if ranks.iter().any(|it| outside::is_of_another_user(it.pid)) {
        let questions: Vec<(u32, Question)> =
            ranks.iter().map(|it| (it.pid, Question::Contents)).collect();
        let answers = outside::ask(&questions, MAX_READ).into_iter();
        let contents = answers.map(|it| serde_json::from_slice(&it?).ok());
        return contents.map(Option::unwrap_or_default).collect();
    }
    // A device that does not respond can keep a reader of memory waiting.
    let read = |pid: u32| sys::within(MAX_READ, move || Contents::read(pid)).unwrap_or_default();
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|it| scope.spawn(move || read(it.pid))).collect();
        threads.into_iter().map(|it| it.join().unwrap_or_default()).collect()
    })
}

/// The version of PyTorch in a process, by the Python package that contains it.
fn torch_version(pid: u32, images: &[Loaded]) -> Option<String> {
    let library = images.iter().find(|it| it.file_name().starts_with("libtorch_cpu."))?;
    // …/site-packages/torch/lib/libtorch_cpu.so
    package_version(pid, Path::new(&library.path).ancestors().nth(3)?, "torch-")
}

/// The version of a package in a folder of packages, by its path without links, as a process sees it. `prefix`: beginning of the name of its
/// description.
pub(crate) fn package_version(pid: u32, packages: &Path, prefix: &str) -> Option<String> {
    // The user of a process in a namespace of its own decides what its mounts lead to.
    if !proc::is_own(pid) && !sys::has_trusted_mounts(pid) {
        return None;
    }
    // The kernel states paths without links: another user can have made one there since.
    let folder = ProcessRoot::of_process(pid).ok()?.reach(packages).ok()?;
    let entries = fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd())).ok()?;
    entries.take(MAX_PACKAGES).flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let version = name.strip_prefix(prefix)?.strip_suffix(".dist-info")?;
        Some(version.to_owned())
    })
}

/// For each rank, the ranks on this host to which it has a TCP connection.
fn connections(ranks: &[RankProcess]) -> Vec<Vec<u32>> {
    let are_readable = ranks.len() <= MAX_CONNECTED && ranks.iter().all(|it| proc::is_own(it.pid));
    if !are_readable {
        return vec![Vec::new(); ranks.len()];
    }
    let pids: Vec<u32> = ranks.iter().map(|it| it.pid).collect();
    let connected = blocked::connections(&pids).into_iter();
    let numbers = connected.map(|of_rank| of_rank.into_iter().map(|at| ranks[at].rank).collect());
    numbers
        .map(|mut numbers: Vec<u32>| {
            numbers.sort_unstable();
            numbers
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_states_what_is_known() {
        assert_eq!(Facts::default().line(), "");
        let memory = v1::MemorySample {
            rss: Some(3 << 30),
            cgroup_used: Some(7 << 30),
            cgroup_limit: Some(8 << 30),
            cgroup_held: Some(4),
            ..v1::MemorySample::default()
        };
        let facts = Facts {
            memory,
            oom_kills: Some(1),
            processors: Some(2.5),
            versions: Versions { torch: Some("2.15.0+cpu".into()), nccl: Some((2, 28, 9)) },
            connected_to: vec![1, 2],
            ..Facts::default()
        };
        assert_eq!(
            facts.line(),
            "memory 3.0 GiB · control group 7.0 GiB of 8.0 GiB · its limit reached 4 times · 1 killed in it for lack \
             of memory · 2.5 CPUs · PyTorch 2.15.0+cpu · NCCL 2.28.9 · connected to ranks 1 and 2"
        );
        let note = note_on_kills(&[Facts::default(), facts]).unwrap();
        assert!(note.contains("killed 1 process for lack of memory"), "{note}");
        assert_eq!(note_on_kills(&[Facts { oom_kills: Some(0), ..Facts::default() }]), None);
    }

    #[test]
    fn memory_of_a_process_is_read() {
        let rank = |pid| RankProcess { pid, ..RankProcess::default() };
        let found = resident(&[rank(std::process::id()), rank(u32::MAX)]);
        assert!(found[0].is_some_and(|it| it > 1 << 20) && found[1].is_none(), "{found:?}");
    }

    #[test]
    fn version_is_that_of_the_package_beside_the_library() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["torch-2.15.0+cu130.dist-info", "torchvision-0.30.0.dist-info", "torch"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let version =
            |folder: &Path, prefix: &str| package_version(std::process::id(), folder, prefix);
        assert_eq!(version(folder.path(), "torch-").as_deref(), Some("2.15.0+cu130"));
        assert_eq!(version(folder.path(), "nvidia_nccl_cu"), None);
        // The user of another process can put a link in place of a folder that it has loaded from.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert_eq!(version(&link, "torch-"), None);
        assert_eq!(version(&link.join("torch/.."), "torch-"), None);
    }
}
