//! One node of a job: starts the command, reads the black boxes of its ranks, and sends their
//! records to the coordinator and to the journal.
//!
//! A failure here never ends the job: it is one line for the user, and less evidence for the
//! diagnosis.

pub mod blocked;
pub mod flight_recorder;
pub mod follow;
pub mod launch;
pub mod live;
pub mod sample;
pub mod source_reader;
pub mod stack_reader;
pub mod timing;
pub mod upload;
