//! The diagnosis of a running job on its terminal and in its report files.

use std::borrow::Borrow;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use ddp_doctor_host::source_files::SourceFolders;
use ddp_doctor_monitoring::events::{Event, Tracker};
use ddp_doctor_monitoring::webhook::Notifier;
use ddp_doctor_proto::catalogue::{is_gap, is_over_time};
use ddp_doctor_proto::report::{Effect, Finding, Job, Report, Role, Severity, Verdict};
use ddp_doctor_proto::viewer::Update;
use ddp_doctor_report::json::Assembler;
use ddp_doctor_report::text::{self, Style};

/// How long a finding must be unchanged before it is printed: many are refined a moment later.
const PRINT_DELAY: Duration = Duration::from_millis(150);
/// Maximum delay of a finding that keeps changing.
const MAX_PRINT_DELAY: Duration = Duration::from_secs(1);

/// Age at which a printed finding is printed again at the end: other output has followed it.
const REPRINT_AGE: Duration = Duration::from_secs(1);

mod file;

pub use file::ReportFile;

/// Amount of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verbosity {
    /// 1: neither the line at the start nor the one at the end; 2: nothing.
    pub quiet: u8,
    /// 1: also notes, and missing evidence in full.
    pub verbose: u8,
}

/// Prints findings as they appear, and keeps the report files up to date.
pub struct Live {
    out: Box<dyn Write + Send>,
    style: Style,
    verbosity: Verbosity,
    assembler: Assembler,
    /// Report files.
    files: Vec<ReportFile>,
    /// Findings on the terminal.
    printed: Vec<Printed>,
    /// Printed findings over time that no longer hold.
    lapsed: Vec<Printed>,
    /// When `printed` became outdated, and when to print; `None`: up to date.
    settling: Option<(Instant, Instant)>,
    /// The job has ended: the findings are final.
    is_over: bool,
    /// Receives new findings, too.
    webhook: Option<(Tracker, Notifier)>,
    /// Whether the diagnosis reported the end of the job.
    has_ended: bool,
    /// Where source lines are read.
    sources: SourceFolders,
    /// What a user can do about a hang; printed once, after the first finding of one.
    remedy: Option<&'static str>,
}

/// A finding on the terminal.
struct Printed {
    finding: Finding,
    /// Time it was last printed in full; `None`: in one line, or not at all.
    at: Option<Instant>,
}

impl Live {
    /// Prints to `out` and writes the report to `files`.
    #[must_use]
    pub fn new(
        out: Box<dyn Write + Send>,
        style: Style,
        verbosity: Verbosity,
        job: Job,
        files: Vec<ReportFile>,
    ) -> Self {
        Self {
            out,
            style,
            verbosity,
            assembler: Assembler::new(job),
            files,
            printed: Vec::new(),
            lapsed: Vec::new(),
            settling: None,
            is_over: false,
            webhook: None,
            has_ended: false,
            sources: SourceFolders::default(),
            remedy: None,
        }
    }

    /// Shows source lines of files below these folders.
    #[must_use]
    pub fn with_sources(mut self, folders: SourceFolders) -> Self {
        self.sources = folders;
        self
    }

    /// Prints this line after the first finding of a hang.
    #[must_use]
    pub const fn with_remedy(mut self, line: &'static str) -> Self {
        self.remedy = Some(line);
        self
    }

    /// Also sends new findings, and the end of a hang, to a webhook.
    pub fn notify(&mut self, notifier: Notifier) {
        let job = self.assembler.report().job.id;
        self.webhook = Some((Tracker::new(&job), notifier));
    }

    /// Prints a line about an event or an error, except with `quiet` 2.
    pub fn print_line(&mut self, line: &str) {
        if self.verbosity.quiet < 2 {
            self.line(line);
        }
    }

    /// Prints a line of general information at the start or the end, unless quiet.
    pub fn announce(&mut self, line: &str) {
        if self.verbosity.quiet < 1 {
            self.line(line);
        }
    }

    /// Applies an update.
    pub fn apply(&mut self, update: Update, now: Instant) {
        let ended = update.ended;
        self.has_ended |= ended;
        let outline = |it: &Assembler| (it.verdict(), it.ranks_reporting(), it.ranks_listed());
        let before = outline(&self.assembler);
        let changed = self.assembler.apply(update);
        if changed || ended || before != outline(&self.assembler) {
            self.write_files();
        }
        if !changed {
            return;
        }
        self.settling = if self.is_up_to_date() {
            None
        } else {
            let since = self.settling.map_or(now, |(since, _)| since);
            Some((since, (now + PRINT_DELAY).min(since + MAX_PRINT_DELAY)))
        };
    }

    /// When to call [`Live::print`] if no update arrives before.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.settling.map(|(_, due)| due)
    }

    /// The current findings.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        self.assembler.findings()
    }

    /// The report as of the last update.
    #[must_use]
    pub fn report(&self) -> Report {
        self.assembler.report()
    }

    /// Prints new findings, those with other root cause ranks or another effect, and withdrawals.
    pub fn print(&mut self) {
        self.settling = None;
        self.send(Tracker::observe);
        let mut before = std::mem::take(&mut self.printed);
        let mut printed = Vec::new();
        for finding in self.printable() {
            let same = take_previous(&mut before, &finding);
            let at = match same {
                Some(same) if !has_changed(&same.finding, &finding) => same.at,
                _ => self.new_finding(&finding),
            };
            printed.push(Printed { finding, at });
        }
        for gone in before {
            let Finding { code, name, .. } = &gone.finding;
            if is_over_time(code) {
                // Beside a finding with an effect, it is only left out.
                if !printed.iter().any(|it| it.finding.effect > Effect::Slows) {
                    self.print_line(&format!("no longer seen: {code} {name}"));
                }
                self.lapsed.push(gone);
            } else {
                self.print_line(&format!("withdrawn: {code} {name}"));
            }
        }
        self.printed = printed;
        let blocks = |it: &Printed| it.at.is_some() && it.finding.effect == Effect::Blocks;
        if !self.is_over
            && self.printed.iter().any(blocks)
            && let Some(line) = self.remedy.take()
        {
            self.announce(line);
        }
    }

    /// Prints a finding that was not printed before, or whose subject has changed: one line if it was
    /// printed earlier, lapsed and holds again.
    fn new_finding(&mut self, finding: &Finding) -> Option<Instant> {
        let earlier = take_previous(&mut self.lapsed, finding);
        let is_same = earlier.is_some_and(|it| !has_changed(&it.finding, finding));
        if !is_same || self.is_over {
            return self.finding(finding);
        }
        let Finding { severity, code, .. } = finding;
        self.print_line(&format!("recurred: {severity}[{code}] {}", finding.title()));
        Some(Instant::now())
    }

    /// Prints and writes the rest. Initiating findings are printed last, below the final output of
    /// the job and its launcher.
    pub fn finish(&mut self) -> Report {
        if !std::mem::replace(&mut self.is_over, true) && self.verbosity.verbose == 0 {
            // Findings printed as a one-line note that are errors by now: print them in full.
            let mut upgraded = self.printable();
            upgraded.retain(|finding| is_gap(&finding.code) && !self.is_note(finding));
            let has_grown = |said: &Finding| {
                let same = |it: &Finding| it.code == said.code && it.ranks.root == said.ranks.root;
                upgraded.iter().any(same)
            };
            self.printed.retain(|said| !has_grown(&said.finding));
        }
        self.print();
        if self.has_ended {
            self.send(Tracker::finish);
        }
        let leads = |f: &Finding| f.role == Role::Initiating && f.severity >= Severity::Error;
        let leading = || self.printed.iter().filter(|it| leads(&it.finding));
        // What was printed after a leading finding does not matter, however recent: it hides it.
        if leading().any(|it| it.at.is_some_and(|at| at.elapsed() >= REPRINT_AGE)) {
            let blocks = |it: &Printed| it.finding.effect == Effect::Blocks;
            // Where the job hung is part of the diagnosis if only a consequence states it.
            let is_stated = leading().any(blocks);
            let tells = |it: &&Printed| leads(&it.finding) || !is_stated && blocks(it);
            let shown = self.printed.iter().filter(tells);
            let again: Vec<Finding> = shown.map(|it| it.finding.clone()).collect();
            self.announce("the diagnosis again:");
            for finding in &again {
                self.finding(finding);
            }
        }
        self.write_files();
        self.assembler.report()
    }

    /// Sends the messages that follow from the current findings.
    fn send(&mut self, compare: fn(&mut Tracker, Verdict, &[Finding]) -> Vec<Event>) {
        if let Some((tracker, notifier)) = &mut self.webhook {
            let (verdict, findings) = (self.assembler.verdict(), self.assembler.findings());
            let events = compare(tracker, verdict, findings);
            events.into_iter().for_each(|event| notifier.send(event));
        }
    }

    fn printable(&self) -> Vec<Finding> {
        let findings = self.assembler.findings().iter();
        findings
            // Without a line about missing evidence, the job would appear healthy.
            .filter(|finding| !self.needs_verbose(finding) || is_gap(&finding.code))
            .cloned()
            .collect()
    }

    fn needs_verbose(&self, finding: &Finding) -> bool {
        self.verbosity.verbose == 0 && finding.severity < Severity::Warning
    }

    fn is_up_to_date(&self) -> bool {
        let mut before: Vec<&Printed> = self.printed.iter().collect();
        let current = self.printable();
        current.iter().all(|finding| {
            take_previous(&mut before, finding)
                .is_some_and(|printed| !has_changed(&printed.finding, finding))
        }) && before.is_empty()
    }

    /// Whether the finding is printed as a note in one line. Until the job has ended, missing evidence is not
    /// final and therefore not printed as an error.
    fn is_note(&self, finding: &Finding) -> bool {
        self.needs_verbose(finding)
            || (is_gap(&finding.code) && self.verbosity.verbose == 0 && !self.is_over)
    }

    /// Whether the finding is printed in one line, because the finding that it follows from explains it.
    fn is_explained(&self, finding: &Finding) -> bool {
        self.verbosity.verbose == 0 && finding.role == Role::Cascade
    }

    /// Prints a finding; returns when, if it was printed in full.
    fn finding(&mut self, finding: &Finding) -> Option<Instant> {
        if self.is_note(finding) {
            self.print_line(&format!("note[{}] {}", finding.code, finding.title()));
            None
        } else if self.is_explained(finding) {
            let Finding { severity, code, .. } = finding;
            self.print_line(&format!("{severity}[{code}] follows: {}", finding.title()));
            None
        } else if self.verbosity.quiet < 2 {
            // A single write, so that output of the job does not interleave.
            let mut block = b"\n".to_vec();
            let ranks = self.assembler.report().ranks;
            drop(text::finding(&mut block, finding, &ranks, self.style, &self.sources));
            block.push(b'\n');
            self.write(&block);
            Some(Instant::now())
        } else {
            None
        }
    }

    fn line(&mut self, line: &str) {
        self.write(format!("ddp-doctor: {}\n", text::plain(line)).as_bytes());
    }

    /// Writes bytes; errors are ignored, because a closed terminal must not stop the job.
    fn write(&mut self, bytes: &[u8]) {
        drop(self.out.write_all(bytes).and_then(|()| self.out.flush()));
    }

    /// Also writes the report to this file from now on, and now.
    pub fn add_file(&mut self, file: ReportFile) {
        self.files.push(file);
        self.write_files();
    }

    /// Prints the whole report, whatever the amount of output: there is no other copy of it.
    pub fn print_report(&mut self) {
        let mut text = b"\n".to_vec();
        drop(text::report(&mut text, &self.assembler.report(), self.style, true, &self.sources));
        self.write(&text);
    }

    /// Marks the diagnosis as incomplete.
    pub fn mark_incomplete(&mut self) {
        self.assembler.mark_incomplete();
        self.print_line("the diagnosis was not concluded in time: the report may be incomplete");
    }

    /// Whether this file has the last report.
    #[must_use]
    pub fn is_written(&self, path: &Path) -> bool {
        let mut files = self.files.iter();
        files.any(|file| file.path == path && !file.is_stale)
    }

    /// Writes the report files. An error is reported once, until the file can be written again.
    fn write_files(&mut self) {
        let report = self.assembler.report();
        let mut failed = Vec::new();
        for file in &mut self.files {
            let written = file.write(&report);
            let was_stale = std::mem::replace(&mut file.is_stale, written.is_err());
            if let (Err(error), false) = (written, was_stale) {
                let path = file.path.display();
                failed.push(format!("the report {path} cannot be written: {error}"));
            }
        }
        failed.iter().for_each(|line| self.print_line(line));
    }
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").field("assembler", &self.assembler).finish_non_exhaustive()
    }
}

/// Removes and returns the finding that `finding` continues: the one at the same place, preferably
/// with the same root cause ranks.
fn take_previous<P: Borrow<Printed>>(before: &mut Vec<P>, finding: &Finding) -> Option<P> {
    let here = |other: &P| {
        let other = &other.borrow().finding;
        other.code == finding.code && other.group == finding.group && other.seq == finding.seq
    };
    let same = |it: &P| here(it) && it.borrow().finding.ranks.root == finding.ranks.root;
    let exact = before.iter().position(same);
    let index = exact.or_else(|| before.iter().position(here))?;
    Some(before.remove(index))
}

/// Whether a finding is printed again. That a hang has ended in a crash is seen in the findings that
/// follow from it.
fn has_changed(printed: &Finding, finding: &Finding) -> bool {
    let effects = (printed.effect, finding.effect);
    let is_other = effects.0 != effects.1 && effects != (Effect::Blocks, Effect::Crashes);
    // A consequence is printed in one line.
    let leads = printed.role == Role::Cascade && finding.role == Role::Initiating;
    printed.ranks.root != finding.ranks.root || is_other || leads
}

#[cfg(test)]
mod tests;
