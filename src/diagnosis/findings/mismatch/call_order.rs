//! DD109 call-order: ranks issue the same collectives of a group in different orders. If different
//! threads issue them, the order is left to chance, which is DD115 unawaited-work.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Cause, CauseKind, CertificateKind, Confidence, Effect, Severity};

use crate::evidence::align::Mismatch;
use crate::findings::draft::Draft;
use crate::findings::mismatch::divergence;
use crate::model::Join;
use crate::situation::{Divergence, Nature, Origin, Situation};
use crate::source::cause::Reading;
use crate::waits::order::{Permutation, runs_on};
use crate::words::{self, Ranks, number};

/// DD109: swapped collectives of one group.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    swapped(situation)
        .filter(|(divergence, permutation)| !is_race(situation, divergence, permutation))
        .filter_map(|(divergence, permutation)| {
            draft(situation, divergence, permutation).map(|(draft, _)| draft)
        })
        .collect()
}

/// DD115: collectives of one group that threads of a rank issue in changing order.
pub(crate) fn of_threads(situation: &Situation<'_>) -> Vec<Draft> {
    swapped(situation)
        .filter(|(divergence, permutation)| is_race(situation, divergence, permutation))
        .filter_map(|(divergence, permutation)| race(situation, divergence, permutation))
        .collect()
}

fn swapped<'a>(
    situation: &'a Situation<'_>,
) -> impl Iterator<Item = (&'a Divergence, &'a Permutation)> {
    let divergences = situation.divergences.iter();
    divergences.filter(|divergence| matches!(divergence.origin, Origin::Diverged(..))).filter_map(
        |divergence| match &divergence.nature {
            Nature::Order(permutation) => Some((divergence, permutation)),
            _ => None,
        },
    )
}

/// Whether every rank issues the swapped calls from several threads.
fn is_race(situation: &Situation<'_>, divergence: &Divergence, permutation: &Permutation) -> bool {
    let (group, seq) = (divergence.group, divergence.seq);
    let joins = (seq..seq + permutation.length).map(|seq| situation.join(group, seq));
    let Some(joins) = joins.collect::<Option<Vec<&Join>>>() else {
        return false;
    };
    permutation.seen
        && joins[0].calls.iter().all(|(rank, first)| {
            let others = joins[1..].iter().filter_map(|join| join.calls.get(rank));
            let mut threads = others.map(|joined| joined.call.thread);
            threads.any(|thread| thread != first.call.thread)
        })
}

fn race(
    situation: &Situation<'_>,
    divergence: &Divergence,
    permutation: &Permutation,
) -> Option<Draft> {
    let (mut draft, sides) = draft(situation, divergence, permutation)?;
    draft.code = &catalogue::DD115;
    draft.key.code = catalogue::DD115.code;
    // Neither side is wrong: the ranks have to agree on an order.
    draft.root = draft.per_rank.iter().map(|call| call.rank).collect();
    draft.root_confidence = Confidence::Suspected;
    draft.victims.clear();
    draft.cause = None;
    draft.summary = format!(
        "two threads of each rank race on {}: {sides}",
        words::group(&situation.model.group(divergence.group).info)
    );
    draft.why = vec![
        "Calls of one group are matched in the order in which they are made. Different threads \
         make these calls, and which of them comes first is left to chance."
            .into(),
    ];
    draft.next = vec![
        "Give every thread a group of its own (new_group on all ranks), or let one thread make all \
         calls."
            .into(),
    ];
    Some(draft)
}

/// Also returns the calls of both sides in words.
fn draft(
    situation: &Situation<'_>,
    divergence: &Divergence,
    permutation: &Permutation,
) -> Option<(Draft, String)> {
    let (group, seq) = (divergence.group, divergence.seq);
    let join = situation.join(group, seq)?;
    let mismatch = divergence.mismatch;
    let proof = match mismatch {
        Mismatch::Op | Mismatch::Size | Mismatch::Splits | Mismatch::Root => {
            CertificateKind::UnsatisfiableJoin
        }
        Mismatch::DType | Mismatch::ReduceOp => CertificateKind::Contradiction,
    };
    let (mut draft, classes) =
        divergence::parted(situation, divergence, join, &catalogue::DD109, proof);
    let blocks = divergence::is_blocked(situation, join);
    if runs_on(mismatch) && !blocks {
        (draft.effect, draft.severity) = (Effect::Corrupts, Severity::Critical);
    }
    let last = seq + permutation.length - 1;
    if permutation.seen {
        // The permutation is known once its last call has been issued.
        let calls = (seq..=last).filter_map(|seq| situation.join(group, seq));
        let last = calls.flat_map(|join| join.calls.values()).map(|it| it.call.at).max();
        draft.evidence_at = draft.evidence_at.max(last.unwrap_or_default());
    }

    let info = &situation.model.group(group).info;
    let sides: Vec<String> = classes
        .iter()
        .filter_map(|ranks| Some(side(situation, divergence, permutation, *ranks.first()?, ranks)))
        .collect();
    let sides = sides.join(", ");
    draft.summary = format!(
        "The same calls in another order meet as #{seq} to #{last} of {}: {sides}",
        words::group(info),
    );
    let mut why = vec![format!(
        "Calls of a group are matched by order alone. {} of its calls, from #{seq} to #{last}, are \
         the same on all ranks, but in different orders.",
        permutation.length
    )];
    if permutation.seen {
        why.push(
            "In one order all of them would match: nothing but the order has to change.".into(),
        );
    } else {
        why.push("Calls at these two lines were swapped before, when they still matched.".into());
    }
    draft.why.splice(0..0, why);
    let confidence = if permutation.seen { Confidence::Supported } else { Confidence::Suspected };
    draft.explain(Reading {
        same_path: false,
        cause: Cause { kind: CauseKind::SwappedCalls, confidence },
        because: None,
    });
    Some((draft, sides))
}

/// "rank 0 calls all_reduce at train.py:9, then broadcast at train.py:10"
fn side(
    situation: &Situation<'_>,
    divergence: &Divergence,
    permutation: &Permutation,
    rank: u32,
    ranks: &[u32],
) -> String {
    let calls = (divergence.seq..divergence.seq + permutation.length).filter_map(|seq| {
        let join: &Join = situation.join(divergence.group, seq)?;
        let call = &join.calls.get(&rank)?.call;
        Some(format!("{}{}", words::signature(call), words::at(call.place.as_deref())))
    });
    let calls: Vec<String> = calls.collect();
    format!("{} {} {}", Ranks(ranks), number(ranks, "calls", "call"), calls.join(", then "))
}
