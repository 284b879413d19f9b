//! DD105 dtype-mismatch: dtypes differ, also where the byte counts agree.

use ddp_doctor_proto::report::{CertificateKind, Effect, Severity};

use super::divergence::{self, Words};
use super::{About, Detector, Draft, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::Situation;

static ABOUT: About = About {
    code: "DD105",
    name: "dtype-mismatch",
    says: "dtypes differ, also where the byte counts agree",
    severity: Severity::Critical,
    effect: Effect::Corrupts,
    order: order::WIRE,
};

/// DD105: the element types of two calls of one collective differ.
pub(super) struct DTypeMismatch;

impl Detector for DTypeMismatch {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let words = Words {
            what: "Tensors of different dtypes",
            why: "The bytes of one type are taken for the other: where the byte counts agree, the job goes on with garbage in the result.",
            next: "Cast the tensor to one dtype on every rank before the call. A mixed-precision switch or a default dtype that differs between ranks is the usual reason.",
        };
        divergence::drafts(
            situation,
            Mismatch::DType,
            &ABOUT,
            CertificateKind::Contradiction,
            &words,
        )
    }
}
