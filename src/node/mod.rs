//! One node of a job: starts the command, reads the black boxes of its ranks, and passes on what it
//! reads.

pub mod boxes;
pub mod descendants;
pub mod environment;
pub mod proc;
pub mod sys;
