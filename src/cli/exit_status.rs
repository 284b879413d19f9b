//! Exit statuses of commands, and that of a report.

use clap::ValueEnum;
use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Report, Severity, Verdict};

/// Exit status of a usage error.
pub(super) const USAGE: u8 = 2;
/// Exit status if a finding is at or above the severity given by `--fail-on`.
pub(super) const FOUND: u8 = 1;
/// Exit status of a command that failed.
pub(super) const FAILED: u8 = 3;
/// Exit status if the evidence is insufficient for a verdict.
pub(super) const INSUFFICIENT: u8 = 4;

/// Minimum severity of findings that make a command fail.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum FailOn {
    Never,
    Note,
    Warning,
    Error,
    Critical,
}

impl FailOn {
    /// Exit status for a report.
    pub(super) fn status(self, report: &Report) -> u8 {
        let least = match self {
            Self::Never => None,
            Self::Note => Some(Severity::Note),
            Self::Warning => Some(Severity::Warning),
            Self::Error => Some(Severity::Error),
            Self::Critical => Some(Severity::Critical),
        };
        let insufficient = report.verdict == Verdict::Insufficient;
        let found = report.findings.iter().any(|finding| {
            // A finding about insufficient evidence has an exit status of its own.
            let counts = !insufficient || !catalogue::is_gap(&finding.code);
            counts && least.is_some_and(|least| finding.severity >= least)
        });
        match (found, insufficient) {
            (true, _) => FOUND,
            (false, true) => INSUFFICIENT,
            (false, false) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::report::{Effect, Finding};

    use super::*;
    use crate::report::testing::{early_exit, report};

    #[test]
    fn error_without_effect_fails_an_insufficient_report() {
        let finding =
            |code: &str| Finding { code: code.into(), effect: Effect::None, ..early_exit() };
        let mut report = report();
        report.verdict = Verdict::Insufficient;
        report.findings = vec![finding("DD901")];
        assert_eq!(FailOn::Error.status(&report), INSUFFICIENT);
        report.findings.push(finding("DD307"));
        assert_eq!(FailOn::Error.status(&report), FOUND);
        assert_eq!(FailOn::Never.status(&report), INSUFFICIENT);
    }
}
