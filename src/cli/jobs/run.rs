//! `ddp-doctor run`

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cli::options::{
    Access, Global, Monitoring, Sources, Stacks, seconds, size, stderr_is_terminal,
};
use crate::cli::output::say;
use crate::diagnosis::timing::TimeScale;
use crate::monitoring;
use crate::node::launch::job::{self, Options};
use crate::node::launch::kill::KillAfter;
use crate::node::launch::nccl;
use crate::node::sample::environment;
use crate::node::timing::Timing;
use crate::node::upload::journal::DEFAULT_SIZE;
use crate::transport::Credentials;

/// Start a job and diagnose its ranks on this node.
///
/// The command runs as it would without ddp-doctor: same terminal, same signals, same exit status.
#[derive(Debug, Args)]
#[command(
    override_usage = "ddp-doctor run [OPTIONS] -- COMMAND [ARGUMENTS]…\n       \
                      ddp-doctor run [OPTIONS] --nproc-per-node N SCRIPT [ARGUMENTS]…",
    after_help = "Exit status: that of the job (128+N if signal N ended it, 126 or 127 if it could not be \
                  started, as in a shell), or 75 if --on-hang kill ended it."
)]
pub(in super::super) struct Run {
    /// Start SCRIPT with torchrun and N ranks on this node
    #[arg(long, value_name = "N", alias = "nproc_per_node", env = "DDP_DOCTOR_NPROC_PER_NODE")]
    nproc_per_node: Option<String>,
    /// Report to this coordinator instead of diagnosing in this process
    ///
    /// Without it, the nodes of a launch share a coordinator on the node where they meet, which torchrun's
    /// arguments or the launcher's variables name. Reaching a coordinator on another machine requires
    /// its token.
    #[arg(long, value_name = "HOST:PORT", env = "DDP_DOCTOR_COORDINATOR")]
    coordinator: Option<String>,
    /// Id of the job, the same on all its nodes [default: a generated id]
    #[arg(long, value_name = "ID", env = "DDP_DOCTOR_JOB")]
    job: Option<String>,
    /// Directory for the report and the evidence [default: ddp-doctor-runs/<job>-<time>]
    #[arg(long, value_name = "DIR", env = "DDP_DOCTOR_RUN_DIR")]
    run_dir: Option<PathBuf>,
    /// Maximum size of the journal, such as 512M; its oldest part is dropped [default: 1G]
    ///
    /// The start of the job, calls under way, settings and exceptions are kept.
    #[arg(long, value_name = "SIZE", value_parser = size, env = "DDP_DOCTOR_JOURNAL_SIZE")]
    journal_size: Option<u64>,
    /// Also write the JSON report to FILE, updated at every change
    #[arg(long, value_name = "FILE", env = "DDP_DOCTOR_REPORT")]
    report: Option<PathBuf>,
    /// What to do when the job hangs
    #[arg(long, value_name = "WHAT", default_value = "report", env = "DDP_DOCTOR_ON_HANG")]
    on_hang: OnHang,
    /// Kill after the finding has held for this many seconds [default: 5 if proved, 30 if likely]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "DDP_DOCTOR_KILL_AFTER")]
    kill_after: Option<Duration>,
    /// Report an unproven stall after this many seconds [default: 60]
    ///
    /// A stall that cannot resolve is reported at once. At a line where ranks have waited before, the
    /// limit is at least three times the longest such wait.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "DDP_DOCTOR_STALL_AFTER")]
    stall_after: Option<Duration>,
    /// Factor for all other durations (for tests)
    #[arg(long, hide = true, default_value = "1", env = "DDP_DOCTOR_TIME_SCALE")]
    time_scale: TimeScale,
    /// Records a second above which the coordinator asks for digests (for tests)
    #[arg(long, hide = true, value_name = "RECORDS", env = "DDP_DOCTOR_DIGEST_ABOVE")]
    digest_above: Option<u64>,
    /// When to capture stacks
    #[arg(long, value_name = "WHEN", default_value = "stall", env = "DDP_DOCTOR_STACKS")]
    stacks: Stacks,
    /// How to trace NCCL calls
    ///
    /// Collectives that PyTorch issues are captured without this option. Tested only on one GPU that several ranks
    /// shared.
    #[arg(long, value_name = "WHEN", default_value = "never", env = "DDP_DOCTOR_NCCL")]
    nccl: Nccl,
    #[command(flatten)]
    monitoring: Monitoring,
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    access: Access,
    /// The command to run, or the script for --nproc-per-node
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnHang {
    /// Report it
    Report,
    /// Report it, then end the job once the evidence is on disk
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Nccl {
    /// Preload the NCCL shim if this node has an NVIDIA driver
    Auto,
    /// Preload the NCCL shim
    Always,
    /// Also load the shim in place of `libnccl.so.2` and `libnccl.so`, for programs that load NCCL by that
    /// name and look up its functions (NCCL up to 2.32, x86-64)
    Soname,
    /// Load the shim as NCCL's profiler plugin, for programs that link NCCL statically or look up its
    /// functions (NCCL 2.27 to 2.32)
    Profiler,
    /// Do not trace NCCL calls
    Never,
}

impl From<Nccl> for nccl::Nccl {
    fn from(nccl: Nccl) -> Self {
        match nccl {
            Nccl::Auto => Self::Auto,
            Nccl::Always => Self::Always,
            Nccl::Soname => Self::Soname,
            Nccl::Profiler => Self::Profiler,
            Nccl::Never => Self::Never,
        }
    }
}

impl Run {
    /// Runs the job; returns the exit status.
    pub(in super::super) fn run(self, global: &Global) -> u8 {
        let mut command = self.command;
        if let Some(count) = self.nproc_per_node {
            let torchrun = ["torchrun".into(), "--nproc-per-node".into(), count.into()];
            command.splice(0..0, torchrun);
        }
        if environment::is_switched_off() {
            return job::become_command(&command, &mut io::stderr());
        }
        if environment::is_monitored_already() {
            let mut given = std::env::args_os()
                .skip_while(|it| it != "run")
                .skip(1)
                .take_while(|it| it != "--" && Some(it) != command.first());
            if given.any(|it| it.as_encoded_bytes().starts_with(b"--")) {
                say("the options of this run are ignored: an outer run monitors the job");
            }
            return job::become_command(&command, &mut io::stderr());
        }
        if self.kill_after.is_some() && self.on_hang != OnHang::Kill {
            say("--kill-after has no effect without --on-hang kill");
        }
        let timing = Timing::default().scaled(self.time_scale);
        let credentials = Credentials { can_ask: false, ..self.access.credentials() };
        let token_file = credentials.file.clone();
        let outcome = job::run(Options {
            command,
            job: self.job,
            run_dir: self.run_dir,
            journal_size: self.journal_size.unwrap_or(DEFAULT_SIZE),
            report: self.report,
            coordinator: self.coordinator,
            credentials,
            kill: (self.on_hang == OnHang::Kill).then(|| KillAfter::new(self.kill_after, &timing)),
            stall_after: self.stall_after,
            time_scale: self.time_scale,
            digest_above: self.digest_above,
            stacks: self.stacks.into(),
            sources: self.sources.folders,
            nccl: self.nccl.into(),
            monitoring: monitoring::Options { token_file, ..self.monitoring.into() },
            verbosity: global.verbosity(),
            style: global.style(stderr_is_terminal()),
            out: Box::new(io::stderr()),
        });
        outcome.status
    }
}
