//! `ddp-doctor status`

use std::io::{self, IsTerminal, Write};

use clap::{Args, ValueEnum};
use ddp_doctor_proto::report::{Job, Report};

use super::Global;
use super::fail_on::FailOn;
use super::viewing;
use crate::report::json::{self, Assembler};
use crate::report::status;

/// Say how a job stands, for scripts and log files.
///
/// One line about the job, one for each finding, one for each rank.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 said, 1 findings at or above --fail-on, 2 wrong usage, 3 there is no such \
                  job or nobody answers, 4 the evidence does not allow a judgement."
)]
pub(super) struct ShowStatus {
    /// Run directory or HOST:PORT of a coordinator [default: the newest run of this user here]
    #[arg(value_name = "TARGET")]
    target: Option<String>,
    /// Which job of that coordinator [default: its newest]
    #[arg(long, value_name = "ID", env = "DDP_DOCTOR_JOB")]
    job: Option<String>,
    /// How to print it
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "text",
        env = "DDP_DOCTOR_FORMAT"
    )]
    format: Format,
    /// Exit with 1 if there are findings of this severity, or a graver one
    #[arg(
        long,
        value_name = "SEVERITY",
        default_value = "never",
        env = "DDP_DOCTOR_FAIL_ON"
    )]
    fail_on: FailOn,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A line for everything
    Text,
    /// The report
    Json,
}

impl ShowStatus {
    pub(super) fn run(self, global: &Global) -> anyhow::Result<u8> {
        let target = viewing::find(self.target.as_deref(), self.job.as_deref())?;
        let update = viewing::now(&target)?;
        let mut assembler = Assembler::new(Job::default());
        assembler.apply(update);
        let report: Report = assembler.report();
        let out = &mut io::stdout().lock();
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
