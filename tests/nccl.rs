//! Jobs that call NCCL themselves, seen through the library that `run` has loaded before it: programs in
//! C against the doubles of `doubles/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use ddp_doctor_proto::report::{Confidence, Report, Verdict};

use crate::doubles::Doubles;
use crate::linking::build;
use crate::run::program;
use crate::support::coordinator::initiating;
use crate::support::process::{Finished, run_to_end};

/// The library that is preloaded.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| build(&["--package", "ddp-doctor-nccl"], "libddp_doctor_nccl.so"))
}

/// Runs a scenario of `jobs/nccl/job.c` with three ranks. `None`: there is no C compiler.
fn job(scenario: &str, kind: &str, options: &[&str]) -> Option<(Finished, Report)> {
    let doubles = Doubles::get()?;
    static RANK: OnceLock<PathBuf> = OnceLock::new();
    let rank = RANK.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs/nccl/job.c");
        doubles.compile(&source, "job", &[])
    });
    let dir = tempfile::tempdir().unwrap();
    let mut run = program(dir.path());
    run.args(["run", "--nccl", "always", "--run-dir", "kept"])
        .args(["--on-hang", "kill", "--kill-after", "0.5"])
        .args(["--stall-after", "4"])
        .args(options)
        .arg("--")
        .args(doubles.launch(3, rank))
        .args([scenario, kind])
        .env("DDP_DOCTOR_NCCL_LIBRARY", library())
        .env_remove("LD_PRELOAD");
    let finished = run_to_end(run);
    let report = fs::read(dir.path().join("kept/report.json")).unwrap();
    Some((finished, serde_json::from_slice(&report).unwrap()))
}

#[track_caller]
fn is_silent(scenario: &str) -> Option<Report> {
    let (finished, report) = job(scenario, "healthy", &[])?;
    assert_eq!(finished.status, Some(0), "{}", finished.stderr);
    assert_eq!(report.findings, [], "{report:#?}");
    assert_eq!(report.verdict, Verdict::Healthy);
    assert_eq!(report.evidence.layers, ["nccl"]);
    assert_eq!(report.evidence.ranks_reporting, 3);
    Some(report)
}

/// The faulty one is called that, by the rank that did it; its twin is silent.
#[track_caller]
fn is_found(scenario: &str, code: &str, confidence: Confidence) -> Option<Report> {
    is_silent(scenario)?;
    let (finished, report) = job(scenario, "faulty", &[])?;
    assert_eq!(initiating(&report), (code, &[1][..]), "{}", finished.stderr);
    let finding = &report.findings[0];
    assert_eq!(finding.confidence, confidence, "{report:#?}");
    assert_eq!(
        finding.certificate.is_some(),
        confidence == Confidence::Proved
    );
    let layer = finding.group.as_ref().map(|group| group.layer.as_str());
    assert_eq!(layer, Some("nccl"));
    Some(report)
}

#[test]
fn another_collective() {
    is_found("op", "DD103", Confidence::Proved);
}

#[test]
fn another_size() {
    is_found("count", "DD104", Confidence::Proved);
}

#[test]
fn another_size_of_pieces() {
    is_found("piece", "DD104", Confidence::Proved);
}

#[test]
fn another_type() {
    is_found("dtype", "DD105", Confidence::Proved);
}

#[test]
fn another_reduction() {
    is_found("reduction", "DD106", Confidence::Proved);
}

#[test]
fn another_root() {
    is_found("root", "DD107", Confidence::Proved);
}

#[test]
fn a_rank_that_does_not_come() {
    is_found("missing", "DD101", Confidence::Supported);
}

#[test]
fn a_rank_that_does_not_come_to_a_communicator_whose_ranks_are_others() {
    let report = is_found("missing_of_two", "DD101", Confidence::Supported);
    let Some(report) = report else { return };
    let group = report.findings[0].group.as_ref().unwrap();
    // By the key that they gave: rank 1 first.
    assert_eq!(group.ranks, [1, 0]);
}

#[test]
fn a_rank_that_ends() {
    is_found("leaves", "DD102", Confidence::Proved);
}

#[test]
fn a_rank_that_is_killed() {
    is_found("killed", "DD201", Confidence::Proved);
}

#[test]
fn a_rank_that_does_not_come_to_divide_a_communicator() {
    is_found("split", "DD114", Confidence::Supported);
}

#[test]
fn a_message_that_is_not_received() {
    is_found("message", "DD113", Confidence::Suspected);
}

#[test]
fn another_size_within_a_group_whose_order_differs() {
    is_found("group", "DD104", Confidence::Proved);
}

#[test]
fn a_simulated_group_counts_for_nothing() {
    is_found("simulated", "DD103", Confidence::Proved);
}

#[test]
fn a_communicator_at_the_address_of_another() {
    is_found("again", "DD104", Confidence::Proved);
}

#[test]
fn children_are_nobodys_ranks() {
    is_silent("children");
}

#[test]
fn whoever_calls_no_nccl_does_not_notice() {
    let dir = tempfile::tempdir().unwrap();
    let run = |preload: bool| {
        let mut bash = Command::new("bash");
        bash.args(["-c", "cat /proc/$$/maps; ls | cat; env"])
            .current_dir(dir.path())
            .env("DDP_DOCTOR_BOX_DIR", dir.path());
        if preload {
            bash.env("LD_PRELOAD", library());
        }
        bash.output().unwrap()
    };
    let output = run(true);
    assert!(output.status.success() && output.stderr.is_empty());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("libddp_doctor_nccl.so"), "it was loaded");
    assert!(!said.contains("libnccl.so"), "and loads nothing");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    assert!(run(false).status.success());
}
