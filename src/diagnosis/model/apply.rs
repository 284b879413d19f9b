//! Applies events to the model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::{GroupRef, Timestamp};
use ddp_doctor_proto::{Op, ParameterFact, ProcessState, Spending};

use crate::evidence::event::{Call, Event, GroupInfo, ProcessId};
use crate::model::arrivals::Averaged;
use crate::model::creation::{CreationRequest, MeetingPoint};
use crate::model::group::{Group, GroupId, Wait};
use crate::model::process::{
    Announced, Doing, End, Ending, Exception, Process, Target, Thread, World,
};
use crate::model::{Clock, Model, Note};

/// Layer of the calls that a program makes to NCCL directly.
pub(super) const NCCL: &str = "nccl";

/// Maximum number of processes kept that have not joined a process group.
const KEPT_STARTED: usize = 65_536;

/// Maximum number of gaps in the evidence that are kept.
const KEPT_NOTES: usize = 1024;

impl Model {
    /// Applies one event.
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
                restarts,
                at,
            } => {
                let mut new = Process::new(process, host, pid, layer, world);
                new.restarts = restarts;
                new.joined_at = at;
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
                reading,
            } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.site(place, caller, guards, reading);
                }
            }
            Event::Issued { process, call } => self.issued(process, &call),
            Event::Returned {
                process,
                thread,
                call,
                followed,
                at,
            } => {
                let Some(process) = self.processes.get_mut(&process) else {
                    return;
                };
                if let Some(Thread {
                    doing: Doing::Call(inside),
                    ..
                }) = process.threads.get(&thread)
                    && inside.id == call
                    && (inside.op == Op::InitProcessGroup
                        || process.init.as_ref().is_some_and(|it| it.call.id == call))
                {
                    self.world_joined.get_or_insert(at);
                }
                process.returned(thread, call, at);
                if followed {
                    process.follow(call);
                }
                let target = process.target(call);
                let (Some(rank), Some(Target::Join(id, seq))) = (process.rank, target) else {
                    return;
                };
                self.arrivals.set_returned(rank, Target::Join(id, seq), at);
                let group = &mut self.groups[id.0 as usize];
                if followed && group.is_told_beneath() {
                    group.set_followed(rank, seq);
                }
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
                let complete = process.completed(call, at);
                let complete = complete.into_iter();
                let targets: Vec<_> = complete.filter_map(|it| process.target(it)).collect();
                let rank = process.rank;
                for target in targets.into_iter().map(Some) {
                    self.completed(rank, target);
                    if let (Some(rank), Some(Target::Join(id, seq))) = (rank, target) {
                        self.groups[id.0 as usize].set_complete(rank, seq);
                    }
                    // Waits on a device are not recorded: completion ends them.
                    let on_device = target
                        .is_some_and(|target| &*self.group(target.group()).info.key.layer == NCCL);
                    if on_device
                        && let Some((group, rank, call)) =
                            self.set_wait(rank, target, Wait::Over(at), false)
                    {
                        self.waited(group, rank, &call, at);
                    }
                }
            }
            Event::Beneath {
                process,
                call,
                beneath,
                at,
            } => {
                let Some(process) = self.processes.get_mut(&process) else {
                    return;
                };
                let target = process.target(call);
                let (Some(rank), Some(Target::Join(id, seq))) = (process.rank, target) else {
                    return;
                };
                let group = &mut self.groups[id.0 as usize];
                if let Some(call) = group.told_beneath(rank, seq, &beneath) {
                    process.told_beneath(&call, at);
                }
            }
            Event::Within {
                process,
                thread,
                function,
                at,
            } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.within(thread, function, at);
                }
            }
            Event::Transfer {
                process,
                call,
                transfer,
                standing,
                at,
            } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.transfer(call, transfer, standing, at);
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
                    if process.step > 0 {
                        process.input_ended_in_step.get_or_insert(process.step);
                    }
                });
            }
            Event::Parameters {
                process,
                group,
                said,
                at,
            } => {
                let member = self.membership(process, &group);
                if said.fact == ParameterFact::Values {
                    self.touch(process, at, |_| {});
                    self.compare_values(process, member, &said, at);
                    return;
                }
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
                self.touch(process, at, |process| process.set(name, value, at));
            }
            Event::Memory {
                process,
                sample,
                at,
            } => {
                // A program that is over releases its memory.
                if let Some(process) = self.processes.get_mut(&process)
                    && let Some(step) = process.step_at_time(at)
                {
                    process.memory.take(&sample, step, at);
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
                // A background thread may have spent it: this is no sign of progress.
                let Some(process) = self.processes.get_mut(&process) else {
                    return;
                };
                process.records += 1;
                if on == Spending::Buckets {
                    let from = Timestamp(at.0.saturating_sub(took.as_nanos() as u64));
                    let averaged = process.averaged(thread, from, at);
                    let rank = process.rank;
                    self.averaged(rank, averaged);
                    return;
                }
                process.pace.spent(on, thread, took, at);
                if on == Spending::Input {
                    process.pace.draws_at = place.or(process.pace.draws_at.take());
                }
            }
            Event::Scheduled {
                process,
                sample,
                at,
            } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    let covered = self.timing.scheduling_interval.as_nanos() as u64;
                    let from = Timestamp(at.0.saturating_sub(covered));
                    process.pace.scheduled(&sample, from);
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
                oom_kills,
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
                    process.end = Some(End {
                        at,
                        exit,
                        oom_kills,
                    });
                    if process.ending() != Ending::InOrder {
                        let world = (process.layer.clone(), process.world.name.clone());
                        self.worlds.failed(world, process.world.generation, at);
                    }
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
                // Notes about no particular process are distinguished by their text.
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
            Event::JobEnded { status, at } => {
                self.nodes_ended += 1;
                self.has_failed |= status != 0;
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
        let process = self.processes.get_or_insert(process);
        let claimed = world_size.or(process.world_size);
        self.worlds.resized(process.world_size, claimed);
        process.world_size = claimed;
        let Some(rank) = rank else { return };
        if process.rank == Some(rank) {
            return;
        }
        let layer = Arc::clone(&process.layer);
        let world = (Arc::clone(&layer), Arc::clone(&process.world.name));
        if let Some(old) = process.rank {
            self.worlds.left(&world, old, process.world.generation);
            if let Some(list) = self.ranks.get_mut(&old) {
                list.retain(|&other| other != id);
            }
        }
        process.rank = Some(rank);
        self.rank_changes += 1;
        // A world has each rank once and accepts no process after one of its ranks failed: when the
        // launcher restarts all ranks, some may join for the first time.
        let generation = self.worlds.next_generation(&world, rank, at);
        process.world.generation = generation;
        self.worlds.joined(world, rank, generation);
        self.ranks.entry(rank).or_default().push(id);
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
        // Only listed ranks can be members.
        if !info.key.members.contains(&rank) {
            return;
        }
        let world = process.world.clone();
        let id = group_of(&mut self.groups, &mut self.group_ids, world, info);
        process
            .groups
            .insert(Arc::as_ptr(info) as usize, (Arc::clone(info), id));
        let process = process.id;
        self.groups[id.0 as usize].join_member(rank, process);
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

    /// The group and rank of a process that joined the group.
    fn membership(&self, process: ProcessId, info: &Arc<GroupInfo>) -> Option<(GroupId, u32)> {
        let process = self.processes.get(&process)?;
        let (_, id) = process.groups.get(&(Arc::as_ptr(info) as usize))?;
        Some((*id, process.rank?))
    }

    /// A process is about to create a group.
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
        let asked = CreationRequest {
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

    /// The wait of a member for its peers lasted at least until `last`.
    fn waited(&mut self, group: GroupId, rank: u32, call: &Call, last: Timestamp) {
        let member = self.groups[group.0 as usize].members.get(&rank);
        let process = member.and_then(|member| self.processes.get_mut(&member.process));
        if let (Some(process), Some(place)) = (process, call.place.clone()) {
            let waited = last.since(call.at).as_nanos() as u64;
            process.places.waited(&place, waited);
        }
    }

    /// Updates the wait of a rank. Returns the call if its whole wait is known now.
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

    /// A rank has waited for DDP's buckets; the target is the last of them.
    fn averaged(&mut self, rank: Option<u32>, averaged: Option<(Target, Averaged)>) {
        if let (Some(rank), Some((Target::Join(id, seq), averaged))) = (rank, averaged) {
            self.arrivals.averaged(rank, id, seq, averaged);
            self.groups[id.0 as usize].set_averaged(rank, seq, averaged);
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

/// The group with this key in this world; created if there is none.
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
