//! DD117 rank-conditional-call: a condition on the rank keeps some ranks from a call of the group.

use std::sync::Arc;

use ddp_doctor_proto::report::{CauseKind, Confidence, Timestamp};
use ddp_doctor_proto::{Op, catalogue};

use crate::findings::draft::Draft;
use crate::findings::mismatch::divergence::{self, DivergedJoin};
use crate::findings::stalls::message;
use crate::guards::{self, RankGuard};
use crate::input::event::Call;
use crate::model::GroupId;
use crate::situation::{Nature, OriginKind, Situation, Stall};
use crate::source::cause::{self, Mistake};
use crate::words::{self, Ranks, number};

/// DD117: calls under a condition on the rank.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let origins = divergence::origins(situation);
    let diverged = origins.filter_map(|calls| match &calls.divergence.nature {
        Nature::Parted(rank_guard) => Some(paired(situation, calls, rank_guard)),
        _ => None,
    });
    let stalled = situation.by_origin(|_, stalls| {
        let stall = stalls.iter().find(|stall| is_reportable(situation, stall))?;
        missed(situation, stall, stall.rank_guard.as_ref()?, stalls)
    });
    diverged.chain(stalled).collect()
}

/// Whether the wait is overdue, or can never end because the other ranks have left.
fn is_reportable(situation: &Situation<'_>, stall: &Stall) -> bool {
    let has_left = stall.origin.why == OriginKind::Left;
    let is_awaited = || situation.calls(stall).iter().any(|(_, it)| it.is_awaited());
    situation.is_overdue(stall) || has_left && is_awaited()
}

/// When the wait became reportable.
fn reportable_at(situation: &Situation<'_>, stall: &Stall, rank_guard: &RankGuard) -> Timestamp {
    let group = situation.model.group(stall.group);
    let left = rank_guard.outside.iter().map(|&it| situation.left_at(group, it));
    match left.collect::<Option<Vec<Timestamp>>>().and_then(|left| left.into_iter().max()) {
        Some(left) => left.max(stall.since),
        None => situation.overdue_at(stall),
    }
}

/// The other ranks issue a different call at the same sequence number.
fn paired(situation: &Situation<'_>, calls: DivergedJoin<'_>, rank_guard: &RankGuard) -> Draft {
    let DivergedJoin { divergence, join } = calls;
    let (mut draft, classes) =
        divergence::parted(situation, calls, &catalogue::DD117, calls.join.odd_ones());
    // The certificate proves the mismatch, but not its reason, which is read from the source.
    draft.certificate = None;
    draft.summary = format!(
        "{} a call at {} that {}: {}",
        Ranks(&rank_guard.inside).with("makes", "make"),
        words::line(&rank_guard.place),
        Ranks(&rank_guard.outside).with("does not make", "do not make"),
        divergence::sides(&classes, ("is in", "are in"), |rank| {
            Some(words::call_at(&join.calls.get(&rank)?.call))
        }),
    );
    blame(&mut draft, situation, divergence.group, rank_guard);
    explain(&mut draft, situation, rank_guard);
    if rank_guard.seq < divergence.seq {
        draft.say(format!(
            "It was call #{} of the group, and happened to match a call from another line; from there on, the ranks \
             were one call apart, until they made two calls that cannot match.",
            rank_guard.seq
        ));
    }
    draft
}

/// The other ranks do not issue a call at the sequence number.
fn missed(
    situation: &Situation<'_>,
    stall: &Stall,
    rank_guard: &RankGuard,
    stalls: &[&Stall],
) -> Option<Draft> {
    let join = situation.join(stall.group, stall.seq)?;
    let call = &join.calls.values().next()?.call;
    let evidence_at = reportable_at(situation, stall, rank_guard);
    let mut draft = message::draft(situation, &catalogue::DD117, stall, call, evidence_at);
    draft.summary = format!(
        "{} in {} for {}, which {} not reach it",
        Ranks(&rank_guard.inside).with("waits", "wait"),
        words::call_at(call),
        Ranks(&rank_guard.outside),
        number(&rank_guard.outside, "does", "do"),
    );
    blame(&mut draft, situation, stall.group, rank_guard);
    draft.add_victims(Stall::victims(stalls));
    let group = words::group(&situation.model.group(stall.group).info);
    draft.say(format!("{} of {group} needs all its ranks.", words::call(call)));
    explain(&mut draft, situation, rank_guard);
    Some(draft)
}

/// Makes the smaller branch the root cause, and all other ranks victims. If neither is known to be the
/// smaller one, the ranks of both are suspected.
fn blame(draft: &mut Draft, situation: &Situation<'_>, group: GroupId, rank_guard: &RankGuard) {
    let both = || [&rank_guard.inside[..], &rank_guard.outside].concat();
    draft.root = rank_guard.few().map_or_else(both, <[u32]>::to_vec);
    draft.root.sort_unstable();
    // A rank with lost records may have made the call.
    let ranks = rank_guard.inside.iter().chain(&rank_guard.outside);
    let mut members = situation.model.members(group, ranks);
    draft.confidence = if members.all(|(_, process)| process.lost == 0) {
        Confidence::Supported
    } else {
        Confidence::Suspected
    };
    draft.root_confidence = match rank_guard.few() {
        Some(_) => draft.confidence,
        None => Confidence::Suspected,
    };
    draft.add_victims(both());
}

fn explain(draft: &mut Draft, situation: &Situation<'_>, rank_guard: &RankGuard) {
    let through = if rank_guard.line.is_same_line(&rank_guard.place) {
        String::new()
    } else {
        format!(", which calls {},", words::line(&rank_guard.place))
    };
    draft.say(format!(
        "The line {}{through} {}: {} it, {}.",
        words::source_line(&rank_guard.line),
        guards::sentence(&rank_guard.guard),
        Ranks(&rank_guard.inside).with("reaches", "reach"),
        Ranks(&rank_guard.outside).with("does not", "do not"),
    ));
    let hypothesis = cause::supported(CauseKind::RankConditional, None);
    let group = draft.place.map(|(group, _)| group);
    draft.explain(match group {
        Some(group) => hypothesis.with_mistake(Mistake::parted(situation, group, rank_guard)),
        None => hypothesis,
    });
    if group.is_some_and(|group| is_of_ddps_buffers(situation, group, rank_guard)) {
        draft.advise(
            "Where one rank alone evaluates, call the module inside DistributedDataParallel (model.module): its forward \
             does not broadcast buffers.",
        );
    }
}

/// Whether the call is a broadcast that DDP makes in a forward.
fn is_of_ddps_buffers(situation: &Situation<'_>, group: GroupId, rank_guard: &RankGuard) -> bool {
    let rank = rank_guard.inside.first();
    let Some((rank, process)) = rank.and_then(|&it| Some((it, situation.model.member(group, it)?)))
    else {
        return false;
    };
    let joined = situation.join(group, rank_guard.seq).and_then(|join| join.calls.get(&rank));
    let call = joined.map(|it| &it.call).or(process.last_call.as_ref());
    let is_there = |call: &&Arc<Call>| call.place.as_ref() == Some(&rank_guard.place);
    call.filter(is_there).is_some_and(|call| call.hidden && call.op == Op::Broadcast)
        && process.models.replicas().any(|(of, ..)| of == group)
}
