//! Findings and the report, as data that serializes to the JSON users and scripts rely on.
//!
//! Field names and words here are promises: they are added to, never renamed.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// Value of [`Report::schema`].
pub const SCHEMA: &str = "ddp-doctor/report";
/// Value of [`Report::schema_version`].
pub const SCHEMA_VERSION: &str = "1.0";

/// Declares an enum of words: kebab-case in JSON and in print.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vmeta])* #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// The word itself.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The value of that word.
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
    /// How bad it is, mildest first.
    Severity {
        /// Worth knowing.
        Note = "note",
        /// Worth acting on.
        Warning = "warning",
        /// The job is broken.
        Error = "error",
        /// The job is broken, and silently, or beyond recovery.
        Critical = "critical",
    }
}

words! {
    /// What the finding does to the job.
    Effect {
        /// Nothing.
        None = "none",
        /// The job runs slower than it could.
        Slows = "slows",
        /// The job computes something wrong.
        Corrupts = "corrupts",
        /// A rank ended or will end because of it.
        Crashes = "crashes",
        /// Ranks wait for something that does not come.
        Blocks = "blocks",
    }
}

words! {
    /// How sure a statement is, weakest first.
    Confidence {
        /// The evidence points there.
        Suspected = "suspected",
        /// Several independent pieces of evidence agree.
        Supported = "supported",
        /// It follows from recorded facts.
        Proved = "proved",
    }
}

words! {
    /// Place in the causal chain.
    Role {
        /// It began here.
        Initiating = "initiating",
        /// It followed from another finding.
        Cascade = "cascade",
    }
}

words! {
    /// Why collectives diverged.
    CauseKind {
        /// Ranks had different numbers of batches.
        UnevenInputs = "uneven-inputs",
        /// A test on the rank itself.
        RankConditional = "rank-conditional",
        /// One rank left out an iteration.
        SkippedIteration = "skipped-iteration",
        /// An exception was caught and the rank went on, out of step.
        SwallowedException = "swallowed-exception",
        /// The same calls in another order.
        SwappedCalls = "swapped-calls",
        /// A decision on local state.
        LocalDecision = "local-decision",
        /// A decision on the content of the batch.
        DataDependentPath = "data-dependent-path",
        /// One rank is tearing down while others work.
        Teardown = "teardown",
        /// Nothing tells.
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
        /// The call came back; whether it is complete is not known.
        Returned = "returned",
        /// The call is complete.
        Completed = "completed",
    }
}

words! {
    /// State of a rank.
    RankState {
        /// At work.
        Running = "running",
        /// In a call or a wait for more than a moment.
        Waiting = "waiting",
        /// Stopped by a signal, a debugger or a frozen container.
        Stopped = "stopped",
        /// Ended with status 0.
        Exited = "exited",
        /// Ended otherwise.
        Dead = "dead",
        /// Nothing is known.
        Unknown = "unknown",
    }
}

words! {
    /// The one word about the job.
    Verdict {
        /// Nothing is wrong, as far as the evidence goes.
        Healthy = "healthy",
        /// It hangs.
        Hang = "hang",
        /// A rank ended that should not have.
        Crash = "crash",
        /// It computes something wrong.
        Wrong = "wrong",
        /// It is slower than it could be.
        Slow = "slow",
        /// The evidence does not allow a judgement.
        Insufficient = "insufficient",
    }
}

words! {
    /// Form of a proof.
    CertificateKind {
        /// Calls that can never match.
        UnsatisfiableJoin = "unsatisfiable-join",
        /// Waits that must block, in a circle.
        Cycle = "cycle",
        /// A rank that can never come.
        TerminalRank = "terminal-rank",
        /// Two recorded facts that must agree do not.
        Contradiction = "contradiction",
        /// One fact from the operating system or the runtime.
        Observation = "observation",
    }
}

/// The whole report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// [`SCHEMA_VERSION`].
    pub schema_version: String,
    /// What wrote it.
    pub tool: Tool,
    /// The job it is about.
    pub job: Job,
    /// The one word.
    pub verdict: Verdict,
    /// What it rests on.
    pub evidence: Evidence,
    /// Initiating first, then by severity.
    pub findings: Vec<Finding>,
    /// Every rank that was seen.
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
    /// This build.
    #[must_use]
    pub fn this() -> Self {
        Self {
            name: "ddp-doctor".into(),
            version: crate::VERSION.into(),
        }
    }
}

/// The job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// The n-th start of it, from 0.
    pub attempt: u32,
    /// Number of ranks, once known.
    pub world_size: Option<u32>,
    /// Nodes that reported.
    pub nodes: u32,
    /// Communication backends in use.
    pub backends: Vec<String>,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// When it ended; `None` while it runs.
    pub ended_at: Option<Timestamp>,
}

/// What the diagnosis rests on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Ranks that there should be, once known.
    pub ranks_expected: Option<u32>,
    /// Ranks that were seen.
    pub ranks_reporting: u32,
    /// Ranks that were not.
    pub missing_ranks: Vec<u32>,
    /// What observed: "c10d", "nccl", …
    pub layers: Vec<String>,
    /// Records read.
    pub records: u64,
    /// Records overwritten or torn before they were read.
    pub records_lost: u64,
    /// How far the nodes' clocks may be apart.
    pub clock_uncertainty_ms: f64,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// "DD102".
    pub code: String,
    /// "early-exit".
    pub name: String,
    /// How bad.
    pub severity: Severity,
    /// What it does to the job.
    pub effect: Effect,
    /// How sure the fact is.
    pub confidence: Confidence,
    /// Place in the causal chain.
    pub role: Role,
    /// Indexes into the report's findings.
    pub caused_by: Vec<usize>,
    /// One sentence a person can act on.
    pub summary: String,
    /// Why, where that can be a question.
    pub cause: Option<Cause>,
    /// Who.
    pub ranks: Blame,
    /// Where: the process group.
    pub group: Option<Group>,
    /// Sequence number in the group.
    pub seq: Option<u64>,
    /// The collective at the centre of it.
    pub op: Option<String>,
    /// Both sides.
    pub per_rank: Vec<RankCall>,
    /// Model parameters concerned.
    pub parameters: Vec<Parameter>,
    /// The proof; present exactly when `confidence` is `proved`.
    pub certificate: Option<Certificate>,
    /// The reasoning in words.
    pub why: Vec<String>,
    /// What to do.
    pub next: Vec<String>,
    /// When ranks began to wait because of it.
    pub blocked_at: Option<Timestamp>,
    /// When it was found.
    pub detected_at: Timestamp,
    /// From the moment the evidence sufficed to `detected_at`.
    pub latency_ms: u64,
}

/// Why it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The hypothesis.
    pub kind: CauseKind,
    /// How sure; never `proved`.
    pub confidence: Confidence,
}

/// Culprits and victims, as global ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blame {
    /// Who did it, or all that disagree.
    pub root: Vec<u32>,
    /// How sure that is.
    pub root_confidence: Confidence,
    /// Who suffers.
    pub victims: Vec<u32>,
}

/// A process group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its name in the framework.
    pub name: String,
    /// Its description there.
    pub description: String,
    /// What observed it.
    pub layer: String,
    /// Global ranks in group order.
    pub ranks: Vec<u32>,
}

/// One rank's side of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankCall {
    /// Global rank.
    pub rank: u32,
    /// State of the call there.
    pub state: CallState,
    /// How long the rank has been in it.
    pub waited_ms: Option<u64>,
    /// The call it made, or made last.
    pub op: Option<String>,
    /// Its sequence number.
    pub seq: Option<u64>,
    /// Element type.
    pub dtype: Option<String>,
    /// Input shapes.
    pub shapes: Option<Vec<Vec<u64>>>,
    /// Elements.
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
    /// The user's line.
    #[serde(rename = "where")]
    pub place: Option<Where>,
}

/// A line of the user's program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Where {
    /// File as Python or the compiler names it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Function.
    pub function: String,
}

/// A parameter of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Name in the module.
    pub name: String,
    /// Shape.
    pub shape: Vec<u64>,
    /// Ranks on which it got no gradient.
    pub missing_on: Vec<u32>,
}

/// A proof: recorded facts from which the finding follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    /// Its form.
    pub kind: CertificateKind,
    /// The facts, nothing but those that are needed.
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
        /// Sequence number. Of a point-to-point call: the how-manieth it is of its kind with this
        /// peer, and with this tag where tags tell messages apart; counted from where both sides had
        /// made as many.
        seq: u64,
        /// What it issued.
        call: CallSignature,
        /// Training step.
        step: u64,
    },
    /// A thread of a rank waits for a call that it issued.
    Waits {
        /// Global rank.
        rank: u32,
        /// The thread, by its number in the process.
        thread: u32,
        /// Group.
        group: GroupRef,
        /// Sequence number, counted as in `Issued`.
        seq: u64,
        /// What it waits for.
        call: CallSignature,
        /// Whether that thread is the only one of the process that ever made a collective call.
        only_thread: bool,
    },
    /// What a rank has issued in a group ends here, and all its records were read.
    NeverIssued {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
        /// The last sequence number it issued; 0: none.
        last: u64,
    },
    /// A rank began to make a group, and has not come back from it.
    Creates {
        /// Global rank.
        rank: u32,
        /// The thread, by its number in the process.
        thread: u32,
        /// The group, as this rank asked for it.
        group: GroupRef,
        /// Whoever makes it is kept until all its members make it, as on Gloo, which connects every
        /// member with every other.
        takes_all: bool,
        /// Whether that thread is the only one of the process that ever made a collective call.
        only_thread: bool,
    },
    /// A rank has not begun to make a group, and all its records were read.
    NeverCreated {
        /// Global rank.
        rank: u32,
        /// The group, as the others asked for it.
        group: GroupRef,
    },
    /// What a rank has sent to another in a group, or received from it, ends here, and all its
    /// records were read.
    NeverPosted {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
        /// "send" or "recv".
        op: String,
        /// Global rank of the peer.
        peer: u32,
        /// The tag, where tags tell messages apart.
        tag: Option<i32>,
        /// The last of them, counted as in `Issued`; 0: none.
        last: u64,
    },
    /// A process began to join the world.
    Joins {
        /// The global rank that it means to be.
        rank: u32,
        /// Its host.
        host: String,
        /// Its process id there.
        pid: u32,
        /// How many ranks it looks for, itself included.
        world_size: Option<u32>,
        /// Where it looks for them: name or address of the master's host, or a URL.
        address: String,
        /// The port there.
        port: Option<u32>,
        /// The backend that it names.
        backend: Option<String>,
        /// Process id of whoever started it, where that starts the ranks of one world and nothing else.
        launcher: Option<u32>,
        /// The n-th time that it joins a world, from 0.
        nth: u32,
        /// When it began.
        since: Timestamp,
        /// When the process ended; absent: it lives.
        until: Option<Timestamp>,
    },
    /// A process has this version, this variable in its environment, or this GPU to exchange data from.
    Setting {
        /// Global rank.
        rank: u32,
        /// Its host.
        host: String,
        /// Its process id there.
        pid: u32,
        /// "nccl", "torch", …: a version; "env.NAME": a variable; "gpu": the GPU.
        name: String,
        /// What it says; absent: the variable is not set.
        value: Option<String>,
    },
    /// A process was told which network interface to use, and sees these.
    Interface {
        /// Global rank.
        rank: u32,
        /// Process id.
        pid: u32,
        /// The variable that names the interface.
        variable: String,
        /// What it says.
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
        /// Status, if it is known and no signal ended it.
        code: Option<i32>,
        /// Signal that ended it.
        signal: Option<i32>,
    },
    /// The kernel killed processes for want of memory in the last moments of a process.
    OomKills {
        /// Global rank.
        rank: u32,
        /// Process id.
        pid: u32,
        /// How many it killed in the control group of the process.
        kills: u64,
        /// How many ranks in that control group were ended by SIGKILL in those moments, this one among
        /// them.
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
    /// An exception ended a rank or took it off its path.
    Raised {
        /// Global rank.
        rank: u32,
        /// Type and message.
        text: String,
        /// How it was seen.
        seen: String,
    },
    /// A rank wraps a model whose gradients the ranks of a group average.
    Wraps {
        /// Global rank.
        rank: u32,
        /// Group.
        group: GroupRef,
        /// The how-manieth model of that group it is in the rank's process.
        model: u32,
        /// How many parameters it has.
        total: u64,
        /// Index of one of them, from 0.
        index: u64,
        /// Element type and shape of that one; `None`: it has no such parameter.
        parameter: Option<String>,
    },
    /// The clocks of two hosts differ.
    ClocksDiffer {
        /// The host whose clock is ahead.
        ahead: String,
        /// The other one.
        behind: String,
        /// By so many milliseconds.
        by_ms: u64,
        /// Give or take so many.
        uncertainty_ms: u64,
    },
    /// A part of the evidence is missing.
    Missing {
        /// Global rank, where it is known.
        rank: Option<u32>,
        /// Process id, where there is one.
        pid: Option<u32>,
        /// What is missing.
        what: String,
    },
}

/// Identity of a group across ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupRef {
    /// What observed it.
    pub layer: String,
    /// The n-th initialisation of the world.
    pub epoch: u32,
    /// Its name.
    pub name: String,
    /// The n-th creation of the same name and members.
    pub ordinal: u32,
    /// Global ranks in group order.
    pub members: Vec<u32>,
}

/// The part of a call that its peers must agree with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSignature {
    /// Name of the op.
    pub op: String,
    /// Elements of the tensor that sizes are compared by.
    pub numel: Option<u64>,
    /// Element type.
    pub dtype: Option<String>,
    /// Reduction operator.
    pub reduce_op: Option<String>,
    /// Global rank of the root, or of the peer.
    pub root: Option<u32>,
    /// Tag of a point-to-point call, where tags tell messages apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<i32>,
}

/// State of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// Global rank.
    pub rank: u32,
    /// Host.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// State.
    pub state: RankState,
    /// How it ended.
    pub exit: Exit,
    /// Training step.
    pub step: u64,
    /// Where it made its last call.
    #[serde(rename = "where")]
    pub place: Option<Where>,
    /// What it waits in.
    pub waiting_in: Option<WaitingIn>,
}

/// How a process ended: both `None` while it lives, or where nobody saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Status.
    pub code: Option<i32>,
    /// Signal.
    pub signal: Option<i32>,
}

/// A wait that lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingIn {
    /// Name of the group.
    pub group: String,
    /// Sequence number, where the call has one.
    pub seq: Option<u64>,
    /// The call.
    pub op: String,
    /// For how long.
    pub waited_ms: u64,
}

/// A moment: nanoseconds since the Unix epoch inside, RFC 3339 in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// This moment by the system's clock.
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self(since.map_or(0, |d| d.as_nanos() as u64))
    }

    /// The moment so much later.
    #[must_use]
    pub const fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_nanos() as u64))
    }

    /// How much later this moment is than another; zero if it is earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::fmt::Display for Timestamp {
    /// RFC 3339 in UTC with milliseconds.
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

    /// Reads what `Display` writes.
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
    fn times_are_rfc_3339_and_come_back() {
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
    fn words_are_those_of_the_contract() {
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
