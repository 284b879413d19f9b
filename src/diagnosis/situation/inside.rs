//! Collectives that every member has entered.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use crate::input::event::Call;
use crate::model::{Group, GroupId, Join, JoinedCall, Wait};
use crate::situation::Moment;
use crate::waits::device::{self, Progress};

/// A collective that every member has entered and that does not complete.
#[derive(Clone, Debug)]
pub struct Inside {
    /// Group of the collective.
    pub group: GroupId,
    /// Sequence number of the collective.
    pub seq: u64,
    /// Ranks that wait for it.
    pub waiting: Vec<u32>,
    /// When every member had entered it and a rank waited for it.
    pub since: Timestamp,
    /// When it becomes a finding without a proof.
    pub overdue_at: Timestamp,
    /// Devices do not complete it, according to reports of NCCL or to threads inside the driver.
    pub on_device: bool,
    /// Devices do not complete it, since all members are inside `destroy_process_group`, which waits for it.
    pub is_destroyed: bool,
    /// When the first of these waits timed out.
    pub timed_out: Option<Timestamp>,
}

/// The first collective of each group that a rank waits for.
pub(super) fn all(moment: &Moment<'_>) -> Vec<Inside> {
    let groups = moment.model.groups();
    groups
        .filter_map(|group| {
            let mut entered = group.entered.iter();
            entered.find_map(|(&seq, join)| inside(moment, group, seq, join))
        })
        .collect()
}

/// Whether every rank has returned from its call or successfully waited for it, and no device is
/// involved.
fn is_left(join: &Join) -> bool {
    let first = join.calls.values().next();
    let on_device = first.is_some_and(|it| it.call.on_stream.is_some());
    let is_over = |it: &JoinedCall| match it.wait {
        Wait::Over(_) => !it.failed,
        Wait::Since(_) => false,
        Wait::NotSeen => it.returned.is_some() && !it.in_backward,
    };
    !on_device && join.calls.values().all(is_over)
}

/// Whether members may be waiting for each other inside of a collective, as far as its calls say.
fn may_be_inside(group: &Group, seq: u64, join: &Join) -> bool {
    // After a divergence, collectives that all members entered mean nothing.
    let has_diverged = group.diverged.is_some_and(|at| at <= seq);
    // A group of one rank waits for nothing but its own device.
    let is_alone = group.members.len() < 2;
    // A rank of which nothing is known may not have made the call.
    let mut members = group.members.iter();
    let is_unknown = members.any(|(rank, it)| it.is_unknown() && !join.calls.contains_key(rank));
    !has_diverged && !is_alone && !is_unknown
}

/// Since when all members have been inside `destroy_process_group`, which waits for the calls on the group's streams,
/// if this collective is the last call that each of them made before.
fn destroyed_at(moment: &Moment<'_>, group: &Group, join: &Join) -> Option<Timestamp> {
    let needs_all = join.calls.values().all(JoinedCall::needs_all);
    if !needs_all || !group.backend.is_on_stream || join.calls.len() < group.members.len() {
        return None;
    }
    let destroyed = join.all().map(|(rank, joined)| {
        let process = moment.model.member(group.id, rank)?;
        let destroys = process.entered().find(|it| it.op == Op::DestroyProcessGroup)?;
        let is_next = destroys.id.0 == joined.call.id.0 + 1;
        (is_next && group.is_destroyed_by(rank)).then_some(destroys.at)
    });
    destroyed.collect::<Option<Vec<Timestamp>>>()?.into_iter().max()
}

fn inside(moment: &Moment<'_>, group: &Group, seq: u64, join: &Join) -> Option<Inside> {
    if !may_be_inside(group, seq, join) {
        return None;
    }
    let timing = &moment.model.timing;
    let mut limit = moment.config.stall_after;
    let mut waiting = Vec::new();
    let mut begun = Vec::new();
    let mut timed_out = Vec::new();
    // Calls on NCCL return at once; streams wait for them. Whether a call of c10d is complete must be
    // reported there. Without reports, the program's waits decide.
    let is_told = |it: &JoinedCall| it.call.lower_call.is_none() || it.followed;
    let mut calls = join.calls.values();
    let on_device = calls.all(|it| it.call.on_stream.is_some() && is_told(it));
    // A stalled transfer shows that the call is not complete, whatever other ranks report.
    let has_standing = |(&rank, joined): (&u32, &JoinedCall)| {
        let process = moment.model.member(group.id, rank);
        process.is_some_and(|it| it.standing_of(joined.call.id).next().is_some())
    };
    let stands = on_device && join.calls.iter().any(has_standing);
    let destroyed_at = if on_device { None } else { destroyed_at(moment, group, join) };
    if is_left(join) && destroyed_at.is_none() {
        return None;
    }
    for (&rank, joined) in join.calls.iter() {
        let process = moment.model.member(group.id, rank)?;
        if device::is_behind_open_call(moment.model, process, rank, &joined.call) {
            return None;
        }
        let given_up = || moment.timed_out_at(group, rank, joined);
        // Waits while exiting do not count.
        let lives = !process.has_ended() && !process.is_leaving();
        let since = match joined.wait {
            _ if on_device => match device::progress(process, &joined.call, timing) {
                _ if !lives => continue,
                Progress::Within(since) => since,
                Progress::Complete => continue,
                Progress::Unknown if stands => continue,
                // An earlier call is not complete, or the progress is unknown.
                Progress::Behind | Progress::Unknown => return None,
            },
            _ if destroyed_at.is_some() => destroyed_at?,
            Wait::Since(at) if lives => at,
            Wait::NotSeen if lives && process.is_inside(&joined.call) => joined.call.at,
            Wait::NotSeen if lives && joined.in_backward => {
                let thread = process.threads.get(&joined.call.thread)?;
                let is_last = |last: &Arc<Call>| last.id == joined.call.id;
                let raised = process.exceptions.iter();
                let has_raised = raised.map(|it| it.at).any(|at| at >= joined.call.at);
                if has_raised || !thread.last_call.as_ref().is_some_and(is_last) {
                    continue;
                }
                limit = limit.max(thread.buckets.longest * 3);
                joined.call.at
            }
            Wait::Over(_) if joined.failed => {
                let Some(at) = given_up() else { continue };
                timed_out.push(at);
                joined.call.at
            }
            _ => continue,
        };
        let place = joined.call.place.as_ref();
        let before = place.and_then(|place| process.places.longest_wait(place));
        limit = limit.max(Duration::from_nanos(before.unwrap_or(0)) * 3);
        waiting.push(rank);
        begun.push(since);
    }
    let since = join.last_at().max(begun.into_iter().min()?);
    let timed_out = timed_out.into_iter().min();
    let overdue_at = since.plus(limit);
    Some(Inside {
        group: group.id,
        seq,
        waiting,
        since,
        on_device: on_device || destroyed_at.is_some(),
        is_destroyed: destroyed_at.is_some(),
        overdue_at: timed_out.map_or(overdue_at, |at| at.min(overdue_at)),
        timed_out,
    })
}
