//! What happened to a job, out of what it left behind.
//!
//! Paths lead to evidence (`collect`): journals, which the watch of a node wrote, and black boxes,
//! which the ranks themselves wrote. What belongs together makes a job (`jobs`), and its evidence
//! is told to the engine as a live node would have told it (`play`).
//!
//! A journal that tells the end of its job gives the report of the live run, but for the times of
//! detection. Where it breaks off, or there is none, black boxes give what their ranks recorded up to
//! their end. How a rank ended and how long it had been where it was is then known only as far as
//! somebody saw it; the report says what nobody saw.

use std::path::PathBuf;

use ddp_doctor_proto::report::Report;

mod collect;
mod jobs;
mod play;
mod record;

pub use record::{Recording, record};

/// What could be made of some evidence.
#[derive(Debug, Default)]
pub struct Analysis {
    /// A report for each job, the oldest first.
    pub reports: Vec<Report>,
    /// What has to be said of the files, apart from the findings.
    pub remarks: Vec<Remark>,
}

/// Something about a file: mostly why it was left out, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// Which.
    pub path: PathBuf,
    /// What about it.
    pub text: String,
}

impl std::fmt::Display for Remark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.text)
    }
}

/// Analyzes run directories, journals and black boxes, in any mix.
#[must_use]
pub fn analyze(paths: &[PathBuf]) -> Analysis {
    let found = collect::collect(paths);
    let mut remarks = found.remarks.clone();
    let reports = jobs::of(found, &mut remarks)
        .into_iter()
        .map(|job| play::play(job, &mut remarks, &mut |_, _, _| {}).report())
        .collect();
    Analysis { reports, remarks }
}
