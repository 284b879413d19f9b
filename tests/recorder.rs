//! Jobs whose collectives are known from PyTorch's own Flight Recorder, as on a PyTorch without hooks.
//!
//! The PyTorch of the tests has hooks; `DDP_DOCTOR_CAPTURE=recorder` makes the agent ignore them.
//! `DDP_DOCTOR_OLD_PYTORCH` names an environment with PyTorch 2.10 to 2.13, which has none.

use std::fs;
use std::path::Path;

use ddp_doctor_proto::report::{Report, Role};

use crate::support::analysis::is_as_live;
use crate::support::jobs::{launch, variant, venv};
use crate::support::process::{program, run_to_end};

/// Programs with their number of ranks, the code of the leading finding and its root.
const JOBS: [(&str, u32, Option<(&str, &[u32])>); 5] = [
    ("faulty/op_mismatch.py", 2, Some(("DD103", &[0, 1]))),
    (
        "faulty/two_groups_in_opposite_order.py",
        2,
        Some(("DD111", &[0, 1])),
    ),
    ("faulty/uneven_then_exit.py", 3, Some(("DD102", &[1]))),
    ("healthy/asynchronous_groups_in_opposite_order.py", 2, None),
    ("healthy/uneven_then_exit.py", 3, None),
];

#[test]
#[ignore = "live: part of make test-all"]
fn calls_from_the_recorder_lead_to_the_same_findings() {
    let Some(venv) = venv() else { return };
    for job in JOBS {
        check(venv, job, Some("recorder"));
    }
}

#[test]
#[ignore = "live: part of make test-all"]
fn jobs_of_a_pytorch_without_hooks() {
    let Some(venv) = std::env::var_os("DDP_DOCTOR_OLD_PYTORCH") else {
        eprintln!("skipped: DDP_DOCTOR_OLD_PYTORCH names no environment with PyTorch 2.10 to 2.13");
        return;
    };
    for job in JOBS {
        check(Path::new(&venv), job, None);
    }
}

/// The Flight Recorder knows no lines of the program, so those are not compared.
fn check(
    venv: &Path,
    (name, ranks, truth): (&str, u32, Option<(&str, &[u32])>),
    capture: Option<&str>,
) {
    let scratch = tempfile::tempdir().unwrap();
    let mut run = program(scratch.path());
    let path = std::env::var("PATH").unwrap_or_default();
    run.args([
        "run",
        "--run-dir",
        "run",
        "--on-hang",
        "kill",
        "--kill-after",
        "1",
        "--",
    ])
    .args(launch(ranks, &variant(name)))
    .env("PATH", format!("{}:{path}", venv.join("bin").display()))
    .env("OMP_NUM_THREADS", "1")
    .envs(capture.map(|capture| ("DDP_DOCTOR_CAPTURE", capture)));
    let finished = run_to_end(run);
    let report = fs::read(scratch.path().join("run/report.json")).unwrap();
    let report: Report = serde_json::from_slice(&report).unwrap();
    let show = || format!("{name}\n{report:#?}\n{finished}");
    assert_eq!(report.evidence.layers, ["flight-recorder"], "{}", show());
    assert_eq!(report.evidence.records_lost, 0, "{}", show());
    assert_eq!(report.ranks.len(), ranks as usize, "{}", show());
    let leading = report
        .findings
        .iter()
        .find(|it| it.role == Role::Initiating);
    let found = leading.map(|it| (it.code.as_str(), it.ranks.root.as_slice()));
    assert_eq!(found, truth, "{}", show());
    if truth.is_none() {
        assert_eq!(finished.status, Some(0), "{}", show());
        assert!(report.findings.is_empty(), "{}", show());
    }
    is_as_live(&scratch.path().join("run"));
    for entry in fs::read_dir(scratch.path().join("run/boxes")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name.ends_with(".box"), "{name} was left behind");
    }
}
