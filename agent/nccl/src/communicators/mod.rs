//! Communicators that this process is a rank of.
//!
//! [`creation`] records calls that create communicators and registers the results. [`unique_ids`]
//! distinguishes communicators with the same id, [`pending`] those whose handles are not known yet.
//! [`communicator`] is what is known of one, [`table`] finds it by its handle, and [`memory`]
//! records the device memory that NCCL holds for all of them.

mod communicator;
pub(crate) mod creation;
pub(crate) mod memory;
mod pending;
mod table;
mod unique_ids;

pub(crate) use communicator::{Communicator, Name};
pub(crate) use pending::find_or_bind;
pub(crate) use table::{find, remove};
pub(crate) use unique_ids::occurrence_of;
