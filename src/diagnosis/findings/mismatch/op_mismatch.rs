//! DD103 op-mismatch: ranks make different calls as the same call of a group.

use ddp_doctor_proto::catalogue::Code;

use crate::findings::draft::Draft;
use crate::findings::mismatch::divergence::DivergedJoin;
use crate::findings::mismatch::signature::{self, Sentences};
use crate::situation::Situation;

const SENTENCES: Sentences = Sentences {
    what: "",
    why: |_| "Different operations exchange different messages: neither side can complete.",
    next: "Check which operation the line calls on each rank, and what decides on it.",
    value: |_| None,
};

/// DD103: calls of different operations.
pub(crate) fn draft(
    situation: &Situation<'_>,
    code: &'static Code,
    met: DivergedJoin<'_>,
) -> Option<Draft> {
    Some(signature::draft(situation, code, met, &SENTENCES))
}
