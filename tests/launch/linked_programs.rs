//! Programs in C and in Rust that link the agent: under `run`, and without it, with a standing
//! coordinator. The jobs are the examples of the two packages: processes that communicate over
//! sockets.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ddp_doctor::diagnosis::event::Event;
use ddp_doctor::evidence::decode::Decoder;
use ddp_doctor::evidence::journal::Reader as Journal;
use ddp_doctor::host::boxes::boxes_in;
use ddp_doctor_proto::report::{RankState, Report, Verdict};

use crate::support::artifact;
use crate::support::compiled_programs::{TRAINING, compile, flood, training};
use crate::support::coordinator::Coordinator;
use crate::support::healthy_job::HealthyJob;
use crate::support::job_without_run::{Bare, reporters};
use crate::support::process::{eventually, program, run_to_end, write_script};
use crate::support::report::{initiating, is_healthy, report_in};

/// Time limit for an expected event.
const TIMEOUT: Duration = Duration::from_secs(60);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The example in Rust.
fn ring() -> PathBuf {
    artifact("examples/ring")
}

const RING: &str = "agent/examples/ring.rs";

/// 1-based number of the first line of a source that contains this text.
fn line(source: &str, text: &str) -> u32 {
    let source = fs::read_to_string(root().join(source)).unwrap();
    let at = source.lines().position(|line| line.contains(text));
    at.unwrap_or_else(|| panic!("no {text}")) as u32 + 1
}

/// The ranks of the first finding that have a source line, each with its line.
fn lines(report: &Report) -> Vec<(u32, u32)> {
    let calls = report.findings[0].per_rank.iter();
    calls.filter_map(|call| Some((call.rank, call.place.as_ref()?.line))).collect()
}

// --- Under `run` ---------------------------------------------------------------------------------

fn run(command: &[&str]) -> Report {
    let scratch = tempfile::tempdir().unwrap();
    let mut run = program(scratch.path());
    let options = ["--on-hang", "kill", "--kill-after", "1"];
    run.args(["run", "--report", "report.json"]).args(options).arg("--").args(command);
    let finished = run_to_end(run);
    report_in(&scratch.path().join("report.json"))
        .unwrap_or_else(|| panic!("no report\n{finished}"))
}

#[test]
fn c_job_is_diagnosed_to_the_line() {
    let training = training();
    let report = run(&[training, "4", "barrier"]);
    assert_eq!(initiating(&report), ("DD103", &[2][..]));
    let (odd, others) = (
        line(TRAINING, "BUG barrier: rank 2"),
        line(TRAINING, "BUG barrier, early-exit: the others"),
    );
    let expected = [(0, others), (1, others), (2, odd), (3, others)];
    assert_eq!(lines(&report), expected);
    let function = &report.findings[0].per_rank[2].place.as_ref().unwrap();
    assert_eq!(function.function, "train");

    let report = run(&[training, "3", "early-exit"]);
    assert_eq!(initiating(&report), ("DD102", &[1][..]));

    let report = run(&[training, "4", "root"]);
    assert_eq!(initiating(&report), ("DD107", &[3][..]));
    let (odd, others) =
        (line(TRAINING, "BUG root: rank 3"), line(TRAINING, "BUG root: the others"));
    assert_eq!(lines(&report), [(0, others), (1, others), (2, others), (3, odd)]);
}

#[test]
fn memory_of_c_ranks_is_sampled_and_journaled() {
    let scratch = tempfile::tempdir().unwrap();
    let mut run = program(scratch.path());
    run.args(["run", "--run-dir", "run", "--on-hang", "kill"])
        .args(["--kill-after", "3", "--"])
        .args([training(), "3", "early-exit"]);
    let finished = run_to_end(run);
    assert_eq!(finished.status, Some(75), "{finished}");
    let mut journal = Journal::open(&scratch.path().join("run/journal.ddpj")).unwrap();
    let mut decoder = Decoder::new(0);
    let mut events = Vec::new();
    while let Some(report) = journal.read().unwrap() {
        decoder.decode(report, &mut events);
    }
    assert_eq!(decoder.rejected(), 0);
    // Rank 1 may have exited before it was sampled; the others wait for it.
    let mut measured = BTreeSet::new();
    for event in &events {
        if let Event::Memory { process, sample, .. } = event {
            assert!(sample.rss > Some(100 << 10), "{sample:?}");
            assert!(sample.host_total >= sample.host_available, "{sample:?}");
            assert!(sample.host_available > Some(0), "{sample:?}");
            measured.insert(*process);
        }
    }
    assert!((2..=3).contains(&measured.len()), "{measured:?}");
    let settings = events.iter().filter(|event| {
        matches!(event, Event::Setting { name, value, .. }
            if (name.as_ref(), value.as_ref()) == ("fabric", "sockets 1"))
    });
    assert_eq!(settings.count(), 3);
}

#[test]
fn healthy_c_job_has_no_findings() {
    is_healthy(&HealthyJob::start(&[]).assert_same_result(), 4);
}

#[test]
fn rust_job_is_diagnosed_to_the_line() {
    let path = ring();
    let ring = path.to_str().unwrap();
    let report = run(&[ring, "shape"]);
    assert_eq!(initiating(&report), ("DD104", &[1][..]));
    let (odd, others) = (line(RING, "BUG shape: rank 1"), line(RING, "BUG shape: the others"));
    assert_eq!(lines(&report), [(0, others), (1, odd), (2, others)]);

    let report = run(&[ring, "panic"]);
    assert_eq!(initiating(&report), ("DD202", &[1][..]));
    let text = &report.findings[0].summary;
    assert!(text.contains("panic: loss is NaN"), "{text}");
    assert_eq!(lines(&report)[1], (1, line(RING, "BUG panic")));
}

#[test]
fn healthy_rust_job_has_no_findings() {
    let ring = ring().into_os_string().into_string().unwrap();
    let mut job = HealthyJob::start_program(&[], &[ring]);
    is_healthy(&job.assert_same_result(), 3);
}

// --- With a standing coordinator -----------------------------------------------------------------

fn has_ended(report: &Report) -> bool {
    report.job.ended_at.is_some()
}

#[test]
fn job_started_without_run_reports_to_a_coordinator() {
    let mut coordinator = Coordinator::start();
    let training = training();
    let address = coordinator.address().to_owned();
    let hung = Bare::start("hung", &address, &[training, "4", "barrier"]);
    let mut healthy = Bare::start("healthy", &address, &[training, "3"]);

    // The healthy job exits, and its boxes and its reporter disappear.
    let report = coordinator.until("healthy", has_ended);
    is_healthy(&report, 3);
    assert_eq!(healthy.wait(), Some(0));
    eventually("its boxes are gone", || healthy.boxes().is_empty());
    eventually("its reporter is gone", || reporters(healthy.scratch.path()).is_empty());
    assert_eq!(healthy.stderr(), "");

    // The other job is diagnosed while it hangs.
    let report = coordinator.until("hung", |report| !report.findings.is_empty());
    assert_eq!(initiating(&report), ("DD103", &[2][..]));
    assert_eq!(lines(&report)[2].1, line(TRAINING, "BUG barrier: rank 2"));
    assert_eq!(report.verdict, Verdict::Hang);
    eventually("one reporter is left", || reporters(hung.scratch.path()).len() == 1);
    eventually("the finding is printed with the name of the job", || {
        let stderr = coordinator.stderr();
        stderr.contains("[hung]\nerror[DD103]") && stderr.contains("[healthy] the job has ended")
    });

    // SIGTERM ends the coordinator at once, even while it monitors a job.
    assert_eq!(coordinator.end(), Some(0));
    let stderr = coordinator.stderr();
    let last = "[hung] the job is no longer monitored · verdict: hang";
    assert!(stderr.contains(last), "{stderr}");
    assert_eq!(initiating(&coordinator.reports("hung")[0]), ("DD103", &[2][..]));
}

#[test]
fn killed_ranks_are_reported_with_their_signal() {
    let coordinator = Coordinator::start();
    let training = training();
    let bare = Bare::start("killed", coordinator.address(), &[training, "4", "barrier"]);
    coordinator.until("killed", |report| !report.findings.is_empty());
    let mut ranks = bare.ranks();
    ranks.sort_unstable();
    assert_eq!(ranks.len(), 4);
    for pid in ranks {
        let status = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        assert!(status.unwrap().success());
    }
    let report = coordinator.until("killed", has_ended);
    for rank in &report.ranks {
        assert_eq!(rank.state, RankState::Dead, "{report:#?}");
        assert_eq!(rank.exit.signal, Some(9), "{report:#?}");
    }
    assert_eq!(initiating(&report).0, "DD103");
}

#[test]
fn last_records_of_a_short_lived_process_arrive() {
    let coordinator = Coordinator::start();
    let program = compile("tests/jobs/c/last_words.c");
    let mut bare = Bare::start("brief", coordinator.address(), &[program.path()]);
    assert_eq!(bare.wait(), Some(0));
    let report = coordinator.until("brief", has_ended);
    assert_eq!(report.ranks.len(), 2, "{report:#?}");
    assert!(report.ranks.iter().all(|rank| rank.step == 7), "{report:#?}");
    // The forked child of rank 0 has its own box, as rank 1; the child of rank 1 records nothing.
    assert_eq!(report.evidence.records, 16, "{report:#?}");
    eventually("its boxes are gone", || bare.boxes().is_empty());
}

#[test]
fn late_or_restarted_coordinator_gets_all_records() {
    let mut coordinator = Coordinator::start();
    let address = coordinator.address().to_owned();
    coordinator.kill();
    let training = training();
    let bare = Bare::start("late", &address, &[training, "4", "root"]);
    eventually("it hangs", || bare.ranks().len() == 4);
    std::thread::sleep(Duration::from_millis(500));
    let mut coordinator = Coordinator::start_at(&address);
    let first = coordinator.until("late", |report| !report.findings.is_empty());
    assert_eq!(initiating(&first), ("DD107", &[3][..]));
    coordinator.kill();
    let coordinator = Coordinator::start_at(&address);
    let second = coordinator.until("late", |report| !report.findings.is_empty());
    assert_eq!(initiating(&second), ("DD107", &[3][..]));
    assert_eq!(second.evidence.records, first.evidence.records);
    assert_eq!(second.evidence.records_lost, 0);
    assert_eq!(lines(&second), lines(&first));
    bare.signal("-KILL");
    let report = coordinator.until("late", has_ended);
    assert!(report.ranks.iter().all(|rank| rank.state == RankState::Dead));
}

#[test]
fn job_without_a_coordinator_runs_and_leaves_its_boxes() {
    let training = training();
    let started = Instant::now();
    let mut bare = Bare::start("alone", "127.0.0.1:1", &[training, "4"]);
    bare.assert_same_result(&[training, "4"]);
    assert!(started.elapsed() < TIMEOUT / 2, "the job waited for a coordinator");
    eventually("the reporter exits", || reporters(bare.scratch.path()).is_empty());
    assert_eq!(bare.boxes().len(), 4, "boxes remain for analysis");
    let stderr = bare.stderr();
    assert!(stderr.contains("no coordinator answers at"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    let log = bare.log();
    assert!(log.contains("the diagnosis continues on this node"), "{log}");
}

#[test]
fn missing_box_is_one_line() {
    let taken = tempfile::NamedTempFile::new().unwrap();
    let environment = [("DDP_DOCTOR_BOX_DIR", taken.path().to_str().unwrap())];
    let command = [training(), "4"];
    let mut bare = Bare::start_with("none", "127.0.0.1:1", &command, &environment);
    bare.assert_same_result(&command);
    let stderr = bare.stderr();
    assert!(
        stderr.starts_with("ddp-doctor: nothing is captured: no room for a black box"),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn reporting_failure_is_one_line() {
    let training = training();
    for (name, value, because) in [
        (
            "DDP_DOCTOR_PROGRAM",
            "/no/such/program",
            "nothing is reported to 127.0.0.1:1: DDP_DOCTOR_PROGRAM=/no/such/program: No such file",
        ),
        (
            "DDP_DOCTOR_COORDINATOR",
            "192.0.2.1:7077",
            "192.0.2.1:7077 may be on another machine, which needs a token",
        ),
    ] {
        let mut bare =
            Bare::start_with("nowhere", "127.0.0.1:1", &[training, "4"], &[(name, value)]);
        bare.assert_same_result(&[training, "4"]);
        eventually("the reason is printed", || bare.stderr().contains(because));
        assert_eq!(bare.stderr().lines().count(), 1, "{}", bare.stderr());
    }
}

#[test]
fn evidence_is_kept_in_a_named_run_directory() {
    let coordinator = Coordinator::start();
    let kept = tempfile::tempdir().unwrap();
    let run_dir = kept.path().join("run");
    let training = training();
    let environment = [("DDP_DOCTOR_RUN_DIR", run_dir.to_str().unwrap())];
    let address = coordinator.address();
    let bare = Bare::start_with("kept", address, &[training, "3", "early-exit"], &environment);
    coordinator.until("kept", |report| !report.findings.is_empty());
    bare.signal("-KILL");
    coordinator.until("kept", has_ended);
    eventually("its reporter is gone", || reporters(bare.scratch.path()).is_empty());
    let boxes = fs::read_dir(run_dir.join("boxes")).unwrap().count();
    assert_eq!(boxes, 3);
    assert!(bare.boxes().is_empty());
    assert!(run_dir.join("run.json").exists());
    let journal = fs::metadata(run_dir.join("journal.ddpj")).unwrap();
    assert!(journal.len() > 1000);
}

#[test]
fn ranks_with_boxes_in_two_directories_have_one_reporter() {
    let coordinator = Coordinator::start();
    let kept = tempfile::tempdir().unwrap();
    let run_dir = |job: &str| kept.path().join(job);
    // The file system of the preferred directory is full after two of four boxes.
    let start = |job: &str, bug: &str| {
        let run_dir = run_dir(job);
        let environment = [("DDP_DOCTOR_RUN_DIR", run_dir.to_str().unwrap())];
        let script = format!(
            "mkdir boxes && mount -t tmpfs -o size=64m,nr_inodes=4 none boxes && exec {} 4 {bug}",
            training()
        );
        let command =
            ["unshare", "--map-current-user", "--keep-caps", "--mount", "sh", "-c", &script];
        Bare::start_with(job, coordinator.address(), &command, &environment)
    };
    let mut healthy = start("healthy", "");
    healthy.assert_same_result(&[training(), "4"]);
    is_healthy(&coordinator.until("healthy", has_ended), 4);
    let bare = start("two", "early-exit");
    let report = coordinator.until("two", |report| !report.findings.is_empty());
    assert_eq!(initiating(&report).0, "DD102", "{report:#?}");
    assert_eq!(report.ranks.len(), 4, "{report:#?}");
    eventually("one reporter is left", || reporters(bare.scratch.path()).len() == 1);
    bare.signal("-KILL");
    let report = coordinator.until("two", has_ended);
    assert_eq!(report.evidence.records_lost, 0);
    let codes: Vec<&str> = report.findings.iter().map(|it| it.code.as_str()).collect();
    assert!(!codes.contains(&"DD302") && !codes.contains(&"DD901"), "{codes:?}");
    eventually("the reporter is gone", || reporters(bare.scratch.path()).is_empty());
    for job in ["healthy", "two"] {
        let kept = boxes_in(&run_dir(job).join("boxes")).unwrap();
        assert_eq!(kept.len(), 4, "{job}: {kept:?}");
    }
}

#[test]
fn reporter_ends_on_sigterm() {
    let coordinator = Coordinator::start();
    let command = [flood(), "1000"];
    let mut bare = Bare::start("term", coordinator.address(), &command);
    coordinator.until("term", |_| true);
    eventually("one reporter is left", || reporters(bare.scratch.path()).len() == 1);
    for pid in reporters(bare.scratch.path()) {
        let status = Command::new("kill").arg(pid.to_string()).status();
        assert!(status.unwrap().success());
    }
    eventually("it is gone", || reporters(bare.scratch.path()).is_empty());
    for name in ["flood1", "stop"] {
        fs::write(bare.scratch.path().join(name), "").unwrap();
    }
    bare.assert_same_result(&command);
    assert_eq!(bare.ranks().len(), 1);
}

#[test]
fn launches_with_the_same_job_name_are_kept_apart() {
    let coordinator = Coordinator::start();
    let training = training();
    let address = coordinator.address();
    let start = |port: &str, bug: &str| {
        let command = [training, "4", bug];
        Bare::start_with("twice", address, &command, &[("MASTER_PORT", port)])
    };
    let _hung = start("1001", "barrier");
    eventually("the first hangs", || {
        let reports = coordinator.reports("twice");
        reports.iter().any(|report| !report.findings.is_empty())
    });
    let mut healthy = start("1002", "");
    assert_eq!(healthy.wait(), Some(0));
    eventually("both are reported", || {
        let reports = coordinator.reports("twice");
        reports.len() == 2 && has_ended(&reports[1])
    });
    let reports = coordinator.reports("twice");
    assert_eq!(initiating(&reports[0]), ("DD103", &[2][..]));
    is_healthy(&reports[1], 4);
}

#[test]
fn killed_run_is_not_part_of_the_next_run() {
    let coordinator = Coordinator::start();
    let training = training();
    let start = |bug: &str| {
        let mut run = program(coordinator.folder());
        run.args(["run", "--quiet", "--job", "again", "--coordinator"])
            .args([coordinator.address(), "--", training, "4", bug])
            .stderr(Stdio::null());
        run
    };
    let mut killed = start("barrier").spawn().unwrap();
    coordinator.until("again", |report| !report.findings.is_empty());
    let job = coordinator.until("again", |report| report.ranks.len() == 4);
    killed.kill().unwrap();
    killed.wait().unwrap();
    for rank in &job.ranks {
        let pid = rank.pid.to_string();
        Command::new("kill").args(["-KILL", &pid]).status().unwrap();
    }
    let finished = run_to_end(start(""));
    assert_eq!(finished.status, Some(0), "{finished}");
    let reports = coordinator.reports("again");
    assert_eq!(reports.len(), 2, "{reports:#?}");
    is_healthy(&reports[1], 4);
}

#[test]
fn flag_overrides_the_environment_variable() {
    let scratch = tempfile::tempdir().unwrap();
    let listen = |variable: &str, flag: Option<&str>| {
        let mut command = program(scratch.path());
        command.arg("coordinator").env("DDP_DOCTOR_LISTEN", variable);
        if let Some(flag) = flag {
            command.args(["--listen", flag]);
        }
        run_to_end(command)
    };
    // Both addresses are refused; the message contains the one in effect.
    let by_variable = listen("192.0.2.7:7077", None);
    assert_eq!(by_variable.status, Some(3), "{by_variable}");
    assert!(by_variable.stderr.contains("192.0.2.7:7077 can be reached"));
    assert_eq!(by_variable.stderr.lines().count(), 1, "{by_variable}");
    let by_flag = listen("127.0.0.1:0", Some("192.0.2.8:7077"));
    assert_eq!(by_flag.status, Some(3), "{by_flag}");
    assert!(by_flag.stderr.contains("192.0.2.8:7077 can be reached"));
}

#[test]
fn process_under_run_starts_no_reporter() {
    let scratch = tempfile::tempdir().unwrap();
    let mut run = program(scratch.path());
    let trace = scratch.path().join("started");
    let fake = scratch.path().join("fake");
    write_script(&fake, &format!("#!/bin/sh\ntouch {}\n", trace.display()));
    run.env("DDP_DOCTOR_PROGRAM", &fake).args(["run", "--", training(), "3"]);
    let finished = run_to_end(run);
    assert_eq!(finished.status, Some(0), "{finished}");
    assert!(!trace.exists());
}
