//! Compares a report with the truth of its program.

use ddp_doctor::diagnosis::proof;
use ddp_doctor::host::source_files::SourceFolders;
use ddp_doctor::report::text::{self, Style};
use ddp_doctor_proto::report::{Confidence, Report, Role, Severity, Where};

use crate::program::{Backend, Case, Launcher};
use crate::support::report::leading;

/// Result of a job, live or replayed.
pub(crate) struct Outcome {
    pub(crate) report: Report,
    /// Exit status of `ddp-doctor run`; `None` if the run was ended from outside.
    pub(crate) status: Option<i32>,
    /// Diagnosis as text: standard error of a live run, or the report printed again.
    pub(crate) text: String,
    /// Number of lines that the program has now before those of the report.
    pub(crate) added_lines: u32,
}

/// Fails unless the outcome agrees with the truth of the case.
pub(crate) fn check(case: &Case, outcome: &Outcome) {
    if case.is_silent() {
        is_silent(case, outcome);
    } else {
        is_found(case, outcome);
    }
    let report = &outcome.report;
    if let Some(layers) = &case.truth.layers {
        assert_eq!(&report.evidence.layers, layers, "{case}: {report:#?}");
    }
    let starts_its_ranks = case.truth.launcher == Launcher::Python;
    let ranks = report.ranks.len();
    assert!(
        ranks == case.truth.nproc as usize || starts_its_ranks,
        "{case}: {ranks} ranks: {report:#?}"
    );
}

fn is_silent(case: &Case, outcome: &Outcome) {
    let Outcome { report, text, .. } = outcome;
    assert_eq!(outcome.status, Some(0), "{case}\n{text}");
    assert_eq!(report.verdict.as_str(), "healthy", "{case}: {report:#?}");
    assert!(report.findings.is_empty(), "{case}: {report:#?}");
    assert!(case.truth.may_suspect || !text.contains("[DD"), "{case}\n{text}");
    assert!(
        report.evidence.records > 0 && report.evidence.records_lost == 0,
        "{case}: {report:#?}"
    );
}

fn is_found(case: &Case, outcome: &Outcome) {
    let Outcome { report, text, .. } = outcome;
    let truth = &case.truth;
    let show = || format!("{case}\n{report:#?}\n{text}");
    // Over NCCL, runs that nothing was found in were ended from outside.
    if outcome.status.is_some() || case.backend == Backend::Own {
        assert_eq!(outcome.status == Some(75), truth.hang, "{}", show());
    }
    let finding = leading(report);
    let code = finding.code.as_str();
    // `--on-hang kill` ends no job for a suspicion; earlier versions did.
    let is_ended = truth.hang && truth.confidence.is_none();
    assert!(!is_ended || finding.confidence >= Confidence::Supported, "{}", show());
    assert!(
        truth.code.as_deref() == Some(code) || truth.or_code.as_deref() == Some(code),
        "{code}\n{}",
        show()
    );
    macro_rules! is_as_expected {
        ($($expected:expr => $found:expr),* $(,)?) => {
            $(if let Some(expected) = &$expected {
                assert_eq!(expected, &$found, "{}", show());
            })*
        };
    }
    is_as_expected!(
        truth.verdict => report.verdict.as_str(),
        truth.severity => finding.severity.as_str(),
        truth.attempt => finding.attempt,
        truth.confidence => finding.confidence.as_str(),
        truth.root_confidence => finding.ranks.root_confidence.as_str(),
        truth.cause => finding.cause.map_or("none", |cause| cause.kind.as_str()),
        truth.layer => finding.group.as_ref().map_or("none", |group| group.layer.as_str()),
    );
    if let Some(ranks) = &truth.ranks {
        assert_eq!(finding.ranks.root, ranks.root, "{}", show());
        if let Some(victims) = &ranks.victims {
            assert_eq!(&finding.ranks.victims, victims, "{}", show());
        }
    }
    if truth.layer.as_deref() == Some("c10d") {
        let mut groups = report.findings.iter().filter_map(|it| it.group.as_ref());
        assert!(
            groups.all(|group| group.layer == "c10d"),
            "reported for a second layer\n{}",
            show()
        );
    }
    if let Some(code) = &truth.earlier {
        let mut earlier = report
            .findings
            .iter()
            .skip_while(|it| it.attempt == finding.attempt)
            .filter(|it| it.role == Role::Initiating);
        assert!(earlier.next().is_some_and(|it| it.code == *code), "{}", show());
        assert!(earlier.next().is_none(), "{}", show());
    }
    if let Some(seq) = truth.seq {
        assert_eq!(finding.seq, Some(seq), "{}", show());
    }
    if let Some(headline) = &truth.headline {
        assert!(finding.title().contains(headline), "{}", show());
    }
    if let Some(says) = &truth.says {
        assert!(finding.summary.contains(says), "{}", show());
    }
    if let Some(words) = &truth.measures {
        let (before, after) = words.split_once("{}").unwrap();
        let begin = finding.summary.split_once(before);
        let number = begin
            .and_then(|(_, rest)| rest.split_once(after))
            .and_then(|(number, _)| number.parse::<f64>().ok());
        assert!(number.is_some_and(|it| it > 0.0), "{}", show());
    }
    if let Some(why) = &truth.why {
        let why = with_line(why, &case.program.text, outcome.added_lines);
        let has_it = finding.why.iter().any(|reason| reason.contains(&why));
        assert!(has_it, "{}", show());
    }
    fits_a_screen(report);
    // The text shows a note in at most one line, without its ranks.
    let is_note = finding.severity == Severity::Note;
    let file = case.program.path.file_name().unwrap().to_str().unwrap();
    for (rank, lines) in case.expected_lines() {
        let call = finding.per_rank.iter().find(|call| call.rank == rank);
        let place = call
            .and_then(|call| call.place.as_ref())
            .unwrap_or_else(|| panic!("no line of rank {rank}\n{}", show()));
        assert!(place.file.ends_with(file), "rank {rank}\n{}", show());
        let line = place.line;
        assert!(
            lines.contains(&(line + outcome.added_lines)),
            "line of rank {rank}: {line} (+ {}), not one of {lines:?}\n{}",
            outcome.added_lines,
            show()
        );
        let is_shown = text.contains(&format!("{file}:{line}"));
        assert!(is_note || is_shown, "{}", show());
    }
    for (rank, function) in &truth.via {
        let call = finding.per_rank.iter().find(|it| it.rank.to_string() == *rank);
        let place = call.and_then(|call| call.place.as_ref());
        let features = place.map(Where::features).unwrap_or_default();
        let has_it = features.iter().any(|frame| frame.function == *function);
        assert!(has_it && text.contains(function), "{function}\n{}", show());
    }
    match (&finding.certificate, finding.confidence) {
        (Some(proof), Confidence::Proved) => proof::check(proof).unwrap(),
        (None, Confidence::Supported | Confidence::Suspected) => {}
        _ => panic!("certificate and confidence disagree\n{}", show()),
    }
    let is_shown = text.contains(&format!("[{code}]"));
    assert!(is_note || is_shown, "{}", show());
}

/// Replaces `{line}` by the number that the program's line marked `LINE` has in the report.
fn with_line(text: &str, program: &str, added_lines: u32) -> String {
    let marked = (1..).zip(program.lines()).find(|(_, line)| line.ends_with(" LINE"));
    let number = marked.map(|(number, _)| number - added_lines);
    number.map_or_else(|| text.to_owned(), |number| text.replace("{line}", &format!("{number}")))
}

/// Every finding takes at most 20 lines of 100 columns.
fn fits_a_screen(report: &Report) {
    const COLUMNS: usize = 100;
    let style = Style { columns: Some(COLUMNS), ..Style::default() };
    for finding in &report.findings {
        let mut shown = Vec::new();
        text::finding(&mut shown, finding, &report.ranks, style, &SourceFolders::default())
            .unwrap();
        let shown = String::from_utf8(shown).unwrap();
        let is_wide = shown.lines().any(|line| line.chars().count() > COLUMNS);
        assert!(!is_wide && shown.lines().count() <= 20, "{shown}");
    }
}
