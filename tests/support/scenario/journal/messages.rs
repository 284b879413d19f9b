//! Events as messages of a node.

use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor::diagnosis::event::{
    ChildProcess, DeviceCalls, DeviceGroup, Event, GroupInfo, ProcessId, Stacks,
};
use ddp_doctor::evidence::members;
use ddp_doctor_proto::report::{Exit, Timestamp, Where};
use ddp_doctor_proto::{NoteKind, Op, ProcessState, v1};
use v1::event::Kind;

use super::gpus;

/// Encodes events as the protocol messages of a node.
#[derive(Default)]
pub(super) struct Encoder {
    processes: BTreeMap<ProcessId, Process>,
}

#[derive(Default)]
pub(super) struct Process {
    pub(super) number: u64,
    pub(super) next_ticket: u64,
    pub(super) groups: Vec<Arc<GroupInfo>>,
    pub(super) sites: Vec<Arc<Where>>,
}

impl Encoder {
    pub(super) fn process(&mut self, id: ProcessId) -> &mut Process {
        let number = self.processes.len() as u64 + 1;
        self.processes.entry(id).or_insert_with(|| Process { number, ..Process::default() })
    }

    /// The messages that lead to this event.
    pub(super) fn encode(&mut self, event: &Event) -> Result<Vec<Kind>, String> {
        Ok(match event {
            // Each journal starts with a hello in its place.
            Event::JobStarted { .. } => Vec::new(),
            Event::ProcessJoined {
                process,
                rank,
                world_size,
                host: _,
                pid,
                layer,
                world,
                restarts,
                at,
            } => vec![Kind::ProcessJoined(v1::ProcessJoined {
                attempt: *restarts,
                process: self.process(*process).number,
                pid: *pid,
                start_ticks: u64::from(*pid),
                rank: *rank,
                world_size: *world_size,
                local_rank: None,
                layer: layer.as_ref().into(),
                world: world.as_ref().into(),
                anchor_mono_ns: at.0,
                anchor_unix_ns: at.0,
            })],
            Event::GroupJoined { process, group } => {
                let process = self.process(*process);
                process.groups.push(Arc::clone(group));
                let (members, runs) = members::encode(group.key.members.clone());
                vec![Kind::GroupDefined(v1::GroupDefined {
                    process: process.number,
                    id: process.groups.len() as u32,
                    name: group.key.name.clone(),
                    description: group.description.as_ref().into(),
                    backend: group.backend.as_ref().into(),
                    epoch: group.key.epoch,
                    ordinal: group.key.ordinal,
                    members,
                    runs,
                    seat: None,
                })]
            }
            Event::Site { process, place, caller, guards, reading } => {
                self.process(*process).site_event(place, caller.as_ref(), guards, *reading)
            }
            Event::Scheduled { process, sample, at } => {
                vec![Kind::SchedulingSample(v1::SchedulingSample {
                    process: self.process(*process).number,
                    unix_ns: at.0,
                    ran_permille: sample.ran_permille,
                    queued_permille: sample.queued_permille,
                    throttled_permille: sample.throttled_permille,
                    major_faults: sample.major_faults,
                    processors: sample.processors.as_ref().into(),
                    threads_queued_permille: sample.threads_queued_permille,
                    stolen_permille: sample.stolen_permille,
                    cpu_pressure_permille: sample.cpu_pressure,
                    memory_pressure_permille: sample.memory_pressure,
                    io_pressure_permille: None,
                })]
            }
            Event::GpuSampled { gpu, sample, at } => {
                vec![Kind::GpuSample(gpus::sampled(gpu, sample, *at))]
            }
            Event::GpuFailed { gpu, kind, at } => {
                vec![Kind::GpuFault(gpus::failed(gpu, *kind, *at))]
            }
            Event::PortSampled { port, sample, at } => {
                vec![Kind::PortSample(gpus::port(port, sample, *at))]
            }
            Event::RankStarted(started) => vec![Kind::RankStarted(v1::RankStarted {
                pid: started.pid,
                start_ticks: started.start_ticks,
                rank: started.rank,
                world_size: started.world_size,
                seen_unix_ns: started.seen.0,
                ended_unix_ns: started.end.map(|(at, _)| at.0),
                exit_code: started.end.and_then(|(_, exit)| exit.code),
                exit_signal: started.end.and_then(|(_, exit)| exit.signal),
                looks: started.looks.iter().map(|look| stacked(0, look)).collect(),
            })],
            Event::Memory { process, sample, at } => vec![Kind::MemorySample(v1::MemorySample {
                process: self.process(*process).number,
                unix_ns: at.0,
                rss: sample.rss,
                rss_shared: sample.rss_shared,
                host_available: sample.host_available,
                host_total: sample.host_total,
                cpu_permille: sample.cpu_permille,
                cgroup_used: sample.cgroup_used,
                cgroup_limit: sample.cgroup_limit,
                cgroup_held: sample.cgroup_held,
                cgroup_slowed: sample.cgroup_slowed,
                shm_used: sample.shm_used,
                shm_total: sample.shm_total,
                virtual_used: sample.virtual_used,
                virtual_limit: sample.virtual_limit,
                device: sample.device,
                gpu_used: sample.gpu_used,
                gpu_total: sample.gpu_total,
                gpu_allocated: sample.gpu_allocated,
                gpu_reserved: sample.gpu_reserved,
                gpu_peak: sample.gpu_peak,
                gpu_split: sample.gpu_split,
                gpu_retries: sample.gpu_retries,
                gpu_largest: sample.gpu_largest,
                gpu_nccl: sample.gpu_nccl,
                ..v1::MemorySample::default()
            })],
            Event::Frontier { process, group, issued, p2p_issued } => {
                let process = self.process(*process);
                vec![Kind::GroupFrontier(v1::GroupFrontier {
                    process: process.number,
                    group: process.group(group)?,
                    issued: *issued,
                    p2p_issued: *p2p_issued,
                    r#final: true,
                })]
            }
            Event::ProcessChanged { process, state, exit, oom_kills, at } => {
                let number = self.process(*process).number;
                vec![Kind::ProcessChanged(v1::ProcessChanged {
                    oom_kills_in_cgroup: oom_kills.in_cgroup,
                    oom_kills_on_host: oom_kills.on_host,
                    ..changed(number, *state, *exit, *at)
                })]
            }
            Event::Stacks { process, stacks } => {
                let number = self.process(*process).number;
                vec![Kind::Stacks(stacked(number, stacks))]
            }
            Event::DeviceCalls { process, calls } => {
                let number = self.process(*process).number;
                vec![Kind::DeviceCalls(dumped(number, calls))]
            }
            Event::RecordsLost { process, count } => {
                let process = self.process(*process);
                process.next_ticket += count;
                vec![Kind::RecordsLost(v1::RecordsLost { process: process.number, count: *count })]
            }
            Event::Note { process, kind, rank, pid, text, at } => {
                let process = process.map_or(0, |process| self.process(process).number);
                vec![Kind::Note(noted(process, *kind, *rank, *pid, &text.what, *at))]
            }
            Event::Interrupted { signal, at } => {
                vec![Kind::Interrupted(v1::Interrupted { unix_ns: at.0, signal: *signal })]
            }
            Event::JobEnded { status, at, reason: _ } => {
                vec![Kind::JobEnded(v1::JobEnded { unix_ns: at.0, status: *status, reason: None })]
            }
            Event::Clock { .. } | Event::Silent { .. } => {
                return Err("no node sends this event: the coordinator detects it".into());
            }
            Event::Unwatched { .. } | Event::EvidenceEnded { .. } => {
                return Err("no node sends this event: the analysis concludes it".into());
            }
            _ => self.encode_record(event)?,
        })
    }
}

fn changed(process: u64, state: ProcessState, exit: Exit, at: Timestamp) -> v1::ProcessChanged {
    v1::ProcessChanged {
        process,
        state: i32::from(state.number()),
        unix_ns: at.0,
        exit_code: exit.code,
        exit_signal: exit.signal,
        ..v1::ProcessChanged::default()
    }
}

fn noted(
    process: u64,
    kind: NoteKind,
    rank: Option<u32>,
    pid: Option<u32>,
    text: &str,
    at: Timestamp,
) -> v1::Note {
    v1::Note {
        process,
        kind: i32::from(kind.number()),
        rank,
        pid: pid.unwrap_or(0),
        text: text.into(),
        unix_ns: at.0,
    }
}

fn dumped(process: u64, calls: &DeviceCalls) -> v1::DeviceCalls {
    let number = |op: Op| i32::from(op.number());
    let group = |it: &DeviceGroup| v1::DeviceGroup {
        name: it.name.to_string(),
        first: it.first,
        last: it.last,
        last_op: number(it.last_op),
        completed_unix_ns: it.completed_at.map_or(0, |at| at.0),
        incomplete: it
            .incomplete
            .iter()
            .map(|it| v1::DeviceCall {
                seq: it.seq,
                op: number(it.op),
                has_started: it.has_started,
            })
            .collect(),
    };
    v1::DeviceCalls {
        process,
        asked_unix_ns: calls.at.0,
        records_starts: calls.records_starts,
        groups: calls.groups.iter().map(group).collect(),
    }
}

fn stacked(process: u64, stacks: &Stacks) -> v1::Stacks {
    let frames = |frames: &[Where]| {
        let frame = |frame: &Where| v1::Frame {
            file: frame.file.clone(),
            line: frame.line,
            function: frame.function.clone(),
        };
        frames.iter().map(frame).collect()
    };
    let threads = stacks.threads.iter().map(|thread| v1::ThreadStack {
        tid: thread.tid,
        name: thread.name.as_ref().into(),
        state: thread.state.map(String::from).unwrap_or_default(),
        wait_channel: thread.wait_channel.as_deref().unwrap_or_default().into(),
        cpu_ns: thread.cpu_time.map(|time| time.as_nanos() as u64),
        asleep_ns: thread.asleep.map(|time| time.as_nanos() as u64),
        holds_gil: thread.holds_gil,
        python: frames(&thread.python),
        native: frames(&thread.native),
        blocked_on: thread.blocked_on.as_ref().map(|on| v1::BlockedOn {
            kind: i32::from(on.kind.number()),
            what: on.what.as_ref().into(),
            pid: on.pid.unwrap_or(0),
            rank: on.rank,
            ends_in_ns: on.ends_in.map(|it| it.as_nanos() as u64),
            is_circle: on.is_circle,
        }),
        ..v1::ThreadStack::default()
    });
    v1::Stacks {
        process,
        unix_ns: stacks.at.0,
        threads: threads.collect(),
        trouble: stacks.trouble.as_ref().into(),
        children: stacks.children.iter().map(child).collect(),
        held_locks: stacks.held_locks.iter().map(|it| it.as_ref().into()).collect(),
    }
}

fn child(child: &ChildProcess) -> v1::ChildProcess {
    v1::ChildProcess {
        pid: child.pid,
        parent: child.parent,
        name: child.name.as_ref().into(),
        state: child.state.map(String::from).unwrap_or_default(),
        wait_channel: child.wait_channel.as_deref().unwrap_or_default().into(),
        cpu_ns: child.cpu_time.as_nanos() as u64,
        ends_in_ns: child.ends_in.map(|it| it.as_nanos() as u64),
    }
}
