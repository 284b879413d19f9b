//! DD107 root-mismatch: the src, dst or root of a collective differs.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, Explanation, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::Situation;

static ABOUT: About = About {
    code: &catalogue::DD107,
    order: order::WIRE,
    explanation: Explanation {
        means: "Ranks made the same rooted collective (broadcast, reduce, gather, scatter) and \
         disagree on its root. Each waits for, or sends to, another rank than the others think, \
         and all of them hang, or take the wrong rank's data for the right one's.",
        example: "\
error[DD107] root-mismatch: Different roots meet as #1 of the default group: rank 0 calls broadcast float32[512], root 0 at train.py:22, rank 1 calls broadcast float32[512], root 1 at train.py:22
    group default_pg, 2 ranks · proved 0 ms after the deciding event

    ▸ rank 0   waiting 200 ms   train.py:22      broadcast #1 float32[512] root 0
    ▸ rank 1   waiting 0 ms     train.py:22      broadcast #1 float32[512] root 1

    why    Call #1 of a group is one collective for all its ranks, matched by order alone. Each side
           waits for, or sends to, another rank than the other side thinks.
    fix    Pass the same src or dst on every rank. It is the global rank, not the rank in the group,
           and must not be computed from the caller's own rank.
    more   ddp-doctor explain DD107
",
        causes: &[
            "`src=rank`, or a root computed from the caller's own rank or from local state.",
            "A rank within the group given where the global rank is asked for: `src` and `dst` are \
             global, also in a subgroup.",
            "Two broadcasts in another order on some ranks.",
        ],
        fix: &[
            "Pass the same root on every rank. In a subgroup: `dist.get_global_rank(group, 0)`, or \
             the `group_src` and `group_dst` arguments of newer versions.",
            "If the root has to be elected, elect it on one rank and broadcast it from a fixed \
             one.",
        ],
        not: &[
            "Roots are compared as global ranks: `src=4` and `group_src=0` of the group [4, 5] are \
             the same.",
            "A root that could not be seen matches every other.",
        ],
    },
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
            1.0 0 broadcast f32[512] root=0 @train.py:22
            1.2 1 broadcast f32[512] root=1 @train.py:22
            """
            "#,
        );
    }

    #[test]
    fn calls_that_differ_are_found_where_they_meet() {
        differ(
            "DD107",
            "unsatisfiable-join",
            "broadcast f32[8] root=0",
            "broadcast f32[8] root=1",
        );
    }

    #[test]
    fn calls_that_agree_are_none() {
        agree("broadcast f32[8] root=1", "broadcast f32[8] root=1");
    }
}
