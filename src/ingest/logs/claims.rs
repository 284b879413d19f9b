//! What a report from text alone may claim.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Report, Timestamp};

use super::Log;

/// What a report may claim.
#[derive(Clone, Copy, Debug, Default)]
pub struct Claims {
    /// The evidence is text.
    is_text: bool,
    /// The first time that the text states with its year.
    first: Option<Timestamp>,
}

/// Minimum wait that a text states, in milliseconds. Calls in shorter ones were issued at an unknown time.
const MIN_WAIT_MS: u64 = 5;

impl Claims {
    /// What a report from these logs may claim; without logs, everything.
    #[must_use]
    pub fn new(logs: &[Log]) -> Self {
        let dated = logs.iter().filter(|log| !log.facts.has_no_year);
        let first = dated.map(|log| log.facts.first);
        Self { is_text: !logs.is_empty(), first: first.filter(|at| at.0 > 0).min() }
    }

    /// Lowers the claims of a report from text. Text is not a recording: nothing about the job is
    /// proved by it, and if it has no times, neither has the report.
    pub fn limit(self, report: &mut Report) {
        if self.is_text {
            limit(report, self.first);
        }
    }
}

fn limit(report: &mut Report, first: Option<Timestamp>) {
    report.job.started_at = first;
    if first.is_none() {
        report.job.ended_at = None;
    }
    // Nodes of ranks that the text does not place are not counted.
    let placed = report.ranks.iter().filter(|it| !it.host.is_empty()).count() as u64;
    if report.job.world_size.is_some_and(|size| placed < u64::from(size)) {
        report.job.nodes = 0;
    }
    for finding in &mut report.findings {
        if !catalogue::is_gap(&finding.code) {
            finding.certificate = None;
            finding.confidence = finding.confidence.min(Confidence::Supported);
            let root = &mut finding.ranks.root_confidence;
            *root = (*root).min(Confidence::Supported);
        }
        if first.is_none() {
            finding.blocked_at = None;
        }
        // The text states no shorter wait.
        for call in &mut finding.per_rank {
            call.waited_ms.take_if(|waited| *waited < MIN_WAIT_MS);
        }
    }
}
