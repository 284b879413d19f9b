//! Jobs of PyTorch's on NCCL, where c10d's hooks and the library that is loaded before NCCL both see what
//! happens: one finding for one hang, with what either of them knows.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ddp_doctor_proto::RecordKind;
use ddp_doctor_proto::report::{Confidence, Finding};

use super::{Ran, held, library, records};
use crate::doubles::Doubles;
use crate::support::jobs::venv;
use crate::support::process::{program, run_to_end};
use crate::support::report::leading;

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

/// In the one box that the process has.
#[test]
#[ignore = "live: part of make test-all"]
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

/// The same by c10d's hooks alone.
#[test]
#[ignore = "live: part of make test-all"]
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
        let found = leading(&ran.report).clone();
        assert_eq!(found.code, code, "{found:#?}");
        assert_eq!(found.ranks.root, [1, 2], "{found:#?}");
    }
}

// --- Where PyTorch has no hooks, as before 2.14 ---------------------------------------------------

/// Only its own recorder tells of c10d's calls, …
const RECORDER: (&str, &str) = ("DDP_DOCTOR_CAPTURE", "recorder");
/// … and of those on NCCL only where somebody asks for it.
const OF_NCCL: (&str, &str) = ("DDP_DOCTOR_NCCL_RECORDER", "1");

/// What is wrong is told once, by NCCL's communicator, however much the recorder tells; the twin is silent.
#[track_caller]
fn is_found_at_nccl(scenario: &str, code: &str, environment: &[(&str, &str)]) -> Option<Finding> {
    is_found_of(scenario, code, &[1], environment)
}

#[track_caller]
fn is_found_of(
    scenario: &str,
    code: &str,
    ranks: &[u32],
    environment: &[(&str, &str)],
) -> Option<Finding> {
    let mut environment = environment.to_vec();
    environment.push(RECORDER);
    let healthy = job(scenario, "healthy", &environment)?;
    assert_eq!(
        healthy.finished.status,
        Some(0),
        "{}",
        healthy.finished.stderr
    );
    assert_eq!(healthy.report.findings, [], "{:#?}", healthy.report);
    assert_eq!(healthy.report.evidence.layers, ["flight-recorder", "nccl"]);
    let ran = job(scenario, "faulty", &environment)?;
    let finding = leading(&ran.report).clone();
    assert_eq!(finding.code, code, "{finding:#?}");
    assert_eq!(finding.group.as_ref().unwrap().layer, "nccl");
    assert_eq!(finding.ranks.root, ranks, "{finding:#?}");
    for other in &ran.report.findings {
        assert_ne!(other.code, "DD901", "{other:#?}");
        let of_c10d = other.group.as_ref().is_some_and(|it| it.layer != "nccl");
        assert!(!of_c10d, "told again: {other:#?}");
    }
    assert_eq!(count(&ran, RecordKind::Beneath), 0);
    Some(finding)
}

#[test]
#[ignore = "live: part of make test-all"]
fn without_hooks_an_operator_is_nccl_s() {
    let found = is_found_at_nccl("reduction", "DD106", &[]);
    let Some(found) = found else { return };
    let op = |rank: usize| found.per_rank[rank].reduce_op.as_deref();
    assert_eq!(
        [op(0), op(1), op(2)],
        [Some("sum"), Some("max"), Some("sum")]
    );
    // Nobody asked the recorder.
    assert_eq!(found.per_rank[0].shapes, None);
}

/// By the recorder: what c10d calls it, and the tensors.
#[test]
#[ignore = "live: part of make test-all"]
fn what_the_recorder_has_of_nccl_s_call_is_added_to_it() {
    let found = is_found_at_nccl("missing", "DD204", &[OF_NCCL]);
    let Some(found) = found else { return };
    assert_eq!(found.seq, Some(5));
    // Where each of them stands: two wait for the stream, and one sleeps.
    let stands = found.per_rank.iter().map(|call| {
        let place = call.place.as_ref().unwrap();
        assert!(place.file.ends_with("job.py"), "{place:?}");
        place.function.as_str()
    });
    let stands: Vec<_> = stands.collect();
    assert_eq!(stands, ["synchronize", "missing", "synchronize"]);
    let said =
        "Ranks 0 and 2 wait at the line that is shown: which line made the call was not seen.";
    assert!(found.why.iter().any(|it| it == said), "{found:#?}");
    assert_eq!(found.per_rank[0].shapes, Some(vec![vec![64]]));
    let named = "PyTorch has it as collective 5 of the default group.";
    assert!(found.why.iter().any(|it| it == named), "{found:#?}");
}

#[test]
#[ignore = "live: part of make test-all"]
fn without_hooks_a_rank_that_does_not_come_to_the_first_call_is_found_where_nccl_waits() {
    is_found_at_nccl("first", "DD114", &[OF_NCCL]);
}

/// As PyTorch does where it is told the device at once.
#[test]
#[ignore = "live: part of make test-all"]
fn without_hooks_a_communicator_that_is_made_with_its_group_is_one_like_others() {
    let found = is_found_at_nccl("eager", "DD204", &[OF_NCCL]);
    let Some(found) = found else { return };
    assert_eq!(found.seq, Some(5));
    let named = "PyTorch has it as collective 5 of the default group.";
    assert!(found.why.iter().any(|it| it == named), "{found:#?}");
}

#[test]
#[ignore = "live: part of make test-all"]
fn without_hooks_a_rank_that_ends_is_found() {
    is_found_at_nccl("exits", "DD102", &[]);
}

#[test]
#[ignore = "live: part of make test-all"]
fn without_hooks_a_stream_that_never_finishes_is_found() {
    let hang = [
        ("NCCL_DOUBLE_FAULTS", "hang AllReduce 5 on *"),
        ("DDP_DOCTOR_NCCL_COMPLETION", "1"),
        OF_NCCL,
    ];
    let [hangs, rest @ ..] = hang;
    let well = [rest[0], rest[1], RECORDER];
    let Some(healthy) = job("hangs", "healthy", &well) else {
        return;
    };
    assert_eq!(healthy.report.findings, [], "{:#?}", healthy.report);
    assert_eq!(healthy.report.evidence.layers, ["flight-recorder", "nccl"]);
    let Some(ran) = job("hangs", "faulty", &[[hangs].as_slice(), &well].concat()) else {
        return;
    };
    let found = leading(&ran.report).clone();
    assert_eq!(found.code, "DD116", "{found:#?}");
    assert_eq!(found.seq, Some(5));
}

#[test]
#[ignore = "live: part of make test-all"]
fn without_hooks_a_message_that_is_not_passed_on_keeps_its_receiver() {
    is_found_of("pipeline", "DD112", &[1, 2], &[OF_NCCL]);
}

#[test]
#[ignore = "live: part of make test-all"]
fn without_hooks_a_message_that_a_batch_lacks_keeps_its_receiver() {
    is_found_of("ring", "DD112", &[1, 2], &[OF_NCCL]);
}

/// What NCCL is not yet asked for nobody sees: the one that waits for it is the one that has not come, as far as is
/// known.
#[test]
#[ignore = "live: part of make test-all"]
fn without_hooks_who_waits_for_a_first_message_is_only_suspected() {
    let found = is_found_of("first_message", "DD101", &[2], &[OF_NCCL]);
    let Some(found) = found else { return };
    assert_eq!(found.ranks.root_confidence, Confidence::Suspected);
    let stands = |it: &String| it.contains("It stands in recv() of PyTorch's at job.py:");
    assert!(found.why.iter().any(stands), "{found:#?}");
}
