//! Groups dumps into jobs, with one dump for each rank.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::dump::{Dump, Entry, Kind};
use super::files::{Contents, Found};
use super::merge::{self, Part};
use super::rank;
use crate::ingest::Remark;
use crate::ingest::logs::Log;

/// The dumps of one job.
#[derive(Debug, Default)]
pub struct Job {
    /// Name of the job: the end of its folder, as long as it takes to tell it from other jobs.
    pub(super) name: String,
    /// Folder of the dumps.
    pub(super) folder: PathBuf,
    /// Folders of the dumps, with the beginning of file names where a folder has several jobs.
    pub(super) places: BTreeSet<PathBuf>,
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
#[derive(Debug)]
pub(super) struct Ranked {
    pub(super) rank: u32,
    pub(super) path: PathBuf,
    pub(super) dump: Dump,
}

/// Groups dumps into jobs, and files that cannot be read with them.
pub(super) fn of(contents: Vec<Contents>, remarks: &mut Vec<Remark>) -> Vec<Job> {
    let mut ranked: Vec<Ranked> = Vec::new();
    let mut unreadable: Vec<(PathBuf, String)> = Vec::new();
    let from_one = counted_from_one(&contents);
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
            let first = from_one.contains(&series(&found.path)).into();
            ranked.extend(with_rank(found, first, remarks));
        }
    }
    let ranked = merge::without_copies(ranked, remarks);
    let shared = folders_of_several_jobs(&ranked);
    let place_of = |path: &Path| {
        let folder = folder(path);
        if shared.contains(&folder) { folder.join(rank::prefix(path)) } else { folder }
    };
    let mut by_place: BTreeMap<PathBuf, Vec<Ranked>> = BTreeMap::new();
    for it in ranked {
        by_place.entry(place_of(&it.path)).or_default().push(it);
    }
    let parts = merge::merge(by_place);
    let mut jobs: Vec<Job> = parts.into_iter().map(|it| Job::of(it, remarks)).collect();
    for (path, text) in unreadable {
        let job = nearest(&mut jobs, &place_of(&path));
        if let (Some(job), Some(rank)) = (job, rank::named(&path)) {
            let text = format!("the dump cannot be read: {text}");
            job.unreadable.entry(rank).or_insert(text);
        }
        remarks.push(Remark { path, text });
    }
    name(&mut jobs);
    jobs
}

/// The job with a place that has most folders in common with this one; `None`: several have.
fn nearest<'a>(jobs: &'a mut [Job], place: &Path) -> Option<&'a mut Job> {
    let common = |other: &PathBuf| {
        let folders = place.components().zip(other.components());
        folders.take_while(|(one, other)| one == other).count()
    };
    let shared = |job: &Job| job.places.iter().map(common).max().unwrap_or(0);
    let most = jobs.iter().map(shared).max()?;
    let mut nearest = jobs.iter_mut().filter(|job| shared(job) == most);
    let first = nearest.next()?;
    nearest.next().is_none().then_some(first)
}

/// Names jobs by the ends of their folders, each as long as it takes to tell the jobs apart.
fn name(jobs: &mut [Job]) {
    /// Maximum number of folders in a name.
    const LONGEST: usize = 8;
    let folders: Vec<Vec<String>> = jobs.iter().map(|job| ends(&job.folder)).collect();
    for len in 1..=LONGEST {
        let names: Vec<String> = folders.iter().map(|it| last(it, len)).collect();
        let mut count: BTreeMap<&String, u32> = BTreeMap::new();
        for name in &names {
            *count.entry(name).or_default() += 1;
        }
        for (job, name) in jobs.iter_mut().zip(&names) {
            let is_last = len == LONGEST;
            if job.name.is_empty() && (is_last || count[name] == 1) {
                job.name.clone_from(name);
            }
        }
    }
}

/// The last of the folders of a path, joined.
fn last(folders: &[String], len: usize) -> String {
    folders[folders.len().saturating_sub(len)..].join("/")
}

/// The folders of a path, outermost first; at least one.
fn ends(path: &Path) -> Vec<String> {
    // An empty path is the current folder.
    let path = if path.file_name().is_some() {
        std::path::absolute(path)
    } else {
        Path::new(".").join(path).canonicalize()
    };
    let path = path.unwrap_or_default();
    let folders = path.iter().skip(1);
    let folders: Vec<String> = folders.map(|it| it.to_string_lossy().into_owned()).collect();
    if folders.is_empty() {
        return vec!["/".into()];
    }
    folders
}

pub(super) fn folder(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_owned()
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
        let periods = parts.values().map(|part| period(part.iter().copied()));
        let mut periods: Vec<(u64, u64)> = periods.collect();
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
pub(super) const APART: u64 = 6 * 3600 * 1_000_000_000;

/// The dumps of the job with the latest call, and those that an earlier job left: their group of all
/// ranks has other members, or their calls are long before those of all others.
fn of_latest(ranked: Vec<Ranked>) -> (Vec<Ranked>, Vec<Ranked>) {
    let newest = world_of_newest(&ranked);
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

/// Members of the group of all ranks, as far as the dump names it.
fn world(it: &Ranked) -> Option<Arc<[u32]>> {
    let config = it.dump.groups.get("0")?;
    (&*config.description == "default_pg").then(|| Arc::clone(&config.members))
}

/// Members of the group of all ranks in the dump with the latest call that names it.
pub(super) fn world_of_newest(dumps: &[Ranked]) -> Option<Arc<[u32]>> {
    let newest = dumps.iter().filter(|it| world(it).is_some());
    newest.max_by_key(|it| it.dump.period.1).and_then(world)
}

/// Times of the first and of the latest call of some dumps.
pub(super) fn period<'a>(dumps: impl IntoIterator<Item = &'a Ranked>) -> (u64, u64) {
    let periods: Vec<(u64, u64)> = dumps.into_iter().map(|it| it.dump.period).collect();
    let periods = periods.iter();
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

/// The files among which one has the number of its rank: a folder, and the beginning of their names.
fn series(path: &Path) -> (PathBuf, String) {
    (folder(path), rank::prefix(path))
}

/// Series whose numbers count from one: one number is that of the highest rank plus one, and none is 0.
fn counted_from_one(contents: &[Contents]) -> BTreeSet<(PathBuf, String)> {
    let mut numbers: BTreeMap<(PathBuf, String), (u32, bool)> = BTreeMap::new();
    for Found { path, dump } in contents.iter().flat_map(|it| &it.dumps) {
        let Some(number) = rank::named(path) else {
            continue;
        };
        let possible = rank::possible(dump);
        let is_above =
            possible.len() > 1 && possible.iter().max() == number.checked_sub(1).as_ref();
        let known = numbers.entry(series(path)).or_insert((number, false));
        *known = (known.0.min(number), known.1 || is_above);
    }
    numbers.retain(|_, (lowest, is_above)| *lowest > 0 && *is_above);
    numbers.into_keys().collect()
}

/// The dump with its rank, by the name of its file unless its contents contradict; `first`: the number of rank 0.
fn with_rank(found: Found, first: u32, remarks: &mut Vec<Remark>) -> Option<Ranked> {
    let Found { path, dump } = found;
    let named = rank::named(&path).and_then(|it| it.checked_sub(first));
    let possible = rank::possible(&dump);
    let fits = |rank: &u32| possible.is_empty() || possible.contains(rank);
    let remark = |text: String| Remark { path: path.clone(), text };
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
        remarks.push(remark(format!("version \"{name}\" of the format is unknown; 2 is assumed")));
    }
    if let Some(cut) = &dump.cut {
        let calls = match dump.entries.len() {
            1 => "call is".to_owned(),
            calls => format!("{calls} calls are"),
        };
        remarks.push(remark(format!("{cut}: only its first {calls} used")));
    }
    if dump.skipped > 0 {
        let count = dump.skipped;
        remarks.push(remark(format!("{count} entries lack their name, group or number")));
    }
    if dump.count > 0 && dump.period.1 == 0 {
        remarks.push(remark("its calls have no usable times".into()));
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
    let members = dump.groups.get(&kind.group.name).map_or(0, |it| it.members.len() as u64);
    let fits = |(whole, piece): (u64, u64)| piece.checked_mul(members) == Some(whole);
    members == 0 || kind.pieces.is_none_or(fits)
}

impl Job {
    fn of(part: Part, remarks: &mut Vec<Remark>) -> Self {
        let mut job = Self { folder: part.folder(), places: part.places, ..Self::default() };
        let (latest, others) = of_latest(part.dumps);
        for it in latest {
            job.add(it, remarks);
        }
        for it in others {
            let text = "the dump is of another job, whose last call was earlier";
            job.unreadable.insert(it.rank, text.into());
            let text = format!("{text}: it is left out");
            remarks.push(Remark { path: it.path, text });
        }
        job
    }

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
            text: format!("there are several dumps of rank {}: the latest is used", new.rank),
        });
        let newer = if new.dump.period.1 >= known.period.1 { new.dump } else { known };
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
    let earliest = [one.period.0, other.period.0].into_iter().filter(|&at| at > 0);
    one.period = (earliest.min().unwrap_or(0), one.period.1.max(other.period.1));
    one.entries.sort_by_key(|entry| entry.created);
    let status = other.status.into_iter();
    one.status.extend(status.map(|(id, status)| (id.saturating_add(OTHER), status)));
    for (name, config) in other.groups {
        one.groups.entry(name).or_insert(config);
    }
    one.written = one.written.max(other.written);
    one.skipped += other.skipped;
    one.cut = one.cut.or(other.cut);
    one
}
