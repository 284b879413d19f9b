//! What ddp-doctor's parts say to each other.
//!
//! Everything that crosses a process boundary is laid down here and nowhere else: the words
//! ([`vocabulary`]), the black-box file ([`blackbox`]), the gRPC messages ([`v1`], feature
//! `messages`; the services with feature `grpc`) and the JSON report ([`report`], feature
//! `report`). Parts never share a layout by agreement; they share this crate.
//!
//! Without features the crate depends on nothing: that is the half which lives inside training
//! processes. There is no I/O and no `unsafe` in it.
//!
//! # Compatibility
//!
//! Numbers of enum values, field numbers, offsets and names are never reused or changed in meaning.
//! A reader of black boxes reads every version that a release ever wrote (`tests/golden`).

pub mod blackbox;
#[cfg(feature = "report")]
pub mod catalogue;
#[cfg(feature = "report")]
mod convert;
#[cfg(feature = "report")]
pub mod dump;
#[cfg(feature = "report")]
pub mod report;
pub mod vocabulary;
#[cfg(feature = "report")]
pub mod words;

#[cfg(feature = "messages")]
mod generated;

/// Messages (and, with feature `grpc`, services) of protocol version 1.
#[cfg(feature = "messages")]
pub mod v1 {
    pub use crate::generated::*;
}

pub use vocabulary::{
    DType, ExceptionKind, GuardForm, GuardSubject, NoteKind, Op, ParameterFact, ProcessState,
    RecordKind, ReduceOp, Spending,
};

/// Version of this build, as it appears in reports, black boxes and messages.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
