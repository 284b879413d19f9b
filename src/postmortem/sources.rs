//! The evidence of each job, of whatever kind, and which evidence is of the same job.

use std::path::PathBuf;
use std::time::Duration;

use ddp_doctor_proto::report::Report;

use super::Progress;
use super::collect::{self, Collected};
use super::{Remark, jobs, play};
use crate::diagnosis::Engine;
use crate::ingest::logs::{self, Log, Statements};
use crate::ingest::{Observer, flight_recorder};
use crate::report::timeline::Timeline;

/// Maximum difference between the times at which two recorders see one call.
const MAX_SKEW: Duration = Duration::from_millis(5);

/// The evidence of one job.
pub(super) enum Source {
    /// Journals and black boxes.
    Recorded(jobs::Job),
    /// Flight Recorder dumps, with the logs of their job.
    Dumps(flight_recorder::Job),
    /// Logs alone.
    Logs(jobs::Job),
}

/// Finds the evidence in paths: first that which was recorded, the oldest first.
pub(super) fn find(
    paths: &[PathBuf],
    remarks: &mut Vec<Remark>,
    progress: &Progress,
) -> Vec<Source> {
    let mut found = collect::collect(paths, progress);
    remarks.append(&mut found.remarks);
    let files = std::mem::take(&mut found.dumps);
    let mut dumps = flight_recorder::read(&files, remarks, progress);
    found.logs = beside_dumps(&mut dumps, std::mem::take(&mut found.logs), remarks);
    let (logs, recorded): (Vec<jobs::Job>, Vec<jobs::Job>) = of_jobs(found, remarks);
    let recorded = recorded.into_iter().map(Source::Recorded);
    let dumps = dumps.into_iter().map(Source::Dumps);
    let logs = logs.into_iter().map(Source::Logs);
    recorded.chain(dumps).chain(logs).collect()
}

fn of_jobs(found: Collected, remarks: &mut Vec<Remark>) -> (Vec<jobs::Job>, Vec<jobs::Job>) {
    let jobs = jobs::of(found, remarks).into_iter();
    jobs.partition(|job| !job.logs.is_empty())
}

/// Adds logs to the dumps of their job. Returns them if nothing shows which job it is.
fn beside_dumps(
    dumps: &mut [flight_recorder::Job],
    logs: Vec<Log>,
    remarks: &mut Vec<Remark>,
) -> Vec<Log> {
    let Some(first) = logs.first().filter(|_| !dumps.is_empty()) else {
        return logs;
    };
    let statements = Statements::of(&logs);
    let offsets = dumps.iter_mut().filter_map(|job| {
        let offset = job.offset_of(&statements)?;
        Some((job, offset))
    });
    let mut offsets: Vec<_> = offsets.collect();
    if let [(job, offset)] = &mut offsets[..] {
        job.add_logs(logs, *offset);
        return Vec::new();
    }
    remarks.push(Remark {
        path: first.path.clone(),
        text: "nothing shows that it is of the same job as the dumps: it has a report of its own"
            .into(),
    });
    logs
}

impl Source {
    /// Plays the evidence to its end. Returns the engine in its final state, and the report,
    /// limited to what such evidence shows.
    pub(super) fn play(
        self,
        remarks: &mut Vec<Remark>,
        observer: &mut dyn Observer,
    ) -> (Engine, Report) {
        match self {
            Self::Dumps(job) => flight_recorder::diagnose(job, observer),
            Self::Recorded(job) | Self::Logs(job) => {
                let claims = logs::Claims::of(&job.logs);
                let engine = play::play(job, remarks, observer);
                let mut report = engine.report();
                claims.limit(&mut report);
                (engine, report)
            }
        }
    }

    /// What reports may claim while the evidence is played.
    pub(super) fn claims(&self) -> logs::Claims {
        match self {
            Self::Recorded(_) | Self::Dumps(_) => logs::Claims::default(),
            Self::Logs(job) => logs::Claims::of(&job.logs),
        }
    }

    /// A remark if ddp-doctor recorded the job that this evidence is of: the recording states more.
    pub(super) fn is_recorded(&self, recordings: &[Timeline]) -> Option<Remark> {
        let path = match self {
            Self::Recorded(_) => return None,
            Self::Dumps(job) => {
                let known = recordings.iter().any(|it| has_calls_of(it, job));
                known.then(|| job.folder().to_owned())
            }
            Self::Logs(job) => {
                let statements = Statements::of(&job.logs);
                let known = recordings
                    .iter()
                    .any(|it| has_processes_of(it, &statements));
                known.then_some(job.logs.first()?.path.clone())
            }
        };
        path.map(|path| Remark {
            path,
            text: "it is of a job that was recorded, and the recording states more: left out"
                .into(),
        })
    }
}

/// Whether a rank made a collective of the dumps at the same time in the recording.
fn has_calls_of(recording: &Timeline, dumps: &flight_recorder::Job) -> bool {
    let size = dumps.world_size();
    if recording.tracks.iter().any(|track| track.rank >= size) {
        return false;
    }
    dumps.collectives().any(|(rank, op, at)| {
        let tracks = recording.tracks.iter().filter(|track| track.rank == rank);
        let mut calls = tracks.flat_map(|track| &track.calls);
        calls.any(|it| {
            let apart = it.call.at.since(at).max(at.since(it.call.at));
            it.call.op == op && apart <= MAX_SKEW
        })
    })
}

/// Whether the recording contains a process that logs name by its rank and process id.
fn has_processes_of(recording: &Timeline, logs: &Statements) -> bool {
    logs.pids().any(|(rank, pid)| {
        let mut tracks = recording.tracks.iter();
        tracks.any(|track| track.rank == rank && track.pid == pid)
    })
}
