//! The calls of all ranks over time, as far as they were recorded: what the report leaves out.

use std::sync::Arc;

use ddp_doctor_diagnosis::event::{Call, Stacks};
use ddp_doctor_diagnosis::findings;
use ddp_doctor_proto::Spending;
use ddp_doctor_proto::report::{CallState, Exit, RankCall, Timestamp, Where};

/// The recorded course of a job. Long jobs are covered from some time before the end only.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Time up to which the job was observed.
    pub until: Timestamp,
    /// Processes with a rank, by rank, the oldest first.
    pub tracks: Vec<Track>,
    /// Waits between ranks when the most ranks were blocked; empty if nothing stalled.
    pub waits: Vec<Blocked>,
}

/// A rank that waits for others.
#[derive(Clone, Debug)]
pub struct Blocked {
    /// Global rank.
    pub rank: u32,
    /// The call that it waits for.
    pub call: Arc<Call>,
    /// Start of the wait.
    pub since: Timestamp,
    /// Ranks that it needs, ascending.
    pub needs: Vec<u32>,
}

/// One process.
#[derive(Clone, Debug, Default)]
pub struct Track {
    /// Global rank.
    pub rank: u32,
    /// Host name.
    pub host: Arc<str>,
    /// Process id on that host.
    pub pid: u32,
    /// Layer that captured its calls.
    pub layer: Arc<str>,
    /// Time it joined a process group.
    pub began: Timestamp,
    /// Its end, if observed.
    pub ended: Option<(Timestamp, Exit)>,
    /// The latest calls, and all that have not ended, in the order in which they were issued.
    pub calls: Vec<TimedCall>,
    /// Number of earlier calls that are not in `calls`.
    pub omitted: u64,
    /// The latest marks of each kind, in order of time.
    pub marks: Vec<Mark>,
    /// The latest times spent on something other than its own work, in order of time.
    pub spent: Vec<Spent>,
    /// Memory over time, by name.
    pub memory: Vec<Curve>,
    /// The latest capture of its stacks.
    pub stacks: Option<Arc<Stacks>>,
}

/// A call with its times.
#[derive(Clone, Debug)]
pub struct TimedCall {
    /// The call; `at` is the time it was issued.
    pub call: Arc<Call>,
    /// Time it returned to the caller.
    pub returned: Option<Timestamp>,
    /// Start of the first wait for it, and end of the last.
    pub wait: Option<(Timestamp, Option<Timestamp>)>,
    /// The wait was not recorded; a finding established that the rank waits.
    pub inferred: bool,
    /// Time it was reported complete.
    pub completed: Option<Timestamp>,
    /// It is complete, also if the times of that and of its return are unknown.
    pub is_complete: bool,
}

/// Time spent on something other than the work of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// What it was spent on.
    pub on: Spending,
    /// Start …
    pub from: Timestamp,
    /// … and end.
    pub to: Timestamp,
}

/// An event at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Time of the event.
    pub at: Timestamp,
    /// The event.
    pub what: Event,
}

/// Kind of a [`Mark`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A training step began.
    Step(u64),
    /// A named phase began.
    PhaseBegan(Arc<str>),
    /// A named phase ended.
    PhaseEnded(Arc<str>),
    /// An exception was observed, at this line.
    Exception(Arc<str>, Option<Arc<Where>>),
    /// The input of the program was exhausted.
    InputEnded,
    /// The process announced its exit, with this reason.
    Exit(Arc<str>),
}

/// A value over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve {
    /// "rss", "gpu 0 tensors", …
    pub name: String,
    /// Times and bytes, in order of time.
    pub points: Vec<(Timestamp, u64)>,
}

impl TimedCall {
    /// Whether its thread is still inside the call or waits for it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match self.wait {
            Some((_, ended)) => ended.is_none(),
            None => self.returned.is_none() && !self.is_complete && !self.call.is_async,
        }
    }

    /// Time the thread continued; `None` if it did not.
    #[must_use]
    pub fn continued(&self) -> Option<Timestamp> {
        match self.wait {
            Some((_, ended)) => ended,
            None => self.returned,
        }
    }

    /// State of the call at the end of the timeline.
    #[must_use]
    pub const fn state(&self) -> CallState {
        match (self.wait, self.returned) {
            (Some((_, None)), _) => CallState::Waiting,
            _ if self.is_complete => CallState::Completed,
            (Some(_), _) | (_, Some(_)) => CallState::Returned,
            (None, None) => CallState::Issued,
        }
    }

    /// The call in the form of the report.
    #[must_use]
    pub fn describe(&self, rank: u32) -> RankCall {
        findings::describe(rank, self.state(), None, &self.call)
    }

    /// Whether it is the call of this entry of a finding.
    #[must_use]
    pub fn is(&self, entry: &RankCall, group: Option<&str>) -> bool {
        let name = self.call.group.as_ref().map(|it| it.key.name.as_str());
        let seq = Some(self.call.seq).filter(|&seq| seq > 0);
        entry.op.as_deref() == self.call.op.name()
            && (entry.seq == seq || (entry.seq.is_none() && self.call.op.creates_group()))
            && entry.peer == self.call.peer
            && group.is_none_or(|group| name.is_none_or(|name| name == group))
    }
}

impl Track {
    /// Time up to which the process was observed.
    #[must_use]
    pub fn until(&self, timeline: &Timeline) -> Timestamp {
        self.ended.map_or(timeline.until, |(at, _)| at)
    }
}

impl Timeline {
    /// The newest process of a rank.
    #[must_use]
    pub fn track(&self, rank: u32) -> Option<&Track> {
        self.tracks_of(rank).last()
    }

    /// The call of an entry of a finding.
    #[must_use]
    pub fn call(&self, entry: &RankCall, group: Option<&str>) -> Option<&TimedCall> {
        let tracks = self.tracks_of(entry.rank).iter().rev();
        let mut calls = tracks.flat_map(|track| track.calls.iter().rev());
        calls.find(|call| call.is(entry, group))
    }

    /// The processes of a rank, the oldest first.
    fn tracks_of(&self, rank: u32) -> &[Track] {
        let from = self.tracks.partition_point(|track| track.rank < rank);
        let to = self.tracks.partition_point(|track| track.rank <= rank);
        &self.tracks[from..to]
    }

    /// Start of the timeline.
    #[must_use]
    pub fn begins(&self) -> Timestamp {
        let began = self.tracks.iter().map(|track| track.began);
        began.min().unwrap_or(self.until)
    }
}
