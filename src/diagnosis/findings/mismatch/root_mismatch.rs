//! DD107 root-mismatch: ranks name different roots for one call.

use crate::findings::mismatch::signature::Sentences;

/// DD107: calls with different roots.
pub(crate) const SENTENCES: Sentences = Sentences {
    what: "the root of ",
    why: |_| "Each side waits for, or sends to, a rank that the other side does not expect.",
    next: "Check how src or dst is computed: all ranks of the group must pass the same global rank, not one that is derived from their own rank.",
    value: |call| Some(format!("root {}", call.root?)),
};
