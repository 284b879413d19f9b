//! `libddp_doctor_nccl.so`: records the NCCL calls of a program.
//!
//! The library is loaded before NCCL (`LD_PRELOAD`), so the program's calls reach it first. It
//! records each call in the black box, with the arguments that ranks must agree on, and forwards
//! the call to the library that the program would have called. It runs no code before the first
//! such call.
//!
//! ```text
//! hooks          exported NCCL functions: describe a call, record it and forward it
//! profiler       NCCL's profiler interface, if a program's calls do not pass through the hooks
//!  └ communicators  their creation, names and handles, and the memory that NCCL holds for them
//!     └ recording      records in the black box: this library's, or that of a framework
//! cuda           the CUDA driver: completion of calls on their streams, memory of the device
//! nccl           the NCCL library that is called: where it is, its types, queries to it
//! ```
//!
//! Once a communicator and a thread are known, recording a call takes no lock, allocates nothing
//! and makes no system call. If recording fails, the program's call is made nevertheless.

mod communicators;
mod cuda;
pub mod hooks;
mod nccl;
mod panic_guard;
mod profiler;
mod recording;
mod return_address;

pub use nccl::abi::UniqueId;
pub use nccl::address_of;
