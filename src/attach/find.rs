//! Finds the ranks on this host, and which of them are of one job.
//!
//! A rank is a process that has loaded PyTorch or NCCL and whose environment gives it a rank. Its helpers, such
//! as workers of data loaders, inherit that environment: a process below a rank with the same rank is one. Ranks that
//! have joined a process group are found without such an environment as well ([`spawned`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use ddp_doctor_diagnosis::model::MAX_WORLD;
use ddp_doctor_host::proc;
use ddp_doctor_host::proc::Stat;
use ddp_doctor_host::sys;
use ddp_doctor_proto::report::Exit;
use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::outside::{self, Question};
use spawned::Stated;

pub mod spawned;

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
#[derive(Clone, Debug, Default)]
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
    /// Name of the job, the same on all hosts. Another user can give a job the same name.
    pub id: String,
    /// The user of all its processes.
    pub user: u32,
    /// Its ranks, ascending.
    pub ranks: Vec<RankProcess>,
    /// Nothing numbers its ranks but the order in which their processes started.
    pub by_order: bool,
}

/// A process that may be a rank.
#[derive(Debug)]
pub struct Candidate {
    pid: u32,
    user: u32,
    start_ticks: u64,
    parent: u32,
    environment: Environment,
    /// Its rank by its environment.
    number: Option<u32>,
    /// It has threads of a process group.
    has_joined: bool,
}

/// What a process that may be a rank states about itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CandidateFacts {
    environment: Environment,
    has_joined: bool,
}

/// A rank, and what its frames state about its number; `None`: its environment numbers it.
#[derive(Debug)]
pub struct Found {
    process: RankProcess,
    user: u32,
    stated: Option<Stated>,
}

impl RankedJob {
    /// Name of the job in its evidence. That of another user's job ends in the user, so that neither a coordinator nor
    /// `analyze` joins the evidence of jobs of several users.
    #[must_use]
    pub fn evidence_name(&self) -> String {
        if self.user == sys::user_id() {
            self.id.clone()
        } else {
            format!("{}-of-user-{}", self.id, self.user)
        }
    }

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

/// The jobs on this host whose processes may be read, by name. `pids`: only jobs with one of these processes, or with a
/// rank above or below one of them, such as their launcher.
#[must_use]
pub fn jobs(pids: &[u32]) -> Vec<RankedJob> {
    let stats = stats();
    let is_named =
        |pid: u32| pids.contains(&pid) || ancestors(pid, &stats).any(|it| pids.contains(&it));
    let named: Vec<u32> = stats.keys().copied().filter(|&pid| is_named(pid)).collect();
    // A job is of one user: the processes of others are not read if it is known which one.
    let users: BTreeSet<u32> = named.iter().filter_map(|&pid| proc::owner(pid)).collect();
    let mut found = jobs_where(&stats, |user| pids.is_empty() || users.contains(&user));
    let is_above = |rank: u32| pids.iter().any(|&pid| ancestors(pid, &stats).any(|it| it == rank));
    let is_wanted =
        |job: &RankedJob| job.ranks.iter().any(|it| is_named(it.pid) || is_above(it.pid));
    found.retain(|job| pids.is_empty() || is_wanted(job));
    found
}

/// The jobs of a user on this host, by name.
#[must_use]
pub fn jobs_of(user: u32) -> Vec<RankedJob> {
    jobs_where(&stats(), |it| it == user)
}

/// The state of all processes.
fn stats() -> HashMap<u32, Stat> {
    let all = proc::pids().unwrap_or_default();
    all.into_iter().filter_map(|pid| Some((pid, Stat::read(pid).ok()?))).collect()
}

fn jobs_where(stats: &HashMap<u32, Stat>, is_user: impl Fn(u32) -> bool) -> Vec<RankedJob> {
    // Before the search: afterwards, a process may have ended, or its id be another one's.
    let users: BTreeMap<u32, u32> = stats
        .keys()
        .copied()
        .filter(|&pid| may_be_read(pid))
        .filter_map(|pid| Some((pid, proc::owner(pid)?)))
        .filter(|(_, user)| is_user(*user))
        .collect();
    let is_same = |pid: u32| {
        let before = stats.get(&pid).map(|it| it.start_ticks);
        let now = Stat::read(pid).ok().map(|it| it.start_ticks);
        now == before && proc::owner(pid) == users.get(&pid).copied()
    };
    let facts =
        answers(&users.keys().copied().collect::<Vec<u32>>(), Question::Rank, candidate_facts);
    let readable = facts.into_iter().filter_map(|(pid, facts): (u32, Option<CandidateFacts>)| {
        let (facts, stat) = (facts?, stats.get(&pid)?);
        let number = numbers(&facts.environment).and_then(|(rank, _)| rank);
        Some(Candidate {
            pid,
            user: *users.get(&pid)?,
            start_ticks: stat.start_ticks,
            parent: stat.parent,
            number,
            environment: facts.environment,
            has_joined: facts.has_joined,
        })
    });
    let mut candidates: Vec<Candidate> = readable.collect();
    candidates.extend(starting(&candidates, &users, stats));
    let unnumbered = spawned::unnumbered(&candidates, stats);
    let stated = answers(&unnumbered, Question::Frames, Stated::read).into_iter().collect();
    let candidates = candidates.into_iter().filter(|it| is_same(it.pid)).collect();
    into_jobs(spawned::ranks(candidates, &stated, stats), stats)
}

/// Ranks that have not loaded PyTorch yet. Without them, such a rank would be taken for one that has ended. Such a process
/// runs the program of another rank, was started by the same launcher for the same job, and states a rank that no other
/// process of the job has.
fn starting(
    known: &[Candidate],
    users: &BTreeMap<u32, u32>,
    stats: &HashMap<u32, Stat>,
) -> Vec<Candidate> {
    let key_of = |it: &Candidate| key(&it.process(it.number), it.user);
    let mut taken: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    let mut siblings: BTreeMap<u32, &Candidate> = BTreeMap::new();
    for (it, number) in known.iter().filter_map(|it| Some((it, it.number?))) {
        taken.entry(key_of(it)).or_default().insert(number);
        siblings.entry(it.parent).or_insert(it);
    }
    let is_known: BTreeSet<u32> = known.iter().map(|it| it.pid).collect();
    let is_of_launcher = |pid: u32| {
        let stat = stats.get(&pid).filter(|it| !matches!(it.letter, b'Z' | b'X'))?;
        let sibling = siblings.get(&stat.parent)?;
        let program = proc::program(pid)?;
        (!is_known.contains(&pid) && proc::program(sibling.pid)? == program).then_some(())
    };
    let pids: Vec<u32> =
        users.keys().copied().filter(|&pid| is_of_launcher(pid).is_some()).collect();
    let starting = answers(&pids, Question::Environment, Environment::read).into_iter();
    let candidates = starting.filter_map(|(pid, environment)| {
        let (stat, user) = (stats.get(&pid)?, *users.get(&pid)?);
        let (number, names) = numbers(&environment)?;
        let parent = stat.parent;
        let sibling = siblings.get(&parent)?;
        let size = |it: &Environment| it.number(names[1]);
        let is_alike = numbers(&sibling.environment)?.1 == names
            && size(&environment) == size(&sibling.environment)
            && number? < size(&environment)?;
        let start_ticks = stat.start_ticks;
        let it =
            Candidate { pid, user, start_ticks, parent, environment, number, has_joined: false };
        let is_missing = !taken.get(&key_of(&it))?.contains(&number?);
        (is_alike && is_missing).then_some(it)
    });
    candidates.collect()
}

/// The jobs of these ranks, each with its user.
fn into_jobs(ranks: Vec<Found>, stats: &HashMap<u32, Stat>) -> Vec<RankedJob> {
    let number = |it: &Found| it.stated.is_none().then_some(it.process.rank);
    let keys: BTreeMap<u32, (Option<u32>, String)> =
        ranks.iter().map(|it| (it.process.pid, (number(it), key(&it.process, it.user)))).collect();
    let is_helper = |it: &RankProcess| {
        let own = keys.get(&it.pid);
        ancestors(it.pid, stats).any(|pid| keys.get(&pid).is_some_and(|it| Some(it) == own))
    };
    let mut jobs: BTreeMap<&str, Vec<Found>> = BTreeMap::new();
    for it in ranks {
        if let Some((_, key)) = keys.get(&it.process.pid).filter(|_| !is_helper(&it.process)) {
            jobs.entry(key).or_default().push(it);
        }
    }
    let jobs = jobs.into_values().flat_map(|of_key| {
        let user = of_key.first().map_or(0, |it| it.user);
        let (mut numbered, mut others) = (Vec::new(), Vec::new());
        for Found { process, stated, .. } in of_key {
            match stated {
                None => numbered.push(process),
                Some(stated) => others.push((process, stated)),
            }
        }
        let name = |it: &RankProcess| name(&it.environment, it.parent);
        let others = if others.is_empty() { Vec::new() } else { spawned::jobs(others, user, name) };
        let numbered = if numbered.is_empty() { Vec::new() } else { split(numbered, user) };
        numbered.into_iter().chain(others)
    });
    let mut found: Vec<RankedJob> = jobs.collect();
    found.sort_by(|a, b| a.id.cmp(&b.id));
    found
}

/// What processes answer to a question: those of this user by `read`, the others by the child process. Those that do
/// not answer in time are left out.
fn answers<T: for<'a> Deserialize<'a>>(
    pids: &[u32],
    question: Question,
    read: impl Fn(u32) -> T,
) -> Vec<(u32, T)> {
    let (own, others): (Vec<u32>, Vec<u32>) = pids.iter().partition(|&&pid| proc::is_own(pid));
    let mut found: Vec<(u32, T)> = own.into_iter().map(|pid| (pid, read(pid))).collect();
    let questions: Vec<(u32, Question)> = others.iter().map(|&pid| (pid, question)).collect();
    let answers = others.into_iter().zip(outside::ask(&questions, MAX_SEARCH));
    found.extend(
        answers.filter_map(|(pid, answer)| Some((pid, serde_json::from_slice(&answer?).ok()?))),
    );
    found
}

/// What a process states about itself that may be a rank, by the libraries that it has loaded.
pub(super) fn candidate_facts(pid: u32) -> Option<CandidateFacts> {
    let read = || CandidateFacts {
        environment: Environment::read(pid),
        has_joined: spawned::has_joined(pid),
    };
    proc::maps_library(pid, &LIBRARIES).then(read)
}

/// The processes that the launcher of these ranks has started, and that have ended and were not waited for, with the end
/// that all of them had. The environment of such a process is gone: which rank it was is unknown.
pub(super) fn zombies(ranks: &[RankProcess]) -> Option<(Vec<u32>, Exit)> {
    let launcher = ranks.first()?.parent;
    if launcher <= 1 || ranks.iter().any(|it| it.parent != launcher) {
        return None;
    }
    let name = proc::name(ranks.first()?.pid);
    let ended = |stat: &Stat| matches!(stat.letter, b'Z' | b'X') && stat.parent == launcher;
    let mut found: Vec<(u32, Exit)> = stats()
        .into_iter()
        .filter(|(pid, stat)| ended(stat) && proc::name(*pid) == name && proc::is_own(*pid))
        .map(|(pid, stat)| (pid, sys::exit_of(stat.exit_code)))
        .collect();
    found.sort_unstable_by_key(|(pid, _)| *pid);
    let exit = found.first()?.1;
    let is_one = found.iter().all(|(_, it)| *it == exit);
    is_one.then(|| (found.into_iter().map(|(pid, _)| pid).collect(), exit))
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

/// The rank that variables state, which may be one that no job has, and the variables of that launcher.
fn numbers(environment: &Environment) -> Option<(Option<u32>, [&'static str; 4])> {
    let names = LAUNCHERS.into_iter().find(|[rank, ..]| environment.number(rank).is_some())?;
    Some((environment.number(names[0]).filter(|&it| it < MAX_WORLD), names))
}

impl Candidate {
    /// The rank with this number; `None`: its environment does not number it.
    fn process(&self, number: Option<u32>) -> RankProcess {
        let environment = &self.environment;
        let numbers = numbers(environment).filter(|_| number.is_some());
        let variable = |at: usize| numbers.and_then(|(_, names)| environment.number(names[at]));
        let world_size = || environment.number(LAUNCHERS[0][1]).filter(|_| self.number.is_none());
        RankProcess {
            pid: self.pid,
            start_ticks: self.start_ticks,
            parent: self.parent,
            rank: number.unwrap_or_default(),
            world_size: variable(1).or_else(world_size).filter(|&it| it <= MAX_WORLD),
            local_rank: variable(2),
            local_world_size: variable(3),
            environment: environment.clone(),
        }
    }
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

/// Whether the ranks of a process meet at a loopback address.
fn meets_at_loopback(process: &RankProcess) -> bool {
    let meets = process.environment.get("MASTER_ADDR").unwrap_or_default();
    let is_loopback = meets.parse::<IpAddr>().is_ok_and(|it| it.to_canonical().is_loopback());
    is_loopback || meets == "localhost"
}

/// The network namespace of a process whose ranks meet at a loopback address, or at an unknown one: they cannot be in
/// another namespace.
fn network_of(process: &RankProcess) -> Option<String> {
    if process.environment.get("MASTER_ADDR").is_some() && !meets_at_loopback(process) {
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
        RankedJob { id, user, ranks, by_order: false }
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
            local_world_size: environment.number("LOCAL_WORLD_SIZE"),
            environment,
            ..RankProcess::default()
        }
    }

    fn candidate(pid: u32, parent: u32, environment: Environment) -> Candidate {
        let number = numbers(&environment).and_then(|(number, _)| number);
        Candidate { pid, user: 7, start_ticks: 1, parent, environment, number, has_joined: false }
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
        let found = |process, user| Found { process, user, stated: None };
        let ranks = [(rank(own, "0"), 0), (rank(2, "1"), 0), (rank(ended, "2"), 64_125)]
            .map(|(process, user)| found(process, user))
            .into();
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
            let environment = with_program(&variables, Environment::read);
            let number = numbers(&environment).and_then(|(number, _)| number);
            let candidate = candidate(7, 1, environment);
            let found = number.map(|_| candidate.process(number).world_size);
            assert_eq!(found, known);
        }
    }

    #[test]
    fn rank_that_has_not_loaded_pytorch_is_starting() {
        let launcher = std::process::id();
        let started = |program: &str, rank: &str, size: &str, port: &str| {
            let mut command = std::process::Command::new(program);
            command.env("RANK", rank).env("WORLD_SIZE", size).env("MASTER_PORT", port);
            // `cat` waits for its input.
            command.args((program == "sleep").then_some("60"));
            command.stdin(std::process::Stdio::piped()).spawn().unwrap()
        };
        // One that runs, one that is starting, a helper of the first, another program, another world, and another job.
        let mut children = [
            ("sleep", "0", "2", "29500"),
            ("sleep", "1", "2", "29500"),
            ("sleep", "0", "2", "29500"),
            ("cat", "1", "2", "29500"),
            ("sleep", "1", "4", "29500"),
            ("sleep", "1", "2", "29501"),
        ]
        .map(|(program, rank, size, port)| started(program, rank, size, port));
        let pids = children.each_ref().map(std::process::Child::id);
        let environment =
            [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "29500")].into_iter().collect();
        let user = sys::user_id();
        let known = [Candidate { user, ..candidate(pids[0], launcher, environment) }];
        let users = pids.into_iter().map(|pid| (pid, user)).collect();
        let found = starting(&known, &users, &stats());
        let numbers: Vec<_> = found.iter().map(|it| (it.pid, it.number)).collect();
        assert_eq!(numbers, [(pids[1], Some(1))]);
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
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
        let ranks = vec![rank(10, "0"), rank(12, "2")];
        let job = RankedJob { id: "j".into(), ranks, ..RankedJob::default() };
        assert!(job.is_local());
        assert_eq!((job.world_size(), job.elsewhere()), (Some(3), vec![1]));
    }
}
