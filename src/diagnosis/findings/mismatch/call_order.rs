//! DD109 call-order: ranks issue the same collectives of a group in different orders. If different
//! threads issue them, the order is left to chance, which is DD115 unawaited-work.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CauseKind, Confidence, Effect, Severity};

use crate::findings::draft::Draft;
use crate::findings::mismatch::divergence::{self, DivergedJoin};
use crate::model::{Join, JoinedCall};
use crate::situation::{Divergence, Nature, Situation};
use crate::source::cause;
use crate::waits::order::{Permutation, runs_on};
use crate::words;

/// DD109: swapped collectives of one group. DD115: collectives of one group that threads of a rank
/// issue in changing order.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let swapped =
        divergence::origins(situation).filter_map(|diverged| match &diverged.divergence.nature {
            Nature::Order(it) if is_race(situation, diverged.divergence, it) => {
                Some(race(situation, diverged, it))
            }
            Nature::Order(it) => Some(draft(situation, diverged, it).0),
            _ => None,
        });
    swapped.collect()
}

/// Whether every rank issues the swapped calls from several threads of the program. A thread that issues DDP's
/// calls alone is one of autograd's: the thread that called backward waits for it.
fn is_race(situation: &Situation<'_>, divergence: &Divergence, permutation: &Permutation) -> bool {
    let (group, seq) = (divergence.group, divergence.seq);
    let joins = (seq..seq + permutation.length).map(|seq| situation.join(group, seq));
    let Some(joins) = joins.collect::<Option<Vec<&Join>>>() else { return false };
    permutation.seen
        && joins[0].calls.iter().all(|(rank, first)| {
            let Some(process) = situation.model.member(group, *rank) else { return false };
            let acts = |joined: &JoinedCall| {
                process.threads.get(&joined.call.thread).is_some_and(|it| it.of_the_program)
            };
            let mut others = joins[1..].iter().filter_map(|join| join.calls.get(rank));
            let is_other = |joined: &JoinedCall| joined.call.thread != first.call.thread;
            acts(first) && others.any(|joined| is_other(joined) && acts(joined))
        })
}

fn race(situation: &Situation<'_>, diverged: DivergedJoin<'_>, permutation: &Permutation) -> Draft {
    let (mut draft, sides) = draft(situation, diverged, permutation);
    draft.code = &catalogue::DD115;
    draft.key.code = catalogue::DD115.code;
    // Neither side is wrong: the ranks have to agree on an order.
    let ranks: Vec<u32> = draft.per_rank.iter().map(|call| call.rank).collect();
    draft.blame(ranks, Confidence::Suspected);
    draft.victims.clear();
    draft.cause = None;
    draft.summary = format!(
        "two threads of each rank race on {}: {sides}",
        words::group(&situation.model.group(diverged.divergence.group).info)
    );
    // These replace the sentences on one right order.
    draft.why = vec![
        "Calls of one group are matched in the order in which they are made. Different threads \
         make these calls, and which of them comes first is left to chance."
            .into(),
    ];
    draft.next = vec![divergence::OWN_GROUPS.into()];
    draft
}

/// Also returns the calls of both sides in words.
fn draft(
    situation: &Situation<'_>,
    diverged: DivergedJoin<'_>,
    permutation: &Permutation,
) -> (Draft, String) {
    let DivergedJoin { divergence, join } = diverged;
    let (group, seq) = (divergence.group, divergence.seq);
    let (mut draft, classes) =
        divergence::parted(situation, diverged, &catalogue::DD109, join.odd_ones());
    if runs_on(divergence.mismatch) && !divergence::is_blocked(situation, join) {
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
    // "rank 0 calls all_reduce at train.py:9, then broadcast at train.py:10"
    let sides = divergence::sides(&classes, ("calls", "call"), |rank| {
        let calls = (seq..=last).filter_map(|seq| {
            let call = &situation.join(group, seq)?.calls.get(&rank)?.call;
            Some(format!("{}{}", words::signature(call), words::at(call.place.as_deref())))
        });
        Some(words::joined(calls, ", then "))
    });
    draft.summary = format!(
        "Ranks make calls #{seq} to #{last}{} in different orders: {sides}",
        words::of_group(info),
    );
    let mut why = vec![format!(
        "{}. Calls #{seq} to #{last} of this group are the same on all ranks, but in different orders.",
        words::pairing(info),
    )];
    if permutation.seen {
        why.push("In the same order, all of them would match: only the order is wrong.".into());
    } else {
        why.push("Calls at these two lines were swapped before, when they still matched.".into());
    }
    draft.why.splice(0..0, why);
    let shown = divergence::hypothesis(situation, diverged, &classes);
    let swapped = (CauseKind::SwappedCalls, Confidence::Supported);
    draft.explain(if (shown.cause.kind, shown.cause.confidence) == swapped {
        shown
    } else {
        let hypothesis = if permutation.seen { cause::supported } else { cause::suspected };
        hypothesis(CauseKind::SwappedCalls, None)
    });
    (draft, sides)
}
