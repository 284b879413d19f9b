use std::cell::Cell;

use ddp_doctor_proto::report::RankCall;

use super::*;
use crate::testing::{assert_inert, early_exit, hostile_report, ranks, report as sample};

/// The folder of this repository.
fn here() -> SourceFolders {
    SourceFolders::of_program(&[".".into()])
}

fn render(finding: &Finding) -> String {
    let mut out = Vec::new();
    super::finding(&mut out, finding, &ranks(), Style::default(), &here()).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn attempt_is_stated_once_ranks_were_restarted() {
    let mut report = sample();
    let mut finding = early_exit();
    let attempt =
        |finding: &Finding, report: &Report| RankTable::new(&report.ranks).attempt(finding);
    assert_eq!(attempt(&finding, &report), None);
    report.ranks[0].attempt = 2;
    assert_eq!(attempt(&finding, &report).unwrap(), "attempt 0");
    finding.attempt = 1;
    assert_eq!(attempt(&finding, &report).unwrap(), "attempt 1");
}

#[test]
fn finding_is_formatted_like_a_compiler_error() {
    let expected = "\
error[DD102] early-exit: rank 1 has ended; ranks 0 and 2 wait for it in all_reduce #23
    default group, 3 ranks · step 8 · fault: proved · rank at fault: proved · detected after 180 ms

      rank 0, 2   waiting 1.2 s     train.py:9      all_reduce #23 float32[4680]
    ▸ rank 1      ended, status 0   train.py:9      last call all_reduce #22, step 7

    why    all_reduce #23 needs all three ranks.
    cause  uneven inputs: the ranks have different numbers of batches (likely)
    fix    Give every rank the same number of batches.
    more   ddp-doctor explain DD102
";
    assert_eq!(render(&early_exit()), expected);
}

#[test]
fn explanation_of_several_findings_is_written_once() {
    let mut report = sample();
    let first = Finding { cause: None, ..early_exit() };
    let second = Finding { summary: "another summary".into(), ..first.clone() };
    report.findings = vec![first, second];
    let written = |report: &Report| {
        let mut out = Vec::new();
        findings(&mut out, report, Style::default(), false, &here()).unwrap();
        String::from_utf8(out).unwrap()
    };
    let text = written(&report);
    assert_eq!(text.matches("error[DD102]").count(), 2, "{text}");
    assert_eq!(text.matches("    fix ").count(), 1, "{text}");
    report.findings[1].next = vec!["another fix".into()];
    assert_eq!(written(&report).matches("    fix ").count(), 2);
}

#[test]
fn consequence_takes_one_line() {
    let mut report = sample();
    let first = early_exit();
    let second = Finding {
        code: "DD202".into(),
        role: Role::Cascade,
        headline: Some("rank 0 raised".into()),
        ..first.clone()
    };
    report.findings = vec![first, second];
    let written = |all| {
        let mut out = Vec::new();
        findings(&mut out, &report, Style::default(), all, &here()).unwrap();
        String::from_utf8(out).unwrap()
    };
    let text = written(false);
    assert!(text.ends_with("\n\nerror[DD202] follows: rank 0 raised\n"), "{text}");
    assert_eq!(text.matches("    fix ").count(), 1, "{text}");
    assert_eq!(written(true).matches("    fix ").count(), 2);
}

#[test]
fn hidden_characters_and_links_of_a_job_are_inert() {
    let mut out = Vec::new();
    report(&mut out, &hostile_report(), Style::default(), true, &here()).unwrap();
    assert_inert(&String::from_utf8(out).unwrap());
}

#[test]
fn each_place_of_a_finding_is_formatted_once() {
    let mut finding = early_exit();
    let call = finding.per_rank[0].clone();
    let place = |line| Some(Where { line, ..call.place.clone().unwrap() });
    let calls = (0..1000).map(|rank| RankCall { rank, place: place(rank % 10), ..call.clone() });
    finding.per_rank = calls.collect();
    let (shown, read) = (Cell::new(0), Cell::new(0));
    let count = |counter: &Cell<u32>| counter.set(counter.get() + 1);
    let show = |place: &Where| {
        count(&shown);
        place.line.to_string()
    };
    let source = |_: &Where| {
        count(&read);
        None
    };
    assert_eq!(sides(&finding, false, |_| None, show, source).len(), 11);
    assert_eq!((shown.get(), read.get()), (10, 10));
}

#[test]
fn hosts_are_named_if_the_job_has_several() {
    let mut ranks = ranks();
    ranks[1].host = "node-b".into();
    for rank in [0, 2] {
        ranks[rank].host = "node-a".into();
    }
    let mut out = Vec::new();
    finding(&mut out, &early_exit(), &ranks, Style::default(), &here()).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("▸ rank 1 on node-b "), "{text}");
    assert!(text.contains("  rank 0, 2 on node-a "), "{text}");
}

#[test]
fn unknown_host_is_no_host() {
    let shown = |hosts: [&str; 3]| {
        let mut ranks = ranks();
        for (rank, host) in ranks.iter_mut().zip(hosts) {
            rank.host = host.into();
        }
        let mut out = Vec::new();
        finding(&mut out, &early_exit(), &ranks, Style::default(), &here()).unwrap();
        String::from_utf8(out).unwrap()
    };
    let text = shown(["node-a", "", "node-a"]);
    assert!(!text.contains(" on "), "{text}");
    let text = shown(["node-a", "", "node-b"]);
    assert!(text.contains("▸ rank 1   "), "{text}");
    assert!(text.contains("  rank 0, 2 on 2 hosts "), "{text}");
}

#[test]
fn table_of_many_ranks_is_shortened() {
    let mut finding = early_exit();
    let call = finding.per_rank.last().unwrap().clone();
    for rank in 10..70 {
        let mut call = call.clone();
        call.rank = rank;
        call.place.as_mut().unwrap().line = rank;
        finding.per_rank.push(call);
    }
    let text = render(&finding);
    assert!(text.lines().count() <= 20, "{text}");
    assert!(text.contains("▸ rank 1"), "{text}");
    assert!(text.contains("more lines: ddp-doctor watch shows every rank"), "{text}");
}

#[test]
fn report_begins_with_its_verdict_and_shortens_notes() {
    let mut report = sample();
    let shown = |report: &Report, all| {
        let mut out = Vec::new();
        let past = Style { past: true, ..Style::default() };
        super::report(&mut out, report, past, all, &here()).unwrap();
        String::from_utf8(out).unwrap()
    };
    let mut note = early_exit();
    note.code = "DD901".into();
    note.severity = Severity::Note;
    report.findings.insert(0, note);
    let text = shown(&report, false);
    let head = "\
hang: job j-1, 3 ranks on 1 node · gloo · began 1970-01-01T00:00:01.000Z, ended after 9.0 s · 12 records

error[DD102] early-exit: rank 1 has ended; ranks 0 and 2 wait for it in all_reduce #23
    default group, 3 ranks · step 8 · fault: proved · rank at fault: proved

";
    assert!(text.starts_with(head), "{text}");
    assert!(
        text.ends_with(
            "\n\nnote[DD901] rank 1 has ended; ranks 0 and 2 wait for it in all_reduce #23\n"
        ),
        "{text}"
    );
    assert_eq!(shown(&report, true).matches("    why ").count(), 2);
    report.findings.clear();
    assert!(shown(&report, false).ends_with("    no problems found\n"));
}

#[test]
fn readable_source_lines_are_shown() {
    let mut finding = early_exit();
    for call in &mut finding.per_rank {
        call.place = Some(Where {
            file: concat!(env!("CARGO_MANIFEST_DIR"), "/text.rs").into(),
            line: 1,
            function: String::new(),
            ..Where::default()
        });
    }
    let text = render(&finding);
    let line = "//! A diagnosis as text for a terminal";
    assert!(text.contains(line), "{text}");
    let mut out = Vec::new();
    let none = SourceFolders::default();
    super::finding(&mut out, &finding, &ranks(), Style::default(), &none).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(!text.contains(line), "{text}");
    let mut report = sample();
    report.findings = vec![finding];
    assert!(withholds_sources(&report, &none));
    assert!(!withholds_sources(&report, &here()));
}

#[test]
fn control_characters_of_a_rank_are_removed() {
    let mut finding = early_exit();
    finding.summary = "\x1b]0;owned\x07 \x1b[2J".into();
    finding.per_rank[0].op = Some("all\x1b[31mreduce".into());
    finding.why = vec!["a\rb".into()];
    let text = render(&finding);
    assert!(!text.contains(['\x1b', '\x07', '\r']), "{text:?}");
}

#[test]
fn long_text_is_wrapped_between_words() {
    let mut finding = early_exit();
    finding.why = vec!["word ".repeat(60).trim().to_owned()];
    let text = render(&finding);
    assert!(text.lines().all(|line| line.chars().count() <= WIDTH + 4), "{text}");
    assert_eq!(text.matches("word").count(), 60);
}

#[test]
fn text_fits_a_narrow_terminal() {
    let mut finding = early_exit();
    finding.why = vec!["word ".repeat(60).trim().to_owned()];
    finding.per_rank.clear();
    let style = Style { columns: Some(60), ..Style::default() };
    let mut out = Vec::new();
    super::finding(&mut out, &finding, &ranks(), style, &here()).unwrap();
    let text = String::from_utf8(out).unwrap();
    let longest = text.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(60), "{text}");
    let begin = "error[DD102] early-exit: rank 1 has ended; ranks 0 and 2\n    wait for it in";
    assert!(text.starts_with(begin), "{text}");
}

#[test]
fn durations_use_a_unit_of_their_magnitude() {
    assert_eq!(duration(180), "180 ms");
    assert_eq!(duration(1250), "1.2 s");
    assert_eq!(duration(185_000), "3 min 5 s");
    assert_eq!(duration(599_990), "10 min 0 s");
}
