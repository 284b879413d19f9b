//! The NCCL library that the program would have called.
//!
//! [`library`] finds it and its functions. [`loader_search`] finds it if this library has its name.
//! [`abi`] has its types and constants, and [`queries`] its version and properties of
//! communicators.

pub(crate) mod abi;
mod library;
mod loader_search;
mod queries;

pub use library::address_of;
pub(crate) use library::{Function, loaded};
pub(crate) use queries::{device_of, seat, seat_of, version, version_of};
