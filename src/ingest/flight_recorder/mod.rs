//! Dumps of PyTorch's Flight Recorder: what each process recorded of its calls, written when a wait
//! timed out.
//!
//! ```text
//! files ─► document ─► dump ─► jobs ─► groups, units ─► play ─► engine
//!          pickle, JSON        ranks   progress, calls
//! ```
//!
//! A dump shows which calls a process made and which of them are complete. It shows neither whether
//! the process waits, nor what became of it. So findings that depend on a wait are never proved.

use std::path::PathBuf;

use ddp_doctor_proto::report::Report;

use crate::ingest::{Observer, Remark};

mod document;
mod dump;
mod files;
mod groups;
mod jobs;
mod json;
mod limits;
mod messages;
mod names;
mod pickle;
mod place;
mod play;
mod rank;
#[cfg(test)]
mod tests;
mod units;

pub use jobs::Job;

/// Whether a file that begins with these bytes, decompressed, may contain dumps.
#[must_use]
pub fn is_candidate(head: &[u8]) -> bool {
    files::is_candidate(head)
}

/// Reads dumps and groups them into jobs.
#[must_use]
pub fn read(paths: &[PathBuf], remarks: &mut Vec<Remark>) -> Vec<Job> {
    jobs::of(files::read_all(paths), remarks)
}

/// Diagnoses a job.
pub(crate) fn diagnose(job: &Job, observer: &mut dyn Observer) -> Report {
    let play = play::Play::of(job);
    let engine = play.run(observer);
    limits::limited(engine.report(), &play)
}
