//! Dumps of PyTorch's Flight Recorder: what each process recorded of its calls, written when a wait
//! timed out.
//!
//! ```text
//! files ─► document ─► dump ─► jobs ─► preparation ─► calls ─► waits ─► replay ─► engine ─► report
//!          pickle, JSON        ranks                  groups,  who     events             times
//!                                                     units    waits
//! ```
//!
//! A dump shows which calls a process made and which of them are complete. It shows neither whether
//! the process waits, nor what became of it. So findings that depend on a wait are never proved.

use std::path::{Path, PathBuf};

use ddp_doctor_diagnosis::Engine;
use ddp_doctor_proto::report::{Report, Timestamp};

use crate::logs::Log;
use crate::{Observer, Progress, Remark};

mod calls;
mod device_calls;
mod document;
mod dump;
mod dump_files;
mod dumped_jobs;
mod preparation;
mod replay;
mod report;
mod wait_graph;

pub use device_calls::device_calls;
pub use dumped_jobs::DumpedJob;

/// Whether a file that begins with these bytes, decompressed, may contain dumps.
#[must_use]
pub fn is_candidate(head: &[u8]) -> bool {
    dump_files::is_candidate(head)
}

/// The contents of files.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Dumps, by job.
    pub jobs: Vec<DumpedJob>,
    /// Logs of each archive that also contains dumps.
    pub logs_with_dumps: Vec<Vec<Log>>,
    /// Logs of archives without dumps.
    pub logs: Vec<Log>,
}

/// The beginning of the name of a dump, up to its rank; `None`: the name has no rank.
#[must_use]
pub fn series(path: &Path) -> Option<String> {
    dumped_jobs::series(path)
}

/// Reads dumps and the logs in their archives, and groups dumps into jobs.
#[must_use]
pub fn read(paths: &[PathBuf], remarks: &mut Vec<Remark>, progress: &Progress) -> Evidence {
    let mut contents = dump_files::read_all(paths, progress);
    let mut evidence = Evidence::default();
    for it in &mut contents {
        let logs = std::mem::take(&mut it.logs);
        if it.dumps.is_empty() {
            evidence.logs.extend(logs);
        } else {
            evidence.logs_with_dumps.push(logs);
        }
    }
    evidence.jobs = dumped_jobs::assemble(contents, remarks);
    evidence
}

/// Groups dumps that are not in files into jobs: their names, their contents, and when they were written.
pub fn read_contents(
    dumps: impl IntoIterator<Item = (PathBuf, Vec<u8>, Timestamp)>,
    remarks: &mut Vec<Remark>,
) -> Vec<DumpedJob> {
    dumped_jobs::assemble(vec![dump_files::of_contents(dumps)], remarks)
}

/// Diagnoses a job. Returns the engine in its final state, and the report, limited to what dumps
/// show.
pub fn diagnose(mut job: DumpedJob, observer: &mut dyn Observer) -> (Engine, Report) {
    let groups = preparation::prepare(&mut job, observer.shows_all_calls());
    let replay = replay::Replay::new(&job, groups);
    let engine = replay.run(observer);
    let report = report::limited(engine.report(), &replay);
    (engine, report)
}
