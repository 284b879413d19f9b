//! What the engine is told. Everything in it is resolved: no table of a black box, no number whose
//! meaning another message carries.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::{Exit, GroupRef, Timestamp, Where};
use ddp_doctor_proto::{
    DType, ExceptionKind, GuardForm, GuardSubject, NoteKind, Op, ParameterFact, ProcessState,
    ReduceOp, Spending,
};

/// Names a process within a job, across nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

impl ProcessId {
    /// The name of a process by the number of its node within the job and its number there.
    #[must_use]
    pub const fn of(node: u32, process: u32) -> Self {
        Self((node as u64) << 32 | process as u64)
    }

    /// The number of its node.
    #[must_use]
    pub const fn node(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Names a thread within its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// Names a call within its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// One thing that happened, to or in one process where it has a `process`.
///
/// Events of one process come in the order in which they happened. Between processes the order says
/// nothing; the end of a process comes after everything it recorded.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    missing_docs,
    reason = "the fields are those of `ddpdoctor/v1/agent.proto`"
)]
pub enum Event {
    /// A node started (its part of) the job.
    JobStarted {
        job: String,
        attempt: u32,
        host: Arc<str>,
        at: Timestamp,
    },
    /// A process joined a process group, or its rank became known.
    ProcessJoined {
        process: ProcessId,
        rank: Option<u32>,
        world_size: Option<u32>,
        host: Arc<str>,
        pid: u32,
        layer: Arc<str>,
        world: Arc<str>,
        at: Timestamp,
    },
    /// A process was started that is to be a rank, and has not joined a process group so far; told again
    /// when more is known of it.
    RankStarted(Box<StartedRank>),
    /// A process became a member of a group.
    GroupJoined {
        process: ProcessId,
        group: Arc<GroupInfo>,
    },
    /// A process left a group.
    GroupDestroyed {
        process: ProcessId,
        group: Arc<GroupInfo>,
        at: Timestamp,
    },
    /// Calls that a process makes in a group from now on fail after this long.
    GroupTimeout {
        process: ProcessId,
        group: Arc<GroupInfo>,
        timeout: Duration,
        at: Timestamp,
    },
    /// How the program comes to a place: told when it first did, and again once the source was read.
    Site {
        process: ProcessId,
        place: Arc<Where>,
        caller: Option<Arc<Where>>,
        guards: Arc<[Guard]>,
        /// The source is still being read: it will be told again.
        reading: bool,
    },
    /// A call is about to be made.
    Issued { process: ProcessId, call: Arc<Call> },
    /// A call came back to its caller. `followed`: it will be told when it is complete.
    Returned {
        process: ProcessId,
        thread: ThreadId,
        call: CallId,
        followed: bool,
        at: Timestamp,
    },
    /// A thread is about to wait for an earlier call; `None`: it is not known which.
    WaitBegin {
        process: ProcessId,
        thread: ThreadId,
        call: Option<CallId>,
        place: Option<Arc<Where>>,
        at: Timestamp,
    },
    /// That wait is over.
    WaitEnd {
        process: ProcessId,
        thread: ThreadId,
        call: Option<CallId>,
        at: Timestamp,
    },
    /// A call is known to be complete.
    Completed {
        process: ProcessId,
        call: CallId,
        at: Timestamp,
    },
    /// The layer below tells what a call asks of it: NCCL of what c10d does.
    Beneath {
        process: ProcessId,
        call: CallId,
        beneath: Arc<Beneath>,
        at: Timestamp,
    },
    /// A thread has entered a function of the layer below in which it may be kept; `None`: it has come back.
    Within {
        process: ProcessId,
        thread: ThreadId,
        function: Option<Arc<str>>,
        at: Timestamp,
    },
    /// A transfer over the network, of what a call is made of, has not moved since then; `None`: it goes on
    /// again, or is over.
    Transfer {
        process: ProcessId,
        call: CallId,
        transfer: Transfer,
        standing: Option<Standing>,
        at: Timestamp,
    },
    /// Nobody waits for a call any more, and nobody did; `place` is where it was made.
    Unawaited {
        process: ProcessId,
        call: CallId,
        op: Op,
        group: Option<Arc<GroupInfo>>,
        place: Option<Arc<Where>>,
        at: Timestamp,
    },
    /// A training step begins.
    Step {
        process: ProcessId,
        step: u64,
        /// The training forward that is taken for its beginning; `None`: the program marked it.
        forward: Option<Forward>,
        at: Timestamp,
    },
    /// A named phase begins.
    PhaseBegin {
        process: ProcessId,
        name: Arc<str>,
        at: Timestamp,
    },
    /// A named phase ends.
    PhaseEnd {
        process: ProcessId,
        name: Arc<str>,
        at: Timestamp,
    },
    /// An exception was seen.
    Exception {
        process: ProcessId,
        kind: ExceptionKind,
        text: Arc<str>,
        place: Option<Arc<Where>>,
        at: Timestamp,
    },
    /// The process said that it is about to end by itself.
    ExitAnnounced {
        process: ProcessId,
        thread: ThreadId,
        code: i32,
        how: Arc<str>,
        at: Timestamp,
    },
    /// An iterator over the program's input came to its end.
    InputEnded {
        process: ProcessId,
        place: Option<Arc<Where>>,
        at: Timestamp,
    },
    /// A thread has just spent some time on what is no work of its own.
    Spent {
        process: ProcessId,
        thread: ThreadId,
        on: Spending,
        took: Duration,
        place: Option<Arc<Where>>,
        at: Timestamp,
    },
    /// How the host let a process run, over the second before.
    Scheduled {
        process: ProcessId,
        sample: SchedulingSample,
        at: Timestamp,
    },
    /// Something is said of the parameters of a model whose gradients a group averages.
    Parameters {
        process: ProcessId,
        group: Arc<GroupInfo>,
        said: Parameters,
        at: Timestamp,
    },
    /// A version or a setting of a process that ranks may have to agree on.
    Setting {
        process: ProcessId,
        name: Arc<str>,
        value: Arc<str>,
        at: Timestamp,
    },
    /// The memory of a process was measured.
    Memory {
        process: ProcessId,
        sample: Box<MemorySample>,
        at: Timestamp,
    },
    /// How far a process has come in a group, by counters that lose nothing.
    Frontier {
        process: ProcessId,
        group: Arc<GroupInfo>,
        issued: u64,
        p2p_issued: u64,
    },
    /// The operating system's view of a process changed. `Dead` is the last event of a process.
    ProcessChanged {
        process: ProcessId,
        state: ProcessState,
        exit: Exit,
        oom_kills: OomKills,
        at: Timestamp,
    },
    /// The stacks of a process were taken.
    Stacks {
        process: ProcessId,
        stacks: Arc<Stacks>,
    },
    /// The evidence ends while the process lived, as far as is known: from then on nobody watched
    /// it. `read_whole`: what it recorded after that is known all the same, to the last.
    Unwatched {
        process: ProcessId,
        since: Timestamp,
        read_whole: bool,
    },
    /// What is known of the job ends here, and nobody saw how the job ended.
    EvidenceEnded { at: Timestamp },
    /// Records of a process were lost.
    RecordsLost { process: ProcessId, count: u64 },
    /// The evidence is incomplete in a known way.
    Note {
        process: Option<ProcessId>,
        kind: NoteKind,
        rank: Option<u32>,
        pid: Option<u32>,
        text: Arc<str>,
        at: Timestamp,
    },
    /// How far the clock of a host is ahead of ours, in nanoseconds, give or take an uncertainty. The
    /// times of its events are corrected by that.
    Clock {
        host: Arc<str>,
        ahead_ns: i64,
        uncertainty_ns: u64,
        at: Timestamp,
    },
    /// Nothing was heard any more of a node, whose processes are all those with this number in their
    /// names, since then; `None`: it speaks again.
    Silent {
        node: u32,
        since: Option<Timestamp>,
        at: Timestamp,
    },
    /// Somebody asked the whole job to end.
    Interrupted { signal: i32, at: Timestamp },
    /// The command of a node ended, and every black box there was read to its end.
    JobEnded { status: i32, at: Timestamp },
}

/// A process that is to be a rank, by its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedRank {
    /// The number of its node.
    pub node: u32,
    /// Its host.
    pub host: Arc<str>,
    /// Its process id there.
    pub pid: u32,
    /// Its start time, which tells it from a later one with that number.
    pub start_ticks: u64,
    /// The rank that it is to be.
    pub rank: u32,
    /// The number of ranks, as its environment says.
    pub world_size: Option<u32>,
    /// When it was first seen.
    pub seen: Timestamp,
    /// When and how it ended before it joined a process group.
    pub end: Option<(Timestamp, Exit)>,
    /// Where its threads stood, at the latest two looks.
    pub looks: Vec<Arc<Stacks>>,
}

/// Where the threads of a process stood at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    /// When.
    pub at: Timestamp,
    /// The main thread first.
    pub threads: Vec<ThreadStack>,
    /// What could not be had of it and why; empty: nothing is missing.
    pub trouble: Arc<str>,
}

/// One thread of a process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadStack {
    /// The operating system's number of it.
    pub tid: u32,
    /// As the operating system calls it.
    pub name: Arc<str>,
    /// State as in `/proc/PID/stat`: 'R', 'S', 'D', …
    pub state: Option<char>,
    /// Kernel function it sleeps in.
    pub wait_channel: Option<Arc<str>>,
    /// Processor time it has used.
    pub cpu_time: Option<Duration>,
    /// Whether it holds the interpreter's lock.
    pub holds_gil: Option<bool>,
    /// Python frames, innermost first, all of them.
    pub python: Vec<Where>,
    /// Native frames, innermost first; `file` is the object file.
    pub native: Vec<Where>,
}

/// Processes that the kernel killed for want of memory in the last moments of a process; `None`: nobody
/// could see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomKills {
    /// In its control group.
    pub in_cgroup: Option<u64>,
    /// On its host, where the control group does not tell.
    pub on_host: Option<u64>,
}

/// What was measured of the memory of a process, in bytes; `None`: whoever measured does not see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// Its resident set.
    pub rss: Option<u64>,
    /// What of that is shared memory.
    pub rss_shared: Option<u64>,
    /// What can still be taken of the host's memory without swapping.
    pub host_available: Option<u64>,
    /// The host's memory.
    pub host_total: Option<u64>,
    /// Processor time it used lately, in thousandths of one processor.
    pub cpu_permille: Option<u32>,
    /// In use in its control group, or one around it, what the kernel can take back left out.
    pub cgroup_used: Option<u64>,
    /// What that control group may have.
    pub cgroup_limit: Option<u64>,
    /// How often somebody there came up against that, …
    pub cgroup_held: Option<u64>,
    /// … and against the lower limit from which on they are slowed down.
    pub cgroup_slowed: Option<u64>,
    /// In use in its `/dev/shm`.
    pub shm_used: Option<u64>,
    /// What that has.
    pub shm_total: Option<u64>,
    /// Its address space.
    pub virtual_used: Option<u64>,
    /// What that may be.
    pub virtual_limit: Option<u64>,
    /// The device that the following is about.
    pub device: Option<u32>,
    /// In use on the device, by whomever.
    pub gpu_used: Option<u64>,
    /// What the device has.
    pub gpu_total: Option<u64>,
    /// What the framework's allocator has given to tensors.
    pub gpu_allocated: Option<u64>,
    /// What the framework's allocator holds on the device.
    pub gpu_reserved: Option<u64>,
    /// The most that it ever gave to tensors.
    pub gpu_peak: Option<u64>,
    /// What it holds in pieces left over of blocks in use.
    pub gpu_split: Option<u64>,
    /// How often it gave back all that it held before it could get more.
    pub gpu_retries: Option<u64>,
    /// How often it could get none.
    pub gpu_ooms: Option<u64>,
    /// The largest piece that it holds and has given to nobody.
    pub gpu_largest: Option<u64>,
    /// What NCCL itself holds on the device.
    pub gpu_nccl: Option<u64>,
}

/// How the host lets a process run; `None`: that was not seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulingSample {
    /// Its main thread ran, in thousandths of the time.
    pub ran_permille: Option<u32>,
    /// Its main thread was ready to run and got no processor, in thousandths of the time.
    pub queued_permille: Option<u32>,
    /// Its cgroup was kept from running by its quota, in thousandths of the time.
    pub throttled_permille: Option<u32>,
    /// Pages a second that it had to wait for to be read from a disk.
    pub major_faults: Option<u32>,
    /// The processors that it may run on ("0-3,8"); empty: unknown.
    pub processors: Arc<str>,
    /// All its threads together were ready to run and got no processor: may be more than the time.
    pub threads_queued_permille: Option<u32>,
    /// A hypervisor gave its host's processors to others, in thousandths of their time.
    pub stolen_permille: Option<u32>,
    /// Something in its cgroup, or on its host, waited for a processor, in thousandths of the time, …
    pub cpu_pressure: Option<u32>,
    /// … for memory, …
    pub memory_pressure: Option<u32>,
    /// … for a disk.
    pub io_pressure: Option<u32>,
}

/// A test in the program's source that decides whether it comes to some line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The line of the test.
    pub line: u32,
    /// The test as it is written.
    pub test: Arc<str>,
    /// What it is on.
    pub subject: GuardSubject,
    /// How the line depends on it.
    pub form: GuardForm,
}

/// What a process says of the parameters of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// What is said of them.
    pub fact: ParameterFact,
    /// The how-manieth model of the group it is in this process, from 1; 0: unknown.
    pub model: u32,
    /// Index of the first of the `lines` in the model, where they are numbered.
    pub first: u32,
    /// How many parameters it is about; `lines` may have fewer.
    pub total: u64,
    /// A line for each: element type, sizes with commas between ("-": none), name.
    pub lines: Arc<str>,
    /// The user's line.
    pub place: Option<Arc<Where>>,
    /// Training step; 0: before the first.
    pub step: u64,
}

/// A training forward that begins a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forward {
    /// The user's line and its callers': forwards of one place have the same.
    pub path: Option<Arc<str>>,
    /// Batches drawn so far where the last one before it was drawn; `None`: no input was seen.
    pub batches: Option<u64>,
    /// Its input is that of the forward before.
    pub repeated: bool,
    /// Its gradients are not to be synchronised (`no_sync`).
    pub unsynchronised: bool,
}

/// A process group as one of its members knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// What makes it the same group on another rank.
    pub key: GroupRef,
    /// The framework's description, such as "`default_pg`".
    pub description: Arc<str>,
    /// "gloo", "nccl", …
    pub backend: Arc<str>,
    /// Where the process does not know the members, which then stand empty in the key: its place among
    /// them. The model is never told of such a group: see [`super::roster`].
    pub seat: Option<Seat>,
}

/// The place of a process in a group whose members it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its rank in the group.
    pub rank: u32,
    /// Number of members.
    pub size: u32,
}

/// How a call was put on a stream of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnStream {
    /// Names the stream within its process. What is on a stream runs in order.
    pub stream: u64,
    /// Calls with the same number were given to the device together, in no order; 0: by itself.
    pub launch: u32,
}

/// What a call asks of the layer below, as that layer tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beneath {
    /// What it is there.
    pub op: Op,
    /// Reduction operator.
    pub reduce_op: ReduceOp,
    /// Global rank of the root.
    pub root: Option<u32>,
    /// The stream of a device that it was put on.
    pub on_stream: Option<OnStream>,
}

/// A transfer over the network, of those that a call is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Transfer {
    /// The other end, by its place in the group.
    pub peer: u32,
    /// Which way it goes.
    pub is_send: bool,
    /// The channel.
    pub channel: u32,
}

/// Where a transfer stands that does not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What it waits for.
    pub waits_for: WaitsFor,
    /// Steps that are done, …
    pub done: u64,
    /// … and all of them.
    pub steps: u64,
}

/// What a transfer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitsFor {
    /// The network.
    Network,
    /// The other end.
    Peer,
    /// The device.
    Device,
    /// Nobody says.
    Unknown,
}

/// A call as one rank made it.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Names it within its process.
    pub id: CallId,
    /// When.
    pub at: Timestamp,
    /// The thread that made it.
    pub thread: ThreadId,
    /// The group; `None` for calls of no group (initialisation, …). Of a call that makes a group, the
    /// one it is about to make.
    pub group: Option<Arc<GroupInfo>>,
    /// Sequence number in the group, from 1; 0: it has none. Point-to-point calls count per peer
    /// and direction.
    pub seq: u64,
    /// What it does.
    pub op: Op,
    /// Element type.
    pub dtype: DType,
    /// Reduction operator.
    pub reduce_op: ReduceOp,
    /// Global rank of the root.
    pub root: Option<u32>,
    /// Global rank of the peer.
    pub peer: Option<u32>,
    /// Tag of a point-to-point call.
    pub tag: Option<i32>,
    /// Elements of the tensor that sizes are compared by: the first input, or the first output where
    /// the inputs are a list (`reduce_scatter`, `scatter`).
    pub numel: Option<u64>,
    /// Shape of that tensor.
    pub shape: Option<Vec<u32>>,
    /// Number of tensors.
    pub tensors: u32,
    /// Of a call that makes a group: whoever makes it is known to be kept until all its members do.
    pub takes_all: bool,
    /// The caller did not ask to wait for it.
    pub is_async: bool,
    /// The stream of a device that it was put on, where that was seen.
    pub on_stream: Option<OnStream>,
    /// What it asks of the layer below, where that was seen.
    pub beneath: Option<Arc<Beneath>>,
    /// Issued by the framework (DDP's reducer, …), not by a call of the user's.
    pub hidden: bool,
    /// Split sizes of an `all_to_all`, input and output, where they were seen.
    pub splits: [Vec<u32>; 2],
    /// Training step in which it was made; 0: before the first.
    pub step: u64,
    /// The phase in which it was made.
    pub phase: Option<Arc<str>>,
    /// The user's line.
    pub place: Option<Arc<Where>>,
}

impl Call {
    /// Whether DDP averages gradients with it.
    #[must_use]
    pub fn is_bucket(&self) -> bool {
        self.hidden && self.op == Op::AllReduce
    }

    /// How much data a rank gives to it, where that is known.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let numel = self.numel.filter(|_| self.tensors <= 1)?;
        numel.checked_mul(self.dtype.size()?)
    }

    /// The reduction operator, by whoever saw it. Two layers may call the same thing by different names (NCCL
    /// takes the maximum of what c10d sums, if that is bool): each is to be compared with its like.
    #[must_use]
    pub fn told_reduce_op(&self) -> ReduceOp {
        match self.reduce_op {
            ReduceOp::Unspecified => self.reduce_op_beneath().unwrap_or_default(),
            own => own,
        }
    }

    /// The reduction operator as the layer below was asked for it, if that does the same as the call.
    #[must_use]
    pub fn reduce_op_beneath(&self) -> Option<ReduceOp> {
        let beneath = self.beneath.as_ref().filter(|it| it.op == self.op)?;
        Some(beneath.reduce_op)
    }

    /// The call with what the layer below tells of it.
    #[must_use]
    pub fn made_of(&self, beneath: &Arc<Beneath>) -> Self {
        let mut call = self.clone();
        if beneath.op == call.op {
            call.root = call.root.or(beneath.root);
        }
        call.on_stream = call.on_stream.or(beneath.on_stream);
        call.beneath = Some(Arc::clone(beneath));
        call
    }

    /// The stream that it waits on and that others wait behind; `None`: nothing of it was put on one, or
    /// that was not seen.
    #[must_use]
    pub fn queued_on(&self) -> Option<OnStream> {
        // Of what c10d asks NCCL for, everything is, whether or not somebody is to wait for it.
        self.on_stream
            .filter(|_| !self.is_async || self.beneath.is_some())
    }
}
