//! Sends records to a coordinator: connection, queue, and the process that reports ranks
//! which `run` did not start.

pub mod attach;
pub mod journal;
pub mod outbox;
pub mod reporter;
