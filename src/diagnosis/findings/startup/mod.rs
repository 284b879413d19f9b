//! The formation of the world: who joins, with which versions, settings and devices.

pub(crate) mod backend_mismatch;
pub(crate) mod device_shared;
pub(crate) mod duplicate_rank;
pub(crate) mod environment_skew;
pub(crate) mod interface_unusable;
pub mod interfaces;
pub(crate) mod joining;
pub(crate) mod nccl_refusal;
pub(crate) mod rendezvous_incomplete;
pub(crate) mod settings;
pub(crate) mod skew;
pub(crate) mod version_skew;
pub(crate) mod world_mismatch;
