//! DD104 shape-mismatch: tensors of different sizes meet.

use ddp_doctor_proto::catalogue::Code;

use crate::findings::draft::Draft;
use crate::findings::mismatch::divergence::DivergedJoin;
use crate::findings::mismatch::signature::{self, Sentences};
use crate::situation::Situation;
use crate::words;

const SENTENCES: Sentences = Sentences {
    what: "the tensor sizes of ",
    why: |_| "Peers expect as many bytes as they send themselves: the transport aborts, or waits for the rest and never returns.",
    next: "Check what decides on the number of elements of this tensor: it must be equal on all ranks of the group.",
    value: |call| Some(format!("size {}", words::size(call)?)),
};

/// DD104: calls with tensors of different sizes.
pub(crate) fn draft(
    situation: &Situation<'_>,
    code: &'static Code,
    met: DivergedJoin<'_>,
) -> Option<Draft> {
    Some(signature::draft(situation, code, met, &SENTENCES))
}
