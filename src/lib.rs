//! ddp-doctor
pub mod diagnosis;
