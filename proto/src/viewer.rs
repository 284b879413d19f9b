//! State of a running job as viewers receive it: the terminal of the run, `watch`, `status`.
//!
//! Within a process an [`Update`] is passed as a value. Between processes it is sent as JSON, in the
//! terms of the JSON report: a field that one side does not know is left out, and an unknown word
//! becomes the mildest one.

use serde::{Deserialize, Serialize};

use crate::report::{Evidence, Finding, Job, Rank, RankCall, Timestamp, Verdict, Where};

/// Changes since the previous update; the first update has everything. A single message, so that a
/// viewer never shows findings of one moment next to ranks of another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// Time of the update.
    pub at: Timestamp,
    /// The job.
    pub job: Job,
    /// Overall state of the job.
    pub verdict: Verdict,
    /// The evidence for the diagnosis.
    pub evidence: Evidence,
    /// All findings; `None`: as before.
    pub findings: Option<Vec<Finding>>,
    /// Ranks that changed since the previous update.
    pub ranks: Vec<Rank>,
    /// Ranks whose details changed since the previous update.
    pub details: Vec<RankDetail>,
    /// Groups that changed since the previous update.
    pub groups: Vec<GroupStatus>,
    /// This is the last update.
    pub ended: bool,
}

/// Details of a rank that viewers show in addition to the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankDetail {
    /// Global rank.
    pub rank: u32,
    /// Measurements, in the order in which they are shown.
    pub gauges: Vec<Gauge>,
    /// The first few ranks for which it waits, ascending.
    pub waits_for: Vec<u32>,
    /// Number of further ranks for which it waits.
    pub waits_for_more: u32,
    /// Innermost phase marked by the program; empty: none.
    pub phase: String,
    /// Records read.
    pub records: u64,
    /// Records overwritten or torn before they were read.
    pub records_lost: u64,
    /// Latest stack of its main thread, innermost frame first; empty: none was taken.
    pub stack: Vec<Where>,
    /// Time the stack was captured.
    pub stack_at: Timestamp,
    /// The process has recorded something since the stack was captured.
    #[serde(default)]
    pub has_continued: bool,
    /// Kernel function in which the main thread slept then; empty: none.
    pub wait_channel: String,
    /// Recent delay of its arrivals at collectives after the first rank, in microseconds; `None`: it
    /// took part in none.
    pub late_us: Option<u64>,
}

/// A measured value. A viewer also shows gauges with unknown names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gauge {
    /// "rss", "gpu 0", …
    pub name: String,
    /// "B": bytes; "‰": thousandths of one processor.
    pub unit: String,
    /// Latest value.
    pub value: u64,
    /// Maximum so far.
    pub peak: u64,
    /// Upper limit; `None`: unknown.
    pub limit: Option<u64>,
    /// Growth; `None`: the value does not grow steadily from step to step.
    pub growth: Option<Growth>,
}

/// A value that grows with every step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// Increase per step, in the unit of the gauge.
    pub per_step: f64,
    /// First step of the observed growth.
    pub from_step: u64,
    /// Last step of the observed growth.
    pub to_step: u64,
    /// End of the growth; `None`: no end is expected.
    pub end: Option<GrowthEnd>,
}

/// Expected end of a growing value if the growth continues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthEnd {
    /// The value at the end.
    pub value: u64,
    /// The exhausted resource, as a phrase within a sentence: "its control group".
    pub of: String,
    /// Estimated number of steps until the end, counted from `to_step`.
    pub steps: u64,
    /// Lower bound of `steps`.
    pub least: u64,
    /// Upper bound of `steps`; `None`: the end may never come.
    pub most: Option<u64>,
}

/// Current state of one process group: progress of each member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Identifies the group during the lifetime of the coordinator.
    pub number: u32,
    /// Name of the group.
    pub name: String,
    /// Its description in the framework.
    pub description: String,
    /// The layer that captures its calls.
    pub layer: String,
    /// "gloo", …
    pub backend: String,
    /// Global ranks in group order. `issued` and `completed` use the same order.
    pub ranks: Vec<u32>,
    /// Highest sequence number issued; 0: none, or the rank was not seen in the group.
    pub issued: Vec<u64>,
    /// Highest sequence number known to be complete.
    pub completed: Vec<u64>,
    /// Members that were never seen in the group.
    pub unseen: Vec<u32>,
    /// First sequence number whose calls cannot match.
    pub diverged: Option<u64>,
    /// Calls at its latest sequence numbers, ascending. Collectives that all members have called and
    /// waited for are not kept.
    pub calls: Vec<CallsAt>,
}

/// The calls of a group's members at one sequence number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallsAt {
    /// Sequence number in the group.
    pub seq: u64,
    /// The calls cannot match.
    pub mismatch: bool,
    /// Ascending by rank; without `waited_ms`, so that a stalled collective does not change with
    /// time.
    pub calls: Vec<RankCall>,
    /// Number of known calls that are not listed here, because there are too many.
    pub more: u32,
}
