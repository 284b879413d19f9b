//! Calls on devices that wait for each other, according to the order in which ranks made them.
//!
//! c10d's calls on NCCL return at once, and all that a thread enqueues after a synchronous call, or
//! after the wait for an asynchronous one, begins only once that call is complete. So if two ranks
//! use two groups in opposite orders, each device is in a call that the other one has not begun,
//! although every rank has made every call. `streams.rs` finds this in NCCL's calls, which name
//! their streams. In c10d's calls alone it is an assumption that a thread stays on one stream, so
//! only ranks that no longer go on are considered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::Direction;

use crate::model::{Came, Encounter, GroupId, Model};
use crate::waits::Blocked;

/// Maximum number of the latest collectives that are considered.
const LATEST: usize = 16_384;

/// A collective that a rank has made before another one.
#[derive(Clone, Copy)]
struct Before {
    rank: u32,
    /// Index of the collective.
    at: usize,
}

/// A call that later calls of its rank have to wait for.
struct InFront {
    /// Index of the collective.
    at: usize,
    issued: Timestamp,
    /// When the wait for it was enqueued.
    waited: Timestamp,
}

/// A cycle of ranks that stand still; each wait needs the rank of the next. `standing` holds the
/// groups of these ranks: calls of earlier attempts are in others.
pub fn cycle(model: &Model, standing: &BTreeMap<u32, BTreeSet<GroupId>>) -> Option<Vec<Blocked>> {
    if standing.len() < 2 {
        return None;
    }
    let on_device = |it: &&Encounter| {
        let group = model.group(it.group);
        let is_of_c10d = &*group.info.key.layer == "c10d" && it.call.lower_call.is_none();
        it.seq > 0
            && it.direction() == Direction::Symmetric
            && group.backend.is_on_stream
            && is_of_c10d
    };
    let all: Vec<&Encounter> = model.arrivals.latest().take(LATEST).filter(on_device).collect();
    let groups: BTreeSet<_> = all.iter().map(|it| it.group).collect();
    if groups.len() < 2 {
        return None;
    }
    let mut by_rank: BTreeMap<u32, Vec<(usize, Came)>> = BTreeMap::new();
    for (at, encounter) in all.iter().enumerate() {
        let is_of_now = |came: &Came| {
            let groups = standing.get(&came.rank);
            groups.is_some_and(|groups| groups.contains(&encounter.group))
        };
        for came in encounter.came.iter().filter(is_of_now) {
            by_rank.entry(came.rank).or_default().push((at, came));
        }
    }
    let mut before: Vec<Vec<Before>> = vec![Vec::new(); all.len()];
    for (&rank, calls) in &mut by_rank {
        order(model, &all, rank, calls, &mut before);
    }
    let path = closed(&before)?;
    let ranks: BTreeSet<u32> = path.iter().map(|it| it.rank).collect();
    if ranks.len() < path.len() || path.len() < 2 {
        return None;
    }
    let next = path.iter().cycle().skip(1);
    let waits = path.iter().zip(next).map(|(it, next)| wait(model, all[it.at], it.rank, next.rank));
    waits.collect()
}

/// Adds what each call of a rank has to wait for.
fn order(
    model: &Model,
    all: &[&Encounter],
    rank: u32,
    calls: &mut [(usize, Came)],
    before: &mut [Vec<Before>],
) {
    calls.sort_by_key(|(_, came)| came.at);
    // A thread that has returned from a barrier has found all earlier calls complete.
    let is_passed = |(at, came): &(usize, Came)| {
        came.until.is_some() && model.group(all[*at].group).holds_threads(all[*at].call.op)
    };
    let passed = calls.iter().rposition(is_passed).map_or(0, |last| last + 1);
    let mut in_front: Vec<InFront> = Vec::new();
    for &(at, came) in &calls[passed..] {
        let awaited = |it: &&InFront| it.waited <= came.at;
        before[at].extend(in_front.iter().filter(awaited).map(|it| Before { rank, at: it.at }));
        // Calls that were awaited before the latest of these are already in front of that one.
        let latest = in_front.iter().filter(awaited).map(|it| it.issued).max();
        in_front.retain(|it| latest.is_none_or(|latest| it.issued >= latest || it.waited > latest));
        // On a device, a wait is over as soon as it is enqueued.
        let waited = came.waits.or(came.until).filter(|_| came.is_async || came.hidden);
        let waited = waited.or((!came.is_async && !came.hidden).then_some(came.at));
        in_front.extend(waited.map(|waited| InFront { at, issued: came.at, waited }));
    }
}

/// A cycle among collectives, each of which a rank has made before the preceding one.
fn closed(before: &[Vec<Before>]) -> Option<Vec<Before>> {
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); before.len()];
    for (at, all) in before.iter().enumerate() {
        for it in all {
            after[it.at].push(at);
        }
    }
    let mut open: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut ready: Vec<usize> = (0..before.len()).filter(|&at| open[at] == 0).collect();
    while let Some(done) = ready.pop() {
        for &at in &after[done] {
            open[at] -= 1;
            if open[at] == 0 {
                ready.push(at);
            }
        }
    }
    // Each of the others comes after another one of them.
    let mut at = (0..before.len()).rfind(|&at| open[at] > 0)?;
    let mut path: Vec<(usize, Before)> = Vec::new();
    let from = loop {
        if let Some(from) = path.iter().position(|(known, _)| *known == at) {
            break from;
        }
        let next = before[at].iter().find(|it| open[it.at] > 0)?;
        path.push((at, *next));
        at = next.at;
    };
    let mut cycle: Vec<Before> = path[from..].iter().map(|(_, it)| *it).collect();
    // Of consecutive calls of one rank, the earliest one keeps the others waiting.
    let last = cycle.last()?.rank;
    let begins = cycle.iter().position(|it| it.rank != last)?;
    cycle.rotate_left(begins);
    cycle.reverse();
    cycle.dedup_by_key(|it| it.rank);
    cycle.reverse();
    Some(cycle)
}

/// The wait of a rank in a collective that another rank has not begun.
fn wait(model: &Model, encounter: &Encounter, rank: u32, on: u32) -> Option<Blocked> {
    let came = encounter.came.iter().find(|it| it.rank == rank)?;
    let mut meetings = model.group(encounter.group).history.recent();
    let meeting = meetings.find(|it| it.seq == encounter.seq);
    let mut call = (*encounter.call).clone();
    (call.seq, call.at) = (encounter.seq, came.at);
    call.place = meeting.and_then(|it| it.place_of(rank)).cloned();
    Some(Blocked::new(rank, (encounter.group, encounter.seq), &Arc::new(call), [on]))
}
