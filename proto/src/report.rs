//! Findings and the report, as data that serializes to the JSON on which users and scripts rely.
//!
//! Field names and enum values are stable: new ones are added, existing ones are never renamed.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// Value of [`Report::schema`].
pub const SCHEMA: &str = "ddp-doctor/report";
/// Value of [`Report::schema_version`].
pub const SCHEMA_VERSION: &str = "1.0";

/// Declares an enum whose values are kebab-case words in JSON and in text.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vmeta])* #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// The word of the value.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The value of a word.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($text => Some(Self::$variant),)* _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

words! {
    /// Severity of a finding, mildest first.
    Severity {
        /// Worth knowing.
        Note = "note",
        /// Worth acting on.
        Warning = "warning",
        /// The job is broken.
        Error = "error",
        /// The job is broken silently, or beyond recovery.
        Critical = "critical",
    }
}

words! {
    /// Effect of a finding on the job.
    Effect {
        /// No effect.
        None = "none",
        /// The job runs slower than it could.
        Slows = "slows",
        /// The job computes wrong results.
        Corrupts = "corrupts",
        /// A rank ended or will end because of it.
        Crashes = "crashes",
        /// Ranks wait for something that never arrives.
        Blocks = "blocks",
    }
}

words! {
    /// Confidence in a statement, weakest first.
    Confidence {
        /// The evidence points to it.
        Suspected = "suspected",
        /// Several independent pieces of evidence agree.
        Supported = "supported",
        /// It follows from recorded facts.
        Proved = "proved",
    }
}

words! {
    /// Position in the causal chain.
    Role {
        /// The problem began here.
        Initiating = "initiating",
        /// It follows from another finding.
        Cascade = "cascade",
    }
}

words! {
    /// Why collectives diverged.
    CauseKind {
        /// Ranks had different numbers of batches.
        UnevenInputs = "uneven-inputs",
        /// A call under a condition on the rank.
        RankConditional = "rank-conditional",
        /// One rank left out an iteration.
        SkippedIteration = "skipped-iteration",
        /// A rank caught an exception and continued out of step with the others.
        SwallowedException = "swallowed-exception",
        /// The ranks made the same calls in another order.
        SwappedCalls = "swapped-calls",
        /// A decision on state that differs between ranks.
        LocalDecision = "local-decision",
        /// A decision on the content of the batch.
        DataDependentPath = "data-dependent-path",
        /// One rank shuts down while others work.
        Teardown = "teardown",
        /// No hypothesis.
        Unknown = "unknown",
    }
}

words! {
    /// State of a call on one rank.
    CallState {
        /// The rank has not made the call.
        NotIssued = "not-issued",
        /// The call was made and has not returned.
        Issued = "issued",
        /// The rank waits for it.
        Waiting = "waiting",
        /// The call returned; whether it is complete is unknown.
        Returned = "returned",
        /// The call is complete.
        Completed = "completed",
    }
}

words! {
    /// State of a rank.
    RankState {
        /// It runs its own code.
        Running = "running",
        /// In a call or a wait for a noticeable time.
        Waiting = "waiting",
        /// Stopped by a signal, a debugger or a frozen container.
        Stopped = "stopped",
        /// Ended with status 0.
        Exited = "exited",
        /// Ended with another status or by a signal.
        Dead = "dead",
        /// Unknown.
        Unknown = "unknown",
    }
}

words! {
    /// Overall state of the job.
    Verdict {
        /// No finding, as far as the evidence goes.
        Healthy = "healthy",
        /// The job hangs.
        Hang = "hang",
        /// A rank ended unexpectedly.
        Crash = "crash",
        /// The job computes wrong results.
        Wrong = "wrong",
        /// The job is slower than it could be.
        Slow = "slow",
        /// The evidence is insufficient for a verdict.
        Insufficient = "insufficient",
    }
}

words! {
    /// Form of a proof.
    CertificateKind {
        /// Calls that can never match.
        UnsatisfiableJoin = "unsatisfiable-join",
        /// A cycle of waits, none of which can end.
        Cycle = "cycle",
        /// A rank that can never arrive.
        TerminalRank = "terminal-rank",
        /// Two recorded facts that contradict each other.
        Contradiction = "contradiction",
        /// One fact from the operating system or the runtime.
        Observation = "observation",
    }
}

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
        Self {
            name: "ddp-doctor".into(),
            version: crate::VERSION.into(),
        }
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
    /// Nodes that reported.
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// One sentence that a user can act on.
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
    pub certificate: Option<Certificate>,
    /// The reasoning, one sentence each.
    pub why: Vec<String>,
    /// Recommended actions.
    pub next: Vec<String>,
    /// Time at which ranks began to wait because of the finding.
    pub blocked_at: Option<Timestamp>,
    /// Time the finding was made.
    pub detected_at: Timestamp,
    /// Time from the event that completed the evidence to `detected_at`, in milliseconds.
    pub latency_ms: u64,
}

/// Hypothesis of the cause of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The hypothesis.
    pub kind: CauseKind,
    /// Confidence in the hypothesis; never `proved`.
    pub confidence: Confidence,
}

/// Root cause ranks and victims, as global ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blame {
    /// Root cause ranks, or all ranks that disagree.
    pub root: Vec<u32>,
    /// Confidence in `root`.
    pub root_confidence: Confidence,
    /// Ranks affected by the finding.
    pub victims: Vec<u32>,
}

/// A process group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its name in the framework.
    pub name: String,
    /// Its description in the framework.
    pub description: String,
    /// The layer that captured it.
    pub layer: String,
    /// Global ranks in group order.
    pub ranks: Vec<u32>,
}

/// Call of one rank at the place of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Name of the parameter in the module.
    pub name: String,
    /// Shape.
    pub shape: Vec<u64>,
    /// Ranks on which it got no gradient.
    pub missing_on: Vec<u32>,
}

/// A proof: recorded facts from which the finding follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    /// Form of the proof.
    pub kind: CertificateKind,
    /// The necessary facts, and no others.
    pub facts: Vec<Fact>,
}

/// One recorded fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "kebab-case")]
pub enum Fact {
    /// A rank issued a call.
    Issued {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
        /// Sequence number. For a point-to-point call: its 1-based index among the rank's calls of
        /// its kind with this peer, and with this tag if tags distinguish messages, counted from a
        /// point at which both sides had made equally many.
        seq: u64,
        /// The call that it issued.
        call: CallSignature,
        /// Training step.
        step: u64,
    },
    /// In an `all_to_all`, a rank sends this many elements to a peer.
    Sends {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
        /// Sequence number.
        seq: u64,
        /// Global rank of the peer.
        peer: u32,
        /// Number of elements.
        numel: u32,
    },
    /// In an `all_to_all`, a rank expects this many elements from a peer.
    Expects {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
        /// Sequence number.
        seq: u64,
        /// Global rank of the peer.
        peer: u32,
        /// Number of elements.
        numel: u32,
    },
    /// A thread of a rank waits for a call that it issued.
    Waits {
        /// Global rank.
        rank: u32,
        /// Number of the thread in the process.
        thread: u32,
        /// Group.
        group: GroupRef,
        /// Sequence number, counted as in `Issued`.
        seq: u64,
        /// The call that it waits for.
        call: CallSignature,
        /// Whether the thread is the only one of the process that ever made a collective call.
        only_thread: bool,
    },
    /// The rank has issued no call in the group after `last`, and all its records were read.
    NeverIssued {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
        /// Sequence number of the last call that it issued; 0: none.
        last: u64,
    },
    /// A rank began to create a group, and has not returned from the call.
    Creates {
        /// Global rank.
        rank: u32,
        /// Number of the thread in the process.
        thread: u32,
        /// The group that this rank requested.
        group: GroupRef,
        /// The creation blocks each participant until all members take part, as on Gloo, which
        /// connects every member with every other.
        takes_all: bool,
        /// Whether the thread is the only one of the process that ever made a collective call.
        only_thread: bool,
    },
    /// A rank has not begun to create a group, and all its records were read.
    NeverCreated {
        /// Global rank.
        rank: u32,
        /// The group that the others requested.
        group: GroupRef,
    },
    /// The rank has sent nothing to the peer in the group after `last`, or received nothing from
    /// it, and all its records were read.
    NeverPosted {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
        /// "send" or "recv".
        op: String,
        /// Global rank of the peer.
        peer: u32,
        /// The tag, if tags distinguish messages.
        tag: Option<i32>,
        /// Index of the last send or receive, counted as in `Issued`; 0: none.
        last: u64,
    },
    /// A process began to join the world.
    Joins {
        /// The global rank that the process claims.
        rank: u32,
        /// Host of the process.
        host: String,
        /// Process id on that host.
        pid: u32,
        /// Number of ranks that it expects, itself included.
        world_size: Option<u32>,
        /// Rendezvous address: host name or address of the master, or a URL.
        address: String,
        /// Port on the master's host.
        port: Option<u32>,
        /// The backend that it requests.
        backend: Option<String>,
        /// Process id of its launcher, if that starts the ranks of one world and nothing else.
        launcher: Option<u32>,
        /// Index of the initialisation of the world in the process, from 0.
        nth: u32,
        /// Time the process began to join.
        since: Timestamp,
        /// Time the process ended; `None` while it is alive.
        until: Option<Timestamp>,
    },
    /// A process has this version, this environment variable, or this GPU for its data exchange.
    Setting {
        /// Global rank.
        rank: u32,
        /// Host of the process.
        host: String,
        /// Process id on that host.
        pid: u32,
        /// "nccl", "torch", …: a version; "env.NAME": an environment variable; "gpu": the GPU.
        name: String,
        /// The value; `None`: the variable is not set.
        value: Option<String>,
    },
    /// A variable selects the network interface of a process, which sees the listed interfaces.
    Interface {
        /// Global rank.
        rank: u32,
        /// Process id.
        pid: u32,
        /// The variable that selects the interface.
        variable: String,
        /// Value of the variable.
        value: String,
        /// The interfaces that the process sees: "eth0=up,ipv4".
        seen: Vec<String>,
    },
    /// A process has ended.
    Ended {
        /// Global rank.
        rank: u32,
        /// Process id.
        pid: u32,
        /// Exit status, if it is known and no signal ended the process.
        code: Option<i32>,
        /// Signal that ended the process.
        signal: Option<i32>,
    },
    /// The kernel killed processes for lack of memory in the last moments of a process.
    OomKills {
        /// Global rank.
        rank: u32,
        /// Process id.
        pid: u32,
        /// Number of processes that it killed in the control group of the process.
        kills: u64,
        /// Number of ranks in that control group that SIGKILL ended in those moments, including
        /// this one.
        killed_ranks: u64,
    },
    /// A rank destroyed a group.
    GroupDestroyed {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
    },
    /// A process is stopped.
    Stopped {
        /// Global rank.
        rank: u32,
        /// Process id.
        pid: u32,
    },
    /// An exception ended a rank or diverted it from its path.
    Raised {
        /// Global rank.
        rank: u32,
        /// Type and message.
        text: String,
        /// Where the exception was observed.
        seen: String,
    },
    /// A rank wrapped a model whose gradients the ranks of a group average.
    Wraps {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
        /// 1-based index of the model within the group, in the rank's process.
        model: u32,
        /// Number of parameters of the model.
        total: u64,
        /// Index of one parameter, from 0.
        index: u64,
        /// Element type and shape of that parameter; `None`: the model has no such parameter.
        parameter: Option<String>,
    },
    /// A rank's replica of a model, after gradients were averaged over the ranks of a group.
    Holds {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
        /// Highest sequence number that the rank had issued in the group.
        seq: u64,
        /// 1-based index of the model within the group, in the rank's process.
        model: u32,
        /// Number of backward passes so far after which gradients were averaged.
        rounds: u64,
        /// Index of one parameter of the model, from 0.
        index: u64,
        /// Its element type.
        dtype: String,
        /// Some of its elements, as decimal numbers; every rank reports the same ones.
        values: Vec<String>,
    },
    /// The clocks of two hosts differ.
    ClocksDiffer {
        /// The host whose clock is ahead.
        ahead: String,
        /// The other host.
        behind: String,
        /// Offset in milliseconds.
        by_ms: u64,
        /// Uncertainty of the offset, in milliseconds.
        uncertainty_ms: u64,
    },
    /// A part of the evidence is missing.
    Missing {
        /// Global rank, if known.
        rank: Option<u32>,
        /// Process id, if there is a process.
        pid: Option<u32>,
        /// Description of the missing part.
        what: String,
    },
}

/// Identity of a group across ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupRef {
    /// The layer that captured it.
    pub layer: String,
    /// Index of the initialisation of the world, from 0.
    pub epoch: u32,
    /// Name of the group.
    pub name: String,
    /// Index of the creation of the same name and members, from 0.
    pub ordinal: u32,
    /// Global ranks in group order.
    pub members: Vec<u32>,
}

/// The part of a call on which peers must agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSignature {
    /// Name of the op.
    pub op: String,
    /// Elements of the tensor by which sizes are compared.
    pub numel: Option<u64>,
    /// Element type.
    pub dtype: Option<String>,
    /// Reduction operator.
    pub reduce_op: Option<String>,
    /// Global rank of the root, or of the peer.
    pub root: Option<u32>,
    /// Tag of a point-to-point call, if tags distinguish messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<i32>,
}

/// State of a rank, as reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// Global rank.
    pub rank: u32,
    /// Host name.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Attempt that the process belongs to: number of earlier starts of the ranks by the launcher.
    #[serde(default)]
    pub attempt: u32,
    /// State of the rank's process.
    pub state: RankState,
    /// Exit status, if the process has ended.
    pub exit: Exit,
    /// Training step.
    pub step: u64,
    /// Call site of the rank's last call: `where` and `via` in JSON.
    #[serde(flatten, with = "crate::place")]
    pub place: Option<Where>,
    /// The call in which it waits.
    pub waiting_in: Option<WaitingIn>,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingIn {
    /// Name of the group.
    pub group: String,
    /// Sequence number, if the call has one.
    pub seq: Option<u64>,
    /// Op of the call.
    pub op: String,
    /// Duration of the wait so far, in milliseconds.
    pub waited_ms: u64,
}

/// A point in time: nanoseconds since the Unix epoch, in JSON as RFC 3339.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The current time of the system clock.
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self(since.map_or(0, |d| d.as_nanos() as u64))
    }

    /// The time `duration` later.
    #[must_use]
    pub const fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_nanos() as u64))
    }

    /// Duration since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::fmt::Display for Timestamp {
    /// Formats as RFC 3339 in UTC with milliseconds.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.0 / 1_000_000_000;
        let (year, month, day) = civil_from_days((seconds / 86_400) as i64);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let millis = self.0 / 1_000_000 % 1000;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z"
        )
    }
}

impl std::str::FromStr for Timestamp {
    type Err = String;

    /// Parses the format of `Display`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("not a time as 2026-01-31T12:00:00.000Z: {text:?}");
        let number = |range: std::ops::Range<usize>| {
            text.get(range)
                .and_then(|digits| digits.parse::<u64>().ok())
                .ok_or_else(wrong)
        };
        if text.len() != 24 || !text.ends_with('Z') {
            return Err(wrong());
        }
        let days = days_from_civil(
            number(0..4)? as i64,
            number(5..7)? as i64,
            number(8..10)? as i64,
        );
        let seconds = days as u64 * 86_400 + number(11..13)? * 3600 + number(14..16)? * 60;
        Ok(Self(
            ((seconds + number(17..19)?) * 1000 + number(20..23)?) * 1_000_000,
        ))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Year, month and day of a day counted from 1970-01-01.
///
/// Algorithm: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
const fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

/// The inverse of [`civil_from_days`], from the same source.
const fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_format_as_rfc_3339_and_parse_back() {
        for (ns, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999_000_000, "2000-02-28T23:59:59.999Z"),
            (1_709_164_800_000_000_000, "2024-02-29T00:00:00.000Z"),
        ] {
            assert_eq!(Timestamp(ns).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp(ns)));
        }
        assert!("yesterday".parse::<Timestamp>().is_err());
        assert!("2024-02-29T00:00:00.0000".parse::<Timestamp>().is_err());
    }

    #[test]
    fn words_match_the_json_contract() {
        assert_eq!(
            serde_json::to_string(&CauseKind::UnevenInputs).unwrap(),
            "\"uneven-inputs\""
        );
        assert_eq!(
            CallState::from_word("not-issued"),
            Some(CallState::NotIssued)
        );
        assert!(Severity::Critical > Severity::Error && Confidence::Proved > Confidence::Supported);
    }
}
