//! DD205 stuck-in-teardown: a rank blocks in a call on its exit path.
//!
//! A call on the exit path of a program (`atexit`, `finally`, after `sys.exit`) or of an exception
//! is one that the peers do not make: it meets a different call, waits for ended peers, or blocks
//! the rank while they wait for it elsewhere. If an exception led there, the finding follows from
//! that. A process that goes on after its program without a call is one if the user interrupts it.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CertificateKind, Confidence, Timestamp};
use ddp_doctor_proto::vocabulary::NCCL_LAYER;

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::mismatch::divergence;
use crate::findings::process_end::exception::key;
use crate::findings::stalls::termination::never_comes;
use crate::findings::stalls::{idle, message};
use crate::findings::view::{last_call, rank_calls, with_place};
use crate::input::event::Call;
use crate::model::{Doing, Ending, GroupId, Process};
use crate::situation::{Absent, Divergence, OriginKind, Situation, Stall, StallOrigin};
use crate::stacks;
use crate::words::{self, Ranks, number};

/// DD205: cleanup calls that the peers do not make.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let diverged =
        situation.divergences.iter().filter_map(|divergence| meets_another(situation, divergence));
    let waits = situation.by_origin(|origin, stalls| {
        let is_explained = situation.divergences.iter().any(|d| d.origin == *origin);
        let ranks = &origin.ranks[..];
        match origin.why {
            _ if is_explained => None,
            OriginKind::Raised => waits_for_absent_peers(situation, ranks, stalls),
            OriginKind::Leaving => waits_for_absent_peers(situation, ranks, stalls)
                .or_else(|| keeps_others_waiting(situation, ranks, stalls)),
            _ => None,
        }
    });
    diverged
        .chain(waits)
        .chain(destroys_forever(situation))
        .chain(goes_on_after_its_end(situation))
        .collect()
}

/// A draft without sentences about a cleanup call of these ranks. If an exception led them to it,
/// the draft follows from that.
fn about_call(
    situation: &Situation<'_>,
    ranks: &[u32],
    (group, seq): (GroupId, u64),
    call: &Call,
    evidence_at: Timestamp,
) -> Draft {
    let mut draft = Draft::new(&catalogue::DD205, KeyPlace::Join(group, seq), evidence_at);
    draft.follows = ranks.first().and_then(|&first| {
        let process = situation.model.member(group, first)?;
        Some(key(first, process.pid, process.raised_before(call)?))
    });
    draft.place = Some((group, seq));
    draft.op = Some(call.op);
    draft.root = ranks.to_vec();
    draft.per_rank = rank_calls(situation, group, seq);
    draft
}

/// "rank 1 is stuck in cleanup: barrier #3 at train.py:40".
fn stuck_in(ranks: &[u32], call: &Call) -> String {
    format!("{} stuck in cleanup: {}", Ranks(ranks).with("is", "are"), words::call_at(call))
}

/// A cleanup call is paired with a different call of the peers.
fn meets_another(situation: &Situation<'_>, divergence: &Divergence) -> Option<Draft> {
    let StallOrigin { why: OriginKind::Raised | OriginKind::Leaving, ranks } = &divergence.origin
    else {
        return None;
    };
    let (group, seq) = (divergence.group, divergence.seq);
    let join = situation.join(group, seq)?;
    let first = *ranks.first()?;
    let call = &join.calls.get(&first)?.call;
    let at = divergence.at;
    // After a request to end, ranks clean up wherever they are.
    if !situation.model.is_before_shutdown(at) {
        return None;
    }

    let mut draft = about_call(situation, ranks, (group, seq), call, at);
    draft.root_confidence = Confidence::Supported;
    draft.set_victims(join.calls.keys().copied());
    draft.blocked_at = join.calls.values().map(|joined| joined.call.at).min();
    let victims = Ranks(&draft.victims);
    draft.summary = if draft.follows.is_some() {
        format!("{} is paired with a different call of {victims}", stuck_in(ranks, call))
    } else {
        format!(
            "{} the program before {victims}: {}, in {} cleanup, is paired with a different call",
            Ranks(ranks).with("leaves", "leave"),
            words::call_at(call),
            number(ranks, "its", "their"),
        )
    };
    draft.say(if draft.follows.is_some() {
        "The exception does not affect the other ranks, which continue with a different call. The two can \
         never match."
            .into()
    } else {
        format!(
            "{} made this call while exiting; the other ranks do not exit and continue with a \
             different call. The two can never match.",
            words::begin(Ranks(ranks))
        )
    });
    if draft.follows.is_none() {
        let victims = Ranks(&draft.victims);
        draft.advise(format!(
            "Find out why {} left the training before {victims}, and make all ranks agree to stop first (all_reduce a flag, or \
             the number of steps). Then make the cleanup calls at the end of the training itself.",
            Ranks(ranks),
        ));
    } else {
        advise(&mut draft);
    }
    let kind = divergence::kind_of_proof(divergence.mismatch);
    let proof = divergence::certificate(situation, group, join, kind)
        .filter(|it| it.kind == CertificateKind::UnsatisfiableJoin);
    Some(draft.proved_by(proof))
}

/// A cleanup call waits for peers that have ended or continue without it.
fn waits_for_absent_peers(
    situation: &Situation<'_>,
    ranks: &[u32],
    stalls: &[&Stall],
) -> Option<Draft> {
    // Peers that wait elsewhere may be waiting for these ranks.
    let free = |absent: &Absent| {
        use OriginKind::{Blocked, Leaving, Unpartnered};
        !matches!(absent.why, Blocked(..) | Unpartnered(_) | Leaving)
    };
    let stall = stalls.iter().find(|stall| {
        stall.message.is_none()
            && stall.waiting.iter().all(|rank| ranks.contains(rank))
            && stall.missing.iter().all(free)
    })?;
    let first = *ranks.first()?;
    let joined = situation.join(stall.group, stall.seq)?.calls.get(&first)?;
    let call = &joined.call;
    let missing: Vec<u32> = stall.missing.iter().map(|absent| absent.rank).collect();
    let ended = |rank: &u32| situation.model.member(stall.group, *rank)?.end;
    let gone: Option<Vec<_>> = missing.iter().map(ended).collect();
    let evidence_at = match &gone {
        Some(ends) => ends.iter().map(|end| end.at).max()?.max(call.at),
        None => situation.overdue_at(stall),
    };

    let place = (stall.group, stall.seq);
    let mut draft = about_call(situation, ranks, place, call, evidence_at);
    // Unless more ranks omit the call than make it, either side may be wrong.
    draft.root_confidence =
        if ranks.len() < missing.len() { Confidence::Supported } else { Confidence::Suspected };
    draft.blocked_at = Some(stall.since);
    let peers = if gone.is_some() {
        number(&missing, "which has ended", "which have ended")
    } else {
        number(&missing, "which continues elsewhere", "which continue elsewhere")
    };
    draft.summary = format!("{} waits for {}, {peers}", stuck_in(ranks, call), Ranks(&missing));
    draft.say(format!(
        "{} made this call while exiting; {} not made it.",
        words::begin(Ranks(ranks)),
        Ranks(&missing).with("has", "have"),
    ));
    advise(&mut draft);
    let needed = joined.needs(first, &missing).first().copied();
    let proof =
        gone.and(needed).and_then(|needed| never_comes(situation, stall, (first, call), needed));
    Some(draft.proved_by(proof))
}

/// Peers wait for ranks that are blocked on their exit path. Found at once if no rank can release
/// them, otherwise when the stall is overdue.
fn keeps_others_waiting(
    situation: &Situation<'_>,
    ranks: &[u32],
    stalls: &[&Stall],
) -> Option<Draft> {
    let stuck = |rank: &u32| situation.waits.stuck_in(*rank);
    let held: Option<Vec<_>> = ranks.iter().map(stuck).collect();
    let mut stalls_now =
        stalls.iter().filter(|stall| held.is_some() || situation.is_overdue(stall));
    let stall = stalls_now.next()?;
    let first = *ranks.first()?;
    let process = situation.model.member(stall.group, first)?;
    let evidence_at = match &held {
        Some(held) => held.iter().map(|wait| wait.since).max()?.max(stall.since),
        None => situation.overdue_at(stall),
    };

    let mut draft = Draft::new(&catalogue::DD205, message::key(stall), evidence_at);
    message::describe_stall(situation, stall, &mut draft);
    draft.blame(ranks, Confidence::Supported);
    draft.set_victims(Stall::victims(stalls));
    let all_seen = process.lost == 0 && !situation.is_cut_short(stall);
    if !all_seen {
        draft.confidence = Confidence::Suspected;
    }
    draft.summary = format!(
        "{} stuck while exiting{}; {}",
        Ranks(ranks).with("is", "are"),
        inside(process).map_or_else(String::new, |what| format!(", {what}")),
        draft.waits_for_root(),
    );
    draft.say(format!(
        "{} begun to exit, and {} not ended.",
        words::begin(Ranks(ranks).with("has", "have")),
        number(ranks, "has", "have"),
    ));
    advise(&mut draft);
    Some(draft)
}

/// Ranks that do not return from `destroy_process_group`. A rank that is missing elsewhere, or whose
/// own call cannot complete, is part of that finding, and so is one whose last collective does not complete.
fn destroys_forever(situation: &Situation<'_>) -> Option<Draft> {
    let limit = situation.config.stall_after;
    let is_inside = |rank| situation.inside.iter().any(|it| it.waiting.contains(&rank));
    let is_explained =
        |rank: u32| is_inside(rank) || is_stalled_or_diverged(situation, |it| it == rank);
    let stuck: Vec<(u32, &Process, &Call)> = situation
        .model
        .processes
        .values()
        .filter_map(|process| {
            let call = process.entered().find(|call| call.op == Op::DestroyProcessGroup)?;
            let rank = process.rank.filter(|&rank| !is_explained(rank))?;
            let is_stuck = situation.model.ending_of(process) == Ending::None
                && !process.is_stopped()
                && call.at.plus(limit) <= situation.until
                && !is_kept(situation, process, call);
            is_stuck.then_some((rank, process, &**call))
        })
        .collect();
    let begun = stuck.iter().map(|(_, _, call)| call.at).min()?;
    let mut ranks: Vec<u32> = stuck.iter().map(|(rank, ..)| *rank).collect();
    ranks.sort_unstable();

    let mut draft = Draft::new(&catalogue::DD205, KeyPlace::Job, begun.plus(limit));
    draft.op = Some(Op::DestroyProcessGroup);
    let row = |&(rank, process, call): &(u32, &Process, &Call)| {
        with_place(last_call(rank, process), call.place.as_deref())
    };
    draft.per_rank = stuck.iter().map(row).collect();
    draft.blocked_at = Some(begun);
    let (_, _, first) = stuck.first()?;
    draft.summary = format!(
        "{} not returned from destroy_process_group{}",
        Ranks(&ranks).with("has", "have"),
        words::at(first.place.as_deref()),
    );
    draft.say(
        "Destroying a group waits for the calls that are under way in it, and those wait for peers \
         that may have ended.",
    );
    draft.root = ranks;
    draft.advise(
        "Wait for every asynchronous call before the group is destroyed, and synchronize all ranks \
         (barrier) first. If a rank has failed, end the process with os._exit instead.",
    );
    Some(draft)
}

/// Ranks whose program had ended for a noticeable time when the user interrupted the job, and whose
/// process had not. Without the interruption, they may finish an upload.
fn goes_on_after_its_end(situation: &Situation<'_>) -> Option<Draft> {
    if situation.until >= situation.now {
        return None;
    }
    let noticeable = situation.model.timing.interrupted_wait;
    let is_explained = |rank: u32| is_stalled_or_diverged(situation, |it| it == rank);
    let mut left: Vec<(Timestamp, u32, &Process)> = situation
        .model
        .processes
        .values()
        .filter_map(|process| {
            let since = process.left_in_order().filter(|_| process.is_leaving())?;
            let rank = process.rank.filter(|&rank| !is_explained(rank))?;
            let goes_on = situation.model.ending_of(process) == Ending::None
                && !process.is_inside_a_call()
                && since.plus(noticeable) <= situation.until;
            goes_on.then_some((since, rank, process))
        })
        .collect();
    left.sort_unstable_by_key(|(_, rank, _)| *rank);
    let since = left.iter().map(|(since, ..)| *since).min()?;

    let ranks: Vec<u32> = left.iter().map(|(_, rank, _)| *rank).collect();
    let key = KeyPlace::Ranks(ranks.clone());
    let mut draft = Draft::new(&catalogue::DD205, key, situation.until);
    draft.root = ranks;
    draft.confidence = Confidence::Suspected;
    draft.blocked_at = Some(since);
    draft.per_rank = left.iter().map(|(_, rank, process)| last_call(*rank, process)).collect();
    draft.summary = format!(
        "the program of {} had ended {} before the job was interrupted, and {} not",
        Ranks(&draft.root),
        words::seconds(situation.until.since(since)),
        number(&draft.root, "its process had", "their processes had"),
    );
    draft.say(
        "After the last line of a program, the interpreter waits for its non-daemon threads, and \
         calls destructors.",
    );
    let places = left.iter().filter_map(|&(since, _, process)| {
        let outside = stacks::of_looks(&process.stacks, since, None, &situation.model.timing)?;
        idle::where_it_is(situation.model, process, &outside)
    });
    draft.why.extend(places);
    draft.advise(
        "Let each thread end, or start it with daemon=True. If it was an upload, let it finish.",
    );
    Some(draft)
}

/// Whether a process that destroys an NCCL communicator, which needs all its ranks, waits for one
/// that is blocked or missing elsewhere.
fn is_kept(situation: &Situation<'_>, process: &Process, call: &Call) -> bool {
    let Some(group) = call.group.as_ref().filter(|it| it.key.layer == NCCL_LAYER) else {
        return false;
    };
    is_stalled_or_diverged(situation, |rank| {
        process.rank != Some(rank) && group.key.members.contains(&rank)
    })
}

/// Whether one of these ranks waits, is missing, or made a call that does not match.
fn is_stalled_or_diverged(situation: &Situation<'_>, is: impl Fn(u32) -> bool) -> bool {
    let stalled = situation.stalls.iter().any(|stall| {
        let missing = stall.missing.iter().map(|absent| &absent.rank);
        stall.waiting.iter().chain(missing).any(|&rank| is(rank))
    });
    let diverged = situation.divergences.iter().any(|divergence| {
        let join = situation.join(divergence.group, divergence.seq);
        join.is_some_and(|join| join.calls.keys().any(|&rank| is(rank)))
    });
    stalled || diverged
}

/// "in barrier #3 at train.py:40": the call that a process on its exit path is inside.
fn inside(process: &Process) -> Option<String> {
    process.threads.values().find_map(|thread| {
        let (call, place) = match &thread.doing {
            Doing::Call(call) => (Some(call), call.place.as_deref()),
            Doing::Wait(Some(_), _, place) => {
                let last = thread.last_call.as_ref();
                let of_last = last.and_then(|call| call.place.as_deref());
                (last, place.as_deref().or(of_last))
            }
            Doing::Wait(None, _, place) => (None, place.as_deref()),
            Doing::Nothing => return None,
        };
        let call = call.map_or_else(|| "a call".into(), |call| words::call(call));
        Some(format!("in {call}{}", words::at(place)))
    })
}

fn advise(draft: &mut Draft) {
    let is_led = draft.follows.is_some();
    draft.advise(if is_led {
        "Do not issue collectives while an exception propagates. Let it end the process: the \
         launcher then ends the others."
    } else {
        "Do not issue collectives during exit (atexit, `finally`, `__del__`), unless every rank makes them at \
         the same point: synchronize (barrier) and destroy the group at the end of the \
         training itself."
    });
}
