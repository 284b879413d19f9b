//! Committed output of the protobuf compiler; `tests/codegen.rs` regenerates and compares it.

#[rustfmt::skip]
#[expect(
    missing_docs,
    reason = "not written by hand"
)]
mod messages;
pub use messages::*;

#[cfg(feature = "grpc")]
#[rustfmt::skip]
#[expect(unused_qualifications, clippy::allow_attributes, reason = "not written by hand")]
mod services {
    use super::messages::*;

    include!("generated/services.rs");
}
#[cfg(feature = "grpc")]
pub use services::*;
