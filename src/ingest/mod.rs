//! Readers of evidence that other programs wrote.

pub mod flight_recorder;
