//! DD406 no-sync-mismatch: ranks leave `no_sync` at different training forwards.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Cause, CauseKind, Confidence};

use super::breach::{self, Consequence};
use super::{About, Detector, Draft, order};
use crate::diagnosis::cause;
use crate::diagnosis::contract::Kind;
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words::{self, Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD406,
    order: order::WIRE,
};

/// DD406: different boundaries of gradient accumulation.
pub(super) struct NoSyncMismatch;

impl Detector for NoSyncMismatch {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let found = breach::of(situation, &ABOUT, |kind| {
            matches!(kind, Kind::Boundaries(_))
        });
        let found = found.into_iter();
        found.filter_map(|it| draft(situation, it)).collect()
    }
}

fn draft(situation: &Situation<'_>, it: Consequence<'_>) -> Option<Draft> {
    let Consequence { breach, mut draft } = it;
    let Kind::Boundaries(boundary) = &breach.kind else {
        return None;
    };
    let (some, others) = (&boundary.synchronise, &boundary.accumulate);
    let group = &situation.model.group(breach.group).info;
    let call = match (draft.op, draft.place) {
        (Some(op), Some((_, seq))) => format!(", in {op} #{seq} of {}", words::group(group)),
        _ => String::new(),
    };
    draft.summary = format!(
        "at their training forward {}, {} {} gradients and {} only {}; the first {}{call}",
        boundary.forward,
        Ranks(some),
        number(some, "averages", "average"),
        Ranks(others),
        number(others, "accumulates", "accumulate"),
        number(some, "waits", "wait"),
    );
    draft.victims = [some, others]
        .into_iter()
        .flatten()
        .copied()
        .filter(|rank| !breach.root.contains(rank))
        .collect();
    draft.victims.sort_unstable();
    draft.why = vec![format!(
        "All of them had made {} training forwards. Under no_sync a backward sends nothing, so ranks \
         must leave it at the same forward. {}",
        boundary.forward,
        if boundary.always {
            "They never did."
        } else {
            "Until then they did."
        }
    )];
    draft.next = vec![
        "Derive the boundary from the index of the batch on every rank, and give all ranks the same \
         number of batches."
            .into(),
    ];
    draft.explain(cause::Reading {
        cause: Cause {
            kind: CauseKind::LocalDecision,
            confidence: Confidence::Suspected,
        },
        because: None,
    });
    Some(draft)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{holds, shows};

    /// Two ranks that average after every third micro-batch, rank 1 one earlier.
    const OFF_BY_ONE: &str = r#"
        1.0 * forward 1 @train.py:17 no-sync
        2.0 0 forward 2 @train.py:17 no-sync
        2.0 1 forward 2 @train.py:17
        2.1 1 all_reduce hidden f32[64] @train.py:19
        3.0 0 forward 3 @train.py:17
        3.1 0 all_reduce hidden f32[64] @train.py:19
        3.2 * done
        4.0 0 forward 4 @train.py:17 no-sync
        4.0 1 forward 3 @train.py:17 no-sync
        5.0 0 forward 5 @train.py:17 no-sync
        5.0 1 forward 4 @train.py:17 no-sync
        6.0 1 forward 5 @train.py:17
        6.1 1 all_reduce hidden f32[64] @train.py:19
    "#;

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            &format!("world = 2\nevents = \"\"\"\n{OFF_BY_ONE}\n6.5 0 exits 0\n\"\"\"\n"),
        );
    }

    #[test]
    fn different_boundary_is_found_when_a_rank_ends() {
        holds(&format!(
            r#"
            world = 2
            events = """{OFF_BY_ONE}
            6.5 0 exits 0
            """
            verdict = "hang"
            silent-until = 6.5
            [[expect]]
            code = "DD406"
            role = "initiating"
            confidence = "supported"
            root = [0, 1]
            root-confidence = "suspected"
            seq = 2
            detected = 6.5
            summary-has = "training forward 5"
            "#
        ));
    }

    #[test]
    fn different_boundary_is_proved_by_another_call() {
        holds(&format!(
            r#"
            world = 2
            events = """{OFF_BY_ONE}
            6.5 0 barrier @train.py:25
            """
            [[expect]]
            code = "DD406"
            confidence = "proved"
            certificate = "unsatisfiable-join"
            "#
        ));
    }

    #[test]
    fn rank_with_fewer_batches_is_an_early_exit() {
        holds(
            r#"
            world = 2
            events = """
            1.0 * forward 1 @train.py:17 no-sync
            2.0 * forward 2 @train.py:17
            2.1 * all_reduce hidden f32[64] @train.py:19
            2.2 * done
            3.0 * forward 3 @train.py:17 no-sync
            4.0 0 forward 4 @train.py:17
            4.1 0 all_reduce hidden f32[64] @train.py:19
            4.5 1 exits 0
            """
            [[expect]]
            code = "DD102"
            root = [1]
            "#,
        );
    }

    #[test]
    fn rank_ahead_by_a_micro_batch_is_an_early_exit() {
        holds(
            r#"
            world = 2
            events = """
            1.0 * forward 1 @train.py:17
            1.1 * all_reduce hidden f32[64] @train.py:19
            1.2 * done
            2.0 1 forward 2 @train.py:17 no-sync
            3.0 0 forward 2 @train.py:17
            3.0 1 forward 3 @train.py:17
            3.1 * all_reduce hidden f32[64] @train.py:19
            3.2 * done
            4.0 1 forward 4 @train.py:17 no-sync
            4.0 0 forward 3 @train.py:17
            4.1 0 all_reduce hidden f32[64] @train.py:19
            4.5 1 exits 0
            """
            [[expect]]
            code = "DD102"
            root = [1]
            "#,
        );
    }
}
