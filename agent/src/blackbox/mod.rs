//! The black box: what a training process leaves of itself, whatever becomes of it.
//!
//! [`Writer`] lives in the process and never waits for anything; [`Reader`] follows a box from
//! outside, or reads one that a dead process left. The layout they share is
//! [`ddp_doctor_proto::blackbox`].

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

pub use followed::{FOLLOWED, FollowedBy, Following};
pub use open::OpenError;
pub use place::{BOX_DIR, BoxName, EXTENSION, JOB, NoBox, Place, RUN_DIR, shared_memory};
pub use reader::{
    Frontier, GroupCreation, Identity, Inside, Item, ReadRecord, Reader, ThreadState,
};
pub use writer::{
    Call, CreateError, Creation, Forward, Options, Outer, Parameters, Seat, Standing, Writer,
};

/// Longest file, in words, that is taken for a black box: 256 MiB.
const MAX_WORDS: usize = 32 << 20;
/// Most strings.
const MAX_STRINGS: usize = 1 << 20;
/// Most sites, and most groups.
const MAX_ENTRIES: usize = 0xffff;
/// Most members of a group.
const MAX_MEMBERS: usize = 1 << 17;
