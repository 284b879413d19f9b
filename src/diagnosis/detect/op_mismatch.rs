//! DD103 op-mismatch: ranks issue different collectives at one sequence number of a group.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::Situation;

static ABOUT: About = About {
    code: &catalogue::DD103,
    order: order::WIRE,
};

/// DD103: different operations at one sequence number.
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
    fn example_matches_output() {
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
    fn different_calls_are_proved_at_their_lines() {
        differ(
            "DD103",
            "unsatisfiable-join",
            "all_reduce f32[8] sum",
            "barrier",
        );
    }

    #[test]
    fn matching_calls_are_not_reported() {
        agree("all_reduce f32[8] sum", "all_reduce f32[8] sum");
    }
}
