//! `ddp-doctor status`

use std::io::{self, IsTerminal, Write};

use clap::{Args, ValueEnum};
use ddp_doctor_proto::report::{Job, Report};

use super::state;
use super::target::{Orphans, Target};
use crate::cli::exit_status::FailOn;
use crate::cli::options::{Access, Global};
use crate::cli::output::{output, say};
use crate::report::json::{self, Assembler};
use crate::report::status;

/// Print the state of a job, for scripts and logs.
///
/// Prints one line for the job, one per finding and one per rank.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 no finding at or above --fail-on, 1 findings at or above --fail-on, 2 usage \
                  error, 3 no such job or no answer from the coordinator, 4 insufficient evidence for a verdict."
)]
pub(in super::super) struct ShowStatus {
    /// Run directory or HOST:PORT of a coordinator [default: this user's newest run]
    #[arg(value_name = "TARGET")]
    target: Option<String>,
    /// Id of the job at that coordinator [default: its newest job]
    #[arg(long, value_name = "ID", env = "DDP_DOCTOR_JOB")]
    job: Option<String>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text", env = "DDP_DOCTOR_FORMAT")]
    format: Format,
    /// Exit with status 1 if a finding has at least this severity
    #[arg(long, value_name = "SEVERITY", default_value = "never", env = "DDP_DOCTOR_FAIL_ON")]
    fail_on: FailOn,
    #[command(flatten)]
    access: Access,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// One line per fact
    Text,
    /// The JSON report
    Json,
}

impl ShowStatus {
    pub(in super::super) fn run(self, global: &Global) -> anyhow::Result<u8> {
        let target = Target::of_job(
            self.target.as_deref(),
            self.job.as_deref(),
            &self.access.credentials(),
        )?;
        if let Some(orphans) = Orphans::find(self.target.as_deref()) {
            say(&orphans);
        }
        let update = state::now(&target, global.quiet)?;
        let mut assembler = Assembler::new(Job::default());
        assembler.apply(update);
        let report: Report = assembler.report();
        let out = &mut output();
        match self.format {
            Format::Text => {
                let style = global.style(io::stdout().is_terminal());
                status::text(out, &report, style)?;
            }
            Format::Json => json::print(out, &report)?,
        }
        out.flush()?;
        Ok(self.fail_on.status(&report))
    }
}
