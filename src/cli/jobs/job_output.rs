//! The output of a coordinator about its jobs: messages on standard error, and one report file for each job.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::{Job, Verdict};
use ddp_doctor_proto::viewer::Update;
use tokio::sync::{mpsc, oneshot};

use crate::coordinator::Begun;
use crate::host::files::Dir;
use crate::host::names;
use crate::host::source_files::SourceFolders;
use crate::monitoring::webhook::Notifier;
use crate::node::live::{Live, ReportFile, Verbosity};
use crate::report::text::{self, Style};

/// Timeout while no printing is due.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Output about the jobs, from one thread per job, because a terminal or a disk may be slow.
pub(super) struct JobOutput {
    /// The directory that the path led to at the beginning.
    report_dir: Option<Dir>,
    verbosity: Verbosity,
    style: Style,
    notifier: Option<Notifier>,
    /// Where source lines are read.
    sources: SourceFolders,
    threads: Vec<JoinHandle<()>>,
}

impl JobOutput {
    pub(super) const fn new(
        report_dir: Option<Dir>,
        verbosity: Verbosity,
        style: Style,
        notifier: Option<Notifier>,
        sources: SourceFolders,
    ) -> Self {
        Self { report_dir, verbosity, style, notifier, sources, threads: Vec::new() }
    }

    /// Shows every job that begins, until stopped.
    pub(super) async fn show(
        &mut self,
        mut begun: mpsc::Receiver<Begun>,
        mut stopped: oneshot::Receiver<()>,
    ) {
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
        let dir = self.report_dir.as_ref();
        let created = dir.and_then(|dir| Some((dir.clone(), report_file(dir, &job)?)));
        let file = created.as_ref().map(|(dir, name)| dir.path().join(name));
        let out = Box::new(Labeled(name));
        let files = created.iter().map(|(dir, name)| ReportFile::published_in(dir.clone(), name));
        let mut live = Live::new(out, self.style, self.verbosity, about, files.collect())
            .with_sources(self.sources.clone());
        if let Some(notifier) = &self.notifier {
            live.notify(notifier.clone());
        }
        live.announce("the job has started");
        let (sender, updates) = channel();
        tokio::spawn(forward(job, sender));
        let thread = std::thread::Builder::new().name("ddp-job".into());
        // Without a thread the job is not shown; viewers are served anyway.
        self.threads.extend(thread.spawn(move || show(live, &updates, file.as_deref())));
    }

    /// Waits until the final output of each job is written.
    pub(super) fn end(self) {
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

/// Creates a report file for the job. Returns its name.
fn report_file(dir: &Dir, job: &Begun) -> Option<OsString> {
    let name = names::run_dir(&names::file_name(&job.id), job.started);
    (1..1000)
        .map(|number| match number {
            1 => format!("{name}.json").into(),
            _ => format!("{name}-{number}.json").into(),
        })
        // Created at once, because another job may begin in the same second.
        .find(|name: &OsString| dir.new_file(name).is_ok())
}

/// Standard error, with the job id before every message.
struct Labeled(String);

impl Write for Labeled {
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
