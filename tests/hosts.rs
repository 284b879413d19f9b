//! Jobs on several hosts, which are network namespaces: the nodes share a coordinator, and nothing is
//! configured but the token.

use std::fs;
use std::path::Path;
use std::process::Command;

use ddp_doctor_proto::report::{Confidence, Effect, Finding, Report, Role, Verdict};

use crate::support::hosts::{Hosts, Process, report_in};
use crate::support::jobs::{jobs, variant, venv};
use crate::support::process::eventually;
use crate::support::programs::sum;
use crate::support::report::leading;

const TOKEN: &str = "the-token-of-these-tests";
const OTHER_TOKEN: &str = "another-token-than-that";
/// Port of the master, and of the coordinator of its launch.
const MASTER: u16 = 29500;
const COORDINATOR: u16 = 19500;

/// A program of two hosts, one rank each.
struct Job {
    hosts: Hosts,
    /// Address of rank 0.
    master: &'static str,
    arguments: Vec<String>,
}

impl Job {
    /// Sums for this many steps.
    fn healthy(hosts: Hosts, steps: u32) -> Self {
        Self {
            hosts,
            master: "host-0",
            arguments: vec![steps.to_string()],
        }
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
            .env("WORLD_SIZE", "2")
            .env("MASTER_ADDR", self.master)
            .env("MASTER_PORT", MASTER.to_string());
    }

    /// Starts a rank under `run` on the host of the same number.
    fn run(&self, rank: u32, token: Option<&str>, options: &[&str]) -> Process {
        let mut command = self.hosts.program(rank);
        self.rank(&mut command, rank);
        command.envs(token.map(|token| ("DDP_DOCTOR_TOKEN", token)));
        command.args(["run", "--report", "report.json"]);
        command
            .args(options)
            .args(["--", sum()])
            .args(&self.arguments);
        self.hosts.start(rank, "run", command)
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

/// Panics unless the report is of the hang of both hosts.
#[track_caller]
fn assert_hang(report: &Report) {
    let finding = leading(report);
    assert_eq!(
        (finding.code.as_str(), finding.confidence),
        ("DD103", Confidence::Proved),
        "{report:#?}"
    );
    assert_eq!((report.verdict, report.job.nodes), (Verdict::Hang, 2));
    assert_eq!(finding.per_rank.len(), 2);
    assert!(finding.per_rank.iter().all(|it| it.place.is_some()));
    assert_eq!(hosts_of(report), ["host-0", "host-1"]);
}

fn codes(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|it| it.code.as_str()).collect()
}

fn hosts_of(report: &Report) -> Vec<&str> {
    report.ranks.iter().map(|rank| rank.host.as_str()).collect()
}

/// Lines of standard error that are `ddp-doctor`'s own, without the diagnosis.
fn notices(process: &Process) -> Vec<String> {
    let text = process.stderr();
    let lines = text.lines().filter(|line| line.starts_with("ddp-doctor: "));
    lines.map(str::to_owned).collect()
}

/// Starts a program with torchrun on two hosts; returns the `run` of each.
fn torchrun(hosts: &Hosts, venv: &Path, program: &Path) -> [Process; 2] {
    [0, 1].map(|host| {
        let mut command = hosts.program(host);
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{}:{path}", venv.join("bin").display()))
            .env("OMP_NUM_THREADS", "1")
            .env("DDP_DOCTOR_TOKEN", TOKEN)
            .args(["run", "--report", "report.json"])
            .args(KILL)
            .args(["--", "torchrun", "--nnodes", "2", "--nproc-per-node", "1"])
            .args(["--master-addr", "host-0", "--node-rank", &host.to_string()])
            .arg(program);
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
fn hang_of_torchrun_on_two_hosts_is_diagnosed_with_the_token_alone() {
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
        let report = report_in(&hosts.dir(host).join("report.json")).unwrap();
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
    for text in [TOKEN, "uneven_batches", "all_reduce", "ddp_doctor.v1"] {
        assert!(!holds(text), "{text}");
    }
}

#[test]
fn healthy_torchrun_on_two_hosts_is_silent() {
    let (Some(venv), Some(hosts)) = (venv(), Hosts::new(2)) else {
        return;
    };
    let mut runs = torchrun(&hosts, venv, &variant("healthy/op_mismatch.py"));
    let statuses = runs.each_mut().map(Process::end);
    assert_eq!(statuses, [Some(0), Some(0)], "{}", runs[0].stderr());
    for host in [0, 1] {
        let report = report_in(&hosts.dir(host).join("report.json")).unwrap();
        assert_eq!(report.verdict, Verdict::Healthy, "{report:#?}");
        assert!(report.findings.is_empty(), "{report:#?}");
        assert_eq!((report.job.nodes, hosts_of(&report).len()), (2, 2));
    }
}

#[test]
fn order_of_starting_does_not_matter() {
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Job::hanging(hosts, 20);
    let mut second = job.run(1, Some(TOKEN), &KILL);
    // Longer than a connection attempt takes.
    std::thread::sleep(std::time::Duration::from_secs(6));
    assert!(second.is_running(), "{}", second.stderr());
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
fn nodes_without_a_token_are_watched_alone_and_say_how_to_make_one() {
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Job::healthy(hosts, 100);
    let mut runs = [0, 1].map(|rank| job.run(rank, None, &[]));
    assert_eq!(runs.each_mut().map(Process::end), [Some(0), Some(0)]);
    assert_eq!(runs[0].stdout().split(':').next(), Some("rank 0"));
    for (host, run) in (0..).zip(&runs) {
        let notices = notices(run);
        let about: Vec<&String> = notices
            .iter()
            .filter(|it| it.contains("DDP_DOCTOR_TOKEN"))
            .collect();
        assert_eq!(about.len(), 1, "{notices:?}");
        assert!(about[0].contains("diagnosed alone"), "{about:?}");
        let report = job.report(host).unwrap();
        assert_eq!(
            (report.job.nodes, report.ranks.len()),
            (1, 1),
            "{report:#?}"
        );
    }
}

#[test]
fn node_with_another_token_is_watched_alone() {
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Job::healthy(hosts, 300);
    let mut runs =
        [(0, TOKEN), (1, OTHER_TOKEN)].map(|(rank, token)| job.run(rank, Some(token), &[]));
    assert_eq!(runs.each_mut().map(Process::end), [Some(0), Some(0)]);
    let text = runs[1].stderr();
    assert!(text.contains("another token"), "{text}");
    assert!(
        !text.contains(TOKEN) && !text.contains(OTHER_TOKEN),
        "{text}"
    );
    for host in [0, 1] {
        let report = job.report(host).unwrap();
        assert_eq!(hosts_of(&report), [format!("host-{host}")], "{report:#?}");
    }
}

#[test]
fn other_program_on_the_port_of_the_coordinator_is_named() {
    let Some(hosts) = Hosts::new(2) else { return };
    let mut server = hosts.command(0, "python3");
    server.args(["-m", "http.server", &COORDINATOR.to_string()]);
    let _server = hosts.start(0, "server", server);
    std::thread::sleep(std::time::Duration::from_secs(1));
    let job = Job::healthy(hosts, 300);
    let mut runs = [0, 1].map(|rank| job.run(rank, Some(TOKEN), &[]));
    assert_eq!(runs.each_mut().map(Process::end), [Some(0), Some(0)]);
    for run in &runs {
        let text = run.stderr();
        assert!(text.contains("another program listens"), "{text}");
    }
}

/// A coordinator of its own on a host.
fn coordinator(hosts: &Hosts, host: u32) -> Process {
    let mut command = hosts.program(host);
    command
        .env("DDP_DOCTOR_TOKEN", TOKEN)
        .args(["coordinator", "--listen", "0.0.0.0:7077"])
        .args(["--report-dir", "reports"]);
    let coordinator = hosts.start(host, "coordinator", command);
    eventually("the coordinator listens", || {
        coordinator.stdout().contains(":7077")
    });
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

#[test]
fn linked_ranks_report_to_a_coordinator_that_viewers_on_other_hosts_read() {
    let Some(hosts) = Hosts::new(4) else { return };
    let _coordinator = coordinator(&hosts, 2);
    let job = Job::hanging(hosts, 20);
    let _ranks = [0, 1].map(|rank| linked(&job, rank, "host-2:7077", TOKEN));

    let view = |words: &[&str], token: Option<&str>| {
        let mut command = job.hosts.program(3);
        command.envs(token.map(|token| ("DDP_DOCTOR_TOKEN", token)));
        let output = command.args(words).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let address = "host-2:7077";
    eventually("the hang is found", || {
        view(&["status", address], Some(TOKEN)).1.contains("DD103")
    });
    for words in [
        &["watch", "--once", address][..],
        &["status", address],
        &["dump", address],
    ] {
        let (_, shown, errors) = view(words, Some(TOKEN));
        assert!(shown.contains("host-1"), "{words:?}: {shown}{errors}");
        let (status, shown, errors) = view(words, Some(OTHER_TOKEN));
        assert!(status != Some(0) && shown.is_empty(), "{shown}");
        assert!(errors.contains("another token"), "{words:?}: {errors}");
        let (status, shown, errors) = view(words, None);
        assert!(status != Some(0) && shown.is_empty(), "{shown}");
        assert!(errors.contains("DDP_DOCTOR_TOKEN"), "{words:?}: {errors}");
    }
}

#[test]
fn host_that_is_gone_is_silent_and_not_dead() {
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Job::healthy(hosts, 100_000);
    let _runs = [0, 1].map(|rank| job.run(rank, Some(TOKEN), &[]));
    job.until(0, |report| report.ranks.len() == 2);
    job.hosts.connect(1, false);
    job.hosts.kill_all(1);
    let report = job.until(0, |report| codes(report).contains(&"DD904"));
    let finding = report.findings.iter().find(|it| it.code == "DD904");
    assert!(finding.unwrap().summary.contains("rank 1 on host host-1"));
    // Its end was not observed, and nobody else is to blame.
    let blamed = |it: &&Finding| it.role == Role::Initiating && it.effect != Effect::None;
    let blamed: Vec<&Finding> = report.findings.iter().filter(blamed).collect();
    assert!(blamed.is_empty(), "{blamed:#?}");
}

#[test]
fn partition_between_hosts_heals() {
    let Some(hosts) = Hosts::new(2) else { return };
    let job = Job::healthy(hosts, 600);
    let mut runs = [0, 1].map(|rank| job.run(rank, Some(TOKEN), &[]));
    job.until(0, |report| report.ranks.len() == 2);
    job.hosts.connect(1, false);
    job.until(0, |report| codes(report).contains(&"DD904"));
    eventually("the other node continues alone", || {
        runs[1]
            .stderr()
            .contains("the diagnosis continues on this node")
    });
    job.hosts.connect(1, true);
    assert_eq!(runs.each_mut().map(Process::end), [Some(0), Some(0)]);
    let report = job.report(0).unwrap();
    assert_eq!((report.job.nodes, hosts_of(&report).len()), (2, 2));
    assert_eq!(report.evidence.records_lost, 0);
    assert!(!codes(&report).contains(&"DD904"), "{report:#?}");
}

/// Peers that connect and send nothing, half of a greeting, or noise.
const FLOOD: &str = "
import os, socket, sys, time
connections = []
for number in range(2000):
    try:
        connection = socket.create_connection(('host-2', 7077), timeout=5)
        if number % 3:
            connection.sendall(os.urandom(64) if number % 3 == 1 else b'\\x16\\x03\\x01\\x40\\x00')
        connections.append(connection)
    except OSError:
        pass
print('flooded', len(connections), flush=True)
time.sleep(1000)
";

#[test]
fn flood_of_connections_disturbs_no_job() {
    let Some(hosts) = Hosts::new(4) else { return };
    let coordinator = coordinator(&hosts, 2);
    let mut flood = hosts.command(3, "sh");
    flood.args(["-c", "ulimit -n 4096; exec python3 -c \"$0\"", FLOOD]);
    let flood = hosts.start(3, "flood", flood);
    eventually("the flood is there", || flood.stdout().contains("flooded"));
    let job = Job::hanging(hosts, 20);
    let _ranks = [0, 1].map(|rank| linked(&job, rank, "host-2:7077", TOKEN));
    let reports = job.hosts.dir(2).join("reports");
    eventually("the hang is found", || {
        let files = fs::read_dir(&reports).into_iter().flatten().flatten();
        files
            .filter_map(|file| report_in(&file.path()))
            .any(|it| it.verdict == Verdict::Hang)
    });
    assert!(
        coordinator.resident_mib() < 128,
        "{} MiB",
        coordinator.resident_mib()
    );
}

#[test]
fn coordinator_that_comes_back_knows_the_job_once() {
    let Some(hosts) = Hosts::new(3) else { return };
    let mut first = coordinator(&hosts, 2);
    let job = Job::healthy(hosts, 600);
    let mut ranks = [0, 1].map(|rank| linked(&job, rank, "host-2:7077", TOKEN));
    let reports = || {
        let files = fs::read_dir(job.hosts.dir(2).join("reports"))
            .into_iter()
            .flatten()
            .flatten();
        files
            .filter_map(|file| report_in(&file.path()))
            .collect::<Vec<Report>>()
    };
    eventually("the job is known", || {
        reports().iter().any(|it| it.ranks.len() == 2)
    });
    first.signal("-KILL");
    first.end();
    fs::remove_dir_all(job.hosts.dir(2).join("reports")).unwrap();
    let _second = coordinator(&job.hosts, 2);
    assert_eq!(ranks.each_mut().map(Process::end), [Some(0), Some(0)]);
    eventually("the job has ended", || {
        reports().iter().any(|it| it.job.ended_at.is_some())
    });
    let reports = reports();
    assert_eq!(reports.len(), 1, "{reports:#?}");
    let report = &reports[0];
    assert_eq!(report.verdict, Verdict::Healthy, "{report:#?}");
    assert_eq!(
        (
            report.job.nodes,
            report.ranks.len(),
            report.evidence.records_lost
        ),
        (2, 2, 0)
    );
    // Each step is a record of its begin, of a call and of its return.
    let records = report.evidence.records;
    assert!((2 * 600 * 3..2 * 600 * 4).contains(&records), "{records}");
}
