//! `run` on each host: nothing is configured but the token.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use ddp_doctor_proto::report::{Finding, Verdict};

use super::{
    COORDINATOR, Job, KILL, OTHER_TOKEN, TOKEN, assert_hang, assert_killed, hosts_of, notices,
};
use crate::support::hosts::{Hosts, Process};
use crate::support::process::eventually;
use crate::support::pytorch_jobs::{jobs, variant, venv};
use crate::support::report::{leading, read_report};

/// A program under torchrun and `run` on one of two hosts.
pub(super) fn torchrun_command(
    hosts: &Hosts,
    venv: &Path,
    host: u32,
    nodes: &str,
    program: &Path,
) -> Command {
    let mut command = hosts.program(host);
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{}:{path}", venv.join("bin").display()))
        .env("OMP_NUM_THREADS", "1")
        .env("DDP_DOCTOR_TOKEN", TOKEN)
        .args(["run", "--report", "report.json"])
        .args(KILL)
        .args(["--", "torchrun", "--nnodes", nodes, "--nproc-per-node", "1"])
        .args(["--master-addr", "host-0", "--node-rank", &host.to_string()])
        .arg(program);
    command
}

/// Starts a program with torchrun on two hosts; returns the `run` of each.
fn torchrun(hosts: &Hosts, venv: &Path, program: &Path) -> [Process; 2] {
    [0, 1].map(|host| {
        let command = torchrun_command(hosts, venv, host, "2", program);
        hosts.start(host, "run", command)
    })
}

/// Records the traffic of a host to a file.
const CAPTURE: &str = "
import socket, sys
traffic = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
with open(sys.argv[1], 'wb', buffering=0) as file:
    print('ready', flush=True)
    while True:
        file.write(traffic.recv(65536))
";

#[test]
fn torchrun_hang_on_two_hosts_is_diagnosed_by_token_alone() {
    let (Some(venv), Some(hosts)) = (venv(), Hosts::new(2)) else {
        return;
    };
    let mut python = hosts.command(0, "python3");
    python.args(["-c", CAPTURE, "traffic"]);
    let capture = hosts.start(0, "capture", python);
    eventually("the traffic is recorded", || capture.stdout() == "ready\n");

    let program = jobs().join("../../agent/python/examples/uneven_batches.py");
    let mut runs = torchrun(&hosts, venv, &program);
    let statuses = runs.each_mut().map(Process::end);
    assert_killed(statuses, &runs);
    for (host, run) in (0..).zip(&runs) {
        let report = read_report(&hosts.dir(host).join("report.json"));
        assert_hang(&report);
        let text = run.stderr();
        for line in ["rank 0 on host-0", "rank 1 on host-1"] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    // The names of PyTorch's store show that the capture works.
    let traffic = fs::read(hosts.dir(0).join("traffic")).unwrap();
    let holds = |text: &str| traffic.windows(text.len()).any(|it| it == text.as_bytes());
    assert!(holds("default_pg") || holds("store_based_barrier") || holds("/0/"));
    for text in [TOKEN, "uneven_batches", "all_reduce", "ddpdoctor.v1"] {
        assert!(!holds(text), "{text}");
    }
}

/// A program that keeps the environment that its rank started with, and goes on as another program.
const KEEPS_ENVIRONMENT: &str = "\
import os, runpy, sys
with open('/proc/self/environ') as mine, open('environment', 'w') as kept:
    kept.write(mine.read())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
";

#[test]
#[ignore = "live: part of make test-all"]
fn token_file_of_torchrun_on_two_hosts_stays_out_of_the_ranks_environment() {
    let (Some(venv), Some(hosts)) = (venv(), Hosts::new(2)) else {
        return;
    };
    let job = jobs().join("../../agent/python/examples/uneven_batches.py");
    let mut runs = [0, 1].map(|host| {
        let [file, program] = ["token", "keep.py"].map(|name| hosts.dir(host).join(name));
        fs::write(&file, format!("{TOKEN}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&program, KEEPS_ENVIRONMENT).unwrap();
        let mut command = torchrun_command(&hosts, venv, host, "2", &program);
        command.env_remove("DDP_DOCTOR_TOKEN").env("DDP_DOCTOR_TOKEN_FILE", file).arg(&job);
        hosts.start(host, "run", command)
    });
    let statuses = runs.each_mut().map(Process::end);
    assert_killed(statuses, &runs);
    for (host, run) in (0..).zip(&runs) {
        let environment = fs::read_to_string(hosts.dir(host).join("environment")).unwrap();
        assert!(environment.contains("RANK="), "{environment}");
        assert!(!environment.contains(TOKEN) && !run.stderr().contains(TOKEN), "{environment}");
        assert_hang(&read_report(&hosts.dir(host).join("report.json")));
    }
}

#[test]
#[ignore = "live: part of make test-all"]
fn healthy_torchrun_on_two_hosts_is_silent() {
    let (Some(venv), Some(hosts)) = (venv(), Hosts::new(2)) else {
        return;
    };
    let mut runs = torchrun(&hosts, venv, &variant("healthy/op_mismatch.py"));
    let statuses = runs.each_mut().map(Process::end);
    assert_eq!(statuses, [Some(0), Some(0)], "{}", runs[0].stderr());
    for host in [0, 1] {
        let report = read_report(&hosts.dir(host).join("report.json"));
        assert_eq!(report.verdict, Verdict::Healthy, "{report:#?}");
        assert!(report.findings.is_empty(), "{report:#?}");
        assert_eq!((report.job.nodes, hosts_of(&report).len()), (2, 2));
    }
}

/// Rank 1, on the other host, raises in attempt 0, and leaves the others waiting in attempt 1.
#[test]
#[ignore = "two launches of torchrun, each restarted; make test-all runs it"]
fn restarts_on_two_hosts_are_attempts_of_one_job() {
    let (Some(venv), Some(hosts)) = (venv(), Hosts::new(2)) else {
        return;
    };
    let program = jobs().join("restarts/job.py");
    let mut runs = [0, 1].map(|host| {
        let mut command = torchrun_command(&hosts, venv, host, "2", &program);
        command
            .args(["hangs_after_a_restart", "faulty"])
            .env("PET_RDZV_BACKEND", "c10d")
            .env("PET_RDZV_ENDPOINT", "host-0:29500")
            .env("PET_RDZV_ID", "elastic")
            .env("PET_MAX_RESTARTS", "1")
            .env("PET_MONITOR_INTERVAL", "0.1")
            .env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
        hosts.start(host, "run", command)
    });
    let statuses = runs.each_mut().map(Process::end);
    assert_killed(statuses, &runs);
    for host in [0, 1] {
        let report = read_report(&hosts.dir(host).join("report.json"));
        let finding = leading(&report);
        assert_eq!((finding.code.as_str(), finding.attempt), ("DD102", 1), "{report:#?}");
        assert_eq!((report.verdict, report.job.nodes), (Verdict::Hang, 2));
        assert_eq!(finding.ranks.victims, [0]);
        let is_earlier = |it: &&Finding| it.code == "DD202" && it.attempt == 0;
        let earlier =
            report.findings.iter().find(is_earlier).unwrap_or_else(|| panic!("{report:#?}"));
        assert_eq!(earlier.ranks.root, [1], "{report:#?}");
    }
}

#[test]
fn order_of_starting_does_not_matter() {
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Job::hanging(hosts, 20);
    let mut second = job.run(1, Some(TOKEN), &KILL);
    // Longer than a connection attempt takes.
    std::thread::sleep(std::time::Duration::from_secs(6));
    assert!(second.still_runs(), "{}", second.stderr());
    let mut first = job.run(0, Some(TOKEN), &KILL);
    assert_killed([first.end(), second.end()], &[first, second]);
    for host in [0, 1] {
        assert_hang(&job.report(host).unwrap());
    }
}

#[test]
fn hosts_with_ipv6_only_are_diagnosed_together() {
    let Some(hosts) = Hosts::new(2) else { return };
    let mut job = Job::hanging(hosts, 20);
    job.master = "fd77::1";
    let mut runs = [0, 1].map(|rank| job.run(rank, Some(TOKEN), &KILL));
    assert_killed(runs.each_mut().map(Process::end), &runs);
    assert_hang(&job.report(1).unwrap());
}

#[test]
fn nodes_without_a_token_run_alone_and_name_the_fix() {
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Job::healthy(hosts, 100);
    let mut runs = [0, 1].map(|rank| job.run(rank, None, &[]));
    job.assert_same_result(&mut runs);
    for (host, run) in (0..).zip(&runs) {
        let notices = notices(run);
        let about: Vec<&String> =
            notices.iter().filter(|it| it.contains("DDP_DOCTOR_TOKEN")).collect();
        assert_eq!(about.len(), 1, "{notices:?}");
        assert!(about[0].contains("diagnosed alone"), "{about:?}");
        let report = job.report(host).unwrap();
        assert_eq!((report.job.nodes, report.ranks.len()), (1, 1), "{report:#?}");
    }
}

#[test]
fn node_with_another_token_is_watched_alone() {
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Job::healthy(hosts, 300);
    let mut runs =
        [(0, TOKEN), (1, OTHER_TOKEN)].map(|(rank, token)| job.run(rank, Some(token), &[]));
    job.assert_same_result(&mut runs);
    let text = runs[1].stderr();
    assert!(text.contains("another token"), "{text}");
    assert!(!text.contains(TOKEN) && !text.contains(OTHER_TOKEN), "{text}");
    for host in [0, 1] {
        let report = job.report(host).unwrap();
        assert_eq!(hosts_of(&report), [format!("host-{host}")], "{report:#?}");
    }
}

#[test]
fn token_file_that_others_can_read_is_not_used() {
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Job::healthy(hosts, 300);
    let file = job.hosts.dir(1).join("token");
    fs::write(&file, TOKEN).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let options = ["--token-file", "token"];
    let mut runs = [job.run(0, Some(TOKEN), &[]), job.run(1, None, &options)];
    job.assert_same_result(&mut runs);
    let text = runs[1].stderr();
    assert!(text.contains("chmod 600"), "{text}");
    assert!(!text.contains(TOKEN), "{text}");
    let report = job.report(1).unwrap();
    assert_eq!(hosts_of(&report), ["host-1"], "{report:#?}");
}

#[test]
fn other_program_on_the_port_of_the_coordinator_is_named() {
    let Some(hosts) = Hosts::new(2) else { return };
    let mut server = hosts.command(0, "python3");
    server.args(["-u", "-m", "http.server", &COORDINATOR.to_string()]);
    let server = hosts.start(0, "server", server);
    eventually("the server listens", || server.stdout().contains("Serving HTTP"));
    let job = Job::healthy(hosts, 300);
    let mut runs = [0, 1].map(|rank| job.run(rank, Some(TOKEN), &[]));
    job.assert_same_result(&mut runs);
    for run in &runs {
        let text = run.stderr();
        assert!(text.contains("another program listens"), "{text}");
    }
}
