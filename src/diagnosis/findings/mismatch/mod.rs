//! Calls that meet and cannot match.

pub(crate) mod call_order;
pub(crate) mod divergence;
pub(crate) mod dtype_mismatch;
pub(crate) mod op_mismatch;
pub(crate) mod reduce_op_mismatch;
pub(crate) mod root_mismatch;
pub(crate) mod sequence_slip;
pub(crate) mod shape_mismatch;
pub(crate) mod signature;
pub(crate) mod split_mismatch;
pub(crate) mod totals;
