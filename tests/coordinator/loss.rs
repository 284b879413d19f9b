//! The diagnosis continues on the node when the coordinator is lost.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use ddp_doctor_proto::report::{Report, Verdict};
use tempfile::TempDir;

use crate::support::coordinator::Coordinator;
use crate::support::healthy_job::HealthyJob;
use crate::support::process::{PROGRAM, eventually, program};
use crate::support::report::is_healthy;

/// A process that is killed at the end of the test.
struct Process(Child);

impl Process {
    fn signal(&self, signal: &str) {
        send(signal, self.0.id());
    }

    fn end(&mut self) -> Option<i32> {
        eventually("the process ends", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A job that hangs once it is allowed to start, under a `run` that reports to a coordinator.
struct Watched {
    dir: TempDir,
    coordinator: Coordinator,
}

impl Watched {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), coordinator: Coordinator::start() }
    }

    fn signal_coordinator(&self, signal: &str) {
        send(signal, self.coordinator.pid());
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the job. Its ranks start, and hang, after [`Self::hang`].
    fn run(&self, options: &[&str]) -> Process {
        let script = format!(
            "touch started; while [ ! -e hang ]; do sleep 0.05; done; exec {PROGRAM} demo-rank early-exit"
        );
        let mut run = program(self.dir.path());
        run.args(["run", "--coordinator", self.coordinator.address(), "--time-scale", "0.2"])
            .args(["--report", "r.json"])
            .args(options)
            .args(["--", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.file("stderr")).unwrap());
        Process(run.spawn().unwrap())
    }

    fn hang(&self) {
        fs::write(self.file("hang"), "").unwrap();
    }

    fn stderr_contains(&self, words: &str) -> bool {
        fs::read_to_string(self.file("stderr")).unwrap().contains(words)
    }

    fn wait_until_reported(&self) {
        eventually("the job is attached", || self.file("r.json").exists());
    }

    fn wait_until_continued(&self) {
        eventually("the node continues", || {
            self.stderr_contains("the diagnosis continues on this node")
        });
    }

    fn report(&self) -> Option<Report> {
        let text = fs::read(self.file("r.json")).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn wait_until_diagnosed(&self) {
        eventually("the hang is found", || {
            self.report()
                .is_some_and(|it| it.verdict == Verdict::Hang && it.findings[0].code == "DD102")
        });
    }
}

fn send(signal: &str, pid: u32) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

#[test]
fn killed_coordinator_leaves_the_diagnosis_to_the_node() {
    let mut watched = Watched::new();
    let mut run = watched.run(&[]);
    watched.wait_until_reported();
    watched.coordinator.kill();
    watched.wait_until_continued();
    watched.hang();
    watched.wait_until_diagnosed();

    // A restarted coordinator gets all records and diagnoses the job again.
    let _second = Coordinator::start_at(watched.coordinator.address());
    eventually("the coordinator continues", || watched.stderr_contains("answers again"));
    fs::remove_file(watched.file("r.json")).unwrap();
    run.signal("-TERM");
    assert_eq!(run.end(), Some(143));
    let report = watched.report().unwrap();
    assert_eq!(report.evidence.records_lost, 0);
    assert_eq!(report.findings[0].code, "DD102");
    assert!(report.findings.iter().all(|it| it.code != "DD901"), "{report:#?}");
}

#[test]
fn stopped_coordinator_does_not_switch_on_hang_kill_off() {
    let watched = Watched::new();
    let mut run = watched.run(&["--on-hang", "kill", "--kill-after", "1"]);
    watched.wait_until_reported();
    watched.signal_coordinator("-STOP");
    watched.hang();
    assert_eq!(run.end(), Some(75));
    assert!(watched.stderr_contains("the diagnosis continues on this node"));
    assert_eq!(watched.report().unwrap().findings[0].code, "DD102");
}

/// Waits until a line about the lost coordinator is logged.
fn wait_until_continued(job: &HealthyJob) {
    eventually("the node continues", || {
        job.stderr().contains("the diagnosis continues on this node")
    });
}

#[test]
fn coordinator_stopped_from_the_start_does_not_delay_the_job() {
    let coordinator = Coordinator::start();
    send("-STOP", coordinator.pid());
    let mut job =
        HealthyJob::start(&["--coordinator", coordinator.address(), "--time-scale", "0.2"]);
    job.variable("DDP_DOCTOR_JOB");
    wait_until_continued(&job);
    is_healthy(&job.assert_same_result(), 4);
}

#[test]
fn healthy_job_is_undisturbed_when_its_coordinator_is_lost() {
    for signal in ["-KILL", "-STOP"] {
        let coordinator = Coordinator::start();
        let options = ["--time-scale", "0.2", "--on-hang", "kill", "--coordinator"];
        let mut job = HealthyJob::start(&[&options[..], &[coordinator.address()]].concat());
        eventually("the job is attached", || job.report().is_some());
        send(signal, coordinator.pid());
        wait_until_continued(&job);
        is_healthy(&job.assert_same_result(), 4);
    }
}
