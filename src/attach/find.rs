//! Finds the ranks on this host, and which of them are of one job.
//!
//! A rank is a process that has loaded PyTorch or NCCL and whose environment gives it a rank. Its helpers, such
//! as workers of data loaders, inherit that environment: a process below a rank with the same rank is one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use super::environment::Environment;
use super::outside::{self, Question};
use crate::diagnosis::model::MAX_WORLD;
use crate::host::proc;
use crate::host::proc::Stat;
use crate::host::sys;

/// Time limit for the processes of other users.
const MAX_SEARCH: Duration = Duration::from_secs(2);
/// Prefixes of the names of libraries that a rank has loaded.
const LIBRARIES: [&str; 3] = ["libtorch_cpu.", "libtorch.so", "libnccl.so"];
/// Variables with the rank, the number of ranks, the rank on the host and the number of ranks there, by launcher.
const LAUNCHERS: [[&str; 4]; 4] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"],
];

/// A rank on this host.
#[derive(Clone, Debug)]
pub struct RankProcess {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Its parent.
    pub parent: u32,
    /// Global rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: Option<u32>,
    /// Rank on this host.
    pub local_rank: Option<u32>,
    /// Number of ranks that the launcher started on this host.
    pub local_world_size: Option<u32>,
    /// Its variables.
    pub environment: Environment,
}

/// The ranks of one job on this host.
#[derive(Clone, Debug, Default)]
pub struct RankedJob {
    /// Name of the job, the same on all hosts.
    pub id: String,
    /// The user of all its processes.
    pub user: u32,
    /// Its ranks, ascending.
    pub ranks: Vec<RankProcess>,
}

impl RankedJob {
    /// Number of ranks of the whole job, if it is known.
    #[must_use]
    pub fn world_size(&self) -> Option<u32> {
        self.ranks.iter().filter_map(|it| it.world_size).max()
    }

    /// Ranks of the world that have no process on this host.
    #[must_use]
    pub fn elsewhere(&self) -> Vec<u32> {
        let here: BTreeSet<u32> = self.ranks.iter().map(|it| it.rank).collect();
        let all = 0..self.world_size().unwrap_or(0);
        all.filter(|rank| !here.contains(rank)).collect()
    }

    /// Whether the launcher started all ranks on this host.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let size = self.world_size();
        size.is_some() && self.ranks.iter().all(|it| it.local_world_size == size)
    }
}

/// The jobs on this host whose processes may be read, by name. `pids`: only jobs with one of these processes.
#[must_use]
pub fn jobs(pids: &[u32]) -> Vec<RankedJob> {
    // A job is of one user: the processes of others are not read if it is known which one.
    let users: BTreeSet<u32> = pids.iter().filter_map(|&pid| proc::owner(pid)).collect();
    let mut found = jobs_where(|user| pids.is_empty() || users.contains(&user));
    let is_wanted = |job: &RankedJob| job.ranks.iter().any(|it| pids.contains(&it.pid));
    found.retain(|job| pids.is_empty() || is_wanted(job));
    found
}

/// The jobs of a user on this host, by name.
#[must_use]
pub fn jobs_of(user: u32) -> Vec<RankedJob> {
    jobs_where(|it| it == user)
}

fn jobs_where(is_user: impl Fn(u32) -> bool) -> Vec<RankedJob> {
    let all = proc::all().unwrap_or_default();
    let stats: HashMap<u32, Stat> =
        all.iter().filter_map(|&pid| Some((pid, Stat::read(pid).ok()?))).collect();
    // Before the search: afterwards, a process may have ended, or its id be another one's.
    let users = all.into_iter().filter(|&pid| may_be_read(pid));
    let users = users.filter_map(|pid| Some((pid, proc::owner(pid)?)));
    let users: BTreeMap<u32, u32> = users.filter(|(_, user)| is_user(*user)).collect();
    let ranks = environments(&users.keys().copied().collect::<Vec<u32>>());
    let ranks = ranks.into_iter().filter(|(pid, _)| {
        let before = stats.get(pid).map(|it| it.start_ticks);
        let now = Stat::read(*pid).ok().map(|it| it.start_ticks);
        now == before && proc::owner(*pid) == users.get(pid).copied()
    });
    let ranks = ranks
        .filter_map(|(pid, it)| Some((rank_of(pid, stats.get(&pid)?, it)?, *users.get(&pid)?)));
    into_jobs(ranks.collect(), &stats)
}

/// The jobs of these ranks, each with its user.
fn into_jobs(ranks: Vec<(RankProcess, u32)>, stats: &HashMap<u32, Stat>) -> Vec<RankedJob> {
    let keys: BTreeMap<u32, (u32, String)> =
        ranks.iter().map(|(it, user)| (it.pid, (it.rank, key(it, *user)))).collect();
    let is_helper = |it: &RankProcess| {
        let own = keys.get(&it.pid);
        ancestors(it.pid, stats).any(|pid| keys.get(&pid).is_some_and(|it| Some(it) == own))
    };
    let mut jobs: BTreeMap<&str, (u32, Vec<RankProcess>)> = BTreeMap::new();
    for (it, user) in ranks {
        if let Some((_, key)) = keys.get(&it.pid).filter(|_| !is_helper(&it)) {
            jobs.entry(key).or_insert((user, Vec::new())).1.push(it);
        }
    }
    let jobs = jobs.into_values().flat_map(|(user, ranks)| split(ranks, user));
    let mut found: Vec<RankedJob> = jobs.collect();
    found.sort_by(|a, b| a.id.cmp(&b.id));
    found
}

/// The environments of those processes that may be ranks.
fn environments(pids: &[u32]) -> Vec<(u32, Environment)> {
    let (own, others): (Vec<u32>, Vec<u32>) = pids.iter().partition(|&&pid| proc::is_own(pid));
    let own = own.into_iter().filter_map(|pid| Some((pid, environment_of_rank(pid)?)));
    let mut found: Vec<(u32, Environment)> = own.collect();
    let questions: Vec<(u32, Question)> = others.iter().map(|&pid| (pid, Question::Rank)).collect();
    let answers = others.into_iter().zip(outside::ask(&questions, MAX_SEARCH));
    found.extend(answers.filter_map(|(pid, answer)| {
        let environment: Option<Environment> = serde_json::from_slice(&answer?).ok()?;
        Some((pid, environment?))
    }));
    found
}

/// The environment of a process that may be a rank, by the libraries that it has loaded.
pub(super) fn environment_of_rank(pid: u32) -> Option<Environment> {
    proc::maps_library(pid, &LIBRARIES).then(|| Environment::read(pid))
}

/// Whether this user may read a process: root reads those of all users.
fn may_be_read(pid: u32) -> bool {
    pid != std::process::id() && (sys::user_id() == 0 || proc::is_own(pid))
}

fn ancestors(pid: u32, stats: &HashMap<u32, Stat>) -> impl Iterator<Item = u32> {
    let parent = |pid: &u32| stats.get(pid).map(|stat| stat.parent).filter(|&it| it > 1);
    // Limited, since a reused pid could make the chain a cycle.
    std::iter::successors(parent(&pid), parent).take(64)
}

fn rank_of(pid: u32, stat: &Stat, environment: Environment) -> Option<RankProcess> {
    let [rank, size, local, local_size] =
        LAUNCHERS.into_iter().find(|[rank, ..]| environment.number(rank).is_some())?;
    Some(RankProcess {
        pid,
        start_ticks: stat.start_ticks,
        parent: stat.parent,
        rank: environment.number(rank).filter(|&it| it < MAX_WORLD)?,
        world_size: environment.number(size).filter(|&it| it <= MAX_WORLD),
        local_rank: environment.number(local),
        local_world_size: environment.number(local_size),
        environment,
    })
}

/// What distinguishes jobs: the user, where the ranks meet, and the ids of launcher and batch system. Without any of it,
/// the launcher's process.
fn key(process: &RankProcess, user: u32) -> String {
    const IDS: [&str; 7] = [
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "OMPI_MCA_ess_base_jobid",
        "PMIX_NAMESPACE",
    ];
    let ids = IDS.map(|name| process.environment.get(name).unwrap_or_default());
    let place = if ids.iter().all(|id| id.is_empty()) {
        process.parent.to_string()
    } else {
        ids.join("\n")
    };
    // Another user, or another container, can choose the same variables.
    let network = network_of(process).unwrap_or_default();
    format!("{user}\n{network}\n{place}")
}

/// The network namespace of a process whose ranks meet at a loopback address: they cannot be in another one.
fn network_of(process: &RankProcess) -> Option<String> {
    let meets = process.environment.get("MASTER_ADDR").unwrap_or_default();
    let is_loopback = meets.parse::<IpAddr>().is_ok_and(|it| it.to_canonical().is_loopback());
    if !is_loopback && !matches!(meets, "" | "localhost") {
        return None;
    }
    let network = fs::read_link(format!("/proc/{}/ns/net", process.pid)).ok()?;
    Some(network.to_string_lossy().into_owned())
}

/// Splits processes of a user that cannot be of one job: a rank that occurs twice is one of each launcher.
fn split(ranks: Vec<RankProcess>, user: u32) -> Vec<RankedJob> {
    let mut of_launcher: BTreeMap<u32, Vec<RankProcess>> = BTreeMap::new();
    let distinct: BTreeSet<u32> = ranks.iter().map(|it| it.rank).collect();
    let is_one = distinct.len() == ranks.len();
    for it in ranks {
        of_launcher.entry(if is_one { 0 } else { it.parent }).or_default().push(it);
    }
    let several = of_launcher.len() > 1;
    let jobs = of_launcher.into_iter().map(|(launcher, mut ranks)| {
        ranks.sort_by_key(|it| it.rank);
        let name = ranks.first().map(|it| name(&it.environment, it.parent)).unwrap_or_default();
        let id = if several { format!("{name}-{launcher}") } else { name };
        RankedJob { id, user, ranks }
    });
    jobs.collect()
}

/// Name of a job, the same on all its hosts.
fn name(environment: &Environment, launcher: u32) -> String {
    let slurm = environment.get("SLURM_JOB_ID").map(|job| match environment.get("SLURM_STEP_ID") {
        Some(step) => format!("slurm-{job}.{step}"),
        None => format!("slurm-{job}"),
    });
    let given = environment.get("DDP_DOCTOR_JOB").map(str::to_owned);
    let run = environment.get("TORCHELASTIC_RUN_ID").filter(|it| *it != "none").map(str::to_owned);
    let port = || environment.get("MASTER_PORT").map(|port| format!("job-{port}"));
    given.or(run).or(slurm).or_else(port).unwrap_or_else(|| format!("job-of-{launcher}"))
}

#[cfg(test)]
mod tests {
    use super::super::environment::tests::with_program;
    use super::*;

    fn process(pid: u32, parent: u32, variables: &[(&'static str, &'static str)]) -> RankProcess {
        let environment: Environment = variables.iter().copied().collect();
        RankProcess {
            pid,
            start_ticks: 1,
            parent,
            rank: environment.number("RANK").unwrap(),
            world_size: environment.number("WORLD_SIZE"),
            local_rank: None,
            local_world_size: environment.number("LOCAL_WORLD_SIZE"),
            environment,
        }
    }

    #[test]
    fn jobs_differ_by_where_their_ranks_meet() {
        let port = |port| process(7, 1, &[("RANK", "0"), ("MASTER_PORT", port)]);
        assert_ne!(key(&port("29500"), 7), key(&port("29501"), 7));
        assert_eq!(key(&port("29500"), 7), key(&port("29500"), 7));
        let alone = |parent| process(7, parent, &[("RANK", "0")]);
        assert_ne!(key(&alone(1), 7), key(&alone(2), 7));
    }

    #[test]
    fn loopback_addresses_differ_by_network_namespace() {
        let own = std::process::id();
        let network =
            |pid, address| network_of(&process(pid, 1, &[("RANK", "0"), ("MASTER_ADDR", address)]));
        let here = fs::read_link("/proc/self/ns/net").unwrap().to_string_lossy().into_owned();
        for address in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "localhost", ""] {
            assert_eq!(network(own, address).as_ref(), Some(&here), "{address}");
        }
        assert_eq!(network(own, "10.0.0.7"), None);
        let key_of = |pid| key(&process(pid, 1, &[("RANK", "0"), ("MASTER_ADDR", "::1")]), 7);
        // The namespace of a process that does not exist is unknown.
        assert_ne!(key_of(own), key_of(u32::MAX));
    }

    /// Also if one has ended since: its user is then still the one who started it.
    #[test]
    fn ranks_of_different_users_are_of_different_jobs() {
        let rank = |pid, rank| process(pid, 1, &[("RANK", rank), ("MASTER_PORT", "29500")]);
        let own = std::process::id();
        let ended = u32::MAX;
        let ranks = vec![(rank(own, "0"), 0), (rank(2, "1"), 0), (rank(ended, "2"), 64_125)];
        let jobs: Vec<(u32, usize)> =
            into_jobs(ranks, &HashMap::new()).iter().map(|it| (it.user, it.ranks.len())).collect();
        assert_eq!(jobs.len(), 2, "{jobs:?}");
        assert!(jobs.contains(&(0, 2)) && jobs.contains(&(64_125, 1)), "{jobs:?}");
    }

    #[test]
    fn numbers_that_no_job_has_are_unknown() {
        let size = u32::MAX.to_string();
        for (rank, known) in [("3", Some(None)), ("4294967295", None)] {
            let variables = [("RANK", rank), ("WORLD_SIZE", size.as_str())];
            let found = with_program(&variables, |pid| {
                rank_of(pid, &Stat::read(pid).unwrap(), Environment::read(pid))
            });
            assert_eq!(found.map(|it| it.world_size), known);
        }
    }

    #[test]
    fn repeated_ranks_are_of_two_launchers() {
        let rank =
            |pid, parent, rank| process(pid, parent, &[("RANK", rank), ("MASTER_PORT", "29500")]);
        let one = split(vec![rank(10, 1, "0"), rank(11, 1, "1")], 7);
        assert_eq!(one.len(), 1);
        assert_eq!(one[0].id, "job-29500");
        let two =
            split(vec![rank(10, 1, "0"), rank(11, 1, "1"), rank(12, 2, "0"), rank(13, 2, "1")], 7);
        let ids: Vec<&str> = two.iter().map(|it| it.id.as_str()).collect();
        assert_eq!(ids, ["job-29500-1", "job-29500-2"]);
    }

    #[test]
    fn missing_ranks_of_a_local_world_are_known() {
        let rank = |pid, rank| {
            process(pid, 1, &[("RANK", rank), ("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "3")])
        };
        let job = RankedJob { id: "j".into(), user: 0, ranks: vec![rank(10, "0"), rank(12, "2")] };
        assert!(job.is_local());
        assert_eq!((job.world_size(), job.elsewhere()), (Some(3), vec![1]));
    }
}
