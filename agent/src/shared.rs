//! Functions that one of the project's libraries offers to another in the same process, so that
//! both write the same black box.
//!
//! The library of the C API records what a framework does; the library preloaded before NCCL
//! records the NCCL calls below. The latter writes to the box of the former. Both must come from
//! one build, which [`Services::version`] checks.

use std::ffi::c_void;

use ddp_doctor_proto::blackbox::Call;

/// Version of the layout of the types in this module.
pub const VERSION: u32 = 4;

/// Name of the function that returns the address of the [`Services`].
pub const SYMBOL: &std::ffi::CStr = c"ddp_doctor_services";

/// The thread is in the user's own code.
pub const INSIDE_NOTHING: u64 = 0;
/// The thread is in a wait, or in a call that contains others. All other values are ids of calls.
pub const INSIDE_OTHER: u64 = u64::MAX;

/// Bytes that live as long as the function call that they are passed to.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Bytes {
    /// Address of the bytes; may be null if `length` is 0.
    pub data: *const c_void,
    /// Number of bytes.
    pub length: usize,
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self { data: bytes.as_ptr().cast(), length: bytes.len() }
    }
}

/// A communicator that exists or is about to be created.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Named {
    /// Number of [`Op::NewGroup`] or [`Op::SplitGroup`], for a communicator about to be created.
    ///
    /// [`Op::NewGroup`]: ddp_doctor_proto::Op::NewGroup
    /// [`Op::SplitGroup`]: ddp_doctor_proto::Op::SplitGroup
    pub op: u8,
    /// The creation blocks until all ranks take part.
    pub takes_all: bool,
    /// Name of the communicator, the same on all ranks.
    pub name: Bytes,
    /// Name given by the program.
    pub description: Bytes,
    /// This process's rank in it.
    pub rank: u32,
    /// Number of its ranks.
    pub size: u32,
    /// Return address of the call; 0: unknown.
    pub returns_to: usize,
}

/// The functions. Without an open box they do nothing.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the functions are those of `blackbox::Writer`")]
pub struct Services {
    /// [`VERSION`]
    pub version: u32,
    /// Identifies the open box within the process; 0: there is none.
    pub current: extern "C" fn() -> usize,
    /// [`INSIDE_NOTHING`], [`INSIDE_OTHER`] or the id of a call.
    pub inside: extern "C" fn() -> u64,
    pub lower_call: extern "C" fn(call: &Call, ranks: u32),
    pub within: extern "C" fn(function: Bytes),
    pub follow: extern "C" fn(call: u64) -> bool,
    pub part_done: extern "C" fn(call: u64),
    pub communicator: extern "C" fn(communicator: &Named) -> u32,
    pub creating: extern "C" fn(communicator: &Named) -> u64,
    pub issued_natively: extern "C" fn(call: &Call, returns_to: usize) -> u64,
    pub returned: extern "C" fn(call: u64, followed: bool),
    pub completed: extern "C" fn(call: u64),
    pub destroyed: extern "C" fn(group: u32),
    pub exception: extern "C" fn(text: Bytes),
    pub setting: extern "C" fn(name: Bytes, value: Bytes),
    pub note: extern "C" fn(kind: u8, text: Bytes),
    /// Bytes that NCCL holds on a device.
    pub held_by_nccl: extern "C" fn(device: u32, bytes: u64),
}
