//! DD105 dtype-mismatch: tensors of different dtypes meet.

use std::collections::BTreeSet;

use ddp_doctor_proto::catalogue::Code;

use crate::findings::draft::Draft;
use crate::findings::mismatch::divergence::{DivergedJoin, has_misfit_totals};
use crate::findings::mismatch::signature::{self, Sentences};
use crate::model::Join;
use crate::situation::Situation;

const SENTENCES: Sentences = Sentences {
    what: "the dtype of ",
    why: on_bytes,
    next: "Check where the tensor gets its dtype: from a literal, an empty list, a mixed-precision switch, or a default that differs between ranks.",
    value: |call| Some(format!("dtype {}", call.dtype.name()?)),
};

/// DD105: calls with tensors of different dtypes. Sizes that do not match precede them.
pub(crate) fn draft(
    situation: &Situation<'_>,
    code: &'static Code,
    diverged: DivergedJoin<'_>,
) -> Option<Draft> {
    if has_misfit_totals(situation, diverged.divergence) {
        return None;
    }
    Some(signature::draft(situation, code, diverged, &SENTENCES))
}

/// What becomes of tensors of different dtypes, by their byte counts.
fn on_bytes(join: &Join) -> &'static str {
    let calls = join.calls.values();
    let bytes = calls.map(|it| it.call.numel?.checked_mul(it.call.dtype.size()?));
    match bytes.collect::<Option<BTreeSet<u64>>>() {
        Some(bytes) if bytes.len() > 1 => {
            "The byte counts differ: ranks wait for bytes that never arrive, or continue with a wrong result."
        }
        Some(_) => {
            "The byte counts agree: the bytes of one dtype are interpreted as the other, and the job continues with a wrong result."
        }
        None => {
            "The bytes of one dtype are interpreted as the other: if the byte counts agree, the job continues with a wrong result."
        }
    }
}
