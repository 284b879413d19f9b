//! `ddp-doctor reporter`, which ranks start, not users.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::run::{Stacks, seconds};
use crate::diagnosis::timing::TimeScale;
use crate::node::reporter::{Options, report};

/// Follow the ranks of a launch that `run` did not start, and report to a standing coordinator.
#[derive(Debug, Args)]
pub(super) struct Reporter {
    /// The black box of a rank
    black_box: PathBuf,
    /// Where the coordinator is
    #[arg(long, value_name = "HOST:PORT", env = "DDP_DOCTOR_COORDINATOR")]
    coordinator: String,
    /// Where evidence goes [default: nowhere]
    #[arg(long, value_name = "DIR", env = "DDP_DOCTOR_RUN_DIR")]
    run_dir: Option<PathBuf>,
    /// How long a wait may last that nothing proves hopeless [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "DDP_DOCTOR_STALL_AFTER")]
    stall_after: Option<Duration>,
    /// Factor of all other durations, for tests
    #[arg(long, hide = true, default_value = "1", env = "DDP_DOCTOR_TIME_SCALE")]
    time_scale: TimeScale,
    /// When to look where ranks stand
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "stall",
        env = "DDP_DOCTOR_STACKS"
    )]
    stacks: Stacks,
}

impl Reporter {
    pub(super) fn run(self) -> anyhow::Result<u8> {
        report(Options {
            black_box: self.black_box,
            coordinator: self.coordinator,
            run_dir: self.run_dir,
            stall_after: self.stall_after,
            time_scale: self.time_scale,
            stacks: self.stacks.into(),
        })?;
        Ok(0)
    }
}
