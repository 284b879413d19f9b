//! Limits findings to what dumps can show.

use std::collections::BTreeMap;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CertificateKind, Confidence, Finding, Report};

use super::dump::{Dump, State};
use super::play::Play;
use super::units::is_on_host;
use crate::diagnosis::timing::Timing;

/// The report, without proofs that rest on waits.
pub(super) fn limited(mut report: Report, play: &Play<'_>) -> Report {
    let lasts = shows_a_hang(play);
    for finding in &mut report.findings {
        limit(finding, lasts);
    }
    report
}

/// Whether the dumps show that calls stay incomplete, so that they are not of a job that goes on:
/// one timed out, one is old, or a rank is behind its peers by more than the one call that healthy
/// ranks may differ by.
fn shows_a_hang(play: &Play<'_>) -> bool {
    let limit = Timing::default().default_stall_after.as_nanos() as u64;
    let latest = play.job.ranks.values().map(Dump::latest).max();
    let latest = latest.unwrap_or(0);
    let mut open = play.open_entries();
    let lasts = open.any(|entry| {
        let timed_out = entry.retired && !is_on_host(&entry.backend);
        let is_old = entry.created > 0 && latest.saturating_sub(entry.created) >= limit;
        (timed_out && entry.state != State::Completed) || is_old
    });
    lasts || is_far_behind(play)
}

/// Whether a rank is behind the others by two calls of a group, or by one call in two groups.
fn is_far_behind(play: &Play<'_>) -> bool {
    let mut behind: BTreeMap<u32, u64> = BTreeMap::new();
    for group in &play.groups.all {
        let most = |of: fn(&super::groups::Progress) -> u64| group.progress.values().map(of).max();
        let (issued, completed) = (most(|it| it.issued), most(|it| it.completed));
        for (&rank, progress) in &group.progress {
            let by = issued.unwrap_or(0).saturating_sub(progress.issued);
            let completed_by = completed.unwrap_or(0).saturating_sub(progress.completed);
            let known = if progress.completed > 0 {
                completed_by
            } else {
                0
            };
            *behind.entry(rank).or_default() += by.max(known);
        }
    }
    behind.values().any(|&by| by > 1)
}

fn limit(finding: &mut Finding, lasts: bool) {
    if catalogue::is_gap(&finding.code) {
        return;
    }
    let kind = finding.certificate.as_ref().map(|it| it.kind);
    // Calls that can never match are recorded on both sides.
    let is_recorded = matches!(
        kind,
        Some(CertificateKind::UnsatisfiableJoin | CertificateKind::Contradiction)
    );
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
