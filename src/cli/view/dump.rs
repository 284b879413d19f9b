//! `ddp-doctor dump`

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use ddp_doctor_proto::dump::Dump;
use ddp_doctor_proto::v1;
use v1::viewer_service_client::ViewerServiceClient;

use super::target::{self, Live, Orphans};
use crate::attach::sample;
use crate::cli::exit_status::INSUFFICIENT;
use crate::cli::options::{Access, Global, Sources};
use crate::cli::output::{output, say};
use crate::coordinator::MAX_MESSAGE;
use crate::evidence::stacks::decode;
use crate::host::proc;
use crate::host::source_files::SourceFolders;
use crate::host::sys;
use crate::node::follow::orphans::Orphan;
use crate::node::source_reader;
use crate::node::stack_reader::native::FunctionCache;
use crate::report::{dump, json};
use crate::transport::{self, document};

/// Time limit for the coordinator's answer: longer than its nodes have.
const MAX_ANSWER: Duration = Duration::from_secs(30);
/// Maximum size of a dump, in bytes: 32 KiB for each of 16 384 ranks.
const MAX_DUMP: usize = 512 << 20;

/// Print the current stack of every rank of a running job.
///
/// Ranks with equal stacks are shown together, outliers first. The memory of each rank is read from
/// outside: no rank is stopped, and no code runs in it.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 stacks printed, 2 usage error, 3 no such job or process, or no answer from \
                  the coordinator, 4 no stack could be read."
)]
pub(in super::super) struct ShowStacks {
    /// Run directory or HOST:PORT of a coordinator [default: this user's newest run]
    #[arg(value_name = "TARGET")]
    target: Option<String>,
    /// Id of the job at that coordinator [default: its newest job]
    #[arg(long, value_name = "ID", env = "DDP_DOCTOR_JOB")]
    job: Option<String>,
    /// Print the stacks of this process; it need not belong to a job
    #[arg(long, value_name = "PID", conflicts_with = "target", env = "DDP_DOCTOR_PID")]
    pid: Option<u32>,
    /// Print all threads of each rank, not only the main thread
    #[arg(long, env = "DDP_DOCTOR_ALL_THREADS")]
    all_threads: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text", env = "DDP_DOCTOR_FORMAT")]
    format: Format,
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    access: Access,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// Plain text for a terminal
    Text,
    /// All fields of all threads
    Json,
    /// Markdown, for issues and chats
    Markdown,
}

impl ShowStacks {
    pub(in super::super) fn run(self, global: &Global) -> anyhow::Result<u8> {
        let dump = match self.pid {
            Some(pid) => of_process(pid)?,
            None => match Orphans::find(self.target.as_deref()) {
                Some(orphans) => {
                    say(&orphans);
                    of_orphans(&orphans.ranks)
                }
                None => {
                    let mut live = Live::find(self.target.as_deref(), &self.access.credentials())?;
                    live.state_other_owner();
                    if let Some(job) = &self.job {
                        live.job.clone_from(job);
                    }
                    of_job(&live)?
                }
            },
        };
        let sources = &self.source_folders();
        // For a single process all threads are shown: there is nothing to compare it with.
        let all_threads = self.all_threads || self.pid.is_some();
        let out = &mut output();
        match self.format {
            Format::Text => {
                let style = global.style(io::stdout().is_terminal());
                dump::text(out, &dump, style, all_threads, sources)?;
            }
            Format::Json => out.write_all(json::text(&dump)?.as_bytes())?,
            Format::Markdown => dump::markdown(out, &dump, all_threads, sources)?,
        }
        out.flush()?;
        let mut threads = dump.processes.iter().flat_map(|process| &process.threads);
        let seen = threads.any(|it| !it.python.is_empty() || !it.native.is_empty());
        Ok(if seen { 0 } else { INSUFFICIENT })
    }
}

impl ShowStacks {
    /// Where source lines are read: below the folders of a process or a run of this user.
    fn source_folders(&self) -> SourceFolders {
        let Some(pid) = self.pid else {
            let run_dir = target::run_dir(self.target.as_deref(), self.job.as_deref());
            return self.sources.of_job(run_dir);
        };
        source_reader::sources_of(pid).and_given(&self.sources.folders)
    }
}

fn of_process(pid: u32) -> anyhow::Result<Dump> {
    let Ok(stat) = proc::Stat::read(pid) else {
        bail!("process {pid} does not exist");
    };
    let stacks = sample::capture(pid, stat.start_ticks, &FunctionCache::default());
    let has_frames = stacks.threads.iter().any(|it| !it.python.is_empty() || !it.native.is_empty());
    if stacks.threads.is_empty() || (!has_frames && !stacks.trouble.is_empty()) {
        bail!("process {pid}: {}", stacks.trouble);
    }
    Ok(dump::of_processes(&sys::host_name(), vec![(None, pid, decode(&stacks))]))
}

/// Stacks of ranks that outlive their `run`.
fn of_orphans(ranks: &[Orphan]) -> Dump {
    let known = FunctionCache::default();
    let take = |it: &Orphan| {
        let stacks = sample::capture(it.pid, it.start_ticks, &known);
        (Some(it.rank), it.pid, decode(&stacks))
    };
    dump::of_processes(&sys::host_name(), ranks.iter().map(take).collect())
}

fn of_job(live: &Live) -> anyhow::Result<Dump> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let answer = tokio::time::timeout(MAX_ANSWER, request_dump(live)).await;
        answer.with_context(|| live.no_answer(MAX_ANSWER))?
    })
}

async fn request_dump(live: &Live) -> anyhow::Result<Dump> {
    let channel = transport::connect(&live.address).await?;
    let mut client = ViewerServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
    let request = v1::DumpRequest { job: live.job.clone() };
    let refused = |status: tonic::Status| match status.code() {
        tonic::Code::Unimplemented => anyhow::anyhow!(
            "the coordinator at {} is an older version that cannot capture stacks; restart it with \
             this version",
            live.address
        ),
        _ => anyhow::anyhow!("coordinator {}: {}", live.address, status.message()),
    };
    let mut stream = client.dump(request).await.map_err(refused)?.into_inner();
    let first = stream
        .message()
        .await
        .map_err(refused)?
        .with_context(|| format!("the coordinator at {} sent nothing", live.address))?;
    let mut dump: Dump = document::decode(&first).map_err(refused)?;
    let mut left = MAX_DUMP;
    while let Some(process) = stream.message().await.map_err(refused)? {
        take(&mut left, &process)
            .with_context(|| format!("the coordinator at {}", live.address))?;
        dump.processes.push(document::decode(&process).map_err(refused)?);
    }
    Ok(dump::grouped(dump))
}

/// Takes the bytes of a process from those that are left: another user may have made the coordinator.
fn take(left: &mut usize, process: &v1::Document) -> anyhow::Result<()> {
    let rest = left.checked_sub(process.json.len().max(1));
    *left = rest.with_context(|| format!("it sent more than {} MiB of stacks", MAX_DUMP >> 20))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_of_a_coordinator_is_limited() {
        let process = |bytes| v1::Document { json: vec![b' '; bytes] };
        let mut left = 10;
        assert!(take(&mut left, &process(4)).is_ok() && take(&mut left, &process(6)).is_ok());
        let error = take(&mut left, &process(0)).unwrap_err().to_string();
        assert!(error.contains("more than 512 MiB of stacks"), "{error}");
    }
}
