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
//! Flight Recorder dumps ([`ddp_doctor_ingest::flight_recorder`]) and logs
//! ([`ddp_doctor_ingest::logs`]) of one job lead to one report if their contents show that they
//! belong together (`sources`). What ddp-doctor recorded itself states more than both, except for
//! the stacks that `attach` read (`requested_dumps`).

use std::collections::BTreeSet;
use std::path::PathBuf;

use ddp_doctor_proto::report::Report;
use ddp_doctor_report::timeline::Timeline;

use sources::Source;

mod below;
mod collect;
mod jobs;
mod kind;
mod pieces;
mod play;
mod read_logs;
mod record;
mod requested_dumps;
mod sources;
mod timeline;

pub use ddp_doctor_ingest::{Progress, Remark};
pub use play::engine_of_rounds;
pub use record::{Recording, last_report, record};
pub use requested_dumps::add_contents;

/// Result of an analysis.
#[derive(Debug, Default)]
pub struct Analysis {
    /// One report per job, the oldest first.
    pub reports: Vec<Report>,
    /// The timeline of each report's job, or empty ones.
    pub timelines: Vec<Timeline>,
    /// The paths with the evidence of each report, of those that were given.
    pub paths: Vec<BTreeSet<PathBuf>>,
    /// Messages about the files, apart from the findings.
    pub remarks: Vec<Remark>,
}

/// Analyzes run directories, journals, black boxes, Flight Recorder dumps and logs, in any mix.
#[must_use]
pub fn analyze(paths: &[PathBuf]) -> Analysis {
    analyze_with(paths, &Progress::default(), true)
}

/// Like [`analyze`], with progress for another thread to show. `with_timelines`: whether timelines of dumps and logs are
/// needed.
#[must_use]
pub fn analyze_with(paths: &[PathBuf], progress: &Progress, with_timelines: bool) -> Analysis {
    let mut analysis = Analysis::default();
    let mut recordings = 0;
    // Folders to which `attach` attached, with the place of their report.
    let mut attached: Vec<(BTreeSet<PathBuf>, usize)> = Vec::new();
    for source in sources::find(paths, &mut analysis.remarks, progress) {
        if let Source::Dumps(job) = &source
            && let Some((_, at)) = attached.iter().find(|(folders, _)| job.is_in(folders))
        {
            if job.is_at_rest() {
                analysis.paths[*at].extend(source.paths(paths));
                let (_, report) = source.play(&mut analysis.remarks, &mut play::Unobserved);
                requested_dumps::add(&mut analysis.reports[*at], report);
            }
            continue;
        }
        let folders = requested_dumps::folders(&source);
        let of_job = source.paths(paths);
        let remark = source.is_recorded(&analysis.timelines[..recordings]);
        if let Some(remark) = remark {
            analysis.remarks.push(remark);
            continue;
        }
        if recordings > 0 {
            analysis.remarks.extend(source.separate());
        }
        recordings += usize::from(matches!(source, Source::Recorded(_)));
        // Recordings need one in any case: it shows whether other evidence is of the same job.
        let (report, timeline) = if with_timelines || matches!(source, Source::Recorded(_)) {
            let mut collector = timeline::Collector::default();
            let (_, report) = source.play(&mut analysis.remarks, &mut collector);
            let timeline = collector.finish(&report);
            (report, timeline)
        } else {
            let (_, report) = source.play(&mut analysis.remarks, &mut play::Unobserved);
            (report, Timeline::default())
        };
        attached.push((folders, analysis.reports.len()));
        analysis.timelines.push(timeline);
        analysis.paths.push(of_job);
        analysis.reports.push(report);
    }
    analysis
}
