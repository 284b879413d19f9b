//! DD109 call-order: ranks issue the same collectives of a group in different orders.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Cause, CauseKind, CertificateKind, Confidence, Effect, Severity};

use super::{About, Detector, Draft, divergence, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::cause::Reading;
use crate::diagnosis::model::Join;
use crate::diagnosis::order::{Permutation, runs_on};
use crate::diagnosis::situation::{Divergence, Nature, Origin, Situation};
use crate::diagnosis::words::{self, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD109,
    order: order::WIRE,
};

/// DD109: swapped collectives of one group.
pub(super) struct CallOrder;

impl Detector for CallOrder {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
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
}

fn draft(
    situation: &Situation<'_>,
    divergence: &Divergence,
    permutation: &Permutation,
) -> Option<Draft> {
    let (group, seq) = (divergence.group, divergence.seq);
    let join = situation.join(group, seq)?;
    let mismatch = join.mismatch?;
    let proof = match mismatch {
        Mismatch::Op | Mismatch::Size | Mismatch::Root => CertificateKind::UnsatisfiableJoin,
        Mismatch::DType | Mismatch::ReduceOp => CertificateKind::Contradiction,
    };
    let (mut draft, classes) = divergence::parted(situation, divergence, join, &ABOUT, proof);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{holds, shows};

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            r#"
            world = 2
            events = """
            1.0 * step 19
            1.0 0 all_reduce async f32[8] sum as loss @train.py:31
            1.1 0 broadcast async f32[8] root=0 as mask @train.py:32
            1.2 1 broadcast async f32[8] root=0 as mask @train.py:35
            1.5 1 all_reduce async f32[8] sum as loss @train.py:36
            2.0 * wait loss
            """
            "#,
        );
    }

    #[test]
    fn swapped_calls_are_proved_once_both_were_issued() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 all_reduce async f32[8] sum @train.py:5
            1.1 0 broadcast async f32[8] root=0 @train.py:6
            1.2 1 broadcast async f32[8] root=0 @train.py:6
            1.5 1 all_reduce async f32[8] sum @train.py:5
            """
            [[expect]]
            code = "DD109"
            confidence = "proved"
            certificate = "unsatisfiable-join"
            effect = "blocks"
            cause = "swapped-calls"
            root = [0, 1]
            root-confidence = "suspected"
            seq = 1
            detected = 1.5
            lines = { 0 = "train.py:5", 1 = "train.py:6" }
            "#,
        );
    }

    #[test]
    fn omitted_call_is_not_a_different_order() {
        holds(
            r#"
            world = 2
            events = """
            1.0 * step 1
            1.1 0 all_reduce async f32[8] sum @train.py:5
            1.2 0 broadcast async f32[8] root=0 @train.py:6
            1.3 1 broadcast async f32[8] root=0 @train.py:6
            2.0 * step 2
            2.1 1 all_reduce async f32[8] sum @train.py:5
            """
            [[expect]]
            code = "DD103"
            "#,
        );
    }
}
