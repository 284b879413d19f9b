//! What the evidence lacks.

pub(crate) mod agent_silent;
pub(crate) mod clock_skew;
pub(crate) mod evidence_incomplete;
pub(crate) mod records_lost;
pub(crate) mod still_ranks;
pub(crate) mod unexplained_wait;
