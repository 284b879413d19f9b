//! Time that ranks lose.

pub(crate) mod coarse;
pub(crate) mod slow_communication;
pub(crate) mod straggler;
pub(crate) mod straggler_compute;
pub(crate) mod straggler_host;
pub(crate) mod straggler_input;
pub(crate) mod sync_bound;
