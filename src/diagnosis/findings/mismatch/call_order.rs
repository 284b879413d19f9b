//! DD109 call-order: ranks issue the same collectives of a group in different orders.

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
    situation
        .divergences
        .iter()
        .filter(|divergence| matches!(divergence.origin, Origin::Diverged(..)))
        .filter_map(|divergence| match &divergence.nature {
            Nature::Order(permutation) => draft(situation, divergence, permutation),
            _ => None,
        })
        .collect()
}

fn draft(
    situation: &Situation<'_>,
    divergence: &Divergence,
    permutation: &Permutation,
) -> Option<Draft> {
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
        let last = calls
            .flat_map(|join| join.calls.values())
            .map(|it| it.call.at)
            .max();
        draft.evidence_at = draft.evidence_at.max(last.unwrap_or_default());
    }

    let info = &situation.model.group(group).info;
    let sides: Vec<String> = classes
        .iter()
        .filter_map(|ranks| {
            Some(side(
                situation,
                divergence,
                permutation,
                *ranks.first()?,
                ranks,
            ))
        })
        .collect();
    draft.summary = format!(
        "The same calls in another order meet as #{seq} to #{last} of {}: {}",
        words::group(info),
        sides.join(", ")
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
    let confidence = if permutation.seen {
        Confidence::Supported
    } else {
        Confidence::Suspected
    };
    draft.explain(Reading {
        same_path: false,
        cause: Cause {
            kind: CauseKind::SwappedCalls,
            confidence,
        },
        because: None,
    });
    Some(draft)
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
        Some(format!(
            "{}{}",
            words::signature(call),
            words::at(call.place.as_deref())
        ))
    });
    let calls: Vec<String> = calls.collect();
    format!(
        "{} {} {}",
        Ranks(ranks),
        number(ranks, "calls", "call"),
        calls.join(", then ")
    )
}
