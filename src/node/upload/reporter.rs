//! Follows the ranks of a launch that `run` did not start, and reports to a standing coordinator.
//!
//! A rank whose environment names a coordinator starts this process when it creates its black box
//! (`reporter.rs` of the agent). The first reporter of a node follows all ranks of the launch; the
//! others detect it and exit. It does the work of `run` without a command, a terminal or its own
//! diagnosis. It exits after the last rank: once its exit status is known, or after a delay.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use ddp_doctor_agent::blackbox::{FollowedBy, Following, Identity, Reader};
use ddp_doctor_diagnosis::timing::TimeScale;
use ddp_doctor_evidence::settings;
use ddp_doctor_host::boxes;
use ddp_doctor_host::boxes::BoxDir;
use ddp_doctor_host::files::{Dir, KnownDirectories};
use ddp_doctor_host::log::UserLog;
use ddp_doctor_host::names;
use ddp_doctor_host::private;
use ddp_doctor_host::proc;
use ddp_doctor_host::source_files::SourceFolders;
use ddp_doctor_host::sys;
use ddp_doctor_proto::report::{Job, Timestamp};
use ddp_doctor_proto::words::plain;
use ddp_doctor_proto::{VERSION, v1};
use ddp_doctor_report::text::Style;
use ddp_doctor_transport::{Address, Credentials};
use tokio::sync::watch;

use crate::follow::unowned_launch::Launch;
use crate::follow::{Command, Commander, Follower};
use crate::launch::meeting::Meeting;
use crate::launch::rundir::RunDir;
use crate::live::{Live, ReportFile, Verbosity};
use crate::source_reader;
use crate::stack_reader::stack_sampler::{StackSampler, When};
use crate::timing::Timing;
use crate::upload::attach::{self, Concluded, Coordinator, CoordinatorLink};
use crate::upload::journal::Journal;
use crate::upload::outbox::Outbox;

/// Interval of checks while the reporter appears unneeded.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Duration of these checks after the end of the rank.
const MAX_CHECKS: Duration = Duration::from_secs(30);
/// Time limit for the conclusion, whichever coordinator makes it.
const MAX_CONCLUSION: Duration = attach::CONCLUSION.saturating_mul(3);
/// Time from SIGTERM to the exit.
const TERM_GRACE: Duration = Duration::from_secs(5);
/// Maximum size of the log, in bytes.
const MAX_LOG: u64 = 64 << 10;
/// Name of the log file beside the boxes; the reporter has no terminal.
const LOG: &str = "reporter.log";

/// Options of a reporter.
#[derive(Debug)]
pub struct Options {
    /// The black box of the rank that started it.
    pub black_box: PathBuf,
    /// Directories in which ranks of the launch may have boxes, the preferred one first.
    pub boxes: Vec<PathBuf>,
    /// Whether `boxes` contain boxes of this launch only, so that those of dead ranks belong to it.
    pub includes_dead: bool,
    /// Address of the coordinator.
    pub coordinator: String,
    /// Where its token is found.
    pub credentials: Credentials,
    /// Directory of the evidence; `None`: none is kept, and boxes are removed once the coordinator has
    /// accepted the end of the job.
    pub run_dir: Option<PathBuf>,
    /// Maximum size of its journal, in bytes.
    pub journal_size: u64,
    /// Duration after which an unproven stall is reported; `None`: the default.
    pub stall_after: Option<Duration>,
    /// Factor of all other durations that delay a conclusion.
    pub time_scale: TimeScale,
    /// When stacks are captured.
    pub stacks: When,
    /// Folders with sources, besides those of the ranks.
    pub sources: Vec<PathBuf>,
}

/// Follows the launch to its end.
///
/// # Errors
///
/// If the address of the coordinator is invalid, or the box cannot be read. Later failures are
/// logged beside the boxes.
pub fn report(mut options: Options) -> anyhow::Result<()> {
    exit_on_sigterm()?;
    sys::ignore_file_size_signal();
    let known = KnownDirectories::from_env();
    let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    options.boxes.retain(|it| !open(it, &known).is_err_and(|error| is_refused(&error)));
    let directory = open(options.black_box.parent().context("not a black box")?, &known)?;
    let first = Reader::open_own(&options.black_box)?;
    // The launch has one lock, even if its boxes are in several directories.
    let mut places: Vec<&Path> = options.boxes.iter().map(PathBuf::as_path).collect();
    if places.is_empty() {
        places.push(directory.path());
    }
    let Some(following) = take_over(&places, &known, &first) else {
        return Ok(());
    };
    let identity = first.identity();
    let parsed = Address::parse(&options.coordinator, &options.credentials);
    let coordinator = match parsed.and_then(Address::for_evidence) {
        Ok(coordinator) => coordinator,
        // Reported once per node, not once per rank.
        Err(error) if identity.local_rank.unwrap_or(0) == 0 => return Err(error.into()),
        Err(_) => return Ok(()),
    };
    drop(first);
    if !coordinator.is_open() {
        let until_then = options.run_dir.as_ref().map_or_else(
            || "start one with `ddp-doctor coordinator`".to_owned(),
            |dir| format!("until then the report is in {}", dir.join("report.json").display()),
        );
        let line =
            format!("ddp-doctor: no coordinator answers at {coordinator}; retrying; {until_then}");
        drop(writeln!(io::stderr(), "{}", plain(&line)));
    }
    // The terminal and its pipes belong to the job.
    sys::close_standard_error();
    let log = log_in(directory.clone());
    follow(&options, coordinator, directory, &known, following, &identity, &log);
    Ok(())
}

/// Opens a directory of boxes of this launch.
fn open(directory: &Path, known: &KnownDirectories) -> io::Result<Dir> {
    Dir::open_own(directory)?.one_of(known)
}

/// Exits some time after SIGTERM, so that the end of the ranks can still be reported.
fn exit_on_sigterm() -> io::Result<()> {
    let wait = || {
        while sys::wait_for_signal().is_none_or(|it| it.signal != libc::SIGTERM) {}
        std::thread::sleep(TERM_GRACE);
        std::process::exit(128 + libc::SIGTERM);
    };
    let thread = std::thread::Builder::new().name("ddp-signals".into());
    thread.spawn(wait).map(drop)
}

/// Locks the boxes in these directories; `None`: another process follows them, or this one is not
/// needed. The inner `None`: no directory supports locks.
fn take_over(
    directories: &[&Path],
    known: &KnownDirectories,
    first: &Reader,
) -> Option<Option<Following>> {
    let identity = first.identity();
    let us = std::process::id();
    let own = (us, proc::Stat::read(us).map_or(0, |it| it.start_ticks));
    let mut ended_since = None;
    let by_run = |directory: &&Path| Following::found(directory) == Some(FollowedBy::Run);
    let is_followed = || first.claimed_by().is_some_and(|(pid, start)| proc::is_alive(pid, start));
    loop {
        let following = lock_first(directories, known);
        if is_followed() {
            return None;
        }
        // Another process holds the lock if it is `Some(None)`.
        if !matches!(following, Some(None)) {
            return first.claim(own.0, own.1).then(|| following.flatten());
        }
        // The process that follows the other ranks also follows this one, unless it is about to end.
        if directories.iter().any(by_run) {
            return None;
        }
        if !proc::is_alive(identity.pid, identity.start_ticks) {
            let since = *ended_since.get_or_insert_with(Instant::now);
            if since.elapsed() > MAX_CHECKS {
                return None;
            }
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}

/// Locks the first directory that can be locked, the same for all ranks of the launch; `Some(None)`: another
/// process holds its lock.
fn lock_first(directories: &[&Path], known: &KnownDirectories) -> Option<Option<Following>> {
    directories.iter().enumerate().find_map(|(index, directory)| {
        // If the directories before it are full, a later rank creates it, and its reporter locks it.
        if index > 0 {
            drop(Dir::ensure_own(directory));
        }
        Following::begin_in(directory, FollowedBy::Reporter, known).ok()
    })
}

fn follow(
    options: &Options,
    coordinator: Address,
    directory: Dir,
    known: &KnownDirectories,
    following: Option<Following>,
    identity: &Identity,
    log: &UserLog,
) {
    let started = Timestamp::now();
    let (over, ended) = channel();
    let timing = Timing::default().scaled(options.time_scale);
    let mut launch = Launch::new(identity, over, &timing, options.includes_dead);
    let shared_memory = Path::new(private::SHARED_MEMORY);
    let run_dir = options
        .run_dir
        .clone()
        .and_then(|requested| {
            let is_own = |file: &Path| Reader::open_own(file).is_ok_and(|it| launch.takes(&it));
            let made = RunDir::make(shared_memory, Some(requested), &identity.job, started, is_own);
            made.map_err(|error| log.print(&format!("no evidence is kept: {error}"))).ok()
        })
        .map(|it| it.dir);
    BoxDir::sweep(shared_memory);
    let hello = hello(options, identity, started);
    let sources = source_reader::folders_of(identity.pid);
    let journal = run_dir.as_ref().and_then(|dir| {
        if let Err(error) = names::describe(dir, &hello, Some(&options.coordinator), &sources) {
            log.print(&format!("run.json cannot be written: {error}"));
        }
        let journal = Journal::create(dir, options.journal_size, log.clone());
        journal.map_err(|error| log.print(&error.to_string())).ok()
    });
    let boxes =
        match BoxDir::of_launch(directory.clone(), &options.boxes, run_dir.as_ref(), following) {
            Ok(boxes) => boxes,
            Err(error) => return log.print(&format!("nothing is reported: {error}")),
        };
    let (follower, commands) = Commander::new();
    let out = Outbox::new(journal);
    let stacks = StackSampler::new(options.stacks);
    let it = Follower::of_launch(hello.clone(), boxes, out, commands, launch, stacks)
        .with_sources(SourceFolders::of_program(&sources).and_given(&options.sources));
    let thread = match std::thread::Builder::new().name("ddp-follow".into()).spawn(move || it.run())
    {
        Ok(thread) => thread,
        Err(error) => return log.print(&format!("nothing is reported: {error}")),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("ddp-attach")
        .enable_all()
        .build();
    let mut is_accepted = false;
    match runtime {
        Ok(runtime) => {
            let (ending, has_ended) = watch::channel(false);
            let live = Mutex::new(live(&hello.job, run_dir.as_ref()));
            let take = move |update| {
                let mut live = live.lock().unwrap_or_else(PoisonError::into_inner);
                live.apply(update, Instant::now());
                true
            };
            let link = CoordinatorLink {
                follower: follower.clone(),
                log: log.clone(),
                job: hello.job,
                take,
                takes_remote: false,
                timing,
                ending: has_ended,
            };
            let diagnosis = runtime.spawn(link.run(Coordinator::There(coordinator)));
            // An error means that the follower has ended.
            if ended.recv().is_ok() {
                ending.send_replace(true);
                let end = async { tokio::time::timeout(MAX_CONCLUSION, diagnosis).await };
                let concluded = runtime.block_on(end);
                is_accepted = matches!(concluded, Ok(Ok(Concluded::There)));
            }
            runtime.shutdown_timeout(CHECK_INTERVAL);
        }
        Err(error) => {
            log.print(&format!("nothing is reported: {error}"));
            ended.recv().ok();
        }
    }
    if !is_accepted {
        log.print(&format!(
            "the coordinator {} did not accept the end of the job",
            options.coordinator
        ));
    }
    follower.send(Command::Stop);
    match thread.join() {
        Ok(Err(error)) => log.print(&format!("a black box was not saved: {error}")),
        // Unread evidence is all that remains of the job.
        Ok(Ok(())) if is_accepted && run_dir.is_none() && !options.includes_dead => {
            remove_boxes(&directory);
            let others = options.boxes.iter().filter(|it| **it != directory.path());
            others.filter_map(|it| open(it, known).ok()).for_each(|it| remove_boxes(&it));
        }
        _ => {}
    }
}

/// Writes the report of this process to a file in the run directory.
fn live(job: &str, run_dir: Option<&Dir>) -> Live {
    let about =
        Job { id: job.to_owned(), nodes: 1, started_at: Some(Timestamp::now()), ..Job::default() };
    let quiet = Verbosity { quiet: 2, verbose: 0 };
    let files = run_dir.map(ReportFile::of_run);
    let out = Box::new(io::sink());
    Live::new(out, Style::default(), quiet, about, files.into_iter().collect())
}

fn hello(options: &Options, identity: &Identity, started: Timestamp) -> v1::Hello {
    let mut hello = v1::Hello {
        job: names::file_name(&identity.job),
        attempt: identity.attempt,
        started_unix_ns: started.0,
        host: sys::host_name(),
        boot_id: proc::boot_id(),
        tool_version: VERSION.into(),
        command: proc::arguments(identity.pid),
        stall_after_s: settings::stall_after_s(options.stall_after),
        launch: identity.world.clone(),
        time_scale: Some(options.time_scale.factor()),
        ..v1::Hello::default()
    };
    Meeting::of_rank(&|name| std::env::var(name).ok()).write_to(&mut hello);
    hello
}

/// Removes the boxes that this process has followed to their end.
fn remove_boxes(directory: &Dir) {
    let us = std::process::id();
    for name in boxes::boxes_of(directory).unwrap_or_default() {
        let opened = directory.open_file(&name).ok();
        let path = directory.path().join(&name);
        let reader = opened.and_then(|file| Reader::of_file(file, &path).ok());
        let Some(reader) = reader else {
            continue;
        };
        let identity = reader.identity();
        let is_ours = reader.claimed_by().is_some_and(|(pid, _)| pid == us);
        if is_ours && !proc::is_alive(identity.pid, identity.start_ticks) {
            // If it cannot be removed, it stays.
            drop(directory.remove_file(&name));
        }
    }
}

/// A log beside the boxes. The first line replaces the log of another reporter.
fn log_in(directory: Dir) -> UserLog {
    let opened: Mutex<Option<File>> = Mutex::default();
    let append = move |line: &str| -> io::Result<()> {
        let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match &mut *opened {
            Some(file) => file,
            none => none.insert(directory.new_file_instead(LOG.as_ref())?),
        };
        if file.metadata()?.len() > MAX_LOG {
            return Ok(());
        }
        writeln!(file, "{} {line}", Timestamp::now())
    };
    UserLog::new(move |line| drop(append(line)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn launch_has_one_lock_if_its_preferred_directory_cannot_be_locked() {
        let folder = tempfile::tempdir().unwrap();
        let (preferred, other) = (folder.path().join("preferred"), folder.path().join("other"));
        // A directory in place of the lock file, which a directory for everybody needs.
        fs::create_dir_all(preferred.join("followed")).unwrap();
        fs::set_permissions(&preferred, fs::Permissions::from_mode(0o777)).unwrap();
        let known = KnownDirectories::default();
        let directories = [preferred.as_path(), other.as_path()];
        let first = lock_first(&directories, &known);
        assert!(matches!(first, Some(Some(_))));
        assert!(matches!(lock_first(&directories, &known), Some(None)));
        assert_eq!(Following::found(&other), Some(FollowedBy::Reporter));
    }

    #[test]
    fn removed_directory_of_a_launch_is_not_created_again() {
        let folder = tempfile::tempdir().unwrap();
        let removed = folder.path().join("removed");
        assert!(lock_first(&[&removed], &KnownDirectories::default()).is_none());
        assert!(!removed.exists());
    }
}
