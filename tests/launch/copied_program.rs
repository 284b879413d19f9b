//! The program copied, or installed by cargo, without its Python package and libraries.

use std::process::Command;

use ddp_doctor_proto::report::Verdict;

use crate::support::process::{copy_program, run_to_end};
use crate::support::report::read_report;

#[test]
fn copied_program_reports_that_python_is_not_captured() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("ddp-doctor");
    copy_program(&copy);
    let mut run = Command::new(copy);
    run.current_dir(dir.path())
        .args(["run", "--run-dir", "run", "--report", "report.json", "true"])
        .env_remove("DDP_DOCTOR_PYTHON")
        .env_remove("DDP_DOCTOR_LIBRARY");
    let finished = run_to_end(run);
    assert_eq!(finished.status, Some(0), "{finished}");
    let first = finished.stderr.lines().next().unwrap_or_default();
    assert!(first.contains("will not be captured") && first.contains("pip install"), "{finished}");
    let report = read_report(&dir.path().join("report.json"));
    assert_eq!(report.verdict, Verdict::Insufficient);
}
