//! Dumps that were written before those of their peers. A collective that needs all members is not
//! complete on one rank before all others have issued it, so that the dumps are not of one moment. What
//! the rank did later is unknown, as if there were no dump of it.

use std::collections::BTreeMap;

use crate::flight_recorder::calls::{Calls, DumpedGroup, GroupAt, Groups, Unit};
use crate::flight_recorder::dump::{Dump, Entry};
use crate::flight_recorder::dumped_jobs::DumpedJob;
use ddp_doctor_proto::vocabulary::Direction;

/// Moves dumps that are older than those of their peers to those that cannot be used. Returns whether
/// there are any.
pub(super) fn set_aside(job: &mut DumpedJob, groups: &Groups) -> bool {
    let older = find(job, groups);
    // Each of two dumps that is older than the other: they are of no one run, and show no order.
    if older.len() == job.ranks.len() {
        return false;
    }
    for (&rank, text) in &older {
        job.ranks.remove(&rank);
        job.unreadable.insert(rank, text.clone());
    }
    !older.is_empty()
}

/// The latest collective of a group that is complete on a rank.
#[derive(Clone, Copy)]
struct Completed<'a> {
    seq: u64,
    rank: u32,
    entry: Entry<'a>,
}

/// Ranks with older dumps, and what shows it.
fn find(job: &DumpedJob, groups: &Groups) -> BTreeMap<u32, String> {
    // By group: the latest collective of any kind, and the latest one that needs all members.
    let mut latest: Vec<[Option<Completed<'_>>; 2]> = vec![[None; 2]; groups.all.len()];
    let mut open: BTreeMap<(GroupAt, u32), u64> = BTreeMap::new();
    for (&rank, dump) in &job.ranks {
        let calls = Calls::new(rank, dump, groups);
        for unit in calls.units.iter().filter(|it| !it.is_message) {
            let (seq, entry) = (unit.seq, calls.entry(unit));
            let is_symmetric = entry.op.direction() == Direction::Symmetric;
            if unit.is_complete && completed_in_time(dump, entry) {
                for known in latest[unit.group].iter_mut().take(1 + usize::from(is_symmetric)) {
                    if known.is_none_or(|known| known.seq < seq) {
                        *known = Some(Completed { seq, rank, entry: *entry });
                    }
                }
            } else if is_behind(unit, entry) {
                let first = open.entry((unit.group, rank)).or_insert(seq);
                *first = seq.min(*first);
            }
        }
    }
    let mut older = BTreeMap::new();
    for (at, (group, [any, symmetric])) in groups.all.iter().zip(latest).enumerate() {
        for (&rank, progress) in &group.progress {
            let dump = &job.ranks[&rank];
            let is_empty = dump.is_empty() && !dump.is_partial();
            // Calls that could not be read may be the latest ones.
            let lacks = |seq: u64| progress.lacks(seq) && !dump.is_partial();
            let is_older = |it: &Completed<'_>| {
                let is_open = open.get(&(at, rank)).is_some_and(|&seq| seq < it.seq);
                is_empty || lacks(it.seq) || is_open
            };
            if let Some(shown) = (if is_empty { any } else { symmetric }).filter(is_older) {
                older.entry(rank).or_insert_with(|| text(group, shown, is_empty));
            }
        }
    }
    older
}

/// Whether an incomplete call shows that its device has not begun later ones of the group. Calls on
/// hosts overlap.
fn is_behind(unit: &Unit, entry: &Entry<'_>) -> bool {
    !unit.is_complete && !entry.group.is_on_host
}

/// Whether a call was not ended by its timeout. When a call on a host was ended is not recorded.
fn completed_in_time(dump: &Dump, entry: &Entry<'_>) -> bool {
    let timeout = entry.timeout_ms.map(|it| it.saturating_mul(1_000_000));
    let latest = entry.created.saturating_add(timeout.unwrap_or(u64::MAX));
    if entry.group.is_on_host {
        dump.written.is_some_and(|written| written < latest)
    } else {
        entry.completed < latest
    }
}

fn text(group: &DumpedGroup, shown: Completed<'_>, is_empty: bool) -> String {
    let Completed { seq, rank, entry } = shown;
    let state = if is_empty { "is empty" } else { "is older than those of other ranks" };
    format!(
        "the dump {state}: {} #{seq} of {} is complete on rank {rank}",
        entry.op, group.info.description
    )
}
