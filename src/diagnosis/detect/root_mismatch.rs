//! DD107 root-mismatch: the src, dst or root of a collective differs.

use ddp_doctor_proto::report::{CertificateKind, Effect, Severity};

use super::divergence::{self, Words};
use super::{About, Detector, Draft, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::Situation;

static ABOUT: About = About {
    code: "DD107",
    name: "root-mismatch",
    says: "the src, dst or root of a collective differs",
    severity: Severity::Error,
    effect: Effect::Blocks,
    order: order::WIRE,
};

/// DD107: the roots of two calls of one collective differ.
pub(super) struct RootMismatch;

impl Detector for RootMismatch {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let words = Words {
            what: "Different roots",
            why: "Each side waits for, or sends to, another rank than the other side thinks.",
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
