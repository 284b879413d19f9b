//! `libddp_doctor_nccl.so`: records the NCCL calls of a program.
//!
//! The library is loaded before NCCL (`LD_PRELOAD`), so the program's calls reach it first. It
//! records each call in the black box, with the arguments that ranks must agree on, and forwards
//! the call to the library that the program would have called. It runs no code before the first
//! such call.
//!
//! ```text
//! hooks     exported NCCL functions: describe a call and forward it
//!  └ watch    context of a call: groups (`ncclGroupStart`) and calls that NCCL makes to itself
//!     ├ comms    communicators by handle, with their names
//!     ├ records  records in the black box
//!     │  └ sink  the box: this library's, or that of a framework whose calls are recorded
//!     └ done     completion of calls on their streams: CUDA events
//! memory    memory of the device
//! held      device memory held by NCCL
//! profiler  NCCL's profiler interface, if a program's calls do not pass through the hooks
//! caller    return addresses of calls
//! real      the NCCL library that is called, if the loader's search order does not lead to it
//!  └ search  where the loader would have found it without this library
//! abi       NCCL's types and constants
//! ```
//!
//! Once a communicator and a thread are known, recording a call takes no lock, allocates nothing
//! and makes no system call. If recording fails, the program's call is made nevertheless.

mod abi;
mod caller;
mod comm_memory;
mod comms;
mod done;
mod driver;
mod guarded;
pub mod hooks;
mod ids;
mod init;
mod memory;
mod own_box;
mod pending;
mod profiler;
mod queries;
mod real;
mod records;
mod search;
mod sink;
mod watch;

pub use abi::UniqueId;
pub use real::address_of;
