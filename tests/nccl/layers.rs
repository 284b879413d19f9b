//! Jobs of PyTorch's on NCCL, where c10d's hooks and the library that is loaded before NCCL both see what
//! happens: one finding for one hang, with what either of them knows.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ddp_doctor_proto::RecordKind;
use ddp_doctor_proto::report::{Confidence, Finding, Report, Role};

use super::{Ran, held, library, records};
use crate::doubles::Doubles;
use crate::pytorch::venv;
use crate::run::program;
use crate::support::process::run_to_end;

const JOB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/jobs/layers/job.py");

/// Runs a scenario of `jobs/layers/job.py` with three ranks.
fn job(scenario: &str, kind: &str, environment: &[(&str, &str)]) -> Option<Ran> {
    job_seen("always", scenario, kind, environment)
}

/// The same; `nccl`: whether the library that sees NCCL's calls is there.
fn job_seen(nccl: &str, scenario: &str, kind: &str, environment: &[(&str, &str)]) -> Option<Ran> {
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
        // Long enough for a look at where ranks stand.
        .args(["--on-hang", "kill", "--kill-after", "4"])
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
    let report = std::fs::read(kept.join("report.json")).unwrap();
    Some(Ran {
        finished,
        report: serde_json::from_slice(&report).unwrap(),
        records: records(&kept.join("journal.ddpj")),
        held: held::told(&kept.join("journal.ddpj")),
    })
}

fn count(ran: &Ran, kind: RecordKind) -> usize {
    let kind = i32::from(kind.number());
    ran.records.iter().filter(|(_, it)| it.kind == kind).count()
}

/// The one thing that everything else follows from.
#[track_caller]
fn told_once(report: &Report) -> Finding {
    let mut leading = report
        .findings
        .iter()
        .filter(|it| it.role == Role::Initiating);
    let (first, second) = (leading.next(), leading.next());
    assert!(second.is_none(), "{:#?}", report.findings);
    first.unwrap().clone()
}

#[track_caller]
fn is_silent(scenario: &str) -> Option<Ran> {
    let ran = job(scenario, "healthy", &[])?;
    assert_eq!(ran.finished.status, Some(0), "{}", ran.finished.stderr);
    assert_eq!(ran.report.findings, [], "{:#?}", ran.report);
    assert_eq!(ran.report.evidence.layers, ["c10d", "nccl"]);
    assert_eq!(ran.report.evidence.ranks_reporting, 3);
    assert_eq!(ran.finished.stdout.matches("done").count(), 3);
    Some(ran)
}

/// What is wrong is told once, by c10d's group, with its line; its healthy twin is silent.
#[track_caller]
fn is_found_once(
    scenario: &str,
    code: &str,
    confidence: Confidence,
    environment: &[(&str, &str)],
) -> Option<Finding> {
    is_silent(scenario)?;
    let ran = job(scenario, "faulty", environment)?;
    let finding = told_once(&ran.report);
    assert_eq!(finding.code, code, "{finding:#?}");
    assert_eq!(finding.confidence, confidence, "{finding:#?}");
    let group = finding.group.as_ref().unwrap();
    assert_eq!(group.layer, "c10d", "{finding:#?}");
    for call in &finding.per_rank {
        let file = call.place.as_ref().map_or("", |place| &place.file);
        assert!(file.ends_with("job.py"), "{finding:#?}");
    }
    for other in &ran.report.findings {
        let of_nccl = other.group.as_ref().is_some_and(|it| it.layer == "nccl");
        assert!(!of_nccl, "told again: {other:#?}");
    }
    Some(finding)
}

#[test]
fn an_operator_that_only_nccl_shows_is_found_at_c10d_s_line() {
    let found = is_found_once("reduction", "DD106", Confidence::Proved, &[]);
    let Some(found) = found else { return };
    let op = |rank: usize| found.per_rank[rank].reduce_op.as_deref();
    assert_eq!(
        [op(0), op(1), op(2)],
        [Some("sum"), Some("max"), Some("sum")]
    );
    assert_eq!(found.ranks.root, [1]);
    assert_eq!(found.per_rank[1].shapes, Some(vec![vec![64]]));
}

#[test]
fn what_nccl_is_asked_for_within_a_call_is_part_of_that() {
    let Some(ran) = is_silent("missing") else {
        return;
    };
    // Seven calls of three ranks, of which the first of each makes the communicator.
    assert_eq!(count(&ran, RecordKind::Beneath), 7 * 3);
    assert_eq!(count(&ran, RecordKind::Within), 2 * 3);
}

/// In the one box that the process has.
#[test]
fn what_nccl_holds_for_c10d_is_told() {
    let Some(ran) = job("missing", "healthy", &[held::ON]) else {
        return;
    };
    assert_eq!(ran.finished.status, Some(0), "{}", ran.finished.stderr);
    assert_eq!(ran.report.findings, [], "{:#?}", ran.report);
    assert_eq!(ran.held.len(), 3, "{:?}", ran.held);
    // The communicator, and its first collective.
    let both = |it: &Vec<u64>| it.starts_with(&[4, 12]);
    assert!(ran.held.iter().all(both), "{:?}", ran.held);
}

#[test]
fn another_root_is_one_finding() {
    let found = is_found_once("root", "DD107", Confidence::Proved, &[]);
    let Some(found) = found else { return };
    assert_eq!(found.ranks.root, [1]);
}

#[test]
fn a_rank_that_does_not_come_is_one_finding() {
    let found = is_found_once("missing", "DD204", Confidence::Supported, &[]);
    let Some(found) = found else { return };
    assert_eq!(found.ranks.root, [1]);
}

/// The others stand in NCCL, where the communicator is made.
#[test]
fn a_rank_that_does_not_come_to_the_first_call_is_one_finding() {
    let found = is_found_once("first", "DD204", Confidence::Supported, &[]);
    let Some(found) = found else { return };
    assert_eq!(found.ranks.root, [1]);
    assert_eq!(found.seq, Some(1));
    let stand = "Ranks 0 and 2 stand in ncclCommInitRank";
    assert!(
        found.why.iter().any(|it| it.starts_with(stand)),
        "{found:#?}"
    );
}

#[test]
fn a_rank_that_ends_is_one_finding() {
    let found = is_found_once("exits", "DD102", Confidence::Proved, &[]);
    let Some(found) = found else { return };
    assert_eq!(found.ranks.root, [1]);
}

#[test]
fn a_stream_that_never_finishes_is_told_of_c10d_s_call() {
    let hang = [
        ("NCCL_DOUBLE_FAULTS", "hang AllReduce 5 on *"),
        ("DDP_DOCTOR_NCCL_COMPLETION", "1"),
    ];
    let found = is_found_once("hangs", "DD116", Confidence::Supported, &hang);
    let Some(found) = found else { return };
    assert_eq!(found.seq, Some(5));
    assert!(found.summary.contains("streams"), "{}", found.summary);
}

#[test]
fn streams_that_wait_for_each_other_are_told_of_c10d_s_groups() {
    let followed = [("DDP_DOCTOR_NCCL_COMPLETION", "1")];
    is_found_once("crossed", "DD111", Confidence::Supported, &followed);
}

// --- A stream that waits for one rank, and keeps its own from coming to another -------------------

/// Two ranks wait for their devices, each in a call that the other does not come to.
fn is_a_circle(scenario: &str, code: &str, ranks: [u32; 2]) {
    let found = is_found_once(scenario, code, Confidence::Supported, &[]);
    let Some(found) = found else { return };
    assert_eq!(found.ranks.root, ranks, "{found:#?}");
    assert!(
        found
            .why
            .iter()
            .any(|it| it.contains("that is waited for by rank 1 at job.py:")
                || it.contains(" and by rank 1 at job.py:")),
        "{found:#?}"
    );
}

#[test]
fn a_group_of_two_that_one_leaves_out_keeps_the_other_from_the_world() {
    is_a_circle("of_two", "DD111", [0, 1]);
}

#[test]
fn a_message_that_is_not_passed_on_keeps_its_receiver() {
    is_a_circle("pipeline", "DD112", [1, 2]);
}

/// The receiver stands in the store, where it looks for its communicator.
#[test]
fn nor_is_who_waits_for_a_first_message_to_blame() {
    is_a_circle("first_message", "DD112", [1, 2]);
}

/// Its receiver stands in NCCL, and the third one waits for a batch of which all has met.
#[test]
fn a_message_that_a_batch_lacks_keeps_its_receiver() {
    is_a_circle("ring", "DD112", [1, 2]);
}

/// The same by c10d's hooks alone.
#[test]
fn what_keeps_a_device_is_seen_without_nccl_s_calls_too() {
    for (scenario, code) in [("pipeline", "DD112"), ("ring", "DD112")] {
        let Some(healthy) = job_seen("never", scenario, "healthy", &[]) else {
            return;
        };
        assert_eq!(
            healthy.finished.status,
            Some(0),
            "{}",
            healthy.finished.stderr
        );
        assert_eq!(healthy.report.findings, [], "{:#?}", healthy.report);
        let Some(ran) = job_seen("never", scenario, "faulty", &[]) else {
            return;
        };
        assert_eq!(ran.report.evidence.layers, ["c10d"]);
        let found = told_once(&ran.report);
        assert_eq!(found.code, code, "{found:#?}");
        assert_eq!(found.ranks.root, [1, 2], "{found:#?}");
    }
}

/// A program that also calls NCCL itself, on a communicator of its own.
#[test]
fn a_call_that_only_nccl_sees_is_told_of() {
    if is_silent("own").is_none() {
        return;
    }
    let Some(ran) = job("own", "faulty", &[]) else {
        return;
    };
    let found = told_once(&ran.report);
    assert_eq!(found.code, "DD103", "{found:#?}");
    assert_eq!(found.group.unwrap().layer, "nccl");
    assert_eq!(found.ranks.root, [1]);
}

// --- Where PyTorch has no hooks, as before 2.14 ---------------------------------------------------

#[test]
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
        let found = told_once(&ran.report);
        assert_eq!(found.code, code, "{found:#?}");
        assert_eq!(found.group.as_ref().unwrap().layer, "c10d", "{found:#?}");
        assert_eq!(found.ranks.root, root, "{found:#?}");
        assert_eq!(found.per_rank[0].shapes, Some(vec![vec![64]]));
    }
}
