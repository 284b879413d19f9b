//! Calls of each rank at one sequence number of a group: the `per_rank` part of findings.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::{CallState, RankCall, Timestamp, Where};

use crate::findings::draft::Draft;
use crate::guards;
use crate::input::event::Call;
use crate::input::transport;
use crate::model::{Doing, GroupId, JoinedCall, Model, Process, Target, Wait};
use crate::situation::Situation;
use crate::stacks;
use crate::waits::Blocked;
use crate::words::{self, Ranks};

/// Rows of all members of the group that are known. A member that has not issued this call is shown
/// with its last call.
pub(crate) fn rank_calls(situation: &Situation<'_>, group: GroupId, seq: u64) -> Vec<RankCall> {
    let of = situation.model.group(group);
    let join = of.open_or_entered(seq);
    let ranks = situation.model.not_made_by(of);
    let outside =
        situation.model.members(group, &ranks).map(|(rank, process)| last_call(rank, process));
    let mut calls: Vec<RankCall> = of
        .members
        .iter()
        .filter_map(|(&rank, member)| {
            let process = situation.model.member(group, rank)?;
            let joined = join.and_then(|join| join.calls.get(&rank));
            Some(match joined {
                Some(joined) => waiting_call(situation, rank, process, joined),
                None if member.is_unknown() => return None,
                None if member.issued >= seq => RankCall {
                    state: passed(process, seq),
                    seq: Some(seq),
                    ..unknown(rank, process)
                },
                None if process.last_call.is_none() => RankCall {
                    seq: (member.issued > 0).then_some(member.issued),
                    ..unknown(rank, process)
                },
                None => last_call(rank, process),
            })
        })
        .chain(outside)
        .collect();
    calls.sort_by_key(|call| call.rank);
    calls
}

/// State of a call that a rank made by its counters: whether it has returned from its last one is
/// unknown.
fn passed(process: &Process, seq: u64) -> CallState {
    let last = process.last_call.as_ref();
    let is_last = last.is_some_and(|it| it.op == Op::Unspecified && it.seq == seq);
    if is_last { CallState::Issued } else { CallState::Returned }
}

/// Row of a call that a rank issued, with its state and the time waited.
pub(crate) fn waiting_call(
    situation: &Situation<'_>,
    rank: u32,
    process: &Process,
    joined: &JoinedCall,
) -> RankCall {
    let mut waits = situation.waits.blocked.get(&rank).into_iter().flatten();
    let further_on = waits.any(|wait| wait.came_back && wait.call.id == joined.call.id);
    let timing = &situation.model.timing;
    let (state, until) = match joined.wait {
        _ if raised_a_difference(process) => (CallState::Issued, situation.now),
        _ if further_on => (CallState::Waiting, situation.now),
        // It waited until the job was interrupted.
        Wait::Over(at) if !situation.model.is_before_shutdown(at) => {
            (CallState::Waiting, situation.until)
        }
        Wait::Over(at) if joined.is_complete_on_device() => (CallState::Completed, at),
        // The thread has returned, but its device has not completed the call.
        Wait::Over(_) if joined.is_under_way() => (CallState::Issued, situation.now),
        Wait::Over(at) => (CallState::Returned, at),
        Wait::Since(_) => (CallState::Waiting, situation.now),
        Wait::NotSeen
            if joined.is_awaited() || process.is_held_in(&joined.call, situation.now, timing) =>
        {
            (CallState::Waiting, situation.now)
        }
        Wait::NotSeen => (CallState::Issued, situation.now),
    };
    // A wait ends with its process.
    let until = process.end.map_or(until, |end| until.min(end.at));
    let waited = process.waits_known_until(until).since(joined.call.at);
    // Logs state when waits began, but not when other calls were made.
    let is_timed = state == CallState::Waiting || !process.is_from_text();
    let waited_ms = is_timed.then_some(waited.as_millis() as u64);
    let call = describe(rank, state, waited_ms, &joined.call);
    with_place(call, standing_at(process, joined).filter(|_| state == CallState::Waiting))
}

/// Whether a log states that PyTorch compared the call with those of others, and raised an exception instead of making it.
fn raised_a_difference(process: &Process) -> bool {
    process.is_from_text()
        && process.exceptions.iter().any(|it| transport::is_of_comparison(&it.text))
}

/// The line of a rank's stack while it waits in a call whose line was not recorded.
fn standing_at<'a>(process: &'a Process, joined: &JoinedCall) -> Option<&'a Where> {
    if joined.call.place.is_some() {
        return None;
    }
    line_since(process, joined.call.at)
}

/// The line of a rank's latest stack, if it was captured after `since` and after its last record.
pub(crate) fn line_since(process: &Process, since: Timestamp) -> Option<&Where> {
    let since = process.progressed_at().max(since);
    let latest = process.stacks.last().filter(|it| it.at >= since)?;
    stacks::line_of(latest, process.training_tid())
}

/// A sentence on the ranks whose line is taken from their stacks.
pub(crate) fn where_lines_are_from(situation: &Situation<'_>, draft: &Draft) -> Option<String> {
    let (group, seq) = draft.place.filter(|&(_, seq)| seq > 0)?;
    let join = situation.model.group(group).open_or_entered(seq)?;
    let by_stacks =
        draft.per_rank.iter().filter(|it| it.state == CallState::Waiting).filter(|it| {
            let process = situation.model.member(group, it.rank);
            let known = process.zip(join.calls.get(&it.rank));
            let standing = known.and_then(|(process, joined)| standing_at(process, joined));
            standing.is_some() && it.place.as_ref() == standing
        });
    let ranks: Vec<u32> = by_stacks.map(|it| it.rank).collect();
    (!ranks.is_empty()).then(|| {
        format!(
            "The line shown for {} is where {}: the line that made the call was not recorded.",
            Ranks(&ranks),
            words::number(&ranks, "it waits", "they wait"),
        )
    })
}

/// Row of a call of which it is only known whether the rank is still inside it.
pub(crate) fn made_call(
    situation: &Situation<'_>,
    rank: u32,
    process: &Process,
    call: &Call,
) -> RankCall {
    let inside = process.threads.values().any(|thread| match &thread.doing {
        Doing::Call(inside) => inside.id == call.id,
        Doing::Wait(target, ..) => target.is_some() && *target == process.target(call.id),
        Doing::Nothing => false,
    });
    if inside {
        let until = process.end.map_or(situation.now, |end| end.at);
        waiting_until(rank, process.waits_known_until(until), call)
    } else {
        describe(rank, CallState::Issued, None, call)
    }
}

/// Row of the call that a blocked rank waits in.
pub(crate) fn blocked_call(situation: &Situation<'_>, wait: &Blocked) -> Option<RankCall> {
    let process = situation.model.member(wait.group, wait.rank)?;
    let joined = match &wait.message {
        Some(unmatched) => &unmatched.joined,
        // All members may have entered it without completion on any device.
        None => {
            let join = situation.model.group(wait.group).open_or_entered(wait.seq)?;
            join.calls.get(&wait.rank)?
        }
    };
    Some(waiting_call(situation, wait.rank, process, joined))
}

/// Row of a rank that has not issued the call, with its last call.
pub(crate) fn last_call(rank: u32, process: &Process) -> RankCall {
    process.last_call.as_ref().map_or_else(
        || unknown(rank, process),
        |call| describe(rank, CallState::NotIssued, None, call),
    )
}

/// Rows of these ranks, each with the last call of its newest process.
pub(crate) fn last_calls(situation: &Situation<'_>, ranks: &[u32]) -> Vec<RankCall> {
    let row = |&rank: &u32| Some(last_call(rank, situation.model.process_of(rank)?));
    ranks.iter().filter_map(row).collect()
}

/// " at comm.py:6", and which call of the function there it is if several lines of the program call it: " at comm.py:6
/// (called at train.py:20)". Empty without a line.
pub(crate) fn at_line(process: Option<&Process>, call: &Call) -> String {
    let Some(place) = &call.place else { return String::new() };
    words::at(Some(place)) + &called_at(process, call)
}

/// The end of that: " (called at train.py:20)", or empty.
pub(crate) fn called_at(process: Option<&Process>, call: &Call) -> String {
    let Some((process, place)) = process.zip(call.place.as_ref()) else { return String::new() };
    called_from(place, guards::telling_caller(process, place).as_deref())
}

/// " (called at train.py:20)", or empty if the caller is not known.
pub(crate) fn called_from(place: &Where, caller: Option<&Where>) -> String {
    match caller {
        Some(caller) if caller.file == place.file => format!(" (called at line {})", caller.line),
        Some(caller) => format!(" (called{})", words::at(Some(caller))),
        None => String::new(),
    }
}

/// The row with another line, if there is one.
pub(crate) fn with_place(mut call: RankCall, place: Option<&Where>) -> RankCall {
    if let Some(place) = place {
        call.place = Some(place.clone());
    }
    call
}

/// The row of a call that the rank has waited in since it issued the call, until this time.
pub(crate) fn waiting_until(rank: u32, until: Timestamp, call: &Call) -> RankCall {
    describe(rank, CallState::Waiting, Some(until.since(call.at).as_millis() as u64), call)
}

/// The row of a call.
pub fn describe(rank: u32, state: CallState, waited_ms: Option<u64>, call: &Call) -> RankCall {
    RankCall {
        rank,
        state,
        waited_ms,
        op: call.op.name().map(str::to_owned),
        seq: call.stated_seq(),
        dtype: call.dtype.name().filter(|_| !call.op.is_barrier()).map(str::to_owned),
        shapes: call
            .shape
            .as_ref()
            .filter(|_| call.tensors == 1)
            .map(|shape| vec![shape.iter().map(|&dim| u64::from(dim)).collect()]),
        numel: call.numel,
        reduce_op: call.known_reduce_op().name().map(str::to_owned),
        root: call.root,
        peer: call.peer,
        tag: call.tag,
        step: (call.step > 0).then_some(call.step),
        place: call.place.as_deref().cloned(),
    }
}

fn unknown(rank: u32, process: &Process) -> RankCall {
    RankCall { step: (process.step > 0).then_some(process.step), ..no_call(rank) }
}

/// The row of a rank without a known call.
pub(crate) fn no_call(rank: u32) -> RankCall {
    RankCall { rank, state: CallState::NotIssued, ..RankCall::default() }
}

/// "its last call was all_reduce #4 at train.py:9"
pub(crate) fn last_call_of(model: &Model, process: &Process) -> String {
    last_call_beside(model, process, None)
}

/// The same for a finding about a group: the group of the call is named if it is another one.
pub(crate) fn last_call_beside(model: &Model, process: &Process, about: Option<GroupId>) -> String {
    let Some(call) = &process.last_call else {
        let unknown = if process.is_attached() {
            "its earlier calls are unknown"
        } else if process.is_from_text() {
            "its calls are not in the log"
        } else if model.has_counted_calls(process) {
            "its calls are not recorded, only their number"
        } else {
            "it has made no call yet"
        };
        return unknown.to_owned();
    };
    let group = process.target(call.id).map(Target::group);
    let elsewhere = group
        .filter(|group| about.is_some_and(|about| about != *group))
        .map(|group| words::of_group(&model.group(group).info));
    format!(
        "its last call was {}{}{}",
        words::call(call),
        elsewhere.unwrap_or_default(),
        words::at(call.place.as_deref())
    )
}
