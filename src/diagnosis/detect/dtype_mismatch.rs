//! DD105 dtype-mismatch: the ranks of a collective pass tensors of different dtypes.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, order};
use crate::align::Mismatch;
use crate::situation::Situation;

static ABOUT: About = About {
    code: &catalogue::DD105,
    order: order::WIRE,
};

/// DD105: calls of one collective with different dtypes.
pub(super) struct DTypeMismatch;

impl Detector for DTypeMismatch {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let words = Words {
            what: "Tensors of different dtypes",
            why: "The bytes of one dtype are interpreted as the other: if the byte counts agree, the job continues with a wrong result.",
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
