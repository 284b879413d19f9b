//! `ddp-doctor coordinator`

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use ddp_doctor_proto::report::{Job, Verdict};
use ddp_doctor_proto::viewer::Update;
use tokio::sync::{mpsc, oneshot};

use super::monitoring::{Monitoring, address};
use super::output::output;
use super::{Global, stderr_is_terminal};
use crate::coordinator::{Begun, Hub, Listeners, serve};
use crate::monitoring::Options;
use crate::monitoring::webhook::Notifier;
use crate::node::UserLog;
use crate::node::follow::{boxes, names, orphans};
use crate::node::launch::job;
use crate::node::sys;
use crate::private;
use crate::report::live::{Live, Verbosity};
use crate::report::text::{self, Style};
use crate::transport::Keys;
use crate::transport::socket::{self, Socket};

/// Capacity of the queue of jobs that begin.
const NEW_JOBS: usize = 256;
/// Time limit for nodes and viewers to disconnect at shutdown.
const MAX_SHUTDOWN: Duration = Duration::from_millis(500);
/// Timeout while no printing is due.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Diagnose jobs of one machine or several until interrupted.
///
/// Prints its address on standard output as soon as it accepts connections. Findings go to standard
/// error, prefixed with the id of the job.
#[derive(Debug, Args)]
pub(super) struct Coordinator {
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
    /// Diagnose the ranks that outlive the killed `run` with this run directory
    #[arg(long, value_name = "RUN_DIR", env = "DDP_DOCTOR_ATTACH")]
    attach: Option<PathBuf>,
    #[command(flatten)]
    monitoring: Monitoring,
}

/// Follows the ranks that outlive the `run` with this run directory.
fn follow(run_dir: &Path, address: &str) -> anyhow::Result<orphans::Reporter> {
    let shown = run_dir.display();
    let followed = orphans::follow(Path::new(private::SHARED_MEMORY), run_dir, address);
    let followed = followed.with_context(|| format!("cannot follow the ranks of {shown}"))?;
    followed.with_context(|| {
        format!("no rank of {shown} is alive; ddp-doctor analyze {shown} shows its diagnosis")
    })
}

/// Listens for processes of this machine, and with keys for other machines. Returns the address in use.
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
    fn keys(&self, global: &Global) -> anyhow::Result<Option<Keys>> {
        if self.listen.ip().is_loopback() {
            return Ok(None);
        }
        let token = global.credentials().token().with_context(|| {
            format!("{} can be reached from other machines, which needs a token", self.listen)
        })?;
        Ok(Some(Keys::of(&token)?))
    }

    pub(super) fn run(self, global: &Global) -> anyhow::Result<u8> {
        let keys = self.keys(global)?;
        if let Some(dir) = self.report_dir.as_ref().filter(|dir| !dir.is_dir()) {
            boxes::private_dir(dir)
                .with_context(|| format!("cannot use report directory {}", dir.display()))?;
        }
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
            Options::from(self.monitoring).start(&hub, &log)
        };
        if let Some(error) = errors.into_iter().next() {
            return Err(error.into());
        }
        runtime.spawn(socket::sweep());
        let serving = runtime.spawn(serve(listeners, job::access(), hub, async {
            stopped_serving.await.ok();
        }));
        let _attached = match &self.attach {
            Some(run_dir) => Some(follow(run_dir, &address.to_string())?),
            None => None,
        };
        let mut screens = Screens {
            report_dir: self.report_dir,
            verbosity: global.verbosity(),
            style: global.style(stderr_is_terminal()),
            notifier: monitoring.notifier(),
            threads: Vec::new(),
        };
        runtime.block_on(async {
            let mut serving = serving;
            tokio::select! {
                ended = &mut serving => ended?.map_err(anyhow::Error::from),
                () = screens.show(begun, stopped) => {
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
        screens.end();
        Ok(0)
    }
}

/// Prints lines that are about no job.
fn log(prints: bool) -> UserLog {
    UserLog::new(move |line| {
        if prints {
            // An error cannot be reported if the terminal rejects output.
            drop(writeln!(io::stderr(), "ddp-doctor: {line}"));
        }
    })
}

/// Output about the jobs, from one thread per job, because a terminal or a disk may be slow.
struct Screens {
    report_dir: Option<PathBuf>,
    verbosity: Verbosity,
    style: Style,
    notifier: Option<Notifier>,
    threads: Vec<JoinHandle<()>>,
}

impl Screens {
    /// Shows every job that begins, until stopped.
    async fn show(&mut self, mut begun: mpsc::Receiver<Begun>, mut stopped: oneshot::Receiver<()>) {
        loop {
            tokio::select! {
                _ = &mut stopped => return,
                job = begun.recv() => match job {
                    Some(job) => self.begin(job),
                    None => return,
                },
            }
        }
    }

    fn begin(&mut self, job: Begun) {
        self.threads.retain(|thread| !thread.is_finished());
        let about =
            Job { id: job.id.clone(), nodes: 1, started_at: Some(job.started), ..Job::default() };
        let name = text::plain(&job.id);
        let file = self.report_dir.as_deref();
        let file = file.and_then(|dir| report_file(dir, &job));
        let out = Box::new(Labelled(name));
        let files = file.clone().into_iter().collect();
        let mut live = Live::new(out, self.style, self.verbosity, about, files);
        if let Some(notifier) = &self.notifier {
            live.notify(notifier.clone());
        }
        live.announce("the job begins");
        let (sender, updates) = channel();
        tokio::spawn(forward(job, sender));
        let thread = std::thread::Builder::new().name("ddp-job".into());
        // Without a thread the job is not shown; viewers are served anyway.
        self.threads.extend(thread.spawn(move || show(live, &updates, file.as_deref())));
    }

    /// Waits until the final output of each job is written.
    fn end(self) {
        for thread in self.threads {
            drop(thread.join());
        }
    }
}

async fn forward(job: Begun, to: Sender<Update>) {
    let mut updates = job.updates;
    while let Some(update) = updates.next().await {
        if to.send(update).is_err() {
            return;
        }
    }
}

/// Shows one job until its updates end.
fn show(mut live: Live, updates: &Receiver<Update>, file: Option<&Path>) {
    let mut has_ended = false;
    loop {
        let timeout =
            live.due().map_or(IDLE_TIMEOUT, |due| due.saturating_duration_since(Instant::now()));
        match updates.recv_timeout(timeout) {
            Ok(update) => {
                has_ended |= update.ended;
                live.apply(update, Instant::now());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if live.due().is_some_and(|due| due <= Instant::now()) {
            live.print();
        }
    }
    let last = live.finish();
    let end = if has_ended { "the job has ended" } else { "the job is no longer monitored" };
    let verdict = match last.verdict {
        Verdict::Insufficient => String::new(),
        verdict => format!(" · verdict: {verdict}"),
    };
    let place = file.map_or_else(String::new, |file| format!(" · {}", file.display()));
    live.announce(&format!("{end}{verdict}{place}"));
}

/// A new report file for the job.
fn report_file(dir: &Path, job: &Begun) -> Option<PathBuf> {
    let name = names::run_dir(&names::file_name(&job.id), job.started);
    (1..1000)
        .map(|number| match number {
            1 => dir.join(format!("{name}.json")),
            _ => dir.join(format!("{name}-{number}.json")),
        })
        // Created at once, because another job may begin in the same second.
        .find(|path| fs::File::create_new(path).is_ok())
}

/// Standard error, with the job id before every message.
struct Labelled(String);

impl Write for Labelled {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        const PREFIX: &[u8] = b"ddp-doctor: ";
        let rest = bytes.strip_prefix(PREFIX);
        // A single write, so that messages about other jobs do not interleave.
        let mut all = PREFIX.to_vec();
        all.extend_from_slice(format!("[{}]", self.0).as_bytes());
        all.push(if rest.is_some() { b' ' } else { b'\n' });
        let block = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        all.extend_from_slice(rest.unwrap_or(block));
        io::stderr().write_all(&all)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
