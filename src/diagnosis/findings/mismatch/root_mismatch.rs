//! DD107 root-mismatch: ranks name different roots for one call.

use ddp_doctor_proto::catalogue::Code;

use crate::findings::draft::Draft;
use crate::findings::mismatch::divergence::DivergedJoin;
use crate::findings::mismatch::signature::{self, Sentences};
use crate::situation::Situation;

const SENTENCES: Sentences = Sentences {
    what: "the root of ",
    why: |_| "Each side waits for, or sends to, a rank that the other side does not expect.",
    next: "Check how src or dst is computed: all ranks of the group must pass the same global rank, not one that follows from their own.",
    value: |call| Some(format!("root {}", call.root?)),
};

/// DD107: calls with different roots.
pub(crate) fn draft(
    situation: &Situation<'_>,
    code: &'static Code,
    met: DivergedJoin<'_>,
) -> Option<Draft> {
    Some(signature::draft(situation, code, met, &SENTENCES))
}
