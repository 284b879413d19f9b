//! The processes below the command: finds those that will become ranks, and those that train
//! without capture.
//!
//! Capture reaches Python through the environment. A process that was started with another
//! environment, or ignores it, is not captured. The user must know this before relying on the
//! diagnosis.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ddp_doctor_host::proc;
use ddp_doctor_host::proc::Stat;

use crate::sample::environment;

/// Ages at which a process is checked, since it may still have to call `exec` or to load PyTorch.
const CHECKS: [Duration; 7] = [
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(20),
    Duration::from_secs(40),
    Duration::from_secs(80),
];
/// Maximum number of ancestors of a process that are considered.
const MAX_ANCESTORS: usize = 64;
/// Prefixes of the names of PyTorch's libraries.
const TORCH: [&str; 3] = ["libtorch_cpu.", "libtorch_python.", "libtorch.so"];

/// Prefix of the name of the agent's library, which a process loads when it joins a process group.
const AGENT: [&str; 1] = ["libddp_doctor.so"];
/// Names of programs that start ranks.
const LAUNCHERS: [&str; 3] = ["torchrun", "torch.distributed.run", "torch.distributed.launch"];
/// Prefix of the name of NCCL's library, by which programs that call NCCL directly are recognized.
const NCCL: [&str; 1] = ["libnccl.so"];

/// A process that runs PyTorch without capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostCapture {
    /// Process id.
    pub pid: u32,
    /// Its rank, from its environment.
    pub rank: Option<u32>,
    /// Description with the reason, for the user.
    pub text: String,
}

/// A process that will become a rank, according to its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToBeRank {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// The rank.
    pub rank: u32,
    /// Number of ranks, if the environment has it.
    pub world_size: Option<u32>,
}

/// Follows the processes below a root process.
#[derive(Debug)]
pub struct Descendants {
    root: u32,
    activation: Option<PathBuf>,
    known: HashMap<u32, ProcessEntry>,
    /// Found since the last [`Self::take_ranks`].
    ranks: Vec<ToBeRank>,
}

/// A process of this host.
#[derive(Debug)]
struct ProcessEntry {
    start_ticks: u64,
    /// Inode of its directory in `/proc`.
    inode: u64,
    parent: u32,
    is_below: bool,
    first_seen: Instant,
    checks: usize,
    is_reported: bool,
    /// The rank that it will become.
    rank: Option<u32>,
}

impl ProcessEntry {
    /// Compares a process that has its pid now; `true`: it is this one. Of processes that are not of the job, which can
    /// be many, only those with another inode are read again.
    fn recognize(&mut self, pid: u32, inode: u64) -> bool {
        let is_same = std::mem::replace(&mut self.inode, inode) == inode;
        is_same && !self.is_below
            || Stat::read(pid).is_ok_and(|it| it.start_ticks == self.start_ticks)
    }
}

impl Descendants {
    /// Follows the processes below `root`. For `activation` see
    /// [`environment::Environment::activation`].
    #[must_use]
    pub fn new(root: u32, activation: Option<PathBuf>) -> Self {
        Self { root, activation, known: HashMap::new(), ranks: Vec::new() }
    }

    /// Pid of the root process.
    #[must_use]
    pub const fn root(&self) -> u32 {
        self.root
    }

    /// Takes the processes that will become ranks and were found since the last call.
    pub fn take_ranks(&mut self) -> Vec<ToBeRank> {
        std::mem::take(&mut self.ranks)
    }

    /// Reads the processes of this host; returns those newly found to train without capture. Reads
    /// `/proc/PID/stat` only of processes that are new since the last call, and of those of the job.
    pub fn scan(&mut self, now: Instant) -> Vec<LostCapture> {
        // Without the list, every known process would seem to have ended.
        let Ok(processes) = proc::all_with_inodes() else {
            return Vec::new();
        };
        // Parents come before their children, unless pids have wrapped around in between.
        let inodes: BTreeMap<u32, u64> = processes.into_iter().collect();
        self.known.retain(|&pid, known| {
            inodes.get(&pid).is_some_and(|inode| known.recognize(pid, *inode))
        });
        loop {
            let before = self.known.len();
            for &pid in inodes.keys() {
                if !self.known.contains_key(&pid) {
                    self.discover(pid, &inodes, now);
                }
            }
            if self.known.len() == before {
                break;
            }
        }
        let due: Vec<u32> = inodes.into_keys().filter(|pid| self.is_due(*pid, now)).collect();
        due.into_iter().filter_map(|pid| self.check(pid)).collect()
    }

    fn discover(&mut self, pid: u32, inodes: &BTreeMap<u32, u64>, now: Instant) {
        let (Some(&inode), Ok(stat)) = (inodes.get(&pid), Stat::read(pid)) else { return };
        if !self.known.contains_key(&stat.parent) && inodes.contains_key(&stat.parent) {
            // A later pass discovers it, once its parent is known.
            return;
        }
        let is_below = pid == self.root
            || stat.parent == self.root
            || self.known.get(&stat.parent).is_some_and(|parent| parent.is_below);
        let known = ProcessEntry {
            start_ticks: stat.start_ticks,
            inode,
            parent: stat.parent,
            is_below,
            first_seen: now,
            checks: 0,
            is_reported: false,
            rank: None,
        };
        self.known.insert(pid, known);
    }

    fn is_due(&self, pid: u32, now: Instant) -> bool {
        self.known.get(&pid).is_some_and(|known| {
            let due = CHECKS.get(known.checks);
            known.is_below && due.is_some_and(|due| now.duration_since(known.first_seen) >= *due)
        })
    }

    fn check(&mut self, pid: u32) -> Option<LostCapture> {
        self.known.get_mut(&pid)?.checks += 1;
        if !proc::is_own(pid) {
            return self.check_foreign(pid);
        }
        let arguments = proc::arguments(pid);
        let environment = proc::environment(pid);
        self.note_rank(pid, &arguments, &environment);
        let reason = lost(&arguments, &environment, self.activation.as_deref())?;
        if !proc::maps_library(pid, &TORCH) {
            return None;
        }
        let rank = variable(&environment, "RANK").and_then(|rank| rank.parse().ok());
        // Workers of a rank, such as Inductor's, and launchers are not ranks.
        if self.parent_is_reported(pid)
            || self.helps(pid, rank)
            || (rank.is_none() && is_launcher(&arguments))
        {
            return None;
        }
        let known = self.known.get_mut(&pid)?;
        known.checks = CHECKS.len();
        if std::mem::replace(&mut known.is_reported, true) {
            return None;
        }
        let who = rank.map_or_else(
            || format!("process {pid}"),
            |rank| format!("rank {rank} (process {pid})"),
        );
        Some(LostCapture {
            pid,
            rank,
            text: format!("{who} runs PyTorch without capture: {reason}"),
        })
    }

    /// Checks a process of another user only by its name: that user can make a read of its memory, arguments and
    /// environment block forever. Python alone may be anything beside the job.
    fn check_foreign(&mut self, pid: u32) -> Option<LostCapture> {
        let name = proc::name(pid)?;
        let user = proc::owner(pid)?;
        if !LAUNCHERS.contains(&&*name) || self.parent_is_reported(pid) {
            return None;
        }
        let known = self.known.get_mut(&pid)?;
        known.checks = CHECKS.len();
        known.is_reported = true;
        Some(LostCapture {
            pid,
            rank: None,
            text: format!(
                "{name} (process {pid}) is not captured: it belongs to user {user}, not to that of ddp-doctor"
            ),
        })
    }

    fn parent_is_reported(&self, pid: u32) -> bool {
        self.descends_from(pid, |_, known| known.is_reported)
    }

    /// Whether a process was started by a captured rank: one that has loaded the agent, or that
    /// will become this rank. One that does not run PyTorch is only a wrapper of the rank.
    fn helps(&self, pid: u32, rank: Option<u32>) -> bool {
        self.descends_from(pid, |above, known| {
            let is_this_rank = rank.is_some() && known.rank == rank;
            let maps = |library| proc::is_own(above) && proc::maps_library(above, library);
            (is_this_rank && maps(&TORCH)) || maps(&AGENT)
        })
    }

    /// Adds a process that will become a rank. Launchers and helpers of the same rank, which may have
    /// the environment of a rank, are left out.
    fn note_rank(&mut self, pid: u32, arguments: &[String], environment: &[String]) {
        let number = |name: &str| variable(environment, name)?.parse().ok();
        // A program other than Python can be a rank if it has loaded NCCL.
        let may_be_one = || is_python(arguments) || proc::maps_library(pid, &NCCL);
        let Some(rank) = rank_of(environment).filter(|_| may_be_one()) else {
            return;
        };
        let captured = variable(environment, environment::JOB).is_some()
            && variable(environment, environment::SWITCH) != Some("0");
        if !captured
            || variable(environment, "WORLD_SIZE").is_none()
            || is_launcher(arguments)
            || self.descends_from(pid, |_, known| known.rank == Some(rank))
        {
            return;
        }
        let Some(known) = self.known.get_mut(&pid).filter(|it| it.rank.is_none()) else {
            return;
        };
        known.rank = Some(rank);
        self.ranks.push(ToBeRank {
            pid,
            start_ticks: known.start_ticks,
            rank,
            world_size: number("WORLD_SIZE"),
        });
    }

    /// Whether the condition holds for a process between this one and the root.
    fn descends_from(&self, pid: u32, is: impl Fn(u32, &ProcessEntry) -> bool) -> bool {
        let parent = |entry: &ProcessEntry| {
            let above = self.known.get(&entry.parent)?;
            // A later process can have the pid of a parent that has exited.
            let is_parent = above.is_below && above.start_ticks <= entry.start_ticks;
            is_parent.then_some((entry.parent, above))
        };
        let first = self.known.get(&pid).and_then(parent);
        // Processes of one clock tick can still seem to be each other's parents.
        std::iter::successors(first, |(_, entry)| parent(entry))
            .take(MAX_ANCESTORS)
            .any(|(pid, entry)| is(pid, entry))
    }
}

/// All processes that are below `root` now, with their start times.
#[must_use]
pub fn below(root: u32) -> Vec<(u32, u64)> {
    let stats: BTreeMap<u32, Stat> = proc::pids()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|pid| Some((pid, Stat::read(pid).ok()?)))
        .collect();
    let mut found = vec![root];
    let mut visited = 0;
    while let Some(&parent) = found.get(visited) {
        found.extend(stats.iter().filter(|(_, stat)| stat.parent == parent).map(|(pid, _)| *pid));
        visited += 1;
    }
    found[1..].iter().filter_map(|pid| Some((*pid, stats.get(pid)?.start_ticks))).collect()
}

impl Descendants {
    /// All living processes that were seen below the root at any time, including those whose parent
    /// has exited since; with their start times.
    #[must_use]
    pub fn remembered(&self) -> Vec<(u32, u64)> {
        let below = self.known.iter().filter(|(pid, known)| known.is_below && **pid != self.root);
        let mut found: Vec<_> = below.map(|(pid, known)| (*pid, known.start_ticks)).collect();
        found.sort_unstable();
        found
    }
}

/// Reason why a process with these arguments and this environment is not captured. `None` if it is
/// captured, capture is switched off, or its environment cannot be read.
fn lost(arguments: &[String], environment: &[String], activation: Option<&Path>) -> Option<String> {
    let activation = activation?;
    if environment.is_empty() || variable(environment, environment::SWITCH) == Some("0") {
        return None;
    }
    if !is_python(arguments) {
        return None;
    }
    if let Some(flag) = isolating_flag(&arguments[1..]) {
        return Some(format!(
            "Python was started with -{flag}, which disables the capture that `run` sets up"
        ));
    }
    if variable(environment, environment::JOB).is_none() {
        return Some("its environment lacks the variables that `run` sets".into());
    }
    let python_path = variable(environment, "PYTHONPATH").unwrap_or_default();
    if !python_path.split(':').any(|entry| Path::new(entry) == activation) {
        return Some("PYTHONPATH was replaced before the process was started".into());
    }
    None
}

fn is_python(arguments: &[String]) -> bool {
    let program = arguments.first().and_then(|program| program.rsplit('/').next());
    program.is_some_and(|program| program.starts_with("python"))
}

/// The first of Python's own flags that makes it ignore `PYTHONPATH` or `sitecustomize`.
fn isolating_flag(arguments: &[String]) -> Option<char> {
    let mut arguments = arguments.iter();
    while let Some(flags) = arguments.next().and_then(|argument| argument.strip_prefix('-')) {
        if flags.starts_with('-') {
            continue;
        }
        for (at, flag) in flags.char_indices() {
            match flag {
                'I' | 'E' | 'S' => return Some(flag),
                // The program and its arguments follow.
                'c' | 'm' => return None,
                // The rest, or the next argument, is the flag's value.
                'W' | 'X' => {
                    if at + 1 == flags.len() {
                        arguments.next();
                    }
                    break;
                }
                _ => {}
            }
        }
    }
    None
}

fn is_launcher(arguments: &[String]) -> bool {
    arguments.iter().take(8).any(|argument| {
        let name = argument.rsplit('/').next().unwrap_or_default();
        LAUNCHERS.contains(&name)
    })
}

fn variable<'a>(environment: &'a [String], name: &str) -> Option<&'a str> {
    environment.iter().find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='))
}

/// The rank that a process is to become. Launchers that set none, such as Lightning's, number the ranks
/// of a node, which is the rank if there is one node.
fn rank_of(environment: &[String]) -> Option<u32> {
    let number = |name: &str| variable(environment, name)?.parse().ok();
    let is_first_node = || number("NODE_RANK") == Some(0);
    number("RANK").or_else(|| number("LOCAL_RANK").filter(|_| is_first_node()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn is_lost(arguments: &str, environment: &str) -> bool {
        lost(&words(arguments), &words(environment), Some(Path::new("/p/a"))).is_some()
    }

    #[test]
    fn rank_is_that_of_the_node_if_the_launcher_sets_no_other() {
        for (environment, rank) in [
            ("RANK=5 LOCAL_RANK=1", Some(5)),
            ("NODE_RANK=0 LOCAL_RANK=1", Some(1)),
            ("NODE_RANK=2 LOCAL_RANK=1", None),
            ("LOCAL_RANK=1", None),
        ] {
            assert_eq!(rank_of(&words(environment)), rank, "{environment}");
        }
    }

    #[test]
    fn missing_capture_is_detected() {
        let whole = "DDP_DOCTOR_JOB=j PYTHONPATH=/p/a:/p";
        assert!(!is_lost("/usr/bin/python3 train.py -I", whole));
        assert!(!is_lost("python -c pass -E", whole));
        assert!(!is_lost("python -W ignore -X dev train.py", whole));
        assert!(!is_lost("python -m torch.distributed.run -S", whole));
        assert!(is_lost("python -I train.py", whole));
        assert!(is_lost("python3.12 -uIs train.py", whole));
        assert!(is_lost("python -W ignore -E train.py", whole));
        assert!(is_lost("python train.py", "PATH=/bin"));
        assert!(is_lost("python train.py", "DDP_DOCTOR_JOB=j PYTHONPATH=/p/other"));
        assert!(!is_lost("python -I train.py", "DDP_DOCTOR=0"));
        assert!(!is_lost("./trainer", "PATH=/bin"));
        assert!(!is_lost("python train.py", ""), "unreadable environment");
    }

    fn entry(parent: u32, start_ticks: u64) -> ProcessEntry {
        ProcessEntry {
            start_ticks,
            inode: 0,
            parent,
            is_below: true,
            first_seen: Instant::now(),
            checks: 0,
            is_reported: false,
            rank: None,
        }
    }

    #[test]
    fn later_process_with_the_pid_of_a_parent_is_no_ancestor() {
        let mut following = Descendants::new(10, None);
        for (pid, parent, start_ticks) in [(10, 1, 5), (13, 12, 6), (12, 13, 9), (14, 12, 9)] {
            following.known.insert(pid, entry(parent, start_ticks));
        }
        let ancestors = |pid: u32| {
            let seen = std::cell::RefCell::new(Vec::new());
            following.descends_from(pid, |above, _| {
                seen.borrow_mut().push(above);
                false
            });
            seen.into_inner()
        };
        assert_eq!((ancestors(14), ancestors(12), ancestors(13)), (vec![12, 13], vec![13], vec![]));
        // All of one tick: a cycle without an end.
        for (pid, parent) in [(12, 13), (13, 12), (14, 12)] {
            following.known.insert(pid, entry(parent, 5));
        }
        assert!(!following.descends_from(14, |_, _| false));
    }

    #[test]
    fn process_with_a_reused_pid_is_examined_anew() {
        let own = std::process::id();
        let mut following = Descendants::new(own, None);
        for is_below in [true, false] {
            following.known.insert(own, ProcessEntry { is_below, ..entry(1, 1) });
            following.scan(Instant::now());
            let known = &following.known[&own];
            assert_eq!(known.start_ticks, Stat::read(own).unwrap().start_ticks);
            assert!(known.is_below);
        }
    }

    #[test]
    fn descendants_are_found_and_remembered_as_orphans() {
        let mut child =
            Command::new("sh").args(["-c", "sleep 30 & sleep 30 & wait"]).spawn().unwrap();
        let mut following = Descendants::new(child.id(), None);
        let started = Instant::now();
        while below(child.id()).len() < 2 {
            assert!(started.elapsed() < Duration::from_secs(20));
        }
        let found = below(child.id());
        following.scan(Instant::now());
        assert_eq!(following.remembered().len(), 2);
        child.kill().unwrap();
        child.wait().unwrap();
        following.scan(Instant::now());
        assert_eq!(following.remembered(), found, "orphans are remembered");
        for (pid, start) in found {
            assert!(proc::is_alive(pid, start));
            ddp_doctor_host::processes::PidFd::open(pid).unwrap().signal(libc::SIGKILL).unwrap();
        }
    }
}
