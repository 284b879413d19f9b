//! DD104 shape-mismatch: tensors of a collective differ in size where it needs equal sizes.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, order};
use crate::align::Mismatch;
use crate::situation::Situation;

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
