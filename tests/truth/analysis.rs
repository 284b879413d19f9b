//! Compares a live report with the report of `analyze` on the same run.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::process::program;

/// Fails unless `analyze` reproduces the report of a finished run, except for the times of
/// detection.
#[track_caller]
pub(crate) fn is_as_live(run_dir: &Path) {
    let text = fs::read(run_dir.join("report.json")).unwrap();
    let live: Value = serde_json::from_slice(&text).unwrap();
    let output = program(run_dir).args(["analyze", ".", "--format", "json"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let analyzed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (live, analyzed) = (timeless(live), timeless(analyzed));
    assert_eq!(live, analyzed, "live on the left: {live:#}\nanalyzed on the right: {analyzed:#}");
    let grave = live["findings"]
        .as_array()
        .unwrap()
        .iter()
        .any(|finding| ["error", "critical"].contains(&finding["severity"].as_str().unwrap()));
    let status = match live["verdict"].as_str() {
        Some("insufficient") => 4,
        _ => i32::from(grave),
    };
    assert_eq!(output.status.code(), Some(status), "{live:#}");
}

/// A report without the times of detection.
fn timeless(mut report: Value) -> Value {
    for finding in report["findings"].as_array_mut().unwrap() {
        let finding = finding.as_object_mut().unwrap();
        assert!(finding.remove("detected_at").is_some());
        assert!(finding.remove("latency_ms").is_some());
    }
    report
}
