//! The threads that run beside the command: they forward signals, follow the black boxes, write the journal, print,
//! and run the coordinator.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ddp_doctor_host::boxes::BoxDir;
use ddp_doctor_host::files::Dir;
use ddp_doctor_host::log::UserLog;
use ddp_doctor_host::names;
use ddp_doctor_host::processes;
use ddp_doctor_host::source_files::SourceFolders;
use ddp_doctor_host::sys;
use ddp_doctor_monitoring::{self as monitoring, Monitoring};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};

use crate::follow;
use crate::follow::{Commander, Follower};
use crate::launch::coordinator::{Listening, serve_here};
use crate::launch::descendants::Descendants;
use crate::launch::kill::KillAfter;
use crate::launch::screen::{self, Message, Screen};
use crate::live::Live;
use crate::stack_reader::stack_sampler::{StackSampler, When};
use crate::timing::Timing;
use crate::upload::attach::{self, Concluded, Coordinator, CoordinatorLink};
use crate::upload::journal::Journal;
use crate::upload::outbox::Outbox;

/// Time limit for the conclusion, whichever coordinator makes it.
const MAX_CONCLUSION: Duration = attach::CONCLUSION.saturating_mul(3);
/// Time limit for the last update to viewers of the coordinator in this process.
const VIEWER_SHUTDOWN: Duration = Duration::from_millis(100);

/// Arguments of [`Monitor::start`].
pub(super) struct MonitorParts<'a> {
    pub(super) child: u32,
    pub(super) hello: v1::Hello,
    pub(super) boxes: Option<BoxDir>,
    pub(super) run_dir: Option<&'a Dir>,
    pub(super) journal_size: u64,
    pub(super) activation: Option<PathBuf>,
    pub(super) coordinator: Coordinator,
    pub(super) monitoring: monitoring::Options,
    pub(super) listening: Option<Listening>,
    pub(super) live: Live,
    pub(super) kill: Option<KillAfter>,
    pub(super) stacks: When,
    /// Folder of the ranks' Flight Recorders; `None`: they are not asked.
    pub(super) recorders: Option<PathBuf>,
    pub(super) sources: SourceFolders,
    /// Durations of the node.
    pub(super) timing: Timing,
}

/// The threads that run beside the command.
pub(super) struct Monitor {
    runtime: Option<Runtime>,
    diagnosis: Option<tokio::task::JoinHandle<Concluded>>,
    /// Set to true when the command has ended.
    ending: watch::Sender<bool>,
    follower: Commander,
    following: Option<JoinHandle<io::Result<()>>>,
    screen: Sender<Message>,
    showing: Option<JoinHandle<screen::Shown>>,
    stop_serving: oneshot::Sender<()>,
    monitoring: Monitoring,
}

impl Monitor {
    /// Starts the threads. A failure is logged, and the others start.
    pub(super) fn start(parts: MonitorParts<'_>) -> Self {
        let (screen, messages) = channel();
        let to_screen = screen.clone();
        let log = UserLog::new(move |line| drop(to_screen.send(Message::Print(line.to_owned()))));
        let (follower, commands) = Commander::new();

        let journal = parts.run_dir.and_then(|dir| {
            let journal = Journal::create(dir, parts.journal_size, log.clone());
            journal.map_err(|error| log.print(&error.to_string())).ok()
        });
        let descendants = Descendants::new(parts.child, parts.activation);
        let job = parts.hello.job.clone();
        let run_name = names::run_dir(&job, Timestamp(parts.hello.started_unix_ns));
        let following = parts.boxes.and_then(|boxes| {
            let out = Outbox::new(journal);
            let stacks = StackSampler::new(parts.stacks);
            let it = Follower::new(parts.hello, boxes, out, commands, descendants, stacks)
                .with_sources(parts.sources)
                .with_recorders(parts.recorders);
            spawn("ddp-follow", &log, move || it.run())
        });

        let (child, commander, interrupts) = (parts.child, follower.clone(), screen.clone());
        // This thread runs until the process exits.
        drop(spawn("ddp-signals", &log, move || {
            forward_signals(child, &commander, &interrupts);
        }));
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("ddp-coordinator").enable_all();
        let runtime = builder
            .build()
            .map_err(|error| log.print(&format!("no diagnosis: cannot start a runtime: {error}")))
            .ok();
        let monitoring = runtime
            .as_ref()
            .map(|runtime| {
                let _entered = runtime.enter();
                monitor(parts.monitoring, &parts.coordinator, &log)
            })
            .unwrap_or_default();
        let mut live = parts.live;
        if let Some(notifier) = monitoring.notifier() {
            live.notify(notifier);
        }
        let it = Screen::new(live, parts.child, parts.kill, follower.clone(), run_name);
        let showing = spawn("ddp-screen", &log, move || it.run(&messages));

        let (stop_serving, stop) = oneshot::channel();
        let (ending, has_ended) = watch::channel(false);
        let mut diagnosis = None;
        if let Some(runtime) = &runtime {
            let coordinator = parts.coordinator;
            serve_here(runtime, parts.listening, &coordinator, &log, stop);
            let to_screen = screen.clone();
            let take = move |update| to_screen.send(Message::Update(Box::new(update))).is_ok();
            let it = CoordinatorLink {
                follower: follower.clone(),
                log,
                job,
                take,
                takes_remote: true,
                timing: parts.timing,
                ending: has_ended,
            };
            diagnosis = Some(runtime.spawn(it.run(coordinator)));
        }
        Self {
            runtime,
            diagnosis,
            ending,
            follower,
            following,
            screen,
            showing,
            stop_serving,
            monitoring,
        }
    }

    /// Concludes the diagnosis after the end of the command, and stops the threads.
    pub(super) fn end(self, status: i32, run_dir: Option<&Path>, keeps_all: bool) -> screen::Shown {
        let log = |line: String| drop(self.screen.send(Message::Print(line)));
        // An error means that the screen has ended, which needs no message.
        drop(self.screen.send(Message::CommandEnded));
        self.follower.send(follow::Command::CommandEnded(status));
        if let (Some(runtime), Some(diagnosis), true) =
            (&self.runtime, self.diagnosis, self.following.is_some())
        {
            self.ending.send_replace(true);
            let end = async { tokio::time::timeout(MAX_CONCLUSION, diagnosis).await };
            let concluded = runtime.block_on(end);
            if !matches!(concluded, Ok(Ok(Concluded::Here | Concluded::There))) {
                drop(self.screen.send(Message::NotConcluded));
            }
        }
        self.follower.send(follow::Command::Stop);
        if let Some(Ok(Err(error))) = self.following.map(JoinHandle::join) {
            log(format!("a black box was not saved: {error}"));
        }
        let report = run_dir.map(|dir| dir.join("report.json"));
        drop(self.screen.send(Message::Finish(screen::End { status, report, keeps_all })));
        let shown = self.showing.and_then(|it| it.join().ok()).unwrap_or_default();
        self.stop_serving.send(()).ok();
        if let Some(runtime) = self.runtime {
            runtime.block_on(self.monitoring.end());
            runtime.shutdown_timeout(VIEWER_SHUTDOWN);
        }
        shown
    }
}

/// Starts metrics and webhook of the coordinator, if it is in this process.
fn monitor(options: monitoring::Options, coordinator: &Coordinator, log: &UserLog) -> Monitoring {
    match coordinator {
        Coordinator::Here(hub) => {
            let (monitoring, errors) = options.start(hub, log);
            errors.iter().for_each(|it| log.print(&it.to_string()));
            monitoring
        }
        Coordinator::There(address) => {
            if !options.is_empty() {
                log.print(&format!(
                    "--metrics and --webhook have no effect here: the coordinator is at {address}"
                ));
            }
            Monitoring::default()
        }
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    log: &UserLog,
    run: impl FnOnce() -> T + Send + 'static,
) -> Option<JoinHandle<T>> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map_err(|error| log.print(&format!("cannot start a thread: {error}"))).ok()
}

/// Forwards signals that were sent to this process alone. Stops with the job, and reports when the
/// job is continued.
fn forward_signals(child: u32, follower: &Commander, screen: &Sender<Message>) {
    loop {
        let Some(arrived) = sys::wait_for_signal() else {
            continue;
        };
        if let libc::SIGINT | libc::SIGQUIT | libc::SIGTERM | libc::SIGHUP = arrived.signal {
            follower.send(follow::Command::Interrupted(arrived.signal));
        }
        if arrived.signal == libc::SIGINT {
            // Fails once the job has ended.
            screen.send(Message::Interrupted).ok();
        }
        if arrived.by_process {
            // An error means that the command has ended.
            drop(processes::signal_child(child, arrived.signal));
        }
        match arrived.signal {
            libc::SIGTSTP => sys::stop_self(),
            libc::SIGCONT => {
                follower.send(follow::Command::Continued);
            }
            _ => {}
        }
    }
}
