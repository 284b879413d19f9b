//! Everything that is known about the job. Filled by events; concludes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::{GroupRef, Timestamp};
use ddp_doctor_proto::{NoteKind, Op, ProcessState, Spending};

use super::event::{Call, Event, GroupInfo, ProcessId, StartedRank};

mod accumulation;
mod arrivals;
mod channel;
mod creation;
mod group;
pub mod history;
mod init;
mod memory;
mod pace;
mod parameters;
mod process;
mod threads;
mod transport;

pub use accumulation::Accumulation;
pub use arrivals::{Arrivals, Came, Encounter};
pub use channel::{Clash, Lone, Post, Side, Traffic};
pub use creation::{Asked, Creations, Meeting, MeetingPoint, Request};
pub use group::{Group, GroupId, Join, JoinedCall, KEPT_AFTER, Member, Wait};
pub use history::{By, History, Slip};
pub use init::{Init, Place};
pub use memory::{Device, Gauge, Memory};
pub use pace::{Pace, Spent};
pub use parameters::{Parameter, Replica, Said, parse};
pub use process::{
    Announced, Doing, End, Ending, Exception, Phase, Process, Site, Target, Thread, Unawaited,
    World, is_inside, libc_signal,
};
pub use threads::{Crossing, Crossings};
pub use transport::{Matching, Transport};

/// A request to end reaches the ranks this much before it is told, at most.
const REFLEX: Duration = Duration::from_millis(250);

/// The layer of the calls that a program makes of NCCL.
const NCCL: &str = "nccl";

/// Most processes that are remembered though they have not joined.
const KEPT_STARTED: usize = 65_536;

/// Most gaps in the evidence that are listed one by one.
const KEPT_NOTES: usize = 1024;

/// The job, its ranks and its groups.
#[derive(Debug, Default)]
pub struct Model {
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

    /// The number of ranks there should be.
    #[must_use]
    pub fn world_size(&self) -> Option<u32> {
        self.processes
            .values()
            .filter_map(|process| process.world_size)
            .max()
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
        let world = 0..self.world_size().unwrap_or(0);
        world
            .filter(|rank| !self.ranks.contains_key(rank))
            .collect()
    }

    /// Takes one event.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::JobStarted {
                job,
                attempt,
                host,
                at,
            } => {
                self.job = job;
                self.attempt = attempt;
                self.hosts.insert(host);
                self.started = Some(self.started.map_or(at, |known| known.min(at)));
            }
            Event::ProcessJoined {
                process,
                rank,
                world_size,
                host,
                pid,
                layer,
                world,
                at,
            } => {
                let new = Process::new(process, host, pid, layer, world);
                self.joined(new, rank, world_size, at);
            }
            Event::RankStarted(started) => {
                let key = (started.node, started.pid, started.start_ticks);
                let known = self.started_ranks.contains_key(&key);
                if known || self.started_ranks.len() < KEPT_STARTED {
                    self.started_ranks.insert(key, *started);
                }
            }
            Event::GroupJoined { process, group } => {
                self.group_joined(process, &group);
            }
            Event::GroupDestroyed { process, group, at } => {
                let Some((id, rank)) = self.membership(process, &group) else {
                    return;
                };
                if let Some(member) = self.groups[id.0 as usize].members.get_mut(&rank) {
                    member.destroyed = Some(at);
                }
            }
            Event::GroupTimeout {
                process,
                group,
                timeout,
                at,
            } => {
                self.touch(process, at, |_| {});
                self.group_timeout(process, &group, Some(timeout));
            }
            Event::Site {
                process,
                place,
                caller,
                guards,
            } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.site(place, caller, guards);
                }
            }
            Event::Issued { process, call } => self.issued(process, &call),
            Event::Returned {
                process,
                thread,
                call,
                at,
            } => {
                let Some(process) = self.processes.get_mut(&process) else {
                    return;
                };
                if let Some(Thread {
                    doing: Doing::Call(inside),
                    ..
                }) = process.threads.get(&thread)
                    && inside.op == Op::InitProcessGroup
                    && inside.id == call
                {
                    self.world_joined.get_or_insert(at);
                }
                process.returned(thread, call, at);
                let target = process.target(call);
                let (Some(rank), Some(Target::Join(id, seq))) = (process.rank, target) else {
                    return;
                };
                self.arrivals.set_returned(rank, Target::Join(id, seq), at);
                let group = &mut self.groups[id.0 as usize];
                if seq == 0 {
                    group.made(rank, at);
                } else if let Some(call) = group.set_returned(rank, seq, at) {
                    self.waited(id, rank, &call, at);
                }
            }
            Event::WaitBegin {
                process,
                thread,
                call,
                place,
                at,
            } => {
                let Some(process) = self.processes.get_mut(&process) else {
                    return;
                };
                let target = process.wait_begin(thread, call, place, at);
                let rank = process.rank;
                self.set_wait(rank, target, Wait::Since(at), false);
            }
            Event::WaitEnd {
                process,
                thread,
                call,
                at,
            } => {
                let Some(process) = self.processes.get_mut(&process) else {
                    return;
                };
                let target = process.wait_end(thread, call, at);
                let failed = process.threads.get(&thread).and_then(|it| it.failed);
                let failed = failed.is_some_and(|(it, _, over)| Some(it) == target && over == at);
                let rank = process.rank;
                self.completed(rank, target);
                let over = Wait::Over(at);
                if let Some((group, rank, call)) = self.set_wait(rank, target, over, failed) {
                    self.waited(group, rank, &call, at);
                }
            }
            Event::Completed { process, call, at } => {
                let Some(process) = self.processes.get_mut(&process) else {
                    return;
                };
                process.completed(call);
                let (rank, target) = (process.rank, process.target(call));
                let on_device = &*process.layer == NCCL;
                self.completed(rank, target);
                // On a device nobody is seen to wait for a call: that it is complete ends what waits.
                if on_device
                    && let Some((group, rank, call)) =
                        self.set_wait(rank, target, Wait::Over(at), false)
                {
                    self.waited(group, rank, &call, at);
                }
            }
            Event::Unawaited {
                process,
                call: _,
                op,
                group,
                place,
                at,
            } => self.touch(process, at, |process| {
                if let (Some(group), Some(place)) = (group, place) {
                    process.unawaited(op, group, place, at);
                }
            }),
            Event::Step {
                process,
                step,
                forward,
                at,
            } => {
                self.touch(process, at, |process| {
                    process.step = process.step.max(step);
                    process.step_at = at;
                    process.pace.step(at);
                    process.turns.begin(forward.as_ref());
                    if let Some(forward) = &forward {
                        process.accumulation.begin(forward);
                    }
                });
            }
            Event::PhaseBegin { process, name, at } => {
                self.touch(process, at, |process| process.phase_began(name, at));
            }
            Event::PhaseEnd { process, name, at } => {
                self.touch(process, at, |process| process.phase_ended(&name, at));
            }
            Event::Exception {
                process,
                kind,
                text,
                place,
                at,
            } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.raised(Exception {
                        kind,
                        text,
                        place,
                        at,
                        after_calls: 0,
                    });
                }
            }
            Event::ExitAnnounced {
                process,
                thread,
                code,
                how,
                at,
            } => self.touch(process, at, |process| {
                process.announced = Some(Announced { code, how, at });
                process.leaving.get_or_insert((at, thread));
            }),
            Event::InputEnded { process, place, at } => {
                self.touch(process, at, |process| {
                    process.input_ended = Some((at, place));
                });
            }
            Event::Parameters {
                process,
                group,
                said,
                at,
            } => {
                let member = self.membership(process, &group);
                self.touch(process, at, |process| {
                    if let Some((group, _)) = member {
                        process.models.take(group, said, at);
                    }
                });
            }
            Event::Setting {
                process,
                name,
                value,
                at,
            } => {
                self.touch(process, at, |process| process.set(name, value));
            }
            Event::Memory {
                process,
                sample,
                at,
            } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.memory.take(&sample, at);
                }
            }
            Event::Spent {
                process,
                thread,
                on,
                took,
                place,
                at,
            } => {
                // A thread beside the one that stands still may have spent it: no sign of progress.
                if let Some(process) = self.processes.get_mut(&process) {
                    process.records += 1;
                    process.pace.spent(on, thread, took, at);
                    if on == Spending::Input {
                        process.pace.draws_at = place.or(process.pace.draws_at.take());
                    }
                }
            }
            Event::Scheduled {
                process,
                sample,
                at,
            } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.pace.scheduled(sample, at);
                }
            }
            Event::Frontier {
                process,
                group,
                issued,
                p2p_issued,
            } => {
                let Some((id, rank)) = self.membership(process, &group) else {
                    return;
                };
                let group = &mut self.groups[id.0 as usize];
                group.advance(rank, issued);
                group.met.clear();
                group.traffic.advance(rank, p2p_issued);
            }
            Event::ProcessChanged {
                process,
                state,
                exit,
                at,
            } => {
                let Some(process) = self.processes.get_mut(&process) else {
                    return;
                };
                process.state = state;
                process.state_at = at;
                let is_stopped = state == ProcessState::Stopped;
                process.pace.state(is_stopped, at);
                if state == ProcessState::Dead && process.end.is_none() {
                    process.end = Some(End { at, exit });
                }
            }
            Event::Stacks { process, stacks } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.stood(stacks);
                }
            }
            Event::Unwatched {
                process,
                since,
                read_whole,
            } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.unwatched = Some(since);
                    process.known_until = (!read_whole).then_some(since);
                }
            }
            Event::EvidenceEnded { at } => self.evidence_ended = Some(at),
            Event::RecordsLost { process, count } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.lost += count;
                    process.turns.lost();
                    process.accumulation.lost();
                    if process.lost_at == Timestamp::default() {
                        process.lost_at = process.last_at;
                    }
                }
            }
            Event::Note {
                process,
                kind,
                rank,
                pid,
                text,
                at,
            } => {
                let process = process.and_then(|id| self.processes.get(&id));
                let rank = rank.or_else(|| process.and_then(|process| process.rank));
                let pid = pid.or_else(|| process.map(|process| process.pid));
                let note = Note {
                    kind,
                    rank,
                    pid,
                    text,
                    at,
                };
                // What is about no process is told apart by what it says.
                let same = |n: &Note| match (pid, rank) {
                    (None, None) => n.text == note.text,
                    _ => true,
                };
                let known = self
                    .notes
                    .iter()
                    .any(|n| n.kind == kind && n.pid == pid && n.rank == rank && same(n));
                if !known && self.notes.len() < KEPT_NOTES {
                    self.notes.push(note);
                }
            }
            Event::Clock {
                host,
                ahead_ns,
                uncertainty_ns,
                at,
            } => {
                let clock = Clock {
                    ahead_ns,
                    uncertainty_ns,
                    at,
                };
                self.clocks.insert(host, clock);
            }
            Event::Silent { node, since, at: _ } => match since {
                Some(since) => {
                    self.silent.insert(node, since);
                }
                None => {
                    self.silent.remove(&node);
                }
            },
            Event::Interrupted { signal: _, at } => {
                self.interrupted = Some(self.interrupted.map_or(at, |known| known.min(at)));
            }
            Event::JobEnded { status: _, at } => {
                self.nodes_ended += 1;
                if self.nodes_ended >= self.hosts.len() {
                    self.ended = Some(at);
                }
            }
        }
    }

    fn joined(
        &mut self,
        process: Process,
        rank: Option<u32>,
        world_size: Option<u32>,
        at: Timestamp,
    ) {
        let id = process.id;
        let process = self.processes.entry(id).or_insert(process);
        process.world_size = world_size.or(process.world_size);
        let Some(rank) = rank else { return };
        if process.rank == Some(rank) {
            return;
        }
        if let Some(list) = process.rank.and_then(|old| self.ranks.get_mut(&old)) {
            list.retain(|&other| other != id);
        }
        process.rank = Some(rank);
        let layer = Arc::clone(&process.layer);
        let world = Arc::clone(&process.world.name);
        // A world has each rank once, and nobody joins it any more once one of its ranks has failed:
        // where the launcher starts all of them again, some may not have come to join the first time.
        let failed = |other: &Process| {
            other.end.is_some_and(|end| end.at < at) && other.ending() != Ending::InOrder
        };
        let generation = self
            .processes
            .values()
            .filter(|other| other.id != id && other.layer == layer && other.world.name == world)
            .filter(|other| other.rank == Some(rank) || failed(other))
            .map(|other| other.world.generation + 1)
            .max()
            .unwrap_or(0);
        self.ranks.entry(rank).or_default().push(id);
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        process.world.generation = generation;
        for (group, timeout) in std::mem::take(&mut process.early_groups) {
            self.group_joined(id, &group);
            self.group_timeout(id, &group, timeout);
        }
    }

    fn group_joined(&mut self, process: ProcessId, info: &Arc<GroupInfo>) {
        let Some(process) = self.processes.get_mut(&process) else {
            return;
        };
        let Some(rank) = process.rank else {
            process.early_groups.push((Arc::clone(info), None));
            return;
        };
        // Nobody is a member of a group that does not name him.
        if !info.key.members.contains(&rank) {
            return;
        }
        let world = process.world.clone();
        let id = group_of(&mut self.groups, &mut self.group_ids, world, info);
        process
            .groups
            .insert(Arc::as_ptr(info) as usize, (Arc::clone(info), id));
        let member = Member::new(process.id);
        self.groups[id.0 as usize]
            .members
            .entry(rank)
            .or_insert(member);
    }

    fn group_timeout(&mut self, id: ProcessId, info: &Arc<GroupInfo>, timeout: Option<Duration>) {
        if let Some((group, rank)) = self.membership(id, info) {
            if let Some(member) = self.groups[group.0 as usize].members.get_mut(&rank) {
                member.timeout = timeout.or(member.timeout);
            }
        } else if let Some(process) = self.processes.get_mut(&id) {
            let mut early = process.early_groups.iter_mut();
            if let Some((_, known)) = early.find(|(group, _)| Arc::ptr_eq(group, info)) {
                *known = timeout;
            }
        }
    }

    /// The group and the rank that a process means.
    fn membership(&self, process: ProcessId, info: &Arc<GroupInfo>) -> Option<(GroupId, u32)> {
        let process = self.processes.get(&process)?;
        let (_, id) = process.groups.get(&(Arc::as_ptr(info) as usize))?;
        Some((*id, process.rank?))
    }

    /// A process is about to make a group.
    fn creates(&mut self, id: ProcessId, call: &Arc<Call>) {
        let world_size = self.world_size();
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let (Some(rank), Some(info)) = (process.rank, &call.group) else {
            process.made_unknown_groups = true;
            process.issued(call, None);
            return;
        };
        process.groups_made += 1;
        let asked = Asked {
            process: id,
            call: Arc::clone(call),
            nth: process.groups_made,
        };
        let world = process.world.clone();
        let at = MeetingPoint {
            world: world.clone(),
            epoch: info.key.epoch,
            name: info.key.name.clone(),
        };
        self.creations.ask(at, rank, info, asked, world_size);
        if !info.key.members.contains(&rank) {
            process.issued(call, None);
            return;
        }
        let group = group_of(&mut self.groups, &mut self.group_ids, world, info);
        process.issued(call, Some(Target::Join(group, 0)));
        self.groups[group.0 as usize].begin(rank, id, call);
    }

    fn issued(&mut self, id: ProcessId, call: &Arc<Call>) {
        if call.op.creates_group() {
            self.creates(id, call);
            return;
        }
        let member = call
            .group
            .as_ref()
            .and_then(|group| self.membership(id, group));
        let mut target = None;
        if let Some((group_id, rank)) = member {
            let group = &mut self.groups[group_id.0 as usize];
            if call.op.is_collective() && call.seq > 0 {
                let process = self.processes.get(&id);
                let position = process.map(|it| it.turns.position());
                let position = position.unwrap_or_default();
                target = Some(Target::Join(group_id, call.seq));
                let waited = group.issue(rank, call, position);
                for encounter in group.met.drain(..) {
                    self.arrivals.met(encounter);
                }
                for (rank, call, last) in waited {
                    self.waited(group_id, rank, &call, last);
                }
            } else if call.op.is_point_to_point()
                && let Some((post, met)) = group.traffic.issue(rank, call)
            {
                target = Some(Target::Message(group_id, post));
                if let Some(met) = &met {
                    self.arrivals.messaged(group_id, met);
                }
                for met in met.into_iter().flatten() {
                    self.waited(group_id, met.rank, &met.call, met.other);
                }
            }
        }
        if let Some(process) = self.processes.get_mut(&id) {
            process.issued(call, target);
        }
    }

    /// A member made a call, and waited for those that it needs until then at least.
    fn waited(&mut self, group: GroupId, rank: u32, call: &Call, last: Timestamp) {
        let member = self.groups[group.0 as usize].members.get(&rank);
        let process = member.and_then(|member| self.processes.get_mut(&member.process));
        if let (Some(process), Some(place)) = (process, call.place.clone()) {
            let waited = last.since(call.at).as_nanos() as u64;
            let longest = process.waits.entry(place).or_default();
            *longest = (*longest).max(waited);
        }
    }

    /// A rank waits for a call, or does no more. Returns the call where all of that wait is known now.
    fn set_wait(
        &mut self,
        rank: Option<u32>,
        target: Option<Target>,
        wait: Wait,
        failed: bool,
    ) -> Option<(GroupId, u32, Arc<Call>)> {
        self.arrivals.set_wait(rank?, target?, wait);
        match target? {
            Target::Join(id, seq) => {
                let group = &mut self.groups[id.0 as usize];
                let call = group.set_wait(rank?, seq, wait, failed)?;
                Some((id, rank?, call))
            }
            Target::Message(group, post) => {
                self.groups[group.0 as usize].traffic.set_wait(&post, wait);
                None
            }
        }
    }

    fn completed(&mut self, rank: Option<u32>, target: Option<Target>) {
        let (Some(rank), Some(Target::Join(group, seq))) = (rank, target) else {
            return;
        };
        if let Some(member) = self.groups[group.0 as usize].members.get_mut(&rank) {
            member.completed = member.completed.max(seq);
        }
    }

    fn touch(&mut self, process: ProcessId, at: Timestamp, change: impl FnOnce(&mut Process)) {
        if let Some(process) = self.processes.get_mut(&process) {
            process.records += 1;
            process.last_at = at;
            change(process);
        }
    }
}

/// The group with this key in this world; made where there is none.
fn group_of(
    groups: &mut Vec<Group>,
    ids: &mut BTreeMap<(World, GroupRef), GroupId>,
    world: World,
    info: &Arc<GroupInfo>,
) -> GroupId {
    let next = GroupId(groups.len() as u32);
    let id = *ids.entry((world.clone(), info.key.clone())).or_insert(next);
    match groups.get_mut(id.0 as usize) {
        Some(group) => group.describe(info),
        None => groups.push(Group::new(id, world, Arc::clone(info))),
    }
    id
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::report::Exit;

    use super::*;
    use crate::diagnosis::event::MemorySample;
    use crate::diagnosis::testing;

    #[test]
    fn a_rank_that_is_known_late_is_a_member_of_its_groups_all_the_same() {
        let mut model = Model::default();
        let process = ProcessId(1);
        let joined = |rank| Event::ProcessJoined {
            process,
            rank,
            world_size: Some(2),
            host: "node".into(),
            pid: 7,
            layer: "c10d".into(),
            world: "".into(),
            at: Timestamp(0),
        };
        model.apply(joined(None));
        let group = testing::group("0", "gloo", &[0, 1]);
        model.apply(Event::GroupJoined { process, group });
        assert_eq!(model.groups().count(), 0);
        model.apply(joined(Some(1)));
        let members: Vec<u32> = model
            .groups()
            .flat_map(|g| g.members.keys().copied())
            .collect();
        assert_eq!(members, [1]);
        assert_eq!(model.process_of(1).map(|process| process.pid), Some(7));
    }

    fn join(model: &mut Model, id: u64, rank: u32, at: u64) {
        join_world(model, id, rank, at, "");
    }

    fn join_world(model: &mut Model, id: u64, rank: u32, at: u64, world: &str) {
        model.apply(Event::ProcessJoined {
            process: ProcessId(id),
            rank: Some(rank),
            world_size: Some(2),
            host: "node".into(),
            pid: id as u32,
            layer: "c10d".into(),
            world: world.into(),
            at: Timestamp(at),
        });
    }

    #[test]
    fn memory_and_settings_are_the_processs() {
        let mut model = Model::default();
        join(&mut model, 1, 0, 100);
        let setting = |value: &str| Event::Setting {
            process: ProcessId(1),
            name: "nccl".into(),
            value: value.into(),
            at: Timestamp(101),
        };
        model.apply(setting("1"));
        model.apply(setting("2"));
        for (at, rss) in [(200, 50), (300, 40)] {
            model.apply(Event::Memory {
                process: ProcessId(1),
                sample: MemorySample {
                    rss: Some(rss),
                    ..MemorySample::default()
                },
                at: Timestamp(at),
            });
        }
        let process = &model.processes[&ProcessId(1)];
        assert_eq!(process.settings["nccl"].as_ref(), "2");
        let rss = process.memory.rss.unwrap();
        assert_eq!((rss.latest, rss.peak), (40, 50));
        // That somebody measured it says nothing about what it does.
        assert_eq!(process.last_at, Timestamp(101));
    }

    fn generation(model: &Model, id: u64) -> u32 {
        model.processes[&ProcessId(id)].world.generation
    }

    #[test]
    fn launches_at_the_same_time_have_worlds_of_their_own() {
        let mut model = Model::default();
        // One launch's rank 1 is late, and so is the other's rank 0.
        join_world(&mut model, 1, 0, 100, "29500/a");
        join_world(&mut model, 2, 1, 101, "29501/b");
        join_world(&mut model, 3, 0, 102, "29501/b");
        join_world(&mut model, 4, 1, 103, "29500/a");
        let world = |id| &model.processes[&ProcessId(id)].world;
        assert_eq!(world(1), world(4));
        assert_eq!(world(2), world(3));
        assert_ne!(world(1), world(2));
    }

    #[test]
    fn ranks_that_are_started_again_meet_also_where_one_had_not_joined_before() {
        let mut model = Model::default();
        join(&mut model, 1, 0, 100);
        model.apply(Event::ProcessChanged {
            process: ProcessId(1),
            state: ProcessState::Dead,
            exit: Exit {
                code: None,
                signal: Some(libc_signal::TERM),
            },
            at: Timestamp(200),
        });
        join(&mut model, 2, 1, 300);
        join(&mut model, 3, 0, 301);
        assert_eq!((generation(&model, 2), generation(&model, 3)), (1, 1));
    }

    #[test]
    fn a_rank_that_was_told_of_late_is_of_the_world_that_it_joined() {
        let mut model = Model::default();
        join(&mut model, 1, 0, 100);
        model.apply(Event::ProcessChanged {
            process: ProcessId(1),
            state: ProcessState::Dead,
            exit: Exit {
                code: Some(1),
                signal: None,
            },
            at: Timestamp(200),
        });
        join(&mut model, 2, 1, 101);
        assert_eq!(generation(&model, 2), 0);
    }
}
