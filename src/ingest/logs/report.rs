//! What a report from text alone may claim.

use ddp_doctor_proto::report::{Confidence, Report};

use super::groups::UNNUMBERED;

/// Lowers what a report of logs and stacks claims: text is not a recording, so nothing about the
/// job is proved by it, and calls that it does not number have no number.
pub fn limit(report: &mut Report) {
    for finding in &mut report.findings {
        let is_gap = ddp_doctor_proto::catalogue::is_gap(&finding.code);
        if !is_gap {
            finding.certificate = None;
            finding.confidence = finding.confidence.min(Confidence::Supported);
            finding.ranks.root_confidence = finding.ranks.root_confidence.min(Confidence::Supported);
        }
        let unnumbered = finding.group.as_ref().is_some_and(|it| it.name == UNNUMBERED);
        if unnumbered {
            finding.seq = None;
            finding.summary = without_number(&finding.summary);
            for text in finding.why.iter_mut().chain(&mut finding.next) {
                *text = without_number(text);
            }
            for call in &mut finding.per_rank {
                call.seq = None;
            }
        }
    }
    for rank in &mut report.ranks {
        if let Some(waiting) = rank.waiting_in.as_mut().filter(|it| it.group == UNNUMBERED) {
            waiting.seq = None;
        }
    }
}

fn without_number(text: &str) -> String {
    text.replace(" #1", "")
}
