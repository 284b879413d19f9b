//! DD106 reduce-op-mismatch: ranks reduce with different operators.

use ddp_doctor_proto::ReduceOp;
use ddp_doctor_proto::catalogue::Code;

use crate::findings::draft::Draft;
use crate::findings::mismatch::divergence::DivergedJoin;
use crate::findings::mismatch::signature::{self, Sentences};
use crate::model::JoinedCall;
use crate::situation::Situation;

const SENTENCES: Sentences = Sentences {
    what: "the reduce op of ",
    why: |_| "Each rank reduces with its own operator: the call completes, and ranks hold different results.",
    next: "Check what determines the reduce op: it must be equal on all ranks of the group.",
    value: |call| Some(format!("reduce op {}", call.known_reduce_op().name()?)),
};

/// DD106: calls with different reduce operators.
pub(crate) fn draft(
    situation: &Situation<'_>,
    code: &'static Code,
    diverged: DivergedJoin<'_>,
) -> Option<Draft> {
    let mut draft = signature::draft(situation, code, diverged, &SENTENCES);
    if diverged.join.calls.values().any(is_of_nccl) {
        draft.say(
            "If the call of c10d does not record its reduce op, the one that it passed to NCCL \
             is shown.",
        );
    }
    Some(draft)
}

/// Whether the reduce op of a call is known from NCCL alone.
fn is_of_nccl(joined: &JoinedCall) -> bool {
    let call = &joined.call;
    call.reduce_op == ReduceOp::Unspecified && call.known_reduce_op() != ReduceOp::Unspecified
}
