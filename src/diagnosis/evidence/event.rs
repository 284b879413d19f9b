//! The input of the engine. Events are self-contained: they refer neither to tables of a black box
//! nor to numbers that another message defines.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::{Exit, GroupRef, Timestamp, Where};
use ddp_doctor_proto::{
    DType, ExceptionKind, GuardForm, GuardSubject, NoteKind, Op, ParameterFact, ProcessState,
    ReduceOp, Spending,
};

/// Identifies a process within a job, across nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

impl ProcessId {
    /// Id of a process from the number of its node within the job and its number on that node.
    #[must_use]
    pub const fn of(node: u32, process: u32) -> Self {
        Self((node as u64) << 32 | process as u64)
    }

    /// Number of the node.
    #[must_use]
    pub const fn node(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Identifies a thread within its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// Identifies a call within its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// One event of the job, or of one process if it has a `process`.
///
/// Events of one process are in the order in which they happened. The order between processes is
/// arbitrary; the end of a process follows everything that it recorded.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    missing_docs,
    reason = "the fields are those of `ddpdoctor/v1/agent.proto`"
)]
pub enum Event {
    /// A node started the job, or its part of it.
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
        /// Number of earlier starts of its rank, as counted by the launcher.
        restarts: u32,
        at: Timestamp,
    },
    /// A process that is to become a rank has started, and has not joined a process group so far.
    /// Sent again when more is known about it.
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
    /// Calls that the process makes in the group from now on time out after this long.
    GroupTimeout {
        process: ProcessId,
        group: Arc<GroupInfo>,
        timeout: Duration,
        at: Timestamp,
    },
    /// How the program reaches a place. Sent at the first visit, and again after the source was
    /// read.
    Site {
        process: ProcessId,
        place: Arc<Where>,
        caller: Option<Arc<Where>>,
        guards: Arc<[Guard]>,
        /// The source is still being read; the event will be sent again.
        reading: bool,
    },
    /// A call is about to be issued.
    Issued { process: ProcessId, call: Arc<Call> },
    /// A call returned to its caller. `followed`: its completion will be reported.
    Returned {
        process: ProcessId,
        thread: ThreadId,
        call: CallId,
        followed: bool,
        at: Timestamp,
    },
    /// A thread is about to wait for an earlier call; `None`: the call is unknown.
    WaitBegin {
        process: ProcessId,
        thread: ThreadId,
        call: Option<CallId>,
        place: Option<Arc<Where>>,
        at: Timestamp,
    },
    /// The wait ended.
    WaitEnd {
        process: ProcessId,
        thread: ThreadId,
        call: Option<CallId>,
        at: Timestamp,
    },
    /// A call has completed.
    Completed {
        process: ProcessId,
        call: CallId,
        at: Timestamp,
    },
    /// The layer below reported the contents of a call: NCCL, for a call of c10d.
    Beneath {
        process: ProcessId,
        call: CallId,
        beneath: Arc<Beneath>,
        at: Timestamp,
    },
    /// A thread entered a function of the layer below that may block; `None`: it returned.
    Within {
        process: ProcessId,
        thread: ThreadId,
        function: Option<Arc<str>>,
        at: Timestamp,
    },
    /// A network transfer of a call has not moved since `at`; `standing` is `None` if it moves
    /// again or has ended.
    Transfer {
        process: ProcessId,
        call: CallId,
        transfer: Transfer,
        standing: Option<Standing>,
        at: Timestamp,
    },
    /// A call can no longer be waited for, and no wait for it was seen. `place` is where it was
    /// issued.
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
        /// Training forward that starts the step; `None`: the program marked the step.
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
    /// An exception was observed.
    Exception {
        process: ProcessId,
        kind: ExceptionKind,
        text: Arc<str>,
        place: Option<Arc<Where>>,
        at: Timestamp,
    },
    /// The process announced that it is about to exit.
    ExitAnnounced {
        process: ProcessId,
        thread: ThreadId,
        code: i32,
        how: Arc<str>,
        at: Timestamp,
    },
    /// An iterator over the input of the program is exhausted.
    InputEnded {
        process: ProcessId,
        place: Option<Arc<Where>>,
        at: Timestamp,
    },
    /// A thread spent time on something other than its own work, ending at `at`.
    Spent {
        process: ProcessId,
        thread: ThreadId,
        on: Spending,
        took: Duration,
        place: Option<Arc<Where>>,
        at: Timestamp,
    },
    /// How the host scheduled the process during the preceding second.
    Scheduled {
        process: ProcessId,
        sample: SchedulingSample,
        at: Timestamp,
    },
    /// A fact about the parameters of a model whose gradients a group averages.
    Parameters {
        process: ProcessId,
        group: Arc<GroupInfo>,
        said: Parameters,
        at: Timestamp,
    },
    /// A version or setting that ranks may have to agree on.
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
    /// Progress of a process in a group, from counters that survive lost records.
    Frontier {
        process: ProcessId,
        group: Arc<GroupInfo>,
        issued: u64,
        p2p_issued: u64,
    },
    /// The state of a process in the operating system changed. `Dead` is the last event of a
    /// process.
    ProcessChanged {
        process: ProcessId,
        state: ProcessState,
        exit: Exit,
        oom_kills: OomKills,
        at: Timestamp,
    },
    /// The stacks of a process were captured.
    Stacks {
        process: ProcessId,
        stacks: Arc<Stacks>,
    },
    /// The process was not observed from `since` on, and had not ended then as far as is known.
    /// `read_whole`: all of its records are known nevertheless.
    Unwatched {
        process: ProcessId,
        since: Timestamp,
        read_whole: bool,
    },
    /// The evidence ends here; the end of the job was not observed.
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
    /// Offset of the clock of a host to the coordinator's, in nanoseconds; positive: it is ahead.
    /// The times in events of that host are already corrected.
    Clock {
        host: Arc<str>,
        ahead_ns: i64,
        uncertainty_ns: u64,
        at: Timestamp,
    },
    /// A node stopped reporting at `since`; `None`: it reports again. Its processes are those with
    /// this node number in their ids.
    Silent {
        node: u32,
        since: Option<Timestamp>,
        at: Timestamp,
    },
    /// The whole job was asked to end.
    Interrupted { signal: i32, at: Timestamp },
    /// The command of a node ended, and all of its black boxes were read to the end.
    JobEnded { status: i32, at: Timestamp },
}

/// A process that is to become a rank, according to its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedRank {
    /// Number of the node.
    pub node: u32,
    /// Host name.
    pub host: Arc<str>,
    /// Process id on that host.
    pub pid: u32,
    /// Start time in clock ticks since boot; distinguishes it from a later process with the same
    /// id.
    pub start_ticks: u64,
    /// Rank from the environment.
    pub rank: u32,
    /// World size from the environment.
    pub world_size: Option<u32>,
    /// When it was first observed.
    pub seen: Timestamp,
    /// Time and status of its end, if it ended before it joined a process group.
    pub end: Option<(Timestamp, Exit)>,
    /// Its stacks, the latest two captures.
    pub looks: Vec<Arc<Stacks>>,
}

/// The stacks of a process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stacks {
    /// Time of the capture.
    pub at: Timestamp,
    /// Threads, the main thread first.
    pub threads: Vec<ThreadStack>,
    /// What could not be captured, and why; empty if nothing is missing.
    pub trouble: Arc<str>,
}

/// One thread of a process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadStack {
    /// Thread id in the operating system.
    pub tid: u32,
    /// Thread name in the operating system.
    pub name: Arc<str>,
    /// State as in `/proc/PID/stat`: 'R', 'S', 'D', …
    pub state: Option<char>,
    /// Kernel function it sleeps in.
    pub wait_channel: Option<Arc<str>>,
    /// Processor time it has used.
    pub cpu_time: Option<Duration>,
    /// Whether it holds the global interpreter lock.
    pub holds_gil: Option<bool>,
    /// All Python frames, innermost first.
    pub python: Vec<Where>,
    /// Native frames, innermost first; `file` is the object file.
    pub native: Vec<Where>,
}

/// Processes that the kernel killed for lack of memory shortly before a process ended; `None`:
/// unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomKills {
    /// In the control group of the process.
    pub in_cgroup: Option<u64>,
    /// On its host, where the control group gives no count.
    pub on_host: Option<u64>,
}

/// Memory of a process, in bytes; `None`: not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// Resident set.
    pub rss: Option<u64>,
    /// Shared memory within the resident set.
    pub rss_shared: Option<u64>,
    /// Memory of the host that can be allocated without swapping.
    pub host_available: Option<u64>,
    /// Total memory of the host.
    pub host_total: Option<u64>,
    /// Recent processor time, in thousandths of one processor.
    pub cpu_permille: Option<u32>,
    /// In use in its control group or one around it, without memory that the kernel can reclaim.
    pub cgroup_used: Option<u64>,
    /// Limit of that control group.
    pub cgroup_limit: Option<u64>,
    /// Number of reclaims at that limit since the control group was created.
    pub cgroup_held: Option<u64>,
    /// Number of reclaims at `memory.high`, above which its processes are slowed down.
    pub cgroup_slowed: Option<u64>,
    /// In use in its `/dev/shm`.
    pub shm_used: Option<u64>,
    /// Size of its `/dev/shm`.
    pub shm_total: Option<u64>,
    /// Address space.
    pub virtual_used: Option<u64>,
    /// Limit of the address space.
    pub virtual_limit: Option<u64>,
    /// Device that the following fields describe.
    pub device: Option<u32>,
    /// In use on the device, by all processes.
    pub gpu_used: Option<u64>,
    /// Total memory of the device.
    pub gpu_total: Option<u64>,
    /// Given to tensors by the framework's allocator.
    pub gpu_allocated: Option<u64>,
    /// Held on the device by the framework's allocator.
    pub gpu_reserved: Option<u64>,
    /// Peak of the memory given to tensors.
    pub gpu_peak: Option<u64>,
    /// Held in unused parts of blocks that are partly in use.
    pub gpu_split: Option<u64>,
    /// Number of times the allocator released its free memory to retry an allocation.
    pub gpu_retries: Option<u64>,
    /// Number of allocations that failed for lack of memory.
    pub gpu_ooms: Option<u64>,
    /// Largest free block that the allocator holds.
    pub gpu_largest: Option<u64>,
    /// Held on the device by NCCL itself.
    pub gpu_nccl: Option<u64>,
}

/// How the host schedules a process; `None`: not measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulingSample {
    /// Running time of the main thread, in thousandths of the interval.
    pub ran_permille: Option<u32>,
    /// Time in which the main thread was ready but had no processor, in thousandths of the
    /// interval.
    pub queued_permille: Option<u32>,
    /// Time in which the quota of its control group kept it from running, in thousandths.
    pub throttled_permille: Option<u32>,
    /// Pages per second that it had to wait for to be read from disk.
    pub major_faults: Option<u32>,
    /// Processors that it may run on ("0-3,8"); empty: unknown.
    pub processors: Arc<str>,
    /// Time in which threads were ready but had no processor, in thousandths, summed over all
    /// threads.
    pub threads_queued_permille: Option<u32>,
    /// Processor time of the host that a hypervisor gave to others, in thousandths.
    pub stolen_permille: Option<u32>,
    /// Pressure stall information ("some") of its control group or host, for processors, in
    /// thousandths.
    pub cpu_pressure: Option<u32>,
    /// Pressure for memory, in thousandths.
    pub memory_pressure: Option<u32>,
    /// Pressure for I/O, in thousandths.
    pub io_pressure: Option<u32>,
}

/// A test in the source of the program that decides whether it reaches a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Line of the test.
    pub line: u32,
    /// Source text of the test.
    pub test: Arc<str>,
    /// What it tests.
    pub subject: GuardSubject,
    /// How the line depends on it.
    pub form: GuardForm,
}

/// A fact about the parameters of a model, as a process reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Kind of fact.
    pub fact: ParameterFact,
    /// 1-based index of the model within the group in this process; 0: unknown.
    pub model: u32,
    /// Index in the model of the first of the `lines`, for facts that number them.
    pub first: u32,
    /// Number of parameters concerned; `lines` may have fewer.
    pub total: u64,
    /// One line per parameter: element type, sizes separated by commas ("-": none), name.
    pub lines: Arc<str>,
    /// Line in the user's program.
    pub place: Option<Arc<Where>>,
    /// Training step; 0: before the first.
    pub step: u64,
    /// Element type of `values`.
    pub dtype: DType,
    /// Bits of some elements of the parameter with index `first`, of 64-bit elements the upper half.
    pub values: Vec<u32>,
}

/// A training forward that begins a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forward {
    /// The user's line and its callers; equal for forwards at the same place.
    pub path: Option<Arc<str>>,
    /// Batches drawn when the last one before it was drawn; `None`: no input was seen.
    pub batches: Option<u64>,
    /// Its input is that of the preceding forward.
    pub repeated: bool,
    /// Its gradients are not synchronised (`no_sync`).
    pub unsynchronised: bool,
}

/// A process group as known to one of its members.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupInfo {
    /// Identity of the group, equal on all members.
    pub key: GroupRef,
    /// Description given by the framework, such as "`default_pg`".
    pub description: Arc<str>,
    /// "gloo", "nccl", …
    pub backend: Arc<str>,
    /// Position in the group, if the process does not know the members; `key.members` is empty
    /// then. The model never receives such a group: see [`crate::evidence::roster`].
    pub seat: Option<Seat>,
}

impl GroupInfo {
    /// The first group of c10d with this name.
    #[must_use]
    pub fn c10d(
        name: &str,
        description: impl Into<Arc<str>>,
        backend: impl Into<Arc<str>>,
        members: Vec<u32>,
    ) -> Self {
        Self {
            key: GroupRef {
                layer: "c10d".into(),
                epoch: 0,
                name: name.into(),
                ordinal: 0,
                members,
            },
            description: description.into(),
            backend: backend.into(),
            seat: None,
        }
    }
}

/// Position of a process in a group whose members it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    /// Rank within the group.
    pub rank: u32,
    /// Number of members.
    pub size: u32,
}

/// How a call was enqueued on a stream of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnStream {
    /// Identifies the stream within its process. Operations on a stream run in order.
    pub stream: u64,
    /// Calls with the same number were launched together, without an order; 0: launched alone.
    pub launch: u32,
}

/// The contents of a call as reported by the layer below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beneath {
    /// Operation in that layer.
    pub op: Op,
    /// Reduction operator.
    pub reduce_op: ReduceOp,
    /// Global rank of the root.
    pub root: Option<u32>,
    /// Stream that it was enqueued on.
    pub on_stream: Option<OnStream>,
}

/// A network transfer that belongs to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Transfer {
    /// Group rank of the peer.
    pub peer: u32,
    /// Whether it sends.
    pub is_send: bool,
    /// Channel of the communicator.
    pub channel: u32,
}

/// Progress of a stalled transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What it waits for.
    pub waits_for: WaitsFor,
    /// Completed steps.
    pub done: u64,
    /// Total number of steps.
    pub steps: u64,
}

/// What a stalled transfer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitsFor {
    /// The network.
    Network,
    /// The other rank.
    Peer,
    /// The local device.
    Device,
    /// Not reported.
    Unknown,
}

/// A call as issued by one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Identifies it within its process.
    pub id: CallId,
    /// Time the call was issued, coordinator clock.
    pub at: Timestamp,
    /// Thread that issued it.
    pub thread: ThreadId,
    /// Group; `None` for calls outside any group (initialisation, …). For a call that creates a
    /// group, the group to be created.
    pub group: Option<Arc<GroupInfo>>,
    /// 1-based sequence number in the group; 0: none. Point-to-point calls count per peer and
    /// direction.
    pub seq: u64,
    /// Operation.
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
    /// Elements of the tensor that sizes are compared by: the first input, or the first output
    /// where the inputs are a list (`reduce_scatter`, `scatter`).
    pub numel: Option<u64>,
    /// Shape of that tensor.
    pub shape: Option<Vec<u32>>,
    /// Number of tensors.
    pub tensors: u32,
    /// For a call that creates a group: it is known to block until all members make it.
    pub takes_all: bool,
    /// The caller asked not to wait for it.
    pub is_async: bool,
    /// Stream that it was enqueued on, if recorded.
    pub on_stream: Option<OnStream>,
    /// Its contents in the layer below, if reported.
    pub beneath: Option<Arc<Beneath>>,
    /// Issued by the framework (DDP's reducer, …), not by the user's program.
    pub hidden: bool,
    /// Split sizes of an `all_to_all` in elements, input and output, if recorded: one per member, or
    /// one alone, a total that is divided evenly.
    pub splits: [Vec<u32>; 2],
    /// Training step in which it was issued; 0: before the first.
    pub step: u64,
    /// Phase in which it was issued.
    pub phase: Option<Arc<str>>,
    /// Line in the user's program.
    pub place: Option<Arc<Where>>,
}

impl Call {
    /// A call of one tensor outside any group, of which nothing else is known.
    #[must_use]
    pub fn new(id: CallId, at: Timestamp, thread: ThreadId, op: Op) -> Self {
        Self {
            id,
            at,
            thread,
            group: None,
            seq: 0,
            op,
            dtype: DType::Unspecified,
            reduce_op: ReduceOp::Unspecified,
            root: None,
            peer: None,
            tag: None,
            numel: None,
            shape: None,
            tensors: 1,
            takes_all: false,
            is_async: false,
            on_stream: None,
            beneath: None,
            hidden: false,
            splits: [Vec::new(), Vec::new()],
            step: 0,
            phase: None,
            place: None,
        }
    }

    /// Whether it is a call by which DDP averages gradients.
    #[must_use]
    pub fn is_bucket(&self) -> bool {
        self.hidden && self.op == Op::AllReduce
    }

    /// Bytes that a rank contributes, if known.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let numel = self.numel.filter(|_| self.tensors <= 1)?;
        numel.checked_mul(self.dtype.size()?)
    }

    /// Whether the call differs from another one in its time, number, thread and step only.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let Self {
            id: _,
            at: _,
            thread: _,
            seq: _,
            step: _,
            group,
            op,
            dtype,
            reduce_op,
            root,
            peer,
            tag,
            numel,
            shape,
            tensors,
            takes_all,
            is_async,
            on_stream,
            beneath,
            hidden,
            splits,
            phase,
            place,
        } = self;
        // Most likely different first.
        *place == other.place
            && *numel == other.numel
            && *op == other.op
            && *group == other.group
            && *shape == other.shape
            && *splits == other.splits
            && (*root, *peer, *tag) == (other.root, other.peer, other.tag)
            && (*dtype, *reduce_op, *tensors) == (other.dtype, other.reduce_op, other.tensors)
            && (*takes_all, *is_async, *hidden) == (other.takes_all, other.is_async, other.hidden)
            && *on_stream == other.on_stream
            && *beneath == other.beneath
            && *phase == other.phase
    }

    /// The reduction operator from the layer that reported it. Layers may name one reduction
    /// differently (c10d sums bools, NCCL takes their maximum): compare only operators of the same
    /// layer.
    #[must_use]
    pub fn known_reduce_op(&self) -> ReduceOp {
        match self.reduce_op {
            ReduceOp::Unspecified => self.reduce_op_beneath().unwrap_or_default(),
            own => own,
        }
    }

    /// The reduction operator in the layer below, if its operation is the same as that of the call.
    #[must_use]
    pub fn reduce_op_beneath(&self) -> Option<ReduceOp> {
        let beneath = self.beneath.as_ref().filter(|it| it.op == self.op)?;
        Some(beneath.reduce_op)
    }

    /// The call with the contents that the layer below reported.
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

    /// Stream that the call occupies, so that later operations wait for it; `None`: not enqueued on
    /// one, or not recorded.
    #[must_use]
    pub fn queued_on(&self) -> Option<OnStream> {
        // All calls of c10d on NCCL do, whether or not the caller waits for them.
        self.on_stream
            .filter(|_| !self.is_async || self.beneath.is_some())
    }
}
