//! Collectives that every member has entered.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use crate::input::event::Call;
use crate::model::{Group, GroupId, Join, JoinedCall, Wait};
use crate::situation::moment::Moment;
use crate::waits::device::{self, Progress};
use crate::waits::dumped;

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
    /// What dumps of all members show, if it follows from these.
    pub dumped: Option<DumpedProgress>,
}

/// Progress of the devices of all members with a collective, according to dumps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DumpedProgress {
    /// Ranks whose devices have completed it.
    pub complete: Vec<u32>,
    /// Ranks whose devices have begun it and not completed it.
    pub started: Vec<u32>,
    /// Ranks whose devices have not begun it. They execute other work than collectives: all earlier ones are complete.
    pub not_started: Vec<u32>,
    /// Ranks whose devices have not completed it. Whether they have begun it is not recorded.
    pub incomplete: Vec<u32>,
    /// When the first of the dumps was requested.
    pub at: Timestamp,
}

impl DumpedProgress {
    /// Whether the devices of these ranks are shown to be in the call, and not in earlier work: those that have begun it,
    /// and, once another one has completed a call that needs all of them, all.
    pub fn have_begun(&self, ranks: &[u32], needs_all: bool) -> bool {
        needs_all && !self.complete.is_empty() || ranks.iter().all(|it| self.started.contains(it))
    }
}

/// The first collective of each group that a rank waits for.
pub(super) fn find(moment: &Moment<'_>) -> Vec<Inside> {
    let groups = moment.model.groups();
    groups
        .filter_map(|group| {
            let entered = || group.unfollowed.iter().chain(&group.entered);
            let by_dumps = entered().find_map(|(&seq, join)| by_dumps(moment, group, seq, join));
            // What dumps show is more than waits, which only order streams.
            by_dumps.or_else(|| {
                let mut entered = group.entered.iter();
                entered.find_map(|(&seq, join)| inside(moment, group, seq, join))
            })
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
    let destroyed = join.by_rank().map(|(rank, joined)| {
        let process = moment.model.member(group.id, rank)?;
        let destroys = process.entered().find(|it| it.op == Op::DestroyProcessGroup)?;
        let is_next = destroys.id.0 == joined.call.id.0 + 1;
        (is_next && group.is_destroyed_by(rank)).then_some(destroys.at)
    });
    destroyed.collect::<Option<Vec<Timestamp>>>()?.into_iter().max()
}

/// What the dumps of all members show of a collective, and since when no device has gone beyond it.
fn shown(moment: &Moment<'_>, group: &Group, join: &Join) -> Option<(DumpedProgress, Timestamp)> {
    if !group.is_fully_seen() || join.calls.len() < group.members.len() {
        return None;
    }
    let mut shown = DumpedProgress { at: Timestamp(u64::MAX), ..DumpedProgress::default() };
    let mut since = join.last_at();
    for (&rank, joined) in join.calls.iter() {
        let process = moment.model.member(group.id, rank)?;
        let of_call = dumped::of_call(moment.model, group, rank, process, &joined.call)?;
        shown.at = shown.at.min(of_call.at);
        match of_call.progress {
            dumped::Progress::Complete => shown.complete.push(rank),
            dumped::Progress::Incomplete { since: from, has_started } => {
                since = since.max(from);
                match has_started {
                    Some(true) => shown.started.push(rank),
                    Some(false) => shown.not_started.push(rank),
                    None => shown.incomplete.push(rank),
                }
            }
            dumped::Progress::Behind => return None,
        }
    }
    Some((shown, since))
}

/// The collective, if the dumps of all members show that it is the first one which is not complete on a device.
fn by_dumps(moment: &Moment<'_>, group: &Group, seq: u64, join: &Join) -> Option<Inside> {
    if !may_be_inside(group, seq, join) {
        return None;
    }
    let (shown, since) = shown(moment, group, join)?;
    let mut waiting = [&shown.started[..], &shown.not_started, &shown.incomplete].concat();
    waiting.sort_unstable();
    let moves = |rank: &u32| {
        let process = moment.model.member(group.id, *rank);
        process.is_some_and(|it| !it.has_ended() && !it.is_leaving())
    };
    let limit = moment.config.stall_after;
    // A dump of the first half of the wait says too little about its end.
    let is_late = since.plus(limit / 2) <= shown.at;
    (is_late && !waiting.is_empty() && waiting.iter().all(moves)).then_some(Inside {
        group: group.id,
        seq,
        waiting,
        since,
        overdue_at: since.plus(limit),
        on_device: true,
        is_destroyed: false,
        timed_out: None,
        dumped: Some(shown),
    })
}

/// The collective, if its waits or reports of NCCL show that it does not complete.
fn inside(moment: &Moment<'_>, group: &Group, seq: u64, join: &Join) -> Option<Inside> {
    if !may_be_inside(group, seq, join) {
        return None;
    }
    // It is complete on all devices, whatever the waits say.
    if shown(moment, group, join).is_some_and(|(shown, _)| shown.complete.len() == join.calls.len())
    {
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
        dumped: None,
    })
}
