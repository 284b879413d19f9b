//! Breaches of DDP's contract with its ranks.

pub(crate) mod breach;
pub(crate) mod ddp_bypassed;
pub(crate) mod model_mismatch;
pub(crate) mod needless_unused_search;
pub(crate) mod no_sync_mismatch;
pub(crate) mod ready_twice;
pub(crate) mod replica_divergence;
pub(crate) mod unused_parameters;
pub(crate) mod unused_parameters_differ;
