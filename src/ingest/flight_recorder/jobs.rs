//! Groups dumps into jobs, with one dump for each rank.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::dump::{Dump, Kind};
use super::files::{Contents, Found};
use super::rank;
use crate::ingest::Remark;
use crate::ingest::logs::Log;

/// The dumps of one job.
#[derive(Debug, Default)]
pub struct Job {
    /// Folder of the dumps.
    pub(super) folder: PathBuf,
    /// Dumps by rank.
    pub(super) ranks: BTreeMap<u32, Dump>,
    /// What is wrong with the dump of a rank.
    pub(super) unreadable: BTreeMap<u32, String>,
    /// Logs of the same job.
    pub(super) logs: Vec<Log>,
    /// The logs state that a wait was given up.
    pub(super) gave_up: bool,
}

/// A dump whose rank is known.
struct Ranked {
    rank: u32,
    path: PathBuf,
    dump: Dump,
}

/// Groups the contents of files into jobs. Dumps of different folders are one job unless they
/// contain a rank twice.
pub(super) fn of(contents: Vec<Contents>, remarks: &mut Vec<Remark>) -> Vec<Job> {
    let mut ranked: Vec<Ranked> = Vec::new();
    let mut unreadable: Vec<(PathBuf, String)> = Vec::new();
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
            ranked.extend(with_rank(found, remarks));
        }
    }
    let mut jobs: BTreeMap<PathBuf, Job> = BTreeMap::new();
    let shared = folders_of_several_jobs(&ranked);
    let place_of = |path: &Path| {
        let folder = folder(path);
        if shared.contains(&folder) {
            folder.join(rank::prefix(path))
        } else {
            folder
        }
    };
    let one_job = shared.is_empty() && is_one_job(&ranked);
    let first = common_folder(&ranked);
    for it in ranked {
        let own = place_of(&it.path);
        let key = first.clone().filter(|_| one_job).unwrap_or(own);
        let job = jobs.entry(key.clone()).or_default();
        job.folder = key;
        job.add(it, remarks);
    }
    for (path, text) in unreadable {
        let job = if one_job {
            jobs.values_mut().next()
        } else {
            jobs.get_mut(&place_of(&path))
        };
        if let (Some(job), Some(rank)) = (job, rank::named(&path)) {
            let text = format!("the dump cannot be read: {text}");
            job.unreadable.entry(rank).or_insert(text);
        }
        remarks.push(Remark { path, text });
    }
    jobs.into_values().collect()
}

/// The folder that contains all dumps.
fn common_folder(ranked: &[Ranked]) -> Option<PathBuf> {
    let mut folders = ranked.iter().map(|it| folder(&it.path));
    let first = folders.next()?;
    let common = folders.fold(first.clone(), |common, other| {
        let above = common.ancestors().find(|it| other.starts_with(it));
        above.map_or(first.clone(), Path::to_owned)
    });
    Some(common)
}

fn folder(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_owned()
}

/// Whether no two folders contain the same rank.
fn is_one_job(ranked: &[Ranked]) -> bool {
    let mut folders: BTreeMap<u32, BTreeSet<PathBuf>> = BTreeMap::new();
    for it in ranked {
        folders.entry(it.rank).or_default().insert(folder(&it.path));
    }
    folders.values().all(|folders| folders.len() == 1)
}

/// Folders in which names with different beginnings are those of different jobs: a rank is in several
/// of them, with calls of one backend, and no two were written at the same time.
fn folders_of_several_jobs(ranked: &[Ranked]) -> BTreeSet<PathBuf> {
    let mut by_prefix: BTreeMap<PathBuf, BTreeMap<String, Vec<&Ranked>>> = BTreeMap::new();
    for it in ranked {
        let of_folder = by_prefix.entry(folder(&it.path)).or_default();
        let alike = of_folder.entry(rank::prefix(&it.path)).or_default();
        alike.push(it);
    }
    let is_shared = |parts: &BTreeMap<String, Vec<&Ranked>>| {
        let mut first: BTreeMap<u32, &Dump> = BTreeMap::new();
        let is_repeated = parts.values().flatten().any(|it| {
            let known = first.insert(it.rank, &it.dump);
            known.is_some_and(|known| have_one_backend(known, &it.dump))
        });
        let mut periods: Vec<(u64, u64)> = parts.values().map(|part| period(part)).collect();
        periods.sort_unstable();
        is_repeated && periods.windows(2).all(|pair| pair[0].1 < pair[1].0)
    };
    let shared = by_prefix.into_iter().filter(|(_, parts)| is_shared(parts));
    shared.map(|(folder, _)| folder).collect()
}

/// Times of the first and of the latest call of some dumps.
fn period(dumps: &[&Ranked]) -> (u64, u64) {
    let periods = dumps.iter().map(|it| it.dump.period);
    let first = periods.clone().map(|it| it.0).min();
    let latest = periods.map(|it| it.1).max();
    (first.unwrap_or(0), latest.unwrap_or(0))
}

fn have_one_backend(one: &Dump, other: &Dump) -> bool {
    let backends = |dump: &Dump| -> BTreeSet<String> {
        let kinds = dump.kinds.iter();
        kinds.map(|it| it.group.backend.to_string()).collect()
    };
    !backends(one).is_disjoint(&backends(other))
}

/// The dump with its rank, by the name of its file unless its contents contradict.
fn with_rank(found: Found, remarks: &mut Vec<Remark>) -> Option<Ranked> {
    let Found { path, dump } = found;
    let named = rank::named(&path);
    let possible = rank::possible(&dump);
    let fits = |rank: &u32| possible.is_empty() || possible.contains(rank);
    let remark = |text: String| Remark {
        path: path.clone(),
        text,
    };
    let rank = match (named, &possible[..]) {
        (Some(rank), _) if fits(&rank) => rank,
        (named, &[only]) => {
            if named.is_some() {
                remarks.push(remark(format!("its contents are those of rank {only}")));
            }
            only
        }
        (named, _) => {
            let why = match named {
                Some(rank) => format!("the number {rank} in its name is no rank of its groups"),
                None => "the rank is in neither the file name nor the contents".into(),
            };
            let text = format!("{why}: end the name with the rank, as in `trace_rank_3`");
            remarks.push(remark(text));
            return None;
        }
    };
    let version = dump.version.split_once('.').map(|(major, _)| major);
    if version != Some("2") {
        let name = &dump.version;
        remarks.push(remark(format!(
            "version \"{name}\" of the format is unknown; 2 is assumed"
        )));
    }
    if let Some(cut) = &dump.cut {
        let calls = dump.entries.len();
        remarks.push(remark(format!(
            "{cut}: only its first {calls} calls are used"
        )));
    }
    if dump.skipped > 0 {
        let count = dump.skipped;
        remarks.push(remark(format!(
            "{count} entries lack their name, group or number"
        )));
    }
    let unknown = dump.count(|kind| !kind.is_known);
    if unknown > 0 {
        let text = format!("{unknown} entries are of operations that this version does not know");
        remarks.push(remark(text));
    }
    let odd = dump.count(|kind| !fits_its_group(&dump, kind));
    if odd > 0 {
        let text = format!(
            "the sizes of {odd} entries that gather or scatter do not fit the size of their group"
        );
        remarks.push(remark(text));
    }
    Some(Ranked { rank, path, dump })
}

/// Whether the pieces of all members make up the whole. PyTorch refuses calls of which that is not
/// true.
fn fits_its_group(dump: &Dump, kind: &Kind) -> bool {
    let members = dump
        .groups
        .get(&kind.group.name)
        .map_or(0, |it| it.members.len() as u64);
    let fits = |(whole, piece): (u64, u64)| piece.checked_mul(members) == Some(whole);
    members == 0 || kind.pieces.is_none_or(fits)
}

impl Job {
    /// Number of ranks of the job, as far as groups and dumps show it.
    pub(crate) fn world_size(&self) -> u32 {
        let dumps = self.ranks.values();
        let members = dumps.flat_map(|dump| dump.groups.values().flat_map(|it| it.members.iter()));
        let last = members.chain(self.ranks.keys()).max();
        last.map_or(0, |last| last + 1)
    }

    /// Folder of the dumps.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds the dump of a rank. Of two dumps of one backend the newer one is kept; those of
    /// different backends are combined.
    fn add(&mut self, new: Ranked, remarks: &mut Vec<Remark>) {
        let Some(known) = self.ranks.remove(&new.rank) else {
            self.ranks.insert(new.rank, new.dump);
            return;
        };
        if !have_one_backend(&known, &new.dump) {
            self.ranks.insert(new.rank, combine(known, new.dump));
            return;
        }
        remarks.push(Remark {
            path: new.path,
            text: format!(
                "there are several dumps of rank {}: the latest is used",
                new.rank
            ),
        });
        let newer = if new.dump.period.1 >= known.period.1 {
            new.dump
        } else {
            known
        };
        self.ranks.insert(new.rank, newer);
    }
}

/// The dumps of two recorders of one process, which number groups independently.
fn combine(mut one: Dump, other: Dump) -> Dump {
    /// Numbers of groups of the second recorder begin here.
    const OTHER: i64 = 1 << 32;
    let threads = other.threads.into_iter().map(|name| {
        let known = one.threads.iter().position(|it| *it == name);
        known.unwrap_or_else(|| {
            one.threads.push(name);
            one.threads.len() - 1
        }) as u32
    });
    let threads: Vec<u32> = threads.collect();
    let first = one.kinds.len();
    let kinds = other.kinds.iter().map(|kind| {
        Arc::new(Kind {
            index: first as u32 + kind.index,
            pg: kind.pg.saturating_add(OTHER),
            thread: threads[kind.thread as usize],
            ..Kind::clone(kind)
        })
    });
    one.kinds.extend(kinds);
    let shifted = other.entries.into_iter().map(|mut entry| {
        entry.kind = Arc::clone(&one.kinds[first + entry.index as usize]);
        entry
    });
    one.entries.extend(shifted);
    one.count += other.count;
    (one.is_whole, one.is_contiguous) = (false, false);
    let earliest = [one.period.0, other.period.0]
        .into_iter()
        .filter(|&at| at > 0);
    one.period = (
        earliest.min().unwrap_or(0),
        one.period.1.max(other.period.1),
    );
    one.entries.sort_by_key(|entry| entry.created);
    let status = other.status.into_iter();
    one.status
        .extend(status.map(|(id, status)| (id.saturating_add(OTHER), status)));
    for (name, config) in other.groups {
        one.groups.entry(name).or_insert(config);
    }
    one.written = one.written.max(other.written);
    one.skipped += other.skipped;
    one.cut = one.cut.or(other.cut);
    one
}
