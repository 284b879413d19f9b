//! `analyze` on plain logs and stacks as text.
//!
//! `tests/fixtures/logs` has excerpts in the structure of real logs, with other names and numbers.
//! Beside each lies its truth: what can be known from the excerpt, and in one line how the incident
//! ended.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use ddp_doctor::postmortem;
use ddp_doctor_proto::report::{Confidence, Finding, Report, Role};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Deserialize;

use crate::support::process::program;

/// What is true of an excerpt.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Truth {
    /// How the incident ended, for readers.
    incident: String,
    verdict: String,
    /// Codes that must be found, the leading one first.
    codes: Vec<String>,
    /// Ranks that the leading finding names as the root, at least supported …
    #[serde(default)]
    root: Vec<u32>,
    /// … or only suspects.
    #[serde(default)]
    suspects: Vec<u32>,
    /// Ranks that wait for them.
    victims: Option<Vec<u32>>,
    /// Call of the leading finding.
    op: Option<String>,
    seq: Option<u64>,
    /// A line of the leading finding: "train.py:9".
    line: Option<String>,
    /// Ranks that the report has, at most.
    ranks: Option<Vec<u32>>,
    /// A part of a sentence of some finding.
    says: Option<String>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/logs")
}

/// The only report about a log.
fn report_of(path: &Path) -> Result<Report, String> {
    let mut analysis = postmortem::analyze(&[path.to_owned()]);
    match (analysis.reports.pop(), analysis.reports.len()) {
        (Some(report), 0) => Ok(report),
        (_, others) => Err(format!("{} reports: {:?}", others, analysis.remarks)),
    }
}

fn check(report: &Report, truth: &Truth) -> Result<(), String> {
    let same = |what: &str, found: String, wanted: String| match found == wanted {
        true => Ok(()),
        false => Err(format!("{what} is {found}, not {wanted}")),
    };
    same("verdict", report.verdict.to_string(), truth.verdict.clone())?;
    let leading = report.findings.first().ok_or("no finding")?;
    let codes: BTreeSet<&str> = report.findings.iter().map(|it| &*it.code).collect();
    same("code", leading.code.clone(), truth.codes[0].clone())?;
    if let Some(missing) = truth.codes.iter().find(|it| !codes.contains(&***it)) {
        return Err(format!("{missing} is missing"));
    }
    let is_gap = leading.code.starts_with("DD9");
    let is_supported = leading.ranks.root_confidence >= Confidence::Supported && !is_gap;
    let (root, suspects) = match (is_gap, is_supported) {
        (true, _) => (Vec::new(), Vec::new()),
        (false, true) => (leading.ranks.root.clone(), Vec::new()),
        (false, false) => (Vec::new(), leading.ranks.root.clone()),
    };
    same("root", format!("{root:?}"), format!("{:?}", truth.root))?;
    same("suspects", format!("{suspects:?}"), format!("{:?}", truth.suspects))?;
    if let Some(victims) = &truth.victims {
        same("victims", format!("{:?}", leading.ranks.victims), format!("{victims:?}"))?;
    }
    if let Some(op) = &truth.op {
        same("op", format!("{:?}", leading.op), format!("{:?}", Some(op)))?;
    }
    if let Some(seq) = truth.seq {
        same("seq", format!("{:?}", leading.seq), format!("{:?}", Some(seq)))?;
    }
    let lines = leading.per_rank.iter().filter_map(|it| it.place.as_ref());
    let lines = lines.map(|it| format!("{}:{}", it.file.rsplit('/').next().unwrap_or_default(), it.line));
    let lines: Vec<String> = lines.collect();
    if let Some(line) = truth.line.as_ref().filter(|it| !lines.contains(it)) {
        return Err(format!("{line} is not among the lines {lines:?}"));
    }
    if let Some(known) = &truth.ranks {
        let ranks: Vec<u32> = report.ranks.iter().map(|it| it.rank).collect();
        same("ranks", format!("{ranks:?}"), format!("{known:?}"))?;
    }
    let texts = report.findings.iter().flat_map(sentences);
    let mut texts = texts.collect::<Vec<_>>().into_iter();
    if let Some(words) = truth.says.as_ref().filter(|it| !texts.any(|text| text.contains(&***it))) {
        return Err(format!("nothing says {words:?}"));
    }
    claims_nothing_more(report, truth)
}

fn sentences(finding: &Finding) -> Vec<&str> {
    let others = finding.why.iter().chain(&finding.next).map(String::as_str);
    std::iter::once(&*finding.summary).chain(others).collect()
}

/// Text proves nothing about a job, and names no other culprit.
fn claims_nothing_more(report: &Report, truth: &Truth) -> Result<(), String> {
    let findings = report.findings.iter().filter(|it| !it.code.starts_with("DD9"));
    for finding in findings {
        if finding.confidence == Confidence::Proved || finding.certificate.is_some() {
            return Err(format!("{} is proved", finding.code));
        }
        let is_new = |rank: &u32| !truth.root.contains(rank) && !truth.suspects.contains(rank);
        let is_sure = finding.ranks.root_confidence >= Confidence::Supported;
        let initiates = finding.role == Role::Initiating;
        if let Some(rank) = finding.ranks.root.iter().find(|it| is_sure && initiates && is_new(it)) {
            return Err(format!("{} blames rank {rank}", finding.code));
        }
    }
    Ok(())
}

#[test]
fn excerpts_of_real_logs_lead_to_their_truths() {
    let only = std::env::var("LOG").ok();
    let mut names: Vec<PathBuf> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "log"))
        .collect();
    names.sort();
    assert!(names.len() >= 15, "{names:?}");
    let mut failures = Vec::new();
    for path in names {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if only.as_ref().is_some_and(|it| *it != name) {
            continue;
        }
        let truth = fs::read_to_string(path.with_extension("toml")).unwrap();
        let truth: Truth = toml::from_str(&truth).unwrap();
        assert!(truth.incident.ends_with('.'), "{name}");
        let report = report_of(&path);
        let result = report.as_ref().map_err(Clone::clone).and_then(|it| check(it, &truth));
        if let Err(failure) = result {
            let shown = report.map(|it| {
                let findings = it.findings.iter().map(|it| {
                    format!("{} {:?} {:?} {:?} {}", it.code, it.role, it.ranks.root, it.ranks.root_confidence, it.summary)
                });
                findings.collect::<Vec<_>>().join("\n    ")
            });
            failures.push(format!("{name}: {failure}\n    {}", shown.unwrap_or_default()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
