//! DD103 op-mismatch: ranks make different calls as the same call of a group.

use crate::findings::mismatch::signature::Sentences;

/// DD103: calls of different operations.
pub(crate) const SENTENCES: Sentences = Sentences {
    what: "",
    why: |_| "Different operations exchange different messages: neither side can complete.",
    next: "Check which operation the line calls on each rank, and what determines it.",
    value: |_| None,
};
