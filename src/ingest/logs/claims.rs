//! What a report from text alone may claim.

use std::collections::BTreeMap;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Finding, Report, Timestamp};

use super::Log;
use super::events::{MONITORED, UNNAMED, UNNUMBERED};

/// What a report may claim.
#[derive(Clone, Copy, Debug, Default)]
pub struct Claims {
    /// The evidence is text.
    is_text: bool,
    /// The first time that the text states.
    first: Option<Timestamp>,
}

/// Minimum wait that a text states, in milliseconds. Calls in shorter ones were issued at an unknown time.
const MIN_WAIT_MS: u64 = 5;

impl Claims {
    /// What a report from these logs may claim; without logs, everything.
    #[must_use]
    pub fn of(logs: &[Log]) -> Self {
        let first = logs.iter().map(|log| log.facts.first);
        Self { is_text: !logs.is_empty(), first: first.filter(|at| at.0 > 0).min() }
    }

    /// Lowers the claims of a report from text. Text is not a recording: nothing about the job is
    /// proved by it. Calls whose group and number it does not state have none, and if it has no
    /// times, neither has the report.
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
    let world_size = report.job.world_size;
    for finding in &mut report.findings {
        // The text names the members of the world alone, and those only by their number.
        if let Some(group) = &mut finding.group
            && world_size.is_none_or(|size| group.ranks.len() as u64 != u64::from(size))
        {
            group.ranks.clear();
        }
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
    without_numbers(&mut report.findings);
    for rank in &mut report.ranks {
        if let Some(waiting) = &mut rank.waiting_in
            && [MONITORED, UNNUMBERED, UNNAMED].contains(&&*waiting.group)
        {
            waiting.seq.take_if(|_| waiting.group != UNNAMED);
            waiting.op = stated(&waiting.group, &waiting.op);
            waiting.group.clear();
        }
    }
}

/// Removes groups and numbers of calls that the engine needs and the text does not state.
fn without_numbers(findings: &mut [Finding]) {
    // Operations, and what the text calls them.
    let mut ops = BTreeMap::new();
    for finding in findings.iter_mut() {
        let group = finding.group.take_if(|it| [MONITORED, UNNUMBERED].contains(&&*it.name));
        if let Some(group) = group {
            finding.seq = None;
            let named = finding.op.clone().map(|op| (stated(&group.name, &op), op));
            finding.op = named.as_ref().map(|(stated, _)| stated.clone());
            ops.extend(named.map(|(stated, op)| (op, stated)));
        }
        finding.group.take_if(|it| it.name == UNNAMED);
    }
    for finding in findings {
        let texts = finding.why.iter_mut().chain(&mut finding.next);
        for text in texts.chain([&mut finding.summary]) {
            for name in [MONITORED, UNNUMBERED, UNNAMED] {
                *text = text.replace(&format!(" of group \"{name}\""), "");
            }
            for (op, stated) in &ops {
                *text = without_number(text, op, stated);
            }
        }
        for call in &mut finding.per_rank {
            let stated = call.op.as_ref().and_then(|op| ops.get(op));
            if let (Some(stated), Some(1)) = (stated, call.seq) {
                call.seq = None;
                call.op = Some(stated.clone());
            }
        }
    }
}

/// What the text calls an operation of this group.
fn stated(group: &str, op: &str) -> String {
    match group {
        MONITORED => Op::MonitoredBarrier.to_string(),
        _ => op.to_owned(),
    }
}

/// "barrier #1" as `stated`, but "barrier #12" as it is.
fn without_number(text: &str, op: &str, stated: &str) -> String {
    let numbered = format!("{op} #1");
    let mut parts = text.split(&numbered);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let goes_on = part.starts_with(|it: char| it.is_ascii_digit());
        shown.push_str(if goes_on { &numbered } else { stated });
        shown.push_str(part);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_number_of_a_call_is_removed() {
        let shown = without_number(
            "rank 0 waits in barrier #1; barrier #12 is complete",
            "barrier",
            "monitored_barrier",
        );
        assert_eq!(shown, "rank 0 waits in monitored_barrier; barrier #12 is complete");
    }
}
