//! Where ranks stand, as data that serializes to the JSON of `ddp-doctor dump`.
//!
//! Field names and words here are promises: they are added to, never renamed.

use serde::{Deserialize, Serialize};

use crate::report::{Exit, Job, RankState, Timestamp, Tool, WaitingIn, Where};

/// Value of [`Dump::schema`].
pub const SCHEMA: &str = "ddp-doctor/dump";
/// Value of [`Dump::schema_version`].
pub const SCHEMA_VERSION: &str = "1.0";

/// Where processes stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// [`SCHEMA`].
    pub schema: String,
    /// [`SCHEMA_VERSION`].
    pub schema_version: String,
    /// What wrote it.
    pub tool: Tool,
    /// Whose ranks they are; `None`: it was asked about one process.
    pub job: Option<Job>,
    /// When it was put together.
    pub taken_at: Timestamp,
    /// Ranks of the job that were never seen.
    pub missing_ranks: Vec<u32>,
    /// Processes whose main threads have the same frames: the smallest group first.
    pub groups: Vec<Group>,
    /// All of them, by rank.
    pub processes: Vec<Process>,
}

/// Processes whose main threads have the same frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Indexes into [`Dump::processes`].
    pub processes: Vec<usize>,
    /// The frames, innermost first.
    pub frames: Vec<Where>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Global rank; `None`: it is not known to be one.
    pub rank: Option<u32>,
    /// Host.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// State.
    pub state: RankState,
    /// How it ended.
    pub exit: Exit,
    /// Training step; `None`: it is not known.
    pub step: Option<u64>,
    /// The call it waits in.
    pub waiting_in: Option<WaitingIn>,
    /// When its stacks were taken; `None`: they were not.
    pub taken_at: Option<Timestamp>,
    /// What could not be had, and why.
    pub trouble: Option<String>,
    /// Its threads, the main thread first.
    pub threads: Vec<Thread>,
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// The operating system's number of it.
    pub tid: u32,
    /// As the operating system calls it.
    pub name: String,
    /// State letter, as in `/proc/PID/stat`.
    pub state: Option<String>,
    /// Kernel function that it sleeps in.
    pub wait_channel: Option<String>,
    /// Processor time that it has used.
    pub cpu_ms: Option<u64>,
    /// Whether it holds the interpreter's lock.
    pub holds_gil: Option<bool>,
    /// Python frames, innermost first.
    pub python: Vec<Where>,
    /// Native frames, innermost first.
    pub native: Vec<Where>,
}
