//! What a node observes of a process from outside.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::BlockKind;
use ddp_doctor_proto::report::{Exit, Timestamp, Where};

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
    /// Processes below it, parents first; a limited number.
    pub children: Vec<ChildProcess>,
    /// Paths of the files of which it holds locks; a limited number.
    pub held_locks: Vec<Arc<str>>,
}

/// A process below another one at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildProcess {
    /// Process id.
    pub pid: u32,
    /// Process id of its parent.
    pub parent: u32,
    /// Name of its main thread.
    pub name: Arc<str>,
    /// State of its main thread as in `/proc/PID/stat`.
    pub state: Option<char>,
    /// Kernel function in which its main thread sleeps.
    pub wait_channel: Option<Arc<str>>,
    /// Processor time that all its threads have used.
    pub cpu_time: Duration,
    /// Time after which the sleep of its main thread ends at the latest; `None`: it is in none, or this is unknown.
    pub ends_in: Option<Duration>,
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
    /// Time since it last ran; `None`: it runs, or the time is unknown.
    pub asleep: Option<Duration>,
    /// What it waits for; `None`: nothing, or unknown.
    pub blocked_on: Option<Arc<Blocked>>,
}

/// What a thread waits for in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Kind of the object.
    pub kind: BlockKind,
    /// The object in words: "read of /data/shard-17.tar on nfs4 server:/data".
    pub what: Arc<str>,
    /// Process at the other end: the holder of the lock, the other end of the pipe or socket, or the child.
    pub pid: Option<u32>,
    /// Rank of that process.
    pub rank: Option<u32>,
    /// Time after which the wait ends by itself at the latest; `None`: it does not, or this is unknown.
    pub ends_in: Option<Duration>,
    /// Whether it waits for processes that wait for it, and nothing else can end one of these waits.
    pub is_circle: bool,
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
    /// Recent CPU time, in thousandths of one processor.
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
}
