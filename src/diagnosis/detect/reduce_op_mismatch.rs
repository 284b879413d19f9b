//! DD106 reduce-op-mismatch: reduction operators differ.

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

/// DD106: the reduction operators of two calls of one collective differ.
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
    use crate::diagnosis::testing::holds;

    #[test]
    fn calls_that_differ_are_found_where_they_meet() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 all_reduce f32[8] sum @train.py:5
            1.5 1 all_reduce f32[8] max @train.py:7
            """
            [[expect]]
            code = "DD106"
            confidence = "proved"
            root = [0, 1]
            seq = 1
            detected = 1.5
            lines = { 0 = "train.py:5", 1 = "train.py:7" }
            certificate = "contradiction"
            "#,
        );
    }

    #[test]
    fn calls_that_agree_are_none() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 all_reduce f32[8] sum @train.py:5
            1.5 1 all_reduce f32[8] @train.py:7
            1.6 * done
            """
            look-on = 100
            "#,
        );
    }
}
