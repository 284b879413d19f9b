//! Joins the dumps that `attach` requested from PyTorch's Flight Recorder with what it read of the same ranks.

use std::collections::BTreeSet;
use std::path::PathBuf;

use ddp_doctor_host::names;
use ddp_doctor_ingest::flight_recorder;
use ddp_doctor_proto::report::{Confidence, Effect, RankState, Report, Timestamp};

use super::play::Unobserved;
use super::sources::Source;

/// Folders with the journals of one job to which `attach` attached; none for other evidence.
pub(super) fn folders(source: &Source) -> BTreeSet<PathBuf> {
    let Source::Recorded(job) = source else { return BTreeSet::new() };
    let attached = job.nodes.iter().filter(|node| node.hello.attached);
    let journals = attached.filter_map(|node| node.journal.as_ref());
    journals.filter_map(|it| Some(it.path.parent()?.to_owned())).collect()
}

/// Adds what dumps show to the report on the stacks of the same ranks, if these leave open what is wrong. Nothing is
/// proved by evidence that was read while the job ran.
pub(super) fn add(report: &mut Report, dumps: Report) {
    let is_blocked = |it: &Report| it.findings.iter().any(|it| it.effect != Effect::None);
    if is_blocked(report) || !is_blocked(&dumps) {
        return;
    }
    report.verdict = dumps.verdict;
    report.findings = dumps.findings;
    for finding in &mut report.findings {
        finding.certificate = None;
        finding.confidence = finding.confidence.min(Confidence::Supported);
        finding.ranks.root_confidence = finding.ranks.root_confidence.min(Confidence::Supported);
    }
    report.evidence.records += dumps.evidence.records;
    let layers: BTreeSet<String> = std::mem::take(&mut report.evidence.layers)
        .into_iter()
        .chain(dumps.evidence.layers)
        .collect();
    report.evidence.layers = layers.into_iter().collect();
    for of_dump in dumps.ranks {
        let Some(rank) = report.ranks.iter_mut().find(|it| it.rank == of_dump.rank) else {
            continue;
        };
        if rank.waiting_in.is_none() && of_dump.waiting_in.is_some() {
            rank.waiting_in = of_dump.waiting_in;
            rank.state = RankState::Waiting;
        }
    }
}

/// Adds what dumps with these contents show, of ranks and written at these times, to the report on the stacks of all
/// ranks.
pub fn add_contents(
    report: &mut Report,
    dumps: impl IntoIterator<Item = (u32, Vec<u8>, Timestamp)>,
) {
    let named = |(rank, contents, at)| (format!("{}{rank}", names::DUMP).into(), contents, at);
    let jobs = flight_recorder::read_contents(dumps.into_iter().map(named), &mut Vec::new());
    for job in jobs.into_iter().filter(flight_recorder::DumpedJob::is_at_rest) {
        let (_, dumped) = flight_recorder::diagnose(job, &mut Unobserved);
        add(report, dumped);
    }
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::report::{Finding, Verdict};

    use super::*;

    fn report(code: &str, confidence: Confidence) -> Report {
        let effect = if code.is_empty() { Effect::None } else { Effect::Blocks };
        let finding = Finding { code: code.into(), effect, confidence, ..Finding::default() };
        let verdict = if code.is_empty() { Verdict::Healthy } else { Verdict::Hang };
        let mut report =
            ddp_doctor_diagnosis::Engine::new(ddp_doctor_diagnosis::Config::default()).report();
        (report.findings, report.verdict) = (vec![finding], verdict);
        report
    }

    fn joined(stacks: &str, dumps: &str) -> (String, Confidence, Verdict) {
        let mut joined = report(stacks, Confidence::Supported);
        add(&mut joined, report(dumps, Confidence::Proved));
        let finding = joined.findings.remove(0);
        (finding.code, finding.confidence, joined.verdict)
    }

    #[test]
    fn dumps_add_what_stacks_leave_open_and_prove_nothing() {
        let supported = |code: &str| (code.to_owned(), Confidence::Supported, Verdict::Hang);
        assert_eq!(joined("", "DD103"), supported("DD103"));
        assert_eq!(joined("DD204", "DD101"), supported("DD204"));
        assert_eq!(joined("", "").2, Verdict::Healthy);
    }
}
