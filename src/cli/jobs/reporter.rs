//! `ddp-doctor reporter`, which is started by ranks and not by users.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::cli::options::{Access, Sources, Stacks, seconds, size};
use crate::diagnosis::timing::TimeScale;
use crate::node::upload::journal::DEFAULT_SIZE;
use crate::node::upload::reporter::{Options, report};
use crate::transport::Credentials;

/// Follow the ranks of a launch that `run` did not start, and report to a standing coordinator
#[derive(Debug, Args)]
pub(in super::super) struct Reporter {
    /// Black box of one rank of the launch
    black_box: PathBuf,
    /// Directories in which ranks of the launch may have black boxes
    boxes: Vec<PathBuf>,
    /// Also follow ranks that have ended: the directories belong only to this launch
    #[arg(long, env = "DDP_DOCTOR_INCLUDE_DEAD")]
    include_dead: bool,
    /// Address of the coordinator
    #[arg(long, value_name = "HOST:PORT", env = "DDP_DOCTOR_COORDINATOR")]
    coordinator: String,
    /// Keep black boxes and journal in this directory [default: keep nothing]
    #[arg(long, value_name = "DIR", env = "DDP_DOCTOR_RUN_DIR")]
    run_dir: Option<PathBuf>,
    /// Maximum size of the journal, such as 512M; its oldest part is dropped [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = size, env = "DDP_DOCTOR_JOURNAL_SIZE")]
    journal_size: Option<u64>,
    /// Report an unproven stall after this many seconds [default: 60]
    ///
    /// A stall that cannot resolve is reported at once. At a line where ranks have waited before, the
    /// limit is at least three times the longest such wait.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "DDP_DOCTOR_STALL_AFTER")]
    stall_after: Option<Duration>,
    /// Factor for all other durations (for tests)
    #[arg(long, hide = true, default_value = "1", env = "DDP_DOCTOR_TIME_SCALE")]
    time_scale: TimeScale,
    /// When to capture stacks
    #[arg(long, value_name = "WHEN", default_value = "stall", env = "DDP_DOCTOR_STACKS")]
    stacks: Stacks,
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    access: Access,
}

impl Reporter {
    pub(in super::super) fn run(self) -> anyhow::Result<u8> {
        report(Options {
            black_box: self.black_box,
            boxes: self.boxes,
            includes_dead: self.include_dead,
            coordinator: self.coordinator,
            credentials: Credentials { can_ask: false, ..self.access.credentials() },
            run_dir: self.run_dir,
            journal_size: self.journal_size.unwrap_or(DEFAULT_SIZE),
            stall_after: self.stall_after,
            time_scale: self.time_scale,
            stacks: self.stacks.into(),
            sources: self.sources.folders,
        })?;
        Ok(0)
    }
}
