//! `run` is transparent to the job: streams, signals, exit status, run directory.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use ddp_doctor::evidence::journal::Reader as Journal;
use ddp_doctor_proto::report::Verdict;
use tempfile::TempDir;

use crate::support::compiled_programs::training;
use crate::support::healthy_job::assert_same_result;
use crate::support::process::{
    PROGRAM, eventually, free_port, program, state_of, without_own_variables, write_script,
};
use crate::support::report::read_report;

pub(super) fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn run(dir: &TempDir, command: &[&str]) -> Output {
    program(dir.path()).arg("run").arg("--").args(command).output().unwrap()
}

/// Four ranks, three of which wait for rank 1, which has exited.
pub(super) fn hanging_job(dir: &TempDir) -> Running {
    Running::start(program(dir.path()).args(["run", "--report", "r.json", "--"]).args([
        PROGRAM,
        "demo-rank",
        "early-exit",
    ]))
}

pub(super) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A running command; killed if the test fails.
pub(super) struct Running(pub(super) Child);

impl Running {
    pub(super) fn start(command: &mut Command) -> Self {
        Self(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        )
    }

    /// Waits for the first line on standard output.
    pub(super) fn first_line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(super) fn signal(&self, signal: &str) {
        send(signal, &self.0.id().to_string());
    }

    pub(super) fn end(&mut self) -> Option<i32> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(started.elapsed() < Duration::from_secs(30), "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

pub(super) fn send(signal: &str, to: &str) {
    assert!(
        Command::new("kill").args([&format!("-{signal}"), "--", to]).status().unwrap().success()
    );
}

/// The only run directory below `dir`.
pub(super) fn run_dir(dir: &Path) -> std::path::PathBuf {
    let mut runs: Vec<_> = fs::read_dir(dir.join("ddp-doctor-runs")).unwrap().flatten().collect();
    assert_eq!(runs.len(), 1);
    runs.remove(0).path()
}

#[test]
fn exit_status_is_that_of_the_job() {
    let dir = dir();
    for (script, status) in [("exit 0", 0), ("exit 3", 3), ("exit 75", 75), ("exit 255", 255)] {
        assert_eq!(run(&dir, &["sh", "-c", script]).status.code(), Some(status), "{script}");
    }
    for (signal, status) in [("TERM", 143), ("KILL", 137), ("ABRT", 134)] {
        let output = run(&dir, &["sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(output.status.code(), Some(status), "{signal}");
    }
}

#[test]
fn unstartable_command_is_named_and_leaves_no_files() {
    let dir = dir();
    let output = run(&dir, &["no-such-command"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(stderr(&output).contains("no-such-command"), "{}", stderr(&output));
    assert_eq!(run(&dir, &["/"]).status.code(), Some(126));
    assert_eq!(fs::read_dir(dir.path().join("ddp-doctor-runs")).unwrap().count(), 0);
}

#[test]
fn usage_error_exits_with_2() {
    let dir = dir();
    for arguments in [&["run"][..], &["run", "--no-such-option", "--", "true"], &["nothing"], &[]] {
        let output = program(dir.path()).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn delay_of_a_kill_that_is_not_requested_has_no_effect() {
    let dir = dir();
    for (what, count) in [("report", 1), ("kill", 0)] {
        let mut command = program(dir.path());
        command.args(["run", "--kill-after", "3", "--on-hang", what, "--", "true"]);
        let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
        let line = "--kill-after has no effect without --on-hang kill";
        assert_eq!(said.matches(line).count(), count, "{said}");
    }
}

#[test]
fn standard_streams_are_passed_to_the_job() {
    let dir = dir();
    let mut job = program(dir.path())
        .args(["run", "--", "sh", "-c", "cat; echo err >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    job.stdin.take().unwrap().write_all(b"through\n").unwrap();
    let output = job.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"through\n");
    let ours: Vec<String> = stderr(&output).lines().map(str::to_owned).collect();
    assert!(ours.contains(&"err".to_owned()));
}

#[test]
fn job_environment_points_to_the_agent() {
    let dir = dir();
    let python = dir.path().join("python");
    fs::create_dir_all(python.join("ddp_doctor/activate")).unwrap();
    fs::write(python.join("ddp_doctor/activate/sitecustomize.py"), "").unwrap();
    let output = program(dir.path())
        .args(["run", "--job", "my job", "--", "sh", "-c"])
        .arg("env; stat -c mode=%a \"$DDP_DOCTOR_BOX_DIR\" \"$DDP_DOCTOR_RUN_DIR\"")
        .env("DDP_DOCTOR_PYTHON", &python)
        .env("PYTHONPATH", "/mine")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("{name} is missing in {text}")).to_owned()
    };
    assert_eq!(value("DDP_DOCTOR_JOB"), "my_job");
    assert!(value("DDP_DOCTOR_BOX_DIR").ends_with("/my_job"));
    assert!(Path::new(&value("DDP_DOCTOR_RUN_DIR")).is_absolute());
    assert!(value("DDP_DOCTOR_COORDINATOR").starts_with("unix:/"));
    let path = python.canonicalize().unwrap();
    let python = path.display();
    assert_eq!(value("PYTHONPATH"), format!("{python}/ddp_doctor/activate:{python}:/mine"));
    assert_eq!(text.matches("mode=700").count(), 2);
    assert!(
        !Path::new(&value("DDP_DOCTOR_BOX_DIR")).exists(),
        "the boxes are removed with the job"
    );
}

#[test]
fn disabled_run_leaves_no_trace() {
    let dir = dir();
    let output = program(dir.path())
        .args(["run", "--", "sh", "-c", "env | grep -c ^DDP_DOCTOR; exit 4"])
        .env("DDP_DOCTOR", "0")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(output.stdout, b"1\n");
    assert!(output.stderr.is_empty() && !dir.path().join("ddp-doctor-runs").exists());
}

/// `ddp-doctor` with default signal dispositions: a job in the background of a script starts with some of
/// them ignored.
fn interruptible(dir: &Path) -> Command {
    let mut command = Command::new("env");
    without_own_variables(&mut command);
    command.arg("--default-signal=HUP,INT,QUIT").arg(PROGRAM);
    command.current_dir(dir);
    command
}

#[test]
fn signals_are_forwarded_to_the_job() {
    let dir = dir();
    for (signal, status) in [("TERM", 11), ("HUP", 12), ("USR1", 13), ("INT", 14), ("QUIT", 15)] {
        let script =
            format!("trap 'exit {status}' {signal}; echo ready; while :; do sleep 0.05; done");
        let mut job =
            Running::start(interruptible(dir.path()).args(["run", "--", "sh", "-c", &script]));
        assert_eq!(job.first_line(), "ready");
        job.signal(signal);
        assert_eq!(job.end(), Some(status), "{signal}");
    }
}

#[test]
fn terminal_interrupt_is_left_to_the_job() {
    let dir = dir();
    // `run` waits for a job that takes a while to exit.
    let script = "trap 'sleep 0.3; exit 21' INT; echo ready; while :; do sleep 0.05; done";
    let mut job = Running::start(
        interruptible(dir.path()).args(["run", "--", "sh", "-c", script]).process_group(0),
    );
    assert_eq!(job.first_line(), "ready");
    send("INT", &format!("-{}", job.0.id()));
    assert_eq!(job.end(), Some(21));
    // A job without a handler dies from the signal, as it would without `run`.
    let mut job = Running::start(
        interruptible(dir.path())
            .args(["run", "--", "sh", "-c", "echo ready; exec sleep 60"])
            .process_group(0),
    );
    assert_eq!(job.first_line(), "ready");
    send("INT", &format!("-{}", job.0.id()));
    assert_eq!(job.end(), Some(130));
}

#[test]
fn stop_and_continue_apply_to_run_and_job() {
    let dir = dir();
    let mut job = Running::start(
        program(dir.path())
            .args(["run", "--", "sh", "-c", "echo $$; exec sleep 60"])
            .process_group(0),
    );
    let child: u32 = job.first_line().parse().unwrap();
    eventually("it sleeps", || {
        fs::read_to_string(format!("/proc/{child}/comm")).unwrap() == "sleep\n"
    });
    job.signal("TSTP");
    eventually("both are stopped", || state_of(child) == 'T' && state_of(job.0.id()) == 'T');
    job.signal("CONT");
    eventually("both continue", || state_of(child) == 'S' && state_of(job.0.id()) == 'S');
    send("TERM", &child.to_string());
    assert_eq!(job.end(), Some(143));
}

#[test]
fn shell_sees_run_stopped_from_the_terminal() {
    let dir = dir();
    let script = "set -m; \"$PROGRAM\" -q run -- sh -c 'kill -TSTP $PPID; sleep 60'; echo $?; \
                  kill -KILL -- -$(jobs -p)";
    let output = Command::new("bash")
        .args(["-c", script])
        .env("PROGRAM", PROGRAM)
        .current_dir(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.lines().next(), Some("148"), "{output:?}");
}

#[test]
fn job_runs_without_a_run_directory() {
    let dir = dir();
    fs::write(dir.path().join("ddp-doctor-runs"), "in the way").unwrap();
    let output = program(dir.path())
        .args(["run", "--", "sh", "-c", "exit 6"])
        .env("HOME", dir.path())
        .env("TMPDIR", dir.path().join("ddp-doctor-runs"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(6));
    let said = stderr(&output);
    assert_eq!(said.matches("cannot create a run directory").count(), 1, "{said}");
}

/// A job of four healthy ranks whose launcher exits with status 5.
fn exits_with_5() -> [&'static str; 4] {
    ["sh", "-c", "\"$0\" 4; exit 5", training()]
}

#[test]
fn job_is_journaled_without_a_coordinator() {
    let dir = dir();
    let closed = format!("127.0.0.1:{}", free_port());
    let output = program(dir.path())
        .args(["run", "--coordinator", &closed, "--report", "r.json", "--"])
        .args(exits_with_5())
        .output()
        .unwrap();
    assert_same_result(&exits_with_5(), output.status.code(), &output.stdout);
    let said = stderr(&output);
    assert_eq!(said.matches("no coordinator of this user listens").count(), 1, "{said}");
    assert_eq!(read_report(&dir.path().join("r.json")).verdict, Verdict::Healthy);
    let path = run_dir(dir.path()).join("journal.ddpj");
    let mut journal = Journal::open(&path).unwrap();
    let first = journal.read().unwrap().unwrap();
    assert!(matches!(first.events[0].kind, Some(ddp_doctor_proto::v1::event::Kind::Hello(_))));
}

#[test]
fn job_runs_if_the_remote_coordinator_needs_a_token() {
    let dir = dir();
    let output = program(dir.path())
        .args(["run", "--coordinator", "192.0.2.1:7", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("needs a token"), "{}", stderr(&output));
}

#[test]
fn concurrent_runs_of_one_job_do_not_interfere() {
    let dir = dir();
    let start = || {
        Running::start(program(dir.path()).args([
            "run",
            "--job",
            &format!("twice-{}", std::process::id()),
            "--run-dir",
            dir.path().join(format!("{:?}", Instant::now())).to_str().unwrap(),
            "--",
            "sh",
            "-c",
            "echo $DDP_DOCTOR_BOX_DIR; sleep 0.5; test -d $DDP_DOCTOR_BOX_DIR",
        ]))
    };
    let (mut first, mut second) = (start(), start());
    assert_ne!(first.first_line(), second.first_line());
    assert_eq!((first.end(), second.end()), (Some(0), Some(0)));
}

#[test]
fn reused_run_directory_keeps_the_earlier_run() {
    let dir = dir();
    let again = |job: &str| {
        let output = program(dir.path())
            .args(["run", "--run-dir", "kept", "--job", job, "--", "true"])
            .output()
            .unwrap();
        (output.status.code(), stderr(&output))
    };
    let kept = dir.path().join("kept");
    let (status, said) = again("first");
    assert!(status == Some(0) && !said.contains("earlier"), "{said}");
    let journal = fs::read(kept.join("journal.ddpj")).unwrap();
    let (status, said) = again("second");
    assert_eq!(status, Some(0));
    assert_eq!(said.matches("the files of an earlier run").count(), 1, "{said}");
    let first = kept.join("previous-first");
    assert_eq!(read_report(&kept.join("report.json")).job.id, "second");
    assert_eq!(read_report(&first.join("report.json")).job.id, "first");
    assert_eq!(fs::read(first.join("journal.ddpj")).unwrap(), journal);
    assert_ne!(fs::read(kept.join("journal.ddpj")).unwrap(), journal);
}

#[test]
fn short_form_runs_torchrun() {
    let dir = dir();
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let torchrun = bin.join("torchrun");
    write_script(&torchrun, "#!/bin/sh\necho \"$@\"\n");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = program(dir.path())
        .args(["run", "--nproc-per-node", "2", "train.py", "--lr", "0.1", "--report", "x"])
        .env("PATH", path)
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"--nproc-per-node 2 train.py --lr 0.1 --report x\n");
}

#[test]
fn invalid_variable_does_not_stop_the_job() {
    let dir = dir();
    let output = program(dir.path())
        .env("DDP_DOCTOR_STALL_AFTER", "soon")
        .env("DDP_DOCTOR_COLOR", "maybe")
        .args(["run", "--"])
        .args(exits_with_5())
        .output()
        .unwrap();
    assert_same_result(&exits_with_5(), output.status.code(), &output.stdout);
    let said = stderr(&output);
    for variable in ["DDP_DOCTOR_STALL_AFTER=soon", "DDP_DOCTOR_COLOR=maybe"] {
        let line = format!("ddp-doctor: {variable} is ignored: not a valid value\n");
        assert_eq!(said.matches(&line).count(), 1, "{said}");
    }
    // On the command line it is a usage error.
    let output =
        program(dir.path()).args(["run", "--stall-after", "soon", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn options_of_a_nested_run_are_reported_as_ignored() {
    let dir = dir();
    for (options, lines) in [("", 0), ("--report inner.json", 1)] {
        let script = format!("{PROGRAM} run {options} -- sh -c 'exit 6'");
        let output = run(&dir, &["sh", "-c", &script]);
        assert_eq!(output.status.code(), Some(6));
        let said = stderr(&output);
        assert_eq!(said.matches("options of this run are ignored").count(), lines, "{said}");
        assert!(!dir.path().join("inner.json").exists());
    }
}

#[test]
fn crashed_command_yields_the_status_of_a_shell() {
    let dir = dir();
    let status = run(&dir, &["sh", "-c", "kill -SEGV $$"]).status;
    assert_eq!((status.code(), status.signal()), (Some(139), None));
}

#[test]
fn command_without_ranks_leaves_no_run_directory() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = program(dir.path()).arg("run").args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, stderr) = run(&["--", "true"]);
    assert_eq!(status, Some(0), "{stderr}");
    assert!(!dir.path().join("ddp-doctor-runs").exists(), "{stderr}");
    assert!(!stderr.contains("report.json"), "{stderr}");
    // A failure, and a directory that was asked for, are kept.
    assert_eq!(run(&["--", "false"]).0, Some(1));
    assert_eq!(run(&["--run-dir", "asked", "--", "true"]).0, Some(0));
    assert!(dir.path().join("asked/report.json").exists());
    let runs: Vec<_> =
        fs::read_dir(dir.path().join("ddp-doctor-runs")).unwrap().flatten().collect();
    let name = runs[0].file_name().into_string().unwrap();
    assert!(runs.len() == 1 && name.starts_with("false-"), "{runs:?}");
}

#[test]
fn missing_command_is_reported_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let said = |command: &str, path: &str| {
        let mut run = program(dir.path());
        let output = run.args(["run", "--", command]).env("PATH", path).output().unwrap();
        assert_eq!(output.status.code(), Some(127));
        String::from_utf8(output.stderr).unwrap()
    };
    let path = std::env::var("PATH").unwrap();
    let script = said("no-such-script.py", &path);
    assert!(script.contains("no-such-script.py is not on PATH: `ddp-doctor run"), "{script}");
    let torchrun = said("torchrun", "/nonexistent");
    assert!(torchrun.contains("activate the environment of PyTorch"), "{torchrun}");
}

#[test]
fn help_ends_with_global_options() {
    let dir = tempfile::tempdir().unwrap();
    let output = program(dir.path()).args(["analyze", "--help"]).output().unwrap();
    let analyze = String::from_utf8(output.stdout).unwrap();
    let (own, global) = analyze.split_once("Global options:").unwrap();
    assert!(own.contains("--fail-on") && global.contains("--color"), "{analyze}");
}
