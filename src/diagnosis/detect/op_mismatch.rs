//! DD103 op-mismatch: different collectives meet at one sequence number.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, Explanation, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::Situation;

static ABOUT: About = About {
    code: &catalogue::DD103,
    order: order::WIRE,
    explanation: Explanation {
        means: "Collectives are matched by order alone: the 24th call of a group is one operation \
         for all its ranks. Here ranks made different ones. Neither side gets the messages that it \
         waits for, so all of them hang, or the transport fails on a size that makes no sense. The \
         lines that are named are where the ranks parted, or soon after it: the call that one rank \
         has too many or too few may stand before.",
        example: "\
error[DD103] op-mismatch: Different collectives meet as #1 of the default group: rank 0 calls all_reduce float32[2762] at train.py:19, rank 1 calls barrier at train.py:41
    group default_pg, 2 ranks · step 19 · proved 0 ms after the deciding event

    ▸ rank 0   waiting 500 ms   train.py:19      all_reduce #1 float32[2762]
    ▸ rank 1   waiting 0 ms     train.py:41      barrier #1

    why    Call #1 of a group is one collective for all its ranks, matched by order alone. Different
           operations exchange different messages: neither side can complete.
    cause  uneven inputs: one rank ran out of batches before the others (supported)
    fix    Give every rank the same number of batches (DistributedSampler(…, drop_last=True)), or
           run the loop inside Join([model]).
           Make every rank of the group issue the same collectives in the same order. Look at the
           two lines: the call that only some ranks reach has to be reached by all of them, or by
           none.
    more   ddp-doctor explain DD103
",
        causes: &[
            "Uneven inputs: one rank has left the loop and is at the next barrier or metric, while \
             another still computes gradients.",
            "A call under a condition on the rank, or on local state: `if rank == 0: \
             dist.barrier()`, a metric reduced on one rank only.",
            "An evaluation through the DDP module on one rank: its forward broadcasts buffers.",
            "An exception that one rank caught and went on from, with one call fewer than the \
             others.",
        ],
        fix: &[
            "Look at the two lines: the call that only some ranks reach has to be reached by all, \
             or by none.",
            "Evaluate on one rank through `model.module`, in eval mode; reduce metrics on all \
             ranks, log on one.",
            "Uneven inputs: `DistributedSampler(…, drop_last=True)`, or `with Join([model]):`.",
        ],
        not: &[
            "Calls of one operation from different lines are normal, and none.",
            "`all_gather` and `all_gather_into_tensor`, and other variants that interoperate, are \
             one operation.",
            "Between two ranks there is no majority: both are named, and either may be the one \
             that is wrong.",
        ],
    },
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
            1.0 * step 19
            1.0 0 all_reduce hidden f32[2762] @train.py:19
            1.5 1 input-ended
            1.5 1 barrier @train.py:41
            """
            "#,
        );
    }

    #[test]
    fn calls_that_differ_are_found_where_they_meet() {
        differ(
            "DD103",
            "unsatisfiable-join",
            "all_reduce f32[8] sum",
            "barrier",
        );
    }

    #[test]
    fn calls_that_agree_are_none() {
        agree("all_reduce f32[8] sum", "all_reduce f32[8] sum");
    }
}
