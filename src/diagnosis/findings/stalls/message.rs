//! Shared by the findings about stalls and point-to-point calls: facts, and the calls of both sides.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::report::{CauseKind, Confidence, Fact, RankCall, Timestamp};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::facts::{creates, signature};
use crate::findings::view::{last_call, rank_calls, waiting_call};
use crate::input::event::Call;
use crate::model::{GroupId, Side, UnmatchedMessage};
use crate::situation::{Situation, Stall};
use crate::source::cause::{self, CauseHypothesis};
use crate::waits::Blocked;
use crate::words;

/// A draft about the call in which ranks wait in a stall, without root cause, victims and sentences.
pub(crate) fn draft(
    situation: &Situation<'_>,
    code: &'static Code,
    stall: &Stall,
    call: &Call,
    evidence_at: Timestamp,
) -> Draft {
    let mut draft = Draft::new(code, key(stall), evidence_at);
    describe_stall(situation, stall, &mut draft);
    draft.op = Some(call.op);
    draft
}

/// The calls in which ranks wait in a stall, and the last calls of the missing ranks.
pub(crate) fn stalled_calls(situation: &Situation<'_>, stall: &Stall) -> Vec<RankCall> {
    let Some(unmatched) = &stall.message else {
        return rank_calls(situation, stall.group, stall.seq);
    };
    let waits = situation
        .model
        .member(stall.group, unmatched.rank)
        .map(|process| waiting_call(situation, unmatched.rank, process, &unmatched.joined));
    let ranks = stall.missing.iter().map(|absent| &absent.rank);
    let missing =
        situation.model.members(stall.group, ranks).map(|(rank, process)| last_call(rank, process));
    waits.into_iter().chain(missing).collect()
}

/// Adds the place of a stall to a draft, and the calls there.
pub(crate) fn describe_stall(situation: &Situation<'_>, stall: &Stall, draft: &mut Draft) {
    draft.place = Some((stall.group, stall.seq));
    draft.op = situation.calls(stall).first().map(|(_, joined)| joined.call.op);
    draft.per_rank = stalled_calls(situation, stall);
    draft.blocked_at = Some(stall.since);
}

/// The fact that a thread waits for a collective, or for a message with its number on the channel.
pub(crate) fn waits(situation: &Situation<'_>, wait: &Blocked) -> Fact {
    if let Some(creates) = creates(wait.rank, &wait.call, wait.only_thread) {
        return creates;
    }
    Fact::Waits {
        rank: wait.rank,
        thread: wait.thread.0,
        group: situation.model.group(wait.group).info.key.clone(),
        seq: wait.message.as_ref().map_or(wait.seq, |unmatched| unmatched.nth),
        call: signature(&wait.call),
        only_thread: wait.only_thread,
    }
}

/// The fact that a rank has not issued the call that another one waits for.
pub(crate) fn never_came(situation: &Situation<'_>, wait: &Blocked, absent: u32) -> Fact {
    wait.message.as_ref().map_or_else(
        || never_issued(situation, wait.group, absent),
        |unmatched| never_posted(situation, wait.group, unmatched, absent),
    )
}

/// The fact of the last collective that a rank issued in a group, or that it has not created it.
pub(crate) fn never_issued(situation: &Situation<'_>, group: GroupId, absent: u32) -> Fact {
    let group = situation.model.group(group);
    match group.members.get(&absent) {
        Some(member) => {
            Fact::NeverIssued { rank: absent, group: group.info.key.clone(), last: member.issued }
        }
        None => Fact::NeverCreated { rank: absent, group: group.info.key.clone() },
    }
}

/// The fact of the last call that a rank issued on its side of a channel.
pub(crate) fn never_posted(
    situation: &Situation<'_>,
    group: GroupId,
    unmatched: &UnmatchedMessage,
    absent: u32,
) -> Fact {
    let group = situation.model.group(group);
    let (op, side) = match unmatched.side {
        Side::Send => (Op::Recv, Side::Receive),
        Side::Receive => (Op::Send, Side::Send),
    };
    Fact::NeverPosted {
        rank: absent,
        group: group.info.key.clone(),
        op: op.to_string(),
        peer: unmatched.rank,
        tag: group.traffic.lane(&unmatched.joined.call),
        last: group.traffic.made(unmatched, side),
    }
}

/// The hypothesis why two sides of a channel do not match, from what is on record. Conditions around
/// their lines explain nothing: a send and its receive are always on different ranks and lines.
pub(crate) fn cause(
    situation: &Situation<'_>,
    odd: &[u32],
    others: &[u32],
    at: Timestamp,
) -> CauseHypothesis {
    let hypothesis = cause::read(situation, None, odd, others, at);
    let is_of_sides = hypothesis.cause.kind == CauseKind::RankConditional;
    if is_of_sides || hypothesis.cause.confidence < Confidence::Supported {
        CauseHypothesis::unknown()
    } else {
        hypothesis
    }
}

/// Identifies a stall within its code.
pub(crate) fn key(stall: &Stall) -> KeyPlace {
    let Some(unmatched) = &stall.message else { return KeyPlace::Join(stall.group, stall.seq) };
    match unmatched.side {
        Side::Send => KeyPlace::Channel(stall.group, Some(unmatched.rank), unmatched.peer),
        Side::Receive => KeyPlace::Channel(stall.group, unmatched.peer, Some(unmatched.rank)),
    }
}

/// A phrase if the call is at the line where a waiting rank wrapped its model.
fn made_by_ddp(situation: &Situation<'_>, stall: &Stall, call: &Call) -> Option<&'static str> {
    let place = call.place.as_ref().filter(|_| call.hidden)?;
    let wraps = |rank: &u32| {
        let process = situation.model.member(stall.group, *rank);
        let mut models = process.into_iter().flat_map(|process| process.models.replicas());
        models.any(|(group, _, replica)| {
            group == stall.group && replica.at <= call.at && replica.place.as_ref() == Some(place)
        })
    };
    let is_constructor = stall.waiting.iter().any(wraps);
    is_constructor.then_some(", made by the constructor of DistributedDataParallel,")
}

/// What a stalled call needs: "all_reduce #5 of the default group needs all its ranks."
pub(crate) fn needs(situation: &Situation<'_>, stall: &Stall, call: &Call) -> String {
    let text = words::call(call);
    let info = &situation.model.group(stall.group).info;
    let group = words::group(info);
    match &stall.message {
        None => {
            let by = made_by_ddp(situation, stall, call).unwrap_or_default();
            format!("{text}{}{by} needs all its ranks.", words::of_group(info))
        }
        Some(unmatched) if unmatched.side == Side::Receive => {
            format!("{text} in {group} needs a message that was not sent.")
        }
        Some(_) => format!("{text} in {group} needs a receive that was not made."),
    }
}
