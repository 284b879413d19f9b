//! Dumps and the output of torchrun of one job together: eight real jobs over Gloo in `tests/fixtures/dumps-with-logs`,
//! and in its folder `nccl` jobs in the form of NCCL's dumps, with the truth of each beside its files.

use std::fs::{self, File};
use std::io::copy;
use std::path::{Path, PathBuf};

use ddp_doctor::postmortem::{self, Analysis};
use ddp_doctor_proto::report::{Confidence, Report};
use flate2::read::GzDecoder;
use serde::Deserialize;
use tempfile::TempDir;

const JOBS: [&str; 8] = ["raise", "killed", "skip", "exits", "op", "cycle", "segv", "stuck"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Truth {
    /// What happened, for readers.
    #[expect(dead_code, reason = "for readers")]
    incident: String,
    /// Code of the leading finding.
    code: String,
    root: u32,
    /// A part of its summary.
    summary: String,
    /// The root ended before it could have written a dump after the timeout, as ranks over NCCL do.
    leaves_no_dump: bool,
}

fn folder(job: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dumps-with-logs").join(job)
}

fn truth(job: &str) -> Truth {
    toml::from_str(&fs::read_to_string(folder(job).join("truth.toml")).unwrap()).unwrap()
}

/// The dumps of a job, without that of one rank, beside its log.
fn files(job: &str, without: Option<u32>) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for rank in (0..4).filter(|it| Some(*it) != without) {
        let name = format!("trace_rank_{rank}");
        let packed = File::open(folder(job).join(format!("{name}.gz"))).unwrap();
        let mut unpacked = File::create(dir.path().join(name)).unwrap();
        copy(&mut GzDecoder::new(packed), &mut unpacked).unwrap();
    }
    fs::copy(folder(job).join("torchrun.log"), dir.path().join("torchrun.log")).unwrap();
    dir
}

fn analyze(dir: &TempDir) -> Analysis {
    postmortem::analyze(&[dir.path().to_owned(), dir.path().join("torchrun.log")])
}

fn check(report: &Report, truth: &Truth) -> Result<(), String> {
    let leading = report.findings.first().ok_or("no finding")?;
    let found = format!("{} {:?} {}", leading.code, leading.ranks.root, leading.summary);
    let is_right = leading.code == truth.code
        && leading.ranks.root == [truth.root]
        && leading.summary.contains(&truth.summary)
        && leading.confidence >= Confidence::Supported
        && !leading.summary.contains("before its first call");
    if is_right { Ok(()) } else { Err(found) }
}

#[test]
fn dumps_with_the_log_of_their_job_name_the_culprit() {
    let mut failures = Vec::new();
    for job in JOBS {
        let truth = truth(job);
        let missing = Some(truth.root).filter(|_| truth.leaves_no_dump);
        for without in [None, missing] {
            let analysis = analyze(&files(job, without));
            let checked = match &analysis.reports[..] {
                [report] => check(report, &truth),
                reports => Err(format!("{} reports, {:?}", reports.len(), analysis.remarks)),
            };
            failures.extend(checked.err().map(|it| format!("{job}, without {without:?}: {it}")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The truth of a job over NCCL.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NcclTruth {
    /// What happened, for readers.
    #[expect(dead_code, reason = "for readers")]
    incident: String,
    /// Code of the leading finding.
    code: String,
    root: Vec<u32>,
    victims: Option<Vec<u32>>,
    /// A part of its summary.
    summary: String,
    /// What contradicts that the log is of the job of the dumps; it has a report of its own then.
    contradiction: Option<String>,
}

impl NcclTruth {
    fn check(&self, analysis: &Analysis) -> Result<(), String> {
        let remarks: Vec<&str> = analysis.remarks.iter().map(|it| &*it.text).collect();
        let refused = remarks.iter().find(|it| it.contains("to a different job from the dumps"));
        let reports = if self.contradiction.is_some() { 2 } else { 1 };
        if analysis.reports.len() != reports || refused.is_some() != self.contradiction.is_some() {
            return Err(format!("{} reports, {remarks:?}", analysis.reports.len()));
        }
        if let (Some(refused), Some(expected)) = (refused, &self.contradiction)
            && !refused.contains(expected)
        {
            return Err(format!("{refused} does not state {expected:?}"));
        }
        let of_dumps = analysis.reports.iter().filter(|it| it.job.backends == ["nccl"]);
        let leading = of_dumps.filter_map(|it| it.findings.first()).next().ok_or("no finding")?;
        let is_right = leading.code == self.code
            && leading.ranks.root == self.root
            && self.victims.as_ref().is_none_or(|it| *it == leading.ranks.victims)
            && leading.summary.contains(&self.summary)
            && (self.contradiction.is_some() || leading.confidence >= Confidence::Supported);
        let found = || {
            let ranks = &leading.ranks;
            format!("{} {:?} {:?} {}", leading.code, ranks.root, ranks.victims, leading.summary)
        };
        if is_right { Ok(()) } else { Err(found()) }
    }
}

#[test]
fn dumps_of_nccl_with_the_log_of_their_job_name_the_culprit() {
    let root = folder("nccl");
    let mut jobs: Vec<PathBuf> = fs::read_dir(&root)
        .unwrap()
        .map(|it| it.unwrap().path())
        .filter(|it| it.is_dir())
        .collect();
    jobs.sort();
    assert!(jobs.len() >= 8, "{jobs:?}");
    let mut failures = Vec::new();
    for job in jobs {
        let text = fs::read_to_string(job.join("truth.toml")).unwrap();
        let truth: NcclTruth = toml::from_str(&text).unwrap();
        let dir = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(&job).unwrap().map(|it| it.unwrap().path()) {
            if entry.extension().is_some_and(|it| it == "gz") {
                let mut packed = GzDecoder::new(File::open(&entry).unwrap());
                let name = entry.file_stem().unwrap();
                copy(&mut packed, &mut File::create(dir.path().join(name)).unwrap()).unwrap();
            }
        }
        fs::copy(job.join("torchrun.log"), dir.path().join("torchrun.log")).unwrap();
        let checked = truth.check(&analyze(&dir));
        let name = job.file_name().unwrap().to_string_lossy().into_owned();
        failures.extend(checked.err().map(|it| format!("{name}: {it}")));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
