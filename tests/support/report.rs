//! Reports and checks on them.

use std::fs;
use std::path::{Path, PathBuf};

use ddp_doctor_proto::report::{Confidence, Effect, Finding, Report, Role, Verdict};

/// The report in a file; `None`: there is none yet.
pub(crate) fn report_in(file: &Path) -> Option<Report> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

/// The report in a file. Panics if there is none.
#[track_caller]
pub(crate) fn read_report(file: &Path) -> Report {
    let text = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The reports in the folder of a coordinator, in any order.
pub(crate) fn reports_in(folder: &Path) -> Vec<Report> {
    let files = fs::read_dir(folder).into_iter().flatten();
    let paths = files.map(|file| file.unwrap().path());
    // While a report is written, its file has a hidden name.
    let is_report = |path: &PathBuf| path.extension().is_some_and(|it| it == "json");
    paths.filter(is_report).filter_map(|path| report_in(&path)).collect()
}

/// The only initiating finding. Panics unless there is exactly one, apart from the note that a record was lost in
/// a job that crashed: a process may die while one of its threads is writing.
#[track_caller]
pub(crate) fn leading(report: &Report) -> &Finding {
    let findings = report.findings.iter();
    let last = findings.clone().map(|it| it.attempt).max();
    let is_torn = |it: &Finding| report.verdict == Verdict::Crash && it.code == "DD902";
    let initiating: Vec<&Finding> = findings
        .filter(|it| it.role == Role::Initiating && Some(it.attempt) == last && !is_torn(it))
        .collect();
    let [leading] = initiating[..] else {
        panic!("{} initiating findings: {report:#?}", initiating.len())
    };
    leading
}

/// Code and root cause ranks of the only initiating finding. Panics unless there is exactly one.
#[track_caller]
pub(crate) fn initiating(report: &Report) -> (&str, &[u32]) {
    let leading = leading(report);
    (&leading.code, &leading.ranks.root)
}

/// Code and root cause ranks of each initiating finding that affects the job.
pub(crate) fn with_effect(report: &Report) -> Vec<(&str, &[u32])> {
    let initiating = report
        .findings
        .iter()
        .filter(|it| it.role == Role::Initiating && it.effect != Effect::None);
    initiating.map(|it| (it.code.as_str(), it.ranks.root.as_slice())).collect()
}

/// Panics unless the verdict is healthy, without findings, for this number of ranks.
#[track_caller]
pub(crate) fn is_healthy(report: &Report, ranks: usize) {
    assert_eq!(report.findings, [], "{report:#?}");
    assert_eq!(report.verdict, Verdict::Healthy, "{report:#?}");
    assert_eq!(report.ranks.len(), ranks, "{report:#?}");
}

/// Host of each rank.
pub(crate) fn hosts_of(report: &Report) -> Vec<&str> {
    report.ranks.iter().map(|rank| rank.host.as_str()).collect()
}

/// Panics unless the report is of the proved DD103 of a rank on each of two hosts.
#[track_caller]
pub(crate) fn assert_hang(report: &Report) {
    let finding = leading(report);
    assert_eq!(
        (finding.code.as_str(), finding.confidence),
        ("DD103", Confidence::Proved),
        "{report:#?}"
    );
    assert_eq!((report.verdict, report.job.nodes), (Verdict::Hang, 2));
    assert_eq!(finding.per_rank.len(), 2);
    assert!(finding.per_rank.iter().all(|it| it.place.is_some()));
    // Ray places its workers on either host.
    let mut hosts = hosts_of(report);
    hosts.sort_unstable();
    assert_eq!(hosts, ["host-0", "host-1"]);
}
