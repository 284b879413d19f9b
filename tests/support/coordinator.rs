//! A standing coordinator for tests.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ddp_doctor::transport::{Address, Credentials};
use ddp_doctor_proto::report::Report;
use tempfile::TempDir;

use super::process::{eventually, memory_mib, program};
use super::report::reports_in;

/// Time limit for an expected event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A standing coordinator with a directory of reports; killed when the test ends.
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
        Self::spawn(scratch, command, address, &[])
    }

    /// Starts one on a free port with further options, and waits until it has printed a line.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let command = program(scratch.path());
        let coordinator = Self::spawn(scratch, command, "127.0.0.1:0", options);
        eventually("it has printed a line", || coordinator.stderr().contains('\n'));
        coordinator
    }

    /// Starts one for peers with a token, on a free port of all addresses.
    pub(crate) fn start_remote(token: &str) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = program(scratch.path());
        command.env("DDP_DOCTOR_TOKEN", token);
        Self::spawn(scratch, command, "0.0.0.0:0", &[])
    }

    /// Starts one on a free port with a limit on its file descriptors.
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
        Self::spawn(scratch, limited, "127.0.0.1:0", &[])
    }

    fn spawn(scratch: TempDir, mut command: Command, address: &str, options: &[&str]) -> Self {
        command
            .args(["coordinator", "--listen", address, "--report-dir", "reports"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(fs::File::create(scratch.path().join("stderr")).unwrap());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, address: line.trim().to_owned(), scratch }
    }

    /// The address that it printed.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The port that it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.address.rsplit_once(':').unwrap().1.parse().unwrap()
    }

    /// The most memory that it has used, in MiB.
    pub(crate) fn peak_mib(&self) -> u64 {
        memory_mib(self.pid(), "VmHWM:")
    }

    /// The same address, parsed.
    pub(crate) fn parsed_address(&self) -> Address {
        Address::parse(&self.address, &Credentials::default()).unwrap()
    }

    /// The Unix socket behind its address.
    pub(crate) fn socket(&self) -> PathBuf {
        self.parsed_address().socket().unwrap().path()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard error so far.
    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.scratch.path().join("stderr")).unwrap()
    }

    /// The reports about jobs with this name, oldest first.
    pub(crate) fn reports(&self, job: &str) -> Vec<Report> {
        let mut reports = reports_in(&self.scratch.path().join("reports"));
        reports.retain(|report| report.job.id == job);
        reports.sort_by_key(|report| report.job.started_at);
        reports
    }

    /// Waits until the report about the only job with this name meets a condition; returns the
    /// report.
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
                started.elapsed() < TIMEOUT,
                "condition not met: {:#?}\n{}",
                self.reports(job),
                self.stderr()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends SIGTERM, waits for the exit, and returns the exit status.
    pub(crate) fn end(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(started.elapsed() < TIMEOUT, "no exit");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its working directory.
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
