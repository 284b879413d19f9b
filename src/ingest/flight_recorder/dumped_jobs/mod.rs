//! Groups dumps into jobs, with one dump for each rank.
//!
//! In the order of the work: `ranks` finds the rank of each dump, `duplicates` keeps one dump of each
//! rank, `folders` decides which dumps are of one job, and `job_names` names the jobs.
//! `out_of_band_logs` then adds the logs of a job.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use super::dump::Dump;
use crate::Remark;
use crate::flight_recorder::dump_files::Contents;
use crate::logs::Log;
use folders::Part;

mod duplicates;
mod folders;
mod job_names;
mod out_of_band_logs;
mod ranks;

/// The dumps of one job.
#[derive(Debug, Default)]
pub struct DumpedJob {
    /// Name of the job: the end of its folder, as long as it takes to tell it from other jobs.
    pub(super) name: String,
    /// Folder of the dumps.
    folder: PathBuf,
    /// Folders of the dumps, with the beginning of file names where a folder has several jobs.
    places: BTreeSet<PathBuf>,
    /// Dumps by rank.
    pub(super) ranks: BTreeMap<u32, Dump>,
    /// What is wrong with the dump of a rank.
    pub(super) unreadable: BTreeMap<u32, String>,
    /// Logs of the same job.
    pub(super) logs: Vec<Log>,
    /// The logs state that a wait was given up.
    pub(super) gave_up: bool,
    /// A log states that a rank ended, or raised an exception that nothing caught.
    pub(super) has_failed: bool,
}

/// A dump whose rank is known.
#[derive(Debug)]
struct Ranked {
    rank: u32,
    path: PathBuf,
    dump: Dump,
}

/// The beginning of the name of a dump, up to its rank; `None`: the name has no rank.
pub(super) fn series(path: &Path) -> Option<String> {
    ranks::named(path).map(|_| ranks::prefix(path))
}

/// Groups dumps into jobs, and files that cannot be read with them.
pub(super) fn assemble(contents: Vec<Contents>, remarks: &mut Vec<Remark>) -> Vec<DumpedJob> {
    let mut ranked: Vec<Ranked> = Vec::new();
    let mut unreadable: Vec<(PathBuf, String)> = Vec::new();
    let from_one = ranks::counted_from_one(&contents);
    for (folder, _) in &from_one {
        remarks.push(Remark {
            path: folder.clone(),
            text: "the numbers in the names of its dumps count from 1: rank 0 is number 1".into(),
        });
    }
    for contents in contents {
        unreadable.extend(contents.unreadable);
        for found in contents.dumps {
            if found.dump.is_unused() {
                let text = found.dump.cut.unwrap_or_else(|| {
                    "it contains neither groups nor calls: another recorder of the process was in use"
                        .into()
                });
                unreadable.push((found.path, text));
                continue;
            }
            let first = from_one.contains(&ranks::file_series(&found.path)).into();
            ranked.extend(ranks::with_rank(found, first, remarks));
        }
    }
    let ranked = duplicates::without_copies(ranked, remarks);
    let shared = folders::folders_of_several_jobs(&ranked);
    let place_of = |path: &Path| {
        let folder = folder(path);
        if shared.contains(&folder) { folder.join(ranks::prefix(path)) } else { folder }
    };
    let mut by_place: BTreeMap<PathBuf, Vec<Ranked>> = BTreeMap::new();
    for it in ranked {
        by_place.entry(place_of(&it.path)).or_default().push(it);
    }
    let parts = folders::merge(by_place);
    let mut jobs: Vec<DumpedJob> =
        parts.into_iter().map(|it| DumpedJob::new(it, remarks)).collect();
    for (path, text) in unreadable {
        let job = nearest(&mut jobs, &place_of(&path));
        if let (Some(job), Some(rank)) = (job, ranks::named(&path)) {
            let text = format!("the dump cannot be read: {text}");
            job.unreadable.entry(rank).or_insert(text);
        }
        remarks.push(Remark { path, text });
    }
    job_names::name(&mut jobs);
    jobs
}

/// The job with a place that has most folders in common with this one; `None`: several have.
fn nearest<'a>(jobs: &'a mut [DumpedJob], place: &Path) -> Option<&'a mut DumpedJob> {
    let common = |other: &PathBuf| {
        let folders = place.components().zip(other.components());
        folders.take_while(|(one, other)| one == other).count()
    };
    let shared = |job: &DumpedJob| job.places.iter().map(common).max().unwrap_or(0);
    let most = jobs.iter().map(shared).max()?;
    let mut nearest = jobs.iter_mut().filter(|job| shared(job) == most);
    let first = nearest.next()?;
    nearest.next().is_none().then_some(first)
}

/// Folder of a file.
fn folder(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_owned()
}

impl DumpedJob {
    fn new(part: Part, remarks: &mut Vec<Remark>) -> Self {
        let mut job = Self { folder: part.folder(), places: part.places, ..Self::default() };
        let (latest, others) = folders::of_latest(part.dumps);
        for it in latest {
            job.add(it, remarks);
        }
        for it in others {
            let text = "the dump belongs to a different job, whose last call was earlier";
            job.unreadable.insert(it.rank, text.into());
            let text = format!("{text}: it is left out");
            remarks.push(Remark { path: it.path, text });
        }
        job
    }

    /// Number of ranks of the job, as far as groups and dumps show it.
    pub fn world_size(&self) -> u32 {
        let dumps = self.ranks.values();
        let members = dumps.flat_map(|dump| dump.groups.values().flat_map(|it| it.members.iter()));
        let last = members.chain(self.ranks.keys()).max();
        last.map_or(0, |last| last + 1)
    }

    /// Folder of the dumps.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Folders or files with its evidence, which may be in an archive.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let logs = self.logs.iter().map(|it| &it.path);
        self.places.iter().chain(logs).map(PathBuf::as_path)
    }

    /// Whether all of its dumps are in these folders.
    pub fn is_in(&self, folders: &BTreeSet<PathBuf>) -> bool {
        self.places.iter().all(|place| place.ancestors().any(|it| folders.contains(it)))
    }

    /// Whether no rank had issued a call for a while when the dumps were written: the ranks of a job that goes on are
    /// always a little apart.
    pub fn is_at_rest(&self) -> bool {
        const REST: Duration = Duration::from_secs(10);
        let written = self.ranks.values().filter_map(|dump| dump.written).max();
        let last = Timestamp(self.period().1).plus(REST);
        written.is_some_and(|it| Timestamp(it) >= last)
    }

    /// Time of the first call.
    pub fn begins(&self) -> Timestamp {
        Timestamp(self.period().0)
    }

    /// Times of the first and the last call of the dumps, in nanoseconds since the Unix epoch.
    pub(super) fn period(&self) -> (u64, u64) {
        let periods = self.ranks.values().map(|dump| dump.period);
        let first = periods.clone().map(|it| it.0).filter(|&at| at > 0).min();
        let last = periods.map(|it| it.1).max();
        (first.unwrap_or(0), last.unwrap_or(0))
    }

    /// Rank, operation and time of all collectives.
    pub fn collectives(&self) -> impl Iterator<Item = (u32, Op, Timestamp)> {
        self.ranks.iter().flat_map(|(&rank, dump)| {
            let entries = dump.entries().filter(|it| !it.is_message);
            entries.map(move |it| (rank, it.op, Timestamp(it.created)))
        })
    }
}
