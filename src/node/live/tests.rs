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
    finding.role = Role::Initiating;
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
    assert_eq!(show(slow()), "ddp-doctor: recurred: warning[DD601] rank 1 is slow\n");
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
fn consequence_that_blocks_is_printed_again_with_a_cause_that_does_not() {
    let (mut live, screen) = live(Verbosity::default());
    let mut slipped = finding("DD110", 1, Severity::Critical, "slipped");
    slipped.effect = Effect::Corrupts;
    let mut hangs = finding("DD103", 1, Severity::Error, "hangs there");
    (hangs.role, hangs.effect) = (Role::Cascade, Effect::Blocks);
    live.apply(update(vec![slipped, hangs]), Instant::now());
    live.print();
    screen.take();
    for (effect, shown) in [(Effect::Corrupts, true), (Effect::Blocks, false)] {
        live.printed[0].finding.effect = effect;
        live.printed[0].at = Instant::now().checked_sub(REPRINT_AGE);
        live.finish();
        let text = screen.take();
        assert_eq!(text.contains("error[DD103] follows: hangs there"), shown, "{text}");
    }
}

#[test]
fn consequence_is_printed_in_one_line_until_it_leads() {
    let (mut live, screen) = live(Verbosity::default());
    let mut shown = finding("DD202", 0, Severity::Error, "raised");
    let mut show = |role| {
        shown.role = role;
        live.apply(update(vec![shown.clone()]), Instant::now());
        live.print();
        screen.take()
    };
    assert_eq!(show(Role::Cascade), "ddp-doctor: error[DD202] follows: raised\n");
    assert!(show(Role::Initiating).contains("error[DD202]"));
    assert_eq!(show(Role::Cascade), "");
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
