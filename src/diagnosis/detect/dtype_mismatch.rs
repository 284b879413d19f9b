//! DD105 dtype-mismatch: dtypes differ, also where the byte counts agree.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, Explanation, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::Situation;

static ABOUT: About = About {
    code: &catalogue::DD105,
    order: order::WIRE,
    explanation: Explanation {
        means: "Ranks made the same collective with different element types. The transport moves \
         bytes: where their number agrees, the call completes and the bytes of one type are read \
         as the other. The job runs on with garbage in its gradients or metrics, and no error is \
         raised anywhere.",
        example: "\
error[DD105] dtype-mismatch: Tensors of different dtypes meet as #1 of the default group: ranks 0 and 1 call all_reduce float32[1] sum at train.py:48, rank 2 calls all_reduce int32[1] sum at train.py:48
    group default_pg, 3 ranks · proved 0 ms after the deciding event

      rank 0, 1   waiting 200 ms   train.py:48      all_reduce #1 float32[1] sum
    ▸ rank 2      waiting 0 ms     train.py:48      all_reduce #1 int32[1] sum

    why    Call #1 of a group is one collective for all its ranks, matched by order alone. The bytes
           of one type are taken for the other: where the byte counts agree, the job goes on with
           garbage in the result.
           Rank 2 stands apart from 2 others that agree.
    fix    Cast the tensor to one dtype on every rank before the call. A mixed-precision switch or a
           default dtype that differs between ranks is the usual reason.
    more   ddp-doctor explain DD105
",
        causes: &[
            "Mixed precision switched on for some ranks only: a flag, an environment variable or a \
             device check that differs.",
            "A metric built from a Python number: `torch.tensor(0)` is int64, `torch.tensor(0.0)` \
             is float32.",
            "A rank that took an error path, and sends a placeholder.",
        ],
        fix: &[
            "Cast to one dtype on every rank right before the call, or give the dtype where the \
             tensor is made.",
            "Compare the configuration of the ranks that are named with the others'.",
            "Results since this call are not to be trusted: go back to a checkpoint from before.",
        ],
        not: &[
            "A dtype that could not be seen matches every other: nothing is guessed.",
            "Calls that differ in operation or size, too, are told as that (DD103, DD104).",
        ],
    },
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
    fn the_example_is_what_it_prints() {
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
