//! DD103 op-mismatch: ranks issue different collectives at one sequence number of a group.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, order};
use crate::align::Mismatch;
use crate::situation::Situation;

static ABOUT: About = About {
    code: &catalogue::DD103,
    order: order::WIRE,
};

/// DD103: different operations at one sequence number.
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
