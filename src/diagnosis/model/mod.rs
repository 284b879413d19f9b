//! The evidence about the job: updated by events, without conclusions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::NoteKind;
use ddp_doctor_proto::report::Timestamp;

use crate::input::event::{
    GroupInfo, KillReason, NoteText, ProcessId, StartedRank, UnplacedFailure,
};
use crate::timing::Timing;

mod apply;
mod arrivals;
mod columns;
mod ddp_models;
mod gaps;
mod gpus;
mod group;
pub mod history;
mod ids;
mod maps;
mod ports;
mod process;
mod worlds;

pub use crate::input::libc_signal;
pub(crate) use arrivals::Block;
pub use arrivals::{Arrival, Arrivals, CompletedCall, RankArrivals};
pub use ddp_models::{
    Accumulation, Comparison, Diverged, Parameter, ParameterCount, ReducerReport, Replica,
    ReplicaValues, Replicas, is_apart, parse,
};
pub use gaps::Gaps;
pub use gpus::{Gpu, Gpus};
pub use group::{
    Averaged, Buckets, Clash, CreationRequest, Creations, Crossing, Crossings, Group, Join,
    JoinedCall, MAX_JOINS_AFTER, MAX_MISFITS, Meeting, MeetingPoint, Member, Request, Traffic,
    UnmatchedMessage, Wait,
};
pub use history::{By, History, Slip};
pub use ids::{GroupId, Post, Side, Target, World};
pub use maps::{ByRank, Processes};
pub use ports::{Down, Port, Ports, Rise};
pub use process::{
    Announced, Count, Device, Doing, End, Ending, Exception, Gauge, MAX_SHARED_SAMPLES, Memory,
    Pace, Phase, Places, Process, Quantity, Repetition, Room, RoomKind, Sample, Series, Site,
    Spent, Thread, Unawaited,
};
pub use worlds::{Attempt, Attempts, Init, Place};

/// Largest accepted world size. The members of a larger group would not fit into a black box.
pub const MAX_WORLD: u32 = 1 << 17;
/// Layer of processes that are known from logs alone.
pub const TEXT_LAYER: &str = "log";
/// Layer of processes whose calls are those that their stacks show.
pub const STACK_LAYER: &str = "stack";
/// Maximum time by which ranks may be asked to end before that request is reported.
const REFLEX: Duration = Duration::from_millis(250);

/// Whether something happened before the job was asked to end.
fn is_before_request(at: Timestamp, asked: Timestamp) -> bool {
    at.plus(REFLEX) < asked
}

/// The job with its ranks and groups.
#[derive(Debug, Default)]
pub struct Model {
    /// Durations that conclusions depend on.
    pub timing: Timing,
    /// Id of the job.
    pub job: String,
    /// Number of earlier starts of the job.
    pub attempt: u32,
    /// When the first node started it.
    pub started: Option<Timestamp>,
    /// When the last of the nodes that started it ended it.
    pub ended: Option<Timestamp>,
    /// Whether the command of a node ended with another status than 0.
    pub has_failed: bool,
    /// The finding for which it was ended.
    pub kill_reason: Option<KillReason>,
    /// End of the evidence, if the end of the job was not observed.
    pub evidence_ended: Option<Timestamp>,
    /// Hosts that started it.
    pub hosts: BTreeSet<Arc<str>>,
    /// Number of hosts on which it has ended.
    nodes_ended: usize,
    /// Processes that joined a process group.
    pub processes: Processes,
    /// Processes that are to become ranks and had not joined when they were observed, by node,
    /// process id and start time.
    pub started_ranks: BTreeMap<(u32, u32, u64), StartedRank>,
    /// The processes of each rank, oldest first. Restarts and layers lead to several.
    pub ranks: BTreeMap<u32, Vec<ProcessId>>,
    /// Number of times that a process joined or changed its rank.
    pub rank_changes: u64,
    worlds: worlds::Worlds,
    /// Layers and names of the worlds that processes joined.
    world_names: BTreeSet<(Arc<str>, Arc<str>)>,
    /// All groups, by [`GroupId`].
    groups: Vec<Group>,
    /// Groups by identity, so that nothing depends on the order in which they are reported.
    group_ids: BTreeMap<ids::GroupKey, GroupId>,
    /// Creations of groups that are not settled.
    pub creations: Creations,
    /// When the whole job was first asked to end.
    pub interrupted: Option<Timestamp>,
    /// When a rank was first interrupted.
    first_interrupt: Option<Timestamp>,
    /// Clocks of the hosts.
    pub clocks: BTreeMap<Arc<str>, Clock>,
    /// GPUs of the nodes.
    pub gpus: Gpus,
    /// Network ports of the nodes.
    pub ports: Ports,
    /// Nodes that have stopped reporting, and since when.
    pub silent: BTreeMap<u32, Timestamp>,
    /// Failures of processes whose rank the evidence does not state.
    pub unplaced: Vec<Arc<UnplacedFailure>>,
    /// Known gaps in the evidence.
    pub notes: Vec<Note>,
    /// When a rank first returned from joining the world, which requires all ranks.
    pub world_joined: Option<Timestamp>,
    /// Latest collectives and messages, with the arrival of each rank.
    pub arrivals: Arrivals,
    /// When the records of some process are unknown.
    pub gaps: Gaps,
}

/// Offset of a host's clock to the coordinator's.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Nanoseconds that it is ahead; negative: behind.
    pub ahead_ns: i64,
    /// Uncertainty in nanoseconds, to either side.
    pub uncertainty_ns: u64,
    /// When it was measured.
    pub at: Timestamp,
}

/// A known gap in the evidence.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// Kind of gap.
    pub kind: NoteKind,
    /// Rank concerned.
    pub rank: Option<u32>,
    /// Process id concerned.
    pub pid: Option<u32>,
    /// Description.
    pub text: NoteText,
    /// When it was noticed.
    pub at: Timestamp,
}

impl Model {
    /// An empty model.
    pub fn new(timing: Timing) -> Self {
        Self { arrivals: Arrivals::new(&timing), timing, ..Self::default() }
    }

    /// A group by its id.
    pub fn group(&self, id: GroupId) -> &Group {
        &self.groups[id.0 as usize]
    }

    /// All groups, ordered by identity.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.group_ids.values().map(|&id| self.group(id))
    }

    /// Removes a group whose assumed members were wrong.
    pub(super) fn forget(&mut self, info: &GroupInfo) {
        self.group_ids.retain(|it, _| !it.is_described_as(info));
    }

    /// The newest process of a rank.
    pub fn process_of(&self, rank: u32) -> Option<&Process> {
        self.ranks.get(&rank)?.last().and_then(|id| self.processes.get(id))
    }

    /// The process of a member, or of the rank that is to become that member.
    pub fn member(&self, group: GroupId, rank: u32) -> Option<&Process> {
        let group = self.group(group);
        match group.members.get(&rank) {
            Some(member) => self.processes.get(&member.process),
            None if group.info.key.members.contains(&rank) => self.of_world(&group.world, rank),
            None => None,
        }
    }

    /// The processes of these members, as far as they are known, with their ranks.
    pub fn members<'r>(
        &self,
        group: GroupId,
        ranks: impl IntoIterator<Item = &'r u32>,
    ) -> impl Iterator<Item = (u32, &Process)> {
        ranks.into_iter().filter_map(move |&rank| Some((rank, self.member(group, rank)?)))
    }

    /// Whether the processes of all these members are known and none of their records is lost.
    pub fn has_all_records(&self, group: GroupId, ranks: impl IntoIterator<Item = u32>) -> bool {
        ranks.into_iter().all(|rank| self.member(group, rank).is_some_and(|it| it.lost == 0))
    }

    /// Whether a process has destroyed all groups that it was a member of.
    pub fn has_left_its_groups(&self, process: &Process) -> bool {
        let Some(rank) = process.rank else { return false };
        let mut groups = process.groups().peekable();
        groups.peek().is_some() && groups.all(|id| self.group(id).is_destroyed_by(rank))
    }

    /// The newest process of a rank in a world.
    fn of_world(&self, world: &World, rank: u32) -> Option<&Process> {
        let mut processes = self.ranks.get(&rank)?.iter().rev();
        processes.find_map(|id| self.processes.get(id).filter(|it| it.world == *world))
    }

    /// Members seen in the world of the group that have not made their call at `seq`, ascending.
    /// Call 0 is the creation of the group.
    pub fn missing(&self, group: &Group, seq: u64) -> Vec<u32> {
        let mut missing = self.not_made_by(group);
        let behind = group.members.iter().filter(|(_, member)| member.issued < seq);
        missing.extend(behind.map(|(&rank, _)| rank));
        missing.sort_unstable();
        missing
    }

    /// Whether counters show that the process has made collectives.
    pub fn has_counted_calls(&self, process: &Process) -> bool {
        let counted = |id| {
            let members = &self.group(id).members;
            let own = process.rank.and_then(|rank| members.get(&rank));
            own.is_some_and(|member| member.issued > 0)
        };
        process.groups().any(counted)
    }

    /// Members that have not begun to create a group which others create. Processes that created
    /// groups without reporting which ones are left out.
    pub fn not_made_by(&self, group: &Group) -> Vec<u32> {
        if !group.making_seen || group.is_fully_seen() {
            return Vec::new();
        }
        let absent = |rank: &u32| {
            !group.members.contains_key(rank)
                && self
                    .of_world(&group.world, *rank)
                    .is_some_and(|process| !process.made_unknown_groups)
        };
        let members = group.info.key.members.iter().copied();
        members.filter(absent).collect()
    }

    /// The request of a member that met this group's creators but asked for other members.
    pub fn asked_otherwise(&self, group: &Group, rank: u32) -> Option<&Request> {
        let at = MeetingPoint::new(&group.info, &group.world);
        let request = self.creations.asked(&at, rank)?;
        (request.group.key.members != group.info.key.members).then_some(request)
    }

    /// Whether a failure at that time preceded the request to end the job, and so has another
    /// cause.
    pub fn is_before_shutdown(&self, at: Timestamp) -> bool {
        self.interrupted.is_none_or(|asked| is_before_request(at, asked))
    }

    /// How a process ended, if not because the whole job was asked to end. A later end proves
    /// nothing, and the process is treated as alive.
    pub fn ending_of<'a>(&self, process: &'a Process) -> Ending<'a> {
        let ending = process.ending();
        let raised = process.uncaught().map(|exception| exception.at);
        let Some(at) = raised.or(process.end.map(|end| end.at)) else { return ending };
        // An exit in order before the request is not a reaction to it.
        let left_before = ending == Ending::InOrder && self.interrupted.is_some_and(|it| at < it);
        if self.is_before_shutdown(at) || left_before { ending } else { Ending::None }
    }

    /// When ranks began to end on request; `now` if none has.
    pub fn shutdown_at(&self, now: Timestamp) -> Timestamp {
        let obeyed = |asked: &Timestamp| {
            self.processes.values().any(|process| process.end.is_some_and(|end| end.at >= *asked))
        };
        self.interrupted.filter(obeyed).map_or(now, |asked| asked.min(now))
    }

    /// When the job, or its evidence, ended.
    pub fn over(&self) -> Option<Timestamp> {
        self.ended.or(self.evidence_ended)
    }

    /// Number of hosts; zero: a rank's host is unknown.
    pub fn nodes(&self) -> u32 {
        if self.hosts.contains("") { 0 } else { self.hosts.len() as u32 }
    }

    /// The largest world size that a process claims, at most [`MAX_WORLD`].
    pub fn world_size(&self) -> Option<u32> {
        self.worlds.size()
    }

    /// The restarts of the ranks by their launcher.
    pub fn attempts(&self) -> Attempts {
        Attempts::new(self)
    }

    /// Maximum offset between the corrected clocks of two hosts, as far as measured; zero for one
    /// host.
    pub fn clock_uncertainty(&self) -> Duration {
        if self.hosts.len() < 2 {
            return Duration::ZERO;
        }
        let mut uncertainties: Vec<u64> =
            self.clocks.values().map(|it| it.uncertainty_ns).collect();
        uncertainties.sort_unstable();
        Duration::from_nanos(uncertainties.iter().rev().take(2).sum())
    }

    /// Since when a process that has not ended has stopped reporting.
    pub fn silent_since(&self, process: &Process) -> Option<Timestamp> {
        let since = self.silent.get(&process.id.node()).copied();
        since.filter(|_| !process.has_ended())
    }

    /// Processes that are to be this rank and have not joined a process group, newest first.
    pub fn not_joined(&self, rank: u32) -> Vec<&StartedRank> {
        let joined = |started: &StartedRank| {
            let mut processes = self.ranks.get(&rank).into_iter().flatten();
            processes.any(|id| {
                let process = self.processes.get(id);
                process.is_some_and(|it| it.host == started.host && it.pid == started.pid)
            })
        };
        let mut found: Vec<&StartedRank> = self
            .started_ranks
            .values()
            .filter(|started| started.rank == rank && !joined(started))
            .collect();
        found.sort_by_key(|started| std::cmp::Reverse((started.seen, started.pid)));
        found
    }

    /// Number of calls that all ranks of the job repeat; `None`: it differs, or is not known of all.
    pub fn repeated_calls(&self) -> Option<usize> {
        if self.has_unseen() {
            return None;
        }
        let mut ranks = self.ranks.keys();
        let length = |rank: &u32| self.process_of(*rank)?.repetition.length();
        let first = length(ranks.next()?)?;
        ranks.all(|rank| length(rank) == Some(first)).then_some(first)
    }

    /// Whether nothing was captured from a rank of the world.
    pub fn has_unseen(&self) -> bool {
        let size = self.world_size().unwrap_or(0);
        self.ranks.range(..size).count() < size as usize
    }

    /// Ranks of the world from which nothing was captured, ascending.
    pub fn unseen(&self) -> Vec<u32> {
        let size = self.world_size().unwrap_or(0);
        let mut seen = self.ranks.keys().peekable();
        (0..size).filter(|rank| seen.next_if_eq(&rank).is_none()).collect()
    }
}

/// Appends one item to the `most` latest ones. Returns the oldest one if there was no room for it.
fn keep_latest<T>(kept: &mut VecDeque<T>, one: T, most: usize) -> Option<T> {
    let dropped = if kept.len() < most { None } else { kept.pop_front() };
    kept.push_back(one);
    dropped
}

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod tests;
