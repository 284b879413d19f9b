//! Trends of values over steps.

pub mod growth;
pub mod trend;
