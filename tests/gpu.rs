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

/// Name of a recorded run of a fault, for both versions of PyTorch and each of these ways.
fn runs<'a>(fault: &'a str, ways: &'a [&str]) -> impl Iterator<Item = String> + 'a {
    ["2.11.0", "2.15.0"].into_iter().flat_map(move |version| {
        ways.iter()
            .map(move |way| format!("{version}/{way}-{fault}"))
    })
}

const WAYS: [&str; 3] = ["hooks", "preloaded", "profiler"];

fn names_rank_1(fault: &str, ways: &[&str], codes: &[&str]) {
    for name in runs(fault, ways) {
        let (report, _) = replay(&name);
        let finding = leading(&report);
        assert!(codes.contains(&&*finding.code), "{name}: {report:#?}");
        assert_eq!(finding.ranks.root, [1], "{name}: {report:#?}");
    }
}

#[test]
fn a_healthy_job_has_no_finding_at_any_time() {
    for name in runs("none", &WAYS) {
        let (report, findings) = replay(&name);
        assert_eq!(report.verdict, Verdict::Healthy, "{name}");
        assert!(findings.is_empty(), "{name}: {findings:#?}");
    }
}

#[test]
fn a_rank_that_makes_no_further_call_is_named() {
    names_rank_1("missing", &WAYS, &["DD101", "DD204"]);
}

#[test]
fn a_tensor_of_another_size_is_named() {
    names_rank_1("shape", &WAYS, &["DD104"]);
}

#[test]
fn a_rank_that_exits_is_named() {
    names_rank_1("exit", &WAYS, &["DD102"]);
}

#[test]
fn a_rank_without_memory_is_named() {
    names_rank_1("memory", &["hooks"], &["DD501"]);
    // Without the Python package, only its end is seen.
    names_rank_1("memory", &["preloaded", "profiler"], &["DD201"]);
}

/// On NCCL, a rank goes on to later forwards while its call waits.
#[test]
fn accumulation_is_compared_at_the_waiting_forward() {
    let (report, _) = replay("2.11.0/no-sync-off-by-one");
    let finding = leading(&report);
    assert_eq!(finding.code, "DD406", "{report:#?}");
    assert!(
        finding.summary.contains("training forward 7"),
        "{report:#?}"
    );
}

/// NCCL does not compare the sizes of small messages: the ranks end in order.
#[test]
fn a_mismatch_that_completes_is_wrong() {
    let (report, _) = replay("2.15.0/uneven-splits");
    assert_eq!(leading(&report).code, "DD108", "{report:#?}");
    assert_eq!(report.verdict, Verdict::Wrong, "{report:#?}");
}

#[test]
fn a_dump_of_the_flight_recorder_names_the_rank() {
    let analysis = postmortem::analyze(&[folder().join("flight-recorder")]);
    let report = &analysis.reports[0];
    let finding = leading(report);
    assert_eq!(
        (&*finding.code, &*finding.ranks.root),
        ("DD101", &[1][..]),
        "{report:#?}"
    );
}
