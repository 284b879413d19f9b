//! DD106 reduce-op-mismatch: reduction operators differ.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, Explanation, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::Situation;

static ABOUT: About = About {
    code: &catalogue::DD106,
    order: order::WIRE,
    explanation: Explanation {
        means: "Ranks made the same reduction with different operators. Every rank reduces its \
         share with its own one, so the call completes and the result is partly a sum and partly a \
         maximum, say: ranks hold different values that should be equal, and no error is raised.",
        example: "\
error[DD106] reduce-op-mismatch: Different reduction operators meet as #1 of the default group: ranks 0 and 1 call all_reduce float32[1] sum at train.py:48, rank 2 calls all_reduce float32[1] max at train.py:48
    group default_pg, 3 ranks · proved 0 ms after the deciding event

      rank 0, 1   waiting 200 ms   train.py:48      all_reduce #1 float32[1] sum
    ▸ rank 2      waiting 0 ms     train.py:48      all_reduce #1 float32[1] max

    why    Call #1 of a group is one collective for all its ranks, matched by order alone. Each rank
           reduces with its own operator: the call completes, and ranks hold different results.
           Rank 2 stands apart from 2 others that agree.
    fix    Pass the same reduce op on every rank.
    more   ddp-doctor explain DD106
",
        causes: &[
            "The operator is computed from local state: `op = ReduceOp.SUM if n else \
             ReduceOp.MAX`.",
            "Two reductions in another order on some ranks: the sum of one meets the maximum of \
             the other.",
        ],
        fix: &[
            "Pass the same operator on every rank; decide on it from what all ranks share.",
            "If the lines differ, make the two reductions in one order everywhere.",
            "Results since this call are not to be trusted: go back to a checkpoint from before.",
        ],
        not: &[
            "DDP's own gradient reductions carry no operator that can be seen: they match every \
             other.",
            "AVG on one rank and SUM on another is a mismatch, even if the program divides \
             afterwards.",
        ],
    },
};

/// DD106: the reduction operators of two calls of one collective differ.
pub(super) struct ReduceOpMismatch;

impl Detector for ReduceOpMismatch {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let words = Words {
            what: "Different reduction operators",
            why: "Each rank reduces with its own operator: the call completes, and ranks hold different results.",
            next: "Pass the same reduce op on every rank.",
        };
        divergence::drafts(
            situation,
            Mismatch::ReduceOp,
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
            1.2 2 all_reduce f32[1] max @train.py:48
            """
            "#,
        );
    }

    #[test]
    fn calls_that_differ_are_found_where_they_meet() {
        differ(
            "DD106",
            "contradiction",
            "all_reduce f32[8] sum",
            "all_reduce f32[8] max",
        );
    }

    #[test]
    fn calls_that_agree_are_none() {
        agree("all_reduce f32[8] sum", "all_reduce f32[8]");
    }
}
