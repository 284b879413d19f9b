//! Conversion of what dumps show of the calls on devices, with limits.

use ddp_doctor_diagnosis::event::{DeviceCall, DeviceCalls, DeviceGroup};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{Op, v1};

use super::values::{name, number};

/// Maximum number of groups of a process.
const MAX_GROUPS: usize = 4096;
/// Maximum number of incomplete calls of a group.
const MAX_INCOMPLETE: usize = 1024;

/// Decodes what a dump shows, with times of the coordinator. Groups whose numbers contradict each other, or with more
/// incomplete calls than are kept, are left out.
pub(crate) fn decode(calls: &v1::DeviceCalls, time: impl Fn(u64) -> Timestamp) -> DeviceCalls {
    let groups = calls.groups.iter().take(MAX_GROUPS);
    DeviceCalls {
        at: time(calls.asked_unix_ns),
        records_starts: calls.records_starts,
        groups: groups.filter_map(|it| group(it, &time)).collect(),
    }
}

fn group(group: &v1::DeviceGroup, time: impl Fn(u64) -> Timestamp) -> Option<DeviceGroup> {
    let incomplete: Vec<DeviceCall> =
        group.incomplete.iter().take(MAX_INCOMPLETE).map(call).collect();
    let is_ascending = incomplete.is_sorted_by(|a, b| a.seq < b.seq);
    let are_shown = incomplete.iter().all(|it| (group.first..=group.last).contains(&it.seq));
    let is_whole = incomplete.len() == group.incomplete.len();
    (is_ascending && are_shown && is_whole).then(|| DeviceGroup {
        name: name(&group.name),
        first: group.first,
        last: group.last,
        last_op: number(group.last_op, Op::from_number),
        completed_at: (group.completed_unix_ns > 0).then(|| time(group.completed_unix_ns)),
        incomplete,
    })
}

fn call(call: &v1::DeviceCall) -> DeviceCall {
    DeviceCall {
        seq: call.seq,
        op: number(call.op, Op::from_number),
        has_started: call.has_started,
    }
}
