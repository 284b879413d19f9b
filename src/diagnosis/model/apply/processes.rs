//! Events about a process.

use std::collections::BTreeSet;
use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{ExceptionKind, ProcessState};

use crate::input::event::{Event, ProcessId, Stacks, ThreadId};
use crate::input::transport::is_timeout;
use crate::model::ids::World;
use crate::model::process::{Announced, End, Ending, Exception, Process};
use crate::model::{Model, Wait, keep_latest};

/// Maximum number of statements of a log that a process keeps.
const MAX_STATED: usize = 4;

/// What Python raises in a process that gets SIGINT.
const INTERRUPT: &str = "KeyboardInterrupt";

impl Model {
    /// Takes an event in the life of a process; returns any other one.
    pub(super) fn apply_processes(&mut self, event: Event) -> Option<Event> {
        match event {
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
                let new = Process {
                    id: process,
                    host,
                    pid,
                    layer,
                    world: World { name: world, generation: 0 },
                    restarts,
                    joined_at: at,
                    worker: None,
                    asked_to_end: self.interrupted,
                    ..Process::default()
                };
                self.joined(new, rank, world_size);
            }
            Event::ProcessChanged { process, state, exit, oom_kills, at } => {
                let process = self.processes.get_mut(&process)?;
                process.state = state;
                process.state_at = at;
                process.pace.state(state == ProcessState::Stopped, at);
                if state == ProcessState::Dead && process.end.is_none() {
                    process.end = Some(End { at, exit, oom_kills });
                    if process.ending() != Ending::InOrder {
                        let world = (process.layer.clone(), process.world.name.clone());
                        self.worlds.failed(world, process.world.generation, at);
                    }
                }
            }
            Event::Unwatched { process, since, read_whole, exit } => {
                let process = self.processes.get_mut(&process)?;
                process.unwatched = Some(since);
                process.later_exit = exit;
                process.known_until = (!read_whole).then_some(since);
            }
            Event::Exception { process, kind, text, place, at } => {
                if text.starts_with(INTERRUPT) {
                    let known = self.first_interrupt.unwrap_or(at);
                    self.first_interrupt = Some(known.min(at));
                }
                let exception = Exception { kind, text, place, at, after_calls: 0 };
                let ends = exception.has_left_a_call() || kind == ExceptionKind::Uncaught;
                if ends && is_timeout(&exception.text) {
                    self.gave_up(process, at);
                }
                self.processes.get_mut(&process)?.raised(exception);
            }
            Event::ExitAnnounced { process, thread, code, how, place, at } => {
                let process = self.processes.get_mut(&process)?;
                process.count_exit_record(at);
                process.announced = Some(Announced { code, how, place, at });
                process.leaving.get_or_insert((at, thread));
            }
            other => return Some(other),
        }
        None
    }

    /// A wait of a process timed out: launchers and frameworks then end the ranks of its world.
    fn gave_up(&mut self, process: ProcessId, at: Timestamp) {
        /// More than tell why a rank has ended.
        const MAX_KEPT: usize = 16;
        let Some(world) = self.processes.get(&process).map(|it| it.world.clone()) else { return };
        for other in self.processes.values_mut().filter(|it| it.world == world) {
            keep_latest(&mut other.timeouts, at, MAX_KEPT);
        }
    }

    /// Records of a process are missing, with which all threads but those `inside` left their calls.
    fn records_left_out(&mut self, process: ProcessId, inside: &[ThreadId], threads: &[ThreadId]) {
        let Some(process) = self.processes.get_mut(&process) else { return };
        let left = process.left_out(inside, threads);
        let at = process.last_at;
        let Some(rank) = process.rank else { return };
        let messages = process.messages();
        for (_, group) in process.groups.values() {
            let traffic = &mut self.groups[group.0 as usize].traffic;
            traffic.miss(rank);
            if let Some(latest) = &process.last_call {
                traffic.leave(rank, latest.at, messages.clone());
            }
        }
        for target in left {
            self.set_wait(rank, target, Wait::Over(at), false);
        }
    }

    /// Takes a sample or a record of a process; returns any other event.
    pub(super) fn apply_observations(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::ThreadDefined { process, thread, tid } => {
                self.processes.get_mut(&process)?.thread_defined(thread, tid);
            }
            Event::Stacks { process, stacks } => {
                let stacks = self.without_ranks(process, stacks)?;
                self.processes.get_mut(&process)?.stood(stacks);
            }
            Event::DeviceCalls { process, calls } => {
                self.processes.get_mut(&process)?.device_calls = Some(calls);
            }
            Event::RecordsLost { process, count } => {
                let process = self.processes.get_mut(&process)?;
                process.lost = process.lost.saturating_add(count);
                process.turns.lost();
                process.accumulation.lost();
                if process.lost_at == Timestamp::default() {
                    process.lost_at = process.last_at;
                }
            }
            Event::Gap { from, to, .. } => self.gaps.add(from, to),
            Event::RecordsLeftOut { process, inside, threads } => {
                self.records_left_out(process, &inside, &threads);
            }
            Event::Site { process, place, caller, guards, reading } => {
                self.processes.get_mut(&process)?.site(place, caller, guards, reading);
            }
            Event::WorkerNamed { process, name } => {
                self.processes.get_mut(&process)?.worker = Some(name);
            }
            Event::NodeFailed { process, failure } => {
                self.processes.get_mut(&process)?.node_failure = Some(failure);
            }
            Event::Stated { process, what, at } => {
                keep_latest(&mut self.processes.get_mut(&process)?.stated, (at, what), MAX_STATED);
            }
            Event::Setting { process, name, value, at } => {
                self.recorded(process, at)?.set(name, value, at);
            }
            Event::Memory { process, sample, at } => {
                let process = self.processes.get_mut(&process)?;
                // A program that is over releases its memory.
                let step = process.step_at_time(at)?;
                process.memory.take(&sample, Some(step).filter(|_| !process.is_past_step(at)), at);
            }
            Event::Scheduled { process, sample, at } => {
                let from = at.minus(self.timing.scheduling_interval);
                self.processes.get_mut(&process)?.pace.scheduled(&sample, from);
            }
            other => return Some(other),
        }
        None
    }

    /// A capture without child processes that are ranks, and without what is below those: a launcher
    /// may be a rank itself.
    fn without_ranks(&self, of: ProcessId, stacks: Arc<Stacks>) -> Option<Arc<Stacks>> {
        if stacks.children.is_empty() {
            return Some(stacks);
        }
        let host = &self.processes.get(&of)?.host;
        let ranks = self.processes.values().filter(|it| it.host == *host && it.rank.is_some());
        let mut left_out: BTreeSet<u32> = ranks.map(|it| it.pid).collect();
        if !stacks.children.iter().any(|child| left_out.contains(&child.pid)) {
            return Some(stacks);
        }
        let mut stacks = Arc::unwrap_or_clone(stacks);
        left_out.remove(&self.processes.get(&of)?.pid);
        stacks.children.retain(|child| {
            let is_left_out = left_out.contains(&child.pid) || left_out.contains(&child.parent);
            if is_left_out {
                left_out.insert(child.pid);
            }
            !is_left_out
        });
        Some(Arc::new(stacks))
    }

    /// Name of the world that a process is part of although its launcher seems to be another one: live
    /// processes with the same port and world size lack its rank.
    fn met_world(&self, process: &Process, rank: u32, size: Option<u32>) -> Option<Arc<str>> {
        let port = |name: &str| name.split_once('/').map(|(port, _)| port.to_owned());
        let own = port(&process.world.name).filter(|port| !port.is_empty())?;
        let is_candidate = |(layer, name): &&(Arc<str>, Arc<str>)| {
            *layer == process.layer
                && *name != process.world.name
                && port(name).as_ref() == Some(&own)
        };
        let mut candidates = self.world_names.iter().filter(is_candidate);
        let found = candidates.find(|(layer, name)| {
            let all = self.processes.values();
            let mut members = all
                .filter(|it| it.layer == *layer && it.world.name == *name && !it.has_ended())
                .peekable();
            let has_room =
                |it: &Process| it.rank.is_some_and(|it| it != rank) && it.world_size == size;
            size.is_some() && members.peek().is_some() && members.all(has_room)
        });
        found.map(|(_, name)| Arc::clone(name))
    }

    /// A process joined, or its rank became known or changed.
    fn joined(&mut self, mut process: Process, rank: Option<u32>, world_size: Option<u32>) {
        let (id, at) = (process.id, process.joined_at);
        if let Some(name) = rank.and_then(|rank| self.met_world(&process, rank, world_size)) {
            process.world.name = Arc::clone(&name);
            if let Some(known) = self.processes.get_mut(&id).filter(|it| it.rank.is_none()) {
                known.world.name = name;
            }
        }
        self.world_names.insert((Arc::clone(&process.layer), Arc::clone(&process.world.name)));
        let process = self.processes.get_or_insert(process);
        let claimed = world_size.or(process.world_size);
        self.worlds.resized(process.world_size, claimed);
        process.world_size = claimed;
        let Some(rank) = rank else { return };
        if process.rank == Some(rank) {
            return;
        }
        let world = (Arc::clone(&process.layer), Arc::clone(&process.world.name));
        if let Some(old) = process.rank.replace(rank)
            && let Some(list) = self.ranks.get_mut(&old)
        {
            list.retain(|&other| other != id);
        }
        self.rank_changes += 1;
        // A world has each rank once and accepts no process after one of its ranks failed: when the
        // launcher restarts all ranks, some may join for the first time.
        let of_rank = self.ranks.entry(rank).or_default();
        let mut latest = of_rank.iter().rev().map(|id| &self.processes[id]);
        let had = latest
            .find(|it| it.layer == world.0 && it.world.name == world.1)
            .map(|it| it.world.generation);
        of_rank.push(id);
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.world.generation = self.worlds.next_generation(&world, had, at);
        let world = process.world.clone();
        let is_peer = |it: &&Process| it.id != id && it.world == world;
        let peer = self.processes.values().find(is_peer);
        let timeouts = peer.map(|it| it.timeouts.clone()).unwrap_or_default();
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.timeouts = timeouts;
        for (group, timeout) in std::mem::take(&mut process.early_groups) {
            self.group_joined(id, &group);
            self.group_timeout(id, &group, timeout);
        }
    }
}
