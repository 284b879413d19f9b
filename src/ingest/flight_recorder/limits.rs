//! Limits findings to what dumps can show.

use std::collections::BTreeMap;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{
    CallState, CertificateKind, Confidence, Finding, RankState, Report, Role, Timestamp,
};

use super::age::{self, Age};
use super::counted;
use super::creation;
use super::dump::Dump;
use super::groups::{Group, Progress};
use super::inside;
use super::odd;
use super::play::Play;
use super::transfer;
use crate::diagnosis::verdict_of;
use crate::diagnosis::words::{Ranks, number};

/// The report, without proofs that rest on waits, and without what dumps cannot show.
pub(super) fn limited(mut report: Report, play: &Play<'_>) -> Report {
    let is_long = play.age == Age::Long;
    let waited = |rank: u32, known: Option<u64>| {
        let most = age::longest_wait(play, rank).unwrap_or(u64::MAX);
        known.filter(|_| is_long).map(|known| known.min(most))
    };
    let lasts = is_long || play.groups.all.iter().any(is_device_behind);
    let entries = play.job.ranks.values().map(|dump| dump.count as u64);
    report.evidence.records = entries.sum();
    // Dumps name no hosts.
    report.job.nodes = 0;
    report.job.started_at = report.job.started_at.filter(|at| at.0 > 0);
    if !play.age.is_recent() && report.findings.iter().all(is_about_ends) {
        report.findings.extend(transfer::detect(play));
    }
    let is_alone = report.findings.len() == 1;
    let is_kept = |finding: &Finding| {
        // Clocks of hosts that cannot be compared make ranks appear late.
        let is_about_time =
            finding.code.starts_with("DD6") || finding.code == catalogue::DD903.code;
        !is_about_time && (is_alone || !is_about_ends(finding))
    };
    let findings = report.findings.iter().enumerate();
    let kept = findings.filter(|(_, it)| is_kept(it)).map(|(at, _)| at);
    let kept: Vec<usize> = kept.collect();
    arrange(&mut report.findings, &kept);
    for rank in &mut report.ranks {
        let may_wait = matches!(rank.state, RankState::Running | RankState::Unknown);
        if let Some(waiting) = play.waiting_in(rank.rank).filter(|_| may_wait) {
            rank.waiting_in = Some(waiting);
            rank.state = RankState::Waiting;
        } else if may_wait && play.job.ranks.get(&rank.rank).is_some_and(|it| it.count == 0) {
            rank.state = RankState::Unknown;
        }
        if let Some(waiting) = &mut rank.waiting_in {
            waiting.waited_ms = waited(rank.rank, waiting.waited_ms);
        }
    }
    for finding in &mut report.findings {
        if !is_long {
            // When the wait became reportable is unknown: the last call is the latest known time.
            finding.detected_at = Timestamp(play.job.period().1);
            finding.latency_ms = 0;
        }
        explain_gap(finding, play);
        if finding.code == catalogue::DD902.code {
            finding.summary = about_lost(&finding.ranks.root, play);
        }
        for call in &mut finding.per_rank {
            call.waited_ms = waited(call.rank, call.waited_ms);
        }
        creation::explain(finding, play);
        odd::name(finding, play);
        limit(finding, lasts);
        inside::explain(finding, play);
        counted::explain(finding, play);
    }
    inside::lead(&mut report.findings);
    let mut order: Vec<usize> = (0..report.findings.len()).collect();
    order.sort_by_key(|&at| report.findings[at].role == Role::Cascade);
    arrange(&mut report.findings, &order);
    report.verdict = verdict_of(&report.findings);
    report
}

/// A sentence on calls that are not among the entries of dumps.
fn about_lost(ranks: &[u32], play: &Play<'_>) -> String {
    let lossy = ranks.iter().filter_map(|rank| play.job.ranks.get(rank));
    let lossy: Vec<&Dump> = lossy.collect();
    let skipped: usize = lossy.iter().map(|dump| dump.skipped).sum();
    let of = format!("{} of {}", number(ranks, "dump", "dumps"), Ranks(ranks));
    if skipped > 0 {
        format!("calls in the {of} cannot be read ({skipped} in all): they are unknown")
    } else if lossy.iter().any(|dump| dump.cut.is_some()) {
        format!("the {of} {} early: later calls are unknown", number(ranks, "ends", "end"))
    } else {
        format!("incomplete calls are missing from the {of}: counters alone show them")
    }
}

/// Makes the sentences of a finding on missing evidence those of dumps.
fn explain_gap(finding: &mut Finding, play: &Play<'_>) {
    if is_about_ends(finding) {
        let ranks = std::mem::take(&mut finding.ranks.root);
        // A rank whose last call is complete may be behind the others.
        for call in &mut finding.per_rank {
            if matches!(call.state, CallState::Returned | CallState::Completed) {
                call.state = CallState::NotIssued;
            }
        }
        let (what, why) = match play.age {
            Age::Recent(most) => (
                "whether the job hangs",
                format!(
                    "The dumps were written at most {} s after the first call that is not \
                     complete: the job may go on.",
                    most.as_secs() + 1,
                ),
            ),
            _ => (
                "which rank the others wait for",
                "A dump shows its process at one moment. Calls of these ranks are incomplete."
                    .into(),
            ),
        };
        finding.summary = format!("the dumps of {} do not show {what}", Ranks(&ranks));
        finding.ranks.victims = ranks;
        finding.why = vec![why];
        finding.next = vec![
            "Compare the calls in which the ranks wait with those of dumps written later, or with \
             the stacks of the ranks (py-spy dump)."
                .into(),
        ];
    } else if catalogue::is_gap(&finding.code) {
        finding.why = vec![
            "A process that ends abruptly writes no dump, and a dump shows no later calls.".into(),
        ];
        finding.next = vec![
            "Add dumps of these ranks that were written with the others (TORCH_FR_DUMP_TEMP_FILE \
             names where), or look into the logs of these ranks."
                .into(),
        ];
    }
}

/// Keeps the findings at these indexes, in this order, and the references to them.
fn arrange(findings: &mut Vec<Finding>, kept: &[usize]) {
    let places: BTreeMap<usize, usize> = kept.iter().copied().zip(0..).collect();
    let mut arranged: Vec<Finding> = kept.iter().map(|&at| findings[at].clone()).collect();
    for finding in &mut arranged {
        let known = finding.caused_by.iter().filter_map(|it| places.get(it));
        finding.caused_by = known.copied().collect();
    }
    *findings = arranged;
}

/// Whether a finding states that the ends of processes were not recorded, which holds for all
/// dumps.
fn is_about_ends(finding: &Finding) -> bool {
    finding.code == catalogue::DD901.code && finding.summary.starts_with("it is unknown how")
}

/// Whether the device of a rank has not completed a collective that others completed, although these
/// have made two more than the rank.
fn is_device_behind(group: &Group) -> bool {
    let most = |of: fn(&Progress) -> u64| group.progress.values().map(of).max().unwrap_or(0);
    let (issued, completed) = (most(Progress::known), most(|it| it.completed));
    let mut ranks = group.progress.values().filter(|it| it.completed > 0);
    ranks.any(|it| it.completed < completed && it.issued.saturating_add(1) < issued)
}

fn limit(finding: &mut Finding, lasts: bool) {
    if catalogue::is_gap(&finding.code) {
        return;
    }
    let kind = finding.certificate.as_ref().map(|it| it.kind);
    // Calls that can never match are recorded on both sides.
    let is_recorded =
        matches!(kind, Some(CertificateKind::UnsatisfiableJoin | CertificateKind::Contradiction));
    if is_recorded {
        return;
    }
    finding.certificate = None;
    let most = if lasts {
        Confidence::Supported
    } else {
        finding.why.push(
            "The dumps do not show how long this lasted: they may be of a job that goes on.".into(),
        );
        Confidence::Suspected
    };
    finding.confidence = finding.confidence.min(most);
    finding.ranks.root_confidence = finding.ranks.root_confidence.min(most);
}
