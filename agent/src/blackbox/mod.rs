//! The black box: the record that a training process leaves, however it ends.
//!
//! [`Writer`] is used in the process and never blocks. [`Reader`] follows a box from outside or
//! reads the box of an ended process. Both share the layout in [`ddp_doctor_proto::blackbox`].

mod faults;
mod followed;
mod map;
mod nesting;
mod open;
mod place;
mod protocol;
mod reader;
mod recent;
mod sites;
#[cfg(test)]
mod tests;
mod text;
mod threads;
mod writer;

pub use ddp_doctor_proto::blackbox::Call;
pub(crate) use faults::reset_after_fork;
pub use followed::{FOLLOWED, FollowedBy, Following};
pub use open::OpenError;
pub use place::{BOX_DIR, BoxName, EXTENSION, JOB, NoBox, Place, RUN_DIR};
pub use reader::{
    Frontier, GroupCreation, Identity, Inside, Item, ReadRecord, Reader, ThreadState,
};
pub use writer::{
    CreateError, Creation, Forward, Options, Outer, Parameters, Seat, TransferProgress, Writer,
};

/// Maximum size of a black box in words: 256 MiB.
const MAX_WORDS: usize = 32 << 20;
/// Maximum number of strings.
const MAX_STRINGS: usize = 1 << 20;
/// Maximum number of sites, and of groups.
const MAX_ENTRIES: usize = 0xffff;
/// Maximum number of members of a group.
const MAX_MEMBERS: usize = 1 << 17;
