//! `run`: starts the command, with everything around it that watches, and ends with its status.
//!
//! To the command it is as if we were not there: it has our descriptors, our terminal and our
//! process group. What the terminal sends (Ctrl-C, Ctrl-Z, hang-up) reaches it directly; what is
//! sent to us alone is handed on.
//!
//! Threads: this one waits for the command; one hands on signals; one follows the black boxes
//! ([`crate::node::follow`]); one writes the journal; one prints ([`crate::node::launch::screen`]); one runs the
//! coordinator and the connection to it. The command is started before any of them.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ddp_doctor_proto::report::{Job, Report, Timestamp};
use ddp_doctor_proto::{VERSION, v1};
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};

use crate::coordinator::{Access, Hub, serve};
use crate::diagnosis::timing::TimeScale;
use crate::evidence::settings;
use crate::node::Say;
use crate::node::follow::boxes::{BoxDir, NCCL_FOLDER};
use crate::node::follow::names;
use crate::node::follow::{self, boxes};
use crate::node::follow::{Commander, Follower};
use crate::node::launch::descendants::Descendants;
use crate::node::launch::kill::Patience;
use crate::node::launch::rundir::RunDir;
use crate::node::launch::screen::{self, Message, Screen};
use crate::node::launch::shell_status;
use crate::node::sample::environment::{self, Environment, NcclLoading};
use crate::node::sample::proc;
use crate::node::ship::attach::{self, Concluded, Coordinator, Diagnosis};
use crate::node::ship::outbox::{Journal, Outbox};
use crate::node::ship::socket::{self, Socket};
use crate::node::stacks::taker::{Taker, When};
use crate::node::sys::{self, PidFd, Signals};
use crate::node::timing::Timing;
use crate::report::live::{Live, Verbosity};
use crate::report::text::Style;

/// Status of a run that was ended because it hung.
pub const KILLED_STATUS: u8 = 75;
/// Status of a run whose command ended in an unknown way.
const UNKNOWN_STATUS: i32 = 128;
/// Time limit for the conclusion, whichever coordinator makes it.
const MAX_CONCLUSION: Duration = attach::CONCLUSION.saturating_mul(3);
/// How long viewers of our own coordinator have to take their last update.
const GOODBYE: Duration = Duration::from_millis(100);

/// What `run` is asked to do.
pub struct Options {
    /// The command and its arguments; not empty.
    pub command: Vec<OsString>,
    /// Id of the job; `None`: a new one.
    pub job: Option<String>,
    /// Where evidence and report go; `None`: a directory of its own below the working directory.
    pub run_dir: Option<PathBuf>,
    /// Another place for the report.
    pub report: Option<PathBuf>,
    /// Address of a coordinator; `None`: our own.
    pub coordinator: Option<String>,
    /// Ends a job that hangs for that long; `None`: never.
    pub kill: Option<Patience>,
    /// A wait that nothing proves hopeless becomes a finding after this long; `None`: the default.
    pub stall_after: Option<Duration>,
    /// Factor of all other durations that decide when something is concluded.
    pub time_scale: TimeScale,
    /// When stacks are taken.
    pub stacks: When,
    /// Whose calls of NCCL are seen.
    pub nccl: Nccl,
    /// How much is printed.
    pub verbosity: Verbosity,
    /// How it looks.
    pub style: Style,
    /// Where it goes.
    pub out: Box<dyn Write + Send>,
}

/// Whose calls of NCCL are seen, other than by PyTorch's hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nccl {
    /// Every process's, where this node has what NCCL runs on.
    Auto,
    /// Every process's.
    Always,
    /// Every process's, also of those that load it by its name.
    Soname,
    /// Every process's whose NCCL loads a profiler.
    Profiler,
    /// Nobody's.
    Never,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// What we exit with.
    pub status: u8,
    /// The last diagnosis; `None` where the command could not be started.
    pub report: Option<Report>,
}

/// Runs the command to its end.
#[must_use]
pub fn run(options: Options) -> Outcome {
    let job = options
        .job
        .map_or_else(names::new_job, |job| names::file_name(&job));
    let started = Timestamp::now();
    let asked_run_dir = options.run_dir.clone();
    let shared_memory = Path::new(boxes::SHARED_MEMORY);
    let run_dir = RunDir::make(shared_memory, options.run_dir, &job, started);
    let mut files: Vec<PathBuf> = options.report.into_iter().collect();
    files.extend(
        run_dir
            .as_ref()
            .ok()
            .map(|dir| dir.path.join("report.json")),
    );
    let about = Job {
        id: job.clone(),
        nodes: 1,
        started_at: Some(started),
        ..Job::default()
    };
    let mut live = Live::new(options.out, options.style, options.verbosity, about, files);
    if let Err(error) = &run_dir {
        let dir = asked_run_dir.unwrap_or_else(|| PathBuf::from(names::RUNS));
        live.say(&format!(
            "nothing is kept: no run directory in {}: {error}",
            dir.display()
        ));
    }
    if let Ok(RunDir {
        remark: Some(remark),
        ..
    }) = &run_dir
    {
        live.say(remark);
    }
    let run_dir = run_dir.ok().map(|dir| dir.path);
    let boxes = BoxDir::create(shared_memory, &job, run_dir.as_deref());
    if let Err(error) = &boxes {
        live.say(&format!(
            "no rank can be watched: there is no room for black boxes: {error}"
        ));
    }
    let (coordinator, listener) = place_of_diagnosis(options.coordinator, &mut live);
    let address = match &coordinator {
        Some(Coordinator::There(address)) => Some(address.clone()),
        _ => listener.as_ref().map(|(socket, _)| socket.address()),
    };
    let environment = boxes.as_ref().ok().map(|boxes| Environment {
        job: job.clone(),
        box_dir: boxes.path().to_owned(),
        run_dir: run_dir.clone(),
        coordinator: address.clone(),
        library: environment::find_library(&mut |why| live.say(why)),
        python: environment::find_python(&mut |why| live.say(why)),
        nccl: sees_nccl(options.nccl, boxes, &mut live),
    });
    if let Some(missing) = environment.as_ref().and_then(Environment::missing) {
        live.say(&missing);
    }
    let connect = address.as_deref().unwrap_or("nowhere");
    let kept = run_dir
        .as_ref()
        .map_or_else(|| "nothing is kept".into(), |dir| dir.display().to_string());
    live.announce(&format!(
        "watching job {job} · coordinator {connect} · {kept}"
    ));

    let signals = Signals::take_over();
    let mut child = match start(&options.command, environment.as_ref(), signals) {
        Ok(child) => child,
        Err(error) => {
            live.say(&format!("{}: {error}", options.command[0].display()));
            if let Ok(boxes) = boxes {
                drop(boxes.remove());
            }
            // There was no job: what was made for it goes, unless it holds something already.
            if let Some(dir) = run_dir {
                drop(std::fs::remove_dir(dir.join("boxes")));
                drop(std::fs::remove_dir(dir));
            }
            return Outcome {
                status: status_of_failure(&error),
                report: None,
            };
        }
    };
    let hello = v1::Hello {
        job,
        attempt: names::attempt(),
        started_unix_ns: started.0,
        host: sys::host_name(),
        boot_id: proc::boot_id(),
        tool_version: VERSION.into(),
        command: options
            .command
            .iter()
            .map(|word| word.display().to_string())
            .collect(),
        stall_after_s: settings::stall_after_s(options.stall_after),
        // The launcher that gives it a name is yet to be started.
        launch: String::new(),
        time_scale: Some(options.time_scale.factor()),
    };
    if let Some(dir) = &run_dir
        && let Err(error) = names::describe(dir, &hello, address.as_deref())
    {
        live.say(&format!("run.json cannot be written: {error}"));
    }
    let watch = Watch::start(WatchParts {
        child: child.id(),
        hello,
        boxes: boxes.ok(),
        run_dir: run_dir.as_deref(),
        activation: environment.as_ref().and_then(Environment::activation),
        coordinator,
        listener,
        live,
        kill: options.kill,
        stacks: options.stacks,
        timing: Timing::default().scaled(options.time_scale),
    });
    let exit = sys::wait_without_reaping(child.id()).unwrap_or_default();
    let command_status = shell_status(exit).unwrap_or(UNKNOWN_STATUS);
    let ended = watch.end(command_status, run_dir.as_deref());
    // Reaped last: until then `/proc` tells how it ended.
    drop(child.wait());
    let status = if ended.killed {
        KILLED_STATUS
    } else {
        command_status as u8
    };
    Outcome {
        status,
        report: ended.report,
    }
}

/// Becomes the command, without a trace of us. Returns only if that cannot be, with the status.
#[must_use]
pub fn become_command(command: &[OsString], out: &mut dyn Write) -> u8 {
    use std::os::unix::process::CommandExt;
    let error = Command::new(&command[0]).args(&command[1..]).exec();
    drop(writeln!(
        out,
        "ddp-doctor: {}: {error}",
        command[0].display()
    ));
    status_of_failure(&error)
}

/// What sees calls of NCCL in the job's processes. What has to be made for it goes with the boxes.
fn sees_nccl(when: Nccl, boxes: &BoxDir, live: &mut Live) -> Option<NcclLoading> {
    let mut refused = |why: &str| live.say(why);
    let sees = match when {
        Nccl::Auto => {
            let has_driver = environment::has_nvidia_driver();
            let found = has_driver.then(|| environment::find_nccl(&mut refused));
            return found.flatten().map(NcclLoading::Preloaded);
        }
        Nccl::Never => return None,
        Nccl::Always => environment::find_nccl(&mut refused).map(NcclLoading::Preloaded),
        Nccl::Profiler => environment::find_nccl(&mut refused).map(NcclLoading::Profiler),
        Nccl::Soname => environment::find_nccl_by_name(&mut refused).and_then(|library| {
            let folder = boxes.path().join(NCCL_FOLDER);
            let made = environment::name_nccl(&folder, &library);
            made.is_ok()
                .then_some(NcclLoading::Soname { library, folder })
        }),
    };
    if sees.is_none() {
        let library = match when {
            Nccl::Soname => "libddp_doctor_nccl_soname.so",
            _ => "libddp_doctor_nccl.so",
        };
        live.say(&format!(
            "calls of NCCL are not seen: {library} is not beside ddp-doctor, or in a place whose name has \
             a space or a colon (DDP_DOCTOR_NCCL_LIBRARY names libddp_doctor_nccl.so)",
        ));
    }
    sees
}

/// The coordinator that was asked for, or our own and where it listens.
fn place_of_diagnosis(
    asked: Option<String>,
    live: &mut Live,
) -> (Option<Coordinator>, Option<(Socket, UnixListener)>) {
    if let Some(address) = asked {
        return match socket::check(&address) {
            Ok(()) => (Some(Coordinator::There(address)), None),
            Err(error) => {
                live.say(&format!("{error}; the diagnosis is made here"));
                place_of_diagnosis(None, live)
            }
        };
    }
    let listener = Socket::unnamed();
    if let Err(error) = &listener {
        live.say(&format!(
            "`ddp-doctor watch`, `status` and `dump` cannot connect to this run: no socket: {error}"
        ));
    }
    (Some(Coordinator::Here(Arc::new(Hub::new()))), listener.ok())
}

fn start(
    command: &[OsString],
    environment: Option<&Environment>,
    signals: Signals,
) -> io::Result<Child> {
    let mut start = Command::new(&command[0]);
    start.args(&command[1..]);
    if let Some(environment) = environment {
        start.envs(environment.variables());
    }
    signals.restore_in(&mut start);
    start.spawn()
}

/// 127: there is no such command; 126: there is, but it cannot be run.
fn status_of_failure(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    }
}

/// What [`Watch::start`] needs.
struct WatchParts<'a> {
    child: u32,
    hello: v1::Hello,
    boxes: Option<BoxDir>,
    run_dir: Option<&'a Path>,
    activation: Option<PathBuf>,
    coordinator: Option<Coordinator>,
    listener: Option<(Socket, UnixListener)>,
    live: Live,
    kill: Option<Patience>,
    stacks: When,
    /// Maximum time without a coordinator before the diagnosis is made in this process.
    timing: Timing,
}

/// Everything that runs beside the command.
struct Watch {
    runtime: Option<Runtime>,
    diagnosis: Option<tokio::task::JoinHandle<Concluded>>,
    /// Set when the command has ended.
    ending: watch::Sender<bool>,
    follower: Commander,
    following: Option<JoinHandle<io::Result<()>>>,
    screen: Sender<Message>,
    showing: Option<JoinHandle<screen::Shown>>,
    stop_serving: oneshot::Sender<()>,
}

impl Watch {
    /// Starts the threads. Whatever cannot be started is said and left out.
    fn start(parts: WatchParts<'_>) -> Self {
        let (screen, messages) = channel();
        let to_screen = screen.clone();
        let say = Say::new(move |line| drop(to_screen.send(Message::Say(line.to_owned()))));
        let (follower, commands) = Commander::new();

        let journal = parts.run_dir.and_then(|dir| {
            let journal = Journal::create(&dir.join("journal.ddpj"), say.clone());
            journal.map_err(|error| say.say(&error.to_string())).ok()
        });
        let descendants = Descendants::new(parts.child, parts.activation);
        let job = parts.hello.job.clone();
        let following = parts.boxes.and_then(|boxes| {
            let out = Outbox::new(journal);
            let stacks = Taker::new(parts.stacks);
            let it = Follower::new(parts.hello, boxes, out, commands, descendants, stacks);
            spawn("ddp-follow", &say, move || it.run())
        });

        let child = PidFd::open(parts.child).ok();
        let tell = follower.clone();
        // It waits for signals until we exit.
        drop(spawn("ddp-signals", &say, move || {
            hand_on_signals(child.as_ref(), &tell);
        }));
        let it = Screen::new(parts.live, parts.child, parts.kill, follower.clone());
        let showing = spawn("ddp-screen", &say, move || it.run(&messages));

        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder
            .worker_threads(1)
            .thread_name("ddp-coordinator")
            .enable_all();
        let runtime = builder.build();
        let runtime = runtime
            .map_err(|error| say.say(&format!("no diagnosis: {error}")))
            .ok();
        let (stop_serving, stop) = oneshot::channel();
        let (ending, has_ended) = watch::channel(false);
        let mut diagnosis = None;
        if let (Some(runtime), Some(coordinator)) = (&runtime, parts.coordinator) {
            if let (Some((socket, listener)), Coordinator::Here(hub)) =
                (parts.listener, &coordinator)
            {
                let (hub, say) = (hub.clone(), say.clone());
                runtime.spawn(socket::sweep());
                runtime.spawn(async move {
                    let _removed_at_the_end = socket;
                    let stop = async { drop(stop.await) };
                    if let Err(error) = serve(listener, access(), hub, stop).await {
                        say.say(&error.to_string());
                    }
                });
            }
            let to_screen = screen.clone();
            let take = move |update| to_screen.send(Message::Update(Box::new(update))).is_ok();
            let it = Diagnosis {
                follower: follower.clone(),
                say,
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
        }
    }

    /// The command has ended: concludes, and puts everything away.
    fn end(self, status: i32, run_dir: Option<&Path>) -> screen::Shown {
        let say = |line: String| drop(self.screen.send(Message::Say(line)));
        // Whoever is not there any more needs no message.
        drop(self.screen.send(Message::CommandEnded));
        self.follower.tell(follow::Command::CommandEnded(status));
        if let (Some(runtime), Some(diagnosis), true) =
            (&self.runtime, self.diagnosis, self.following.is_some())
        {
            self.ending.send_replace(true);
            let end = async { tokio::time::timeout(MAX_CONCLUSION, diagnosis).await };
            let concluded = runtime.block_on(end);
            if !matches!(concluded, Ok(Ok(Concluded::Here | Concluded::There))) {
                drop(self.screen.send(Message::CutOff));
            }
        }
        self.follower.tell(follow::Command::Stop);
        if let Some(Ok(Err(error))) = self.following.map(JoinHandle::join) {
            say(format!("a black box could not be kept: {error}"));
        }
        let report = run_dir.map(|dir| dir.join("report.json"));
        drop(self.screen.send(Message::Finish { status, report }));
        let shown = self
            .showing
            .and_then(|it| it.join().ok())
            .unwrap_or_default();
        self.stop_serving.send(()).ok();
        if let Some(runtime) = self.runtime {
            runtime.shutdown_timeout(GOODBYE);
        }
        shown
    }
}

/// Who may connect to a coordinator in this process.
#[must_use]
pub fn access() -> Access {
    Access {
        user: sys::user_id(),
        descriptors: sys::descriptor_limit(),
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    say: &Say,
    run: impl FnOnce() -> T + Send + 'static,
) -> Option<JoinHandle<T>> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread
        .map_err(|error| say.say(&format!("cannot start a thread: {error}")))
        .ok()
}

/// Hands on what is sent to us alone, stops with the job and says when it is continued.
fn hand_on_signals(child: Option<&PidFd>, follower: &Commander) {
    loop {
        let Some(arrived) = sys::wait_for_signal() else {
            continue;
        };
        if let libc::SIGINT | libc::SIGQUIT | libc::SIGTERM | libc::SIGHUP = arrived.signal {
            follower.tell(follow::Command::Interrupted(arrived.signal));
        }
        if arrived.by_process
            && let Some(child) = child
        {
            // A command that has ended meanwhile needs it no more.
            drop(child.signal(arrived.signal));
        }
        match arrived.signal {
            libc::SIGTSTP => sys::stop_self(),
            libc::SIGCONT => {
                follower.tell(follow::Command::Continued);
            }
            _ => {}
        }
    }
}
