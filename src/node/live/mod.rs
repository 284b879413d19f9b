//! The diagnosis of a running job on its terminal and in its report files.

use std::borrow::Borrow;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use ddp_doctor_proto::catalogue::{is_gap, is_over_time};
use ddp_doctor_proto::report::{Effect, Finding, Job, Report, Role, Severity, Verdict};
use ddp_doctor_proto::viewer::Update;

use crate::host::source_files::SourceFolders;
use crate::monitoring::events::{Event, Tracker};
use crate::monitoring::webhook::Notifier;
use crate::report::json::Assembler;
use crate::report::text::{self, Style};

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
    /// Time it was last printed in full; `None`: as a note, or not at all.
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
        self.print_line(&format!("again: {severity}[{code}] {}", finding.title()));
        Some(Instant::now())
    }

    /// Prints and writes the rest. Initiating findings are printed last, below the final output of
    /// the job and its launcher.
    pub fn finish(&mut self) -> Report {
        if !std::mem::replace(&mut self.is_over, true) && self.verbosity.verbose == 0 {
            // Findings printed as a one-line note that are errors by now: print them in full.
            let mut upgraded = self.printable();
            upgraded.retain(|finding| is_gap(&finding.code) && !self.is_brief(finding));
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
            let again: Vec<Finding> = leading().map(|it| it.finding.clone()).collect();
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

    /// Whether the finding is printed as one line. Until the job has ended, missing evidence is not
    /// final and therefore not printed as an error.
    fn is_brief(&self, finding: &Finding) -> bool {
        self.needs_verbose(finding)
            || (is_gap(&finding.code) && self.verbosity.verbose == 0 && !self.is_over)
    }

    /// Prints a finding; returns when, if it was printed in full.
    fn finding(&mut self, finding: &Finding) -> Option<Instant> {
        if self.is_brief(finding) {
            self.print_line(&format!("note[{}] {}", finding.code, finding.title()));
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
    printed.ranks.root != finding.ranks.root || is_other
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use ddp_doctor_proto::report::Rank;

    use super::*;

    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Screen {
        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut self.0.lock().unwrap())).unwrap()
        }
    }

    fn live(verbosity: Verbosity) -> (Live, Screen) {
        let screen = Screen::default();
        let out = Box::new(screen.clone());
        (Live::new(out, Style::default(), verbosity, Job::default(), Vec::new()), screen)
    }

    fn finding(code: &str, root: u32, severity: Severity, summary: &str) -> Finding {
        let mut finding =
            Finding { code: code.into(), severity, summary: summary.into(), ..Default::default() };
        finding.ranks.root.push(root);
        finding
    }

    fn update(findings: Vec<Finding>) -> Update {
        Update { findings: Some(findings), ..Default::default() }
    }

    #[test]
    fn incomplete_diagnosis_is_not_healthy() {
        for (before, after) in
            [(Verdict::Healthy, Verdict::Insufficient), (Verdict::Hang, Verdict::Hang)]
        {
            let (mut live, screen) = live(Verbosity::default());
            let mut verdict = update(Vec::new());
            verdict.verdict = before;
            live.apply(verdict, Instant::now());
            live.mark_incomplete();
            assert_eq!(live.finish().verdict, after);
            assert!(screen.take().contains("may be incomplete"));
        }
    }

    #[test]
    fn report_of_a_healthy_job_has_the_ranks_that_join() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let (out, style) = (Box::new(Screen::default()), Style::default());
        let files = vec![path.clone().into()];
        let mut live = Live::new(out, style, Verbosity::default(), Job::default(), files);
        // The second rank is counted one update before its state is known.
        for (reporting, listed) in [(1, 0), (2, 0), (2, 1)] {
            let mut joined = Update { verdict: Verdict::Healthy, ..Default::default() };
            joined.evidence.ranks_reporting = reporting;
            joined.ranks = vec![Rank { rank: listed, ..Default::default() }];
            live.apply(joined, Instant::now());
            let report: Report = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            assert_eq!(report.evidence.ranks_reporting, reporting);
            assert!(report.ranks.iter().map(|it| it.rank).eq(0..=listed), "{report:?}");
        }
    }

    #[test]
    fn finding_refined_at_once_is_printed_once() {
        let (mut live, screen) = live(Verbosity::default());
        let start = Instant::now();
        live.apply(update(vec![finding("DD101", 0, Severity::Error, "first")]), start);
        let due = live.due().unwrap();
        assert_eq!(due, start + PRINT_DELAY);
        live.apply(
            update(vec![finding("DD102", 1, Severity::Error, "second")]),
            start + PRINT_DELAY / 2,
        );
        assert!(live.due().unwrap() > due);
        live.print();
        let text = screen.take();
        assert!(!text.contains("first") && text.contains("second"), "{text}");
        assert_eq!(live.due(), None);
    }

    #[test]
    fn finding_over_time_lapses_and_is_printed_in_full_at_the_end() {
        let (mut live, screen) = live(Verbosity::default());
        let slow = || update(vec![finding("DD601", 1, Severity::Warning, "rank 1 is slow")]);
        let mut show = |update| {
            live.apply(update, Instant::now());
            live.print();
            screen.take()
        };
        assert!(show(slow()).contains("warning[DD601]"));
        let lapsed = show(update(Vec::new()));
        assert!(lapsed.contains("no longer seen: DD601"), "{lapsed}");
        assert_eq!(show(slow()), "ddp-doctor: again: warning[DD601] rank 1 is slow\n");
        show(update(Vec::new()));
        live.apply(slow(), Instant::now());
        live.finish();
        assert!(screen.take().contains("\nwarning[DD601]"));
    }

    #[test]
    fn printing_delay_is_bounded() {
        let (mut live, _) = live(Verbosity::default());
        let start = Instant::now();
        for millis in (0..2000).step_by(100) {
            let now = start + Duration::from_millis(millis);
            live.apply(update(vec![finding("DD101", millis as u32, Severity::Error, "s")]), now);
        }
        assert_eq!(live.due(), Some(start + MAX_PRINT_DELAY));
    }

    #[test]
    fn changed_root_is_printed_again_but_changed_text_is_not() {
        let (mut live, screen) = live(Verbosity::default());
        let mut show = |findings| {
            live.apply(update(findings), Instant::now());
            let due = live.due().is_some();
            live.print();
            (due, screen.take())
        };
        assert!(show(vec![finding("DD101", 0, Severity::Error, "a")]).1.contains("DD101"));
        assert_eq!(show(vec![finding("DD101", 0, Severity::Error, "b")]), (false, String::new()));
        assert!(show(vec![finding("DD101", 1, Severity::Error, "c")]).1.contains("error[DD101]"));
        let (due, text) = show(vec![]);
        assert!(due && text.contains("withdrawn: DD101"), "{text}");
    }

    #[test]
    fn initiating_finding_is_printed_last() {
        let (mut live, screen) = live(Verbosity::default());
        let mut began = finding("DD102", 1, Severity::Error, "began");
        began.role = Role::Initiating;
        let mut followed = finding("DD202", 0, Severity::Error, "followed");
        followed.role = Role::Cascade;
        live.apply(update(vec![began, followed]), Instant::now());
        live.print();
        live.finish();
        assert_eq!(screen.take().matches("began").count(), 1, "just printed");
        live.printed[0].at = Instant::now().checked_sub(REPRINT_AGE);
        live.finish();
        // The finding that followed was printed later, which does not bring the first one back.
        let text = screen.take();
        assert!(text.contains("began") && !text.contains("followed"), "{text}");
    }

    #[test]
    fn notes_are_printed_only_if_verbose_and_not_quiet() {
        let note = || update(vec![finding("DD204", 0, Severity::Note, "n")]);
        for (verbosity, printed) in [
            (Verbosity::default(), false),
            (Verbosity { verbose: 1, quiet: 0 }, true),
            (Verbosity { verbose: 1, quiet: 2 }, false),
        ] {
            let (mut live, screen) = live(verbosity);
            live.apply(note(), Instant::now());
            live.finish();
            assert_eq!(!screen.take().is_empty(), printed, "{verbosity:?}");
        }
    }

    #[test]
    fn missing_evidence_is_always_printed_in_one_line() {
        let quiet = Verbosity::default();
        for (verbosity, expected) in
            [(quiet, "ddp-doctor: note[DD901] n\n"), (Verbosity { quiet: 2, ..quiet }, "")]
        {
            let (mut live, screen) = live(verbosity);
            for _ in 0..2 {
                live.apply(update(vec![finding("DD901", 0, Severity::Note, "n")]), Instant::now());
                live.print();
            }
            live.finish();
            assert_eq!(screen.take(), expected, "{verbosity:?}");
        }
        let (mut live, screen) = live(Verbosity { verbose: 1, ..quiet });
        live.apply(update(vec![finding("DD901", 0, Severity::Note, "n")]), Instant::now());
        live.finish();
        assert!(screen.take().starts_with("\nnote[DD901]"), "the whole block");
    }
    #[test]
    fn missing_evidence_becomes_an_error_when_the_job_ends() {
        let lost = |severity| update(vec![finding("DD901", 0, severity, "n")]);
        for (last, expected) in [(Severity::Note, ""), (Severity::Error, "\nerror[DD901]")] {
            let (mut live, screen) = live(Verbosity::default());
            // No other rank has joined yet.
            live.apply(lost(Severity::Error), Instant::now());
            live.print();
            assert_eq!(screen.take(), "ddp-doctor: note[DD901] n\n");
            live.apply(lost(last), Instant::now());
            live.finish();
            let text = screen.take();
            assert!(text.starts_with(expected), "{text}");
            assert_eq!(text.is_empty(), expected.is_empty(), "{text}");
            live.finish();
            assert_eq!(screen.take(), "", "it is printed once");
        }
    }
}
