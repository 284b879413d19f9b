//! `ddp-doctor analyze`

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, ValueEnum};
use ddp_doctor_proto::report::Report;

use super::fail_on::FailOn;
use super::{FOUND, Global};
use crate::postmortem;
use crate::report::text::{self, Style};
use crate::report::{json, markdown, sarif};

/// Say what happened to a job, from what it left behind.
///
/// Takes run directories, journals and black boxes, in any mix: what a file is, its content says.
/// Those of one job (from several nodes, say) give one report; several jobs give one report each.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 nothing at or above --fail-on, 1 findings at or above it, 2 wrong usage, \
                  3 nothing could be analyzed, 4 the evidence does not allow a judgement."
)]
pub(super) struct Analyze {
    /// Run directory, journal or black box
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// How to print the report
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
        default_value = "error",
        env = "DDP_DOCTOR_FAIL_ON"
    )]
    fail_on: FailOn,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// As on the terminal of `run`
    Text,
    /// The report; one document for each job
    Json,
    /// For issues and chats
    Markdown,
    /// SARIF 2.1.0, for code scanning
    Sarif,
}

impl Analyze {
    pub(super) fn run(self, global: &Global) -> anyhow::Result<u8> {
        let analysis = postmortem::analyze(&self.paths);
        if global.quiet < 2 {
            for remark in &analysis.remarks {
                let line = text::plain(&remark.to_string());
                writeln!(io::stderr(), "ddp-doctor: {line}")?;
            }
        }
        if analysis.reports.is_empty() {
            bail!("there is nothing to analyze");
        }
        let style = Style {
            past: true,
            ..global.style(io::stdout().is_terminal())
        };
        self.print(&analysis.reports, style, global)?;
        let statuses = analysis
            .reports
            .iter()
            .map(|report| self.fail_on.status(report));
        // Findings take precedence over insufficient evidence.
        let grave = |&status: &u8| match status {
            0 => 0,
            FOUND => 2,
            _ => 1,
        };
        Ok(statuses.max_by_key(grave).unwrap_or(0))
    }

    fn print(&self, reports: &[Report], style: Style, global: &Global) -> anyhow::Result<()> {
        let out = &mut io::stdout().lock();
        match self.format {
            Format::Text if global.quiet >= 2 => {}
            Format::Text => {
                for (i, report) in reports.iter().enumerate() {
                    if i > 0 {
                        writeln!(out)?;
                    }
                    if global.quiet == 0 {
                        text::report(out, report, style, global.verbose > 0)?;
                    } else {
                        text::findings(out, report, style, global.verbose > 0)?;
                    }
                }
            }
            Format::Json => reports.iter().try_for_each(|it| json::print(out, it))?,
            Format::Markdown => reports
                .iter()
                .try_for_each(|it| markdown::report(out, it))?,
            Format::Sarif => sarif::log(out, reports)?,
        }
        out.flush()?;
        Ok(())
    }
}
