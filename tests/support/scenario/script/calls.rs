//! Calls: their issue, return, waits, completion and transfers.

use std::sync::Arc;

use ddp_doctor::diagnosis::event::{
    Call, CallId, Event, LowerCall, OnStream, StalledTransfer, ThreadId, Transfer, WaitsFor,
};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{Op, ReduceOp};

use super::{Line, Writer};
use crate::support::scenario::seconds;
use crate::support::scenario::values::{place, tensor};

impl Writer<'_> {
    /// Returns false if the line is not about a call that was issued before.
    pub(super) fn call_acts(&mut self, line: &Line<'_>) -> Result<bool, String> {
        let &Line { rank, args, .. } = line;
        let process = self.process(rank);
        let at = line.moment();
        let event = match line.verb {
            "completes" => {
                let (_, call) = self.issued(rank, args.first())?;
                Event::Completed { process, call, at }
            }
            "returns" => {
                let (thread, call) = self.issued(rank, args.first())?;
                Event::Returned { process, thread, call, followed: false, at }
            }
            "wait" => {
                let (thread, call) = self.issued(rank, args.first())?;
                Event::WaitBegin { process, thread, call: Some(call), place: None, at }
            }
            "done" => {
                let (thread, call) = self.issued(rank, args.first())?;
                Event::WaitEnd { process, thread, call: Some(call), at }
            }
            "halts" | "moves" => self.transfer(line)?,
            "within" => Event::Within {
                process,
                thread: ThreadId(1),
                function: args.first().map(|it| it.as_str().into()),
                at,
            },
            "unawaited" => Event::Unawaited {
                process,
                call: CallId(1),
                op: Op::AllReduce,
                group: Some(self.group(rank, "0")?),
                place: line.place()?,
                at,
            },
            _ => return Ok(false),
        };
        self.push(rank, line.at, event);
        Ok(true)
    }

    /// The call with a label, by default the last call of the rank.
    fn issued(&self, rank: u32, label: Option<&String>) -> Result<(ThreadId, CallId), String> {
        let known = match label {
            Some(label) => self.labels.get(&(rank, label.clone())),
            None => self.last_call.get(&rank),
        };
        let missing = || match label {
            Some(label) => format!("no call is labeled {label:?}"),
            None => "it has issued no call".to_owned(),
        };
        known.copied().ok_or_else(missing)
    }

    /// A transfer of the last call that has halted or moves again.
    fn transfer(&self, line: &Line<'_>) -> Result<Event, String> {
        let (_, call) = self.issued(line.rank, None)?;
        let way = line.arg(0)?;
        if !matches!(way, "send" | "receive") {
            return Err(format!("neither send nor receive: {way}"));
        }
        let waits_for = match line.arg(1).unwrap_or_default() {
            "network" => WaitsFor::Network,
            "peer" => WaitsFor::Peer,
            "device" => WaitsFor::Device,
            _ => WaitsFor::Unknown,
        };
        Ok(Event::Transfer {
            process: self.process(line.rank),
            call,
            transfer: Transfer {
                peer: line.value("peer=").ok_or("no peer")?,
                is_send: way == "send",
                channel: line.value("channel=").unwrap_or(0),
            },
            standing: (line.verb == "halts").then_some(StalledTransfer {
                waits_for,
                done: 1,
                steps: 8,
            }),
            at: line.moment(),
        })
    }

    pub(super) fn call(&mut self, line: &Line<'_>) -> Result<(), String> {
        let &Line { rank, at, verb, args } = line;
        let (op, group) = verb.split_once('/').unwrap_or((verb, "0"));
        let op = Op::from_name(op).ok_or(format!("unknown event {verb:?}"))?;
        if self.scenario.unseen.contains(&rank) {
            return Ok(());
        }
        let grouped = op.is_collective() || op.is_point_to_point();
        let info = grouped.then(|| self.group(rank, group)).transpose()?;
        let id = self.next_call.entry(rank).and_modify(|id| *id += 1).or_insert(1);
        let mut call = Call {
            group: info,
            step: self.steps.get(&rank).copied().unwrap_or(0),
            ..blank(CallId(*id), seconds(at), op)
        };
        let on_device = self.scenario.layer == "nccl" && grouped;
        call.on_stream = on_device.then_some(OnStream { stream: 1, launch: 0 });
        let words = describe(&mut call, args)?;
        // A receive from any source belongs to no channel.
        if grouped && (op.is_collective() || call.peer.is_some()) {
            let channel = call.peer.map_or_else(String::new, |peer| format!("{op} {peer}"));
            let seq = self.seqs.entry((rank, group.into(), channel)).or_default();
            *seq += 1;
            call.seq = *seq;
        }
        let (process, thread, id) = (self.process(rank), call.thread, call.id);
        let waits = grouped && !call.is_async && words.returned && words.waited && !on_device;
        self.last_call.insert(rank, (thread, id));
        if let Some(label) = words.label {
            self.labels.insert((rank, label.into()), (thread, id));
        }
        let moment = call.at;
        self.push(rank, at, Event::Issued { process, call: Arc::new(call) });
        if let Some(lower_call) = words.lower_call {
            let told = Event::LowerCall {
                process,
                call: id,
                lower_call: Arc::new(lower_call),
                at: moment,
            };
            self.push(rank, at, told);
        }
        if words.returned {
            self.push(
                rank,
                at,
                Event::Returned { process, thread, call: id, followed: words.followed, at: moment },
            );
        }
        if waits {
            let begin =
                Event::WaitBegin { process, thread, call: Some(id), place: None, at: moment };
            self.push(rank, at, begin);
        }
        Ok(())
    }
}

/// A call with only an id, a time and an operation.
pub(super) fn blank(id: CallId, at: Timestamp, op: Op) -> Call {
    Call {
        // c10d's default tag.
        tag: op.is_point_to_point().then_some(0),
        ..Call::new(id, at, ThreadId(1), op)
    }
}

/// Words of a call that are not fields of it.
struct Words<'a> {
    returned: bool,
    waited: bool,
    followed: bool,
    label: Option<&'a str>,
    lower_call: Option<LowerCall>,
}

/// Sets the fields of a call that its words give.
fn describe<'a>(call: &mut Call, args: &'a [String]) -> Result<Words<'a>, String> {
    let mut words =
        Words { returned: true, waited: true, followed: false, label: None, lower_call: None };
    let mut args = args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        if let Some(at) = arg.strip_prefix('@') {
            call.place = Some(place(at)?);
        } else if let Some(root) = arg.strip_prefix("root=") {
            call.root = Some(root.parse().ok().ok_or(format!("no rank: {root}"))?);
        } else if let Some(peer) = arg.strip_prefix("peer=") {
            call.peer = Some(peer.parse().ok().ok_or(format!("no rank: {peer}"))?);
        } else if let Some(splits) = arg.strip_prefix("splits=") {
            let (input, output) = splits.split_once('/').ok_or("splits=INPUT/OUTPUT")?;
            let size = |text: &str| text.parse::<u32>().map_err(|error| error.to_string());
            let sizes = |text: &str| text.split(',').map(size).collect::<Result<Vec<u32>, _>>();
            call.splits = [sizes(input)?, sizes(output)?];
        } else if let Some(tag) = arg.strip_prefix("tag=") {
            call.tag = Some(tag.parse().ok().ok_or(format!("no tag: {tag}"))?);
        } else if let Some(stream) = arg.strip_prefix("stream=") {
            let on = call.on_stream.as_mut().ok_or("only NCCL has streams")?;
            on.stream = stream.parse().ok().ok_or(format!("no stream: {stream}"))?;
        } else if let Some(launch) = arg.strip_prefix("launch=") {
            let on = call.on_stream.as_mut().ok_or("only NCCL has launches")?;
            on.launch = launch.parse().ok().ok_or(format!("no launch: {launch}"))?;
        } else if let Some(asked) = arg.strip_prefix("nccl:") {
            let (name, stream) = asked.split_once('@').unwrap_or((asked, "1"));
            let stream = stream.parse().ok().ok_or(format!("no stream: {stream}"))?;
            words.lower_call = Some(LowerCall {
                op: call.op,
                reduce_op: ReduceOp::from_name(name).unwrap_or_default(),
                root: None,
                on_stream: Some(OnStream { stream, launch: 0 }),
            });
        } else if let Some(reduce_op) = ReduceOp::from_name(arg) {
            call.reduce_op = reduce_op;
        } else if let Some(thread) = arg.strip_prefix('t').and_then(|n| n.parse().ok()) {
            call.thread = ThreadId(thread);
        } else if let Some((dtype, shape)) = tensor(arg) {
            call.dtype = dtype;
            call.numel = Some(shape.iter().map(|&dim| u64::from(dim)).product());
            call.shape = Some(shape);
        } else {
            match arg {
                "async" => call.is_async = true,
                "hidden" => (call.is_async, call.hidden) = (true, true),
                "unreturned" => words.returned = false,
                "unwaited" => words.waited = false,
                "followed" => words.followed = true,
                "as" => words.label = args.next(),
                _ => return Err(format!("unknown word {arg:?}")),
            }
        }
    }
    Ok(words)
}
