//! Tells why a distributed training job hangs.
pub mod diagnosis;
pub mod report;

// Unit tests run scenarios with the harness of the integration tests, which speaks of this crate by
// its name.
#[cfg(test)]
extern crate self as ddp_doctor;
