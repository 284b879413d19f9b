//! DD102 early-exit: a rank ended in order or destroyed the group while peers wait for it.

use std::collections::BTreeSet;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CauseKind, Confidence, Timestamp};

use crate::findings::advice;
use crate::findings::draft::{Draft, Key, KeyPlace};
use crate::findings::stalls::message;
use crate::findings::stalls::termination::never_comes;
use crate::model::{Ending, JoinedCall, Process, Side, UnmatchedMessage};
use crate::situation::{Absent, OriginKind, Situation, Stall, StallOrigin};
use crate::source::cause::{self, Mistake};
use crate::words::{self, Ranks, number};

/// DD102: ranks that ended, or destroyed the group, before their last collective.
pub(crate) fn draft(
    situation: &Situation<'_>,
    from: &StallOrigin,
    stalls: &[&Stall],
) -> Option<Draft> {
    let StallOrigin { why: OriginKind::Left, ranks: gone } = from else { return None };
    let first = *gone.first()?;
    // A stall that can be proved is preferred.
    let provable = stalls.iter().find(|stall| awaited(situation, stall, gone).is_some());
    let direct = || stalls.iter().find(|stall| stall.is_direct());
    let stall: &Stall = provable.or_else(direct).or(stalls.first())?;
    let process = situation.model.member(stall.group, first)?;
    let left = left_at(situation, stall, first, process);
    let awaited = awaited(situation, stall, gone);
    let (waiter, waiting) = awaited.or_else(|| held_or_failed(situation, stall, gone))?;
    // A rooted call that need not wait may still end.
    if !stall.must_wait && !situation.is_overdue(stall) {
        return None;
    }

    let (call, evidence_at) = (&waiting.call, left.max(waiting.call.at));
    let mut draft = message::draft(situation, &catalogue::DD102, stall, call, evidence_at);
    draft.root = gone.to_vec();
    draft.victims = Stall::victims(stalls);

    // The launcher may have ended it since.
    let have_ended = situation.model.ending_of(process) == Ending::InOrder;
    let how = if have_ended {
        Ranks(gone).with("has ended", "have ended")
    } else {
        Ranks(gone).with("has destroyed the group", "have destroyed the group")
    };
    draft.summary = format!(
        "{how}; {} for {} in {}",
        Ranks(&stall.waiting).with("waits", "wait"),
        number(gone, "it", "them"),
        words::call(call)
    );
    draft.mistake = Some(Mistake::new(gone, how + &after(situation, gone, have_ended)));
    draft.say(format!(
        "{} {} begun to wait{} can never {}.",
        message::needs(situation, stall, call),
        words::begin(Ranks(&stall.waiting).with("has", "have")),
        last_call(situation, stall, gone, first),
        match stall.message.as_ref().map(|it| it.side) {
            None => "join",
            Some(Side::Receive) => "send it",
            Some(Side::Send) => "receive it",
        },
    ));
    draft
        .next
        .extend(stall.message.as_ref().map(|unmatched| equal_numbers(unmatched, stall, gone)));
    let mut more_calls = false;
    if stall.rank_guard.is_some() {
        let place = KeyPlace::Join(stall.group, stall.seq);
        let code = catalogue::DD117.code;
        draft.follows = Some(Key { code, place });
    } else if stall.message.is_some() {
        let hypothesis = message::cause(situation, gone, &draft.victims, left.max(stall.since));
        let is_unknown = hypothesis.cause.kind == CauseKind::Unknown;
        let of_test = || cause::of_test_on_rank(situation, call.place.as_ref()?, &[waiter], gone);
        draft.explain(is_unknown.then(of_test).flatten().unwrap_or(hypothesis));
        let is_later = |it: &UnmatchedMessage| it.peer.is_some() && it.nth > 1;
        more_calls = stall.message.as_ref().is_some_and(is_later)
            && draft.cause.is_none_or(|it| it.kind == CauseKind::Unknown)
            && have_others_left(situation, stall, gone, &draft.victims);
    } else {
        let at = left.max(stall.since);
        let hypothesis = cause::read(situation, draft.place, gone, &draft.victims, at);
        if advice::against(draft.code, &hypothesis).is_none() {
            draft.advise(format!(
                "Find out why {} made fewer calls: check the loops, conditions and exceptions around {} last call.",
                Ranks(gone),
                number(gone, "its", "their"),
            ));
        }
        draft.explain(hypothesis);
    }

    // An asynchronous call that seems blocked may still return: no proof.
    let proof = awaited.and_then(|_| never_comes(situation, stall, (waiter, call), first));
    let mut draft = draft.proved_by(proof);
    draft.root_confidence = draft.confidence;
    if more_calls {
        let waiting = std::mem::take(&mut draft.victims);
        draft.say(format!(
            "All other ranks of the group have left it and do not wait for a message: {} may have made more calls than they did.",
            Ranks(&waiting)
        ));
        let waits = Ranks(&waiting).with("waits", "wait");
        let clause = format!("{waits} in {}; all others have left the group", words::call_at(call));
        draft.mistake = Some(Mistake::new(&waiting, clause));
        draft.blame(waiting, Confidence::Suspected);
    }
    Some(draft)
}

/// Whether the ranks that wait are fewer than those of the group that have left it, which are all others.
fn have_others_left(
    situation: &Situation<'_>,
    stall: &Stall,
    gone: &[u32],
    waiting: &[u32],
) -> bool {
    let group = situation.model.group(stall.group);
    let others = || group.members.keys().filter(|it| !waiting.contains(it));
    let has_left = |rank: &u32| {
        let process = situation.model.member(stall.group, *rank);
        let ended = process.is_some_and(|it| situation.model.ending_of(it) == Ending::InOrder);
        let waits = situation.waits.blocked.contains_key(rank);
        (gone.contains(rank) || ended || group.is_destroyed_by(*rank)) && !waits
    };
    others().count() > waiting.len() && others().all(has_left)
}

/// " by os._exit() at train.py:9", if all these ranks ended so at one line; else " after its call at train.py:9", if all
/// made their last call at one line, and " at train.py:9" if that call destroyed the group.
fn after(situation: &Situation<'_>, gone: &[u32], have_ended: bool) -> String {
    let exit = |&rank: &u32| {
        let announced = situation.model.process_of(rank)?.announced.as_ref()?;
        Some((&*announced.how, words::source_line(announced.place.as_deref()?)))
    };
    let all_exits: Option<BTreeSet<(&str, String)>> = gone.iter().map(exit).collect();
    let mut exits = all_exits.unwrap_or_default().into_iter();
    if let (Some((how, line)), None) = (exits.next(), exits.next()) {
        return format!(" by {how}() at {line}");
    }
    let last = |&rank: &u32| {
        let call = situation.model.process_of(rank)?.last_call.as_ref()?;
        Some((call.op == Op::DestroyProcessGroup, words::source_line(call.place.as_deref()?)))
    };
    let all_calls: Option<BTreeSet<(bool, String)>> = gone.iter().map(last).collect();
    let mut calls = all_calls.unwrap_or_default().into_iter();
    match (calls.next(), calls.next()) {
        (Some((true, line)), None) if !have_ended => format!(" at {line}"),
        (Some((_, line)), None) => {
            format!(" after {} call at {line}", number(gone, "its", "their"))
        }
        _ => String::new(),
    }
}

/// A rank with the call that it waits in.
type Waiting<'s> = (u32, &'s JoinedCall);

/// A call whose result a rank waits for, or waited for, and that needs the first of the ranks.
fn awaited<'s>(situation: &Situation<'s>, stall: &'s Stall, gone: &[u32]) -> Option<Waiting<'s>> {
    let first = *gone.first()?;
    // It may have left another group, or be missing behind a wait of another rank.
    let has_left = |absent: &Absent| absent.rank == first && absent.why == OriginKind::Left;
    if !stall.missing.iter().any(has_left) {
        return None;
    }
    let mut calls = situation.calls(stall).into_iter();
    calls.find(|(rank, joined)| {
        stall.message.is_some() || joined.is_awaited() && joined.needs(*rank, gone).contains(&first)
    })
}

/// A call that needs the first of the ranks and seems to block its own rank, or has failed.
fn held_or_failed<'s>(
    situation: &Situation<'s>,
    stall: &'s Stall,
    gone: &[u32],
) -> Option<Waiting<'s>> {
    let first = *gone.first()?;
    let group = situation.model.group(stall.group);
    let calls = situation.calls(stall);
    let held = calls.iter().find(|(rank, joined)| {
        situation.is_held_in(group, *rank, joined) && joined.needs(*rank, gone).contains(&first)
    });
    let failed = |(rank, joined): &&(u32, &JoinedCall)| {
        situation.needed_by(group, *rank, joined, gone).contains(&first)
    };
    held.or_else(|| calls.iter().find(failed)).copied()
}

/// The ranks as a subject that continues a sentence, with the last call of the first one.
fn last_call(situation: &Situation<'_>, stall: &Stall, gone: &[u32], first: u32) -> String {
    let members = &situation.model.group(stall.group).members;
    match (&stall.message, members.get(&first)) {
        (None, None) => format!("; {} never began to, and", Ranks(&[first])),
        (None, Some(member)) => {
            format!("; {}'s last call there was #{}, and it", Ranks(&[first]), member.issued)
        }
        (Some(_), _) => format!("; {}", Ranks(gone)),
    }
}

/// Advice for messages of which one side makes more.
fn equal_numbers(unmatched: &UnmatchedMessage, stall: &Stall, gone: &[u32]) -> String {
    let (own, theirs) = match unmatched.side {
        Side::Receive => ("sends", "receives from it"),
        Side::Send => ("receives", "sends to it"),
    };
    format!(
        "Make the same number of {own} on {} as of {theirs} on {}, or tell the receiver the number first; wait for the \
         Work that isend returns before the rank ends.",
        Ranks(gone),
        Ranks(&stall.waiting),
    )
}

fn left_at(situation: &Situation<'_>, stall: &Stall, rank: u32, process: &Process) -> Timestamp {
    let group = situation.model.group(stall.group);
    let destroyed = group.members.get(&rank).and_then(|member| member.destroyed);
    destroyed.or(process.end.map(|end| end.at)).unwrap_or(situation.now)
}
