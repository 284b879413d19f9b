//! A table of what the replayed recordings get right, over Gloo and over NCCL:
//! `DDP_DOCTOR_SCORES=1 cargo test --workspace --all-features --test truth`.

use std::collections::BTreeSet;

use ddp_doctor_proto::report::{Confidence, Finding, Role};

use crate::check;
use crate::program::{Backend, Case};
use crate::recording::{self, Replay};
use crate::{guarded, silence_panics};

/// How many recordings are right in a field, of those whose truth states it.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    right: u32,
    all: u32,
}

impl Share {
    fn add(&mut self, is_right: Option<bool>) {
        self.all += u32::from(is_right.is_some());
        self.right += u32::from(is_right == Some(true));
    }
}

/// The results of the recordings over one backend.
#[derive(Debug, Default)]
struct Scores {
    every_field: Share,
    code: Share,
    ranks: Share,
    lines: Share,
    cause: Share,
    silent: Share,
    /// Wrong codes or ranks of findings that are proved, or whose root cause ranks are.
    wrong_and_confident: u32,
}

impl Scores {
    fn add(&mut self, case: &Case, replay: &Replay) {
        let Replay { outcome, first_shown } = replay;
        let is_right = guarded(|| check::check(case, outcome)).is_ok();
        if case.is_silent() {
            self.silent.add(Some(is_right && first_shown.is_empty()));
            self.wrong_and_confident += u32::from(first_shown.iter().any(is_confident));
            return;
        }
        self.every_field.add(Some(is_right));
        let findings = outcome.report.findings.iter();
        let initiating: Vec<&Finding> = findings
            .filter(|it| it.role == Role::Initiating && it.attempt == outcome.report.job.attempt)
            .collect();
        // Several initiating findings contradict each other: none of them is right.
        let finding = if let [finding] = initiating[..] { Some(finding) } else { None };
        let truth = &case.truth;
        let codes = [&truth.code, &truth.or_code];
        let has_code = |it: &Finding| codes.iter().any(|code| code.as_deref() == Some(&it.code));
        let code = finding.is_some_and(has_code);
        self.code.add(Some(code));
        let ranks = truth.ranks.as_ref().map(|ranks| {
            let is_root = |it: &Finding| it.ranks.root == ranks.root;
            let victims = ranks.victims.as_ref();
            let are_victims = |it: &Finding| victims.is_none_or(|ranks| *ranks == it.ranks.victims);
            finding.is_some_and(|it| is_root(it) && are_victims(it))
        });
        self.ranks.add(ranks);
        let expected = case.expected_lines();
        let has_lines = |finding: &Finding| {
            expected.iter().all(|(rank, lines)| {
                let call = finding.per_rank.iter().find(|it| it.rank == *rank);
                let place = call.and_then(|it| it.place.as_ref());
                place.is_some_and(|it| lines.contains(&(it.line + outcome.added_lines)))
            })
        };
        self.lines.add((!expected.is_empty()).then(|| finding.is_some_and(has_lines)));
        let cause = truth.cause.as_deref().map(|cause| {
            finding.and_then(|it| it.cause).is_some_and(|it| it.kind.as_str() == cause)
        });
        self.cause.add(cause);
        let is_wrong = !code || ranks == Some(false);
        let confident = initiating.iter().any(|it| is_confident(it));
        self.wrong_and_confident += u32::from(is_wrong && confident);
    }
}

fn is_confident(finding: &Finding) -> bool {
    finding.ranks.root_confidence == Confidence::Proved || finding.confidence == Confidence::Proved
}

/// Prints the table of the programs that have a recording over both backends.
pub(crate) fn print(cases: &[Case]) {
    let name = |case: &Case| case.to_string().trim_end_matches("::nccl").to_owned();
    let over_nccl: BTreeSet<String> =
        cases.iter().filter(|it| it.backend == Backend::Nccl).map(name).collect();
    silence_panics();
    let mut scores = [Scores::default(), Scores::default()];
    for case in cases.iter().filter(|it| over_nccl.contains(&name(it))) {
        if let Some(why) = recording::staleness(case) {
            println!("{case}: {why}");
            continue;
        }
        let replay = recording::diagnose(case);
        scores[usize::from(case.backend == Backend::Nccl)].add(case, &replay);
    }
    println!("| | Gloo | NCCL |\n|---|---|---|");
    type Row = (&'static str, fn(&Scores) -> String);
    let rows: [Row; 7] = [
        ("faulty: every field", |it| format(it.every_field)),
        ("faulty: code", |it| format(it.code)),
        ("faulty: ranks", |it| format(it.ranks)),
        ("faulty: lines", |it| format(it.lines)),
        ("faulty: cause", |it| format(it.cause)),
        ("healthy: silent at all times", |it| format(it.silent)),
        ("wrong and confident", |it| it.wrong_and_confident.to_string()),
    ];
    for (title, cell) in rows {
        println!("| {title} | {} | {} |", cell(&scores[0]), cell(&scores[1]));
    }
}

fn format(share: Share) -> String {
    format!("{} of {}", share.right, share.all)
}
