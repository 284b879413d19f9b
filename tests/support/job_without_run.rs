//! A job started without `run`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::support::healthy_job::assert_same_result;
use crate::support::process::{eventually, program};

/// A job started without `run`, with its own directory for black boxes. Its ranks are killed when
/// the test ends.
pub(crate) struct Bare {
    pub(crate) child: Child,
    pub(crate) scratch: TempDir,
}

impl Bare {
    pub(crate) fn start(job: &str, coordinator: &str, command: &[&str]) -> Self {
        Self::start_with(job, coordinator, command, &[])
    }

    pub(crate) fn start_with(
        job: &str,
        coordinator: &str,
        command: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        use std::os::unix::process::CommandExt;
        let scratch = tempfile::tempdir().unwrap();
        let bare = program(scratch.path());
        let clean: Vec<_> = bare.get_envs().map(|(name, _)| name.to_owned()).collect();
        let mut bare = Command::new(command[0]);
        for name in clean {
            bare.env_remove(name);
        }
        let child = bare
            .args(&command[1..])
            .current_dir(scratch.path())
            .env("DDP_DOCTOR_JOB", job)
            .env("DDP_DOCTOR_COORDINATOR", coordinator)
            .env("DDP_DOCTOR_PROGRAM", env!("CARGO_BIN_EXE_ddp-doctor"))
            .env("DDP_DOCTOR_BOX_DIR", scratch.path().join("boxes"))
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(fs::File::create(scratch.path().join("printed")).unwrap())
            .stderr(fs::File::create(scratch.path().join("stderr")).unwrap())
            .process_group(0)
            .spawn()
            .unwrap();
        Self { child, scratch }
    }

    /// Paths of the existing black boxes.
    pub(crate) fn boxes(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.scratch.path().join("boxes")) else {
            return Vec::new();
        };
        entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|it| it == "box"))
            .collect()
    }

    /// Pids of the ranks, from the names of their boxes.
    pub(crate) fn ranks(&self) -> Vec<u32> {
        let name = |path: &PathBuf| path.file_name()?.to_str()?.split('.').next()?.parse().ok();
        self.boxes().iter().filter_map(name).collect()
    }

    pub(crate) fn stderr(&self) -> String {
        fs::read_to_string(self.scratch.path().join("stderr")).unwrap()
    }

    /// The reporter's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.scratch.path().join("boxes/reporter.log")).unwrap_or_default()
    }

    pub(crate) fn wait(&mut self) -> Option<i32> {
        eventually("the job ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }

    /// Waits for the exit. Panics unless the result is that of the command without ddp-doctor.
    #[track_caller]
    pub(crate) fn assert_same_result(&mut self, command: &[&str]) {
        let status = self.wait();
        let printed = fs::read(self.scratch.path().join("printed")).unwrap();
        assert_same_result(command, status, printed);
    }

    pub(crate) fn signal(&self, signal: &str) {
        let group = format!("-{}", self.child.id());
        Command::new("kill").args([signal, "--", &group]).stderr(Stdio::null()).status().unwrap();
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.signal("-KILL");
        self.child.wait().ok();
    }
}

/// Running reporters that follow boxes below a folder.
pub(crate) fn reporters(folder: &Path) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap();
    processes
        .filter_map(|it| it.unwrap().file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&bytes);
            line.contains("\0reporter\0") && line.contains(folder.to_str().unwrap())
        })
        .collect()
}
