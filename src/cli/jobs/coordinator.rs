//! `ddp-doctor coordinator`

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use tokio::sync::{mpsc, oneshot};

use super::job_output::JobOutput;
use crate::cli::options::{Access, Global, Monitoring, Sources, address, stderr_is_terminal};
use crate::cli::output::{output, say, word};
use crate::coordinator::{Hub, Listeners, serve};
use crate::host::files::Dir;
use crate::host::log::UserLog;
use crate::host::private;
use crate::host::sys;
use crate::monitoring::Options;
use crate::node::follow::orphans;
use crate::node::launch::coordinator::access;
use crate::transport::Keys;
use crate::transport::socket::{self, Socket};

/// Capacity of the queue of jobs that begin.
const NEW_JOBS: usize = 256;
/// Time limit for nodes and viewers to disconnect at shutdown.
const MAX_SHUTDOWN: Duration = Duration::from_millis(500);

/// Diagnose jobs on one or several machines until interrupted.
///
/// Prints its address on standard output as soon as it accepts connections. Findings go to standard
/// error, prefixed with the id of the job.
#[derive(Debug, Args)]
pub(in super::super) struct Coordinator {
    /// Address to listen on; port 0 picks a free port
    ///
    /// A loopback address can be reached by this user's processes on this machine. Any other address, such as
    /// 0.0.0.0:7077, can be reached from other machines by those who know the token.
    #[arg(
        long,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:7077",
        value_parser = address,
        env = "DDP_DOCTOR_LISTEN"
    )]
    listen: SocketAddr,
    /// Write the report of each job to DIR/<job>-<time>.json, updated at every change
    #[arg(long, value_name = "DIR", env = "DDP_DOCTOR_REPORT_DIR")]
    report_dir: Option<PathBuf>,
    /// Continue to diagnose the ranks that outlived a killed `run`, given its run directory
    #[arg(long, value_name = "RUN_DIR", env = "DDP_DOCTOR_ATTACH")]
    attach: Option<PathBuf>,
    #[command(flatten)]
    monitoring: Monitoring,
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    access: Access,
}

/// Follows the ranks that outlive the `run` with this run directory.
fn follow(run_dir: &Path, address: &str) -> anyhow::Result<orphans::Reporter> {
    let shown = word(run_dir);
    let followed = orphans::follow(Path::new(private::SHARED_MEMORY), run_dir, address)
        .with_context(|| format!("cannot follow the ranks of {shown}"))?;
    followed.with_context(|| {
        format!("no rank of {shown} is alive; ddp-doctor analyze {shown} shows its diagnosis")
    })
}

/// Listens for processes of this machine, and with keys for other machines. Returns the address in use.
/// Opens the directory of reports, and creates it if it does not exist.
fn report_dir(path: &Path) -> anyhow::Result<Dir> {
    let opened = match Dir::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Dir::ensure_own(path),
        opened => opened,
    };
    opened.with_context(|| format!("cannot use report directory {}", path.display()))
}

fn listen(address: SocketAddr, keys: Option<Keys>) -> io::Result<(Socket, Listeners, SocketAddr)> {
    let Some(keys) = keys else {
        let (socket, local, address) = Socket::at(address)?;
        let local = Some(local);
        return Ok((socket, Listeners { local, remote: None }, address));
    };
    let remote = TcpListener::bind(address)?;
    let address = remote.local_addr()?;
    let (socket, local) = Socket::named(SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())))?;
    let listeners = Listeners { local: Some(local), remote: Some((remote, keys)) };
    Ok((socket, listeners, address))
}

impl Coordinator {
    /// The keys for other machines, if the address can be reached from them.
    fn keys(&self) -> anyhow::Result<Option<Keys>> {
        if self.listen.ip().is_loopback() {
            return Ok(None);
        }
        let token = self.access.credentials().token().with_context(|| {
            format!("{} can be reached from other machines, which needs a token", self.listen)
        })?;
        Ok(Some(Keys::derive(&token)?))
    }

    pub(in super::super) fn run(self, global: &Global) -> anyhow::Result<u8> {
        let keys = self.keys()?;
        let report_dir = self.report_dir.as_deref().map(report_dir).transpose()?;
        sys::block_interrupts();
        let (socket, listeners, address) = listen(self.listen, keys)
            .with_context(|| format!("cannot listen on {}", self.listen))?;
        writeln!(output(), "{address}")?;
        output().flush()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            sys::wait_for_interrupt();
            stop.send(()).ok();
        });
        let (begin, begun) = mpsc::channel(NEW_JOBS);
        let (stop_serving, stopped_serving) = oneshot::channel::<()>();
        let hub = Arc::new(Hub::announcing(begin));
        let log = log(global.quiet < 2);
        let (monitoring, errors) = {
            let _entered = runtime.enter();
            let token_file = self.access.credentials().file;
            Options { token_file, ..self.monitoring.into() }.start(&hub, &log)
        };
        if let Some(error) = errors.into_iter().next() {
            return Err(error.into());
        }
        runtime.spawn(socket::sweep());
        let serving = runtime.spawn(serve(listeners, access(), hub, log, async {
            stopped_serving.await.ok();
        }));
        let _attached = match &self.attach {
            Some(run_dir) => Some(follow(run_dir, &address.to_string())?),
            None => None,
        };
        let mut output = JobOutput::new(
            report_dir,
            global.verbosity(),
            global.style(stderr_is_terminal()),
            monitoring.notifier(),
            self.sources.of_others(),
        );
        runtime.block_on(async {
            let mut serving = serving;
            tokio::select! {
                ended = &mut serving => ended?.map_err(anyhow::Error::from),
                () = output.show(begun, stopped) => {
                    stop_serving.send(()).ok();
                    // Streams last as long as jobs do: do not wait for them beyond the limit.
                    drop(tokio::time::timeout(MAX_SHUTDOWN, serving).await);
                    Ok(())
                }
            }
        })?;
        // A thread that shows a job ends when its updates end, and then sends the last messages.
        runtime.block_on(monitoring.end());
        runtime.shutdown_timeout(MAX_SHUTDOWN);
        drop(socket);
        output.end();
        Ok(0)
    }
}

/// Prints lines that are about no job.
fn log(prints: bool) -> UserLog {
    UserLog::new(move |line| {
        if prints {
            say(line);
        }
    })
}
