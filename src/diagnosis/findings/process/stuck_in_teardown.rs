//! DD205 stuck-in-teardown: a rank blocks in a call on its exit path.
//!
//! A call on the exit path of a program (`atexit`, `finally`, after `sys.exit`) or of an exception
//! is one that the peers do not make: it meets a different call, waits for ended peers, or blocks
//! the rank while they wait for it elsewhere. If an exception led there, the finding follows from
//! that.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CertificateKind, Confidence};

use crate::evidence::align::Mismatch;
use crate::evidence::event::Call;
use crate::findings::draft::{Draft, Key, KeyPlace};
use crate::findings::hang::message;
use crate::findings::hang::termination::never_comes;
use crate::findings::mismatch::divergence;
use crate::findings::process::exception::key;
use crate::findings::view::{last_call, rank_calls, with_place};
use crate::model::{Doing, Ending, GroupId, Process};
use crate::situation::{Absence, Absent, Divergence, Origin, Situation, Stall};
use crate::words::{self, Capital, Ranks, number};

/// DD205: clean-up calls that the peers do not make.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let met =
        situation.divergences.iter().filter_map(|divergence| meets_another(situation, divergence));
    let by_origin = situation.stalls_by_origin();
    let waits = by_origin.iter().filter_map(|(origin, stalls)| {
        let is_explained = situation.divergences.iter().any(|d| d.origin == **origin);
        match origin {
            Origin::Raised(ranks) | Origin::Leaving(ranks) if !is_explained => {
                let raised = matches!(origin, Origin::Raised(_));
                waits_for_absent_peers(situation, ranks, stalls).or_else(|| {
                    let kept = || keeps_others_waiting(situation, ranks, stalls);
                    (!raised).then(kept).flatten()
                })
            }
            _ => None,
        }
    });
    met.chain(waits).chain(destroys_for_ever(situation)).collect()
}

/// Key of the finding about the exception that led the rank to this call.
fn exception(situation: &Situation<'_>, group: GroupId, rank: u32, call: &Call) -> Option<Key> {
    let process = situation.model.member(group, rank)?;
    let exception = process.raised_before(call)?;
    Some(key(rank, process.pid, exception))
}

/// A clean-up call meets a different call of the peers.
fn meets_another(situation: &Situation<'_>, divergence: &Divergence) -> Option<Draft> {
    let (Origin::Raised(ranks) | Origin::Leaving(ranks)) = &divergence.origin else {
        return None;
    };
    let (group, seq) = (divergence.group, divergence.seq);
    let join = situation.join(group, seq)?;
    let first = *ranks.first()?;
    let call = &join.calls.get(&first)?.call;
    let met = divergence.met;
    // After a request to end, ranks clean up wherever they are.
    if !situation.model.is_before_shutdown(met) {
        return None;
    }

    let mut draft = Draft::new(&catalogue::DD205, KeyPlace::Join(group, seq), met);
    draft.follows = exception(situation, group, first, call);
    draft.place = Some((group, seq));
    draft.op = Some(call.op);
    draft.root = ranks.clone();
    draft.root_confidence = Confidence::Supported;
    draft.victims = join.calls.keys().copied().filter(|rank| !ranks.contains(rank)).collect();
    draft.per_rank = rank_calls(situation, group, seq);
    draft.blocked_at = join.calls.values().map(|joined| joined.call.at).min();
    draft.summary = format!(
        "{} {} stuck in {} clean-up: {}{} meets another call of {}",
        Ranks(ranks),
        number(ranks, "is", "are"),
        number(ranks, "its", "their"),
        words::call(call),
        words::at(call.place.as_deref()),
        Ranks(&draft.victims),
    );
    draft.why = vec![if draft.follows.is_some() {
        "The exception does not affect the other ranks, which continue with the next call of the loop; \
         the two calls can never match."
            .into()
    } else {
        format!(
            "{} made this call on the way out of the program; the other ranks do not exit and continue \
             with another call. The two can never match.",
            Capital(Ranks(ranks))
        )
    }];
    draft.next = advice(&draft);
    let provable = matches!(
        divergence.mismatch,
        Mismatch::Op | Mismatch::Size | Mismatch::Splits | Mismatch::Root
    ) && join
        .calls
        .keys()
        .all(|&rank| situation.model.member(group, rank).is_some_and(|process| process.lost == 0));
    let proof =
        || divergence::certificate(join, &catalogue::DD205, CertificateKind::UnsatisfiableJoin);
    Some(draft.proved_by(provable.then(proof).flatten()))
}

/// A clean-up call waits for peers that have ended or continue without it.
fn waits_for_absent_peers(
    situation: &Situation<'_>,
    ranks: &[u32],
    stalls: &[&Stall],
) -> Option<Draft> {
    // Peers that wait elsewhere may be waiting for these ranks.
    let free = |absent: &Absent| {
        use Absence::{Blocked, Leaving, Unpartnered};
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

    let mut draft =
        Draft::new(&catalogue::DD205, KeyPlace::Join(stall.group, stall.seq), evidence_at);
    draft.follows = exception(situation, stall.group, first, call);
    draft.place = Some((stall.group, stall.seq));
    draft.op = Some(call.op);
    draft.root = ranks.to_vec();
    // Unless more ranks omit the call than make it, either side may be wrong.
    draft.root_confidence =
        if ranks.len() < missing.len() { Confidence::Supported } else { Confidence::Suspected };
    draft.per_rank = rank_calls(situation, stall.group, stall.seq);
    draft.blocked_at = Some(stall.since);
    let peers = if gone.is_some() {
        number(&missing, "which has ended", "which have ended")
    } else {
        number(&missing, "which continues elsewhere", "which continue elsewhere")
    };
    draft.summary = format!(
        "{} {} stuck in {} clean-up: {}{} waits for {}, {peers}",
        Ranks(ranks),
        number(ranks, "is", "are"),
        number(ranks, "its", "their"),
        words::call(call),
        words::at(call.place.as_deref()),
        Ranks(&missing),
    );
    draft.why = vec![format!(
        "{} made this call on the way out; {} {} not made it.",
        Capital(Ranks(ranks)),
        Ranks(&missing),
        number(&missing, "has", "have"),
    )];
    draft.next = advice(&draft);
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
    draft.place = Some((stall.group, stall.seq));
    let mut waiting = situation.calls(stall).into_iter();
    draft.op = waiting.next().map(|(_, joined)| joined.call.op);
    draft.root = ranks.to_vec();
    draft.root_confidence = Confidence::Supported;
    draft.victims = Stall::victims(stalls);
    draft.victims.retain(|rank| !ranks.contains(rank));
    draft.per_rank = message::stalled_calls(situation, stall);
    draft.blocked_at = Some(stall.since);
    let all_seen = process.lost == 0 && !situation.is_cut_short(stall);
    if !all_seen {
        draft.confidence = Confidence::Suspected;
    }
    draft.summary = format!(
        "{} {} stuck on the way out{}; {} {} for {}",
        Ranks(ranks),
        number(ranks, "is", "are"),
        inside(process).map_or_else(String::new, |what| format!(", {what}")),
        Ranks(&draft.victims),
        number(&draft.victims, "waits", "wait"),
        number(ranks, "it", "them"),
    );
    draft.why = vec![format!(
        "{} {} begun to exit, and {} not ended.",
        Capital(Ranks(ranks)),
        number(ranks, "has", "have"),
        number(ranks, "has", "have"),
    )];
    draft.next = advice(&draft);
    Some(draft)
}

/// Ranks that do not return from `destroy_process_group`. A rank that is missing elsewhere, or whose
/// own call cannot complete, is part of that finding.
fn destroys_for_ever(situation: &Situation<'_>) -> Option<Draft> {
    let limit = situation.config.stall_after;
    let is_explained = |rank: u32| is_stalled_or_diverged(situation, |it| it == rank);
    let destroys = |process: &&Process| {
        situation.model.ending_of(process) == Ending::None
            && !process.is_stopped()
            && process.rank.is_some_and(|rank| !is_explained(rank))
            && destruction(process).is_some_and(|call| {
                call.at.plus(limit) <= situation.until && !is_kept(situation, process, call)
            })
    };
    let processes: Vec<&Process> = situation.model.processes.values().filter(destroys).collect();
    let begun = processes.iter().filter_map(|process| destruction(process));
    let evidence_at = begun.map(|call| call.at).min()?.plus(limit);
    let mut ranks: Vec<u32> = processes.iter().filter_map(|process| process.rank).collect();
    ranks.sort_unstable();

    let mut draft = Draft::new(&catalogue::DD205, KeyPlace::Job, evidence_at);
    draft.op = Some(Op::DestroyProcessGroup);
    draft.per_rank = processes
        .iter()
        .filter_map(|process| {
            let row = last_call(process.rank?, process);
            Some(with_place(row, destruction(process)?.place.as_deref()))
        })
        .collect();
    draft.per_rank.sort_by_key(|row| row.rank);
    draft.blocked_at = processes.iter().filter_map(|process| Some(destruction(process)?.at)).min();
    draft.summary = format!(
        "{} {} not returned from destroy_process_group{}",
        Ranks(&ranks),
        number(&ranks, "has", "have"),
        words::at(destruction(processes.first()?)?.place.as_deref()),
    );
    draft.why = vec![
        "Destroying a group waits for the calls that are under way in it, and those wait for peers \
         that may have ended."
            .into(),
    ];
    draft.root = ranks;
    draft.next = vec![
        "Wait for every asynchronous call before the group is destroyed, and synchronise all ranks \
         (barrier) first. If a rank has failed, end the process with os._exit instead."
            .into(),
    ];
    Some(draft)
}

/// Whether a process that destroys an NCCL communicator, which needs all its ranks, waits for one
/// that is blocked or missing elsewhere.
fn is_kept(situation: &Situation<'_>, process: &Process, call: &Call) -> bool {
    let Some(group) = call.group.as_ref().filter(|it| it.key.layer == "nccl") else {
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

/// The call of `destroy_process_group` that a process is inside.
fn destruction(process: &Process) -> Option<&Call> {
    process.threads.values().find_map(|thread| match &thread.doing {
        Doing::Call(call) if call.op == Op::DestroyProcessGroup => Some(&**call),
        _ => None,
    })
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

fn advice(draft: &Draft) -> Vec<String> {
    vec![if draft.follows.is_some() {
        "Make no collective call on the way out of an exception. Let it end the process: the \
         launcher then ends the others."
            .into()
    } else {
        "Make no collective call on the way out (atexit, `finally`, `__del__`), unless every rank \
         makes it at the same point: synchronise (barrier) and destroy the group at the end of the \
         training itself."
            .into()
    }]
}
