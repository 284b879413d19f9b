//! DD104 shape-mismatch: tensors of a collective differ in size where it needs equal sizes.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::Situation;

static ABOUT: About = About {
    code: &catalogue::DD104,
    order: order::WIRE,
};

/// DD104: calls of one collective with different element counts.
pub(super) struct ShapeMismatch;

impl Detector for ShapeMismatch {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let words = Words {
            what: "Tensors of different sizes",
            why: "Peers expect as many bytes as they send themselves: the transport aborts, or waits for the rest for ever.",
            next: "Give the tensor the same number of elements on every rank: pad it, agree on the size first (all_reduce of the length with MAX), or gather objects instead of tensors.",
        };
        divergence::drafts(
            situation,
            Mismatch::Size,
            &ABOUT,
            CertificateKind::UnsatisfiableJoin,
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
            world = 2
            events = """
            1.0 0 all_gather f32[64,128] @eval.py:52
            1.2 1 all_gather f32[61,128] @eval.py:52
            """
            "#,
        );
    }

    #[test]
    fn different_calls_are_proved_at_their_lines() {
        differ(
            "DD104",
            "unsatisfiable-join",
            "all_reduce f32[8] sum",
            "all_reduce f32[9] sum",
        );
    }

    #[test]
    fn matching_calls_are_not_reported() {
        agree("all_reduce f32[2,4] sum", "all_reduce f32[8] sum");
    }
}
