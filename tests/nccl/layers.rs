//! PyTorch jobs on NCCL, captured by c10d's hooks and by the preloaded library: one finding for one
//! hang, with the facts of both layers.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::{JobResult, comm_memory, library, records};
use crate::doubles::Doubles;
use crate::support::process::{program, run_to_end};
use crate::support::pytorch_jobs::venv;
use crate::support::report::{leading, read_report};

const JOB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/jobs/layers/job.py");

/// Runs a scenario of `jobs/layers/job.py` with three ranks.
fn job(scenario: &str, kind: &str, environment: &[(&str, &str)]) -> Option<JobResult> {
    job_seen("always", scenario, kind, environment)
}

/// Like [`job`], with a value for `run --nccl`.
fn job_seen(
    nccl: &str,
    scenario: &str,
    kind: &str,
    environment: &[(&str, &str)],
) -> Option<JobResult> {
    let (doubles, venv) = (Doubles::get()?, venv()?);
    static LATER: OnceLock<PathBuf> = OnceLock::new();
    let later = LATER.get_or_init(|| {
        let source = Path::new(JOB).with_file_name("later.c");
        doubles.compile(&source, "later.so", &["-shared", "-fPIC"])
    });
    let folder = later.parent()?.to_owned();
    let dir = tempfile::tempdir().unwrap();
    let mut run = program(dir.path());
    run.args(["run", "--nccl", nccl, "--run-dir", "kept"])
        // Long enough to capture stacks on a busy machine.
        .args(["--on-hang", "kill", "--kill-after", "8"])
        .args(["--stall-after", "4"])
        .arg("--")
        .arg(venv.join("bin/python"))
        .args(["-m", "torch.distributed.run", "--standalone"])
        .args(["--nproc-per-node", "3", JOB, scenario, kind])
        .env("DDP_DOCTOR_NCCL_LIBRARY", library())
        .env("DOUBLES", &folder)
        .envs(environment.iter().copied())
        .env_remove("LD_PRELOAD");
    let finished = run_to_end(run);
    let kept = dir.path().join("kept");
    Some(JobResult {
        finished,
        report: read_report(&kept.join("report.json")),
        records: records(&kept.join("journal.ddpj")),
        held: comm_memory::told(&kept.join("journal.ddpj")),
    })
}

/// The samples are in the only box of each process.
#[test]
#[ignore = "live: part of make test-all"]
fn nccl_memory_of_c10d_jobs_is_reported() {
    let Some(ran) = job("missing", "healthy", &[comm_memory::ON]) else {
        return;
    };
    assert_eq!(ran.finished.status, Some(0), "{}", ran.finished.stderr);
    assert_eq!(ran.report.findings, [], "{:#?}", ran.report);
    assert_eq!(ran.held.len(), 3, "{:?}", ran.held);
    // The communicator, and its first collective.
    let both = |it: &Vec<u64>| it.starts_with(&[4, 12]);
    assert!(ran.held.iter().all(both), "{:?}", ran.held);
}

/// Captured by c10d's hooks alone.
#[test]
#[ignore = "live: part of make test-all"]
fn deadlocks_are_found_from_c10d_calls_alone() {
    for (scenario, code) in [("pipeline", "DD112"), ("ring", "DD112")] {
        let Some(healthy) = job_seen("never", scenario, "healthy", &[]) else {
            return;
        };
        assert_eq!(healthy.finished.status, Some(0), "{}", healthy.finished.stderr);
        assert_eq!(healthy.report.findings, [], "{:#?}", healthy.report);
        let Some(ran) = job_seen("never", scenario, "faulty", &[]) else {
            return;
        };
        assert_eq!(ran.report.evidence.layers, ["c10d"]);
        let found = leading(&ran.report);
        assert_eq!(found.code, code, "{found:#?}");
        assert_eq!(found.ranks.root, [1, 2], "{found:#?}");
    }
}

// --- Interception, as for PyTorch before 2.14, which has no hooks --------------------------------

#[test]
#[ignore = "live: part of make test-all"]
fn intercepted_calls_are_diagnosed_like_hooked_ones() {
    let intercept = ("DDP_DOCTOR_CAPTURE", "interception");
    for (scenario, code, root) in [
        ("reduction", "DD106", &[1][..]),
        ("missing", "DD204", &[1]),
        ("eager", "DD204", &[1]),
        ("exits", "DD102", &[1]),
        ("ring", "DD112", &[1, 2]),
    ] {
        let Some(healthy) = job(scenario, "healthy", &[intercept]) else {
            return;
        };
        let stderr = &healthy.finished.stderr;
        assert_eq!(healthy.finished.status, Some(0), "{scenario}: {stderr}");
        assert_eq!(healthy.report.findings, [], "{:#?}", healthy.report);
        let Some(ran) = job(scenario, "faulty", &[intercept]) else {
            return;
        };
        assert_eq!(ran.report.evidence.layers, ["c10d", "nccl"]);
        let found = leading(&ran.report);
        assert_eq!(found.code, code, "{found:#?}");
        assert_eq!(found.group.as_ref().unwrap().layer, "c10d", "{found:#?}");
        assert_eq!(found.ranks.root, root, "{found:#?}");
        assert_eq!(found.per_rank[0].shapes, Some(vec![vec![64]]));
    }
}
