//! The place of the terminal screens: no screen is there yet.
//!
//! What it may depend on stands already: the messages of `ddp-doctor-proto`, and nothing of the root
//! package. A test of the workspace holds it to that.
