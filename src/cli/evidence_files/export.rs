//! `ddp-doctor export`

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::analyze;
use crate::cli::options::Global;
use crate::cli::output::output;
use crate::report::{jsonl, perfetto};

/// Write the timeline of a job for other tools.
///
/// Accepts the same evidence as `ddp-doctor analyze`, and writes to standard output.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 written, 2 usage error, 3 nothing could be read.")]
pub(in super::super) struct Export {
    /// Run directory, journal, black box, Flight Recorder dumps, log, or directory of logs [default: this user's
    /// newest run]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_name = "FORMAT", env = "DDP_DOCTOR_FORMAT")]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Trace of all ranks for ui.perfetto.dev
    Perfetto,
    /// One JSON document per line, in chronological order: calls, marks, memory, findings
    Jsonl,
}

impl Export {
    pub(in super::super) fn run(mut self, global: &Global) -> anyhow::Result<u8> {
        analyze::add_newest(&mut self.paths, global)?;
        let analysis = analyze::read(&self.paths, true, global)?;
        let jobs: Vec<_> = analysis.reports.iter().zip(&analysis.timelines).collect();
        let out = &mut output();
        match self.format {
            Format::Perfetto => perfetto::trace(out, &jobs)?,
            Format::Jsonl => jsonl::lines(out, &jobs)?,
        }
        out.flush()?;
        Ok(0)
    }
}
