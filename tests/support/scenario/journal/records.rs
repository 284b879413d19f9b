//! Events as records of a black box.

use std::sync::Arc;

use ddp_doctor::diagnosis::event::{Event, Forward, WaitsFor};
use ddp_doctor_proto::blackbox::{flags, transfer as code};
use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::{Op, RecordKind, v1};
use v1::event::Kind;

use super::messages::Encoder;

impl Encoder {
    /// The record that leads to this event, and the definitions that it refers to.
    pub(super) fn encode_record(&mut self, event: &Event) -> Result<Vec<Kind>, String> {
        let record = |kind: RecordKind, at: Timestamp| v1::Record {
            kind: i32::from(kind.number()),
            mono_ns: at.0,
            ..v1::Record::default()
        };
        Ok(match event {
            Event::GroupDestroyed { process, group, at } => {
                let process = self.process(*process);
                let group = process.group(group)?;
                let record = record(RecordKind::GroupDestroyed, *at);
                process.record(v1::Record { group, ..record }, None)
            }
            Event::GroupTimeout { process, group, timeout, at } => {
                let process = self.process(*process);
                let record = v1::Record {
                    group: process.group(group)?,
                    code: timeout.as_millis() as i32,
                    ..record(RecordKind::GroupTimeout, *at)
                };
                process.record(record, None)
            }
            Event::Issued { process, call } => {
                let process = self.process(*process);
                let mut kinds = Vec::new();
                let issued = process.issued(call, record(RecordKind::Issued, call.at))?;
                kinds.extend(process.record(issued, call.place.as_ref()));
                for (output, sizes) in [false, true].into_iter().zip(&call.splits) {
                    if !sizes.is_empty() {
                        let splits = v1::Record {
                            call: call.id.0,
                            flags: if output { u32::from(flags::OUTPUT) } else { 0 },
                            splits: sizes.clone(),
                            ..record(RecordKind::Splits, call.at)
                        };
                        kinds.extend(process.record(splits, None));
                    }
                }
                kinds
            }
            Event::Returned { process, thread, call, followed, at } => {
                let record = v1::Record {
                    thread: thread.0,
                    call: call.0,
                    flags: if *followed { u32::from(flags::FOLLOWED) } else { 0 },
                    ..record(RecordKind::Returned, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::WaitBegin { process, thread, call, place, at } => {
                let record = v1::Record {
                    thread: thread.0,
                    call: call.map_or(0, |call| call.0),
                    ..record(RecordKind::WaitBegin, *at)
                };
                self.process(*process).record(record, place.as_ref())
            }
            Event::WaitEnd { process, thread, call, at } => {
                let record = v1::Record {
                    thread: thread.0,
                    call: call.map_or(0, |call| call.0),
                    ..record(RecordKind::WaitEnd, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::Completed { process, call, at } => {
                let record = v1::Record { call: call.0, ..record(RecordKind::Completed, *at) };
                self.process(*process).record(record, None)
            }
            Event::LowerCall { process, call, lower_call, at } => {
                let record = v1::Record {
                    call: call.0,
                    op: i32::from(lower_call.op.number()),
                    reduce_op: i32::from(lower_call.reduce_op.number()),
                    on_stream: lower_call
                        .on_stream
                        .map(|on| v1::OnStream { stream: on.stream, launch: on.launch }),
                    ..record(RecordKind::LowerCall, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::Within { process, thread, function, at } => {
                let record = v1::Record {
                    thread: thread.0,
                    text: function.as_deref().unwrap_or_default().into(),
                    ..record(RecordKind::Within, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::Transfer { process, call, transfer, standing, at } => {
                let record = v1::Record {
                    call: call.0,
                    op: i32::from([Op::Recv, Op::Send][usize::from(transfer.is_send)].number()),
                    root: i32::try_from(transfer.peer).ok(),
                    tag: i32::try_from(transfer.channel).ok(),
                    numel: standing.map(|it| it.done),
                    tensors: standing.map_or(0, |it| it.steps as u32),
                    code: standing.map_or(code::MOVES, |it| match it.waits_for {
                        WaitsFor::Device => code::DEVICE,
                        WaitsFor::Peer => code::PEER,
                        WaitsFor::Network => code::NETWORK,
                        WaitsFor::Unknown => code::UNKNOWN,
                    }),
                    ..record(RecordKind::Transfer, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::Step { process, thread, step, forward, at } => {
                let mut record = v1::Record {
                    thread: thread.0,
                    step: *step as u32,
                    ..record(RecordKind::Step, *at)
                };
                let mut place = None;
                if let Some(forward) = forward {
                    record.flags = flags_of(forward);
                    record.numel = forward.batches;
                    let path = forward.path.as_ref();
                    let split = path.and_then(|path| path.rsplit_once(':'));
                    place = split.map(|(file, line)| {
                        Arc::new(Where {
                            file: file.into(),
                            line: line.parse().unwrap_or(0),
                            function: "forward".into(),
                            ..Where::default()
                        })
                    });
                }
                self.process(*process).record(record, place.as_ref())
            }
            Event::PhaseBegin { process, name, at } => {
                let record = v1::Record {
                    text: name.as_ref().into(),
                    ..record(RecordKind::PhaseBegin, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::PhaseEnd { process, name, at } => {
                let record =
                    v1::Record { text: name.as_ref().into(), ..record(RecordKind::PhaseEnd, *at) };
                self.process(*process).record(record, None)
            }
            Event::Exception { process, kind, text, place, at } => {
                let record = v1::Record {
                    code: i32::from(kind.number()),
                    text: text.as_ref().into(),
                    ..record(RecordKind::Exception, *at)
                };
                self.process(*process).record(record, place.as_ref())
            }
            Event::ExitAnnounced { process, thread, code, how, place, at } => {
                let record = v1::Record {
                    thread: thread.0,
                    code: *code,
                    text: how.as_ref().into(),
                    ..record(RecordKind::Exit, *at)
                };
                self.process(*process).record(record, place.as_ref())
            }
            Event::Spent { process, thread, on, took, place, at } => {
                let record = v1::Record {
                    thread: thread.0,
                    code: i32::from(on.number()),
                    numel: Some(took.as_nanos() as u64),
                    ..record(RecordKind::Spent, *at)
                };
                self.process(*process).record(record, place.as_ref())
            }
            Event::InputEnded { process, batches, place, at } => {
                let record = v1::Record { numel: *batches, ..record(RecordKind::InputEnded, *at) };
                self.process(*process).record(record, place.as_ref())
            }
            Event::Parameters { process, group, said, at } => {
                let process = self.process(*process);
                let record = v1::Record {
                    group: process.group(group)?,
                    code: i32::from(said.fact.number()),
                    seq: u64::from(said.model),
                    tensors: said.first,
                    numel: Some(said.total),
                    text: said.lines.to_string(),
                    step: said.step as u32,
                    dtype: i32::from(said.dtype.number()),
                    dims: said.values.clone(),
                    ..record(RecordKind::Parameters, *at)
                };
                process.record(record, said.place.as_ref())
            }
            Event::Setting { process, name, value, at } => {
                let record = v1::Record {
                    text: format!("{name}={value}"),
                    ..record(RecordKind::Setting, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::Unawaited { process, call, op, group, place, at } => {
                let process = self.process(*process);
                let group = group.as_ref().map(|group| process.group(group));
                let record = v1::Record {
                    call: call.0,
                    op: i32::from(op.number()),
                    group: group.transpose()?.unwrap_or(0),
                    ..record(RecordKind::Unawaited, *at)
                };
                process.record(record, place.as_ref())
            }
            _ => return Err("no record leads to this event".into()),
        })
    }
}

fn flags_of(forward: &Forward) -> u32 {
    let mut bits = flags::FORWARD;
    if forward.repeated {
        bits |= flags::REPEATED;
    }
    if forward.unsynchronized {
        bits |= flags::UNSYNCHRONISED;
    }
    if let Some(updated) = forward.updated {
        bits |= flags::SEES_UPDATES | if updated { flags::UPDATED } else { 0 };
    }
    u32::from(bits)
}
