//! Exit status of a command from its report.

use clap::ValueEnum;
use ddp_doctor_proto::report::{Effect, Report, Severity, Verdict};

use super::{FOUND, INSUFFICIENT};

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
            let counts = finding.effect != Effect::None || !insufficient;
            counts && least.is_some_and(|least| finding.severity >= least)
        });
        match (found, insufficient) {
            (true, _) => FOUND,
            (false, true) => INSUFFICIENT,
            (false, false) => 0,
        }
    }
}
