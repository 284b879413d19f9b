//! Converts evidence into the updates that a viewer of the live job would have received.

use std::path::PathBuf;
use std::time::Duration;

use ddp_doctor_proto::report::{Report, Timestamp};
use ddp_doctor_proto::viewer::Update;

use super::sources::{self, Source};
use super::{Progress, Remark};
use crate::diagnosis::Engine;
use crate::ingest::{Observer, logs};
use crate::report::viewer::{Detail, Sent};

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
    /// Messages about the files, apart from the findings.
    pub remarks: Vec<Remark>,
}

/// Records the newest job in the evidence; `None`: there is none.
#[must_use]
pub fn record(paths: &[PathBuf]) -> Option<Recording> {
    record_with(paths, &Progress::default())
}

/// Like [`record`], with progress for another thread to show.
#[must_use]
pub fn record_with(paths: &[PathBuf], progress: &Progress) -> Option<Recording> {
    let mut remarks = Vec::new();
    let found = sources::find(paths, &mut remarks, progress);
    let source = newest(found)?;
    let mut recorder = Recorder {
        claims: source.claims(),
        only_last: matches!(source, Source::Dumps(_)),
        ..Recorder::default()
    };
    let (engine, report) = source.play(&mut remarks, &mut recorder);
    let last = recorder.evaluated;
    recorder.take(&report, &Detail::of(engine.model(), last), last, true);
    Some(Recording {
        updates: recorder.updates,
        report,
        remarks,
    })
}

/// The newest recorded job; without one, the last of the others.
fn newest(mut found: Vec<Source>) -> Option<Source> {
    let is_recorded = |source: &Source| matches!(source, Source::Recorded(_));
    let last = found.iter().rposition(is_recorded);
    match last {
        Some(at) => Some(found.swap_remove(at)),
        None => found.pop(),
    }
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
            self.take(&report, &Detail::of(engine.model(), now), now, false);
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
