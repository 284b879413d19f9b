//! Evidence of jobs over NCCL on a real GPU, diagnosed again: `tests/fixtures/gpu`.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use ddp_doctor::postmortem::{self, Progress};
use ddp_doctor::report::json::Assembler;
use ddp_doctor_proto::report::{Finding, Job, Report, Verdict};
use flate2::read::GzDecoder;

use crate::support::report::leading;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gpu")
}

/// The final report of a recorded run, and all findings that it showed at any time.
fn replay(name: &str) -> (Report, Vec<Finding>) {
    let file = File::open(folder().join(name).with_extension("gz")).unwrap();
    let mut journal = Vec::new();
    GzDecoder::new(file).read_to_end(&mut journal).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join("journal.ddpj"), journal).unwrap();
    let mut remarks = Vec::new();
    let paths = [scratch.path().to_owned()];
    let recorded = postmortem::record(&paths, &mut remarks, &Progress::default()).unwrap();
    assert_eq!(remarks, [], "{name}");
    let mut shown = Assembler::new(Job::default());
    let mut findings = Vec::new();
    for update in recorded.updates {
        shown.apply(update);
        findings.extend(shown.findings().iter().cloned());
    }
    (recorded.report, findings)
}

/// How the calls of a job are seen.
#[derive(Clone, Copy, PartialEq)]
enum Seen {
    /// By the Python package, also together with NCCL's calls.
    ByPackage,
    /// Only as calls of NCCL.
    ByNccl,
}
use Seen::{ByNccl, ByPackage};

/// The recorded ways, by version of PyTorch.
const WAYS: [(&str, &[(&str, Seen)]); 3] = [
    (
        "2.8.0",
        &[
            ("hooks", ByPackage),
            ("both", ByPackage),
            ("preloaded", ByNccl),
            ("soname", ByNccl),
            ("sampled", ByNccl),
        ],
    ),
    ("2.11.0", &EARLIER),
    ("2.15.0", &EARLIER),
];
const EARLIER: [(&str, Seen); 3] =
    [("hooks", ByPackage), ("preloaded", ByNccl), ("profiler", ByNccl)];

/// Names of the recorded runs of a fault in which it was seen so.
fn runs(fault: &str, seen: Seen) -> impl Iterator<Item = String> {
    WAYS.into_iter().flat_map(move |(version, ways)| {
        ways.iter()
            .filter(move |way| way.1 == seen)
            .map(move |(way, _)| format!("{version}/{way}-{fault}"))
    })
}

fn names_rank_1(fault: &str, seen: Seen, codes: &[&str]) {
    for name in runs(fault, seen) {
        let (report, _) = replay(&name);
        let finding = leading(&report);
        assert!(codes.contains(&&*finding.code), "{name}: {report:#?}");
        assert_eq!(finding.ranks.root, [1], "{name}: {report:#?}");
    }
}

#[test]
fn a_healthy_job_has_no_finding_at_any_time() {
    for name in runs("none", ByPackage).chain(runs("none", ByNccl)) {
        let (report, findings) = replay(&name);
        assert_eq!(report.verdict, Verdict::Healthy, "{name}");
        assert!(findings.is_empty(), "{name}: {findings:#?}");
    }
}

#[test]
fn a_rank_that_makes_no_further_call_is_named() {
    names_rank_1("missing", ByPackage, &["DD101", "DD204"]);
    names_rank_1("missing", ByNccl, &["DD101", "DD204"]);
}

#[test]
fn a_tensor_of_another_size_is_named() {
    names_rank_1("shape", ByPackage, &["DD104"]);
    names_rank_1("shape", ByNccl, &["DD104"]);
}

#[test]
fn a_rank_that_exits_is_named() {
    names_rank_1("exit", ByPackage, &["DD102"]);
    names_rank_1("exit", ByNccl, &["DD102"]);
}

#[test]
fn a_rank_without_memory_is_named() {
    names_rank_1("memory", ByPackage, &["DD501"]);
    // Only its end is seen.
    names_rank_1("memory", ByNccl, &["DD201"]);
}

/// On NCCL, a rank goes on to later forwards while its call waits.
#[test]
fn accumulation_is_compared_at_the_waiting_forward() {
    let (report, _) = replay("2.11.0/no-sync-off-by-one");
    let finding = leading(&report);
    assert_eq!(finding.code, "DD406", "{report:#?}");
    assert!(finding.summary.contains("training forward 7"), "{report:#?}");
}

/// NCCL does not compare the sizes of small messages: the ranks end in order.
#[test]
fn a_mismatch_that_completes_is_wrong() {
    let (report, _) = replay("2.15.0/uneven-splits");
    assert_eq!(leading(&report).code, "DD108", "{report:#?}");
    assert_eq!(report.verdict, Verdict::Wrong, "{report:#?}");
    let (report, _) = replay("2.8.0/message-of-another-size");
    assert_eq!(leading(&report).code, "DD113", "{report:#?}");
    assert_eq!(report.verdict, Verdict::Wrong, "{report:#?}");
}

/// Every rank has made every call, and waits in `destroy_process_group` until it is killed.
#[test]
fn devices_that_wait_for_each_other_are_named_by_the_order_of_calls() {
    for (name, ranks) in [("groups-in-opposite-order", 2), ("groups-in-a-ring", 3)] {
        let (report, _) = replay(&format!("2.11.0/{name}"));
        let finding = leading(&report);
        assert_eq!(finding.code, "DD111", "{name}: {report:#?}");
        assert_eq!(report.verdict, Verdict::Hang, "{name}: {report:#?}");
        let all: Vec<u32> = (0..ranks).collect();
        assert_eq!(finding.ranks.root, all, "{name}: {report:#?}");
        assert!(finding.per_rank.iter().all(|row| row.place.is_some()), "{name}: {report:#?}");
    }
    let (report, findings) = replay("2.11.0/groups-in-one-order");
    assert_eq!(report.verdict, Verdict::Healthy, "{report:#?}");
    assert!(findings.is_empty(), "{findings:#?}");
}

#[test]
fn a_dump_of_the_flight_recorder_names_the_rank() {
    let analysis = postmortem::analyze(&[folder().join("flight-recorder")]);
    let report = &analysis.reports[0];
    let finding = leading(report);
    assert_eq!((&*finding.code, &*finding.ranks.root), ("DD101", &[1][..]), "{report:#?}");
}
