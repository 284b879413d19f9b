//! `libddp_doctor_nccl.so`: sees the calls that a program makes of NCCL.
//!
//! It is loaded before NCCL (`LD_PRELOAD`), so that the program's calls come here first. Each is put into
//! the black box, with what NCCL's peers must agree on, and handed on to the library that the program
//! would have called. Nothing of it runs before the first such call.
//!
//! ```text
//! hooks     the functions that NCCL exports too: describe a call, hand it on
//!  └ watch    what a call is part of: groups (`ncclGroupStart`), calls that NCCL makes of itself
//!     ├ comms    which communicator a handle is, and what it is called on all ranks
//!     ├ records  into the black box
//!     │  └ sink  whose that is: this library's, or that of a framework whose calls it knows
//!     └ done     when a stream has come to it: events of the CUDA driver
//! memory    of the device, while it goes on
//! held      … and what of it NCCL itself holds
//! profiler  what NCCL itself tells, where a program's calls do not come here
//! caller    where in the program a call was made
//! real      the library that is called: found where the loader's own search does not lead
//!  └ search  … where the loader would have found it, if it had not found this one
//! abi       NCCL's types and numbers
//! ```
//!
//! What runs in a call takes no lock and no memory, and makes no system call, once a communicator and a
//! thread are known. Whatever fails here, the program's call is made.

mod abi;
mod caller;
mod comms;
mod done;
mod driver;
mod held;
pub mod hooks;
mod init;
mod memory;
mod profiler;
mod real;
mod records;
mod search;
mod sink;
mod watch;

pub use abi::UniqueId;
pub use real::address_of;
