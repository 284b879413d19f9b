//! Converts evidence into the updates that a viewer of the live job would have received.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use ddp_doctor_diagnosis::Engine;
use ddp_doctor_ingest::{Observer, logs};
use ddp_doctor_proto::report::{Report, Timestamp};
use ddp_doctor_proto::viewer::Update;
use ddp_doctor_report::viewer::{Detail, Sent};

use super::play::Unobserved;
use super::sources::{self, Source};
use super::{Progress, Remark};

/// Minimum time between two updates, unless the number of findings changes.
const EVERY: Duration = Duration::from_millis(250);
/// The interval of updates doubles each time that this many bytes are full.
const ROOM: usize = 32 << 20;

/// A recorded job, for playback.
#[derive(Debug)]
pub struct Recording {
    /// Updates for a viewer, in order. The last one contains the final state.
    pub updates: Vec<Update>,
    /// The final report.
    pub report: Report,
    /// The paths with its evidence, of those that were given.
    pub paths: BTreeSet<PathBuf>,
}

/// Records the newest job in the evidence; `None`: there is none. Messages about the files are added to
/// `remarks`.
#[must_use]
pub fn record(
    paths: &[PathBuf],
    remarks: &mut Vec<Remark>,
    progress: &Progress,
) -> Option<Recording> {
    let source = newest(paths, remarks, progress)?;
    let paths = source.paths(paths);
    let mut recorder = Recorder {
        claims: source.claims(),
        only_last: matches!(source, Source::Dumps(_)),
        ..Recorder::default()
    };
    let (engine, report) = source.play(remarks, &mut recorder);
    let last = recorder.evaluated;
    recorder.take(&report, &Detail::new(engine.model(), last), last, true);
    Some(Recording { updates: recorder.updates, report, paths })
}

/// The final report on the job that [`record`] records, and the paths with its evidence.
#[must_use]
pub fn last_report(
    paths: &[PathBuf],
    remarks: &mut Vec<Remark>,
) -> Option<(Report, BTreeSet<PathBuf>)> {
    let source = newest(paths, remarks, &Progress::default())?;
    let paths = source.paths(paths);
    Some((source.play(remarks, &mut Unobserved).1, paths))
}

/// The newest job: of those that ddp-doctor recorded, if there are any.
fn newest(paths: &[PathBuf], remarks: &mut Vec<Remark>, progress: &Progress) -> Option<Source> {
    let mut found = sources::find(paths, remarks, progress);
    let at = (0..found.len()).max_by_key(|&at| found[at].precedence())?;
    let others = found.len() - 1;
    if others > 0 {
        let (other, is) = if others == 1 { ("job", "is") } else { ("jobs", "are") };
        let text = format!(
            "{others} more {other} {is} not shown: pass the path of one, or use ddp-doctor analyze"
        );
        let path = paths.first().cloned().unwrap_or_default();
        remarks.push(Remark { path, text });
    }
    Some(found.swap_remove(at))
}

#[derive(Default)]
struct Recorder {
    /// What reports may claim.
    claims: logs::Claims,
    /// Only the final report is limited to what the evidence shows.
    only_last: bool,
    sent: Sent,
    updates: Vec<Update>,
    taken: Timestamp,
    /// Time of the latest evaluation.
    evaluated: Timestamp,
    findings: usize,
    bytes: usize,
}

impl Observer for Recorder {
    fn evaluated(&mut self, engine: &Engine, now: Timestamp, changed: bool) {
        self.evaluated = now;
        if self.only_last {
            return;
        }
        let every = EVERY * (1 << (self.bytes / ROOM).min(16));
        let is_due = now.since(self.taken) >= every;
        if !changed && !is_due {
            return;
        }
        let mut report = engine.report();
        self.claims.limit(&mut report);
        let is_news = report.findings.len() != self.findings;
        if is_due || is_news {
            self.findings = report.findings.len();
            self.take(&report, &Detail::new(engine.model(), now), now, false);
        }
    }
}

impl Recorder {
    fn take(&mut self, report: &Report, detail: &Detail, at: Timestamp, ended: bool) {
        let update = self.sent.update(report, Some(detail), at, ended);
        self.taken = at;
        self.bytes += serde_json::to_vec(&update).map_or(0, |json| json.len());
        self.updates.push(update);
    }
}
