//! Progress of devices with collectives, according to dumps of PyTorch's Flight Recorder.
//!
//! A dump shows which calls were complete when it was written, and not for how long the others have been
//! incomplete. It is requested while ranks wait, and counts until its process records anything. A group counts if
//! the dump shows as many collectives as the process has recorded: otherwise it is older, or numbers calls in
//! another way.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use crate::input::event::{Call, CallId, DeviceCalls, DeviceGroup};
use crate::model::{Group, Model, Process};

/// What a dump shows of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dumped {
    /// Progress of its device.
    pub progress: Progress,
    /// Time of the request for the dump.
    pub at: Timestamp,
}

/// Progress of a device with a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is complete.
    Complete,
    /// It is the first one that is not complete. The device has not been in it before this time.
    Incomplete {
        /// Issued, or found to be behind a complete call, at this time.
        since: Timestamp,
        /// Whether the device has begun it; `None`: that is not recorded.
        has_started: Option<bool>,
    },
    /// An earlier collective of the process is not complete.
    Behind,
}

/// What the dump of a process shows of its call in a group.
pub fn of_call(
    model: &Model,
    group: &Group,
    rank: u32,
    process: &Process,
    call: &Call,
) -> Option<Dumped> {
    let dump = process.device_calls.as_deref().filter(|it| process.last_at <= it.at)?;
    let shown = of_group(dump, model, group, rank, process)?;
    if !(shown.first..=shown.last).contains(&call.seq) {
        return None;
    }
    let incomplete = shown.incomplete.iter().find(|it| it.seq == call.seq);
    let named = incomplete.map(|it| it.op).or((call.seq == shown.last).then_some(shown.last_op));
    if named.is_some_and(|op| !is_same(op, call.op)) {
        return None;
    }
    let progress = match incomplete {
        None => Progress::Complete,
        Some(_) if is_behind(model, rank, process, dump, call.id) => Progress::Behind,
        Some(it) => Progress::Incomplete {
            since: shown.completed_at.map_or(call.at, |at| at.max(call.at)),
            has_started: dump.records_starts.then_some(it.has_started),
        },
    };
    Some(Dumped { progress, at: dump.at })
}

/// What a dump shows of a group, if it is not older than what the process recorded.
fn of_group<'d>(
    dump: &'d DeviceCalls,
    model: &Model,
    group: &Group,
    rank: u32,
    process: &Process,
) -> Option<&'d DeviceGroup> {
    let key = &group.info.key;
    if &*key.layer != "c10d" || !group.backend.is_on_stream {
        return None;
    }
    // Groups without a rank in common may have one name, and a dump has one of them.
    let has_name = |id| {
        let other = &model.group(id).info.key;
        other.name == key.name && other.layer == key.layer
    };
    let mut shown = dump.groups.iter().filter(|it| *it.name == *key.name);
    let first = shown.next().filter(|_| shown.next().is_none())?;
    let is_only = process.groups().filter(|&id| has_name(id)).count() == 1;
    let member = group.members.get(&rank)?;
    (is_only && member.process == process.id && member.issued == first.last).then_some(first)
}

/// Whether the device has not completed a collective that the process issued before this call.
fn is_behind(
    model: &Model,
    rank: u32,
    process: &Process,
    dump: &DeviceCalls,
    call: CallId,
) -> bool {
    process.groups().map(|id| model.group(id)).any(|group| {
        let shown = of_group(dump, model, group, rank, process);
        let first = shown.and_then(|it| it.incomplete.first());
        let issued = first.and_then(|first| {
            let join = group.open_or_entered(first.seq)?;
            Some(join.calls.get(&rank)?.call.id)
        });
        issued.is_some_and(|issued| issued < call)
    })
}

/// Whether two names may be of one operation: dumps do not name every operation.
fn is_same(dumped: Op, recorded: Op) -> bool {
    dumped == recorded || dumped == Op::Unspecified || recorded == Op::Unspecified
}
