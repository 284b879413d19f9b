//! `attach --follow`: a job that hangs, goes on, loses a rank, and ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::live::{Job, plain};
use crate::support::process::{eventually, program, run_to_end};
use crate::support::pytorch_jobs::venv;

/// The program that both this and `hosts` run.
pub(super) fn stages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attach/stages.py")
}

/// `attach --follow` with its output in a file.
pub(super) struct Following {
    child: Child,
    output: PathBuf,
}

impl Following {
    pub(super) fn start(job: &Job, name: &str) -> Self {
        let directory = job.directory.path();
        let output = directory.join(format!("{name}.txt"));
        let file = fs::File::create(&output).unwrap();
        let mut attach = program(directory);
        attach
            .args(["attach", "--follow", "--run-dir", name])
            .args(job.ranks())
            .env("DDP_DOCTOR_TIME_SCALE", "0.1")
            .stdin(Stdio::null())
            .stderr(file.try_clone().unwrap())
            .stdout(file);
        Self { child: attach.spawn().unwrap(), output }
    }

    #[track_caller]
    pub(super) fn prints(&self, text: &str) {
        let printed = || fs::read_to_string(&self.output).unwrap();
        eventually(&format!("{text:?} is printed"), || printed().contains(text));
    }

    /// Ends it as Ctrl-C does.
    pub(super) fn interrupt(self) -> (Option<i32>, String) {
        kill("-INT", &self.child.id().to_string());
        self.end()
    }

    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        (status.code(), fs::read_to_string(&self.output).unwrap())
    }
}

fn kill(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}

#[test]
fn job_is_followed_from_its_hang_to_its_end() {
    let Some(venv) = venv() else { return };
    let job = Job::spawn(plain(&stages(), 2), venv);
    let file = |name: &str| job.directory.path().join(name);
    assert!(Command::new("mkfifo").arg(file("go")).status().unwrap().success());
    eventually("the job hangs", || file("stuck-0").exists() && file("stuck-1").exists());

    // Ctrl-C: the status is that of the last report.
    let interrupted = Following::start(&job, "interrupted");
    interrupted.prints("DD204");
    let (status, text) = interrupted.interrupt();
    assert_eq!(status, Some(1), "{text}");

    let following = Following::start(&job, "whole");
    following.prints("error[DD204]");
    following.prints("stages.py");
    let mut watch = program(job.directory.path());
    watch.args(["watch", "--once", "whole"]);
    let screen = run_to_end(watch).stdout;
    assert!(screen.contains("DD204"), "{screen}");

    fs::write(file("go"), "").unwrap();
    following.prints("withdrawn: DD204");
    // The evidence of the hang is kept.
    let mut analyze = program(job.directory.path());
    analyze.args(["analyze", "whole"]);
    let finished = run_to_end(analyze);
    assert!(finished.stdout.contains("DD204"), "{finished}");
    fs::write(file("end"), "").unwrap();
    following.prints("rank 1 has ended");
    let ranks = job.ranks();
    assert_eq!(ranks.len(), 1);
    kill("-KILL", &ranks[0]);
    following.prints("all ranks have ended");
    let (_, text) = following.end();
    assert!(text.contains("watching job") && text.contains("DD201"), "{text}");
}
