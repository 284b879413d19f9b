//! `DDP_DOCTOR_TIME_SCALE`, which scales the time limits of the diagnosis for tests.

use std::fs;
use std::path::Path;

use ddp_doctor_proto::report::Report;

use crate::support::process::{program, run_to_end};
use crate::support::pytorch_jobs::{launch, venv};
use crate::support::report::read_report;

/// Rank 0 waits for rank 1 for less than half of the default stall limit; then both continue.
const WAITS_FOR_A_WHILE: &str = r#"
import signal
import threading
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(256)
dist.all_reduce(tensor)
if dist.get_rank() == 1:
    # It ends by itself, but nothing outside of the program can know.
    lock = threading.Lock()
    lock.acquire()
    signal.signal(signal.SIGALRM, lambda *_: lock.release())
    signal.alarm(25)
    lock.acquire()
dist.all_reduce(tensor)
dist.destroy_process_group()
"#;

fn codes(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|it| it.code.as_str()).collect()
}

#[test]
fn scaled_stall_is_reported_killed_and_replayed() {
    let Some(venv) = venv() else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("job.py"), WAITS_FOR_A_WHILE).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = program(dir.path());
    command
        .args(["run", "--run-dir", "run", "--on-hang", "kill"])
        .arg("--")
        .args(launch(2, Path::new("job.py")))
        .env("DDP_DOCTOR_TIME_SCALE", "0.05")
        .env("PATH", format!("{}:{path}", venv.join("bin").display()))
        .env("OMP_NUM_THREADS", "1");
    let finished = run_to_end(command);
    assert_eq!(finished.status, Some(75), "{finished}");
    let live = read_report(&dir.path().join("run/report.json"));
    assert_eq!(live.findings[0].code, "DD204", "{finished}");

    let mut analyze = program(dir.path());
    analyze.args(["analyze", "--format", "json", "run"]);
    let analyzed = run_to_end(analyze);
    let again: Report = serde_json::from_str(&analyzed.stdout).unwrap();
    assert_eq!(codes(&again), codes(&live), "{analyzed}");
}

#[test]
fn invalid_time_scale_is_a_usage_error() {
    for scale in ["fast", "0", "-1"] {
        let dir = tempfile::tempdir().unwrap();
        let output = program(dir.path())
            .args(["run", &format!("--time-scale={scale}"), "--", "true"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("--time-scale") && said.contains(scale), "{said}");
    }
}
