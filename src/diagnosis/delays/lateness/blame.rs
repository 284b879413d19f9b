//! Which ranks waited, and for whom in the end.
//!
//! The last rank to arrive at an encounter keeps the others waiting. It may have waited itself, in
//! another group or for a message: so its own waits are followed piece by piece to a rank that did
//! not wait. Durations of calls do not show this: with one slow rank, all of them measure the same
//! step.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::{Timestamp, Where};

use crate::delays::clocks::Clocks;
use crate::input::event::Call;
use crate::model::{Arrival, CompletedCall, GroupId, Model};

/// Maximum number of consecutive waits that are followed.
const FURTHEST: usize = 16;

/// Time in which a rank waited for another rank that was not waiting.
#[derive(Clone, Copy, Debug)]
pub(super) struct LostTime<'a> {
    /// The waiting rank.
    pub waiting: u32,
    /// The rank that it waited for in the end.
    pub late: u32,
    /// Start of the wait …
    pub from: Timestamp,
    /// … and its end.
    pub to: Timestamp,
    /// Group of the call …
    pub group: GroupId,
    /// … and the call waited for: that of the first rank in the encounter.
    pub call: &'a Arc<Call>,
}

/// A wait for another rank.
#[derive(Clone, Copy, Debug)]
struct WaitFor<'a> {
    on: u32,
    from: Timestamp,
    to: Timestamp,
    completed: &'a CompletedCall,
}

/// Waits of each rank, by its number: ordered by time, without overlaps.
type Waits<'a> = Vec<Vec<WaitFor<'a>>>;

/// All waits in encounters that were complete at `since` or later, by rank and time.
pub(super) fn blame<'a>(
    model: &Model,
    completed_calls: &'a [Cow<'_, CompletedCall>],
    since: Timestamp,
) -> Vec<LostTime<'a>> {
    let is_later = |it: &&CompletedCall| it.last().is_some_and(|last| last.at >= since);
    let waits = waits(model, completed_calls.iter().map(|it| &**it).filter(is_later).collect());
    let mut blames = Vec::new();
    for (waiting, held) in (0..).zip(&waits) {
        for held in held {
            follow(&waits, waiting, *held, 0, &mut blames);
        }
    }
    blames
}

/// Assigns a wait, or a piece of one, to the ranks that caused it.
fn follow<'a>(
    waits: &Waits<'a>,
    waiting: u32,
    piece: WaitFor<'a>,
    depth: usize,
    blames: &mut Vec<LostTime<'a>>,
) {
    let mut at = piece.from;
    let mut own = |from, to| {
        if from < to {
            blames.push(LostTime {
                waiting,
                late: piece.on,
                from,
                to,
                group: piece.completed.group,
                call: &piece.completed.call,
            });
        }
    };
    let held = waits[piece.on as usize].as_slice();
    let first = held.partition_point(|held| held.to <= piece.from);
    let mut further = Vec::new();
    if depth < FURTHEST {
        for held in held[first..].iter().take_while(|it| it.from < piece.to) {
            own(at, held.from.max(at));
            let (from, to) = (held.from.max(at), held.to.min(piece.to));
            // Two ranks cannot wait for each other here: clocks differ, or a wait was inferred.
            if held.on == waiting {
                own(from, to);
            } else {
                further.push(WaitFor { on: held.on, from, to, ..piece });
            }
            at = to;
        }
    }
    own(at, piece.to);
    for piece in further {
        follow(waits, waiting, piece, depth + 1, blames);
    }
}

fn waits<'a>(model: &Model, completed_calls: Vec<&'a CompletedCall>) -> Waits<'a> {
    let ranks = completed_calls.iter().filter_map(|it| it.arrivals.ranks().iter().max());
    let size = ranks.max().map_or(0, |last| *last as usize + 1);
    let active = activity(model, &completed_calls, size);
    let averaged = averaged(&completed_calls, size);
    let clocks = Clocks::new(model);
    let releases = releases(model, &completed_calls, &active);
    let mut waits: Waits<'_> = vec![Vec::new(); size];
    for completed in completed_calls {
        let holds = model.group(completed.group).holds_threads(completed.call.op);
        for arrival in completed.arrivals.iter() {
            let Some(on) = completed.waits_for(arrival.rank) else { continue };
            let rank = arrival.rank as usize;
            let active = active[rank].as_slice();
            let is_waiting = holds
                || (releases[rank].follow_peers()
                    && next_activity(&arrival, &on, active).is_some());
            if !is_waiting {
                continue;
            }
            let seen = seen_begin(completed, &arrival, &averaged[rank], active);
            let Some(from) = seen.or_else(|| begin(completed, &arrival, &on, holds, active)) else {
                continue;
            };
            let to = on.at.minus(clocks.apart(arrival.rank, on.rank));
            // Shares refer to the time outside of gaps.
            waits[rank].extend(model.gaps.seen(from, to).map(|(from, to)| WaitFor {
                on: on.rank,
                from,
                to,
                completed,
            }));
        }
    }
    for held in &mut waits {
        held.sort_by_key(|held| (held.to, held.from));
        let mut accounted = Timestamp::default();
        held.retain_mut(|held| {
            held.from = held.from.max(accounted);
            accounted = accounted.max(held.to);
            held.from < held.to
        });
    }
    waits
}

/// What a rank does next after calls on a device that a peer made later.
///
/// Such calls do not hold the host. It waits for them elsewhere, in `.item()` or a full queue, which is not
/// recorded. If it does, its next activity follows the arrival of the peer; if it does not, its own call.
#[derive(Clone, Debug, Default)]
struct Releases<'a> {
    /// Times in seconds, by group and call.
    delays: BTreeMap<(GroupId, Op, Option<&'a Where>), Delays>,
}

/// Times in seconds until the next activity of a rank.
#[derive(Clone, Debug, Default)]
struct Delays {
    /// Since its own call.
    own: Vec<f64>,
    /// Since the call of the last peer.
    peer: Vec<f64>,
}

impl Releases<'_> {
    /// Whether the activity follows the arrivals of peers at least as regularly as the rank's own calls.
    fn follow_peers(&self) -> bool {
        let spread = |of: fn(&Delays) -> &[f64]| {
            self.delays.values().map(|it| deviation(of(it))).sum::<f64>()
        };
        spread(|it| &it.peer) <= spread(|it| &it.own)
    }
}

/// Releases of each rank, by its number.
fn releases<'a>(
    model: &Model,
    completed_calls: &[&'a CompletedCall],
    active: &[Vec<Active>],
) -> Vec<Releases<'a>> {
    let mut releases = vec![Releases::default(); active.len()];
    for completed in completed_calls {
        let call = &completed.call;
        if model.group(completed.group).holds_threads(call.op) {
            continue;
        }
        for arrival in completed.arrivals.iter() {
            let Some(on) = completed.waits_for(arrival.rank) else { continue };
            let rank = arrival.rank as usize;
            let Some(next) = next_activity(&arrival, &on, &active[rank]) else { continue };
            let key = (completed.group, call.op, call.place.as_deref());
            let delays = releases[rank].delays.entry(key).or_default();
            delays.own.push(next.since(arrival.at).as_secs_f64());
            delays.peer.push(next.since(on.at).as_secs_f64());
        }
    }
    releases
}

/// The next activity of a rank after the arrival of a peer. `None`: there is none, or the rank continued before: it has not
/// waited for this call.
fn next_activity(arrival: &Arrival, on: &Arrival, active: &[Active]) -> Option<Timestamp> {
    let index = active.partition_point(|active| active.at <= arrival.at);
    let next = active[index..].iter().find(|active| !active.is_bucket)?;
    (next.at > on.at).then_some(next.at)
}

/// Sum of the absolute deviations from the median.
fn deviation(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
    sorted.iter().map(|it| (it - median).abs()).sum()
}

/// When each rank began to wait for DDP's buckets, by time, if recorded.
fn averaged(completed_calls: &[&CompletedCall], size: usize) -> Vec<Vec<Timestamp>> {
    let mut averaged = vec![Vec::new(); size];
    let last = completed_calls.iter().filter(|it| it.buckets().is_some());
    for arrival in last.flat_map(|completed| completed.arrivals.iter()) {
        if let Some(from) = arrival.waits {
            averaged[arrival.rank as usize].push(from);
        }
    }
    for from in &mut averaged {
        from.sort_unstable();
    }
    averaged
}

/// When a rank began to wait for this bucket and the others of its backward pass; `None`: not
/// recorded. A backward pass may have much to do after its last bucket; ranks that are apart then
/// do not wait.
fn seen_begin(
    completed: &CompletedCall,
    arrival: &Arrival,
    averaged: &[Timestamp],
    active: &[Active],
) -> Option<Timestamp> {
    let next = averaged.partition_point(|from| *from < arrival.at);
    let from = *averaged.get(next).filter(|_| is_bucket(completed, arrival))?;
    // The wait belongs to another backward pass if the rank did anything else in between.
    let next = active.partition_point(|active| active.at <= arrival.at);
    let mut until = active[next..].iter().take_while(|it| it.at < from);
    until.all(|active| active.is_bucket).then_some(from)
}

/// When the wait for the later rank began; `None`: there was none, as far as known.
fn begin(
    completed: &CompletedCall,
    arrival: &Arrival,
    on: &Arrival,
    holds: bool,
    active: &[Active],
) -> Option<Timestamp> {
    if !holds || is_bucket(completed, arrival) {
        // The wait is not recorded. It ends before the next activity of the rank, and begins with
        // its last activity before the peer arrived. DDP waits for its buckets once it has issued
        // all of them.
        let next = active.partition_point(|active| active.at <= on.at);
        if active.get(next).is_some_and(|next| next.is_bucket) {
            return None;
        }
        let last = next.checked_sub(1).and_then(|last| active.get(last));
        return Some(last.map_or(arrival.at, |last| last.at.max(arrival.at)));
    }
    match arrival.until {
        _ if arrival.hidden => Some(arrival.at),
        Some(until) if until < on.at => None,
        _ if arrival.is_async => arrival.waits,
        _ => Some(arrival.at),
    }
}

/// Recorded activity of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Active {
    at: Timestamp,
    /// DDP issued a bucket of gradients.
    is_bucket: bool,
}

/// Activity of each rank, by time.
fn activity(model: &Model, completed_calls: &[&CompletedCall], size: usize) -> Vec<Vec<Active>> {
    let mut active: Vec<Vec<Active>> = vec![Vec::new(); size];
    for completed in completed_calls {
        for arrival in completed.arrivals.iter() {
            active[arrival.rank as usize]
                .push(Active { at: arrival.at, is_bucket: is_bucket(completed, &arrival) });
        }
    }
    for (rank, active) in (0..).zip(&mut active) {
        let Some(process) = model.process_of(rank) else { continue };
        let pace = &process.pace;
        let steps = pace.steps.iter().copied();
        let other = steps.chain(pace.spent.iter().map(|spent| spent.to));
        active.extend(other.map(|at| Active { at, is_bucket: false }));
        active.sort_unstable();
    }
    active
}

/// Whether DDP averages gradients with this call.
fn is_bucket(completed: &CompletedCall, arrival: &Arrival) -> bool {
    arrival.hidden && completed.call.op == Op::AllReduce
}
