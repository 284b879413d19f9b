//! `ddp-doctor run`

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{Global, stderr_is_terminal};
use crate::diagnosis::timing::TimeScale;
use crate::node::environment;
use crate::node::job::{self, Options};
use crate::node::kill::Patience;
use crate::node::stacks::taker::When;
use crate::node::timing::Timing;

/// Start a job and watch every rank of it on this node.
///
/// The command runs as it would without us: same terminal, same signals, same exit status.
#[derive(Debug, Args)]
#[command(
    override_usage = "ddp-doctor run [OPTIONS] -- COMMAND [ARGUMENTS]…\n       \
                      ddp-doctor run [OPTIONS] --nproc-per-node N SCRIPT [ARGUMENTS]…",
    after_help = "Exit status: that of the job (128+N for signal N; 126, 127 as in a shell), or 75 if \
                  --on-hang kill ended it."
)]
pub(super) struct Run {
    /// Run SCRIPT with torchrun, this many ranks on this node
    #[arg(
        long,
        value_name = "N",
        alias = "nproc_per_node",
        env = "DDP_DOCTOR_NPROC_PER_NODE"
    )]
    nproc_per_node: Option<String>,
    /// Report to this coordinator instead of one of our own
    #[arg(long, value_name = "HOST:PORT", env = "DDP_DOCTOR_COORDINATOR")]
    coordinator: Option<String>,
    /// Name of the job, the same on all its nodes [default: a new one]
    #[arg(long, value_name = "ID", env = "DDP_DOCTOR_JOB")]
    job: Option<String>,
    /// Where evidence and report go [default: ddp-doctor-runs/<job>-<time>]
    #[arg(long, value_name = "DIR", env = "DDP_DOCTOR_RUN_DIR")]
    run_dir: Option<PathBuf>,
    /// Write the report there too, at every change
    #[arg(long, value_name = "FILE", env = "DDP_DOCTOR_REPORT")]
    report: Option<PathBuf>,
    /// What to do with a job that surely hangs
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "report",
        env = "DDP_DOCTOR_ON_HANG"
    )]
    on_hang: OnHang,
    /// How long it has to hang before it is killed [default: 5 if proved, 30 otherwise]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "DDP_DOCTOR_KILL_AFTER")]
    kill_after: Option<Duration>,
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
    /// Whose calls of NCCL to see beside PyTorch's hooks: with `auto` every process's, where this node has
    /// an NVIDIA driver. Not run on a GPU so far
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "never",
        env = "DDP_DOCTOR_NCCL"
    )]
    nccl: Nccl,
    /// The command, or the script for --nproc-per-node
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnHang {
    /// Say so
    Report,
    /// End it, once the evidence is on disk
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Nccl {
    /// Where this node has an NVIDIA driver
    Auto,
    /// Also without one
    Always,
    /// Likewise, in the place of `libnccl.so.2` and `libnccl.so`: for programs that load NCCL and look its
    /// functions up themselves. NCCL up to 2.32, on x86-64
    Soname,
    /// What NCCL tells its profiler, which this becomes: for NCCL from 2.27 on that is linked statically or
    /// looked up by the program
    Profiler,
    /// Nobody's
    Never,
}

impl From<Nccl> for job::Nccl {
    fn from(nccl: Nccl) -> Self {
        match nccl {
            Nccl::Auto => Self::Auto,
            Nccl::Always => Self::Always,
            Nccl::Soname => Self::InItsPlace,
            Nccl::Profiler => Self::Profiler,
            Nccl::Never => Self::Never,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Stacks {
    /// Not at all
    Never,
    /// Where they wait for long, and where somebody asks
    Stall,
    /// Where somebody asks: ddp-doctor dump
    Ask,
}

impl From<Stacks> for When {
    fn from(stacks: Stacks) -> Self {
        match stacks {
            Stacks::Never => Self::Never,
            Stacks::Stall => Self::Stall,
            Stacks::Ask => Self::Ask,
        }
    }
}

impl Run {
    /// Runs the job. Returns the exit status.
    pub(super) fn run(self, global: &Global) -> u8 {
        let mut command = self.command;
        if let Some(count) = self.nproc_per_node {
            let torchrun = ["torchrun".into(), "--nproc-per-node".into(), count.into()];
            command.splice(0..0, torchrun);
        }
        // Capture is switched off, or an outer `run` monitors this job.
        if environment::is_switched_off() || environment::is_watched_already() {
            return job::become_command(&command, &mut io::stderr());
        }
        let timing = Timing::default().scaled(self.time_scale);
        let outcome = job::run(Options {
            command,
            job: self.job,
            run_dir: self.run_dir,
            report: self.report,
            coordinator: self.coordinator,
            kill: (self.on_hang == OnHang::Kill).then(|| Patience::new(self.kill_after, &timing)),
            stall_after: self.stall_after,
            time_scale: self.time_scale,
            stacks: self.stacks.into(),
            nccl: self.nccl.into(),
            verbosity: global.verbosity(),
            style: global.style(stderr_is_terminal()),
            out: Box::new(io::stderr()),
        });
        outcome.status
    }
}

/// Parses a number of seconds, from 0 to a year.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_error| "not a number of seconds".to_owned())?;
    if (0.0..=31_536_000.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("not between 0 and a year".into())
    }
}
