//! DD107 root-mismatch: ranks pass different `src` or `dst` ranks to a rooted collective.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::CertificateKind;

use super::divergence::{self, Words};
use super::{About, Detector, Draft, order};
use crate::diagnosis::align::Mismatch;
use crate::diagnosis::situation::Situation;

static ABOUT: About = About {
    code: &catalogue::DD107,
    order: order::WIRE,
};

/// DD107: calls of one collective with different roots.
pub(super) struct RootMismatch;

impl Detector for RootMismatch {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let words = Words {
            what: "Different roots",
            why: "Each side waits for, or sends to, a rank that the other side does not expect.",
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
    fn example_matches_output() {
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
    fn different_calls_are_proved_at_their_lines() {
        differ(
            "DD107",
            "unsatisfiable-join",
            "broadcast f32[8] root=0",
            "broadcast f32[8] root=1",
        );
    }

    #[test]
    fn matching_calls_are_not_reported() {
        agree("broadcast f32[8] root=1", "broadcast f32[8] root=1");
    }
}
