//! Calls that meet and cannot match.

pub(crate) mod call_order;
pub(crate) mod divergence;
pub(crate) mod sequence_slip;
pub(crate) mod signature;
pub(crate) mod splits;
pub(crate) mod totals;
