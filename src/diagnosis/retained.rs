//! The finding for which a job was ended, which belongs in its report even if it no longer holds.

use ddp_doctor_proto::report::{Finding, Severity};

use crate::input::event::KillReason;

/// Maximum number of withdrawn findings that may still turn out to be the reason for ending the job.
const MAX_WITHDRAWN: usize = 8;

/// What earlier evaluations found.
#[derive(Debug, Default)]
pub(crate) struct Retained {
    /// Findings that an earlier evaluation had and the next one had not, latest last.
    withdrawn: Vec<Finding>,
}

impl Retained {
    /// Takes note of the findings of an evaluation and of the one before.
    pub(crate) fn note(&mut self, before: &[Finding], findings: &[Finding]) {
        let remains = |old: &Finding| findings.iter().any(|it| identity(it) == identity(old));
        let is_grave = |it: &&Finding| it.severity >= Severity::Error;
        let gone = before.iter().filter(is_grave).filter(|it| !remains(it));
        self.withdrawn.extend(gone.cloned());
        let excess = self.withdrawn.len().saturating_sub(MAX_WITHDRAWN);
        self.withdrawn.drain(..excess);
    }

    /// Restores the finding for which the job was ended, at the head of `findings`; returns whether it
    /// was missing.
    pub(crate) fn restore_reason(&self, reason: &KillReason, findings: &mut Vec<Finding>) -> bool {
        if findings.iter().any(|it| reason.is(it)) {
            return false;
        }
        let Some(finding) = self.withdrawn.iter().rev().find(|it| reason.is(it)) else {
            return false;
        };
        let mut finding = finding.clone();
        finding.caused_by.clear();
        finding.why.push("The wait ended while the job was being ended because of it.".into());
        prepend(finding, findings);
        true
    }
}

/// Puts a finding before all others, whose causes are given by index.
fn prepend(finding: Finding, findings: &mut Vec<Finding>) {
    for cause in findings.iter_mut().flat_map(|it| &mut it.caused_by) {
        *cause += 1;
    }
    findings.insert(0, finding);
}

fn identity(finding: &Finding) -> (&str, Option<&str>, Option<u64>) {
    let group = finding.group.as_ref().map(|group| group.name.as_str());
    (&finding.code, group, finding.seq)
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::report::{Blame, Confidence, Effect, Role, Timestamp};

    use super::*;

    fn hang() -> Finding {
        Finding {
            code: "DD204".into(),
            name: "n".into(),
            severity: Severity::Error,
            effect: Effect::Blocks,
            confidence: Confidence::Supported,
            role: Role::Initiating,
            attempt: 0,
            caused_by: Vec::new(),
            headline: None,
            summary: String::new(),
            cause: None,
            ranks: Blame {
                root: vec![1],
                root_confidence: Confidence::Supported,
                victims: Vec::new(),
            },
            group: None,
            seq: Some(3),
            op: None,
            per_rank: Vec::new(),
            parameters: Vec::new(),
            certificate: None,
            why: Vec::new(),
            next: Vec::new(),
            blocked_at: None,
            detected_at: Timestamp(1),
            latency_ms: 0,
            held: Vec::new(),
        }
    }

    #[test]
    fn reason_for_a_kill_remains_after_the_wait_has_ended() {
        let hang = hang();
        let reason = KillReason { code: "DD204".into(), group: "".into(), seq: 3 };
        let mut retained = Retained::default();
        retained.note(&[], std::slice::from_ref(&hang));
        let mut findings = vec![hang.clone()];
        assert!(!retained.restore_reason(&reason, &mut findings), "it still holds");
        retained.note(&[hang], &[]);
        let mut findings = Vec::new();
        assert!(retained.restore_reason(&reason, &mut findings));
        assert!(findings[0].why[0].starts_with("The wait ended while"));
        let other = KillReason { seq: 4, ..reason };
        assert!(!retained.restore_reason(&other, &mut Vec::new()));
    }
}
