//! DD106 reduce-op-mismatch: the ranks of a reduction pass different reduce ops.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::Situation;

static ABOUT: About = About {
    code: &catalogue::DD106,
    order: order::WIRE,
};

/// DD106: calls of one collective with different reduce ops.
pub(super) struct ReduceOpMismatch;

impl Detector for ReduceOpMismatch {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let words = Words {
            what: "Different reduction operators",
            why: "Each rank reduces with its own operator: the call completes, and ranks hold different results.",
            next: "Pass the same reduce op on every rank.",
        };
        divergence::drafts(
            situation,
            Mismatch::ReduceOp,
            &ABOUT,
            CertificateKind::Contradiction,
            &words,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{agree, differ, shows};

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            r#"
            world = 3
            events = """
            1.0 0,1 all_reduce f32[1] sum @train.py:48
            1.2 2 all_reduce f32[1] max @train.py:48
            """
            "#,
        );
    }

    #[test]
    fn different_calls_are_proved_at_their_lines() {
        differ(
            "DD106",
            "contradiction",
            "all_reduce f32[8] sum",
            "all_reduce f32[8] max",
        );
    }

    #[test]
    fn matching_calls_are_not_reported() {
        agree("all_reduce f32[8] sum", "all_reduce f32[8]");
    }
}
