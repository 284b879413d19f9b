//! DD117 rank-conditional-call: a condition on the rank keeps some ranks from a call of the group.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Cause, CauseKind, CertificateKind, Confidence, Timestamp};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::mismatch::divergence;
use crate::findings::view::rank_calls;
use crate::model::GroupId;
use crate::situation::{Divergence, Nature, Origin, Situation, Stall};
use crate::source::cause::Reading;
use crate::source::guards::{self, Parting};
use crate::words::{self, Ranks, number};

/// DD117: calls under a condition on the rank.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let diverged = situation
        .divergences
        .iter()
        .filter(|divergence| matches!(divergence.origin, Origin::Diverged(..)))
        .filter_map(|divergence| match &divergence.nature {
            Nature::Parted(parting) => met(situation, divergence, parting),
            _ => None,
        });
    let by_origin = situation.stalls_by_origin();
    let stalled = by_origin.values().filter_map(|stalls| {
        let stall = stalls.iter().find(|stall| is_reportable(situation, stall))?;
        missed(situation, stall, stall.parting.as_ref()?, stalls)
    });
    diverged.chain(stalled).collect()
}

/// Whether the wait is overdue, or can never end because the other ranks have left.
fn is_reportable(situation: &Situation<'_>, stall: &Stall) -> bool {
    let has_left = matches!(stall.origin, Origin::Left(_));
    let is_awaited = || situation.calls(stall).iter().any(|(_, it)| it.is_awaited());
    situation.is_overdue(stall) || has_left && is_awaited()
}

/// When the wait became reportable.
fn reportable_at(situation: &Situation<'_>, stall: &Stall, parting: &Parting) -> Timestamp {
    let group = situation.model.group(stall.group);
    let left = parting.outside.iter().map(|&it| situation.left_at(group, it));
    let left: Option<Vec<Timestamp>> = left.collect();
    match left.and_then(|left| left.into_iter().max()) {
        Some(left) => left.max(stall.since),
        None => situation.overdue_at(stall),
    }
}

/// The other ranks issue a different call at the same sequence number.
fn met(situation: &Situation<'_>, divergence: &Divergence, parting: &Parting) -> Option<Draft> {
    let join = situation.join(divergence.group, divergence.seq)?;
    let proof = CertificateKind::UnsatisfiableJoin;
    let (mut draft, classes) =
        divergence::parted(situation, divergence, join, &catalogue::DD117, proof);
    // The certificate proves the mismatch, but not its reason, which is read from the source.
    draft.certificate = None;
    let everybody = classes.concat();
    let sides: Vec<String> = classes
        .iter()
        .filter_map(|ranks| {
            let call = &join.calls.get(ranks.first()?)?.call;
            Some(format!(
                "{} {} in {}{}",
                Ranks(ranks),
                number(ranks, "is", "are"),
                words::call(call),
                words::at(call.place.as_deref()),
            ))
        })
        .collect();
    draft.summary = format!(
        "{} {} a call at {} that {} {}: {}",
        Ranks(&parting.inside),
        number(&parting.inside, "makes", "make"),
        words::line(&parting.place),
        Ranks(&parting.outside),
        number(&parting.outside, "does not make", "do not make"),
        sides.join(", "),
    );
    blame(&mut draft, situation, divergence.group, parting, &everybody);
    explain(&mut draft, parting);
    if parting.seq < divergence.seq {
        draft.why.push(format!(
            "It was call #{} of the group, and met one at another line that it matched by chance; \
             from there on the ranks are one call apart, and here calls meet that cannot match.",
            parting.seq
        ));
    }
    Some(draft)
}

/// The other ranks do not issue a call at the sequence number.
fn missed(
    situation: &Situation<'_>,
    stall: &Stall,
    parting: &Parting,
    stalls: &[&Stall],
) -> Option<Draft> {
    let join = situation.join(stall.group, stall.seq)?;
    let call = &join.calls.values().next()?.call;
    let mut draft = Draft::new(
        &catalogue::DD117,
        KeyPlace::Join(stall.group, stall.seq),
        reportable_at(situation, stall, parting),
    );
    draft.place = Some((stall.group, stall.seq));
    draft.op = Some(call.op);
    draft.per_rank = rank_calls(situation, stall.group, stall.seq);
    draft.blocked_at = Some(stall.since);
    draft.summary = format!(
        "{} {} for {} in {}{}, which {} {} not reach",
        Ranks(&parting.inside),
        number(&parting.inside, "waits", "wait"),
        Ranks(&parting.outside),
        words::call(call),
        words::at(call.place.as_deref()),
        number(&parting.outside, "it", "they"),
        number(&parting.outside, "does", "do"),
    );
    let mut everybody = Stall::victims(stalls);
    everybody.extend(&parting.outside);
    everybody.extend(&parting.inside);
    blame(&mut draft, situation, stall.group, parting, &everybody);
    draft.why.push(format!(
        "{} of {} needs all its ranks.",
        words::call(call),
        words::group(&situation.model.group(stall.group).info),
    ));
    explain(&mut draft, parting);
    Some(draft)
}

/// Makes the smaller branch the root cause, and all other ranks victims. If neither is known to be the
/// smaller one, the ranks of both are suspected.
fn blame(
    draft: &mut Draft,
    situation: &Situation<'_>,
    group: GroupId,
    parting: &Parting,
    everybody: &[u32],
) {
    let both = || [&parting.inside[..], &parting.outside].concat();
    draft.root = parting.few().map_or_else(both, <[u32]>::to_vec);
    draft.root.sort_unstable();
    // A rank with lost records may have made the call.
    let ranks = parting.inside.iter().chain(&parting.outside);
    let mut processes = ranks.filter_map(|&rank| situation.model.member(group, rank));
    draft.confidence = if processes.all(|process| process.lost == 0) {
        Confidence::Supported
    } else {
        Confidence::Suspected
    };
    draft.root_confidence = match parting.few() {
        Some(_) => draft.confidence,
        None => Confidence::Suspected,
    };
    draft.victims.extend(everybody);
    draft.victims.retain(|rank| !draft.root.contains(rank));
    draft.victims.sort_unstable();
    draft.victims.dedup();
}

fn explain(draft: &mut Draft, parting: &Parting) {
    let (guarded, call) = (&parting.line, &parting.place);
    let through = if (&guarded.file, guarded.line) == (&call.file, call.line) {
        String::new()
    } else {
        format!(", from where {} is called,", words::line(&parting.place))
    };
    draft.why.push(format!(
        "The line {}{through} {}: {} {} it, {} {}.",
        words::source_line(&parting.line),
        guards::sentence(&parting.guard),
        Ranks(&parting.inside),
        number(&parting.inside, "reaches", "reach"),
        Ranks(&parting.outside),
        number(&parting.outside, "does not", "do not"),
    ));
    draft.explain(Reading {
        same_path: false,
        cause: Cause { kind: CauseKind::RankConditional, confidence: Confidence::Supported },
        because: None,
    });
}
