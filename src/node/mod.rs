//! One node of a job: starts the command, reads the black boxes of its ranks, and passes on what it
//! reads.

pub mod proc;
pub mod sys;
