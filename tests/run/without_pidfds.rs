//! `run` on systems without pidfds: a seccomp filter makes pidfd_open and pidfd_send_signal fail.

use std::fs;
use std::path::Path;
use std::process::Command;

use ddp_doctor_proto::report::Verdict;

use super::command::{Running, dir};
use crate::support::compiled_programs::{training, without_pidfds};
use crate::support::healthy_job::assert_same_result;
use crate::support::process::{PROGRAM, eventually, without_own_variables};
use crate::support::report::{is_healthy, read_report};

/// EPERM and ENOSYS.
const ERRORS: [&str; 2] = ["1", "38"];

/// `ddp-doctor` without pidfds.
fn program(dir: &Path, error: &str) -> Command {
    let mut command = Command::new(without_pidfds());
    without_own_variables(&mut command);
    command.args([error, "env", "--default-signal=INT,QUIT", PROGRAM]).current_dir(dir);
    command
}

/// Whether a process exists and is not a zombie.
fn lives(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat[stat.rfind(')').unwrap()..].starts_with(") Z"))
}

#[test]
fn healthy_job_without_pidfds_is_diagnosed() {
    for error in ERRORS {
        let dir = dir();
        let output = program(dir.path(), error)
            .args(["run", "--report", "r.json", "--", training(), "4"])
            .output()
            .unwrap();
        assert_same_result(&[training(), "4"], output.status.code(), &output.stdout);
        is_healthy(&read_report(&dir.path().join("r.json")), 4);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(text.matches("has no pidfds").count(), 1, "{text}");
    }
}

#[test]
fn signals_are_forwarded_without_pidfds() {
    for error in ERRORS {
        for (signal, status) in [("TERM", 11), ("INT", 14)] {
            let dir = dir();
            let script =
                format!("trap 'exit {status}' {signal}; echo ready; while :; do sleep 0.05; done");
            let mut job =
                Running::start(program(dir.path(), error).args(["run", "--", "sh", "-c", &script]));
            assert_eq!(job.first_line(), "ready");
            job.signal(signal);
            assert_eq!(job.end(), Some(status), "{signal} {error}");
        }
    }
}

#[test]
fn end_of_a_rank_is_seen_without_pidfds() {
    let dir = dir();
    let output = program(dir.path(), "38")
        .args(["run", "--on-hang", "kill", "--kill-after", "0", "--report", "r.json", "--"])
        .args([PROGRAM, "demo-rank", "early-exit"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    let report = read_report(&dir.path().join("r.json"));
    assert_eq!(report.verdict, Verdict::Hang, "{report:#?}");
}

#[test]
fn hanging_ranks_below_a_launcher_are_killed_without_pidfds() {
    for error in ERRORS {
        let dir = dir();
        // The launcher exits on SIGTERM at once, and its ranks ignore the signal.
        let script = "trap 'exit 1' TERM; (trap '' TERM; exec \"$0\" demo-rank early-exit) & echo $!; \
                      (trap '' TERM; exec sleep 600) & echo $!; wait";
        let output = program(dir.path(), error)
            .args(["run", "--on-hang", "kill", "--kill-after", "0", "--report", "r.json", "--"])
            .args(["sh", "-c", script, PROGRAM])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        let pids: Vec<&str> = text.lines().filter(|it| it.parse::<u32>().is_ok()).collect();
        assert_eq!(pids.len(), 2, "{output:?}");
        for pid in pids {
            eventually("no process of the job is left", || !lives(pid));
        }
    }
}

#[test]
fn orphans_that_end_are_reaped_without_pidfds() {
    let dir = dir();
    let script = "(sleep 0.1 & echo $!); read line";
    let mut job = Running::start(program(dir.path(), "38").args([
        "run",
        "--",
        "sh",
        "-c",
        &format!("{script}; sleep 60"),
    ]));
    let orphan = job.first_line();
    eventually("the orphan is reaped", || !Path::new(&format!("/proc/{orphan}")).exists());
    job.signal("TERM");
    job.end();
}
