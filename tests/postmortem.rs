//! What `analyze` makes of what a job left behind: whole, in part or broken.

use std::fs;
use std::path::Path;
use std::process::Output;

use ddp_doctor_proto::report::Report;
use serde_json::Value;

use crate::run::program;

/// Runs `analyze` and returns what it printed.
#[track_caller]
fn analyze(dir: &Path, arguments: &[&str]) -> Output {
    program(dir)
        .arg("analyze")
        .args(arguments)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The report that `analyze` gives as JSON.
#[track_caller]
fn report(output: &Output) -> Report {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}", stdout(output), stderr(output)))
}

/// A run that was watched to its end gives, analyzed, the very report of the live run, but for the
/// times of detection.
#[track_caller]
pub(crate) fn is_as_live(run_dir: &Path) {
    let live = fs::read(run_dir.join("report.json")).unwrap();
    let live: Value = serde_json::from_slice(&live).unwrap();
    let output = analyze(run_dir, &[".", "--format", "json"]);
    assert_eq!(stderr(&output), "");
    let analyzed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (live, analyzed) = (timeless(live), timeless(analyzed));
    assert_eq!(
        live, analyzed,
        "live on the left: {live:#}\nanalyzed on the right: {analyzed:#}"
    );
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

/// A report without the times at which findings were made.
fn timeless(mut report: Value) -> Value {
    for finding in report["findings"].as_array_mut().unwrap() {
        let finding = finding.as_object_mut().unwrap();
        assert!(finding.remove("detected_at").is_some());
        assert!(finding.remove("latency_ms").is_some());
    }
    report
}
