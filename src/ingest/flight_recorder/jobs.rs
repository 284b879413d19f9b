//! Groups dumps into jobs, with one dump for each rank.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::dump::{Dump, Entry, Kind};
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
    let mut by_place: BTreeMap<PathBuf, Vec<Ranked>> = BTreeMap::new();
    for it in ranked {
        let own = place_of(&it.path);
        let key = first.clone().filter(|_| one_job).unwrap_or(own);
        by_place.entry(key).or_default().push(it);
    }
    for (folder, ranked) in by_place {
        let mut job = Job::default();
        let (latest, others) = of_latest(ranked);
        for it in latest {
            job.add(it, remarks);
        }
        for it in others {
            let text = "the dump is of another job, whose last call was earlier";
            job.unreadable.insert(it.rank, text.into());
            let text = format!("{text}: it is left out");
            remarks.push(Remark {
                path: it.path,
                text,
            });
        }
        job.folder.clone_from(&folder);
        jobs.insert(folder, job);
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
/// of them, with calls of one backend, and they are of different processes, or no two were written at
/// the same time.
fn folders_of_several_jobs(ranked: &[Ranked]) -> BTreeSet<PathBuf> {
    let mut by_prefix: BTreeMap<PathBuf, BTreeMap<String, Vec<&Ranked>>> = BTreeMap::new();
    for it in ranked {
        let of_folder = by_prefix.entry(folder(&it.path)).or_default();
        let alike = of_folder.entry(rank::prefix(&it.path)).or_default();
        alike.push(it);
    }
    let is_shared = |parts: &BTreeMap<String, Vec<&Ranked>>| {
        let mut first: BTreeMap<u32, &Dump> = BTreeMap::new();
        let repeated = parts.values().flatten().filter_map(|it| {
            let known = first.insert(it.rank, &it.dump)?;
            have_one_backend(known, &it.dump).then_some((known, &it.dump))
        });
        let repeated: Vec<(&Dump, &Dump)> = repeated.collect();
        let mut periods: Vec<(u64, u64)> = parts.values().map(|part| period(part)).collect();
        periods.sort_unstable();
        let are_apart = periods.windows(2).all(|pair| pair[0].1 < pair[1].0);
        let differ = |(one, other): &(&Dump, &Dump)| are_of_other_processes(one, other);
        !repeated.is_empty() && (are_apart || repeated.iter().any(differ))
    };
    let shared = by_prefix.into_iter().filter(|(_, parts)| is_shared(parts));
    shared.map(|(folder, _)| folder).collect()
}

/// Minimum time without a call, in nanoseconds, between dumps of one file name that are not of one job:
/// longer than any timeout.
const APART: u64 = 6 * 3600 * 1_000_000_000;

/// The dumps of the job with the latest call, and those that an earlier job left: their group of all
/// ranks has other members, or their calls are long before those of all others.
fn of_latest(ranked: Vec<Ranked>) -> (Vec<Ranked>, Vec<Ranked>) {
    let world = |it: &Ranked| {
        let config = it.dump.groups.get("0")?;
        (&*config.description == "default_pg").then(|| Arc::clone(&config.members))
    };
    let newest = ranked.iter().filter(|it| world(it).is_some());
    let newest = newest.max_by_key(|it| it.dump.period.1).and_then(world);
    let is_of_world = |it: &Ranked| world(it).is_none_or(|own| Some(own) == newest);
    let (ranked, mut others): (Vec<_>, Vec<_>) = ranked.into_iter().partition(is_of_world);
    let mut periods: Vec<(u64, u64)> = ranked.iter().map(|it| it.dump.period).collect();
    periods.sort_unstable_by_key(|period| Reverse(period.1));
    let mut begin = 0;
    for (first, last) in periods {
        if begin > last.saturating_add(APART) {
            break;
        }
        begin = if begin == 0 { first } else { begin.min(first) };
    }
    // Dumps without times are of any job.
    let is_near = |it: &Ranked| {
        let last = it.dump.period.1;
        last == 0 || last.saturating_add(APART) >= begin
    };
    let (latest, earlier): (Vec<_>, Vec<_>) = ranked.into_iter().partition(is_near);
    others.extend(earlier);
    (latest, others)
}

/// Times of the first and of the latest call of some dumps.
fn period(dumps: &[&Ranked]) -> (u64, u64) {
    let periods = dumps.iter().map(|it| it.dump.period);
    let first = periods.clone().map(|it| it.0).min();
    let latest = periods.map(|it| it.1).max();
    (first.unwrap_or(0), latest.unwrap_or(0))
}

/// Whether a call of one number was made at different times.
fn are_of_other_processes(one: &Dump, other: &Dump) -> bool {
    let entries = one.entries.iter();
    let times: BTreeMap<i64, u64> = entries.map(|it| (it.record, it.created)).collect();
    let is_other = |it: &Entry| {
        let known = times.get(&it.record);
        known.is_some_and(|&known| known > 0 && it.created > 0 && known != it.created)
    };
    other.entries.iter().any(is_other)
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
