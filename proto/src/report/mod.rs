//! Findings and the report, as data that serializes to the JSON on which users and scripts rely.
//!
//! Field names and enum values are stable: new ones are added, existing ones are never renamed.

mod certificate;
mod timestamp;
mod words;

use serde::{Deserialize, Serialize};

pub use certificate::{
    CallSignature, Certificate, Fact, GroupRef, JoinFact, ModelFact, ReplicaFact, SettingFact,
    SplitFact,
};
pub use timestamp::Timestamp;
pub use words::{
    ActivityKind, CallState, CauseKind, CertificateKind, Confidence, DeviceActivity, Effect,
    RankState, Role, Severity, Verdict,
};

/// Value of [`Report::schema`].
pub const SCHEMA: &str = "ddp-doctor/report";
/// Value of [`Report::schema_version`].
pub const SCHEMA_VERSION: &str = "1.0";
/// Maximum length of [`Finding::headline`], in characters.
pub const MAX_HEADLINE_CHARS: usize = 160;

/// The JSON report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// [`SCHEMA_VERSION`].
    pub schema_version: String,
    /// The program that wrote the report.
    pub tool: Tool,
    /// The diagnosed job.
    pub job: Job,
    /// Overall state of the job.
    pub verdict: Verdict,
    /// The evidence for the diagnosis.
    pub evidence: Evidence,
    /// Initiating first, then by severity.
    pub findings: Vec<Finding>,
    /// All ranks that were seen.
    pub ranks: Vec<Rank>,
}

/// Name and version of this program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// "ddp-doctor".
    pub name: String,
    /// Its version.
    pub version: String,
}

impl Tool {
    /// Name and version of this build.
    #[must_use]
    pub fn this() -> Self {
        Self { name: "ddp-doctor".into(), version: crate::version::VERSION.into() }
    }
}

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Identifies the job.
    pub id: String,
    /// Index of this start of the job, from 0.
    pub attempt: u32,
    /// Number of ranks, once known.
    pub world_size: Option<u32>,
    /// Nodes that reported; 0: unknown, `null` in JSON.
    #[serde(with = "unknown_is_null")]
    pub nodes: u32,
    /// Communication backends in use.
    pub backends: Vec<String>,
    /// Start time of the job.
    pub started_at: Option<Timestamp>,
    /// End time of the job; `None` while it is running.
    pub ended_at: Option<Timestamp>,
}

/// Evidence for the diagnosis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Number of ranks that should exist, once known.
    pub ranks_expected: Option<u32>,
    /// Number of ranks that were seen.
    pub ranks_reporting: u32,
    /// Ranks that were never seen.
    pub missing_ranks: Vec<u32>,
    /// Layers that captured calls: "c10d", "nccl", …
    pub layers: Vec<String>,
    /// Records read.
    pub records: u64,
    /// Records overwritten or torn before they were read.
    pub records_lost: u64,
    /// Uncertainty of the clock offsets between nodes, in milliseconds.
    pub clock_uncertainty_ms: f64,
}

/// One finding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// "DD102".
    pub code: String,
    /// "early-exit".
    pub name: String,
    /// Severity of the finding.
    pub severity: Severity,
    /// Effect of the finding on the job.
    pub effect: Effect,
    /// Confidence in the finding.
    pub confidence: Confidence,
    /// Position in the causal chain.
    pub role: Role,
    /// Attempt that it belongs to: number of earlier starts of the ranks by the launcher.
    #[serde(default)]
    pub attempt: u32,
    /// Indexes into the report's findings.
    pub caused_by: Vec<usize>,
    /// The mistake in one sentence of at most [`MAX_HEADLINE_CHARS`] characters, with the lines of the
    /// program; the fact of `summary` if no cause is known. `None`: unknown, as in older reports.
    #[serde(default)]
    pub headline: Option<String>,
    /// What the calls or processes did, in one sentence.
    pub summary: String,
    /// Hypothesis of the cause, for findings with several possible causes.
    pub cause: Option<Cause>,
    /// Root cause ranks and victims.
    pub ranks: Blame,
    /// The process group concerned.
    pub group: Option<Group>,
    /// Sequence number in the group.
    pub seq: Option<u64>,
    /// The op of the collective or message concerned.
    pub op: Option<String>,
    /// Calls of the ranks concerned.
    pub per_rank: Vec<RankCall>,
    /// Model parameters concerned.
    pub parameters: Vec<Parameter>,
    /// The proof; present exactly when `confidence` is `proved`.
    #[serde(default, deserialize_with = "certificate::if_known")]
    pub certificate: Option<Certificate>,
    /// The reasoning, one sentence each.
    pub why: Vec<String>,
    /// Recommended actions.
    pub next: Vec<String>,
    /// Time at which ranks began to wait because of the finding.
    pub blocked_at: Option<Timestamp>,
    /// For a finding over time that did not hold without interruption until the end: when it held.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<Period>,
    /// Time the finding was made.
    pub detected_at: Timestamp,
    /// Time from the event that completed the evidence to `detected_at`, in milliseconds.
    pub latency_ms: u64,
}

impl Finding {
    /// The sentence to show first: the headline, unless it is only the start of the summary.
    #[must_use]
    pub fn title(&self) -> &str {
        let is_start =
            |it: &&str| it.strip_suffix('…').is_some_and(|it| self.summary.starts_with(it));
        self.headline.as_deref().filter(|it| !is_start(it)).unwrap_or(&self.summary)
    }

    /// The reasoning as shown to users: the summary, unless it begins with the mistake that the title states, and
    /// then `why`.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let mistake = |text: &'_ str| text.split(';').next().unwrap_or_default().to_owned();
        let summary = Some(&self.summary)
            .filter(|it| mistake(it) != mistake(self.title()))
            .map(|it| crate::words::sentence(it));
        summary.into_iter().chain(self.why.iter().cloned()).collect()
    }
}

/// A period of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Period {
    /// Start …
    pub from: Timestamp,
    /// … and end.
    pub to: Timestamp,
}

/// Hypothesis of the cause of a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The hypothesis.
    pub kind: CauseKind,
    /// Confidence in the hypothesis; never `proved`.
    pub confidence: Confidence,
}

/// Root cause ranks and victims, as global ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blame {
    /// Root cause ranks, or all ranks that disagree.
    pub root: Vec<u32>,
    /// Confidence in `root`.
    pub root_confidence: Confidence,
    /// Ranks affected by the finding.
    pub victims: Vec<u32>,
}

/// A process group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its name in the framework.
    pub name: String,
    /// Its description in the framework.
    pub description: String,
    /// The layer that captured it.
    pub layer: String,
    /// Global ranks in group order; empty: the evidence does not state them.
    pub ranks: Vec<u32>,
}

/// Call of one rank at the place of a finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankCall {
    /// Global rank.
    pub rank: u32,
    /// State of the call on this rank.
    pub state: CallState,
    /// Time that the rank has been waiting in it, in milliseconds.
    pub waited_ms: Option<u64>,
    /// Op of the rank's call, or of its last call.
    pub op: Option<String>,
    /// Sequence number of the call.
    pub seq: Option<u64>,
    /// Element type.
    pub dtype: Option<String>,
    /// Input shapes.
    pub shapes: Option<Vec<Vec<u64>>>,
    /// Number of elements.
    pub numel: Option<u64>,
    /// Reduction operator.
    pub reduce_op: Option<String>,
    /// Global rank of the root.
    pub root: Option<u32>,
    /// Global rank of the peer.
    pub peer: Option<u32>,
    /// Tag of a point-to-point call.
    pub tag: Option<i32>,
    /// Training step.
    pub step: Option<u64>,
    /// The line of the user's program: `where` and `via` in JSON.
    #[serde(flatten, with = "crate::place")]
    pub place: Option<Where>,
}

/// A line of the user's program.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Where {
    /// File name as recorded by Python or the compiler.
    pub file: String,
    /// Line number, from 1.
    pub line: u32,
    /// Name of the function.
    pub function: String,
    /// Whether the line is in an installed package, because no frame is in the user's program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub library: bool,
    /// The frames of installed packages between the line and the call, outermost first.
    #[serde(skip)]
    pub via: Vec<Self>,
}

/// A parameter of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Name of the parameter in the module.
    pub name: String,
    /// Shape.
    pub shape: Vec<u64>,
    /// Ranks on which it got no gradient.
    pub missing_on: Vec<u32>,
}

/// Values whose default stands for an unknown one, which is `null` in JSON.
mod unknown_is_null {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T, S>(value: &T, out: S) -> Result<S::Ok, S::Error>
    where
        T: Default + PartialEq + Serialize,
        S: Serializer,
    {
        let known = Some(value).filter(|it| **it != T::default());
        known.serialize(out)
    }

    pub(super) fn deserialize<'de, T, D>(input: D) -> Result<T, D::Error>
    where
        T: Default + Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Option::deserialize(input)?.unwrap_or_default())
    }
}

/// State of a rank, as reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// Global rank.
    pub rank: u32,
    /// Host name; empty: unknown, `null` in JSON.
    #[serde(with = "unknown_is_null")]
    pub host: String,
    /// Process id; 0: unknown, `null` in JSON.
    #[serde(with = "unknown_is_null")]
    pub pid: u32,
    /// Attempt that the process belongs to: number of earlier starts of the ranks by the launcher.
    #[serde(default)]
    pub attempt: u32,
    /// State of the rank's process.
    pub state: RankState,
    /// Exit status, if the process has ended.
    pub exit: Exit,
    /// Training step; 0: unknown, `null` in JSON.
    #[serde(with = "unknown_is_null")]
    pub step: u64,
    /// Call site of the rank's last call: `where` and `via` in JSON.
    #[serde(flatten, with = "crate::place")]
    pub place: Option<Where>,
    /// The call in which it waits.
    pub waiting_in: Option<WaitingIn>,
    /// What its main thread waits for outside of collectives.
    #[serde(default)]
    pub blocked_on: Option<BlockedOn>,
    /// What it does while other ranks wait for it; `None`: unknown, or none does.
    #[serde(default)]
    pub activity: Option<RankActivity>,
    /// The GPU that it uses; `None`: unknown.
    #[serde(default)]
    pub device: Option<RankDevice>,
    /// Its memory; `None`: not measured.
    #[serde(default)]
    pub memory: Option<RankMemory>,
    /// Links that it uses which went down or had errors while they were measured.
    #[serde(default)]
    pub ports: Vec<RankPort>,
}

/// The GPU of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankDevice {
    /// Number by which its driver lists it on the host.
    pub index: u32,
    /// Model; empty: unknown, `null` in JSON.
    #[serde(with = "unknown_is_null")]
    pub name: String,
    /// As its driver names it: "GPU-…".
    pub uuid: String,
    /// What it does.
    pub activity: DeviceActivity,
    /// NVIDIA's number of the latest error that it reported during the job; `None`: none.
    pub last_xid: Option<u64>,
    /// The numbers of all errors, in the order of their first time; a limited number.
    #[serde(default)]
    pub xids: Vec<u64>,
    /// Memory errors that it could not correct, since the driver was loaded. This and what follows is the latest
    /// measurement while the process of the rank ran; `None`: unknown.
    #[serde(default)]
    pub memory_errors: Option<u64>,
    /// Share of the time in which a kernel ran, in percent.
    #[serde(default)]
    pub busy_percent: Option<u32>,
    /// Share of the time in which its memory was used, in percent.
    #[serde(default)]
    pub memory_busy_percent: Option<u32>,
    /// Memory that no process held.
    #[serde(default)]
    pub memory_free_bytes: Option<u64>,
    /// All of its memory.
    #[serde(default)]
    pub memory_total_bytes: Option<u64>,
    /// Clock of its processors.
    #[serde(default)]
    pub clock_mhz: Option<u32>,
    /// Maximum of that clock.
    #[serde(default)]
    pub max_clock_mhz: Option<u32>,
    /// What slows that clock: "none", "setting", "power-limit", "hardware", "power-brake" or "heat".
    #[serde(default)]
    pub slowdown: Option<String>,
    /// Power.
    #[serde(default)]
    pub power_watts: Option<u32>,
    /// Limit of the power.
    #[serde(default)]
    pub power_limit_watts: Option<u32>,
    /// Temperature in degrees Celsius.
    #[serde(default)]
    pub celsius: Option<u32>,
}

impl RankDevice {
    /// Whether its temperature, its power supply or its hardware slow it.
    #[must_use]
    pub fn is_slowed(&self) -> bool {
        matches!(self.slowdown.as_deref(), Some("hardware" | "power-brake" | "heat"))
    }

    /// Whether it reported an error, or is slowed.
    #[must_use]
    pub fn has_trouble(&self) -> bool {
        !self.xids.is_empty() || self.memory_errors.is_some_and(|it| it > 0) || self.is_slowed()
    }
}

/// A network port, or all NVLinks of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPort {
    /// "mlx5_0/1", "eth0", or the number of the GPU.
    pub name: String,
    /// "InfiniBand", "RoCE", "Ethernet" or "NVLink".
    pub kind: String,
    /// Whether it was up when it was measured last; of NVLinks, as many as at first.
    pub is_up: bool,
    /// How often it went down while it was measured.
    pub downs: u64,
    /// Damaged packets while it was measured.
    pub errors: u64,
    /// Repeated packets while it was measured.
    pub retries: u64,
}

impl std::fmt::Display for RankPort {
    /// "InfiniBand mlx5_0/1: down, 31 damaged and 12 repeated packets", "Ethernet eth0: was down 3 times".
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: ", self.kind, self.name)?;
        match (self.is_up, self.downs) {
            (false, 0 | 1) => write!(f, "down")?,
            (false, times) => write!(f, "down ({times} times)")?,
            (true, 0) => {}
            (true, 1) => write!(f, "was down")?,
            (true, times) => write!(f, "was down {times} times")?,
        }
        let was_down = !self.is_up || self.downs > 0;
        match (was_down, self.errors, self.retries) {
            (true, 0, 0) => Ok(()),
            (_, errors, retries) => {
                let between = if was_down { ", " } else { "" };
                write!(f, "{between}{errors} damaged and {retries} repeated packets")
            }
        }
    }
}

/// Latest measurements of the memory of a rank, in bytes; `None`: not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankMemory {
    /// Resident set of the process.
    pub host_bytes: Option<u64>,
    /// Given to tensors by the framework's allocator, on the device on which it holds most.
    pub device_allocated_bytes: Option<u64>,
    /// Held on that device by the framework's allocator.
    pub device_reserved_bytes: Option<u64>,
    /// Largest free block that the allocator holds there.
    #[serde(default)]
    pub device_largest_free_bytes: Option<u64>,
    /// Not in use on that device, by any process.
    pub device_free_bytes: Option<u64>,
}

/// What a thread waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedOn {
    /// Kind of the object: "file", "pipe", "socket", "child", "store-key", "file-lock", "thread", "gil", "device"
    /// or "sleep".
    pub kind: String,
    /// The object in words.
    pub what: String,
    /// Rank at the other end.
    pub rank: Option<u32>,
    /// Process at the other end.
    pub pid: Option<u32>,
    /// Time since the thread last ran, in milliseconds.
    pub for_ms: Option<u64>,
}

/// What a rank's program does outside of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankActivity {
    /// Kind of activity, which decides whether a job may be ended for it.
    pub kind: ActivityKind,
    /// As a participle: "waiting for a request", "running generate()".
    pub text: String,
    /// Its line: `where` in JSON.
    #[serde(flatten, with = "crate::place")]
    pub place: Option<Where>,
}

/// How a process ended: both `None` while it is alive, or if its end was not observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit status.
    pub code: Option<i32>,
    /// Signal that ended it.
    pub signal: Option<i32>,
}

/// A wait of noticeable duration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingIn {
    /// Name of the group.
    pub group: String,
    /// Sequence number, if the call has one.
    pub seq: Option<u64>,
    /// Op of the call.
    pub op: String,
    /// Duration of the wait so far, in milliseconds; `None`: unknown.
    pub waited_ms: Option<u64>,
}
