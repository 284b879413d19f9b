//! Collectives that all of their ranks completed alike, long ago. The engine does not need them: of
//! 1 024 ranks with 2 000 calls each, few calls concern the stall.

use std::collections::BTreeMap;

use super::groups::Groups;
use super::jobs::Job;

/// Number of calls of all ranks that are kept in any case: the latest ones of each.
const KEPT: usize = 1 << 16;
/// Smallest and largest number of calls kept of each rank.
const KEPT_EACH: [usize; 2] = [16, 512];
/// A group whose numbers are spread wider than this, relative to its calls, is not examined.
const SPREAD: u64 = 4;

/// The collectives of one group, by number.
struct Seen {
    first: u64,
    /// Signature of each collective; `None`: its calls differ, or one is not complete.
    calls: Vec<Option<u64>>,
}

/// Signature of a collective without calls.
const NONE: u64 = 0;

/// Removes settled collectives from the dumps of a job. Progress and peers in `groups` remain.
pub(super) fn remove(job: &mut Job, groups: &Groups) {
    let each = KEPT / job.ranks.len().max(1);
    remove_beyond(job, groups, each.clamp(KEPT_EACH[0], KEPT_EACH[1]));
}

/// Removes settled collectives before the latest `kept` calls of each rank.
pub(super) fn remove_beyond(job: &mut Job, groups: &Groups, kept: usize) {
    if job.ranks.values().all(|dump| dump.entries.len() <= kept) {
        return;
    }
    let seen = seen(job, groups);
    for (&rank, dump) in &mut job.ranks {
        let of_kind = groups.by_kind(rank);
        let last = dump.entries.len().saturating_sub(kept);
        let mut at = 0;
        dump.entries.retain(|entry| {
            at += 1;
            let is_late = at > last;
            let group = of_kind.get(entry.index as usize).copied().flatten();
            is_late || entry.is_message || !group.is_some_and(|group| {
                let seq = groups.all[group].seq(entry);
                seen.get(&group).is_some_and(|it| it.is_settled(seq))
            })
        });
        dump.entries.shrink_to_fit();
    }
}

fn seen(job: &Job, groups: &Groups) -> BTreeMap<usize, Seen> {
    // First and last number, and the number of calls.
    let mut ranges: BTreeMap<usize, (u64, u64, u64)> = BTreeMap::new();
    for_each(job, groups, |group, seq, _, _| {
        let range = ranges.entry(group).or_insert((seq, seq, 0));
        *range = (range.0.min(seq), range.1.max(seq), range.2 + 1);
    });
    ranges.retain(|_, (first, last, calls)| *last - *first < *calls * SPREAD);
    let seen = ranges.into_iter().map(|(group, (first, last, _))| {
        // All ranks with a dump have made the calls up to here.
        let progress = groups.all[group].progress.values();
        let issued = progress.map(|it| it.issued).min().unwrap_or(0);
        let len = (last.min(issued) + 1).saturating_sub(first) as usize;
        let calls = vec![Some(NONE); len];
        (group, Seen { first, calls })
    });
    let mut seen: BTreeMap<usize, Seen> = seen.collect();
    for_each(job, groups, |group, seq, signature, is_complete| {
        let Some(known) = seen.get_mut(&group).and_then(|it| it.at(seq)) else {
            return;
        };
        *known = match *known {
            Some(NONE) if is_complete => Some(signature),
            Some(it) if is_complete && it == signature => *known,
            _ => None,
        };
    });
    seen
}

/// Passes group, number, signature and completion of all collectives.
fn for_each(job: &Job, groups: &Groups, mut take: impl FnMut(usize, u64, u64, bool)) {
    for (&rank, dump) in &job.ranks {
        let of_kind = groups.by_kind(rank);
        for entry in dump.entries.iter().filter(|entry| !entry.is_message) {
            let Some(group) = of_kind.get(entry.index as usize).copied().flatten() else {
                continue;
            };
            let of = &groups.all[group];
            let seq = of.seq(entry);
            let by_status = of.progress.get(&rank).is_some_and(|it| seq <= it.completed);
            let is_complete = entry.is_complete() || by_status;
            take(group, seq, entry.signature.max(NONE + 1), is_complete);
        }
    }
}

impl Seen {
    fn at(&mut self, seq: u64) -> Option<&mut Option<u64>> {
        self.calls.get_mut(usize::try_from(seq.checked_sub(self.first)?).ok()?)
    }

    fn is_settled(&self, seq: u64) -> bool {
        let at = seq.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let call = at.and_then(|at| self.calls.get(at).copied()).flatten();
        call.is_some_and(|it| it != NONE)
    }
}
