//! Stacks of processes, as data that serializes to the JSON of `ddp-doctor dump`.
//!
//! Field names and enum values are stable: new ones are added, existing ones are never renamed.

use serde::{Deserialize, Serialize};

use crate::report::{BlockedOn, Exit, Job, RankState, Timestamp, Tool, WaitingIn, Where};

/// Value of [`Dump::schema`].
pub const SCHEMA: &str = "ddp-doctor/dump";
/// Value of [`Dump::schema_version`].
pub const SCHEMA_VERSION: &str = "1.0";

/// The stacks of processes at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// [`SCHEMA`].
    pub schema: String,
    /// [`SCHEMA_VERSION`].
    pub schema_version: String,
    /// The program that wrote the dump.
    pub tool: Tool,
    /// The job; `None`: the dump is of a single process.
    pub job: Option<Job>,
    /// Time the dump was assembled.
    pub taken_at: Timestamp,
    /// Ranks of the job that were never seen.
    pub missing_ranks: Vec<u32>,
    /// Groups of processes whose main threads have the same frames, the smallest group first.
    pub groups: Vec<FrameGroup>,
    /// All processes, by rank.
    pub processes: Vec<Process>,
}

/// Processes whose main threads have the same frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameGroup {
    /// Indexes into [`Dump::processes`].
    pub processes: Vec<usize>,
    /// The frames, innermost first.
    pub frames: Vec<Where>,
}

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Global rank; `None`: unknown, or not a rank.
    pub rank: Option<u32>,
    /// Host name.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// State of the rank.
    pub state: RankState,
    /// Exit status, if it has ended.
    pub exit: Exit,
    /// Training step; `None`: unknown.
    pub step: Option<u64>,
    /// The call in which it waits.
    pub waiting_in: Option<WaitingIn>,
    /// Time its stacks were captured; `None` if they could not be captured.
    pub taken_at: Option<Timestamp>,
    /// Missing parts, with the reasons.
    pub trouble: Option<String>,
    /// Its threads, the main thread first.
    pub threads: Vec<Thread>,
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Thread id assigned by the operating system.
    pub tid: u32,
    /// Thread name known to the operating system.
    pub name: String,
    /// State letter, as in `/proc/PID/stat`.
    pub state: Option<String>,
    /// Kernel function in which it sleeps.
    pub wait_channel: Option<String>,
    /// Processor time used, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// Whether it holds the GIL; `None`: unknown, or not a Python thread.
    pub holds_gil: Option<bool>,
    /// Python frames, innermost first.
    pub python: Vec<Where>,
    /// Native frames, innermost first.
    pub native: Vec<Where>,
    /// What it waits for.
    #[serde(default)]
    pub blocked_on: Option<BlockedOn>,
}
