//! DD107 root-mismatch: ranks pass different `src` or `dst` ranks to a rooted collective.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, order};
use crate::align::Mismatch;
use crate::situation::Situation;

static ABOUT: About = About {
    code: &catalogue::DD107,
    order: order::WIRE,
};

/// DD107: calls of one collective with different roots.
pub(super) struct RootMismatch;

impl Detector for RootMismatch {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let words = Words {
            what: "Different roots",
            why: "Each side waits for, or sends to, a rank that the other side does not expect.",
            next: "Pass the same src or dst on every rank. It is the global rank, not the rank in the group, and must not be computed from the caller's own rank.",
        };
        divergence::drafts(
            situation,
            Mismatch::Root,
            &ABOUT,
            CertificateKind::UnsatisfiableJoin,
            &words,
        )
    }
}
