//! The diagnosis of a job under `run`: its report while the job hangs and after its end, beside a standing
//! coordinator, and after `run` was killed.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use ddp_doctor::diagnosis::{Config, Engine};
use ddp_doctor::evidence::decode::Decoder;
use ddp_doctor::evidence::journal::Reader as Journal;
use ddp_doctor_proto::report::{RankState, Report, Timestamp, Verdict};

use super::command::{Running, dir, hanging_job, run_dir, send, stderr};
use crate::support::compiled_programs::flood;
use crate::support::healthy_job::{HealthyJob, assert_same_result};
use crate::support::process::{PROGRAM, eventually, free_port, program};
use crate::support::report::{is_healthy, read_report, reports_in};

#[test]
fn standing_coordinator_diagnoses_a_reporting_job() {
    let dir = dir();
    let mut coordinator =
        Running::start(program(dir.path()).args(["coordinator", "--listen", "127.0.0.1:0"]));
    let address = coordinator.first_line();
    let output = program(dir.path())
        .args(["run", "--coordinator", &address, "--report", "r.json", "--on-hang", "kill"])
        .args(["--kill-after", "0.5", "--", PROGRAM, "demo-rank", "op-mismatch"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(75), "{}", stderr(&output));
    let report = read_report(&dir.path().join("r.json"));
    assert_eq!(report.verdict, Verdict::Hang);
    assert_eq!(report.findings[0].code, "DD103");
    assert_eq!(report.evidence.ranks_reporting, 4);
    coordinator.signal("INT");
    assert_eq!(coordinator.end(), Some(0));
}

#[test]
fn late_or_restarted_coordinator_receives_all_evidence() {
    let dir = dir();
    let address = format!("127.0.0.1:{}", free_port());
    let coordinator =
        || Running::start(program(dir.path()).args(["coordinator", "--listen", &address]));
    let mut job = Running::start(
        program(dir.path())
            .args(["run", "--coordinator", &address, "--report", "r.json", "--"])
            .args([PROGRAM, "demo-rank", "early-exit"]),
    );
    let mut healthy = HealthyJob::start(&["--coordinator", &address]);
    std::thread::sleep(Duration::from_secs(1));
    let path = dir.path().join("r.json");
    assert!(!path.exists(), "a report before there is a coordinator");
    let first = coordinator();
    let names_it = || path.exists() && read_report(&path).verdict == Verdict::Hang;
    eventually("the late coordinator finds it", names_it);
    drop(first);
    fs::remove_file(&path).unwrap();
    let _second = coordinator();
    eventually("the next coordinator finds it", names_it);
    let report = read_report(&path);
    assert_eq!(report.findings[0].code, "DD102");
    assert_eq!(report.evidence.records_lost, 0);
    job.signal("TERM");
    assert_eq!(job.end(), Some(143));
    is_healthy(&healthy.assert_same_result(), 4);
}

#[test]
fn killed_node_is_silent_and_its_ranks_are_unknown() {
    let dir = dir();
    let mut coordinator =
        Running::start(program(dir.path()).args(["coordinator", "--listen", "127.0.0.1:0"]));
    let address = coordinator.first_line();
    let node = |report: &str, command: &[&str]| {
        let mut node = program(dir.path());
        node.args(["run", "--job", "j", "--coordinator", &address]);
        node.args(["--report", report, "--run-dir", &format!("{report}.d"), "--"]);
        Running::start(node.args(command))
    };
    let mut stays = node("stays.json", &["sleep", "300"]);
    let active = node("goes.json", &[PROGRAM, "demo-rank", "early-exit"]);
    let path = dir.path().join("stays.json");
    let read = || path.exists().then(|| read_report(&path));
    let finds = |code: &str| read().is_some_and(|r| r.findings.iter().any(|f| f.code == code));
    eventually("the ranks of the other node are reported", || finds("DD102"));
    let ranks = read().unwrap().ranks;
    let is_alive = |state: RankState| !matches!(state, RankState::Exited | RankState::Dead);
    let mut living: Vec<(u32, u32)> = ranks
        .iter()
        .filter(|rank| is_alive(rank.state))
        .map(|rank| (rank.rank, rank.pid))
        .collect();
    living.sort_unstable();
    assert!(!living.is_empty());

    // Only `run` is killed: the ranks continue, unobserved.
    active.signal("KILL");
    let killed = Instant::now();
    while !finds("DD904") && killed.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(50));
    }
    for (_, pid) in &living {
        send("KILL", &pid.to_string());
    }
    let report = read().unwrap();
    let silent = report
        .findings
        .iter()
        .find(|f| f.code == "DD904")
        .unwrap_or_else(|| panic!("never silent: {report:#?}"));
    let of: Vec<u32> = living.iter().map(|(rank, _)| *rank).collect();
    assert_eq!(silent.ranks.root, of);
    for rank in report.ranks.iter().filter(|rank| of.contains(&rank.rank)) {
        assert_eq!(rank.state, RankState::Unknown, "{rank:?}");
    }
    assert_eq!(report.evidence.clock_uncertainty_ms, 0.0, "it is one host");
    stays.signal("TERM");
    assert_eq!(stays.end(), Some(143));
    drop(active);
    coordinator.signal("INT");
    assert_eq!(coordinator.end(), Some(0));
}

#[test]
fn finding_is_in_the_report_while_the_job_hangs() {
    let dir = dir();
    let mut job = Running::start(program(dir.path()).args([
        "run",
        "--report",
        "r.json",
        "--",
        PROGRAM,
        "demo-rank",
        "early-exit",
    ]));
    let path = dir.path().join("r.json");
    eventually("the report names the finding", || {
        path.exists() && read_report(&path).findings.first().is_some_and(|f| f.code == "DD102")
    });
    assert_eq!(read_report(&path).job.ended_at, None);
    job.signal("TERM");
    assert_eq!(job.end(), Some(143));
    let mut said = String::new();
    job.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said.matches("[DD102]").count(), 1, "printed once: {said}");
    // Boxes and journal are kept, and the run directory has the same report.
    let run_dir = run_dir(dir.path());
    assert_eq!(fs::read_dir(run_dir.join("boxes")).unwrap().count(), 4);
    assert_eq!(read_report(&run_dir.join("report.json")), read_report(&path));
    // The journal alone yields the same diagnosis.
    let mut journal = Journal::open(&run_dir.join("journal.ddpj")).unwrap();
    let (mut decoder, mut events) = (Decoder::new(0), Vec::new());
    while let Some(report) = journal.read().unwrap() {
        decoder.decode(report, &mut events);
    }
    decoder.release(&mut events);
    assert_eq!((decoder.rejected(), journal.skipped()), (0, None));
    let mut engine = Engine::new(Config::default());
    for event in events {
        engine.handle(event, Timestamp::now());
    }
    engine.poll_change();
    let (again, live) = (engine.report(), read_report(&path));
    let codes = |report: &Report| -> Vec<String> {
        report.findings.iter().map(|finding| finding.code.clone()).collect()
    };
    assert_eq!(codes(&again), codes(&live));
    assert_eq!(again.findings[0].certificate, live.findings[0].certificate);
}

#[test]
fn ranks_that_outlive_run_can_be_inspected() {
    let dir = dir();
    let mut job = hanging_job(&dir);
    let path = dir.path().join("r.json");
    eventually("the hang is found", || {
        path.exists() && read_report(&path).verdict == Verdict::Hang
    });
    let ranks = read_report(&path).ranks;
    job.signal("KILL");
    assert_eq!(job.0.wait().unwrap().signal(), Some(9));
    let run_dir = run_dir(dir.path());
    let ask = |command: &str| {
        let output = program(dir.path()).arg(command).arg(&run_dir).output().unwrap();
        let said = stderr(&output);
        let is_said = said.contains("Ranks 0, 2 and 3 are alive, but the run in");
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), is_said, text, said)
    };
    let (code, is_said, text, said) = ask("dump");
    assert_eq!((code, is_said), (Some(0), true), "{text}{said}");
    assert!(text.contains("rank 0") && text.contains("rank 3"), "{text}");
    let (code, is_said, text, said) = ask("status");
    assert_eq!((code, is_said), (Some(0), true), "{text}{said}");
    assert!(text.contains("finding DD102"), "{text}");
    let reports = || reports_in(&dir.path().join("reports"));
    // A coordinator takes over, then another one: the diagnosis continues until the ranks
    // have ended.
    let attach = || {
        let mut command = program(dir.path());
        command.args(["coordinator", "--listen", "127.0.0.1:0", "--report-dir", "reports"]);
        Running::start(command.arg("--attach").arg(&run_dir))
    };
    let is_found = || {
        let is_it = |it: &Report| {
            let first = it.findings.first();
            it.ranks.len() == 4 && first.is_some_and(|it| it.code == "DD102")
        };
        eventually("the hang is found again", || reports().iter().any(is_it));
    };
    let mut coordinator = attach();
    is_found();
    coordinator.signal("TERM");
    assert_eq!(coordinator.end(), Some(0));
    fs::remove_dir_all(dir.path().join("reports")).unwrap();
    let mut coordinator = attach();
    is_found();
    for rank in ranks.iter().filter(|it| it.rank != 1) {
        send("KILL", &rank.pid.to_string());
    }
    eventually("the end is reported", || reports().iter().all(|it| it.job.ended_at.is_some()));
    coordinator.signal("TERM");
    assert_eq!(coordinator.end(), Some(0));
    assert!(!ask("status").1);
    assert!(fs::read_dir(run_dir.join("boxes")).unwrap().count() > 0);
}

#[test]
fn ranks_that_outlive_run_end_as_without_it() {
    let command = ["sh", "-c", "\"$0\" 1000; echo status $?", flood()];
    let job = HealthyJob::start_program(&[], &command);
    job.start_ranks();
    job.signal("-KILL");
    job.create("flood1");
    job.create("stop");
    let printed = || fs::read_to_string(job.file("printed")).unwrap();
    eventually("the job ends", || printed().contains("status"));
    assert_same_result(&command, Some(0), printed());
}

#[test]
fn process_states_of_ranks_are_in_the_report() {
    let dir = dir();
    let mut job = hanging_job(&dir);
    let path = dir.path().join("r.json");
    let has = |what: &dyn Fn(&Report) -> bool| path.exists() && what(&read_report(&path));
    eventually("the end of a grandchild is reported with its status", || {
        has(&|report| report.ranks.len() == 4 && report.ranks[1].exit.code == Some(0))
    });
    let rank_2 = read_report(&path).ranks[2].pid.to_string();
    send("STOP", &rank_2);
    eventually("a stopped rank is reported", || {
        has(&|report| report.ranks[2].state == RankState::Stopped)
    });
    send("CONT", &rank_2);
    eventually("the continued rank is reported", || {
        has(&|report| report.ranks[2].state != RankState::Stopped)
    });
    job.signal("TERM");
    assert_eq!(job.end(), Some(143));
}

#[test]
fn rank_without_room_for_its_black_box_is_named() {
    let dir = dir();
    let output = program(dir.path())
        .args(["run", "--report", "r.json", "--", "sh", "-c"])
        .arg("touch $DDP_DOCTOR_BOX_DIR/nobox.$$.3; sleep 0.3")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let report = read_report(&dir.path().join("r.json"));
    let finding = report.findings.iter().find(|finding| finding.code == "DD901").unwrap();
    assert!(finding.ranks.root.contains(&3), "{finding:?}");
}

#[test]
fn hanging_job_is_killed_when_requested() {
    let dir = dir();
    let output = program(dir.path())
        .args(["run", "--on-hang", "kill", "--kill-after", "0.3", "--report", "r.json", "--"])
        // The launcher ignores SIGTERM, and has to be killed.
        .args(["sh", "-c", "trap '' TERM; \"$0\" demo-rank group-order & wait; wait", PROGRAM])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(75), "{}", stderr(&output));
    let report = read_report(&dir.path().join("r.json"));
    assert_eq!((report.verdict, report.findings[0].code.as_str()), (Verdict::Hang, "DD111"));
}

#[test]
fn demos_end_with_the_announced_diagnosis() {
    let dir = dir();
    let list = program(dir.path()).arg("demo").output().unwrap();
    let names = String::from_utf8(list.stdout).unwrap();
    assert!(names.lines().count() >= 4);
    for name in names.lines().filter_map(|line| line.split(' ').next()) {
        let output = program(dir.path()).args(["demo", name]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{name}: {text}{}", stderr(&output));
    }
    assert_eq!(program(dir.path()).args(["demo", "none"]).status().unwrap().code(), Some(3));
}
