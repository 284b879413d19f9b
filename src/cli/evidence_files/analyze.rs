//! `ddp-doctor analyze`

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, ValueEnum};

use super::progress::with_progress;
use super::remarks;
use crate::cli::exit_status::{FOUND, FailOn};
use crate::cli::options::{Global, Sources};
use crate::cli::output::{output, say};
use crate::cli::view::newest_run;
use crate::host::source_files::{NOT_SHOWN, SourceFolders};
use crate::postmortem::{self, Analysis};
use crate::report::text::{self, Style};
use crate::report::{csv, html, json, markdown, perfetto, sarif};

/// Diagnose a job from the files it left behind.
///
/// Accepts any mix of run directories, journals, black boxes, Flight Recorder dumps of PyTorch
/// (pickle or JSON, also in tar archives), logs (torchrun, Slurm, NCCL, PyTorch) and printed stacks
/// (py-spy, faulthandler), each also compressed (.gz, .zst); file types are detected by content.
/// All files of one job, also from several nodes, give one report. Files of several jobs give one
/// report per job; all logs count as one job.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 no finding at or above --fail-on, 1 findings at or above --fail-on, 2 usage \
                  error, 3 nothing could be analyzed, 4 insufficient evidence for a verdict."
)]
pub(in super::super) struct Analyze {
    /// Run directory, journal, black box, Flight Recorder dumps, log, or directory of logs
    ///
    /// Without it, the newest run of this user on this machine.
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text", env = "DDP_DOCTOR_FORMAT")]
    format: Format,
    /// Exit with status 1 if a finding has at least this severity
    #[arg(long, value_name = "SEVERITY", default_value = "error", env = "DDP_DOCTOR_FAIL_ON")]
    fail_on: FailOn,
    #[command(flatten)]
    sources: Sources,
}

/// Analyzes the evidence at these paths; remarks and progress go to the terminal.
pub(super) fn read(
    paths: &[PathBuf],
    with_timelines: bool,
    global: &Global,
) -> anyhow::Result<Analysis> {
    let has_terminal = io::stderr().is_terminal() && global.quiet == 0;
    let analysis = with_progress(has_terminal, |progress| {
        postmortem::analyze_with(paths, progress, with_timelines)
    });
    remarks::print(&analysis.remarks, global.quiet);
    if analysis.reports.is_empty() {
        bail!("nothing to analyze: no PATH contains usable evidence");
    }
    Ok(analysis)
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in super::super) enum Format {
    /// The layout of `ddp-doctor run`
    Text,
    /// The report, one JSON document per job
    Json,
    /// Markdown, for issues and chats
    Markdown,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// One HTML page with timeline, graph of waits and stacks
    Html,
    /// Trace of all ranks for ui.perfetto.dev
    Perfetto,
    /// One row per finding and rank, for pandas and spreadsheets
    Csv,
}

impl Analyze {
    pub(in super::super) fn run(mut self, global: &Global) -> anyhow::Result<u8> {
        add_newest(&mut self.paths, global)?;
        let with_timelines = matches!(self.format, Format::Html | Format::Perfetto | Format::Csv);
        let analysis = read(&self.paths, with_timelines, global)?;
        let sources: Vec<SourceFolders> =
            analysis.paths.iter().map(|it| self.sources.of_job(it)).collect();
        self.format.print(&analysis, &sources, global)?;
        Ok(status(&analysis, self.fail_on))
    }
}

/// Adds this user's newest run if no path is given.
pub(super) fn add_newest(paths: &mut Vec<PathBuf>, global: &Global) -> anyhow::Result<()> {
    if paths.is_empty() {
        let newest = newest_run()?;
        if global.quiet == 0 {
            say(newest.display());
        }
        paths.push(newest);
    }
    Ok(())
}

/// Exit status for several reports: a finding outranks insufficient evidence.
pub(in super::super) fn status(analysis: &Analysis, fail_on: FailOn) -> u8 {
    let statuses = analysis.reports.iter().map(|report| fail_on.status(report));
    let grave = |&status: &u8| match status {
        0 => 0,
        FOUND => 2,
        _ => 1,
    };
    statuses.max_by_key(grave).unwrap_or(0)
}

impl Format {
    /// Prints the reports, each with source lines from the folders of its own job.
    pub(in super::super) fn print(
        self,
        analysis: &Analysis,
        sources: &[SourceFolders],
        global: &Global,
    ) -> anyhow::Result<()> {
        let style = Style { past: true, ..global.style(io::stdout().is_terminal()) };
        let reports = &analysis.reports;
        let jobs: Vec<_> = reports.iter().zip(&analysis.timelines).collect();
        let with_sources: Vec<_> = reports.iter().zip(sources).collect();
        let shows_sources = matches!(self, Self::Text | Self::Markdown | Self::Html);
        let withholds =
            || with_sources.iter().any(|(report, of_job)| text::withholds_sources(report, of_job));
        if shows_sources && global.quiet == 0 && withholds() {
            say(NOT_SHOWN);
        }
        let out = &mut output();
        match self {
            Self::Text if global.quiet >= 2 => {}
            Self::Text => {
                for (i, (report, sources)) in with_sources.into_iter().enumerate() {
                    if i > 0 {
                        writeln!(out)?;
                    }
                    if global.quiet == 0 {
                        text::report(out, report, style, global.verbose > 0, sources)?;
                    } else {
                        text::findings(out, report, style, global.verbose > 0, sources)?;
                    }
                }
            }
            Self::Json => reports.iter().try_for_each(|it| json::print(out, it))?,
            Self::Markdown => {
                with_sources
                    .iter()
                    .try_for_each(|(it, of_job)| markdown::report(out, it, of_job))?;
            }
            Self::Sarif => sarif::log(out, reports)?,
            Self::Html => html::page(out, &jobs, sources)?,
            Self::Perfetto => perfetto::trace(out, &jobs)?,
            Self::Csv => csv::table(out, &jobs)?,
        }
        out.flush()?;
        Ok(())
    }
}
