//! DD106 reduce-op-mismatch: reduction operators differ.

use ddp_doctor_proto::report::{CertificateKind, Effect, Severity};

use super::divergence::{self, Words};
use super::{About, Detector, Draft, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::Situation;

static ABOUT: About = About {
    code: "DD106",
    name: "reduce-op-mismatch",
    says: "reduction operators differ",
    severity: Severity::Critical,
    effect: Effect::Corrupts,
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
