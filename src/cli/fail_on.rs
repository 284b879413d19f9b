//! What a report makes of the exit status.

use clap::ValueEnum;
use ddp_doctor_proto::report::{Effect, Report, Severity, Verdict};

use super::{FOUND, INSUFFICIENT};

/// From what severity on findings make a command fail.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum FailOn {
    Never,
    Note,
    Warning,
    Error,
    Critical,
}

impl FailOn {
    /// The exit status that a report leads to.
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
            // What says that nothing can be judged has a status of its own.
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
