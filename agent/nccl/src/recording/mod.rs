//! Records of NCCL calls in the black box of the process.
//!
//! [`black_box`] is the open box: this library's ([`mod@own_box`]), or that of the C API library if a
//! framework's calls are recorded too. [`call_records`] writes the records of a call, and
//! [`launches`] numbers and sorts the calls of a group.

pub(crate) mod black_box;
pub(crate) mod call_records;
pub(crate) mod launches;
mod own_box;

pub(crate) use own_box::{open_box, own_box};
