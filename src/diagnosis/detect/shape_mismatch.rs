//! DD104 shape-mismatch: sizes that must agree do not.

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

/// DD104: the element counts of two calls of one collective differ.
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
    use crate::diagnosis::testing::holds;

    #[test]
    fn calls_that_differ_are_found_where_they_meet() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 all_reduce f32[8] sum @train.py:5
            1.5 1 all_reduce f32[9] sum @train.py:7
            """
            [[expect]]
            code = "DD104"
            confidence = "proved"
            root = [0, 1]
            seq = 1
            detected = 1.5
            lines = { 0 = "train.py:5", 1 = "train.py:7" }
            certificate = "unsatisfiable-join"
            "#,
        );
    }

    #[test]
    fn calls_that_agree_are_none() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 all_reduce f32[2,4] sum @train.py:5
            1.5 1 all_reduce f32[8] sum @train.py:7
            1.6 * done
            """
            look-on = 100
            "#,
        );
    }
}
