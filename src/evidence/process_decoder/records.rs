//! Conversion of the records of a process into events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ddp_doctor_diagnosis::event::{
    Call, CallId, Event, Forward, LowerCall, MemorySample, OnStream, Parameters, ProcessId,
    StalledTransfer, ThreadId, Transfer, WaitsFor,
};
use ddp_doctor_proto::blackbox::{MAX_DIMS, flags, transfer};
use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::{
    DType, ExceptionKind, NoteKind, Op, ParameterFact, RecordKind, ReduceOp, Spending, v1,
    without_credentials,
};

use super::groups::global;
use super::{Held, Process};
use crate::limits::Limits;
use crate::values::{name, number, text};

/// Largest sequence number of a call. A job does not count so far, and sums with it do not overflow.
const MAX_SEQ: u64 = 1 << 53;
/// Maximum number of split sizes kept per `all_to_all`, in each direction.
const MAX_SPLITS: usize = 65_536;

/// What the events of most records have in common.
struct Common {
    process: ProcessId,
    thread: ThreadId,
    /// `None`: the record names no call.
    call: Option<CallId>,
    place: Option<Arc<Where>>,
    op: Op,
    at: Timestamp,
}

impl Process {
    /// Decodes one record; `None`: it is invalid. A repeated record is valid and yields no event.
    pub(crate) fn record(
        &mut self,
        process: ProcessId,
        record: v1::Record,
        limits: &mut Limits,
        out: &mut Vec<Event>,
    ) -> Option<()> {
        if !self.accept(process, record.ticket, out)? {
            return Some(());
        }
        let kind = number(record.kind, RecordKind::from_number);
        self.latest_kind = kind;
        if kind == RecordKind::Splits {
            return self.splits(process, &record, out);
        }
        self.release(process, out);
        let at = self.time(record.mono_ns);
        self.advance(process, at, out);
        self.track_exit(kind, &record, at);
        let common = Common {
            process,
            thread: ThreadId(record.thread),
            call: (record.call != 0).then_some(CallId(record.call)),
            place: self.sites.place(record.site),
            op: number(record.op, Op::from_number),
            at,
        };
        out.push(match kind {
            RecordKind::Issued => {
                let call = self.call(record, limits)?;
                if call.op == Op::AllToAll {
                    self.held_call = Some(Held { call: Box::new(call), since: Instant::now() });
                    return Some(());
                }
                let call = Arc::new(call);
                Event::Issued { process, call }
            }
            RecordKind::Returned
            | RecordKind::WaitBegin
            | RecordKind::WaitEnd
            | RecordKind::Completed
            | RecordKind::Within
            | RecordKind::Unawaited => self.progress(kind, common, &record)?,
            RecordKind::LowerCall | RecordKind::Transfer => {
                self.lower_layer(kind, common, &record)?
            }
            RecordKind::Step
            | RecordKind::PhaseBegin
            | RecordKind::PhaseEnd
            | RecordKind::InputEnded
            | RecordKind::Spent
            | RecordKind::Parameters => self.training(kind, common, record, limits)?,
            RecordKind::GroupDestroyed
            | RecordKind::GroupTimeout
            | RecordKind::Exception
            | RecordKind::Exit
            | RecordKind::Note
            | RecordKind::Setting => self.lifetime(kind, common, &record)?,
            // Memory samples have a message of their own.
            RecordKind::Memory | RecordKind::Splits | RecordKind::Unspecified => return None,
        });
        Some(())
    }

    /// Records of what became of a call.
    fn progress(&self, kind: RecordKind, common: Common, record: &v1::Record) -> Option<Event> {
        let Common { process, thread, call, place, op, at } = common;
        Some(match kind {
            RecordKind::Returned => Event::Returned {
                process,
                thread,
                call: call?,
                followed: record.flags & u32::from(flags::FOLLOWED) != 0,
                at,
            },
            RecordKind::WaitBegin => Event::WaitBegin { process, thread, call, place, at },
            RecordKind::WaitEnd => Event::WaitEnd { process, thread, call, at },
            RecordKind::Completed => Event::Completed { process, call: call?, at },
            RecordKind::Within => Event::Within {
                process,
                thread,
                function: (!record.text.is_empty()).then(|| name(&record.text)),
                at,
            },
            RecordKind::Unawaited => Event::Unawaited {
                process,
                call: call?,
                op,
                group: self.groups.get(record.group).cloned(),
                place,
                at,
            },
            _ => return None,
        })
    }

    /// Records of the layer below a call.
    fn lower_layer(&self, kind: RecordKind, common: Common, record: &v1::Record) -> Option<Event> {
        let Common { process, op, at, .. } = common;
        let call = common.call?;
        Some(match kind {
            RecordKind::LowerCall => Event::LowerCall {
                process,
                call,
                lower_call: Arc::new(self.lower_call(record)),
                at,
            },
            RecordKind::Transfer => Event::Transfer {
                process,
                call,
                transfer: Transfer {
                    peer: u32::try_from(record.root?).ok()?,
                    is_send: op == Op::Send,
                    channel: u32::try_from(record.tag?).ok()?,
                },
                standing: waits_for(record.code).map(|waits_for| StalledTransfer {
                    waits_for,
                    done: record.numel.unwrap_or(0),
                    steps: u64::from(record.tensors),
                }),
                at,
            },
            _ => return None,
        })
    }

    /// Records of the training loop and its model.
    fn training(
        &mut self,
        kind: RecordKind,
        common: Common,
        record: v1::Record,
        limits: &mut Limits,
    ) -> Option<Event> {
        let Common { process, thread, place, at, .. } = common;
        let step = u64::from(record.step);
        Some(match kind {
            RecordKind::Step => {
                self.step = step;
                let forward = self.forward(&record, limits);
                Event::Step { process, thread, step, forward, at }
            }
            RecordKind::PhaseBegin => Event::PhaseBegin { process, name: name(&record.text), at },
            RecordKind::PhaseEnd => Event::PhaseEnd { process, name: name(&record.text), at },
            RecordKind::InputEnded => {
                Event::InputEnded { process, batches: record.numel, place, at }
            }
            RecordKind::Spent => Event::Spent {
                process,
                thread,
                on: number(record.code, Spending::from_number),
                took: Duration::from_nanos(record.numel?),
                place,
                at,
            },
            RecordKind::Parameters => Event::Parameters {
                process,
                group: self.groups.get(record.group)?.clone(),
                said: Parameters {
                    fact: number(record.code, ParameterFact::from_number),
                    model: u32::try_from(record.seq).ok()?,
                    first: record.tensors,
                    total: record.numel.unwrap_or_default(),
                    lines: limits.lines(&record.text)?,
                    place,
                    step,
                    dtype: number(record.dtype, DType::from_number),
                    values: record.dims.into_iter().take(MAX_DIMS).collect(),
                },
                at,
            },
            _ => return None,
        })
    }

    /// Records of the process itself and the lifetime of its groups.
    fn lifetime(&self, kind: RecordKind, common: Common, record: &v1::Record) -> Option<Event> {
        let Common { process, thread, place, at, .. } = common;
        let group = || self.groups.get(record.group).cloned();
        Some(match kind {
            RecordKind::GroupDestroyed => Event::GroupDestroyed { process, group: group()?, at },
            RecordKind::GroupTimeout => Event::GroupTimeout {
                process,
                group: group()?,
                timeout: Duration::from_millis(u64::try_from(record.code).ok()?),
                at,
            },
            RecordKind::Exception => Event::Exception {
                process,
                kind: number(record.code, ExceptionKind::from_number),
                text: text(&without_credentials(&record.text)),
                place,
                at,
            },
            RecordKind::Exit => Event::ExitAnnounced {
                process,
                thread,
                code: record.code,
                how: text(&without_credentials(&record.text)),
                place,
                at,
            },
            RecordKind::Note => Event::Note {
                process: Some(process),
                kind: number(record.code, NoteKind::from_number),
                rank: self.identity.rank,
                pid: Some(self.identity.pid),
                text: text(&record.text).into(),
                at,
            },
            RecordKind::Setting => {
                let (setting, value) = record.text.split_once('=')?;
                Event::Setting { process, name: name(setting), value: text(value), at }
            }
            _ => return None,
        })
    }
    /// Decodes a memory sample; `None`: it is invalid.
    pub(crate) fn memory(
        &mut self,
        process: ProcessId,
        sample: &v1::MemorySample,
        out: &mut Vec<Event>,
    ) -> Option<()> {
        let is_new = match sample.ticket {
            Some(ticket) => self.accept(process, ticket, out)?,
            // Measured by the node. The model accepts repeated and reordered samples.
            None => !self.ended,
        };
        if is_new {
            out.push(Event::Memory {
                process,
                at: match sample.unix_ns {
                    0 => self.time(sample.mono_ns),
                    at => self.to_coordinator_clock(at),
                },
                sample: Box::new(MemorySample {
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
                }),
            });
        }
        Some(())
    }

    fn call(&mut self, mut record: v1::Record, limits: &mut Limits) -> Option<Call> {
        if record.seq > MAX_SEQ {
            return None;
        }
        let op = number(record.op, Op::from_number);
        let takes_all = record.creation.as_ref().is_some_and(|it| it.takes_all);
        let group = match record.group {
            _ if op.creates_group() => {
                self.groups.created(&self.layer, record.creation.take().map(|it| *it), limits)
            }
            0 => None,
            group => Some(self.groups.get(group)?.clone()),
        };
        let partner = record.root.and_then(|rank| global(group.as_deref(), rank));
        let has = |flag: u16| record.flags & u32::from(flag) != 0;
        Some(Call {
            group,
            seq: record.seq,
            dtype: number(record.dtype, DType::from_number),
            reduce_op: number(record.reduce_op, ReduceOp::from_number),
            root: partner.filter(|_| op.is_rooted()),
            peer: partner.filter(|_| op.is_point_to_point()),
            tag: record.tag,
            numel: record.numel,
            shape: record.shape_known.then(|| record.dims.into_iter().take(64).collect()),
            tensors: record.tensors,
            takes_all,
            is_async: has(flags::ASYNC),
            hidden: has(flags::HIDDEN),
            on_stream: record.on_stream.map(|on| OnStream { stream: on.stream, launch: on.launch }),
            step: u64::from(record.step),
            phase: self.phase(&record.phase, limits),
            place: self.sites.place(record.site),
            ..Call::new(CallId(record.call), self.time(record.mono_ns), ThreadId(record.thread), op)
        })
    }

    /// What a call requests of the layer below.
    fn lower_call(&self, record: &v1::Record) -> LowerCall {
        let op = number(record.op, Op::from_number);
        let group = self.groups.get(record.group).map(|group| &**group);
        let root = record.root.filter(|_| op.is_rooted());
        // A captured call runs later, at an unknown time.
        let runs = record.flags & u32::from(flags::CAPTURED) == 0;
        let on_stream = record.on_stream.as_ref().filter(|_| runs);
        LowerCall {
            op,
            reduce_op: number(record.reduce_op, ReduceOp::from_number),
            root: root.and_then(|rank| global(group, rank)),
            on_stream: on_stream.map(|on| OnStream { stream: on.stream, launch: on.launch }),
        }
    }

    /// Details of a step that began with a forward pass; `None`: the program marked the step.
    fn forward(&mut self, record: &v1::Record, limits: &mut Limits) -> Option<Forward> {
        let has = |flag: u16| record.flags & u32::from(flag) != 0;
        has(flags::FORWARD).then(|| Forward {
            path: self.sites.path(record.site, limits),
            batches: record.numel,
            repeated: has(flags::REPEATED),
            unsynchronized: has(flags::UNSYNCHRONISED),
            updated: has(flags::SEES_UPDATES).then_some(has(flags::UPDATED)),
        })
    }

    /// Adds split sizes to their call; `None`: invalid. Valid parts follow their call in order. Those of a
    /// call that was released are left out.
    fn splits(
        &mut self,
        process: ProcessId,
        record: &v1::Record,
        out: &mut Vec<Event>,
    ) -> Option<()> {
        let held = self.held_call.as_mut();
        let Some(held) = held.filter(|held| held.call.id.0 == record.call) else {
            return Some(());
        };
        let output = record.flags & u32::from(flags::OUTPUT) != 0;
        let sizes = &mut held.call.splits[usize::from(output)];
        if record.seq != sizes.len() as u64 || sizes.len() + record.splits.len() > MAX_SPLITS {
            return None;
        }
        sizes.extend(&record.splits);
        // One size stands for equal parts.
        let members = held.call.group.as_ref().map(|it| it.key.members.len());
        let is_complete = |sizes: &Vec<u32>| sizes.len() == 1 || Some(sizes.len()) == members;
        if held.call.splits.iter().all(is_complete) {
            self.release(process, out);
        }
        Some(())
    }

    /// The shared name of a phase: every record carries one of a few names.
    fn phase(&mut self, phase: &str, limits: &mut Limits) -> Option<Arc<str>> {
        if phase.is_empty() {
            return None;
        }
        if let Some(known) = self.phases.get(phase) {
            return Some(known.clone());
        }
        let new = name(phase);
        if limits.take(2 * phase.len() + 64).is_some() {
            self.phases.insert(phase.to_owned(), new.clone());
        }
        Some(new)
    }
}

/// What a stalled transfer waits for; `None`: it makes progress.
const fn waits_for(code: i32) -> Option<WaitsFor> {
    Some(match code {
        transfer::MOVES => return None,
        transfer::DEVICE => WaitsFor::Device,
        transfer::PEER => WaitsFor::Peer,
        transfer::NETWORK => WaitsFor::Network,
        _ => WaitsFor::Unknown,
    })
}
