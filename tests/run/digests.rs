//! Digests instead of records, in real jobs: `DDP_DOCTOR_DIGEST_ABOVE` lowers the number of records a second above
//! which the coordinator asks for them.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use ddp_doctor::evidence::journal;
use ddp_doctor_proto::report::Report;
use ddp_doctor_proto::v1::Event;
use ddp_doctor_proto::v1::event::Kind;

use crate::support::process::{Finished, eventually, program, run_to_end};
use crate::support::pytorch_jobs::{launch, venv};
use crate::support::report::read_report;

/// Calls `all_reduce` until there is a file `enough`. In the faulty variant, rank 1 then calls `broadcast`.
const MANY_CALLS: &str = r#"
import os
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tensor = torch.ones(8)
is_enough = torch.tensor(False)
while not is_enough:
    for _ in range(100):
        dist.all_reduce(tensor)
    is_enough = torch.tensor(os.path.exists("enough"))
    dist.broadcast(is_enough, 0)
if sys.argv[1] == "faulty" and dist.get_rank() == 1:
    dist.broadcast(tensor, 0)  # HERE
else:
    dist.all_reduce(tensor)
dist.destroy_process_group()
"#;

/// Number of records that are made in a second, at least, beside other tests.
const MANY: u64 = 500;

/// A finished job of two ranks, and its report.
struct Job {
    finished: Finished,
    report: Report,
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
    // Records that travel are received within a second. How many are still sent when something is suspicious depends
    // on how busy the machine is.
    let end_when_digests_replace_records = || {
        eventually("records are made and not sent", || {
            let (before, made) = (received(dir.path()), journaled(dir.path()));
            thread::sleep(Duration::from_secs(1));
            let is_made = journaled(dir.path()) >= made + MANY;
            is_made && before.is_some() && received(dir.path()) == before
        });
        fs::write(dir.path().join("enough"), "").unwrap();
    };
    let finished = thread::scope(|scope| {
        scope.spawn(end_when_digests_replace_records);
        run_to_end(command)
    });
    Some(Job { finished, report: read_report(&dir.path().join("run/report.json")) })
}

/// Number of records in the journal of a run, which may be going on.
fn journaled(dir: &Path) -> u64 {
    let Ok(mut journal) = journal::Reader::open(&dir.join("run/journal.ddpj")) else { return 0 };
    let is_record = |event: &&Event| matches!(event.kind, Some(Kind::Record(_)));
    let mut records = 0;
    while let Ok(Some(report)) = journal.read() {
        records += report.events.iter().filter(is_record).count() as u64;
    }
    records
}

/// Number of records that the coordinator of a run has received; `None`: it does not answer.
fn received(dir: &Path) -> Option<u64> {
    let status = program(dir).args(["status", "run", "--format", "json"]).output().unwrap();
    let report: Report = serde_json::from_slice(&status.stdout).ok()?;
    Some(report.evidence.records)
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
    assert_eq!(job.report.evidence.records_lost, 0, "{finished}");
}

#[test]
fn healthy_job_of_many_calls_is_silent() {
    let Some(job) = run("healthy") else { return };
    let finished = &job.finished;
    assert_eq!(finished.status, Some(0), "{finished}");
    assert_eq!(job.report.verdict.as_str(), "healthy", "{finished}");
    assert!(job.report.findings.is_empty(), "{finished}");
}
