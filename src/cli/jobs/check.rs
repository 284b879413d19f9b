//! `ddp-doctor check`

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::check::rules::{Level, Line};
use crate::check::{self, Options, output};
use crate::cli::exit_status::{FOUND, FailOn, INSUFFICIENT};
use crate::cli::options::{Access, Global, seconds};
use crate::cli::output::output;
use crate::transport::Credentials;

/// Check the nodes before a job starts.
///
/// Without a command, checks this machine. With the command that each node will start, also checks
/// whether the nodes reach each other and agree: run it on every node at about the same time, with
/// the same DDP_DOCTOR_TOKEN. Nothing is started.
#[derive(Debug, Args)]
#[command(
    override_usage = "ddp-doctor check [OPTIONS] [-- COMMAND [ARGUMENTS]…]",
    after_help = "Exit status: 0 nothing at or above --fail-on, 1 lines at or above --fail-on, 2 usage error, \
                  3 the check failed, 4 a line is UNKNOWN and nothing is at or above --fail-on."
)]
pub(in super::super) struct Check {
    /// Also check the coordinator at HOST:PORT that the job will report to
    #[arg(long, value_name = "HOST:PORT", env = "DDP_DOCTOR_COORDINATOR")]
    coordinator: Option<String>,
    /// How long to wait for the other nodes
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "60",
        value_parser = seconds,
        env = "DDP_DOCTOR_WAIT"
    )]
    wait: Duration,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text", env = "DDP_DOCTOR_FORMAT")]
    format: Format,
    /// Exit with status 1 if a line is at least this severe; INFO counts as note, WARNING as warning,
    /// CRITICAL as critical
    #[arg(long, value_name = "SEVERITY", default_value = "error", env = "DDP_DOCTOR_FAIL_ON")]
    fail_on: FailOn,
    /// The command that each node will start
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<OsString>,
    #[command(flatten)]
    access: Access,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// One line per result, the most severe first
    Text,
    /// One JSON document
    Json,
}

impl Check {
    pub(in super::super) fn run(self, global: &Global) -> anyhow::Result<u8> {
        let checked = check::check(&Options {
            command: self.command,
            coordinator: self.coordinator.filter(|it| !it.is_empty()),
            wait: self.wait,
            credentials: Credentials { can_ask: false, ..self.access.credentials() },
        })?;
        let out = &mut output();
        let style = global.style(io::stdout().is_terminal());
        match (self.format, global.quiet) {
            (Format::Json, _) => output::json(out, &checked)?,
            (Format::Text, 0) => output::text(out, &checked, Level::Pass, style)?,
            (Format::Text, 1) => output::text(out, &checked, Level::Warning, style)?,
            (Format::Text, _) => {}
        }
        out.flush()?;
        Ok(status(&checked.lines, self.fail_on))
    }
}

/// Exit status by the most severe line.
fn status(lines: &[Line], fail_on: FailOn) -> u8 {
    let fails = |level: Level| match fail_on {
        FailOn::Never => false,
        FailOn::Note => matches!(level, Level::Info | Level::Warning | Level::Critical),
        FailOn::Warning => matches!(level, Level::Warning | Level::Critical),
        FailOn::Error | FailOn::Critical => level == Level::Critical,
    };
    if lines.iter().any(|it| fails(it.level)) {
        FOUND
    } else if lines.iter().any(|it| it.level == Level::Unknown) {
        INSUFFICIENT
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gravest_line_decides_the_status() {
        let line = |level| Line {
            level,
            check: String::new(),
            nodes: Vec::new(),
            reason: String::new(),
            fix: None,
        };
        use Level::{Critical, Info, Pass, Unknown, Warning};
        for (levels, fail_on, expected) in [
            (&[Pass, Info, Warning][..], FailOn::Error, 0),
            (&[Pass, Warning], FailOn::Warning, FOUND),
            (&[Pass, Info], FailOn::Note, FOUND),
            (&[Pass], FailOn::Note, 0),
            (&[Warning, Unknown], FailOn::Error, INSUFFICIENT),
            (&[Unknown, Critical], FailOn::Error, FOUND),
            (&[Critical], FailOn::Never, 0),
            (&[Critical], FailOn::Critical, FOUND),
        ] {
            let lines: Vec<Line> = levels.iter().map(|&it| line(it)).collect();
            assert_eq!(status(&lines, fail_on), expected, "{levels:?} {fail_on:?}");
        }
    }
}
