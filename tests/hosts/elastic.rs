//! An elastic `torchrun --nnodes 1:2`: nodes that join and leave are attempts of one job.

use std::process::Command;

use ddp_doctor_proto::report::{Report, Severity, Verdict};

use super::launch::torchrun_command;
use super::{assert_hang, assert_killed, hosts_of, until_it_computes};
use crate::support::hosts::{Hosts, Process};
use crate::support::pytorch_jobs::{jobs, venv};
use crate::support::report::{leading, report_in};

/// A program of one rank per node, under `run` and an elastic torchrun.
struct Elastic {
    hosts: Hosts,
    program: &'static str,
    /// Argument of the program.
    scenario: &'static str,
}

impl Elastic {
    /// `None`: PyTorch or hosts are not available here, which is printed.
    fn new(program: &'static str, scenario: &'static str) -> Option<Self> {
        venv()?;
        let hosts = Hosts::new(2)?;
        Some(Self { hosts, program, scenario })
    }

    fn start(&self, host: u32) -> Process {
        let program = jobs().join(self.program);
        let mut command: Command =
            torchrun_command(&self.hosts, venv().unwrap(), host, "1:2", &program);
        command
            .arg(self.scenario)
            .env("PET_RDZV_BACKEND", "c10d")
            .env("PET_RDZV_ENDPOINT", "host-0:29500")
            .env("PET_RDZV_ID", "elastic")
            .env("PET_RDZV_CONF", "last_call_timeout=3")
            .env("PET_MAX_RESTARTS", "3")
            .env("PET_MONITOR_INTERVAL", "0.1")
            // With a shared store, a node that joins later waits for an address that is not published.
            .env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
        self.hosts.start(host, "run", command)
    }

    fn report(&self, host: u32) -> Option<Report> {
        report_in(&self.hosts.dir(host).join("report.json"))
    }

    /// Starts the second node once the first one computes alone; returns both.
    fn join_later(&self) -> [Process; 2] {
        let first = self.start(0);
        until_it_computes(&first);
        [first, self.start(1)]
    }
}

#[test]
#[ignore = "live: part of make test-all"]
fn hang_of_an_elastic_torchrun_names_both_hosts() {
    let program = "../../agent/python/examples/uneven_batches.py";
    let Some(job) = Elastic::new(program, "") else {
        return;
    };
    let mut runs = [0, 1].map(|host| job.start(host));
    let statuses = runs.each_mut().map(Process::end);
    assert_killed(statuses, &runs);
    for host in [0, 1] {
        assert_hang(&job.report(host).unwrap());
        let text = runs[host as usize].stderr();
        for line in ["rank 0 on host-0", "rank 1 on host-1"] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}

#[test]
#[ignore = "live: part of make test-all"]
fn node_that_joins_later_is_silent() {
    let Some(job) = Elastic::new("../support/programs/elastic.py", "joins") else {
        return;
    };
    let mut runs = job.join_later();
    let statuses = runs.each_mut().map(Process::end);
    assert_eq!(statuses, [Some(0), Some(0)], "{}", runs[0].stderr());
    for (host, run) in (0..).zip(&runs) {
        let report = job.report(host).unwrap();
        assert_eq!(report.verdict, Verdict::Healthy, "{report:#?}");
        assert!(report.findings.is_empty(), "{report:#?}");
        assert_eq!(report.job.nodes, 2);
        assert_eq!(hosts_of(&report), ["host-0", "host-1"]);
        let text = run.stderr();
        assert!(!text.contains("[DD"), "{text}");
        assert!(!text.contains("another job"), "{text}");
    }
}

#[test]
#[ignore = "live: part of make test-all"]
fn hang_after_a_node_joined_is_of_the_next_attempt() {
    let Some(job) = Elastic::new("../support/programs/elastic.py", "hangs") else {
        return;
    };
    let mut runs = job.join_later();
    let statuses = runs.each_mut().map(Process::end);
    assert_killed(statuses, &runs);
    for host in [0, 1] {
        let report = job.report(host).unwrap();
        let finding = leading(&report);
        assert_eq!(
            (finding.code.as_str(), finding.attempt, report.verdict),
            ("DD102", 1, Verdict::Hang),
            "{report:#?}"
        );
        assert_eq!(
            (&finding.ranks.root[..], &finding.ranks.victims[..]),
            (&[1][..], &[0][..]),
            "{report:#?}"
        );
        assert!(report.findings.iter().all(|it| it.attempt == 1));
        assert_eq!(hosts_of(&report), ["host-0", "host-1"]);
    }
}

#[test]
#[ignore = "live: part of make test-all"]
fn job_continues_after_a_node_has_left() {
    let Some(job) = Elastic::new("../support/programs/elastic.py", "leaves") else {
        return;
    };
    let [mut stays, mut leaves] = [0, 1].map(|host| job.start(host));
    until_it_computes(&stays);
    until_it_computes(&leaves);
    leaves.signal("-TERM");
    leaves.end();
    assert_eq!(stays.end(), Some(0), "{}", stays.stderr());
    let report = job.report(0).unwrap();
    assert_eq!(report.verdict, Verdict::Healthy, "{report:#?}");
    assert_eq!(report.job.nodes, 2);
    for finding in &report.findings {
        assert_eq!(finding.attempt, 0, "{report:#?}");
        assert!(finding.severity <= Severity::Warning, "{report:#?}");
    }
}
