//! Calls on devices that wait for each other, according to the order in which ranks made them.
//!
//! c10d's calls on NCCL return at once, and all that a thread enqueues after a synchronous call, or
//! after the wait for an asynchronous one, begins only once that call is complete. So if two ranks
//! use two groups in opposite orders, or both receive from each other before they send, each device
//! is in a call that the other one has not begun, although every rank has made every call. The same
//! holds if a rank has run ahead of a call that another rank has not made and makes no more, since it
//! waits for the first one. `streams.rs` finds this in NCCL's calls, which name their streams. In
//! c10d's calls alone it is an assumption that a thread stays on one stream, so only ranks that no
//! longer go on are considered.
//!
//! A send may be complete before its receive, so only the receive of a message keeps later calls
//! waiting.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::Direction;

use crate::input::event::Call;
use crate::model::{Arrival, CompletedCall, Group, GroupId, JoinedCall, Model, Wait};
use crate::waits::Blocked;

/// Maximum number of the latest collectives that are considered.
const LATEST: usize = 16_384;

/// Time of a call that was not made.
const NEVER: Timestamp = Timestamp(u64::MAX);

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

/// A collective or a message whose calls, made or to be made, wait for each other.
struct Place {
    group: GroupId,
    call: Arc<Call>,
    /// Sequence number; 0: a message.
    seq: u64,
    arrivals: Vec<Arrival>,
}

impl Place {
    /// When the last of its calls was made.
    fn made_at(&self) -> Option<Timestamp> {
        self.arrivals.iter().map(|it| it.at).filter(|&at| at != NEVER).max()
    }

    /// The rank that comes first: of a message, its sender.
    fn sender(&self) -> Option<u32> {
        self.arrivals.first().map(|it| it.rank)
    }

    /// Whether the call of a rank keeps its later calls waiting.
    fn holds(&self, rank: u32) -> bool {
        self.seq > 0 || self.sender() != Some(rank)
    }
}

/// A cycle of ranks that are stuck; each wait needs the rank of the next. `standing` holds the
/// groups of these ranks: calls of earlier attempts are in others.
pub fn cycle(model: &Model, standing: &BTreeMap<u32, BTreeSet<GroupId>>) -> Option<Vec<Blocked>> {
    if standing.len() < 2 {
        return None;
    }
    let mut all = completed(model);
    all.extend(model.groups().filter_map(|group| open(model, group, standing)));
    // Whatever the order in which evidence arrives.
    all.sort_by_key(|place| Reverse((place.made_at(), place.group, place.seq, place.sender())));
    let mut by_rank: BTreeMap<u32, Vec<(usize, Arrival)>> = BTreeMap::new();
    for (at, place) in all.iter().enumerate() {
        let is_of_now = |arrival: &&Arrival| {
            let groups = standing.get(&arrival.rank);
            groups.is_some_and(|groups| groups.contains(&place.group))
        };
        for arrival in place.arrivals.iter().filter(is_of_now) {
            by_rank.entry(arrival.rank).or_default().push((at, *arrival));
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
    let waits =
        path.iter().zip(next).map(|(it, next)| wait(model, &all[it.at], it.rank, next.rank));
    waits.collect()
}

/// Whether calls of a group are c10d's and are on streams that do not show in the records.
fn is_on_unknown_stream(group: &Group, call: &Call) -> bool {
    &*group.info.key.layer == "c10d" && call.lower_call.is_none() && group.backend.is_on_stream
}

/// The latest collectives and messages that all of their ranks have made.
fn completed(model: &Model) -> Vec<Place> {
    let is_relevant = |it: &Cow<'_, CompletedCall>| {
        is_on_unknown_stream(model.group(it.group), &it.call)
            && (it.seq == 0 || it.direction() == Direction::Symmetric)
    };
    let latest = model.arrivals.latest().take(LATEST).filter(is_relevant);
    let places = latest.map(|it| Place {
        group: it.group,
        call: Arc::clone(&it.call),
        seq: it.seq,
        arrivals: it.arrivals.iter().collect(),
    });
    places.collect()
}

/// The first collective of a group that ranks wait for on their devices, and that others have not
/// made. These make no further call before they have waited for all their earlier ones.
fn open(
    model: &Model,
    group: &Group,
    standing: &BTreeMap<u32, BTreeSet<GroupId>>,
) -> Option<Place> {
    let seq = group.first_open().filter(|_| group.diverged.is_none() && group.is_fully_seen())?;
    let join = group.join(seq)?;
    let (_, first) = join.by_rank().next()?;
    let is_waited_for = |(_, it): (u32, &JoinedCall)| {
        it.is_awaited() && !group.holds_threads(it.call.op) && it.returned.is_some()
    };
    let is_relevant = is_on_unknown_stream(group, &first.call)
        && first.call.op.direction() == Direction::Symmetric
        && join.by_rank().all(is_waited_for);
    let missing = model.missing(group, seq);
    let stands = |rank: &u32| standing.get(rank).is_some_and(|it| it.contains(&group.id));
    if !is_relevant || !missing.iter().all(stands) {
        return None;
    }
    let made = join.by_rank().map(|(rank, joined)| Arrival {
        waits: match joined.wait {
            Wait::Since(at) | Wait::Over(at) => Some(at),
            Wait::NotSeen => None,
        },
        ..Arrival::new(rank, &joined.call)
    });
    let not_made = missing.iter().map(|&rank| Arrival {
        at: NEVER,
        is_async: true,
        ..Arrival::new(rank, &first.call)
    });
    Some(Place {
        group: group.id,
        call: Arc::clone(&first.call),
        seq,
        arrivals: made.chain(not_made).collect(),
    })
}

/// Adds what each call of a rank has to wait for.
fn order(
    model: &Model,
    all: &[Place],
    rank: u32,
    calls: &mut [(usize, Arrival)],
    before: &mut [Vec<Before>],
) {
    calls.sort_by_key(|(_, arrival)| arrival.at);
    // A thread that has returned from a barrier has found all earlier calls complete.
    let is_passed = |(at, arrival): &(usize, Arrival)| {
        arrival.until.is_some() && model.group(all[*at].group).holds_threads(all[*at].call.op)
    };
    let passed = calls.iter().rposition(is_passed).map_or(0, |last| last + 1);
    let mut in_front: Vec<InFront> = Vec::new();
    for &(at, arrival) in &calls[passed..] {
        let awaited = |it: &&InFront| it.waited <= arrival.at;
        before[at].extend(in_front.iter().filter(awaited).map(|it| Before { rank, at: it.at }));
        // Calls that were awaited before the latest of these are already in front of that one.
        let latest = in_front.iter().filter(awaited).map(|it| it.issued).max();
        in_front.retain(|it| latest.is_none_or(|latest| it.issued >= latest || it.waited > latest));
        if !all[at].holds(rank) {
            continue;
        }
        // On a device, a wait is over as soon as it is enqueued.
        let waited = arrival
            .waits
            .or(arrival.until)
            .filter(|_| arrival.is_async || arrival.hidden)
            .or((!arrival.is_async && !arrival.hidden).then_some(arrival.at));
        in_front.extend(waited.map(|waited| InFront { at, issued: arrival.at, waited }));
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

/// The wait of a rank in a call whose counterpart another rank has not begun.
fn wait(model: &Model, place: &Place, rank: u32, on: u32) -> Option<Blocked> {
    let arrival = place.arrivals.iter().find(|it| it.rank == rank)?;
    let group = model.group(place.group);
    if let Some(receive) = group.traffic.received_at(rank, arrival.at).filter(|_| place.seq == 0) {
        return Some(Blocked::new(rank, (place.group, receive.seq), receive, [on]));
    }
    let mut call = Call::clone(&place.call);
    (call.seq, call.at) = (place.seq, arrival.at);
    call.place = match group.join(place.seq).and_then(|join| join.calls.get(&rank)) {
        Some(joined) => joined.call.place.clone(),
        None => {
            let mut meetings = group.history.recent();
            let meeting = meetings.find(|it| it.seq == place.seq);
            meeting.and_then(|it| it.place_of(rank)).cloned()
        }
    };
    Some(Blocked::new(rank, (place.group, place.seq), &Arc::new(call), [on]))
}
