//! Digests instead of records, in real jobs: `DDP_DOCTOR_DIGEST_ABOVE` lowers the number of records a second above
//! which the coordinator asks for them.

use std::fs;
use std::path::Path;

use ddp_doctor::evidence::journal;
use ddp_doctor_proto::report::Report;
use ddp_doctor_proto::v1::event::Kind;

use crate::support::process::{Finished, program, run_to_end};
use crate::support::pytorch_jobs::{launch, venv};

/// Calls `all_reduce` until digests are in use, and then for longer than a black box has room: what it still has is sent
/// after the mismatch, also if digests were in use late. In the faulty variant, rank 1 then calls `broadcast`.
const MANY_CALLS: &str = r#"
import sys
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(8)
begin = torch.tensor(time.monotonic())
dist.broadcast(begin, 0)
made = 0
while made < 12000:
    dist.all_reduce(tensor)
    made += 1
    if made == 100:
        # The coordinator has asked for digests after some seconds.
        over = torch.tensor(time.monotonic() - float(begin) > 4)
        dist.broadcast(over, 0)
        if not over:
            made = 0
if sys.argv[1] == "faulty" and dist.get_rank() == 1:
    dist.broadcast(tensor, 0)  # HERE
else:
    dist.all_reduce(tensor)
dist.destroy_process_group()
"#;

/// A finished job of two ranks, its report, and the number of records in its journal.
struct Job {
    finished: Finished,
    report: Report,
    journaled: u64,
}

fn run(variant: &str) -> Option<Job> {
    let venv = venv()?;
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("job.py"), MANY_CALLS).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = program(dir.path());
    command
        .args(["run", "--run-dir", "run", "--on-hang", "kill", "--kill-after", "1"])
        .arg("--")
        .args(launch(2, Path::new("job.py")))
        .arg(variant)
        // Far below the rate of the job, also beside other tests.
        .env("DDP_DOCTOR_DIGEST_ABOVE", "50")
        .env("PATH", format!("{}:{path}", venv.join("bin").display()))
        .env("OMP_NUM_THREADS", "1");
    let finished = run_to_end(command);
    let report = fs::read(dir.path().join("run/report.json")).unwrap();
    let mut journal = journal::Reader::open(&dir.path().join("run/journal.ddpj")).unwrap();
    let mut journaled = 0;
    while let Some(report) = journal.read().unwrap() {
        let events = report.events.iter();
        let is_record = |kind: &Option<Kind>| matches!(kind, Some(Kind::Record(_)));
        journaled += events.filter(|event| is_record(&event.kind)).count() as u64;
    }
    Some(Job { finished, report: serde_json::from_slice(&report).unwrap(), journaled })
}

#[test]
fn mismatch_after_many_calls_is_found_from_digests() {
    let Some(job) = run("faulty") else { return };
    let finished = &job.finished;
    assert_eq!(finished.status, Some(75), "{finished}");
    let finding = &job.report.findings[0];
    assert_eq!(finding.code, "DD103", "{finished}");
    let line = MANY_CALLS.lines().position(|line| line.ends_with("HERE"));
    let place = |rank: usize| finding.per_rank[rank].place.as_ref().unwrap().line as usize;
    assert_eq!(place(1), line.unwrap() + 1, "{finished}");
    let received = job.report.evidence.records;
    assert!(received < job.journaled, "all {received} records were sent");
    assert_eq!(job.report.evidence.records_lost, 0, "{finished}");
}

#[test]
fn healthy_job_of_many_calls_is_silent() {
    let Some(job) = run("healthy") else { return };
    let finished = &job.finished;
    assert_eq!(finished.status, Some(0), "{finished}");
    assert_eq!(job.report.verdict.as_str(), "healthy", "{finished}");
    assert!(job.report.findings.is_empty(), "{finished}");
    let received = job.report.evidence.records;
    assert!(received < job.journaled, "all {received} records were sent");
}
