//! The input of the engine. Events are self-contained: they refer neither to tables of a black box
//! nor to numbers that another message defines.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::{Exit, Finding, Timestamp, Where};
use ddp_doctor_proto::{ExceptionKind, NoteKind, Op, ProcessState, Spending};

mod call;
mod device_calls;
mod gpus;
mod note;
mod ports;
mod program;
mod samples;

pub use call::{
    Call, GroupInfo, LowerCall, OnStream, Seat, StalledTransfer, Transfer, Unstated, WaitsFor,
};
pub use device_calls::{DeviceCall, DeviceCalls, DeviceGroup};
pub use gpus::{GpuFaultKind, GpuIdentity, GpuSample};
pub use note::NoteText;
pub use ports::{PortIdentity, PortSample};
pub use program::{Forward, Guard, OtherBranch, Parameters};
pub use samples::{
    Blocked, ChildProcess, MemorySample, OomKills, SchedulingSample, Stacks, StartedRank,
    ThreadStack,
};

/// Identifies a process within a job, across nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

impl ProcessId {
    /// Id of a process from the number of its node within the job and its number on that node.
    pub const fn new(node: u32, process: u32) -> Self {
        Self((node as u64) << 32 | process as u64)
    }

    /// Number of the node.
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

/// The number of calls that a process issued in a group, if it may have issued any number of them.
pub const UNKNOWN_PROGRESS: u64 = u64::MAX >> 1;

/// One event of the job, or of one process if it has a `process`.
///
/// Events of one process are in the order in which they happened. The order between processes is
/// arbitrary; the end of a process follows everything that it recorded.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the fields are those of `ddpdoctor/v1/agent.proto`")]
pub enum Event {
    /// A node started the job, or its part of it.
    JobStarted { job: String, attempt: u32, host: Arc<str>, at: Timestamp },
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
    GroupJoined { process: ProcessId, group: Arc<GroupInfo> },
    /// A process left a group.
    GroupDestroyed { process: ProcessId, group: Arc<GroupInfo>, at: Timestamp },
    /// Calls that the process makes in the group from now on time out after this long.
    GroupTimeout { process: ProcessId, group: Arc<GroupInfo>, timeout: Duration, at: Timestamp },
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
    Returned { process: ProcessId, thread: ThreadId, call: CallId, followed: bool, at: Timestamp },
    /// A thread is about to wait for an earlier call; `None`: the call is unknown.
    WaitBegin {
        process: ProcessId,
        thread: ThreadId,
        call: Option<CallId>,
        place: Option<Arc<Where>>,
        at: Timestamp,
    },
    /// The wait ended.
    WaitEnd { process: ProcessId, thread: ThreadId, call: Option<CallId>, at: Timestamp },
    /// A call has completed.
    Completed { process: ProcessId, call: CallId, at: Timestamp },
    /// The layer below reported the contents of a call: NCCL, for a call of c10d.
    LowerCall { process: ProcessId, call: CallId, lower_call: Arc<LowerCall>, at: Timestamp },
    /// A thread entered a function of the layer below that may block; `None`: it returned.
    Within { process: ProcessId, thread: ThreadId, function: Option<Arc<str>>, at: Timestamp },
    /// A network transfer of a call has not moved since `at`; `standing` is `None` if it moves
    /// again or has ended.
    Transfer {
        process: ProcessId,
        call: CallId,
        transfer: Transfer,
        standing: Option<StalledTransfer>,
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
        /// The thread that begins it.
        thread: ThreadId,
        step: u64,
        /// Training forward that starts the step; `None`: the program marked the step.
        forward: Option<Forward>,
        at: Timestamp,
    },
    /// A named phase begins.
    PhaseBegin { process: ProcessId, name: Arc<str>, at: Timestamp },
    /// A named phase ends.
    PhaseEnd { process: ProcessId, name: Arc<str>, at: Timestamp },
    /// An exception was observed.
    Exception {
        process: ProcessId,
        kind: ExceptionKind,
        text: Arc<str>,
        place: Option<Arc<Where>>,
        at: Timestamp,
    },
    /// The process announced that it is about to exit; `place`: the line that ends it.
    ExitAnnounced {
        process: ProcessId,
        thread: ThreadId,
        code: i32,
        how: Arc<str>,
        place: Option<Arc<Where>>,
        at: Timestamp,
    },
    /// An iterator over the input of the program is exhausted.
    InputEnded {
        process: ProcessId,
        /// The last of this many batches was drawn; `None`: the iterator has ended.
        batches: Option<u64>,
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
    Scheduled { process: ProcessId, sample: SchedulingSample, at: Timestamp },
    /// The state of a GPU of a node was measured. It holds until the next sample.
    GpuSampled { gpu: Arc<GpuIdentity>, sample: Box<GpuSample>, at: Timestamp },
    /// A GPU of a node reported a fault.
    GpuFailed { gpu: Arc<GpuIdentity>, kind: GpuFaultKind, at: Timestamp },
    /// The state of a network port of a node was measured.
    PortSampled { port: Arc<PortIdentity>, sample: PortSample, at: Timestamp },
    /// A fact about the parameters of a model whose gradients a group averages.
    Parameters { process: ProcessId, group: Arc<GroupInfo>, said: Parameters, at: Timestamp },
    /// A version or setting that ranks may have to agree on.
    Setting { process: ProcessId, name: Arc<str>, value: Arc<str>, at: Timestamp },
    /// The memory of a process was measured.
    Memory { process: ProcessId, sample: Box<MemorySample>, at: Timestamp },
    /// Progress of a process in a group, from counters that survive lost records.
    Frontier { process: ProcessId, group: Arc<GroupInfo>, issued: u64, p2p_issued: u64 },
    /// The state of a process in the operating system changed. `Dead` is the last event of a
    /// process.
    ProcessChanged {
        process: ProcessId,
        state: ProcessState,
        exit: Exit,
        oom_kills: OomKills,
        at: Timestamp,
    },
    /// A thread, with its id in the operating system as the process knows it.
    ThreadDefined { process: ProcessId, thread: ThreadId, tid: u32 },
    /// The stacks of a process were captured.
    Stacks { process: ProcessId, stacks: Arc<Stacks> },
    /// A dump showed which collectives of a process its device has completed.
    DeviceCalls { process: ProcessId, calls: Arc<DeviceCalls> },
    /// The process was not observed from `since` on, and had not ended then as far as is known.
    /// `read_whole`: all of its records are known nevertheless. `exit`: how it ended later, if that is
    /// known.
    Unwatched { process: ProcessId, since: Timestamp, read_whole: bool, exit: Exit },
    /// The evidence ends here; the end of the job was not observed.
    EvidenceEnded { at: Timestamp },
    /// Records of a process were lost.
    RecordsLost { process: ProcessId, count: u64 },
    /// Records of a process between these times were lost or left out; it has records before and after.
    Gap { process: ProcessId, from: Timestamp, to: Timestamp },
    /// A process has reached a training step; the records about it were left out.
    StepReached { process: ProcessId, step: u64, at: Timestamp },
    /// The records of a process from its previous event to its next one were left out, because digests
    /// covered them: its calls agreed with those of its peers, and those that ended did so in order.
    RecordsLeftOut {
        process: ProcessId,
        /// Threads that are still inside the call or wait of their latest event.
        inside: Vec<ThreadId>,
        /// All its threads with events, of which every one may have been left out.
        threads: Vec<ThreadId>,
    },
    /// The evidence is incomplete in a known way.
    Note {
        process: Option<ProcessId>,
        kind: NoteKind,
        rank: Option<u32>,
        pid: Option<u32>,
        text: NoteText,
        at: Timestamp,
    },
    /// Offset of the clock of a host to the coordinator's, in nanoseconds; positive: it is ahead.
    /// The times in events of that host are already corrected.
    Clock { host: Arc<str>, ahead_ns: i64, uncertainty_ns: u64, at: Timestamp },
    /// A node stopped reporting at `since`; `None`: it reports again. Its processes are those with
    /// this node number in their ids.
    Silent { node: u32, since: Option<Timestamp>, at: Timestamp },
    /// The name that an engine gives to the process of a rank, such as `Worker_TP3`.
    WorkerNamed { process: ProcessId, name: Arc<str> },
    /// The log of a process states what happened in it while others waited for it.
    Stated { process: ProcessId, what: Stated, at: Timestamp },
    /// The node of a process failed, and the process with it.
    NodeFailed { process: ProcessId, failure: Arc<NodeFailure> },
    /// A process failed whose rank the evidence does not state.
    UnplacedFailure(Arc<UnplacedFailure>),
    /// The whole job was asked to end.
    Interrupted { signal: i32, at: Timestamp },
    /// The command of a node ended, and all of its black boxes were read to the end; `reason`: the
    /// finding for which it is being ended.
    JobEnded { status: i32, reason: Option<KillReason>, at: Timestamp },
}

/// What the log of a process states that does not end it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stated {
    /// The program logged this exception, and continued.
    Caught(Arc<str>),
    /// Its watchdog was blocked, for this many seconds if that is stated.
    WatchdogBlocked(Option<u64>),
}

/// The failure of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFailure {
    /// Name or address of the node.
    pub node: Arc<str>,
    /// The batch system that reports it.
    pub by: &'static str,
    /// What to do.
    pub next: &'static str,
}

/// The failure of a process whose rank the evidence does not state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnplacedFailure {
    /// What the evidence calls the process.
    pub name: Arc<str>,
    /// The exception that ended it, if it raised one, and its line.
    pub raised: Option<(Arc<str>, Option<Arc<Where>>)>,
    /// How it ended, as far as known.
    pub exit: Exit,
    /// Time of the failure, as the evidence states it.
    pub at: Timestamp,
}

/// Identifies the finding for which a job is ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KillReason {
    /// Its code.
    pub code: Arc<str>,
    /// Name of its group; empty: none.
    pub group: Arc<str>,
    /// Its sequence number; 0: none.
    pub seq: u64,
}

impl KillReason {
    /// Whether this finding is the reason.
    pub fn is(&self, finding: &Finding) -> bool {
        let group = finding.group.as_ref().map_or("", |group| &group.name);
        *self.code == *finding.code && *self.group == *group && self.seq == finding.seq.unwrap_or(0)
    }
}
