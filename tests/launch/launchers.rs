//! Ways to start a job, and failures between `run` and the job: real PyTorch, one small program
//! each.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ddp_doctor_proto::report::{Report, Verdict};
use tempfile::TempDir;

use crate::support::coordinator::Coordinator;
use crate::support::process::{Finished, program, run_to_end, write_script};
use crate::support::pytorch_jobs::{jobs, launch, variant, venv};
use crate::support::report::{initiating, is_healthy, read_report, report_in};

/// A job under `run`, in its own directory.
struct Job {
    scratch: TempDir,
    command: Command,
}

impl Job {
    fn new(venv: &Path, options: &[&str], command: &[impl AsRef<OsStr>]) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let mut run = program(scratch.path());
        let path = std::env::var("PATH").unwrap_or_default();
        run.env("PATH", format!("{}:{path}", venv.join("bin").display()))
            .env("OMP_NUM_THREADS", "1");
        run.args(["run", "--report", "report.json", "--on-hang", "kill", "--kill-after", "1"]);
        run.args(options).arg("--").args(command);
        Self { scratch, command: run }
    }

    fn run(self) -> (Finished, Report, TempDir) {
        let finished = run_to_end(self.command);
        let report = report_in(&self.scratch.path().join("report.json"))
            .unwrap_or_else(|| panic!("no report\n{finished}"));
        (finished, report, self.scratch)
    }
}

/// A command that starts two ranks of a program, for tests that do not concern torchrun.
fn forked(name: &str) -> Vec<PathBuf> {
    launch(2, &variant(name))
}

fn job(name: &str) -> String {
    variant(name).display().to_string()
}

#[test]
#[ignore = "live: part of make test-all"]
fn python_m_torch_distributed_run_is_diagnosed() {
    let Some(venv) = venv() else { return };
    let module = ["python", "-m", "torch.distributed.run", "--nproc-per-node", "2"];
    let program = job("faulty/op_mismatch.py");
    let (finished, report, _) = Job::new(venv, &[], &[&module[..], &[&program]].concat()).run();
    assert_eq!(finished.status, Some(75), "{finished}");
    assert_eq!(initiating(&report), ("DD103", &[0, 1][..]));
}

#[test]
fn accelerate_launch_is_healthy() {
    let Some(venv) = venv() else { return };
    // accelerate offers only MPI for several processes on a CPU; its launcher for GPUs works too.
    let launch = ["accelerate", "launch", "--multi_gpu", "--num_processes", "2"];
    let more = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"];
    let program = job("healthy/op_mismatch.py");
    let command = [&launch[..], &more[..], &["--main_process_port", "0", &program]].concat();
    let (finished, report, _) = Job::new(venv, &[], &command).run();
    assert_eq!(finished.status, Some(0), "{finished}");
    is_healthy(&report, 2);
}

#[test]
fn concurrent_jobs_are_diagnosed_separately() {
    let Some(venv) = venv() else { return };
    let start =
        |name: &'static str| std::thread::spawn(move || Job::new(venv, &[], &forked(name)).run());
    let (faulty, healthy) = (start("faulty/root_mismatch.py"), start("healthy/root_mismatch.py"));
    let (finished, report, _) = faulty.join().unwrap();
    assert_eq!(finished.status, Some(75), "{finished}");
    assert_eq!(initiating(&report), ("DD107", &[0, 1][..]));
    let (finished, report, _) = healthy.join().unwrap();
    assert_eq!(finished.status, Some(0), "{finished}");
    is_healthy(&report, 2);
}

#[test]
fn two_launches_under_one_run_are_separate_worlds() {
    let Some(venv) = venv() else { return };
    let words: Vec<String> = launch(2, &jobs().join("support/late.py"))
        .iter()
        .map(|it| it.display().to_string())
        .collect();
    let launch = |arguments: &str| format!("{} {arguments}", words.join(" "));
    let script = format!("{} & {} & wait", launch("all_reduce 1"), launch("broadcast 0"));
    let (finished, report, _) = Job::new(venv, &[], &["sh", "-c", &script]).run();
    assert_eq!(finished.status, Some(0), "{finished}");
    is_healthy(&report, 2);
}

/// Interception captures calls on a PyTorch without hooks.
#[test]
fn interception_yields_the_same_findings() {
    let Some(venv) = venv() else { return };
    for (name, expected) in
        [("faulty/op_mismatch.py", Some(("DD103", &[0, 1][..]))), ("healthy/op_mismatch.py", None)]
    {
        let mut job = Job::new(venv, &[], &forked(name));
        job.command.env("DDP_DOCTOR_CAPTURE", "interception");
        let (_, report, _) = job.run();
        assert_eq!(report.evidence.layers, ["c10d"], "{report:#?}");
        match expected {
            Some(expected) => assert_eq!(initiating(&report), expected),
            None => is_healthy(&report, 2),
        }
    }
}

#[test]
fn standing_coordinator_returns_the_diagnosis_to_run() {
    let Some(venv) = venv() else { return };
    let coordinator = Coordinator::start();
    let options = ["--coordinator", coordinator.address()];
    let command = forked("faulty/two_groups_in_opposite_order.py");
    let (finished, report, _) = Job::new(venv, &options, &command).run();
    assert_eq!(finished.status, Some(75), "{finished}");
    assert_eq!(initiating(&report), ("DD111", &[0, 1][..]));
    assert!(finished.stderr.contains("[DD111]"), "{finished}");
}

#[test]
fn unreachable_coordinator_leaves_the_job_diagnosed() {
    let Some(venv) = venv() else { return };
    let command = forked("faulty/op_mismatch.py");
    let options = ["--coordinator", "127.0.0.1:1"];
    let (finished, report, _) = Job::new(venv, &options, &command).run();
    assert_eq!(finished.status, Some(75), "{finished}");
    assert_eq!(initiating(&report), ("DD103", &[0, 1][..]));
    assert_eq!(
        finished.stderr.matches("no coordinator of this user listens").count(),
        1,
        "{finished}"
    );
}

#[test]
fn terminated_hang_is_reported_with_its_cause() {
    let Some(venv) = venv() else { return };
    let command = forked("faulty/asleep.py");
    let mut hung = Job::new(venv, &[], &command);
    let stamp = hung.scratch.path().join("stamp");
    hung.command.env("DDP_DOCTOR_TEST_STAMP", &stamp);
    hung.command.env("DDP_DOCTOR_TIME_SCALE", "0.25");
    let run = hung.command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = run.id();
    let mut run = Ended(run);
    // Rank 1 is asleep, and rank 0 will wait for it shortly.
    while !stamp.with_extension("1").exists() {
        assert!(run.0.try_wait().unwrap().is_none(), "the job ended by itself");
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(Duration::from_secs(3));
    Command::new("kill").args(["-TERM", &pid.to_string()]).status().unwrap();
    run.0.wait().unwrap();
    let report = read_report(&hung.scratch.path().join("report.json"));
    // DD204 needs two stacks of rank 1; there may not be enough time for them.
    let (code, root) = initiating(&report);
    assert!(["DD101", "DD204"].contains(&code), "{report:#?}");
    assert_eq!(root, [1], "{report:#?}");
    assert_eq!(report.findings.len(), 1, "no finding about the end of the ranks: {report:#?}");
    assert_eq!(report.verdict, Verdict::Hang);
}

/// A process that is killed when the test ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Writes a launcher script that starts rank 1 with another command, and returns its path.
fn wrapper(folder: &Path, rank_1: &str, program: &str) -> String {
    let path = folder.join("launch");
    let script = format!(
        "#!/bin/sh\nif [ \"$RANK\" = 1 ]; then exec {rank_1} {program}; fi\nexec python {program}\n"
    );
    write_script(&path, &script);
    path.display().to_string()
}

/// Runs longer than it takes to detect a process with PyTorch and without capture.
const STEPS: &str = "
import time
import torch
import torch.distributed as dist

dist.init_process_group('gloo')
for _ in range(30):
    dist.all_reduce(torch.ones(256))
    time.sleep(0.3)
dist.destroy_process_group()
";

#[track_caller]
fn capture_is_lost(rank_1: &str, because: &str) {
    let Some(venv) = venv() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("train.py");
    fs::write(&program, STEPS).unwrap();
    // Rank 0 waits for rank 1 in every step, and rank 1 is not captured.
    let launch = wrapper(folder.path(), rank_1, &program.display().to_string());
    let torchrun = ["torchrun", "--standalone", "--nproc-per-node", "2", "--no-python", &launch];
    let (finished, report, _) = Job::new(venv, &["--stall-after", "2"], &torchrun).run();
    assert_eq!(finished.status, Some(0), "{finished}");
    assert_eq!(initiating(&report), ("DD901", &[1][..]), "{report:#?}");
    assert!(report.findings[0].summary.contains(because), "{report:#?}");
    let line = format!("error[DD901] evidence-incomplete: {}", report.findings[0].summary);
    let said = finished.stderr.lines().filter(|said| *said == line).count();
    assert_eq!(said, 1, "{line}\n{finished}");
    assert_eq!(report.evidence.missing_ranks, [1]);
    assert_eq!(report.verdict, Verdict::Insufficient);
}

#[test]
fn rank_in_isolated_mode_is_reported_as_not_captured() {
    capture_is_lost("python -I", "-I");
}

#[test]
#[ignore = "live: part of make test-all"]
fn rank_with_a_reset_environment_is_reported_as_not_captured() {
    let names =
        "RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT PATH TORCHELASTIC_USE_AGENT_STORE";
    let keep: Vec<String> = names.split(' ').map(|name| format!("{name}=\"${name}\"")).collect();
    capture_is_lost(&format!("env -i {} python", keep.join(" ")), "environment");
}

#[test]
fn disabled_doctor_captures_nothing() {
    let Some(venv) = venv() else { return };
    let command = forked("healthy/op_mismatch.py");
    let mut off = Job::new(venv, &[], &command);
    off.command.env("DDP_DOCTOR", "0");
    let finished = run_to_end(off.command);
    assert_eq!(finished.status, Some(0), "{finished}");
    assert!(!finished.stderr.contains("ddp-doctor"), "{finished}");
    assert!(!off.scratch.path().join("report.json").exists());
}
