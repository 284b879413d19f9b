//! The calls of one rank as the engine counts them: a coalesced group is one collective, and every
//! call is complete or not.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::groups::{GroupAt, Groups};
use crate::flight_recorder::dump::{Dump, Entry, State, is_on_host, silent_backends};

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
pub(in super::super) struct Calls {
    pub(in super::super) units: Vec<Unit>,
    /// Index of the last call of each thread.
    pub(in super::super) last_of_thread: BTreeMap<u32, usize>,
    /// The dump contains no call that was complete before an earlier one: all calls may have been
    /// made on one stream. Otherwise each group has one of its own.
    pub(in super::super) one_stream: bool,
}

impl Calls {
    pub(in super::super) fn new(rank: u32, dump: &Dump, groups: &Groups) -> Self {
        let silent = silent_backends(dump);
        let unended = unended_batches(dump);
        let ends: BTreeSet<(&str, u64)> = dump
            .entries
            .iter()
            .filter(|entry| entry.ends_group)
            .flat_map(|it| [it.seq, it.seq_of_messages].map(|seq| (&*it.group.name, seq)))
            .collect();
        let mut units: Vec<Unit> = Vec::new();
        let mut next = 0;
        // Entries of other groups may lie between those of a coalesced group.
        let mut taken: BTreeSet<usize> = BTreeSet::new();
        // Calls that counters alone show may have been launched in any order.
        let mut launches = COUNTED_LAUNCH;
        while next < dump.entries.len() {
            let at = next;
            next += 1;
            if taken.remove(&at) {
                continue;
            }
            let entry = &dump.entries[at];
            let Some(group) = groups.of_kind(rank, entry) else {
                continue;
            };
            let together = if ends.contains(&(&*entry.group.name, entry.seq)) {
                coalesced(dump, at)
            } else {
                Vec::new()
            };
            let Some((&end, inner)) = together.split_last().filter(|(_, it)| !it.is_empty()) else {
                let launch = if entry.is_counted() { COUNTED_LAUNCH } else { 0 };
                units.push(unit(rank, groups, group, entry, at..at + 1, entry, launch, &silent));
                continue;
            };
            taken.extend(together.iter().filter(|&&it| it != at));
            launches += 1;
            let end = &dump.entries[end];
            if entry.is_message {
                let each = inner.iter().map(|&at| {
                    let entry = &dump.entries[at];
                    unit(rank, groups, group, entry, at..at + 1, end, launches, &silent)
                });
                units.extend(each);
            } else {
                // One call: its entries follow each other, or those of other groups are between.
                let last = inner.iter().zip(at..).take_while(|(a, b)| **a == *b).count();
                let range = at..at + last.max(1);
                units.push(unit(rank, groups, group, entry, range, end, launches, &silent));
            }
        }
        for unit in units.iter_mut().filter(|unit| unit.is_message) {
            unit.is_complete |= unended.contains(&unit.entries.start);
        }
        let thread = |unit: &Unit| dump.entries[unit.entries.start].thread;
        let last_of_thread = units.iter().enumerate().map(|(at, unit)| (thread(unit), at));
        let mut calls = Self { last_of_thread: last_of_thread.collect(), units, one_stream: true };
        calls.open_unmet(dump, groups, &silent);
        calls.one_stream = calls.is_in_order(dump);
        calls
    }

    /// On a backend that never records completion, calls that another rank has not made are not
    /// complete.
    fn open_unmet(&mut self, dump: &Dump, groups: &Groups, silent: &BTreeSet<Arc<str>>) {
        for unit in &mut self.units {
            if silent.contains(&dump.entries[unit.entries.start].group.backend) {
                let mut progress = groups.all[unit.group].progress.values();
                unit.is_complete = !progress.any(|it| it.lacks(unit.seq));
            }
        }
    }

    /// Whether no call was started or completed before an earlier one was complete.
    fn is_in_order(&self, dump: &Dump) -> bool {
        let open = self.units.iter().position(|unit| !unit.is_complete);
        let later = open.map_or(&[][..], |at| &self.units[at + 1..]);
        let is_ahead = |unit: &Unit| {
            let state = dump.entries[unit.entries.start].state;
            unit.is_complete || state == State::Started
        };
        !later.iter().any(is_ahead)
    }
}

#[expect(clippy::too_many_arguments, reason = "a unit is made of these in three places")]
fn unit(
    rank: u32,
    groups: &Groups,
    group: GroupAt,
    entry: &Entry,
    entries: Range<usize>,
    end: &Entry,
    launch: u32,
    silent: &BTreeSet<Arc<str>>,
) -> Unit {
    let of = &groups.all[group];
    let seq = if entry.is_message { 0 } else { of.seq(entry) };
    let progress = of.progress.get(&rank).copied().unwrap_or_default();
    let backend = &end.group.backend;
    let ended = end.retired && (is_on_host(backend) || silent.contains(backend));
    Unit {
        entries,
        group,
        seq,
        is_message: entry.is_message,
        is_complete: end.state == State::Completed
            || ended
            || (seq > 0 && seq <= progress.completed),
        launch,
    }
}

/// Indexes of the entries of the coalesced group that begins at an entry, in order; empty: it is no
/// such group. They have one number, and the last one ends the group.
fn coalesced(dump: &Dump, at: usize) -> Vec<usize> {
    /// Maximum distance between the first and the last entry of a coalesced group.
    const REACH: usize = 4096;
    let first = &dump.entries[at];
    let number = |entry: &Entry| {
        if first.is_message { entry.seq_of_messages } else { entry.seq }
    };
    let mut found = vec![at];
    let later = dump.entries.iter().enumerate().skip(at + 1).take(REACH);
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
fn unended_batches(dump: &Dump) -> BTreeSet<usize> {
    let number_of = |entry: &Entry| (Arc::as_ptr(&entry.group), entry.seq_of_messages);
    let mut ended = HashSet::new();
    let mut batches = HashMap::new();
    let mut last: HashMap<u32, usize> = HashMap::new();
    for (at, entry) in dump.entries.iter().enumerate() {
        last.insert(entry.thread, at);
        if entry.ends_group {
            ended.insert(number_of(entry));
        } else if entry.is_message {
            *batches.entry(number_of(entry)).or_insert(0_usize) += 1;
        }
    }
    let messages = dump.entries.iter().enumerate().filter(|(_, it)| it.is_message);
    let is_unended = |(at, entry): &(usize, &Entry)| {
        let number = number_of(entry);
        let is_batched = entry.is_batched || batches.get(&number).is_some_and(|&it| it > 1);
        let goes_on = last
            .get(&entry.thread)
            .is_some_and(|&last| last > *at && number_of(&dump.entries[last]) != number);
        is_batched && goes_on && entry.seq_of_messages > 0 && !ended.contains(&number)
    };
    messages.filter(is_unended).map(|(at, _)| at).collect()
}
