//! The programs, started without ddp-doctor and then attached to.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor::evidence::journal::{Reader, Writer};
use ddp_doctor_proto::report::Report;
use ddp_doctor_proto::v1::{self, event::Kind};
use tempfile::TempDir;

use super::programs::{self, Program};
use crate::support::process::{free_port, program, run_to_end};
use crate::support::pytorch_jobs::{launch, venv};

/// Time limit for all ranks to join, which takes minutes on a busy machine, and for `attach` to find out then why they
/// hang.
const MAX_START: Duration = Duration::from_secs(300);
const MAX_HANG: Duration = Duration::from_secs(90);
/// Number of times that a healthy job is attached to.
const HEALTHY_ATTEMPTS: usize = 6;

/// A running job; its processes are killed when it is dropped.
pub(super) struct Job {
    child: Child,
    pub(super) directory: TempDir,
    venv: &'static Path,
}

impl Job {
    fn start(program: &Program, venv: &'static Path) -> Self {
        if program.truth.spawns {
            let mut command = Command::new("python");
            command.arg(&program.path);
            return Self::spawn(command, venv);
        }
        if program.truth.plain {
            return Self::spawn(plain(&program.path, program.truth.nproc), venv);
        }
        let words = launch(program.truth.nproc, &program.path);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        Self::spawn(command, venv)
    }

    pub(super) fn spawn(mut command: Command, venv: &'static Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let output = fs::File::create(directory.path().join("output")).unwrap();
        command
            .env("PATH", format!("{}:{path}", venv.join("bin").display()))
            .env("JOB_DIR", directory.path())
            .env("OMP_NUM_THREADS", "1")
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stderr(output.try_clone().unwrap())
            .stdout(output)
            .process_group(0);
        Self { child: command.spawn().unwrap(), directory, venv }
    }

    /// Processes of the ranks: the children of the launcher.
    pub(super) fn ranks(&self) -> Vec<String> {
        let launcher = self.child.id().to_string();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|it| it.file_name().into_string().ok());
        pids.filter(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let rest = stat.rsplit(')').next().unwrap_or_default();
            rest.split_whitespace().nth(1) == Some(&launcher)
        })
        .collect()
    }

    /// The report of `attach` on the ranks, which it finds by their launcher; `None`: there are none yet.
    pub(super) fn attach(&self, run_dir: &Path) -> Option<Report> {
        let mut attach = program(self.directory.path());
        let launcher = self.child.id().to_string();
        attach.args(["attach", "--format", "json", "--run-dir"]).arg(run_dir).arg(launcher);
        attach.env("DDP_DOCTOR_TIME_SCALE", "0.1");
        serde_json::from_str(&run_to_end(attach).stdout).ok()
    }

    pub(super) fn output(&self) -> String {
        fs::read_to_string(self.directory.path().join("output")).unwrap_or_default()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status().unwrap();
        self.child.wait().ok();
        let mount = self.directory.path().join("data");
        if mount.exists() {
            Command::new("umount").arg("--lazy").arg(mount).stderr(Stdio::null()).status().ok();
        }
    }
}

/// A command that starts each rank as a process, and ends none if another one dies.
pub(super) fn plain(program: &Path, ranks: u32) -> Command {
    let script = "for rank in $(seq 0 $((WORLD_SIZE - 1))); do RANK=$rank LOCAL_RANK=$rank python \"$0\" & done; wait";
    let mut command = Command::new("bash");
    let size = ranks.to_string();
    command
        .args(["-c", script])
        .arg(program)
        .envs([("WORLD_SIZE", &size), ("LOCAL_WORLD_SIZE", &size)])
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", free_port().to_string());
    command
}

/// Starts a program, waits until it hangs, and compares what `attach` finds with the truth.
fn check(program: &Program) {
    let Some(venv) = venv() else { return };
    if program.truth.privileged && fs::File::open("/dev/fuse").is_err() {
        println!("skipped {}: /dev/fuse cannot be opened", program.name);
        return;
    }
    let job = Job::start(program, venv);
    let started = Instant::now();
    let mut attempts = 0;
    // Without a time: not all ranks have joined yet.
    let mut begun: Option<Instant> = None;
    loop {
        thread::sleep(Duration::from_secs(2));
        let run_dir = job.directory.path().join(format!("run-{}", started.elapsed().as_millis()));
        let report =
            job.attach(&run_dir).filter(|it| it.ranks.len() == program.truth.nproc as usize);
        if begun.is_none() && report.as_ref().is_some_and(|it| !it.job.backends.is_empty()) {
            begun = Some(Instant::now());
        }
        let faults = report.map_or_else(
            || vec!["not all ranks were found".to_owned()],
            |report| program.faults(&report),
        );
        attempts += usize::from(faults.is_empty());
        let is_enough =
            if program.is_healthy() { attempts == HEALTHY_ATTEMPTS } else { attempts > 0 };
        if is_enough {
            if std::env::var_os("DDP_DOCTOR_RECORD_ATTACHED").is_some() {
                record(program, &job, &run_dir);
            }
            return;
        }
        let is_late =
            started.elapsed() > MAX_START || begun.is_some_and(|begun| begun.elapsed() > MAX_HANG);
        let is_accused = program.is_healthy() && faults.iter().any(|it| it.contains("accused"));
        assert!(
            !is_late && !is_accused,
            "{}: {}\n{}",
            program.name,
            faults.join("; "),
            job.output()
        );
    }
}

/// Keeps the evidence as the recording of the program, without the paths and names of this machine.
fn record(program: &Program, job: &Job, run_dir: &Path) {
    let repository = format!("{}/", env!("CARGO_MANIFEST_DIR"));
    let directory = job.directory.path().display().to_string();
    let printed = Command::new(job.venv.join("bin/python"))
        .args(["-c", "import sys; print(sys.base_prefix)"])
        .output();
    let base = String::from_utf8(printed.unwrap().stdout).unwrap();
    let venv = job.venv.display().to_string();
    let clean = |text: &mut String| {
        for (from, to) in
            [(&*repository, ""), (&*venv, "/venv"), (base.trim(), "/python"), (&*directory, "/job")]
        {
            *text = text.replace(from, to);
        }
    };
    let clean_stacks = |stacks: &mut v1::Stacks| {
        for thread in &mut stacks.threads {
            thread
                .python
                .iter_mut()
                .chain(&mut thread.native)
                .for_each(|frame| clean(&mut frame.file));
            thread.blocked_on.iter_mut().for_each(|it| clean(&mut it.what));
        }
    };
    let mut reader = Reader::open(&run_dir.join("journal.ddpj")).unwrap();
    fs::remove_file(program.recording()).ok();
    let mut writer = Writer::create(&program.recording()).unwrap();
    while let Some(mut report) = reader.read().unwrap() {
        for event in &mut report.events {
            match event.kind.as_mut() {
                Some(Kind::Hello(hello)) => {
                    (hello.host, hello.boot_id) = ("host".into(), "boot".into());
                    hello.command.clear();
                }
                Some(Kind::SiteDefined(site)) => clean(&mut site.file),
                Some(Kind::Stacks(stacks)) => clean_stacks(stacks),
                Some(Kind::RankStarted(started)) => started.looks.iter_mut().for_each(clean_stacks),
                _ => {}
            }
        }
        writer.append(&report).unwrap();
    }
}

#[test]
fn quick_programs_are_diagnosed() {
    programs::all().iter().filter(|it| it.truth.quick).for_each(check);
}

#[test]
#[ignore = "takes some minutes: make test-all"]
fn all_programs_are_diagnosed() {
    // Names, separated by commas: only these.
    let named = std::env::var("DDP_DOCTOR_ATTACH_PROGRAMS").unwrap_or_default();
    let is_named = |it: &&Program| named.is_empty() || named.split(',').any(|name| name == it.name);
    programs::all().iter().filter(|it| !it.truth.quick).filter(is_named).for_each(check);
}
