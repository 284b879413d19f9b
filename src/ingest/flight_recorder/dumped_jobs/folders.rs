//! Which dumps of a folder, and of several folders and archives, are of one job.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Ranked, folder, ranks};
use crate::flight_recorder::dump::{Dump, Entry, have_one_backend};

/// Minimum time without a call, in nanoseconds, between dumps of one file name that are not of one job:
/// longer than any timeout.
const APART: u64 = 6 * 3600 * 1_000_000_000;

/// Dumps of one job.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// Where the dumps are: folders, with the beginning of file names where a folder has several jobs.
    pub(super) places: BTreeSet<PathBuf>,
    pub(super) dumps: Vec<Ranked>,
}

impl Part {
    /// The folder that contains all places.
    pub(super) fn folder(&self) -> PathBuf {
        let mut places = self.places.iter();
        let first = places.next().cloned().unwrap_or_default();
        places.fold(first, |common, other| {
            let above = common.ancestors().find(|it| other.starts_with(it));
            above.unwrap_or(Path::new("")).to_owned()
        })
    }
}

/// Merges the dumps of places into jobs, from the innermost folders outwards: what lies in one folder is
/// of one job if no two places have the same rank or different worlds, and their times are near.
pub(super) fn merge(by_place: BTreeMap<PathBuf, Vec<Ranked>>) -> Vec<Part> {
    let key = |folder: &Path| (Reverse(folder.components().count()), folder.to_owned());
    let mut open: BTreeMap<(Reverse<usize>, PathBuf), Vec<Part>> = BTreeMap::new();
    for (place, dumps) in by_place {
        let within = open.entry(key(&place)).or_default();
        let places = BTreeSet::from([place]);
        within.push(Part { places, dumps });
    }
    let mut outermost = Vec::new();
    while let Some(((_, folder), parts)) = open.pop_first() {
        let parts = merged(parts);
        match folder.parent() {
            Some(parent) => open.entry(key(parent)).or_default().extend(parts),
            None => outermost.extend(parts),
        }
    }
    // Relative and absolute paths have no folder in common.
    let mut parts = merged(outermost);
    parts.sort_by_cached_key(Part::folder);
    parts
}

fn merged(parts: Vec<Part>) -> Vec<Part> {
    if parts.len() < 2 || !are_one_job(&parts) {
        return parts;
    }
    let mut all = Part::default();
    for part in parts {
        all.places.extend(part.places);
        all.dumps.extend(part.dumps);
    }
    vec![all]
}

fn are_one_job(parts: &[Part]) -> bool {
    let mut ranks: HashSet<u32> = HashSet::new();
    let mut worlds: HashSet<Arc<[u32]>> = HashSet::new();
    let mut periods: Vec<(u64, u64)> = Vec::new();
    for part in parts {
        let own: HashSet<u32> = part.dumps.iter().map(|it| it.rank).collect();
        if own.iter().any(|rank| !ranks.insert(*rank)) {
            return false;
        }
        worlds.extend(world_of_newest(&part.dumps));
        periods.extend(Some(period(&part.dumps)).filter(|period| period.1 > 0));
    }
    periods.sort_unstable();
    let mut end = u64::MAX;
    let are_near = periods.iter().all(|(first, last)| {
        let is_near = *first <= end.saturating_add(APART);
        end = if end == u64::MAX { *last } else { end.max(*last) };
        is_near
    });
    worlds.len() < 2 && are_near
}

/// Folders in which names with different beginnings are those of different jobs: a rank is in several
/// of them, with calls of one backend, and they are of different processes, or no two were written at
/// the same time.
pub(super) fn folders_of_several_jobs(ranked: &[Ranked]) -> BTreeSet<PathBuf> {
    let mut by_prefix: BTreeMap<PathBuf, BTreeMap<String, Vec<&Ranked>>> = BTreeMap::new();
    for it in ranked {
        let of_folder = by_prefix.entry(folder(&it.path)).or_default();
        let alike = of_folder.entry(ranks::prefix(&it.path)).or_default();
        alike.push(it);
    }
    let is_shared = |parts: &BTreeMap<String, Vec<&Ranked>>| {
        let mut first: BTreeMap<u32, &Dump> = BTreeMap::new();
        let pairs = parts.values().flatten().filter_map(|it| {
            let known = first.insert(it.rank, &it.dump)?;
            have_one_backend(known, &it.dump).then_some((known, &it.dump))
        });
        let repeated: Vec<(&Dump, &Dump)> = pairs.collect();
        let mut periods: Vec<(u64, u64)> =
            parts.values().map(|part| period(part.iter().copied())).collect();
        periods.sort_unstable();
        let are_apart = periods.windows(2).all(|pair| pair[0].1 < pair[1].0);
        let differ = |(one, other): &(&Dump, &Dump)| are_of_other_processes(one, other);
        !repeated.is_empty() && (are_apart || repeated.iter().any(differ))
    };
    let shared = by_prefix.into_iter().filter(|(_, parts)| is_shared(parts));
    shared.map(|(folder, _)| folder).collect()
}

/// The dumps of the job with the latest call, and those that an earlier job left: their group of all
/// ranks has other members, or their calls are long before those of all others.
pub(super) fn of_latest(ranked: Vec<Ranked>) -> (Vec<Ranked>, Vec<Ranked>) {
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
fn world_of_newest(dumps: &[Ranked]) -> Option<Arc<[u32]>> {
    let newest = dumps.iter().filter(|it| world(it).is_some());
    newest.max_by_key(|it| it.dump.period.1).and_then(world)
}

/// Times of the first and of the latest call of some dumps.
fn period<'a>(dumps: impl IntoIterator<Item = &'a Ranked>) -> (u64, u64) {
    let periods: Vec<(u64, u64)> = dumps.into_iter().map(|it| it.dump.period).collect();
    let first = periods.iter().map(|it| it.0).min();
    let latest = periods.iter().map(|it| it.1).max();
    (first.unwrap_or(0), latest.unwrap_or(0))
}

/// Whether a call of one number was made at different times.
fn are_of_other_processes(one: &Dump, other: &Dump) -> bool {
    let times: BTreeMap<i64, u64> = one.entries().map(|it| (it.record, it.created)).collect();
    let is_other = |it: Entry<'_>| {
        let known = times.get(&it.record);
        known.is_some_and(|&known| known > 0 && it.created > 0 && known != it.created)
    };
    other.entries().any(is_other)
}
