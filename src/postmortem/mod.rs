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
//!
//! Logs and stacks as text ([`crate::ingest::logs`]) are evidence of a job of their own: they prove
//! nothing, and contain what ranks printed.

use std::path::PathBuf;

use ddp_doctor_proto::report::Report;

use crate::ingest::{flight_recorder, logs};
use crate::report::timeline::Timeline;

mod collect;
mod jobs;
mod play;
mod record;
mod timeline;

pub use crate::ingest::Remark;
pub use record::{Recording, record};

/// Result of an analysis.
#[derive(Debug, Default)]
pub struct Analysis {
    /// One report per job, the oldest first.
    pub reports: Vec<Report>,
    /// The timeline of each report's job.
    pub timelines: Vec<Timeline>,
    /// Messages about the files, apart from the findings.
    pub remarks: Vec<Remark>,
}

/// Analyzes run directories, journals, black boxes, Flight Recorder dumps and logs, in any mix.
#[must_use]
pub fn analyze(paths: &[PathBuf]) -> Analysis {
    let mut found = collect::collect(paths);
    let mut analysis = Analysis {
        remarks: found.remarks.clone(),
        ..Analysis::default()
    };
    let dumps = std::mem::take(&mut found.dumps);
    for job in jobs::of(found, &mut analysis.remarks) {
        let claims = logs::Claims::of(&job.logs);
        let mut collector = timeline::Collector::default();
        let mut report = play::play(job, &mut analysis.remarks, &mut collector).report();
        claims.limit(&mut report);
        analysis.timelines.push(collector.finish(&report));
        analysis.reports.push(report);
    }
    for job in flight_recorder::read(&dumps, &mut analysis.remarks) {
        let mut collector = timeline::Collector::default();
        let report = flight_recorder::diagnose(&job, &mut collector);
        analysis.timelines.push(collector.finish(&report));
        analysis.reports.push(report);
    }
    analysis
}
