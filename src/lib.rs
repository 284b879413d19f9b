//! Tells why a distributed training job hangs.
pub mod diagnosis;
