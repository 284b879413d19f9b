//! Limits findings to what dumps can show, and adds what only dumps show.
//!
//! [`limited`] changes the findings of the engine. Each other file is about findings of one kind: missing
//! evidence (`gaps`, `lost_calls`), calls that do not complete although all ranks have made them
//! (`stuck_collective`, `split_mismatch`, `stuck_message`), and ranks that disagree (`group_creation`,
//! `minority`).

use std::collections::BTreeMap;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{
    CertificateKind, Confidence, Finding, RankState, Report, Role, Timestamp,
};

use super::calls::{Group, Progress};
use super::replay::{Replay, WaitDuration};
use crate::diagnosis::verdict_of;

mod gaps;
mod group_creation;
mod lost_calls;
mod minority;
mod split_mismatch;
mod stuck_collective;
mod stuck_message;

/// The report, without proofs that rest on waits, and without what dumps cannot show.
pub(super) fn limited(mut report: Report, replay: &Replay<'_>) -> Report {
    let is_long = replay.wait_duration == WaitDuration::Reportable;
    let waited = |rank: u32, known: Option<u64>| {
        let most = replay.longest_wait(rank).unwrap_or(u64::MAX);
        known.filter(|_| is_long).map(|known| known.min(most))
    };
    let lasts = is_long || replay.groups.all.iter().any(is_device_behind);
    let entries = replay.job.ranks.values().map(|dump| dump.count as u64);
    report.evidence.records = entries.sum();
    // Dumps name no hosts.
    report.job.nodes = 0;
    report.job.started_at = report.job.started_at.filter(|at| at.0 > 0);
    if !replay.wait_duration.is_recent() && report.findings.iter().all(gaps::is_about_ends) {
        report.findings.extend(stuck_message::detect(replay));
    }
    let is_alone = report.findings.len() == 1;
    let is_kept = |finding: &Finding| {
        // Clocks of hosts that cannot be compared make ranks appear late.
        let is_about_time =
            finding.code.starts_with("DD6") || finding.code == catalogue::DD903.code;
        !is_about_time && (is_alone || !gaps::is_about_ends(finding))
    };
    let findings = report.findings.iter().enumerate();
    let kept = findings.filter(|(_, it)| is_kept(it)).map(|(at, _)| at);
    let kept: Vec<usize> = kept.collect();
    arrange(&mut report.findings, &kept);
    for rank in &mut report.ranks {
        let may_wait = matches!(rank.state, RankState::Running | RankState::Unknown);
        if let Some(waiting) = replay.waiting_in(rank.rank).filter(|_| may_wait) {
            rank.waiting_in = Some(waiting);
            rank.state = RankState::Waiting;
        } else if may_wait && replay.job.ranks.get(&rank.rank).is_some_and(|it| it.count == 0) {
            rank.state = RankState::Unknown;
        }
        if let Some(waiting) = &mut rank.waiting_in {
            waiting.waited_ms = waited(rank.rank, waiting.waited_ms);
        }
    }
    for finding in &mut report.findings {
        if !is_long {
            // When the wait became reportable is unknown: the last call is the latest known time.
            finding.detected_at = Timestamp(replay.job.period().1);
            finding.latency_ms = 0;
        }
        gaps::explain(finding, replay);
        for call in &mut finding.per_rank {
            call.waited_ms = waited(call.rank, call.waited_ms);
        }
        group_creation::explain(finding, replay);
        minority::blame(finding, replay);
        limit(finding, lasts);
        stuck_collective::explain(finding, replay);
        lost_calls::explain(finding, replay);
    }
    split_mismatch::lead(&mut report.findings);
    let mut order: Vec<usize> = (0..report.findings.len()).collect();
    order.sort_by_key(|&at| report.findings[at].role == Role::Cascade);
    arrange(&mut report.findings, &order);
    report.verdict = verdict_of(&report.findings);
    report
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

/// Makes ranks the root cause of a finding, and its former root cause victims.
fn make_root_cause(finding: &mut Finding, root_cause: Vec<u32>) {
    let ranks = &mut finding.ranks;
    ranks.victims.append(&mut ranks.root);
    ranks.victims.retain(|rank| !root_cause.contains(rank));
    ranks.victims.sort_unstable();
    ranks.root = root_cause;
}
