//! Time that ranks lose.

pub(crate) mod coarse;
pub(crate) mod slow_communication;
pub(crate) mod straggler;
pub(crate) mod sync_bound;
