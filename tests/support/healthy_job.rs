//! Results of healthy jobs, compared with those of runs without ddp-doctor.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use ddp_doctor_proto::report::Report;
use tempfile::TempDir;

use super::compiled_programs::training;
use super::process::{eventually, program, without_own_variables};
use crate::support::report::report_in;

/// Files that jobs wait for.
const GATE_FILES: [&str; 4] = ["go", "flood1", "flood2", "stop"];

/// Writes its environment to the file `env`, waits for the file `go`, and starts a program.
const GATE: &str =
    "env >env.new; mv env.new env; until [ -e go ]; do sleep 0.05; done; exec \"$0\" \"$@\"";

/// Standard output of a job, and its exit status as reported by a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
struct JobResult {
    status: Option<i32>,
    /// Sorted, since ranks print in any order.
    lines: Vec<String>,
}

impl JobResult {
    fn new(status: Option<i32>, stdout: &[u8]) -> Self {
        let text = String::from_utf8_lossy(stdout);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        Self { status, lines }
    }

    /// Runs a command without ddp-doctor. All files that it may wait for exist.
    fn without_ddp_doctor(command: &[String]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in GATE_FILES {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let mut alone = Command::new(&command[0]);
        without_own_variables(&mut alone);
        let output = alone
            .args(&command[1..])
            .current_dir(dir.path())
            .env_remove("LD_PRELOAD")
            .env_remove("PYTHONPATH")
            // Disables capture in programs that are linked with the agent.
            .env("DDP_DOCTOR", "0")
            .output()
            .unwrap();
        let signal = output.status.signal();
        let status = output.status.code().or(signal.map(|signal| 128 + signal));
        assert!(!output.stdout.is_empty(), "{command:?} prints no result");
        Self::new(status, &output.stdout)
    }
}

/// Panics unless this exit status and standard output are those of the command without ddp-doctor.
/// Each command runs once without it.
#[track_caller]
pub(crate) fn assert_same_result(
    command: &[impl AsRef<str>],
    status: Option<i32>,
    stdout: impl AsRef<[u8]>,
) {
    static RESULTS: Mutex<BTreeMap<Vec<String>, JobResult>> = Mutex::new(BTreeMap::new());
    let command = owned(command);
    let mut results = RESULTS.lock().unwrap_or_else(PoisonError::into_inner);
    let expected =
        results.entry(command.clone()).or_insert_with(|| JobResult::without_ddp_doctor(&command));
    let result = JobResult::new(status, stdout.as_ref());
    assert_eq!(&result, expected, "{command:?}");
}

fn owned(words: &[impl AsRef<str>]) -> Vec<String> {
    words.iter().map(|word| word.as_ref().to_owned()).collect()
}

/// A healthy job under `run`, which starts its ranks once the file `go` exists in its directory.
/// Killed when the test ends.
pub(crate) struct HealthyJob {
    run: Child,
    dir: TempDir,
    command: Vec<String>,
}

impl HealthyJob {
    /// Starts `run` with these options and the example in C, with four ranks.
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_program(options, &[training(), "4"])
    }

    /// Starts `run` with these options and this program.
    pub(crate) fn start_program(options: &[&str], command: &[impl AsRef<str>]) -> Self {
        let command = owned(command);
        let dir = tempfile::tempdir().unwrap();
        let create = |name| fs::File::create(dir.path().join(name)).unwrap();
        let run = program(dir.path())
            .args(["run", "--report", "r.json"])
            .args(options)
            .args(["--", "sh", "-c", GATE])
            .args(&command)
            .stdin(Stdio::null())
            .stdout(create("printed"))
            .stderr(create("stderr"))
            .process_group(0)
            .spawn()
            .unwrap();
        Self { run, dir, command }
    }

    /// Path of a file in the job's directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Creates a file in the job's directory.
    pub(crate) fn create(&self, name: &str) {
        fs::write(self.file(name), "").unwrap();
    }

    /// Lets a rank that waits for `flood1` or `flood2` make its calls.
    pub(crate) fn flood(&self, number: u32) {
        self.create(&format!("flood{number}"));
        let flooded = self.file(&format!("flooded{number}"));
        eventually("the calls are made", || flooded.exists());
    }

    /// A variable of the job's environment, once the job has started.
    pub(crate) fn variable(&self, name: &str) -> String {
        eventually("the job runs", || self.file("env").exists());
        let text = fs::read_to_string(self.file("env")).unwrap();
        let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned());
        text.lines().find_map(value).unwrap()
    }

    /// The report so far.
    pub(crate) fn report(&self) -> Option<Report> {
        report_in(&self.file("r.json"))
    }

    /// Starts the ranks, and waits until one is followed. The report does not show that: it is
    /// written when findings change.
    pub(crate) fn start_ranks(&self) {
        self.create("go");
        let coordinator = self.variable("DDP_DOCTOR_COORDINATOR");
        eventually("a rank is followed", || {
            let mut status = program(self.dir.path());
            let output = status.args(["status", &coordinator]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).contains("rank 0 running")
        });
    }

    /// Standard error of the job and of `run`.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.file("stderr")).unwrap()
    }

    /// Process id of `run`.
    pub(crate) fn pid(&self) -> u32 {
        self.run.id()
    }

    /// Sends a signal to `run`.
    pub(crate) fn signal(&self, signal: &str) {
        let kill = [signal, &self.run.id().to_string()].map(str::to_owned);
        assert!(Command::new("kill").args(kill).status().unwrap().success());
    }

    /// Lets the job end. Panics unless its result is that without ddp-doctor; returns the last
    /// report.
    #[track_caller]
    pub(crate) fn assert_same_result(&mut self) -> Report {
        self.assert_same_result_without_report();
        self.report().unwrap()
    }

    /// The same if the coordinator sends no report.
    #[track_caller]
    pub(crate) fn assert_same_result_without_report(&mut self) {
        GATE_FILES.iter().for_each(|name| self.create(name));
        eventually("the job ends", || self.run.try_wait().unwrap().is_some());
        let status = self.run.wait().unwrap();
        let printed = fs::read(self.file("printed")).unwrap();
        println!("{}", self.stderr());
        assert_same_result(&self.command, status.code(), printed);
    }
}

impl Drop for HealthyJob {
    fn drop(&mut self) {
        // The ranks outlive `run` if it is killed.
        let group = format!("-{}", self.run.id());
        let mut kill = Command::new("kill");
        kill.args(["-KILL", "--", &group]).stderr(Stdio::null());
        kill.status().ok();
        self.run.wait().ok();
    }
}
