//! Diagnosis of a job from the evidence that it left behind.
//!
//! Paths lead to evidence (`collect`): journals, which the node follower wrote, and black boxes,
//! which the ranks wrote. Evidence is grouped into jobs (`jobs`) and passed to the engine as a live
//! node would have sent it (`play`).
//!
//! A journal that contains the end of its job yields the report of the live run, except for the
//! times of detection. If the journal is incomplete or missing, black boxes contain what their
//! ranks recorded up to their end. The end of a rank and the duration of its last wait are then
//! known only as far as they were observed; the report states what was not observed.

use std::path::PathBuf;

use ddp_doctor_proto::report::Report;

use crate::ingest::flight_recorder;

mod collect;
mod jobs;
mod play;
mod record;

pub use record::{Recording, record};

/// Result of an analysis.
#[derive(Debug, Default)]
pub struct Analysis {
    /// One report per job, the oldest first.
    pub reports: Vec<Report>,
    /// Messages about the files, apart from the findings.
    pub remarks: Vec<Remark>,
}

/// A message about a file: mostly why it was skipped, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The file.
    pub path: PathBuf,
    /// The message.
    pub text: String,
}

impl std::fmt::Display for Remark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.text)
    }
}

/// Analyzes run directories, journals, black boxes and Flight Recorder dumps, in any mix.
#[must_use]
pub fn analyze(paths: &[PathBuf]) -> Analysis {
    let mut found = collect::collect(paths);
    let mut remarks = found.remarks.clone();
    let dumps = std::mem::take(&mut found.dumps);
    let mut reports: Vec<Report> = jobs::of(found, &mut remarks)
        .into_iter()
        .map(|job| play::play(job, &mut remarks, &mut |_, _, _| {}).report())
        .collect();
    let dumped = flight_recorder::read(&dumps, &mut remarks);
    reports.extend(dumped.iter().map(flight_recorder::diagnose));
    Analysis { reports, remarks }
}
