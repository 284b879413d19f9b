//! Diagnosis of a job that was started without ddp-doctor, while it runs.
//!
//! `find` finds the ranks on this host and tells jobs apart. `rounds` reads them once or repeatedly: `sample` captures
//! the stacks of all ranks, `position` determines from two captures which call each rank is inside, `counts` and `ras`
//! do so for calls of NCCL, which return at once, and `messages` writes that to a journal, as the follower of the ranks
//! would have done. `facts` reads memory, versions and connections, and [`flight_recorder`] requests what PyTorch recorded.
//! The report is made from that journal as from every other one (`src/postmortem`), so that `analyze` gives the same
//! report later, and one report for several hosts. `outside` reads processes of other users, and `connection` sends rounds
//! to a coordinator: for those who watch, and for other hosts.
//!
//! The ranks are only read, except for that request: none is stopped, gets a signal, or runs code of this program. What
//! their stacks show proves nothing: the engine limits all findings to *supported*
//! ([`ddp_doctor_diagnosis::input::provenance::Provenance::Attached`]).

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ddp_doctor_diagnosis::timing::TimeScale;
use ddp_doctor_diagnosis::words::{self, Ranks};
use ddp_doctor_evidence::journal::{self, Writer};
use ddp_doctor_host::files::Dir;
use ddp_doctor_host::names;
use ddp_doctor_host::private;
use ddp_doctor_host::source_files::SourceFolders;
use ddp_doctor_node::flight_recorder::{self, Dump, Recorder};
use ddp_doctor_node::launch::rundir::RunDir;
use ddp_doctor_node::source_reader;
use ddp_doctor_proto::report::{ActivityKind, RankActivity, Report, Timestamp};
use ddp_doctor_proto::v1;

pub mod connection;
pub mod counts;
pub mod environment;
pub mod find;
pub mod messages;
#[cfg(test)]
mod nccl_tests;
pub mod outside;
pub mod position;
pub mod rank_facts;
pub mod ras;
pub mod rounds;
pub mod sample;
pub mod sleep;

use find::{RankProcess, RankedJob};
use messages::Whereabouts;
use position::Position;
use rank_facts::Facts;

/// Name of a journal that is being written.
const UNFINISHED: &str = "journal.new";
/// Maximum number of bytes of a dump in one message.
const MAX_PART: usize = 4 << 20;

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
    /// What is known of each rank besides, in their order.
    pub facts: Vec<Facts>,
    /// Ranks that have ended since they were found.
    pub ended: Vec<u32>,
    /// What the user should know about the evidence.
    pub notes: Vec<String>,
    /// Messages with the evidence.
    pub reports: Vec<v1::Report>,
    /// What PyTorch's Flight Recorder recorded, if it was requested.
    pub dumps: Vec<Dump>,
}

impl Attached {
    /// One line for each group of ranks that do the same: "ranks 0 and 2: in all_reduce at train.py:9 for 4.1 s", and as
    /// `report` has it for those that are idle.
    #[must_use]
    pub fn lines(&self, report: Option<&Report>) -> Vec<String> {
        let idle = |rank: u32| idle(report?).find(|(it, _)| *it == rank);
        let texts = self.whereabouts.iter().map(|it| match idle(it.rank) {
            Some((rank, activity)) => {
                let at = words::at(activity.place.as_ref());
                (rank, format!("{}, {}{at}", activity.kind, activity.text))
            }
            None => (it.rank, it.to_string()),
        });
        let mut groups: Vec<(String, Vec<u32>)> = Vec::new();
        for (rank, text) in texts {
            match groups.iter_mut().find(|(other, _)| *other == text) {
                Some((_, ranks)) => ranks.push(rank),
                None => groups.push((text, vec![rank])),
            }
        }
        groups.into_iter().map(|(text, ranks)| format!("{}: {text}", Ranks(&ranks))).collect()
    }

    /// One line for each rank: its process, memory, limits, versions and connections.
    #[must_use]
    pub fn details(&self) -> Vec<String> {
        let ranks = self.job.ranks.iter().zip(&self.facts);
        ranks
            .map(|(it, facts)| format!("rank {}: process {} · {}", it.rank, it.pid, facts.line()))
            .collect()
    }

    /// The folders with the sources of the program.
    #[must_use]
    pub fn source_folders(&self) -> Vec<PathBuf> {
        let first = self.job.ranks.first();
        first.map(|it| source_reader::folders_of(it.pid)).unwrap_or_default()
    }

    /// Where the sources of the program are read while it runs.
    #[must_use]
    pub fn sources(&self) -> SourceFolders {
        self.job.ranks.first().map(|it| source_reader::sources_of(it.pid)).unwrap_or_default()
    }

    /// Ranks of the job that are on other hosts, as far as its launcher states it.
    #[must_use]
    pub fn elsewhere(&self) -> Vec<u32> {
        let mut ranks = if self.job.is_local() { Vec::new() } else { self.job.elsewhere() };
        ranks.retain(|rank| !self.ended.contains(rank));
        ranks
    }

    /// What has changed since an earlier round: ranks that move again, and ranks that have ended.
    #[must_use]
    pub fn changes_since(&self, earlier: &Self) -> Vec<String> {
        let is_stuck = |rank: u32| {
            let mut ranks = earlier.whereabouts.iter();
            let stuck = |it: &Position| matches!(it, Position::Inside(_) | Position::Outside);
            ranks.any(|it| it.rank == rank && stuck(&it.position))
        };
        let again: Vec<&Whereabouts> = self
            .whereabouts
            .iter()
            .filter(|it| it.position == Position::Moves && is_stuck(it.rank))
            .collect();
        let mut lines = Vec::new();
        if let Some(first) = again.first() {
            let ranks: Vec<u32> = again.iter().map(|it| it.rank).collect();
            let verb = words::number(&ranks, "moves", "move");
            let at = words::at(first.place.as_ref());
            lines.push(format!("{} {verb} again{at}", Ranks(&ranks)));
        }
        let gone: Vec<u32> =
            self.ended.iter().filter(|rank| !earlier.ended.contains(rank)).copied().collect();
        if !gone.is_empty() {
            lines.push(format!("{} {} ended", Ranks(&gone), words::number(&gone, "has", "have")));
        }
        lines
    }

    /// Whether all ranks on this host stay where they are, and some wait for their devices, as far as two captures show
    /// it.
    #[must_use]
    pub fn seems_stuck_on_devices(&self) -> bool {
        let mut ranks = self.whereabouts.iter();
        let stays = |it: &Whereabouts| match it.position {
            Position::Inside(_) | Position::Device(_) | Position::Outside => true,
            Position::Moves | Position::Unknown => false,
        };
        let waits = |it: &Whereabouts| it.is_on_device && it.position != Position::Outside;
        self.whereabouts.iter().any(waits) && ranks.all(stays)
    }

    /// Whether Flight Recorders could show why ranks are stuck: some wait for their devices, and have its pipe.
    #[must_use]
    pub fn may_request_dumps(&self) -> bool {
        let mut ranks = self.job.ranks.iter();
        self.seems_stuck_on_devices()
            && ranks.any(|it| it.environment.get(flight_recorder::PIPE).is_some())
    }

    /// The messages with the evidence, and with the dumps in parts that a coordinator accepts.
    #[must_use]
    pub fn round(&self) -> Vec<v1::Report> {
        let parts = self.dumps.iter().flat_map(|dump| {
            let part = |contents: &[u8]| v1::FlightRecorderDump {
                rank: dump.rank,
                unix_ns: dump.at.0,
                contents: contents.to_vec(),
            };
            dump.contents.chunks(MAX_PART).map(part)
        });
        let reports = parts.map(|part| v1::Report {
            sent_unix_ns: part.unix_ns,
            events: vec![v1::Event { kind: Some(v1::event::Kind::FlightRecorderDump(part)) }],
            ..v1::Report::default()
        });
        self.reports.iter().cloned().chain(reports).collect()
    }

    /// Requests what PyTorch's Flight Recorder recorded of the ranks. Returns what the user should know.
    pub fn request_dumps(&mut self) -> Vec<String> {
        let recorder =
            |it: &RankProcess| Recorder::new(it.rank, it.pid, |name| it.environment.get(name));
        let recorders: Vec<Recorder> = self.job.ranks.iter().filter_map(recorder).collect();
        let (dumps, notes) = flight_recorder::request(&recorders, flight_recorder::MAX_WAIT);
        self.dumps = dumps;
        notes
    }

    /// The training steps of the ranks, as their program numbers them, ascending.
    #[must_use]
    pub fn steps(&self) -> Vec<u32> {
        let known = self.facts.iter().filter_map(|it| Some(it.step.as_ref()?.number));
        let steps: BTreeSet<u32> = known.collect();
        steps.into_iter().collect()
    }

    /// Whether a rank moves.
    #[must_use]
    pub fn moves(&self) -> bool {
        self.whereabouts.iter().any(|it| it.position == Position::Moves)
    }
}

/// Ranks that wait for a request, which they then pass on to others.
pub fn idle(report: &Report) -> impl Iterator<Item = (u32, &RankActivity)> {
    let known = report.ranks.iter().filter_map(|it| Some((it.rank, it.activity.as_ref()?)));
    known.filter(|(_, activity)| activity.kind == ActivityKind::Idle)
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
            Position::Device(_) => write!(f, "waiting for a device{at}, or often there"),
            Position::Outside => write!(f, "not moving{at}"),
            Position::Moves => write!(f, "moving{at}"),
            Position::Unknown => match &self.unreadable {
                Some(why) => write!(f, "{why}"),
                None => write!(f, "stacks show nothing"),
            },
        }?;
        match &self.counts {
            Some(counts) => write!(f, "; it has launched {counts}"),
            None => Ok(()),
        }
    }
}

/// Creates a run directory for the evidence.
///
/// # Errors
///
/// If it cannot be created.
pub fn run_dir(attached: &Attached, requested: PathBuf) -> anyhow::Result<RunDir> {
    let shared_memory = Path::new(private::SHARED_MEMORY);
    let job = names::file_name(&attached.job.evidence_name());
    let directory = RunDir::make(shared_memory, Some(requested), &job, Timestamp::now(), |_| false);
    directory.context("the run directory cannot be created")
}

/// Writes the evidence to a directory, in place of earlier evidence.
///
/// # Errors
///
/// If it cannot be written.
pub fn write(attached: &Attached, directory: &Dir) -> anyhow::Result<()> {
    // Readers never see a part of it.
    directory.remove_file(UNFINISHED.as_ref()).ok();
    let mut journal = Writer::create_in(directory, UNFINISHED.as_ref())?;
    for report in &attached.reports {
        journal.append(report)?;
    }
    directory.rename(UNFINISHED.as_ref(), directory, journal::FIRST.as_ref())?;
    for Dump { rank, contents, .. } in &attached.dumps {
        directory.replace(format!("{}{rank}", names::DUMP).as_ref(), contents)?;
    }
    Ok(())
}

/// Writes the description of a run, by which other commands find it, to its directory. While this process
/// is alive, the run counts as active. `coordinator`: where viewers connect meanwhile.
///
/// # Errors
///
/// If it cannot be written.
pub fn describe(
    attached: &Attached,
    directory: &Dir,
    coordinator: Option<&str>,
) -> anyhow::Result<()> {
    let events = attached.reports.iter().flat_map(|it| &it.events);
    let hello = events
        .into_iter()
        .find_map(|event| match &event.kind {
            Some(v1::event::Kind::Hello(hello)) => Some(hello),
            _ => None,
        })
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    names::describe(directory, hello, coordinator, &attached.source_folders())
        .context("run.json cannot be written")
}
