//! Calls that wait for each other on streams of devices.
//!
//! An operation on a stream begins when all earlier ones on it are complete, and a symmetric
//! collective completes once it has begun at every member. So if two ranks enqueue calls of two
//! communicators in opposite orders, each stream is in a call that the other has not reached,
//! although every rank has issued every call and no thread has to wait.
//!
//! Calls that were not recorded allow no conclusion, since they may be on any stream. Nor do rooted
//! collectives and messages, which may complete early, nor the order of calls that were launched
//! together.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ddp_doctor_proto::vocabulary::Direction;

use crate::input::event::Call;
use crate::model::{GroupId, Model, Target};
use crate::waits::Blocked;

/// Maximum number of processes; with more, there are too many calls for every evaluation.
const MAX_PROCESSES: usize = 4096;

/// Calls that were launched together on a stream.
struct Batch {
    rank: u32,
    calls: Vec<(Arc<Call>, Place)>,
    /// Number of calls that are not complete.
    pending: usize,
    has_begun: bool,
    /// The next batch on the stream.
    next: Option<usize>,
}

/// The place of a call: group and sequence number.
type Place = (GroupId, u64);

/// Cycles in which streams wait for each other; each wait needs the rank of the next.
pub fn cycles(model: &Model) -> Vec<Vec<Blocked>> {
    let (mut batches, first) = batches(model);
    if batches.len() < 2 {
        return Vec::new();
    }
    let mut joins: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
    for (at, batch) in batches.iter().enumerate() {
        for (_, place) in &batch.calls {
            joins.entry(*place).or_default().push(at);
        }
    }
    let mut not_begun: BTreeMap<Place, usize> =
        joins.iter().map(|(&place, at)| (place, at.len())).collect();
    let mut ready: VecDeque<usize> = first.into();
    while let Some(at) = ready.pop_front() {
        batches[at].has_begun = true;
        let mut complete: Vec<usize> = Vec::new();
        let calls: Vec<(Direction, Place)> =
            batches[at].calls.iter().map(|(call, place)| (call.op.direction(), *place)).collect();
        for (direction, place) in calls {
            let Some(left) = not_begun.get_mut(&place) else { continue };
            *left -= 1;
            if direction != Direction::Symmetric {
                complete.push(at);
            } else if *left == 0 {
                complete.extend(&joins[&place]);
            }
        }
        for done in complete {
            let batch = &mut batches[done];
            batch.pending = batch.pending.saturating_sub(1);
            if batch.pending == 0 {
                ready.extend(batch.next.take());
            }
        }
    }
    closed(&batches, &joins)
}

/// The batches of all processes, and the first one of each stream.
fn batches(model: &Model) -> (Vec<Batch>, Vec<usize>) {
    let (mut batches, mut first): (Vec<Batch>, Vec<usize>) = (Vec::new(), Vec::new());
    let heard = model.processes.values().filter(|it| !it.queued.is_empty());
    if heard.clone().count() > MAX_PROCESSES {
        return (batches, first);
    }
    for process in heard {
        let Some(rank) = process.rank.filter(|_| process.lost == 0) else { continue };
        let mut last: BTreeMap<u64, (usize, u32)> = BTreeMap::new();
        for call in &process.queued {
            let (Some(on), Some(Target::Join(group, seq))) =
                (call.on_stream, process.target(call.id))
            else {
                continue;
            };
            let one = (Arc::clone(call), (group, seq));
            match last.get(&on.stream) {
                Some(&(at, launch)) if launch != 0 && launch == on.launch => {
                    batches[at].calls.push(one);
                    batches[at].pending += 1;
                }
                before => {
                    let at = batches.len();
                    match before {
                        Some(&(before, _)) => batches[before].next = Some(at),
                        None => first.push(at),
                    }
                    batches.push(Batch {
                        rank,
                        calls: vec![one],
                        pending: 1,
                        has_begun: false,
                        next: None,
                    });
                    last.insert(on.stream, (at, on.launch));
                }
            }
        }
    }
    (batches, first)
}

/// Follows the needs of each blocked stream until a stream recurs.
fn closed(batches: &[Batch], joins: &BTreeMap<Place, Vec<usize>>) -> Vec<Vec<Blocked>> {
    // For each batch that has not begun: the incomplete batch that its stream is in.
    let mut in_front: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, batch) in batches.iter().enumerate() {
        if batch.has_begun && batch.pending > 0 {
            let mut next = batch.next;
            while let Some(behind) = next {
                in_front.insert(behind, at);
                next = batches[behind].next;
            }
        }
    }
    let needed = |at: usize| {
        let mut calls = batches[at].calls.iter();
        calls.find_map(|(call, place)| {
            let mut others = joins.get(place)?.iter();
            let other = others.find_map(|other| in_front.get(other))?;
            (call.op.direction() == Direction::Symmetric).then_some((call, *place, *other))
        })
    };
    let mut found: Vec<Vec<Blocked>> = Vec::new();
    let mut seen: BTreeSet<usize> = BTreeSet::new();
    let starts: BTreeSet<usize> = in_front.values().copied().collect();
    for start in starts {
        let mut path: Vec<usize> = Vec::new();
        let mut at = start;
        while seen.insert(at) {
            path.push(at);
            match needed(at) {
                Some((.., next)) => at = next,
                None => break,
            }
        }
        let Some(from) = path.iter().position(|&it| it == at) else { continue };
        let cycle: Vec<Blocked> = path[from..]
            .iter()
            .filter_map(|&at| {
                let (call, place, next) = needed(at)?;
                let blocked = Blocked::new(batches[at].rank, place, call, [batches[next].rank]);
                Some(Blocked { thread: call.thread, recorded: true, ..blocked })
            })
            .collect();
        let ranks: BTreeSet<u32> = cycle.iter().map(|it| it.rank).collect();
        let groups: BTreeSet<GroupId> = cycle.iter().map(|it| it.group).collect();
        if ranks.len() == cycle.len() && ranks.len() > 1 && groups.len() > 1 {
            found.push(cycle);
        }
    }
    found
}
