//! The calls of one rank as the engine counts them: a coalesced group is one collective, and every
//! call is complete or not.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::groups::{DumpedGroup, GroupAt, Groups};
use crate::flight_recorder::dump::{Dump, Entry, State, silent_backends};

/// Launch of the calls that counters alone show.
const COUNTED_LAUNCH: u32 = 1;

/// One or more entries that are one call.
#[derive(Clone, Debug)]
pub(in super::super) struct Unit {
    /// Indexes of its entries in the dump, without the entry that ends a coalesced group.
    pub(in super::super) entries: Range<usize>,
    pub(in super::super) group: GroupAt,
    /// Number of a collective, beginning with 1; for messages, 0.
    pub(in super::super) seq: u64,
    pub(in super::super) is_message: bool,
    /// Its device completed it, or its backend ended it.
    pub(in super::super) is_complete: bool,
    /// Calls with the same number were launched together; 0: launched alone.
    pub(in super::super) launch: u32,
}

/// The calls of a rank.
#[derive(Debug, Default)]
pub(in super::super) struct Calls<'a> {
    /// The entries of its dump.
    pub(in super::super) entries: Vec<Entry<'a>>,
    pub(in super::super) units: Vec<Unit>,
    /// Index of the last call of each thread.
    pub(in super::super) last_of_thread: BTreeMap<u32, usize>,
    /// The dump contains no call that was complete before an earlier one: all calls may have been
    /// made on one stream. Otherwise each group has one of its own.
    pub(in super::super) one_stream: bool,
}

/// What the calls of one kind have in common.
#[derive(Clone, Copy)]
struct OfKind {
    group: GroupAt,
    /// Latest collective that the device of the rank is known to have completed.
    completed: u64,
    /// Calls are complete once their backend has retired them.
    are_ended_by_retiring: bool,
    /// Its backend never records completion.
    is_silent: bool,
}

impl<'a> Calls<'a> {
    pub(in super::super) fn new(rank: u32, dump: &'a Dump, groups: &Groups) -> Self {
        let entries: Vec<Entry<'_>> = dump.entries().collect();
        let silent = silent_backends(dump, &entries);
        let kinds: Vec<Option<OfKind>> = dump
            .kinds
            .iter()
            .map(|kind| {
                let group = groups.of_kind(rank, kind)?;
                let is_silent = silent.contains(&kind.group.backend);
                Some(OfKind {
                    group,
                    completed: groups.all[group].progress.get(&rank).map_or(0, |it| it.completed),
                    are_ended_by_retiring: kind.group.is_on_host || is_silent,
                    is_silent,
                })
            })
            .collect();
        let of_kind = |entry: &Entry<'_>| kinds[entry.index as usize];
        let unended = unended_batches(dump, &entries);
        let ends: BTreeSet<(&str, u64)> = entries
            .iter()
            .filter(|entry| entry.ends_group)
            .flat_map(|it| [it.seq, it.seq_of_messages].map(|seq| (&*it.kind.group.name, seq)))
            .collect();
        let mut units: Vec<Unit> = Vec::with_capacity(entries.len());
        let mut next = 0;
        // Entries of other groups may lie between those of a coalesced group.
        let mut taken: BTreeSet<usize> = BTreeSet::new();
        // Calls that counters alone show may have been launched in any order.
        let mut launches = COUNTED_LAUNCH;
        while next < entries.len() {
            let at = next;
            next += 1;
            if taken.remove(&at) {
                continue;
            }
            let entry = &entries[at];
            let Some(kind) = of_kind(entry) else {
                continue;
            };
            let of = &groups.all[kind.group];
            let together = if ends.contains(&(&*entry.group.name, entry.seq)) {
                coalesced(&entries, at)
            } else {
                Vec::new()
            };
            let Some((&end, inner)) = together.split_last().filter(|(_, it)| !it.is_empty()) else {
                let launch = if entry.is_counted() { COUNTED_LAUNCH } else { 0 };
                units.push(unit(of, kind, entry, at..at + 1, (entry, kind), launch));
                continue;
            };
            taken.extend(together.iter().filter(|&&it| it != at));
            launches += 1;
            let end = (&entries[end], of_kind(&entries[end]).unwrap_or(kind));
            if entry.is_message {
                let each =
                    inner.iter().map(|&at| unit(of, kind, &entries[at], at..at + 1, end, launches));
                units.extend(each);
            } else {
                // One call: its entries follow each other, or those of other groups are between.
                let last = inner.iter().zip(at..).take_while(|(a, b)| **a == *b).count();
                let range = at..at + last.max(1);
                units.push(unit(of, kind, entry, range, end, launches));
            }
        }
        for unit in units.iter_mut().filter(|unit| unit.is_message) {
            unit.is_complete |= unended.contains(&unit.entries.start);
        }
        let mut last_of_thread = vec![None; dump.threads.len()];
        for (at, unit) in units.iter().enumerate() {
            last_of_thread[entries[unit.entries.start].thread as usize] = Some(at);
        }
        let last_of_thread =
            (0..).zip(last_of_thread).filter_map(|(thread, at)| Some((thread, at?))).collect();
        let mut calls = Self { entries, units, last_of_thread, one_stream: true };
        if !silent.is_empty() {
            calls.open_unmet(groups, &kinds);
        }
        calls.one_stream = calls.is_in_order();
        calls
    }

    /// The entry of a call, or its first one.
    pub(in super::super) fn entry(&self, unit: &Unit) -> &Entry<'a> {
        &self.entries[unit.entries.start]
    }

    /// On a backend that never records completion, calls that another rank has not made are not
    /// complete.
    fn open_unmet(&mut self, groups: &Groups, kinds: &[Option<OfKind>]) {
        for unit in &mut self.units {
            let kind = kinds[self.entries[unit.entries.start].index as usize];
            if kind.is_some_and(|kind| kind.is_silent) {
                unit.is_complete = groups.all[unit.group].is_made_by_all(unit.seq);
            }
        }
    }

    /// Whether no call was started or completed before an earlier one was complete.
    fn is_in_order(&self) -> bool {
        let open = self.units.iter().position(|unit| !unit.is_complete);
        let later = open.map_or(&[][..], |at| &self.units[at + 1..]);
        let is_ahead = |unit: &Unit| unit.is_complete || self.entry(unit).state == State::Started;
        !later.iter().any(is_ahead)
    }
}

/// A call of these entries; `end`: the entry that has its state, and what that has in common with others of its kind.
fn unit(
    group: &DumpedGroup,
    kind: OfKind,
    entry: &Entry<'_>,
    entries: Range<usize>,
    (end, end_kind): (&Entry<'_>, OfKind),
    launch: u32,
) -> Unit {
    let seq = if entry.is_message { 0 } else { group.seq(entry) };
    let is_ended = end.retired && end_kind.are_ended_by_retiring;
    Unit {
        entries,
        group: kind.group,
        seq,
        is_message: entry.is_message,
        is_complete: end.state == State::Completed
            || is_ended
            || (seq > 0 && seq <= kind.completed),
        launch,
    }
}

/// Indexes of the entries of the coalesced group that begins at an entry, in order; empty: it is no
/// such group. They have one number, and the last one ends the group.
fn coalesced(entries: &[Entry<'_>], at: usize) -> Vec<usize> {
    /// Maximum distance between the first and the last entry of a coalesced group.
    const REACH: usize = 4096;
    let first = &entries[at];
    let number = |entry: &Entry<'_>| {
        if first.is_message { entry.seq_of_messages } else { entry.seq }
    };
    let mut found = vec![at];
    let later = entries.iter().enumerate().skip(at + 1).take(REACH);
    for (at, entry) in later {
        if entry.group.name != first.group.name {
            continue;
        }
        if number(entry) != number(first) {
            break;
        }
        found.push(at);
        if entry.ends_group {
            return found;
        }
    }
    Vec::new()
}

/// Indexes of messages of batches that are complete although the dump does not say so. PyTorch
/// records completion in the entry that ends a batch alone, and a dump of incomplete calls leaves that
/// entry out once it is complete. Its messages remain, and are complete if the thread made later calls.
fn unended_batches(dump: &Dump, entries: &[Entry<'_>]) -> BTreeSet<usize> {
    if !dump.kinds.iter().any(|kind| kind.is_message) {
        return BTreeSet::new();
    }
    let number_of = |entry: &Entry<'_>| (Arc::as_ptr(&entry.group), entry.seq_of_messages);
    let mut ended = HashSet::new();
    let mut batches = HashMap::new();
    let mut last: HashMap<u32, usize> = HashMap::new();
    for (at, entry) in entries.iter().enumerate() {
        last.insert(entry.thread, at);
        if entry.ends_group {
            ended.insert(number_of(entry));
        } else if entry.is_message {
            *batches.entry(number_of(entry)).or_insert(0_usize) += 1;
        }
    }
    let messages = entries.iter().enumerate().filter(|(_, it)| it.is_message);
    let is_unended = |(at, entry): &(usize, &Entry<'_>)| {
        let number = number_of(entry);
        let is_batched = entry.is_batched || batches.get(&number).is_some_and(|&it| it > 1);
        let goes_on = last
            .get(&entry.thread)
            .is_some_and(|&last| last > *at && number_of(&entries[last]) != number);
        is_batched && goes_on && entry.seq_of_messages > 0 && !ended.contains(&number)
    };
    messages.filter(is_unended).map(|(at, _)| at).collect()
}
