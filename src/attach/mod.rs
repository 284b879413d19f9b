//! Diagnosis of a job that was started without ddp-doctor, while it runs.
//!
//! `find` finds the ranks on this host and tells jobs apart. `sample` captures the stacks of all ranks twice.
//! `position` determines from them which call each rank is inside, and `messages` writes that to a journal, as the
//! follower of the ranks would have done. The journal then leads to a report in the way of every other one
//! ([`crate::postmortem`]), so that `analyze` gives the same report later, and one report for several hosts.
//!
//! The ranks are only read: none is stopped, gets a signal, or runs code of this program. What their stacks show
//! proves nothing: the engine limits all findings to *supported*
//! ([`crate::diagnosis::evidence::provenance::Provenance::Attached`]).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;

use crate::diagnosis::timing::TimeScale;
use crate::diagnosis::words::{self, Ranks};
use crate::evidence::journal::{self, Writer};
use crate::host::files::Dir;
use crate::node::follow::names;
use crate::node::launch::rundir::RunDir;
use crate::node::source;
use crate::private;

pub mod environment;
pub mod find;
pub mod messages;
pub mod position;
pub mod sample;
pub mod sleep;

use find::RankedJob;
use messages::{Evidence, Whereabouts};
use position::Position;

/// Number of captures.
const LOOKS: usize = 2;
/// Time between captures: some more than the engine needs between two that it compares.
const APART: Duration = Duration::from_millis(1600);
/// Minimum duration of a wait that is a finding, if the kernel states how long threads have been asleep. Healthy
/// jobs wait for slow storage or an evaluation on one rank.
const MIN_WAIT: Duration = Duration::from_secs(20);

/// How a job is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Factor of all durations, for tests.
    pub time_scale: TimeScale,
}

/// The evidence of one job.
#[derive(Debug)]
pub struct Attached {
    /// The job.
    pub job: RankedJob,
    /// What each rank does, in their order.
    pub whereabouts: Vec<Whereabouts>,
    /// Messages with the evidence.
    pub reports: Vec<v1::Report>,
}

/// Reads the ranks of a job.
#[must_use]
pub fn read(job: RankedJob, options: &Options) -> Attached {
    let scale = options.time_scale;
    let looks = sample::looks(&job.ranks, LOOKS, scale.of(APART));
    let mut evidence = Evidence { job: &job, looks: &looks, stall_after_s: 0, time_scale: scale };
    let whereabouts = evidence.whereabouts();
    let is_measured = |it: &Whereabouts| match &it.position {
        Position::Inside(call) => call.asleep.is_some(),
        _ => false,
    };
    // Threads that poll have no measured wait: two captures that show the same are then enough.
    let limit =
        if whereabouts.iter().any(is_measured) { scale.of(MIN_WAIT) } else { Duration::ZERO };
    evidence.stall_after_s = (limit.as_secs_f64().ceil() as u32).max(1);
    let reports = evidence.reports();
    Attached { job, whereabouts, reports }
}

impl Attached {
    /// One line for each group of ranks that do the same: "ranks 0 and 2: in all_reduce at train.py:9 for 4.1 s".
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let texts = self.whereabouts.iter().map(|it| (it.rank, it.to_string()));
        let mut groups: Vec<(String, Vec<u32>)> = Vec::new();
        for (rank, text) in texts {
            match groups.iter_mut().find(|(other, _)| *other == text) {
                Some((_, ranks)) => ranks.push(rank),
                None => groups.push((text, vec![rank])),
            }
        }
        groups.into_iter().map(|(text, ranks)| format!("{}: {text}", Ranks(&ranks))).collect()
    }

    /// The folders with the sources of the program.
    #[must_use]
    pub fn source_folders(&self) -> Vec<PathBuf> {
        let first = self.job.ranks.first();
        first.map(|it| source::folders_of(it.pid)).unwrap_or_default()
    }

    /// Whether a rank moves.
    #[must_use]
    pub fn moves(&self) -> bool {
        self.whereabouts.iter().any(|it| it.position == Position::Moves)
    }
}

impl fmt::Display for Whereabouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = words::at(self.place.as_ref());
        match &self.position {
            Position::Inside(call) => {
                write!(f, "in {}{at}", call.op)?;
                match call.asleep {
                    Some(asleep) => write!(f, " for {}", words::seconds(asleep)),
                    None => Ok(()),
                }
            }
            Position::Outside => write!(f, "does not move{at}"),
            Position::Moves => write!(f, "moves{at}"),
            Position::Unknown => match &self.unreadable {
                Some(why) => write!(f, "{why}"),
                None => write!(f, "its stacks show nothing"),
            },
        }
    }
}

/// Creates a run directory for the evidence.
///
/// # Errors
///
/// If it cannot be created.
pub fn run_dir(attached: &Attached, requested: PathBuf) -> anyhow::Result<Dir> {
    let shared_memory = Path::new(private::SHARED_MEMORY);
    let job = names::file_name(&attached.job.id);
    let directory = RunDir::make(shared_memory, Some(requested), &job, Timestamp::now(), |_| false);
    Ok(directory.context("the run directory cannot be created")?.dir)
}

/// Writes the journal of the evidence to a directory.
///
/// # Errors
///
/// If it cannot be written.
pub fn write(attached: &Attached, directory: &Dir) -> anyhow::Result<()> {
    let mut journal = Writer::create_in(directory, journal::FIRST.as_ref())?;
    for report in &attached.reports {
        journal.append(report)?;
    }
    Ok(())
}

/// Writes the description of a run, by which other commands find it, to its directory. While this process
/// is alive, the run counts as active.
///
/// # Errors
///
/// If it cannot be written.
pub fn describe(attached: &Attached, directory: &Dir) -> anyhow::Result<()> {
    let events = attached.reports.iter().flat_map(|it| &it.events);
    let hello = events.into_iter().find_map(|event| match &event.kind {
        Some(v1::event::Kind::Hello(hello)) => Some(hello),
        _ => None,
    });
    let hello = hello.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    names::describe(directory, hello, None, &attached.source_folders())
        .context("run.json cannot be written")
}
