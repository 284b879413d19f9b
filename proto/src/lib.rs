//! Formats shared by the parts of ddp-doctor.
//!
//! Everything that crosses a process boundary is defined here and nowhere else: the vocabulary
//! ([`vocabulary`]), the black-box file ([`blackbox`]), the gRPC messages ([`v1`], feature
//! `messages`; the services with feature `grpc`), the JSON report ([`report`]) and what viewers of a
//! running job receive ([`viewer`]; both with feature `report`).
//!
//! Without features the crate has no dependencies: that part runs inside training processes. The
//! crate does no I/O and has no `unsafe` code.
//!
//! # Compatibility
//!
//! Numbers of enum values, field numbers, offsets and names are never reused and never change their
//! meaning. A reader of black boxes reads every version that a release ever wrote (`tests/golden`).

pub mod blackbox;
#[cfg(feature = "report")]
pub mod catalogue;
#[cfg(feature = "report")]
mod credentials;
#[cfg(feature = "report")]
pub mod dump;
#[cfg(feature = "report")]
pub mod facts;
#[cfg(feature = "report")]
mod place;
#[cfg(feature = "report")]
pub mod report;
mod version;
#[cfg(feature = "report")]
pub mod viewer;
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

#[cfg(feature = "report")]
pub use credentials::without_credentials;
pub use version::VERSION;
pub use vocabulary::{
    BlockKind, DType, ExceptionKind, GpuSlowdown, GuardForm, GuardSubject, NoteKind, Op,
    ParameterFact, PortKind, ProcessState, RecordKind, ReduceOp, Spending,
};
