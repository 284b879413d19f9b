//! DD105 dtype-mismatch: dtypes differ, also where the byte counts agree.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::Situation;

static ABOUT: About = About {
    code: &catalogue::DD105,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{agree, differ, shows};

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            r#"
            world = 3
            events = """
            1.0 0,1 all_reduce f32[1] sum @train.py:48
            1.2 2 all_reduce i32[1] sum @train.py:48
            """
            "#,
        );
    }

    #[test]
    fn calls_that_differ_are_found_where_they_meet() {
        differ(
            "DD105",
            "contradiction",
            "all_reduce f32[8] sum",
            "all_reduce i32[8] sum",
        );
    }

    #[test]
    fn calls_that_agree_are_none() {
        agree("all_reduce f32[8] sum", "all_reduce sum");
    }
}
