//! What findings about stalls share: who waits where, who is absent and why, and cycles of waits.

pub(crate) mod absent;
pub(crate) mod cycle;
pub(crate) mod dumped;
pub(crate) mod idle;
pub(crate) mod lower_layer;
pub(crate) mod message;
pub(crate) mod termination;
pub(crate) mod timeout;
pub(crate) mod unexplained;
