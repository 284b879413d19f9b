//! DD104 shape-mismatch: sizes that must agree do not.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, Explanation, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::Situation;

static ABOUT: About = About {
    code: &catalogue::DD104,
    order: order::WIRE,
    explanation: Explanation {
        means: "Ranks made the same collective with tensors of different sizes. Gloo aborts the \
         rank with the smaller buffer (`Received data size doesn't match expected size`), and the \
         others then lose their connection; NCCL does not check sizes: it hangs, or returns \
         garbage in the tail.",
        example: "\
error[DD104] shape-mismatch: Tensors of different sizes meet as #1 of the default group: rank 0 calls all_gather float32[64, 128] at eval.py:52, rank 1 calls all_gather float32[61, 128] at eval.py:52
    group default_pg, 2 ranks · proved 0 ms after the deciding event

    ▸ rank 0   waiting 200 ms   eval.py:52      all_gather #1 float32[64, 128]
    ▸ rank 1   waiting 0 ms     eval.py:52      all_gather #1 float32[61, 128]

    why    Call #1 of a group is one collective for all its ranks, matched by order alone. Peers
           expect as many bytes as they send themselves: the transport aborts, or waits for the rest
           for ever.
    fix    Give the tensor the same number of elements on every rank: pad it, agree on the size
           first (all_reduce of the length with MAX), or gather objects instead of tensors.
    more   ddp-doctor explain DD104
",
        causes: &[
            "A tensor as long as the local batch, the number of detections or of tokens: \
             all_gather of what is not padded.",
            "Uneven inputs: one rank's validation metric meets another's gradients, both in an \
             all_reduce.",
            "The last, smaller batch on one rank (no `drop_last`), or models that differ between \
             ranks.",
        ],
        fix: &[
            "Agree on the size first: all_reduce the length with MAX, pad to it, cut after \
             gathering. Or `all_gather_object` for small things.",
            "If the two lines are not the same call of the program, one rank is a call ahead: \
             treat it as a call that only some ranks make.",
        ],
        not: &[
            "Another shape with as many elements is none for all_reduce and broadcast: the bytes \
             agree.",
            "Sizes that may differ (each rank's share of all_to_all with splits, gather of \
             objects) are not compared.",
        ],
    },
};

/// DD104: the element counts of two calls of one collective differ.
pub(super) struct ShapeMismatch;

impl Detector for ShapeMismatch {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let words = Words {
            what: "Tensors of different sizes",
            why: "Peers expect as many bytes as they send themselves: the transport aborts, or waits for the rest for ever.",
            next: "Give the tensor the same number of elements on every rank: pad it, agree on the size first (all_reduce of the length with MAX), or gather objects instead of tensors.",
        };
        divergence::drafts(
            situation,
            Mismatch::Size,
            &ABOUT,
            CertificateKind::UnsatisfiableJoin,
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
            world = 2
            events = """
            1.0 0 all_gather f32[64,128] @eval.py:52
            1.2 1 all_gather f32[61,128] @eval.py:52
            """
            "#,
        );
    }

    #[test]
    fn calls_that_differ_are_found_where_they_meet() {
        differ(
            "DD104",
            "unsatisfiable-join",
            "all_reduce f32[8] sum",
            "all_reduce f32[9] sum",
        );
    }

    #[test]
    fn calls_that_agree_are_none() {
        agree("all_reduce f32[2,4] sum", "all_reduce f32[8] sum");
    }
}
