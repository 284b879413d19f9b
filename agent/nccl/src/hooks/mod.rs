//! The functions of NCCL that this library exports.
//!
//! `exports` defines them: each describes its call and forwards it through `calls` or `groups`,
//! which record it. `thread` distinguishes the program's calls from those that NCCL makes itself.

mod calls;
pub mod exports;
mod groups;
mod thread;
