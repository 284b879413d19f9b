//! Everything that is known about the job. Filled by events; concludes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::NoteKind;
use ddp_doctor_proto::report::{GroupRef, Timestamp};

use super::event::{GroupInfo, ProcessId, StartedRank};
use super::timing::Timing;

mod accumulation;
mod apply;
mod arrivals;
mod beneath;
mod channel;
mod creation;
mod group;
pub mod history;
mod init;
mod memory;
mod pace;
mod parameters;
mod process;
mod series;
mod threads;
mod transport;
mod worlds;

pub use accumulation::Accumulation;
pub use arrivals::{Arrivals, Averaged, Buckets, Came, Encounter};
pub use channel::{Clash, Lone, Post, Side, Traffic};
pub use creation::{Asked, Creations, Meeting, MeetingPoint, Request};
pub use group::{Group, GroupId, Join, JoinedCall, KEPT_AFTER, Member, Wait};
pub use history::{By, History, Slip};
pub use init::{Init, Place};
pub use memory::{Count, Device, Gauge, Memory, Room, RoomKind};
pub use pace::{Pace, Spent};
pub use parameters::{Parameter, Replica, Said, parse};
pub use process::{
    Announced, Doing, End, Ending, Exception, Phase, Process, Site, Target, Thread, Unawaited,
    World, is_inside, libc_signal,
};
pub use series::{KEPT_OF_SHARED, Sample, Series};
pub use threads::{Crossing, Crossings};
pub use transport::{Matching, Transport};

/// Largest world that is believed. A larger one is a claim that no evidence could bear: the members of its
/// group would have no room in a black box.
pub const MAX_WORLD: u32 = 1 << 17;
/// A request to end reaches the ranks this much before it is told, at most.
const REFLEX: Duration = Duration::from_millis(250);

/// The job, its ranks and its groups.
#[derive(Debug, Default)]
pub struct Model {
    /// Durations for all that is concluded from it.
    pub timing: Timing,
    /// Id of the job.
    pub job: String,
    /// The n-th start of it.
    pub attempt: u32,
    /// When the first node started it.
    pub started: Option<Timestamp>,
    /// When every node that started it had ended it.
    pub ended: Option<Timestamp>,
    /// Up to when anything is known, where nobody saw the job end.
    pub evidence_ended: Option<Timestamp>,
    /// Hosts that started it.
    pub hosts: BTreeSet<Arc<str>>,
    /// Hosts on which it has ended.
    nodes_ended: usize,
    /// Its processes.
    pub processes: BTreeMap<ProcessId, Process>,
    /// Processes that are to be ranks and had not joined when they were seen, by node, number and start
    /// time.
    pub started_ranks: BTreeMap<(u32, u32, u64), StartedRank>,
    /// The processes of each rank, oldest first: restarts and layers make several.
    pub ranks: BTreeMap<u32, Vec<ProcessId>>,
    worlds: worlds::Worlds,
    /// Its groups.
    groups: Vec<Group>,
    /// By what they are, so that nothing depends on the order in which they are heard of.
    group_ids: BTreeMap<(World, GroupRef), GroupId>,
    /// The making of groups.
    pub creations: Creations,
    /// When somebody first asked the whole job to end.
    pub interrupted: Option<Timestamp>,
    /// The clocks of hosts.
    pub clocks: BTreeMap<Arc<str>, Clock>,
    /// Nodes of which nothing is heard any more, and since when.
    pub silent: BTreeMap<u32, Timestamp>,
    /// What is known to be missing.
    pub notes: Vec<Note>,
    /// When a rank first came back from joining the world, which takes all ranks.
    pub world_joined: Option<Timestamp>,
    /// When ranks came to what they do together.
    pub arrivals: Arrivals,
}

/// How far a clock is ahead of ours.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// In nanoseconds; negative: it is behind.
    pub ahead_ns: i64,
    /// Give or take so many.
    pub uncertainty_ns: u64,
    /// When that was found.
    pub at: Timestamp,
}

/// A known gap in the evidence.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// Why.
    pub kind: NoteKind,
    /// Which rank.
    pub rank: Option<u32>,
    /// Which process.
    pub pid: Option<u32>,
    /// In words.
    pub text: Arc<str>,
    /// When it was noticed.
    pub at: Timestamp,
}

impl Model {
    /// An empty model.
    #[must_use]
    pub fn new(timing: Timing) -> Self {
        Self {
            timing,
            ..Self::default()
        }
    }

    /// A group by its name.
    #[must_use]
    pub fn group(&self, id: GroupId) -> &Group {
        &self.groups[id.0 as usize]
    }

    /// All groups, in an order of their own.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.group_ids.values().map(|&id| self.group(id))
    }

    /// A group was no such group after all.
    pub(super) fn forget(&mut self, info: &GroupInfo) {
        self.group_ids.retain(|(_, key), _| *key != info.key);
    }

    /// The newest process of a rank that speaks for it.
    #[must_use]
    pub fn process_of(&self, rank: u32) -> Option<&Process> {
        self.ranks
            .get(&rank)?
            .last()
            .and_then(|id| self.processes.get(id))
    }

    /// The process that is this rank in this group, or is to be.
    #[must_use]
    pub fn member(&self, group: GroupId, rank: u32) -> Option<&Process> {
        let group = self.group(group);
        match group.members.get(&rank) {
            Some(member) => self.processes.get(&member.process),
            None if group.info.key.members.contains(&rank) => self.of_world(&group.world, rank),
            None => None,
        }
    }

    /// The process of a rank in a world.
    fn of_world(&self, world: &World, rank: u32) -> Option<&Process> {
        let mut processes = self.ranks.get(&rank)?.iter().rev();
        processes.find_map(|id| self.processes.get(id).filter(|it| it.world == *world))
    }

    /// Members of a group, seen in its world, that have not made their call at `seq`, ascending. The
    /// making of the group is call 0.
    #[must_use]
    pub fn missing(&self, group: &Group, seq: u64) -> Vec<u32> {
        let mut missing = self.not_made_by(group);
        missing.extend(group.missing(seq));
        missing.sort_unstable();
        missing
    }

    /// Members that have not begun to make a group which others make. Only those whose process says
    /// of every group that it makes which one it is can be known not to.
    #[must_use]
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

    /// What a member asked for where the others asked for this group, if that was another one.
    #[must_use]
    pub fn asked_otherwise(&self, group: &Group, rank: u32) -> Option<&Request> {
        let at = MeetingPoint {
            world: group.world.clone(),
            epoch: group.info.key.epoch,
            name: group.info.key.name.clone(),
        };
        let request = self.creations.asked(&at, rank)?;
        (request.group.key.members != group.info.key.members).then_some(request)
    }

    /// Whether what failed then did not fail because the whole job was asked to end.
    #[must_use]
    pub fn is_own_doing(&self, at: Timestamp) -> bool {
        self.interrupted.is_none_or(|asked| at.plus(REFLEX) < asked)
    }

    /// How a process ended by itself. One that ended after the whole job was asked to is as if it
    /// lived: its end says nothing about it.
    #[must_use]
    pub fn ending_of<'a>(&self, process: &'a Process) -> Ending<'a> {
        let ended = process.end.map(|end| end.at);
        let raised = process.uncaught().map(|exception| exception.at);
        match raised.or(ended) {
            Some(at) if !self.is_own_doing(at) => match process.ending() {
                // Whoever ended in order just before did not do so on request.
                Ending::InOrder if self.interrupted.is_some_and(|asked| at < asked) => {
                    Ending::InOrder
                }
                _ => Ending::None,
            },
            _ => process.ending(),
        }
    }

    /// Up to when what ranks do is their own doing: until they began to end because all of them were
    /// asked to.
    #[must_use]
    pub fn own_doing_until(&self, now: Timestamp) -> Timestamp {
        let obeyed = |asked: &Timestamp| {
            self.processes
                .values()
                .any(|process| process.end.is_some_and(|end| end.at >= *asked))
        };
        self.interrupted
            .filter(obeyed)
            .map_or(now, |asked| asked.min(now))
    }

    /// When the job was over, or what is known of it: nothing more will come.
    #[must_use]
    pub fn over(&self) -> Option<Timestamp> {
        self.ended.or(self.evidence_ended)
    }

    /// The number of ranks there should be, as far as processes claim one that can be. No more than
    /// [`MAX_WORLD`].
    #[must_use]
    pub fn world_size(&self) -> Option<u32> {
        self.worlds.size()
    }

    /// How much the times of two hosts may be apart, at most, as far as that was measured; zero for one
    /// host.
    #[must_use]
    pub fn clock_uncertainty(&self) -> Duration {
        if self.hosts.len() < 2 {
            return Duration::ZERO;
        }
        let mut uncertainties: Vec<u64> =
            self.clocks.values().map(|it| it.uncertainty_ns).collect();
        uncertainties.sort_unstable();
        Duration::from_nanos(uncertainties.iter().rev().take(2).sum())
    }

    /// Since when nothing is heard any more of a process that has not ended.
    #[must_use]
    pub fn silent_since(&self, process: &Process) -> Option<Timestamp> {
        let since = self.silent.get(&process.id.node()).copied();
        since.filter(|_| !process.has_ended())
    }

    /// Processes that are to be this rank and have not joined a process group, the newest first.
    #[must_use]
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

    /// Ranks of the world that no probe has seen.
    #[must_use]
    pub fn unseen(&self) -> Vec<u32> {
        let size = self.world_size().unwrap_or(0);
        let mut unseen = Vec::new();
        let mut next = 0;
        for &rank in self.ranks.range(..size).map(|(rank, _)| rank) {
            unseen.extend(next..rank);
            next = rank + 1;
        }
        unseen.extend(next..size);
        unseen
    }
}

#[cfg(test)]
mod tests;
