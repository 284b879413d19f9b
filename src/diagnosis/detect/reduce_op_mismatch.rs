//! DD106 reduce-op-mismatch: the ranks of a reduction pass different reduce ops.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, order};
use crate::align::Mismatch;
use crate::situation::Situation;

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
