//! NCCL calls through the Rust API (`ddp_doctor_agent::nccl`, over cudarc): its example against the
//! doubles, and without CUDA.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use ddp_doctor_proto::report::{Confidence, Report, Verdict};
use tempfile::TempDir;

use crate::doubles::Doubles;
use crate::support::artifact;
use crate::support::process::{Finished, program, run_to_end};
use crate::support::report::{initiating, read_report};

/// The example, which loads CUDA and NCCL with `dlopen`.
fn example() -> PathBuf {
    artifact("examples/nccl")
}

/// A directory with the doubles under the names that cudarc tries first.
pub(super) fn found_by_cudarc(doubles: &Doubles) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let launcher = doubles.launch(1, Path::new("")).remove(0);
    for (name, library) in [
        ("libcuda.so", "libcuda.so.1"),
        ("libcuda.so.1", "libcuda.so.1"),
        ("libnccl.so", "libnccl.so.2"),
    ] {
        symlink(launcher.with_file_name(library), folder.path().join(name)).unwrap();
    }
    folder
}

fn job(fault: &str) -> Option<(Finished, Report)> {
    let doubles = Doubles::get()?;
    let libraries = found_by_cudarc(doubles);
    let dir = tempfile::tempdir().unwrap();
    let mut run = program(dir.path());
    run.args(["run", "--run-dir", "kept", "--stall-after", "4"])
        .args(["--on-hang", "kill", "--kill-after", "0.5", "--"])
        .args(doubles.launch(3, &example()))
        .arg(fault)
        .env("LD_LIBRARY_PATH", libraries.path())
        .env_remove("LD_PRELOAD");
    let finished = run_to_end(run);
    Some((finished, read_report(&dir.path().join("kept/report.json"))))
}

/// Number of the example's line marked `HERE mark`.
fn here(mark: &str) -> usize {
    let source = include_str!("../../agent/examples/nccl.rs");
    let mark = format!("// HERE {mark}");
    source.lines().position(|line| line.ends_with(&mark)).unwrap() + 1
}

#[test]
fn healthy_example_has_no_findings() {
    let Some((finished, report)) = job("") else {
        return;
    };
    assert_eq!(finished.status, Some(0), "{finished}");
    assert_eq!(report.findings, [], "{report:#?}");
    assert_eq!(report.verdict, Verdict::Healthy);
    assert_eq!(report.evidence.ranks_reporting, 3);
}

#[test]
fn faults_are_reported_with_the_lines_of_the_calls() {
    for (fault, code, confidence, line) in [
        ("count", "DD104", Confidence::Proved, "count"),
        ("op", "DD103", Confidence::Proved, "op"),
        ("group", "DD104", Confidence::Proved, "group"),
        ("missing", "DD101", Confidence::Supported, "others"),
    ] {
        let Some((finished, report)) = job(fault) else {
            return;
        };
        assert_eq!(initiating(&report), (code, &[1][..]), "{fault}: {finished}");
        assert_eq!(report.findings[0].confidence, confidence, "{fault}");
        let calls = &report.findings[0].per_rank;
        let lines: Vec<_> = calls
            .iter()
            .filter_map(|call| call.place.as_ref())
            .map(|it| (&*it.file, it.line as usize))
            .collect();
        let line = ("agent/examples/nccl.rs", here(line));
        assert!(lines.contains(&line), "{fault}: {line:?} in {lines:?}");
        assert_eq!(finished.status, Some(75), "{fault}: {finished}");
    }
}

/// Skipped on a machine with CUDA and NCCL.
#[test]
fn example_without_cuda_exits_with_one_error_line() {
    let nowhere = tempfile::tempdir().unwrap();
    let mut alone = Command::new(example());
    alone
        .current_dir(nowhere.path())
        .env("JOB_DIR", nowhere.path())
        .envs([("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")])
        .env_remove("LD_LIBRARY_PATH");
    let finished = run_to_end(alone);
    if finished.status == Some(0) {
        eprintln!("skipped: this machine has CUDA and NCCL");
        return;
    }
    assert_eq!(finished.status, Some(1), "{finished}");
    assert!(!finished.stderr.contains("panicked"), "{finished}");
    assert_eq!(finished.stderr.lines().count(), 1, "{finished}");
}
