//! Jobs on several hosts, which are network namespaces: the nodes share a coordinator, and nothing is
//! configured but the token.
//!
//! * `launch`: `run` on each host.
//! * `elastic`: nodes that join and leave an elastic `torchrun`.
//! * `failures`: hosts, networks and coordinators that fail, and peers that flood.
//! * `network`: slow networks, and clocks, names and interfaces that differ.
//! * `firewall`: firewalls that drop packets while a job runs.
//! * `check`: `ddp-doctor check` before a job.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use ddp_doctor_proto::report::{Effect, Finding, Report, Role};

use crate::support::compiled_programs::{clock, sum};
use crate::support::hosts::{Hosts, Process};
use crate::support::process::eventually;
use crate::support::report::{assert_hang, hosts_of, report_in, reports_in};

mod check;
mod elastic;
mod failures;
mod firewall;
mod launch;
mod network;

const TOKEN: &str = "the-token-of-these-tests";
const OTHER_TOKEN: &str = "another-token-than-that";
/// Port of the master, and of the coordinator of its launch.
const MASTER: u16 = 29500;
const COORDINATOR: u16 = 19500;
/// Port of the master of a launch without ddp-doctor beside it.
const OTHER_MASTER: u16 = 29501;

/// A program of two hosts, one rank each.
struct Job {
    hosts: Hosts,
    /// Number of ranks, one on each host.
    size: u32,
    /// Address of rank 0.
    master: &'static str,
    arguments: Vec<String>,
    /// A host whose clock is ahead by this many seconds.
    ahead: Option<(u32, i64)>,
    /// Whether the ranks make further calls until [`Job::let_go`].
    is_held: bool,
}

impl Job {
    /// Sums for this many steps.
    fn healthy(hosts: Hosts, steps: u32) -> Self {
        Self {
            hosts,
            size: 2,
            master: "host-0",
            arguments: vec![steps.to_string()],
            ahead: None,
            is_held: false,
        }
    }

    /// Sums for this many steps, the second half after [`Job::let_go`].
    fn held(hosts: Hosts, steps: u32) -> Self {
        let mut job = Self::healthy(hosts, steps);
        job.is_held = true;
        job
    }

    fn let_go(&self) {
        fs::write(self.gate(), "").unwrap();
    }

    /// The file that the ranks of a held job wait for.
    fn gate(&self) -> PathBuf {
        self.hosts.dir(0).join("go")
    }

    /// Hangs at a step.
    fn hanging(hosts: Hosts, step: u32) -> Self {
        let mut job = Self::healthy(hosts, step + 1);
        job.arguments.push(step.to_string());
        job
    }

    fn rank(&self, command: &mut Command, rank: u32) {
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", self.size.to_string())
            .env("MASTER_ADDR", self.master)
            .env("MASTER_PORT", MASTER.to_string())
            // Nothing listens there: variables for proxies have no effect.
            .env("http_proxy", "http://127.0.0.1:9")
            .env("https_proxy", "http://127.0.0.1:9")
            .env("ALL_PROXY", "http://127.0.0.1:9");
        if self.is_held {
            command.env("SUM_HOLD", self.gate());
        }
    }

    /// Starts a rank under `run` on the host of the same number.
    fn run(&self, rank: u32, token: Option<&str>, options: &[&str]) -> Process {
        let mut command = self.hosts.program(rank);
        self.rank(&mut command, rank);
        command.envs(token.map(|token| ("DDP_DOCTOR_TOKEN", token)));
        if let Some((_, seconds)) = self.ahead.filter(|&(host, _)| host == rank) {
            command.env("LD_PRELOAD", clock());
            command.env("CLOCK_AHEAD", seconds.to_string());
        }
        let files = self.hosts.dir(rank).join("sys");
        if files.exists() {
            command.env("DDP_DOCTOR_SYSFS", files);
        }
        command.args(["run", "--report", "report.json"]);
        command.args(options).args(["--", sum()]).args(&self.arguments);
        self.hosts.start(rank, "run", command)
    }

    /// Waits for the ranks. Panics unless each printed and exited as in a run without ddp-doctor.
    #[track_caller]
    fn assert_same_result(&self, ranks: &mut [Process; 2]) {
        let mut alone = [0, 1].map(|rank| {
            let mut command = self.hosts.command(rank, sum());
            self.rank(&mut command, rank);
            command
                .env("MASTER_PORT", OTHER_MASTER.to_string())
                .env("SUM_PAUSE_MS", "0")
                .env("DDP_DOCTOR", "0")
                .args(&self.arguments);
            self.hosts.start(rank, "alone", command)
        });
        for (rank, alone) in ranks.iter_mut().zip(&mut alone) {
            let (expected, status) = (alone.end(), rank.end());
            assert!(alone.stdout().starts_with("rank "), "{}", alone.stderr());
            assert_eq!((status, rank.stdout()), (expected, alone.stdout()), "{}", rank.stderr());
        }
    }

    fn report(&self, host: u32) -> Option<Report> {
        report_in(&self.hosts.dir(host).join("report.json"))
    }

    #[track_caller]
    fn until(&self, host: u32, is_so: impl Fn(&Report) -> bool) -> Report {
        eventually("the report is as expected", || {
            self.report(host).is_some_and(|report| is_so(&report))
        });
        self.report(host).unwrap()
    }
}

/// Options that end a job that hangs.
const KILL: [&str; 4] = ["--on-hang", "kill", "--kill-after", "1"];

/// Panics unless at least one of two nodes was killed because of its hang. The ranks of the other may
/// have failed before, because their peers were gone.
#[track_caller]
fn assert_killed(statuses: [Option<i32>; 2], runs: &[Process]) {
    let text = || runs.iter().map(Process::stderr).collect::<String>();
    assert!(statuses.contains(&Some(75)), "{statuses:?}: {}", text());
    assert!(!statuses.contains(&Some(0)), "{statuses:?}: {}", text());
}

/// Waits until the rank of a node has made some steps.
fn until_it_computes(run: &Process) {
    eventually("the rank computes", || run.stdout().contains("computes"));
}

/// Panics if a finding names a cause that affects the job.
#[track_caller]
fn assert_blames_no_rank(report: &Report) {
    let blames = |it: &&Finding| it.role == Role::Initiating && it.effect != Effect::None;
    let blaming: Vec<&Finding> = report.findings.iter().filter(blames).collect();
    assert!(blaming.is_empty(), "{blaming:#?}");
}

fn codes(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|it| it.code.as_str()).collect()
}

/// Lines of standard error that are `ddp-doctor`'s own, without the diagnosis.
fn notices(process: &Process) -> Vec<String> {
    let text = process.stderr();
    let lines = text.lines().filter(|line| line.starts_with("ddp-doctor: "));
    lines.map(str::to_owned).collect()
}

/// A coordinator of its own on a host.
fn coordinator(hosts: &Hosts, host: u32) -> Process {
    let mut command = hosts.program(host);
    command
        .env("DDP_DOCTOR_TOKEN", TOKEN)
        .args(["coordinator", "--listen", "0.0.0.0:7077"])
        .args(["--report-dir", "reports"]);
    let coordinator = hosts.start(host, "coordinator", command);
    eventually("the coordinator listens", || coordinator.stdout().contains(":7077"));
    coordinator
}

fn linked(job: &Job, rank: u32, coordinator: &str, token: &str) -> Process {
    let mut command = job.hosts.command(rank, sum());
    job.rank(&mut command, rank);
    command
        .env("DDP_DOCTOR_COORDINATOR", coordinator)
        .env("DDP_DOCTOR_JOB", "linked")
        .env("DDP_DOCTOR_TOKEN", token)
        .args(&job.arguments);
    job.hosts.start(rank, "rank", command)
}

/// The reports of a coordinator of its own.
fn reports_on(hosts: &Hosts, host: u32) -> Vec<Report> {
    reports_in(&hosts.dir(host).join("reports"))
}
