//! DD103 op-mismatch: different collectives meet at one sequence number.

use ddp_doctor_proto::report::{CertificateKind, Effect, Severity};

use super::divergence::{self, Words};
use super::{About, Detector, Draft, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::Situation;

static ABOUT: About = About {
    code: "DD103",
    name: "op-mismatch",
    says: "different collectives meet at one sequence number",
    severity: Severity::Error,
    effect: Effect::Blocks,
    order: order::WIRE,
};

/// DD103: the operations of two calls differ.
pub(super) struct OpMismatch;

impl Detector for OpMismatch {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let words = Words {
            what: "Different collectives",
            why: "Different operations exchange different messages: neither side can complete.",
            next: "Make every rank of the group issue the same collectives in the same order. Look at the two lines: the call that only some ranks reach has to be reached by all of them, or by none.",
        };
        divergence::drafts(
            situation,
            Mismatch::Op,
            &ABOUT,
            CertificateKind::UnsatisfiableJoin,
            &words,
        )
    }
}
