//! The node follower: one thread that reads the black boxes of all ranks on a node from outside.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ddp_doctor_agent::blackbox::Reader;
use ddp_doctor_evidence::settings;
use ddp_doctor_host::boxes::BoxDir;
use ddp_doctor_host::files::Dir;
use ddp_doctor_host::proc;
use ddp_doctor_host::proc::Watched;
use ddp_doctor_host::source_files::SourceFolders;
use ddp_doctor_host::sys;
use ddp_doctor_proto::report::{Exit, Timestamp};
use ddp_doctor_proto::{NoteKind, ProcessState, v1};
use v1::event::Kind;

use crate::follow::directories::{Arrivals, Directory, NO_BOX};
use crate::follow::pause::Pause;
use crate::follow::rank::Rank;
use crate::follow::requested::DumpReader;
use crate::follow::started_ranks::StartedRanks;
use crate::follow::unowned_launch::Launch;
use crate::launch::descendants::Descendants;
use crate::sample::gpus::GpuSampler;
use crate::sample::memory::Memory;
use crate::sample::ports::PortSampler;
use crate::sample::scheduling::Scheduling;
use crate::source_reader::Sources;
use crate::stack_reader::stack_sampler::StackSampler;
use crate::timing::Timing;
use crate::upload::outbox::Outbox;

mod adopted;
mod commands;
mod devices;
mod directories;
pub mod native_lines;
pub mod orphans;
mod pause;
pub mod rank;
mod requested;
mod resend;
mod stack_lines;
pub mod started_ranks;
pub mod unowned_launch;

pub use commands::{Command, Commander, Commands, Secured};

/// Polling interval of the boxes; each poll costs a wake-up. A record is read 25 ms late on
/// average, a small part of the 250 ms in which a provable finding has to appear. The end of a
/// process wakes the follower at once.
const TICK: Duration = Duration::from_millis(50);
/// Maximum number of records of each process that are sent when evidence follows which no digest covers.
const CAUGHT_UP: u64 = 8_192;
/// Interval of scans for new boxes.
const DIRECTORIES_INTERVAL: Duration = Duration::from_millis(100);
/// Polling interval of process states.
const STATES_INTERVAL: Duration = Duration::from_millis(250);
/// Time after a stop of a process during which states are polled as often as boxes, to measure each
/// stop of a process that is stopped and continued repeatedly.
const RECENTLY_STOPPED: Duration = Duration::from_secs(30);
/// Minimum interval of reported changes between running and sleeping.
const SCHEDULING_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of scans for processes below the command, and of heartbeats.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for the creation of a box; afterwards a box that cannot be opened is unreadable.
const MAX_CREATION: Duration = Duration::from_secs(2);
/// Time that ranks have to exit after the command did.
const EXIT_GRACE: Duration = Duration::from_millis(300);

/// The node follower.
#[derive(Debug)]
pub struct Follower {
    timing: Timing,
    hello: v1::Hello,
    boxes: BoxDir,
    out: Outbox,
    commands: Commands,
    /// Processes below the command; `None` for a launch without `run`.
    descendants: Option<Descendants>,
    /// The launch without `run`; `None` below a command.
    launch: Option<Launch>,
    stacks: StackSampler,
    recorders: DumpReader,
    sources: Sources,
    /// Lines of native programs.
    known_lines: Arc<native_lines::LineCache>,
    ranks: Vec<Rank>,
    /// Processes that will become ranks and have no box.
    started: StartedRanks,
    /// Where boxes are found.
    directories: Vec<Directory>,
    arrivals: Option<Arrivals>,
    memory: Memory,
    scheduling: Scheduling,
    gpus: GpuSampler,
    ports: PortSampler,
    /// Boxes that could not be opened, each with the time of the first attempt.
    closed_boxes: HashMap<PathBuf, Instant>,
    /// Notes and the end of the job, for coordinators that connect later.
    events: Vec<Kind>,
    last_scheduling: Instant,
    /// Time when a process was last seen stopped.
    last_stopped: Option<Instant>,
    pause: Pause,
    job_ended: bool,
}

impl Follower {
    /// Follows the boxes in `boxes`.
    #[must_use]
    pub fn new(
        hello: v1::Hello,
        boxes: BoxDir,
        out: Outbox,
        commands: Commands,
        descendants: Descendants,
        stacks: StackSampler,
    ) -> Self {
        Self::with(hello, boxes, out, commands, stacks, Some(descendants), None)
    }

    /// Follows those boxes in `boxes` that belong to a launch, until the launch is over.
    #[must_use]
    pub fn of_launch(
        hello: v1::Hello,
        boxes: BoxDir,
        out: Outbox,
        commands: Commands,
        launch: Launch,
        stacks: StackSampler,
    ) -> Self {
        Self::with(hello, boxes, out, commands, stacks, None, Some(launch))
    }

    fn with(
        hello: v1::Hello,
        boxes: BoxDir,
        out: Outbox,
        commands: Commands,
        stacks: StackSampler,
        descendants: Option<Descendants>,
        launch: Option<Launch>,
    ) -> Self {
        let timing = Timing::default().scaled(settings::time_scale(&hello));
        let directories = Directory::of_ranks(&boxes);
        Self {
            timing,
            arrivals: Arrivals::watch(&directories),
            directories,
            hello,
            boxes,
            out,
            commands,
            descendants,
            launch,
            stacks,
            recorders: DumpReader::default(),
            sources: Sources::new(SourceFolders::default()),
            known_lines: Arc::default(),
            ranks: Vec::new(),
            started: StartedRanks::new(&timing),
            memory: Memory::new(timing),
            scheduling: Scheduling::new(timing),
            gpus: GpuSampler::start(timing),
            ports: PortSampler::start(timing),
            closed_boxes: HashMap::new(),
            events: Vec::new(),
            last_scheduling: Instant::now(),
            last_stopped: None,
            pause: Pause::new(),
            job_ended: false,
        }
    }

    /// Reads the guards of call sites in files below these folders.
    #[must_use]
    pub fn with_sources(mut self, folders: SourceFolders) -> Self {
        self.sources = Sources::new(folders);
        self
    }

    /// Asks Flight Recorders whose FIFOs and dumps are in this folder.
    #[must_use]
    pub fn with_recorders(mut self, folder: Option<PathBuf>) -> Self {
        self.recorders = DumpReader::new(folder);
        self
    }

    /// Runs until [`Command::Stop`].
    ///
    /// # Errors
    ///
    /// If a box could not be moved to the directory where it is kept.
    pub fn run(mut self) -> std::io::Result<()> {
        self.out.push(Kind::Hello(self.hello.clone()));
        let mut next_places = Instant::now();
        let mut next_states = Instant::now();
        let mut next_scan = Instant::now() + SCAN_INTERVAL;
        let mut next_memory = Instant::now();
        let mut next_scheduling = Instant::now();
        let mut next_digest = Instant::now();
        loop {
            self.pause.detect();
            if self.handle_commands() {
                break;
            }
            let now = Instant::now();
            if !self.job_ended {
                let has_arrived = self.arrivals.as_ref().is_some_and(Arrivals::any);
                if take_due(&mut next_places, DIRECTORIES_INTERVAL, now) || has_arrived {
                    self.scan_directories(now);
                }
                self.poll();
                self.poll_started(now);
                self.report_stacks();
                self.report_device_calls();
                self.poll_devices(now);
                let stopped = self.last_stopped;
                let often = stopped.is_some_and(|at| now.duration_since(at) < RECENTLY_STOPPED);
                let states_every = if often { TICK } else { STATES_INTERVAL };
                if take_due(&mut next_states, states_every, now) {
                    self.poll_states(now);
                }
                if take_due(&mut next_scan, SCAN_INTERVAL, now) {
                    self.scan(now);
                    self.reap_adopted();
                    self.out.heartbeat(&self.timing);
                }
                if take_due(&mut next_memory, self.timing.memory_interval, now) {
                    self.memory.poll(&self.ranks, now, &mut self.out);
                }
                if take_due(&mut next_scheduling, self.timing.scheduling_interval, now) {
                    self.scheduling.poll(&self.ranks, now, &mut self.out);
                }
                if self.out.sends_digests()
                    && take_due(&mut next_digest, ddp_doctor_evidence::digest::INTERVAL, now)
                {
                    let now = sys::monotonic_ns();
                    for rank in self.ranks.iter_mut().filter(|rank| !rank.has_ended()) {
                        rank.digest(now, &mut self.out);
                    }
                }
                self.check_for_end(now);
            }
            self.out.flush();
            self.wait(TICK);
        }
        self.out.close();
        self.boxes.remove()
    }

    /// Waits for one tick, or until a process ends or a command arrives.
    fn wait(&mut self, tick: Duration) {
        let mut fds = Vec::new();
        let mut indexes = Vec::new();
        // After the end of the job, ends of processes are no longer handled.
        let alive = self.ranks.iter().enumerate();
        for (index, rank) in alive.filter(|(_, rank)| !rank.has_ended() && !self.job_ended) {
            if let Some(fd) = rank.watched().and_then(Watched::fd) {
                fds.push(fd.as_fd());
                indexes.push(index);
            }
        }
        fds.extend(self.commands.fd());
        if !self.job_ended {
            fds.extend(self.started.fds());
            fds.extend(self.arrivals.as_ref().map(Arrivals::fd));
        }
        let Ok(ready) = sys::poll(&fds, tick) else {
            return std::thread::sleep(tick);
        };
        let has_command = ready.len() > indexes.len() && ready[indexes.len()];
        for (index, _) in indexes.into_iter().zip(&ready).filter(|(_, ready)| **ready) {
            self.ranks[index].notice_end();
        }
        if has_command {
            self.commands.clear();
        }
    }

    /// Executes all pending commands; returns whether to stop.
    fn handle_commands(&mut self) -> bool {
        loop {
            use std::sync::mpsc::TryRecvError;
            match self.commands.next() {
                Ok(Command::Attached(coordinator)) => self.repeat(coordinator),
                Ok(Command::Repeat { process, ticket }) => {
                    self.ranks.iter_mut().for_each(|rank| rank.repeat_from(process, ticket));
                }
                Ok(Command::Summarize) => self.out.send_digests(true),
                Ok(Command::Pull(pull)) => self.catch_up(pull),
                Ok(Command::Ping { sent_unix_ns, received }) => self
                    .out
                    .answer(v1::Pong { ping_unix_ns: sent_unix_ns, received_unix_ns: received.0 }),
                Ok(Command::TakeStacks { processes, on_request }) => {
                    self.request_stacks(&processes, on_request);
                }
                Ok(Command::ReadDeviceCalls { processes }) => self.request_dumps(&processes),
                Ok(Command::IsCapturing { answer }) => drop(answer.send(self.stacks.is_busy())),
                Ok(Command::Continued) => self.report_pause(),
                Ok(Command::Interrupted(signal)) => {
                    self.report(Kind::Interrupted(v1::Interrupted {
                        unix_ns: Timestamp::now().0,
                        signal,
                    }));
                }
                // The receiver may have timed out.
                Ok(Command::Secure { into, answer }) => drop(answer.send(self.secure(into))),
                Ok(Command::Close { status, reason, done }) => {
                    self.poll();
                    self.end_job(status, Some(reason));
                    done.send(()).ok();
                }
                Ok(Command::CommandEnded(status)) => self.command_ended(status),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return true,
                Err(TryRecvError::Empty) => return false,
            }
        }
    }

    /// Writes all evidence to the disk: black boxes into another directory if one is named.
    fn secure(&mut self, into: Option<Dir>) -> Secured {
        let on_disk = match into {
            None => self.boxes.snapshot().is_ok() && self.out.sync(),
            // The journal stays where it is.
            Some(dir) => self.boxes.snapshot_into(&dir).is_ok(),
        };
        let descendants =
            self.descendants.as_ref().map(Descendants::remembered).unwrap_or_default();
        Secured { on_disk, descendants }
    }

    /// Polls the boxes, and handles ended processes.
    fn poll(&mut self) {
        let (mut ended, mut any_notable) = (Vec::new(), false);
        for (index, rank) in self.ranks.iter_mut().enumerate() {
            if rank.has_ended() {
                continue;
            }
            // The check comes before the read: an ended process writes nothing more.
            ended.extend(rank.is_process_gone().then(|| (rank.status(), index)));
            rank.poll(&mut self.out);
            any_notable |= rank.take_notable();
        }
        if any_notable || !ended.is_empty() {
            self.send_records();
        }
        // Ranks that ended before one poll get the same time. Those ended by SIGTERM or SIGKILL come last,
        // since the end of another rank is the likely reason.
        let now = Timestamp::now();
        ended.sort_by_key(|(exit, _)| matches!(exit.signal, Some(libc::SIGTERM | libc::SIGKILL)));
        for (exit, index) in ended {
            let rank = &mut self.ranks[index];
            let oom_kills = self.memory.oom_kills(rank.process());
            rank.end(exit, oom_kills, now, &mut self.out);
            // A box that cannot be moved stays; `BoxDir::remove` tries again.
            drop(self.boxes.keep(rank.path()));
        }
        self.request_sources();
        for kind in self.sources.take_answers() {
            self.out.push(kind);
        }
    }

    fn poll_started(&mut self, now: Instant) {
        if self.started.any_ended() {
            // It may have joined since the last scan.
            self.scan_directories(now);
        }
        let any_joined = self.ranks.iter().any(|rank| !rank.has_ended());
        self.started.poll(any_joined, now, &mut self.stacks, &mut self.out);
    }

    /// Requests the source around new sites from a reader thread.
    fn request_sources(&mut self) {
        for site in self.ranks.iter_mut().flat_map(Rank::take_sites) {
            self.sources.request(site);
        }
    }

    fn scan_directories(&mut self, now: Instant) {
        for index in 0..self.directories.len() {
            for name in self.directories[index].unseen() {
                let text = name.to_string_lossy().into_owned();
                let is_settled = if text.starts_with(NO_BOX) {
                    self.note_no_box(&text);
                    true
                } else {
                    // A box that the follower has moved is known under another path.
                    let is_known = |rank: &Rank| rank.path().file_name() == Some(&name);
                    let path = self.directories[index].path.join(&name);
                    self.ranks.iter().any(is_known) || self.open(&path, now)
                };
                if is_settled {
                    self.directories[index].settle(name);
                }
            }
        }
    }

    /// Opens a box. Returns whether it is settled: opened, unreadable, or of another launch.
    fn open(&mut self, path: &Path, now: Instant) -> bool {
        if let Some(launch) = &mut self.launch
            && let Ok(reader) = Reader::open_own(path)
            && !launch.takes(&reader)
        {
            return true;
        }
        match Rank::open(self.ranks.len() as u64 + 1, path, &self.known_lines) {
            Ok(None) => true,
            Ok(Some(mut rank)) => {
                self.closed_boxes.remove(path);
                if !self.ranks.iter().any(|other| rank.is_helper_of(other)) {
                    if let Some(watched) = self.started.take_joined(rank.start()) {
                        rank.watch(watched);
                    }
                    self.ranks.push(rank);
                }
                true
            }
            Err(error) => {
                let since = *self.closed_boxes.entry(path.to_owned()).or_insert(now);
                if now.duration_since(since) < MAX_CREATION {
                    // Scan again even if the directory does not change.
                    self.directories.iter_mut().for_each(Directory::scan_again);
                    return false;
                }
                self.note(NoteKind::Unreadable, None, 0, error.to_string());
                true
            }
        }
    }

    fn poll_states(&mut self, now: Instant) {
        let mut changes = Vec::new();
        let scheduling = now.duration_since(self.last_scheduling) >= SCHEDULING_INTERVAL;
        if scheduling {
            self.last_scheduling = now;
        }
        let mut frozen: HashMap<PathBuf, bool> = HashMap::new();
        let running = self.ranks.iter().enumerate();
        for (index, rank) in running.filter(|(_, rank)| !rank.has_ended()) {
            let Some(watched) = rank.watched() else {
                continue;
            };
            let Some(stat) = watched.stat() else { continue };
            let mut state = stat.state();
            if let Some(cgroup) = watched.cgroup() {
                let known = frozen.get(cgroup).copied();
                let is_frozen = known.unwrap_or_else(|| proc::is_frozen(cgroup));
                if known.is_none() {
                    frozen.insert(cgroup.to_owned(), is_frozen);
                }
                if is_frozen {
                    state = ProcessState::Stopped;
                }
            }
            if state == ProcessState::Stopped {
                self.last_stopped = Some(now);
            }
            let before = rank.state();
            let stopped = |state| state == ProcessState::Stopped;
            let matters = before == ProcessState::Unspecified || stopped(before) != stopped(state);
            // The end of a process is reported separately.
            let is_over = matches!(state, ProcessState::Zombie | ProcessState::Dead);
            if !is_over && before != state && (matters || scheduling) {
                changes.push((index, state, stopped(before) != stopped(state)));
            }
        }
        if changes.iter().any(|(.., matters)| *matters) {
            self.send_records();
        }
        for (index, state, _) in changes {
            let now = Timestamp::now();
            self.ranks[index].change(state, Exit::default(), now, &mut self.out);
        }
    }

    fn scan(&mut self, now: Instant) {
        let Some(descendants) = &mut self.descendants else {
            return;
        };
        let lost = descendants.scan(now);
        for rank in descendants.take_ranks() {
            self.started.add(&rank, &mut self.out);
        }
        for lost in lost {
            self.note(NoteKind::CaptureLost, lost.rank, lost.pid, lost.text);
        }
    }

    /// Reports a process without room for its box, from the name `nobox.<pid>.<rank or x>`.
    fn note_no_box(&mut self, name: &str) {
        let mut words = name.split('.').skip(1);
        let pid = words.next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
        let rank: Option<u32> = words.next().and_then(|rank| rank.parse().ok());
        let who = rank.map_or_else(
            || format!("process {pid}"),
            |rank| format!("rank {rank} (process {pid})"),
        );
        let text = format!("{who} found no room for a black box: its calls are not captured");
        self.note(NoteKind::NoBlackBox, rank, pid, text);
    }

    fn note(&mut self, kind: NoteKind, rank: Option<u32>, pid: u32, text: String) {
        self.report(Kind::Note(v1::Note {
            process: 0,
            kind: i32::from(kind.number()),
            rank,
            pid,
            text,
            unix_ns: Timestamp::now().0,
        }));
    }

    /// Reports an event that is in no box.
    fn report(&mut self, kind: Kind) {
        self.send_records();
        self.events.push(kind.clone());
        self.out.push(kind);
    }

    /// Ends the job when its launch is over.
    fn check_for_end(&mut self, now: Instant) {
        let Some(launch) = &mut self.launch else {
            return;
        };
        if let Some(status) = launch.status(&self.ranks, now) {
            launch.report_end(status);
            self.end_job(status, None);
        }
    }

    /// Waits up to [`EXIT_GRACE`] for the ranks to exit, then ends the job.
    fn command_ended(&mut self, status: i32) {
        if self.job_ended {
            return;
        }
        let deadline = Instant::now() + EXIT_GRACE;
        loop {
            self.scan_directories(Instant::now());
            self.poll();
            self.poll_started(Instant::now());
            let all_ended = self.ranks.iter().all(Rank::has_ended);
            if all_ended || Instant::now() >= deadline {
                break;
            }
            self.out.flush();
            self.wait(TICK);
        }
        self.scan(Instant::now());
        self.end_job(status, None);
    }

    fn end_job(&mut self, status: i32, reason: Option<v1::KillReason>) {
        if self.job_ended {
            return;
        }
        for kind in self.sources.last_answers() {
            self.out.push(kind);
        }
        let unix_ns = Timestamp::now().0;
        self.report(Kind::JobEnded(v1::JobEnded { unix_ns, status, reason }));
        self.out.flush();
        self.job_ended = true;
    }

    /// Reports afterwards that the ranks were stopped, together with this process.
    fn report_pause(&mut self) {
        let Some(at) = self.pause.take() else {
            return;
        };
        self.send_records();
        for rank in self.ranks.iter_mut().filter(|rank| !rank.has_ended()) {
            rank.change(ProcessState::Stopped, Exit::default(), at, &mut self.out);
            rank.change(ProcessState::Running, Exit::default(), Timestamp::now(), &mut self.out);
        }
    }
}

/// Whether `next` has been reached; if so, `next` is set to one interval from now.
fn take_due(next: &mut Instant, every: Duration, now: Instant) -> bool {
    let is_due = now >= *next;
    if is_due {
        *next = now + every;
    }
    is_due
}
