//! A standing coordinator.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::Report;
use tempfile::TempDir;

use super::process::program;

/// How long anything may take that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A standing coordinator with its reports; ended when the test is over.
pub(crate) struct Coordinator {
    child: Child,
    address: String,
    scratch: TempDir,
}

impl Coordinator {
    /// Starts one on a free port.
    pub(crate) fn start() -> Self {
        Self::start_at("127.0.0.1:0")
    }

    /// Starts one at an address.
    pub(crate) fn start_at(address: &str) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let command = program(scratch.path());
        Self::spawn(scratch, command, address)
    }

    /// Starts one on a free port that may have so many descriptors.
    pub(crate) fn start_with_descriptors(count: u32) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let program = program(scratch.path());
        let mut limited = Command::new("sh");
        for (variable, _) in program.get_envs() {
            limited.env_remove(variable);
        }
        let script = format!("ulimit -n {count}; exec \"$0\" \"$@\"");
        limited.args(["-c", &script]).arg(program.get_program());
        limited.current_dir(scratch.path());
        Self::spawn(scratch, limited, "127.0.0.1:0")
    }

    fn spawn(scratch: TempDir, mut command: Command, address: &str) -> Self {
        command
            .args([
                "coordinator",
                "--listen",
                address,
                "--report-dir",
                "reports",
            ])
            .stdout(Stdio::piped())
            .stderr(fs::File::create(scratch.path().join("said")).unwrap());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        Self {
            child,
            address: line.trim().to_owned(),
            scratch,
        }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The socket that its address names.
    pub(crate) fn socket(&self) -> PathBuf {
        ddp_doctor::node::socket::find(&self.address).unwrap()
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said so far.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.scratch.path().join("said")).unwrap()
    }

    /// The reports about jobs with this name, the oldest first.
    pub(crate) fn reports(&self, job: &str) -> Vec<Report> {
        let Ok(files) = fs::read_dir(self.scratch.path().join("reports")) else {
            return Vec::new();
        };
        let mut reports: Vec<Report> = files
            // A file without a report yet is empty.
            .filter_map(|file| serde_json::from_slice(&fs::read(file.unwrap().path()).ok()?).ok())
            .filter(|report: &Report| report.job.id == job)
            .collect();
        reports.sort_by_key(|report| report.job.started_at);
        reports
    }

    /// The report about the one job with this name, once it is so.
    #[track_caller]
    pub(crate) fn until(&self, job: &str, is_so: impl Fn(&Report) -> bool) -> Report {
        let started = Instant::now();
        loop {
            let mut reports = self.reports(job);
            assert!(reports.len() < 2, "{reports:#?}");
            if let Some(report) = reports.pop().filter(&is_so) {
                return report;
            }
            assert!(
                started.elapsed() < PATIENCE,
                "never; {:#?}\n{}",
                self.reports(job),
                self.said()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Asks it to end, and waits for that; its status.
    pub(crate) fn end(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(started.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends it as if the machine had failed.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its folder.
    pub(crate) fn folder(&self) -> &Path {
        self.scratch.path()
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
