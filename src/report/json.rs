//! The report as JSON, assembled from updates.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Write};

use ddp_doctor_host::files::Dir;
use ddp_doctor_proto::report::{
    Evidence, Finding, Job, Rank, Report, SCHEMA, SCHEMA_VERSION, Tool, Verdict,
};
use ddp_doctor_proto::viewer::Update;
use ddp_doctor_proto::words::{is_command, is_hidden};
use serde::Serialize;

/// Assembles the report from updates.
#[derive(Clone, Debug)]
pub struct Assembler {
    job: Job,
    verdict: Verdict,
    evidence: Evidence,
    findings: Vec<Finding>,
    ranks: BTreeMap<u32, Rank>,
}

impl Assembler {
    /// A report about a job without any evidence.
    #[must_use]
    pub fn new(job: Job) -> Self {
        Self {
            job,
            verdict: Verdict::Insufficient,
            evidence: Evidence::default(),
            findings: Vec::new(),
            ranks: BTreeMap::new(),
        }
    }

    /// Applies an update. Returns whether the findings changed.
    pub fn apply(&mut self, update: Update) -> bool {
        self.job = update.job;
        self.evidence = update.evidence;
        self.verdict = update.verdict;
        for rank in update.ranks {
            self.ranks.insert(rank.rank, rank);
        }
        let changed = update.findings.is_some();
        if let Some(findings) = update.findings {
            self.findings = findings;
        }
        changed
    }

    /// Marks the diagnosis as incomplete: it may have missed findings.
    pub fn mark_incomplete(&mut self) {
        if self.verdict == Verdict::Healthy {
            self.verdict = Verdict::Insufficient;
        }
    }

    /// The current findings.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The current verdict.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Number of ranks that have reported.
    #[must_use]
    pub const fn ranks_reporting(&self) -> u32 {
        self.evidence.ranks_reporting
    }

    /// Number of ranks whose state is known. It can lag behind [`Self::ranks_reporting`] by one update.
    #[must_use]
    pub fn ranks_listed(&self) -> usize {
        self.ranks.len()
    }

    /// The current report.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            schema: SCHEMA.into(),
            schema_version: SCHEMA_VERSION.into(),
            tool: Tool::this(),
            job: self.job.clone(),
            verdict: self.verdict,
            evidence: self.evidence.clone(),
            findings: self.findings.clone(),
            ranks: self.ranks.values().cloned().collect(),
        }
    }
}

/// Writes a report as one JSON document.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn print(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    out.write_all(text(report)?.as_bytes())
}

/// A value as a JSON document that may be shown on a terminal or by a service that runs tests: in its strings, control
/// characters and invisible ones are escaped, and so is what makes commands to such a service.
///
/// # Errors
///
/// Fails if the value cannot be represented.
pub fn text(value: &impl Serialize) -> serde_json::Result<String> {
    let document = serde_json::to_string_pretty(value)?;
    let mut escaped = String::with_capacity(document.len() + 1);
    for (at, c) in document.char_indices() {
        let is_of_command = c != '\n' && is_command(&document[..at], &document[at..]);
        // Line feeds are between the strings: in them, they are escaped already.
        if c == '\n' || !is_hidden(c) && !is_of_command {
            escaped.push(c);
        } else {
            let mut buffer = [0; 2];
            let units = c.encode_utf16(&mut buffer).iter();
            escaped.extend(units.map(|unit| format!("\\u{unit:04x}")));
        }
    }
    escaped.push('\n');
    Ok(escaped)
}

/// Replaces a report in an open directory: readers of the file see the old report or the new one. Only this user may
/// read it.
///
/// # Errors
///
/// If the file cannot be written; the old file is unchanged then.
pub fn write_in(report: &Report, dir: &Dir, name: &OsStr) -> io::Result<()> {
    dir.replace(name, text(report)?.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn hidden_characters_are_escaped() {
        let hostile = "a\u{1b}[2J\u{9b}\u{202e}\u{e0041}\nb";
        let shown = text(&hostile).unwrap();
        assert_eq!(shown, "\"a\\u001b[2J\\u009b\\u202e\\udb40\\udc41\\nb\"\n");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), hostile);
    }

    #[test]
    fn commands_to_a_service_that_runs_tests_are_escaped() {
        let hostile = "##vso[task.prependpath]/tmp ##[error] ###TeamCity[x # [";
        let shown = text(&hostile).unwrap();
        assert_eq!(
            shown,
            "\"##\\u0076so[task.prependpath]/tmp ##\\u005berror] ###\\u0054eamCity[x # [\"\n"
        );
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), hostile);
    }

    #[test]
    fn updates_accumulate_to_a_report() {
        let mut assembler = Assembler::new(Job { id: "j".into(), ..Job::default() });
        assert_eq!(assembler.report().verdict, Verdict::Insufficient);
        let rank = |rank, step| Rank { rank, step, ..Default::default() };
        assert!(assembler.apply(Update {
            findings: Some(vec![Finding::default()]),
            ranks: vec![rank(1, 1), rank(0, 1)],
            ..Default::default()
        }));
        let update = Update { ranks: vec![rank(1, 2)], ..Default::default() };
        assert!(!assembler.apply(update));
        let report = assembler.report();
        assert_eq!(report.findings.len(), 1, "not sent again, not forgotten");
        let steps: Vec<_> = report.ranks.iter().map(|rank| (rank.rank, rank.step)).collect();
        assert_eq!(steps, [(0, 1), (1, 2)]);
    }

    #[test]
    fn report_replaces_the_old_file_and_leaves_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let opened = Dir::open_own(dir.path()).unwrap();
        let report = Assembler::new(Job::default()).report();
        write_in(&report, &opened, "report.json".as_ref()).unwrap();
        write_in(&report, &opened, "report.json".as_ref()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let bytes = fs::read(dir.path().join("report.json")).unwrap();
        let read: Report = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(read, report);
    }
}
