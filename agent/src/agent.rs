//! The Rust API of the agent.

use std::fmt;
use std::panic::{self, Location, PanicHookInfo};
use std::path::PathBuf;
use std::time::Duration;

use ddp_doctor_proto::blackbox::{Capacities, memory};
use ddp_doctor_proto::{ExceptionKind, NoteKind, Op, Spending};

use crate::blackbox::{CreateError, Options, Place, Writer};
use crate::call::{CallBuilder, CallId, WaitGuard};
use crate::current::{self, Opened, current, is_current};
use crate::{facts, sys};

/// Records what this process does. A process has one black box, which all agents write. The agent
/// that opened the box closes it when it is dropped.
///
/// Without a box, for example if `DDP_DOCTOR=0` is set, an agent does nothing.
#[derive(Debug)]
pub struct Agent {
    opened: bool,
}

impl Agent {
    /// Starts to describe this process.
    pub fn builder() -> Builder {
        Builder { options: facts::options_from_env("rust"), place: None }
    }

    /// An agent that creates no box. It writes to the box of the process, if there is one.
    #[must_use]
    pub fn without_box() -> Self {
        Self { opened: false }
    }

    /// Whether this process has an open box.
    #[must_use]
    pub fn is_open(&self) -> bool {
        current().is_some()
    }

    /// Sets or changes the rank, for example after an elastic restart.
    pub fn set_rank(&self, rank: u32, world_size: u32) {
        with(|writer| writer.set_identity(Some(rank), Some(world_size), None));
    }

    /// Registers a process group. `members` are global ranks in group order. Register a group that
    /// is created again once more.
    #[must_use = "calls are made in the group"]
    pub fn group(&self, name: &str, description: &str, backend: &str, members: &[u32]) -> Group {
        self.group_of_epoch(name, description, backend, 0, members)
    }

    /// Like [`Agent::group`], for a world that is initialized repeatedly: `epoch` counts the
    /// initializations, from 0.
    #[must_use = "calls are made in the group"]
    pub fn group_of_epoch(
        &self,
        name: &str,
        description: &str,
        backend: &str,
        epoch: u32,
        members: &[u32],
    ) -> Group {
        let id = current().map_or(0, |writer| {
            writer.group(
                name.as_bytes(),
                description.as_bytes(),
                backend.as_bytes(),
                epoch,
                members,
            )
        });
        Group { id }
    }

    /// Sets the timeout after which calls of the group fail, from now on.
    pub fn group_timeout(&self, group: &Group, timeout: Duration) {
        let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        with(|writer| writer.group_timeout(group.id, milliseconds));
    }

    /// Records that this process left the group.
    pub fn group_destroyed(&self, group: Group) {
        with(|writer| writer.group_destroyed(group.id));
    }

    /// Describes a call that is about to be made at the caller's source line.
    #[track_caller]
    pub fn call(&self, group: &Group, op: Op) -> CallBuilder {
        CallBuilder::new(group.id, op, Location::caller())
    }

    /// Records that this thread waits for a call at the caller's source line until the guard is
    /// dropped.
    ///
    /// ```
    /// # use ddp_doctor_agent::{Agent, Op};
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let agent = Agent::builder().directory(directory.path()).start().unwrap();
    /// # let world = agent.group("world", "", "nccl", &[0, 1]);
    /// let call = agent.call(&world, Op::AllReduce).asynchronous().issue();
    /// // … start the operation, which returns at once …
    /// let id = call.id();
    /// drop(call);
    ///
    /// let wait = agent.wait(id);
    /// // … wait for the operation …
    /// drop(wait);
    /// ```
    #[track_caller]
    pub fn wait(&self, call: impl Into<CallId>) -> WaitGuard {
        WaitGuard::begin(call.into(), Location::caller())
    }

    /// Records that a call is complete.
    pub fn completed(&self, call: impl Into<CallId>) {
        let call = call.into();
        with(|writer| writer.completed(call.number()));
    }

    /// Records the start of a training step. Returns its 1-based number; 0: there is no box.
    pub fn step(&self) -> u32 {
        current().map_or(0, Writer::step)
    }

    /// Records a phase such as "checkpoint", which lasts until the guard is dropped.
    ///
    /// ```
    /// # use ddp_doctor_agent::Agent;
    /// # let agent = Agent::without_box();
    /// let checkpoint = agent.phase("checkpoint");
    /// // … save …
    /// drop(checkpoint);
    /// ```
    pub fn phase(&self, name: &str) -> PhaseGuard {
        PhaseGuard {
            phase: current().map(|writer| {
                let name = writer.string(name.as_bytes());
                writer.phase_begin(name);
                (writer, name)
            }),
        }
    }

    /// Records an error; `text` is "Type: message".
    #[track_caller]
    pub fn exception(&self, kind: ExceptionKind, text: &str) {
        let place = Location::caller();
        with(|writer| writer.exception(kind, text.as_bytes(), writer.rust_site(place)));
    }

    /// Installs a panic hook that records panics before it calls the previous hook. A panic of the
    /// main thread is recorded as the end of the process, one of another thread as the end of that
    /// thread. For programs that do not catch panics.
    pub fn report_panics(&self) {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            record_panic(panic);
            before(panic);
        }));
    }

    /// Records that the program's input is exhausted: an iterator over its data has ended.
    #[track_caller]
    pub fn input_ended(&self) {
        let place = Location::caller();
        with(|writer| writer.input_ended(writer.rust_site(place)));
    }

    /// Records that this thread has just spent `time` on something other than its own work. Times
    /// below a millisecond are not worth recording.
    #[track_caller]
    pub fn spent(&self, on: Spending, time: Duration) {
        let place = Location::caller();
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        with(|writer| writer.spent(on, nanoseconds, writer.rust_site(place)));
    }

    /// Records that the process is about to exit.
    pub fn exit(&self, code: i32, how: &str) {
        with(|writer| writer.exit(code, how.as_bytes(), 0));
    }

    /// Records a version or a setting that ranks may have to agree on, such as that of a library.
    pub fn setting(&self, name: &str, value: &str) {
        with(|writer| writer.setting(name.as_bytes(), value.as_bytes()));
    }

    /// Records a sample of a device's memory. One per second is enough.
    pub fn memory(&self, sample: &memory::Sample) {
        with(|writer| writer.memory(sample));
    }

    /// Records a limitation of the capture.
    pub fn note(&self, kind: NoteKind, text: &str) {
        with(|writer| writer.note(kind, text.as_bytes()));
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if self.opened {
            current::close();
        }
    }
}

fn with(work: impl FnOnce(&'static Writer)) {
    if let Some(writer) = current() {
        work(writer);
    }
}

fn record_panic(panic: &PanicHookInfo<'_>) {
    let Some(writer) = current() else { return };
    let payload = panic.payload();
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let site =
        panic.location().map_or(0, |place| writer.site(place.file().as_bytes(), b"", place.line()));
    let kind = if sys::thread_id() == std::process::id() {
        ExceptionKind::Uncaught
    } else {
        ExceptionKind::UncaughtInThread
    };
    let text = format!("panic: {}", text.unwrap_or("(no text)"));
    writer.exception(kind, text.as_bytes(), site);
}

/// Describes this process and starts its agent.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before `start`"]
pub struct Builder {
    options: Options,
    place: Option<PathBuf>,
}

impl Builder {
    /// The reporting layer, "rust" by default.
    pub fn layer(mut self, layer: &str) -> Self {
        layer.clone_into(&mut self.options.layer);
        self
    }

    /// The job, by default `DDP_DOCTOR_JOB` or the launcher's id of the job.
    pub fn job(mut self, job: &str) -> Self {
        job.clone_into(&mut self.options.job);
        self
    }

    /// Global rank.
    pub fn rank(mut self, rank: u32) -> Self {
        self.options.rank = Some(rank);
        self
    }

    /// Number of ranks.
    pub fn world_size(mut self, world_size: u32) -> Self {
        self.options.world_size = Some(world_size);
        self
    }

    /// Rank within the node.
    pub fn local_rank(mut self, local_rank: u32) -> Self {
        self.options.local_rank = Some(local_rank);
        self
    }

    /// The 0-based start count of the job.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.options.attempt = attempt;
        self
    }

    /// Capacities of the box.
    pub fn capacities(mut self, capacities: Capacities) -> Self {
        self.options.capacities = capacities;
        self
    }

    /// Directory of the box; see [`Place::from_env`] for the default.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.place = Some(directory.into());
        self
    }

    /// Creates the box. If `DDP_DOCTOR=0` is set, returns an agent that does nothing.
    pub fn start(self) -> Result<Agent, StartError> {
        if facts::is_disabled() {
            return Ok(Agent::without_box());
        }
        let place = self
            .place
            .map_or_else(|| Place::from_env(&self.options.job, &self.options.world), Place::within);
        let opened = current::open(&place, &self.options).map_err(StartError)?;
        Ok(Agent { opened: opened == Opened::Now })
    }
}

/// Why there is no black box. The program may continue with [`Agent::without_box`].
#[derive(Debug)]
pub struct StartError(CreateError);

impl StartError {
    /// The underlying error.
    #[must_use]
    pub fn reason(&self) -> &CreateError {
        &self.0
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for StartError {}

/// A process group of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    id: u32,
}

impl Group {
    /// Its number in the box; 0: there was no room.
    #[must_use]
    pub fn id(self) -> u32 {
        self.id
    }
}

/// A phase that lasts until this is dropped.
#[derive(Debug)]
#[must_use = "the phase ends when this is dropped"]
pub struct PhaseGuard {
    phase: Option<(&'static Writer, u32)>,
}

impl Drop for PhaseGuard {
    fn drop(&mut self) {
        if let Some((writer, name)) = self.phase
            && is_current(writer)
        {
            writer.phase_end(name);
        }
    }
}
