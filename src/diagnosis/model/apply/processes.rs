//! Events about a process.

use std::sync::Arc;

use ddp_doctor_proto::ProcessState;
use ddp_doctor_proto::report::{Exit, Timestamp};

use crate::evidence::event::{Event, OomKills, ProcessId, ThreadId};
use crate::model::Model;
use crate::model::join::Wait;
use crate::model::process::{Announced, End, Ending, Exception, Process};

impl Model {
    /// Events in the life of a process.
    pub(super) fn apply_processes(&mut self, event: Event) {
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
                let mut new = Process::new(process, host, pid, layer, world);
                new.restarts = restarts;
                new.joined_at = at;
                self.joined(new, rank, world_size, at);
            }
            Event::ProcessChanged { process, state, exit, oom_kills, at } => {
                self.changed(process, state, exit, oom_kills, at)
            }
            Event::Unwatched { process, since, read_whole, exit } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.unwatched = Some(since);
                    process.later_exit = exit;
                    process.known_until = (!read_whole).then_some(since);
                }
            }
            Event::Exception { process, kind, text, place, at } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.raised(Exception { kind, text, place, at, after_calls: 0 });
                }
            }
            Event::ExitAnnounced { process, thread, code, how, at } => {
                self.touch(process, at, |process| {
                    process.announced = Some(Announced { code, how, at });
                    process.leaving.get_or_insert((at, thread));
                })
            }
            _ => {}
        }
    }

    /// Records of a process are missing, with which all threads but those `inside` left their calls.
    fn records_left_out(&mut self, process: ProcessId, inside: &[ThreadId], threads: &[ThreadId]) {
        let Some(process) = self.processes.get_mut(&process) else {
            return;
        };
        let left = process.left_out(inside, threads);
        let at = process.last_at;
        let Some(rank) = process.rank else {
            return;
        };
        let messages = process.messages();
        for (_, group) in process.groups.values() {
            let traffic = &mut self.groups[group.0 as usize].traffic;
            traffic.miss(rank);
            if let Some(latest) = &process.last_call {
                traffic.leave(rank, latest.at, messages.clone());
            }
        }
        for target in left {
            self.set_wait(Some(rank), Some(target), Wait::Over(at), false);
        }
    }

    /// Samples and records of a process.
    pub(super) fn apply_observations(&mut self, event: Event) {
        match event {
            Event::Stacks { process, stacks } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.stood(stacks);
                }
            }
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
            Event::Gap { from, to, .. } => self.gaps.add(from, to),
            Event::RecordsLeftOut { process, inside, threads } => {
                self.records_left_out(process, &inside, &threads)
            }
            Event::Site { process, place, caller, guards, reading } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    process.site(place, caller, guards, reading);
                }
            }
            Event::Setting { process, name, value, at } => {
                self.touch(process, at, |process| process.set(name, value, at));
            }
            Event::Memory { process, sample, at } => {
                // A program that is over releases its memory.
                if let Some(process) = self.processes.get_mut(&process)
                    && let Some(step) = process.step_at_time(at)
                {
                    process.memory.take(&sample, step, at);
                }
            }
            Event::Scheduled { process, sample, at } => {
                if let Some(process) = self.processes.get_mut(&process) {
                    let covered = self.timing.scheduling_interval.as_nanos() as u64;
                    let from = Timestamp(at.0.saturating_sub(covered));
                    process.pace.scheduled(&sample, from);
                }
            }
            _ => {}
        }
    }

    fn changed(
        &mut self,
        process: ProcessId,
        state: ProcessState,
        exit: Exit,
        oom_kills: OomKills,
        at: Timestamp,
    ) {
        let Some(process) = self.processes.get_mut(&process) else {
            return;
        };
        process.state = state;
        process.state_at = at;
        let is_stopped = state == ProcessState::Stopped;
        process.pace.state(is_stopped, at);
        if state == ProcessState::Dead && process.end.is_none() {
            process.end = Some(End { at, exit, oom_kills });
            if process.ending() != Ending::InOrder {
                let world = (process.layer.clone(), process.world.name.clone());
                self.worlds.failed(world, process.world.generation, at);
            }
        }
    }

    /// A process joined, or its rank became known or changed.
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
}
