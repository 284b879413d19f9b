//! Which dumps of several folders and archives are of one job, and which are copies.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::dump::Dump;
use super::jobs::{APART, Ranked, folder, period, world_of_newest};
use crate::ingest::Remark;

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
            let mut above = common.ancestors();
            let above = above.find(|it| other.starts_with(it));
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

/// Removes copies of dumps: of two that contain the same calls, the one that states their lines is kept.
pub(super) fn without_copies(ranked: Vec<Ranked>, remarks: &mut Vec<Remark>) -> Vec<Ranked> {
    let mut kept: Vec<Ranked> = Vec::new();
    let mut known: HashMap<(u32, u64), usize> = HashMap::new();
    // Ranks of copies, by their folder and that of the others.
    let mut copies: BTreeMap<(PathBuf, PathBuf), Vec<u32>> = BTreeMap::new();
    let mut dumps: HashMap<u32, usize> = HashMap::new();
    for it in &ranked {
        *dumps.entry(it.rank).or_default() += 1;
    }
    for it in ranked {
        if dumps[&it.rank] == 1 {
            // Most jobs have one dump of each rank: reading all of its calls once more would be waste.
            kept.push(it);
            continue;
        }
        let at = known.entry((it.rank, contents(&it.dump))).or_insert(kept.len());
        if it.dump.period.1 == 0 || *at == kept.len() {
            kept.push(it);
            continue;
        }
        let first = &mut kept[*at];
        let ranks = copies.entry((folder(&it.path), folder(&first.path)));
        ranks.or_default().push(it.rank);
        let written = first.dump.written.max(it.dump.written);
        let has_lines = |dump: &Dump| dump.kinds.iter().any(|kind| kind.place.is_some());
        if has_lines(&it.dump) && !has_lines(&first.dump) {
            *first = it;
        }
        first.dump.written = written;
    }
    remarks.extend(copies.into_iter().map(|((path, original), ranks)| {
        let what = match &ranks[..] {
            [rank] => format!("rank {rank}"),
            _ => format!("{} ranks", ranks.len()),
        };
        let elsewhere = if path == original {
            String::new()
        } else {
            format!(", also in {}", original.display())
        };
        let text = format!(
            "there are several dumps of {what} with the same calls{elsewhere}: one is used"
        );
        Remark { path, text }
    }));
    kept
}

/// Hash of the groups and calls of a dump, without what some formats leave out.
fn contents(dump: &Dump) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (name, config) in &dump.groups {
        (name, &config.members).hash(&mut hasher);
    }
    for entry in &dump.entries {
        let number = (entry.record, entry.seq, entry.seq_of_messages);
        (number, entry.created, entry.is_complete()).hash(&mut hasher);
    }
    hasher.finish()
}
