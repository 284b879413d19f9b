//! Several dumps of one rank: copies, dumps of different times, and those of two recorders of one process.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use super::{DumpedJob, Ranked, folder};
use crate::Remark;
use crate::flight_recorder::dump::{Dump, Entry, Kind, have_one_backend};

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
    for entry in dump.entries() {
        let number = (entry.record, entry.seq, entry.seq_of_messages);
        (number, entry.created, entry.is_complete()).hash(&mut hasher);
    }
    hasher.finish()
}

impl DumpedJob {
    /// Adds the dump of a rank. Of two dumps of one backend the newer one is kept; those of
    /// different backends are combined.
    pub(super) fn add(&mut self, new: Ranked, remarks: &mut Vec<Remark>) {
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
    let threads: Vec<u32> = other
        .threads
        .iter()
        .map(|name| {
            let known = one.threads.iter().position(|it| it == name);
            known.unwrap_or_else(|| {
                one.threads.push(Arc::clone(name));
                one.threads.len() - 1
            }) as u32
        })
        .collect();
    let first = one.kinds.len();
    let kinds = other.kinds.iter().map(|kind| Kind {
        index: first as u32 + kind.index,
        pg: kind.pg.saturating_add(OTHER),
        thread: threads[kind.thread as usize],
        ..Kind::clone(kind)
    });
    one.kinds.extend(kinds);
    let shifted = other
        .entries()
        .map(|entry| Entry { kind: &one.kinds[first + entry.index as usize], ..entry });
    let mut entries: Vec<Entry<'_>> = one.entries().chain(shifted).collect();
    entries.sort_by_key(|entry| entry.created);
    one.packed = entries.into_iter().collect();
    one.count += other.count;
    (one.is_whole, one.is_contiguous) = (false, false);
    let earliest = [one.period.0, other.period.0].into_iter().filter(|&at| at > 0);
    one.period = (earliest.min().unwrap_or(0), one.period.1.max(other.period.1));
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
