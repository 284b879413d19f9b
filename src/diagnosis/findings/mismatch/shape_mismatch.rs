//! DD104 shape-mismatch: tensors of different sizes meet.

use crate::findings::mismatch::signature::Sentences;
use crate::words;

/// DD104: calls with tensors of different sizes.
pub(crate) const SENTENCES: Sentences = Sentences {
    what: "the tensor sizes of ",
    why: |_| "Peers expect as many bytes as they send themselves: the transport aborts, or waits for the rest and never returns.",
    next: "Check what determines the number of elements of this tensor: it must be equal on all ranks of the group.",
    value: |call| Some(format!("size {}", words::size(call)?)),
};
