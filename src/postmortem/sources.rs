//! The evidence of each job, of whatever kind, and which evidence is of the same job.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ddp_doctor_diagnosis::Engine;
use ddp_doctor_ingest::logs::{self, Log, Statements};
use ddp_doctor_ingest::{Observer, flight_recorder};
use ddp_doctor_proto::report::{Report, Timestamp};
use ddp_doctor_report::timeline::Timeline;

use super::Progress;
use super::collect::{self, Collected};
use super::{Remark, jobs, play};

/// Maximum difference between the times at which two recorders see one call.
const MAX_SKEW: Duration = Duration::from_millis(5);

/// The evidence of one job.
pub(super) enum Source {
    /// Journals and black boxes.
    Recorded(jobs::RecordedJob),
    /// Flight Recorder dumps, with the logs of their job.
    Dumps(flight_recorder::DumpedJob),
    /// Logs alone.
    Logs(jobs::RecordedJob),
}

/// Finds the evidence in paths: first that which was recorded, the oldest first.
pub(super) fn find(
    paths: &[PathBuf],
    remarks: &mut Vec<Remark>,
    progress: &Progress,
) -> Vec<Source> {
    let mut found = collect::collect(paths, progress);
    remarks.append(&mut found.remarks);
    let dumps = flight_recorder::read(&found.dumps, remarks, progress);
    found.logs.extend(dumps.logs);
    found.beside.extend(dumps.logs_with_dumps);
    let mut dumps = dumps.jobs;
    let successes = std::mem::take(&mut found.successes);
    add_logs(&mut dumps, &mut found, remarks);
    let (logs, recorded): (Vec<jobs::RecordedJob>, Vec<jobs::RecordedJob>) =
        of_jobs(found, remarks);
    let recorded = recorded.into_iter().map(Source::Recorded);
    let dumps = dumps.into_iter().map(Source::Dumps);
    let logs = logs.into_iter().map(Source::Logs);
    let mut sources: Vec<Source> = recorded.chain(dumps).chain(logs).collect();
    // Beside other evidence, such a log may be of an attempt that succeeded later.
    if sources.is_empty() && !successes.is_empty() {
        let job = jobs::RecordedJob { logs: successes, ..jobs::RecordedJob::default() };
        sources.push(Source::Logs(job));
    }
    sources
}

fn of_jobs(
    found: Collected,
    remarks: &mut Vec<Remark>,
) -> (Vec<jobs::RecordedJob>, Vec<jobs::RecordedJob>) {
    let jobs = jobs::assemble(found, remarks).into_iter();
    jobs.partition(|job| !job.logs.is_empty())
}

/// Adds logs to the dumps of their job. Those that were found beside dumps are left out if nothing shows
/// which job it is.
fn add_logs(
    dumps: &mut [flight_recorder::DumpedJob],
    found: &mut Collected,
    remarks: &mut Vec<Remark>,
) {
    let beside = std::mem::take(&mut found.beside);
    if dumps.is_empty() {
        found.logs.extend(beside.into_iter().flatten());
        return;
    }
    let mut remark = |refused: &Refused, what: &str| {
        let Some(first) = refused.logs.first() else { return };
        let path = first.path.clone();
        let text = match &refused.contradiction {
            Some(why) => format!("it belongs to a different job from the dumps: {why}; {what}"),
            None => {
                format!("its contents do not show which of the dumped jobs it belongs to: {what}")
            }
        };
        remarks.push(Remark { path, text });
    };
    for logs in beside {
        remark(&of_job(dumps, logs), "it is left out; to analyze it, pass its path");
    }
    let refused = of_job(dumps, std::mem::take(&mut found.logs));
    remark(&refused, "it has a separate report");
    found.logs = refused.logs;
}

/// Logs that were not added to a job.
#[derive(Default)]
struct Refused {
    logs: Vec<Log>,
    /// What contradicts that they are of the only job.
    contradiction: Option<String>,
}

/// Adds logs to the only job that they are shown to be of. Otherwise returns them.
fn of_job(dumps: &mut [flight_recorder::DumpedJob], mut logs: Vec<Log>) -> Refused {
    if logs.is_empty() {
        return Refused::default();
    }
    if let [job] = dumps {
        logs.iter_mut().for_each(|log| log.set_year(job.begins()));
    }
    let statements = Statements::new(&logs);
    let offsets: Vec<(usize, i64)> = dumps
        .iter()
        .enumerate()
        .filter_map(|(at, job)| Some((at, job.offset_of(&statements)?)))
        .collect();
    if let [(at, offset)] = offsets[..] {
        dumps[at].add_logs(logs, offset);
        return Refused::default();
    }
    // Files that are given together are of one job if they do not contradict each other.
    let mut contradiction = None;
    if let ([], [job]) = (&offsets[..], dumps) {
        match job.possible_offset_of(&logs, &statements) {
            Ok(offset) => {
                job.add_logs(logs, offset);
                return Refused::default();
            }
            Err(why) => contradiction = Some(why),
        }
    }
    Refused { logs, contradiction }
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
                let claims = logs::Claims::new(&job.logs);
                let engine = play::play(job, remarks, observer);
                let mut report = engine.report();
                claims.limit(&mut report);
                (engine, report)
            }
        }
    }

    /// Precedence among the jobs of which one is shown: those that ddp-doctor recorded state most, then
    /// the latest.
    pub(super) fn precedence(&self) -> (bool, Timestamp) {
        match self {
            Self::Recorded(job) => {
                let starts = job.nodes.iter().map(|node| node.hello.started_unix_ns);
                (true, Timestamp(starts.min().unwrap_or(0)))
            }
            Self::Dumps(job) => (false, job.begins()),
            Self::Logs(job) => (false, Statements::new(&job.logs).period().0),
        }
    }

    /// The given paths that have the evidence of this job.
    pub(super) fn paths(&self, given: &[PathBuf]) -> BTreeSet<PathBuf> {
        let files: Vec<&Path> = match self {
            Self::Recorded(job) => {
                let places = job.nodes.iter().flat_map(jobs::Node::places);
                return places.filter_map(|place| given.get(place).cloned()).collect();
            }
            Self::Dumps(job) => job.files().collect(),
            Self::Logs(job) => job.logs.iter().map(|it| it.path.as_path()).collect(),
        };
        let place = |file: &Path| given.iter().find(|it| file.starts_with(it)).cloned();
        let known: Option<BTreeSet<PathBuf>> = files.into_iter().map(place).collect();
        known.unwrap_or_else(|| given.iter().cloned().collect())
    }

    /// Path of evidence that other tools left.
    fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Recorded(_) => None,
            Self::Dumps(job) => Some(job.folder().to_owned()),
            Self::Logs(job) => Some(job.logs.first()?.path.clone()),
        }
    }

    /// A remark on evidence of other tools that is reported beside recordings.
    pub(super) fn separate(&self) -> Option<Remark> {
        let text = "nothing shows that it belongs to a recorded job: it has a separate report";
        self.path().map(|path| Remark { path, text: text.into() })
    }

    /// What reports may claim while the evidence is played.
    pub(super) fn claims(&self) -> logs::Claims {
        match self {
            Self::Recorded(_) | Self::Dumps(_) => logs::Claims::default(),
            Self::Logs(job) => logs::Claims::new(&job.logs),
        }
    }

    /// A remark if ddp-doctor recorded the job that this evidence is of: the recording states more.
    pub(super) fn is_recorded(&self, recordings: &[Timeline]) -> Option<Remark> {
        let is_known = match self {
            Self::Recorded(_) => false,
            Self::Dumps(job) => recordings.iter().any(|it| has_calls_of(it, job)),
            Self::Logs(job) => {
                let statements = Statements::new(&job.logs);
                let mut recordings = recordings.iter();
                recordings.any(|it| has_processes_of(it, &statements))
            }
        };
        self.path().filter(|_| is_known).map(|path| Remark {
            path,
            text: "it belongs to a job that was recorded, and the recording states more: left out"
                .into(),
        })
    }
}

/// Whether a rank made a collective of the dumps at the same time in the recording.
fn has_calls_of(recording: &Timeline, dumps: &flight_recorder::DumpedJob) -> bool {
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
