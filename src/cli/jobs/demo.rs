//! `ddp-doctor demo`

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use crate::cli::options::Global;
use crate::cli::output::output;
use crate::demo::{self, DEMOS, Demo};
use crate::diagnosis::timing::TimeScale;
use crate::node::launch::job::{self, Options};
use crate::node::launch::kill::KillAfter;
use crate::node::launch::nccl;
use crate::node::sample::environment;
use crate::node::stack_reader::stack_sampler::When;
use crate::node::timing::Timing;
use crate::node::upload::journal::DEFAULT_SIZE;
use crate::transport::Credentials;

/// How long a demonstration may hang before it is killed.
const KILL_AFTER: Duration = Duration::from_millis(1500);
/// Stall limit of a demonstration, which is short.
const STALL_AFTER: Duration = Duration::from_secs(10);

/// Run a small job with a planted fault and diagnose it.
///
/// Needs neither a GPU nor PyTorch. Without NAME, lists the demonstrations.
#[derive(Debug, Args)]
pub(in super::super) struct ShowDemo {
    /// Name of the demonstration
    name: Option<String>,
}

/// One process of a demonstration.
#[derive(Debug, Args)]
pub(in super::super) struct DemoRank {
    name: String,
}

impl ShowDemo {
    pub(in super::super) fn run(self, global: &Global) -> anyhow::Result<u8> {
        let Some(name) = self.name else {
            let mut out = output();
            for demo in &DEMOS {
                writeln!(out, "{:<12} {}", demo.name, demo.about)?;
            }
            return Ok(0);
        };
        let demo = find(&name)?;
        if environment::is_switched_off() {
            bail!(
                "capture is switched off by {0}=0; unset {0} to run a demonstration",
                environment::SWITCH
            );
        }
        let program = std::env::current_exe().context("cannot determine the path of ddp-doctor")?;
        let command: Vec<OsString> = vec![program.into(), "demo-rank".into(), name.into()];
        writeln!(output(), "{} ranks: {}", demo::RANKS, demo.about)?;
        let outcome = job::run(Options {
            credentials: Credentials::default(),
            command,
            job: None,
            run_dir: None,
            journal_size: DEFAULT_SIZE,
            report: None,
            coordinator: None,
            kill: Some(KillAfter::new(Some(KILL_AFTER), &Timing::default())),
            stall_after: Some(STALL_AFTER),
            time_scale: TimeScale::default(),
            digest_above: None,
            stacks: When::default(),
            sources: Vec::new(),
            monitoring: Default::default(),
            nccl: nccl::Nccl::Never,
            verbosity: global.verbosity(),
            style: global.style(io::stdout().is_terminal()),
            out: Box::new(io::stdout()),
        });
        let findings = outcome.report.map(|report| report.findings).unwrap_or_default();
        let leading = findings.first().map(|finding| finding.code.as_str());
        if leading != demo.code {
            let word = |code: Option<&str>| code.unwrap_or("nothing").to_owned();
            bail!("expected {}, found {}", word(demo.code), word(leading));
        }
        Ok(0)
    }
}

impl DemoRank {
    pub(in super::super) fn run(self) -> anyhow::Result<u8> {
        demo::rank_or_launcher(find(&self.name)?)
    }
}

fn find(name: &str) -> anyhow::Result<&'static Demo> {
    let names = || DEMOS.iter().map(|demo| demo.name).collect::<Vec<_>>().join(", ");
    demo::find(name)
        .with_context(|| format!("unknown demonstration {name:?}; available: {}", names()))
}
