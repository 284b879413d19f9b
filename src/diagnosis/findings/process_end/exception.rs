//! A process that an exception ended, or made leave the path of the others.

use std::collections::HashSet;

use ddp_doctor_proto::catalogue::{self, Code};
use ddp_doctor_proto::report::{Confidence, Effect, Where};
use ddp_doctor_proto::{ExceptionKind, Op};

use crate::findings::draft::{Draft, Key, KeyPlace, ProcessFact};
use crate::findings::facts;
use crate::findings::process_end::death::{self, holds_up, is_process};
use crate::findings::stalls::message;
use crate::findings::startup::nccl_refusal;
use crate::findings::view::{last_call, rank_calls, with_place};
use crate::input::event::Call;
use crate::input::{allocation, known_errors, request};
use crate::model::{Exception, GroupId, Join, Process, UnmatchedMessage};
use crate::situation::{OriginKind, Situation, Stall, StallOrigin};
use crate::source::cause::Mistake;
use crate::words::{self, Ranks};

/// Maximum number of calls of other ranks that findings about exceptions show together, beyond those of the first one:
/// each rank may have an exception for which all others wait.
const MAX_CALLS: usize = 1 << 16;
/// Maximum number of different exceptions that have findings of their own.
const MAX_DIFFERENT: usize = 256;

/// Key of the finding about a process that this exception ended.
pub(crate) fn key(rank: u32, pid: u32, exception: &Exception) -> Key {
    let about = match allocation::failed(&exception.text) {
        Some(_) => &catalogue::DD501,
        None => &catalogue::DD202,
    };
    Key { code: about.code, place: KeyPlace::Process(rank, pid) }
}

/// A process that an exception ended or diverted.
pub(crate) struct Ended<'a> {
    pub(crate) process: &'a Process,
    pub(crate) rank: u32,
    pub(crate) exception: &'a Exception,
    /// Its call during the exception caused a divergence.
    diverted: bool,
    /// Group and sequence number at which the ranks diverged, or else of the first stall.
    place: Option<(GroupId, u64)>,
    /// The stalls that it caused.
    stalls: Vec<&'a Stall>,
    /// Whether the finding shows the calls of the other ranks.
    shows_calls: bool,
    /// Whether the finding names the exception.
    is_named: bool,
}

/// All processes that an exception ended or diverted.
pub(crate) fn ended<'a>(situation: &'a Situation<'_>) -> Vec<Ended<'a>> {
    let mut ended: Vec<Ended<'a>> = situation
        .model
        .processes
        .values()
        .filter_map(|process| {
            let rank = process.rank?;
            let named = |it: &StallOrigin| it.why == OriginKind::Raised && it.ranks.contains(&rank);
            let stalls: Vec<&Stall> = situation
                .stalls
                .iter()
                .filter(|stall| named(&stall.origin))
                .filter(|stall| is_process(situation, stall, process))
                .collect();
            let diverted = situation.divergences.iter().find(|divergence| {
                named(&divergence.origin)
                    && situation
                        .model
                        .member(divergence.group, rank)
                        .is_some_and(|member| member.id == process.id)
            });
            let diverged_at = diverted.map(|divergence| (divergence.group, divergence.seq));
            let stalled_at = stalls.first().map(|stall| (stall.group, stall.seq));
            let place = diverged_at.or(stalled_at);
            let exception = decisive(situation, process, place)?;
            // A launcher that passes a request on ends all ranks.
            let is_alone = || process.end.is_some_and(|end| holds_up(situation, &stalls, end.at));
            if request::signal_of(&exception.text).is_some() && !is_alone() {
                return None;
            }
            let diverted = diverted.is_some();
            let (shows_calls, is_named) = (true, true);
            Some(Ended { process, rank, exception, diverted, place, stalls, shows_calls, is_named })
        })
        .collect();
    limit(situation, &mut ended);
    ended
}

/// Limits what findings about many exceptions state together. The earliest ones state most.
fn limit(situation: &Situation<'_>, ended: &mut [Ended<'_>]) {
    let mut by_time: Vec<&mut Ended<'_>> = ended.iter_mut().collect();
    by_time.sort_by_key(|it| it.exception.at);
    let (mut calls, mut texts) = (0, HashSet::new());
    for ended in by_time {
        let group = ended.place.map(|(group, _)| situation.model.group(group));
        let size = group.map_or(0, |it| it.members.len());
        ended.shows_calls = calls == 0 || calls + size <= MAX_CALLS;
        if ended.shows_calls {
            calls += size;
        }
        let Exception { text, place, .. } = ended.exception;
        ended.is_named = texts.len() < MAX_DIFFERENT || texts.contains(&(text, place));
        if ended.is_named {
            texts.insert((text, place));
        }
    }
}

/// The exception that explains the end or the calls of a rank: one that was in flight at a call
/// which its peers did not make, or else an uncaught one.
fn decisive<'a>(
    situation: &Situation<'_>,
    process: &'a Process,
    place: Option<(GroupId, u64)>,
) -> Option<&'a Exception> {
    let in_flight = place.and_then(|(group, seq)| {
        let join = situation.join(group, seq)?;
        process.in_flight_at(&join.calls.get(&process.rank?)?.call)
    });
    in_flight.or_else(|| {
        let exception = process.uncaught()?;
        situation.model.is_before_shutdown(exception.at).then_some(exception)
    })
}

/// The finding about the process, with this code.
pub(crate) fn draft(code: &'static Code, situation: &Situation<'_>, ended: &Ended<'_>) -> Draft {
    let &Ended { process, rank, exception, ref stalls, .. } = ended;
    let from_communication = process.is_from_communication(exception);
    let mut draft = raised(code, process, rank, exception, from_communication);
    draft.follows = nccl_refusal::cause(situation, process, exception);
    draft.set_victims(Stall::victims(stalls));
    if process.end.is_some_and(|end| holds_up(situation, stalls, end.at)) {
        draft.effect = Effect::Blocks;
    }
    describe_calls(situation, ended, &mut draft);

    let raised = if ended.is_named {
        let text = words::short(&exception.text);
        format!("raised {text}{}", words::at(exception.place.as_deref()))
    } else {
        "raised another exception".into()
    };
    let waits = words::wait_for_it(&draft.victims);
    draft.summary = format!("rank {rank} {raised}{waits}");
    draft.event = Some(raised);
    draft.mistake = ended.is_named.then(|| Mistake::raised(rank, exception));
    draft.say(why(ended));
    draft.why.extend(death::of_worker(process, rank));
    match facing(situation, process).filter(|_| from_communication) {
        Some((both, op, other)) => {
            draft.say(format!(
                "{} were each in a {} with the other, and neither had called {}.",
                words::begin(Ranks(&both)),
                op,
                other,
            ));
            draft.advise(
                "Let one of the two ranks send and the other receive first, or issue both messages of each rank by \
                 one batch_isend_irecv.",
            );
        }
        None if ended.is_named => {
            draft.advise(advice(&exception.text, exception.place.as_deref(), from_communication));
        }
        None => draft.advise("Fix the exceptions that were raised first."),
    }
    if exception.kind == ExceptionKind::InFlight {
        draft.advise(
            "Do not issue collectives while an exception propagates (`finally`, `except`, `__exit__`): \
             the other ranks do not issue them at that point.",
        );
    }
    draft
}

/// A draft about the fact that a rank raised an exception, without sentences.
pub(crate) fn raised(
    code: &'static Code,
    process: &Process,
    rank: u32,
    exception: &Exception,
    from_communication: bool,
) -> Draft {
    let mut draft = Draft::new(code, KeyPlace::Process(rank, process.pid), exception.at);
    let (at, is_unexplained) = (exception.at, false);
    draft.fact = Some(ProcessFact { rank, at, signal: None, from_communication, is_unexplained });
    // If the communication failed, the origin may be another rank that no finding names.
    let is_own = !from_communication;
    draft.blame([rank], if is_own { Confidence::Proved } else { Confidence::Suspected });
    draft.per_rank = vec![with_place(last_call(rank, process), exception.place.as_deref())];
    draft.observed(vec![facts::raised(rank, exception)])
}

/// Adds the calls at the place, and the ranks that made another call there as victims.
fn describe_calls(situation: &Situation<'_>, ended: &Ended<'_>, draft: &mut Draft) {
    let Some((group, seq)) = ended.place else { return };
    let rank = ended.rank;
    let stall = ended.stalls.first().filter(|_| !ended.diverted);
    let peers = match stall {
        Some(stall) => situation.calls(stall),
        None => situation.join(group, seq).into_iter().flat_map(Join::by_rank).collect(),
    };
    draft.place = Some((group, seq));
    let peer = peers.iter().find(|(other, _)| *other != rank);
    draft.op = peer.map(|(_, joined)| joined.call.op);
    if ended.shows_calls {
        draft.per_rank = match stall {
            Some(stall) => message::stalled_calls(situation, stall),
            None => rank_calls(situation, group, seq),
        };
    }
    draft.show_at(|it| ended.exception.place.as_deref().filter(|_| it == rank));
    draft.blocked_at = peers.iter().map(|(_, joined)| joined.call.at).min();
    if ended.diverted {
        draft.add_victims(peers.iter().map(|(other, _)| *other));
    }
}

/// The ranks, their operation and its counterpart, if the last calls of this rank and of its peer are two sends to each
/// other, or two receives, that are waited for and have no partner: a receive that was issued before would be one.
fn facing(
    situation: &Situation<'_>,
    process: &Process,
) -> Option<([u32; 2], &'static str, &'static str)> {
    let (rank, own) = (process.rank?, process.last_call.as_ref()?);
    let (op, other) = match own.op {
        Op::Send => ("send", "recv"),
        Op::Recv => ("recv", "send"),
        _ => return None,
    };
    let peer = own.peer?;
    let theirs = situation.model.process_of(peer)?.last_call.as_ref()?;
    let is_same = theirs.op == own.op && theirs.peer == Some(rank) && theirs.group == own.group;
    let open = situation.model.groups().flat_map(|group| group.traffic.open());
    let alone: Vec<UnmatchedMessage> =
        open.filter(|it| it.sure && !it.joined.call.is_async).collect();
    let is_alone = |rank: u32, call: &Call| {
        alone.iter().any(|it| (it.rank, it.joined.call.id) == (rank, call.id))
    };
    (is_same && is_alone(rank, own) && is_alone(peer, theirs)).then_some((
        [rank.min(peer), rank.max(peer)],
        op,
        other,
    ))
}

/// How the exception ended the rank or diverted it.
fn why(ended: &Ended<'_>) -> String {
    if ended.exception.kind != ExceptionKind::InFlight {
        // Also true of the ranks whose findings are merged with this one.
        return match ended.process.end {
            Some(_) => "It was not caught, and ended the rank.".into(),
            // A text may also hold an exception that the program caught and logged.
            None if ended.process.is_from_text() => {
                "The text shows no later call of the rank.".into()
            }
            None => "It was not caught.".into(),
        };
    }
    let call = ended.process.last_call.as_ref().map(|call| format!(", {}", words::call_at(call)));
    format!(
        "The exception was in flight when rank {} made its next call{}: a call that its peers do not make at that point.",
        ended.rank,
        call.unwrap_or_default()
    )
}

/// What to do about an exception that was raised at this place.
pub(crate) fn advice(text: &str, place: Option<&Where>, from_communication: bool) -> String {
    match known_errors::advice(text) {
        Some(advice) => advice.into(),
        None if request::signal_of(text).is_some() => {
            "Find out what interrupted this rank alone: a launcher ends all ranks together.".into()
        }
        None if from_communication => {
            "The error occurred in the communication with other ranks: find one that ended or left, or calls on them that do \
             not match, or a fault of the network between them."
                .into()
        }
        None => format!("Fix the exception{}.", words::at(place)),
    }
}
