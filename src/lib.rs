//! The program `ddp-doctor`: what watches a distributed training job and says why it hangs.
//!
//! [`cli`] turns arguments into one of the commands. [`node`] starts a job and reads the black
//! boxes of its ranks; [`coordinator`] takes what nodes read and feeds it, through
//! [`evidence::decode`], to the engine in [`diagnosis`]; [`report`] puts what the engine found into
//! words and files. [`demo`] has jobs with a planted fault to try it all on.

pub mod cli;
pub mod coordinator;
pub mod demo;
pub mod diagnosis;
pub mod evidence;
pub mod files;
pub mod node;
pub mod postmortem;
pub mod report;

// Unit tests run scenarios with the harness of the integration tests, which speaks of this crate by
// its name.
#[cfg(test)]
extern crate self as ddp_doctor;
