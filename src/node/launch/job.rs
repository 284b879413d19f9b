//! `run`: starts the command, monitors its ranks, and exits with its status.
//!
//! The command keeps the descriptors, the terminal and the process group of `ddp-doctor`. Signals
//! from the terminal (Ctrl-C, Ctrl-Z, hang-up) reach it directly; signals sent to this process alone
//! are forwarded.
//!
//! Threads: the main thread waits for the command; others forward signals, follow the black boxes
//! ([`crate::follow`]), write the journal, print ([`crate::launch::screen`]), and run the
//! coordinator ([`crate::launch::monitor`]). The command is started before any of them.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ddp_doctor_diagnosis::timing::TimeScale;
use ddp_doctor_evidence::settings;
use ddp_doctor_host::boxes;
use ddp_doctor_host::boxes::BoxDir;
use ddp_doctor_host::files::{self, Dir};
use ddp_doctor_host::names;
use ddp_doctor_host::private;
use ddp_doctor_host::proc;
use ddp_doctor_host::processes;
use ddp_doctor_host::source_files::SourceFolders;
use ddp_doctor_host::sys;
use ddp_doctor_host::sys::{Reserve, Signals};
use ddp_doctor_monitoring as monitoring;
use ddp_doctor_proto::report::{Job, Report, Timestamp};
use ddp_doctor_proto::{VERSION, v1};
use ddp_doctor_report::text::Style;
use ddp_doctor_transport::Credentials;

use crate::follow::unowned_launch::shell_status;
use crate::launch::coordinator::Chosen;
use crate::launch::kill::KillAfter;
use crate::launch::meeting::Meeting;
use crate::launch::monitor::{Monitor, MonitorParts};
use crate::launch::nccl::{self, Loaded, Nccl};
use crate::launch::rendezvous::Rendezvous;
use crate::launch::rundir::{RecorderFolder, RunDir};
use crate::launch::secrets::{self, TokenFile};
use crate::launch::start_failure;
use crate::live::{Live, ReportFile, Verbosity};
use crate::sample::environment::{self, Environment};
use crate::stack_reader::stack_sampler::When;
use crate::timing::Timing;

/// Exit status of a run whose job was killed because it hung.
pub const KILLED_STATUS: u8 = 75;
/// Exit status of a run whose command ended with an unknown status.
const UNKNOWN_STATUS: i32 = 128;
/// Descriptors kept for the last report and for saving the evidence.
const RESERVED_DESCRIPTORS: usize = 8;
/// What a user can do while the job hangs.
const REMEDY: &str = "the job still hangs · Ctrl-C ends it · `ddp-doctor watch` shows its ranks, `ddp-doctor dump` \
                      their stacks";

/// Options of `run`.
pub struct Options {
    /// The command and its arguments; not empty.
    pub command: Vec<OsString>,
    /// Id of the job; `None`: generated.
    pub job: Option<String>,
    /// Directory of evidence and report; `None`: a new directory below the working directory.
    pub run_dir: Option<PathBuf>,
    /// Maximum size of the journal, in bytes.
    pub journal_size: u64,
    /// Additional path of the report.
    pub report: Option<PathBuf>,
    /// Address of a coordinator; `None`: one in this process, or in that of another node.
    pub coordinator: Option<String>,
    /// Where the token for other machines is found.
    pub credentials: Credentials,
    /// When to kill a hanging job; `None`: never.
    pub kill: Option<KillAfter>,
    /// Duration after which an unproven stall is reported; `None`: the default.
    pub stall_after: Option<Duration>,
    /// Factor of all other durations that delay a conclusion.
    pub time_scale: TimeScale,
    /// Records a second above which the coordinator asks for digests; `None`: its own limit.
    pub digest_above: Option<u64>,
    /// When stacks are captured.
    pub stacks: When,
    /// Folders with sources, besides those of the command.
    pub sources: Vec<PathBuf>,
    /// How NCCL calls are traced.
    pub nccl: Nccl,
    /// Metrics and webhook of a coordinator in this process.
    pub monitoring: monitoring::Options,
    /// Amount of output.
    pub verbosity: Verbosity,
    /// Style of terminal output.
    pub style: Style,
    /// Destination of terminal output.
    pub out: Box<dyn Write + Send>,
}

/// Result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status of `ddp-doctor`.
    pub status: u8,
    /// The last diagnosis; `None` if the command could not be started.
    pub report: Option<Report>,
}

/// Runs the command to its end.
#[must_use]
pub fn run(options: Options) -> Outcome {
    let limits = [sys::raise_descriptor_limit(), sys::forbid_core_files()];
    let reserve = Reserve::new(RESERVED_DESCRIPTORS);
    let variable = |name: &str| std::env::var(name).ok();
    let rendezvous = Rendezvous::from_command(&options.command, &variable);
    let chosen =
        Chosen::new(options.coordinator.as_deref(), rendezvous.as_ref(), &options.credentials);
    let job = options
        .job
        .or(chosen.job)
        .map_or_else(|| names::job_of(&options.command), |job| names::file_name(&job));
    let started = Timestamp::now();
    let meeting = Meeting::of_command(&options.command, rendezvous.as_ref(), &variable, started);
    let requested_run_dir = options.run_dir.clone();
    let shared_memory = Path::new(private::SHARED_MEMORY);
    sys::ignore_file_size_signal();
    let run_dir = RunDir::make_somewhere(
        shared_memory,
        options.run_dir,
        &job,
        started,
        boxes::writer_is_alive,
    );
    let mut files: Vec<ReportFile> = options.report.into_iter().map(ReportFile::from).collect();
    files.extend(run_dir.as_ref().ok().map(|it| ReportFile::of_run(&it.dir)));
    let about = Job { id: job.clone(), nodes: 1, started_at: Some(started), ..Job::default() };
    let here = std::env::current_dir().unwrap_or_default();
    let source_folders = SourceFolders::of_command(&options.command, &here);
    let sources = SourceFolders::of_program(&source_folders).and_given(&options.sources);
    let mut live = Live::new(options.out, options.style, options.verbosity, about, files)
        .with_sources(sources.clone());
    if options.kill.is_none() {
        live = live.with_remedy(REMEDY);
    }
    if let Err(error) = &run_dir {
        let dir = requested_run_dir.clone().unwrap_or_else(|| PathBuf::from(names::RUNS));
        live.print_line(&format!(
            "no evidence is kept: cannot create a run directory in {}: {error}",
            dir.display()
        ));
    }
    let notices = run_dir.iter().flat_map(|it| &it.notices);
    notices.for_each(|line| live.print_line(line));
    let run_dir = run_dir.ok().map(|it| it.dir);
    if let Some(line) = BoxDir::refusal(shared_memory) {
        live.print_line(&line);
    }
    let boxes = BoxDir::create(shared_memory, &job, run_dir.as_ref());
    if let Err(error) = &boxes {
        live.print_line(&format!(
            "the job is not monitored: cannot create a directory for black boxes: {error}"
        ));
    }
    chosen.notices.iter().for_each(|line| live.print_line(line));
    if let Err(error) = processes::pidfds() {
        live.print_line(&adopt_orphans(&error));
    }
    let address = chosen.address;
    let nccl = boxes
        .as_ref()
        .map(|_| {
            let name = names::run_dir(&job, started);
            let has_others = rendezvous.is_some() || nccl::has_several_nodes(&variable);
            let log = &mut |why: &str| live.print_line(why);
            Loaded::new(options.nccl, run_dir.as_ref(), &name, has_others, log)
        })
        .unwrap_or_default();
    let recorders = run_dir
        .as_ref()
        .filter(|_| options.stacks == When::Stall && boxes.is_ok())
        .and_then(RecorderFolder::make);
    let environment = boxes.as_ref().ok().map(|boxes| Environment {
        job: job.clone(),
        box_dir: boxes.path().to_owned(),
        known: boxes.known().unwrap_or_default(),
        run_dir: run_dir.as_ref().map(|it| it.path().to_owned()),
        coordinator: address.clone(),
        library: environment::find_library(),
        python: environment::find_python(),
        nccl: nccl.how.clone(),
        recorders: recorders.as_ref().and_then(|it| it.value().ok()),
    });
    if let Some(missing) = environment.as_ref().and_then(Environment::missing) {
        live.print_line(&missing);
    }
    let connect = chosen.remote_address.as_deref().or(address.as_deref()).unwrap_or("nowhere");
    let kept = run_dir
        .as_ref()
        .map_or_else(|| "no evidence is kept".into(), |dir| dir.path().display().to_string());
    live.announce(&format!("watching job {job} · coordinator {connect} · {kept}"));

    let box_dir = || Dir::open_private(boxes.as_ref().ok()?.path()).ok();
    let token_dir = run_dir.clone().or_else(box_dir);
    let token =
        TokenFile::write(&options.credentials, token_dir.as_ref()).unwrap_or_else(|error| {
            live.print_line(&format!("the processes of the job have no token: {error}"));
            None
        });
    let mut start = prepare(&options.command, environment.as_ref(), token.as_ref());
    Signals::take_over().restore_in(&mut start);
    for limit in limits {
        limit.restore_in(&mut start);
    }
    // The command starts even if no descriptor is left for the diagnosis.
    drop(token_dir);
    drop(reserve);
    let spawned = start.spawn();
    let reserve = Reserve::new(RESERVED_DESCRIPTORS);
    let child = match spawned {
        Ok(child) => child,
        Err(error) => {
            live.print_line(&start_failure::line(&options.command, &error));
            if let Ok(boxes) = boxes {
                drop(boxes.remove());
            }
            drop((token, nccl, recorders));
            // No job was started: remove the directories created for it if they are empty.
            if let Some(dir) = run_dir {
                drop(dir.remove_empty(boxes::KEPT.as_ref()));
                let parent = files::parent(dir.path());
                drop(parent.and_then(|(parent, name)| parent.remove_empty(name)));
            }
            return Outcome { status: status_of_failure(&error), report: None };
        }
    };
    let mut hello = v1::Hello {
        job,
        attempt: names::attempt(),
        started_unix_ns: started.0,
        host: sys::host_name(),
        boot_id: proc::boot_id(),
        tool_version: VERSION.into(),
        command: proc::without_secrets(
            options.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        ),
        stall_after_s: settings::stall_after_s(options.stall_after),
        time_scale: Some(options.time_scale.factor()),
        digest_above: options.digest_above,
        ..v1::Hello::default()
    };
    meeting.write_to(&mut hello);
    if let Some(dir) = &run_dir
        && let Err(error) = names::describe(dir, &hello, address.as_deref(), &source_folders)
    {
        live.print_line(&format!("run.json cannot be written: {error}"));
    }
    let monitor = Monitor::start(MonitorParts {
        child: child.id(),
        hello,
        boxes: boxes.ok(),
        run_dir: run_dir.as_ref(),
        journal_size: options.journal_size,
        activation: environment.as_ref().and_then(Environment::activation),
        coordinator: chosen.coordinator,
        monitoring: options.monitoring,
        listening: chosen.listening,
        live,
        kill: options.kill,
        stacks: options.stacks,
        recorders: recorders.as_ref().map(|it| it.path().to_owned()),
        sources,
        timing: Timing::default().scaled(options.time_scale),
    });
    let exit = processes::wait_without_reaping(child.id()).unwrap_or_default();
    drop(reserve);
    let command_status = shell_status(exit).unwrap_or(UNKNOWN_STATUS);
    let keeps_all = requested_run_dir.is_some();
    let ended = monitor.end(command_status, run_dir.as_ref().map(Dir::path), keeps_all);
    drop(recorders);
    if let Some(dir) = run_dir.filter(|_| ended.report.is_some() && !ended.is_kept) {
        remove(&dir);
    }
    // Reaped last: until then its exit status is in `/proc`.
    processes::reap_child(child.id());
    let status = if ended.killed { KILLED_STATUS } else { command_status as u8 };
    Outcome { status, report: ended.report }
}

/// Removes the directory of a run without evidence, and the folder around it if it is empty.
fn remove(dir: &Dir) {
    // Another user could have put another directory there.
    let again = Dir::open_own(dir.path());
    let is_safe = again.and_then(|it| Ok(it.changeable_by_others()?.is_none()));
    if !is_safe.unwrap_or(false) {
        return;
    }
    let parent = files::parent(dir.path());
    if parent.and_then(|(parent, _)| parent.remove_all(dir)).is_ok()
        && let Some(runs) = dir.path().parent()
    {
        // Other runs may be in it.
        drop(files::parent(runs).and_then(|(parent, name)| parent.remove_empty(name)));
    }
}

/// Prepares this process for a system without pidfds; returns a line for the user. As the subreaper of the
/// job, it can kill processes of the job by pid, and no process loses its last parent while it runs.
fn adopt_orphans(missing: &io::Error) -> String {
    let adopted = match processes::become_subreaper() {
        Ok(()) => "",
        Err(_) => ", and --on-hang kill does not reach ranks that outlive their launcher",
    };
    format!(
        "this system has no pidfds ({missing}; Linux 5.3 or later has them): signals are sent by process \
         id, and rank exits are detected up to 50 ms late{adopted}"
    )
}

/// Replaces this process by the command. Returns only on failure, with the exit status.
#[must_use]
pub fn become_command(command: &[OsString], out: &mut dyn Write) -> u8 {
    use std::os::unix::process::CommandExt;
    let error = prepare(command, None, None).exec();
    drop(writeln!(out, "ddp-doctor: {}", start_failure::line(command, &error)));
    status_of_failure(&error)
}

/// The command with its environment.
fn prepare(
    command: &[OsString],
    environment: Option<&Environment>,
    token: Option<&TokenFile>,
) -> Command {
    let mut prepared = Command::new(&command[0]);
    prepared.args(&command[1..]);
    prepared.envs(environment.map(Environment::variables).unwrap_or_default());
    secrets::remove_from(&mut prepared);
    if let Some(token) = token {
        token.add_to(&mut prepared);
    }
    prepared
}

/// Exit status as of a shell: 127 if the command was not found, 126 if it cannot be executed.
fn status_of_failure(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
}
