//! Who waits for whom: the graph of waits, what it can still release, and its cycles.
//!
//! A thread is blocked when it waits for a collective that cannot be complete: the members it must
//! wait for ([`super::model::JoinedCall::needs`]) have not made their call; or for a message that
//! nobody has sent. Only what must block counts. A leaf of a rooted collective may be done early, and a
//! call that nobody waits for blocks nobody; unless it does not come back: where the first call makes a
//! communicator, even an asynchronous one stands until all have come. That is believed once it has lasted,
//! and proves nothing. Nor does a wait for a device, which is known by where the program stands (`devices.rs`).
//!
//! Whether a sender must wait depends on the backend and on sizes that it alone knows
//! ([`super::model::Transport`]). A wait for a send is taken to block where the backend's sends wait,
//! and else once it has lasted, but it is not *certain*, and proves nothing. Nor does a receive from
//! any source, or one between ranks of which records were missed.
//!
//! # The release fixpoint
//!
//! A rank is *free* if one of its threads that make calls is not blocked: nothing is known about
//! what it will do next, so it may yet make any call. A thread of the backward pass acts for the one
//! that runs it: once it has been silent for a while it frees nobody. A thread whose call met others that
//! can never match it frees nobody either. A rank that ended while one of
//! its threads was free ended for reasons of its own. Starting from the free ranks, a blocked rank
//! becomes free as soon as one of its threads needs only free ranks (or, receiving from any source, one
//! free rank). The ranks that this never
//! reaches are *stuck*: whatever the free ones do, these cannot move. Following a stuck rank's needs
//! leads to a rank that has ended or stopped, or back to itself: a deadlock.
//!
//! This is the AND model of distributed deadlock (Chandy, Misra, Haas, "Distributed deadlock
//! detection", TOCS 1983): collectives know no waiting for any one of several. Where a receive from any
//! source is among the stuck, a cycle alone is no deadlock, but a cycle of the stuck is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;

use super::align::{self, Mismatch};
use super::event::{Call, ThreadId};
use super::model::{
    Doing, Ending, GroupId, Join, JoinedCall, Lone, Model, Process, Side, Target, Thread,
};

mod devices;
mod launches;

/// A thread that waits for ranks that have not come.
#[derive(Clone, Debug)]
pub struct Blocked {
    /// Its rank.
    pub rank: u32,
    /// The thread.
    pub thread: ThreadId,
    /// The group of the call it waits for.
    pub group: GroupId,
    /// That call's sequence number.
    pub seq: u64,
    /// That call.
    pub call: Arc<Call>,
    /// When it made the call; of a point-to-point call: when it began to wait.
    pub since: Timestamp,
    /// When the wait ended in failure, if it did and ended the process, or was ended with it.
    pub until: Option<Timestamp>,
    /// The ranks it needs, ascending.
    pub needs: Vec<u32>,
    /// The point-to-point call that it waits for, where it is one.
    pub message: Option<Lone>,
    /// It cannot go on before all of them came, whatever the transport does.
    pub certain: bool,
    /// No other thread of the process ever made a call.
    pub only_thread: bool,
    /// The wait itself was recorded; otherwise it is inferred.
    pub recorded: bool,
    /// The call came back before it was complete, as those on devices do, and it waits further on.
    pub came_back: bool,
}

/// The graph of waits at one moment.
#[derive(Debug, Default)]
pub struct Waits {
    /// Blocked threads by rank.
    pub blocked: BTreeMap<u32, Vec<Blocked>>,
    /// Ranks that no free rank can release.
    pub stuck: BTreeSet<u32>,
    /// Ranks all of whose threads wait for calls that met others which can never match them.
    pub at_odds: BTreeSet<u32>,
    /// Minimal cycles among stuck ranks, one per knot; each wait needs the rank of the next.
    pub cycles: Vec<Vec<Blocked>>,
}

impl Waits {
    /// The graph as the model has it now.
    #[must_use]
    pub fn of(model: &Model, now: Timestamp) -> Self {
        let mut blocked: BTreeMap<u32, Vec<Blocked>> = BTreeMap::new();
        let mut free: BTreeSet<u32> = BTreeSet::new();
        let mut all_at_odds: BTreeSet<u32> = BTreeSet::new();
        for process in model.processes.values() {
            let Some(rank) = process.rank else { continue };
            let ended = match model.ending_of(process) {
                Ending::None => None,
                Ending::InOrder => continue,
                // A cycle that had closed before is why they ended.
                Ending::Raised(_) | Ending::Died(_) => {
                    if model
                        .process_of(rank)
                        .is_none_or(|newest| newest.id != process.id)
                    {
                        continue;
                    }
                    Some(process.end.map_or(now, |end| end.at))
                }
            };
            if process.is_stopped() {
                continue;
            }
            let mut threads = blocked_threads(model, process, rank, now, ended);
            let mut rests = false;
            if threads.is_empty() && ended.is_none() {
                threads.extend(devices::blocked(model, process, rank, now));
                rests = !threads.is_empty();
            }
            let until = ended.unwrap_or(now);
            let at_odds = |thread: &Thread| is_at_odds(model, process, rank, thread);
            let goes_on = |(id, thread): (&ThreadId, &Thread)| {
                let is_blocked = threads.iter().any(|blocked| blocked.thread == *id);
                let silence = until.since(thread.last_at);
                let acts = thread.of_the_program && !rests || silence < model.timing.hidden_wait;
                !is_blocked && acts && !at_odds(thread)
            };
            let is_held = !threads.is_empty() || process.threads.values().any(at_odds);
            if !is_held || process.threads.iter().any(goes_on) {
                if ended.is_some() {
                    continue;
                }
                free.insert(rank);
            } else if threads.is_empty() {
                all_at_odds.insert(rank);
            }
            if !threads.is_empty() {
                blocked.entry(rank).or_default().extend(threads);
            }
        }
        release(model, &blocked, &mut free);
        let stuck: BTreeSet<u32> = blocked
            .keys()
            .copied()
            .filter(|rank| !free.contains(rank))
            .collect();
        let cycles = cycles(&blocked, &stuck);
        Self {
            blocked,
            stuck,
            at_odds: all_at_odds,
            cycles,
        }
    }

    /// Whether a rank waits in a cycle.
    #[must_use]
    pub fn in_cycle(&self, rank: u32) -> bool {
        let mut waits = self.cycles.iter().flatten();
        waits.any(|wait| wait.rank == rank)
    }

    /// The wait that keeps a stuck rank.
    #[must_use]
    pub fn stuck_in(&self, rank: u32) -> Option<&Blocked> {
        self.stuck
            .contains(&rank)
            .then(|| self.blocked.get(&rank)?.first())
            .flatten()
    }
}

impl Blocked {
    /// It needs one of the ranks, whichever.
    #[must_use]
    pub fn needs_any(&self) -> bool {
        self.message
            .as_ref()
            .is_some_and(|lone| lone.peer.is_none())
    }
}

/// Whether a thread waits for a call that met others which can never match it. It needs nobody who could
/// still come, and never goes on.
fn is_at_odds(model: &Model, process: &Process, rank: u32, thread: &Thread) -> bool {
    let target = match &thread.doing {
        Doing::Call(call) => process.target(call.id),
        Doing::Wait(target, ..) => *target,
        Doing::Nothing => None,
    };
    let Some(Target::Join(group, seq)) = target else {
        return false;
    };
    let group = model.group(group);
    let met = group.join(seq).filter(|join| join.mismatch.is_some());
    let Some((join, joined)) = met.and_then(|join| Some((join, join.calls.get(&rank)?))) else {
        return false;
    };
    group.holds_threads(joined.call.op)
        && !joined.call.hidden
        && !joined.needs(rank, &unmatched(join, joined)).is_empty()
}

/// The ranks whose calls met this one and can never match it.
pub(super) fn unmatched(join: &Join, joined: &JoinedCall) -> Vec<u32> {
    let never = |other: &JoinedCall| {
        let (own, other) = (&joined.call, &other.call);
        let differences = || align::differences(own, other).into_iter();
        align::compare(own, other).is_some()
            && differences().any(|it| matches!(it, Mismatch::Op | Mismatch::Size | Mismatch::Root))
    };
    let calls = join.calls.iter().filter(|(_, other)| never(other));
    calls.map(|(&rank, _)| rank).collect()
}

/// The threads of a process that are blocked, or were when it ended.
fn blocked_threads(
    model: &Model,
    process: &Process,
    rank: u32,
    now: Timestamp,
    ended: Option<Timestamp>,
) -> Vec<Blocked> {
    let mut found = Vec::new();
    for (&id, thread) in &process.threads {
        let mut until = ended;
        let (target, since, recorded) = match &thread.doing {
            Doing::Call(call) => (process.target(call.id), call.at, true),
            Doing::Wait(target, since, _) => (*target, *since, true),
            Doing::Nothing if ended.is_some() => {
                let Some((target, since, over)) = thread.failed else {
                    continue;
                };
                until = Some(over);
                (Some(target), since, true)
            }
            Doing::Nothing => {
                let last = thread.last_call.as_ref();
                let held = thread.held_in(process.seen_until(now), &model.timing);
                let silent = |call: &Call| {
                    call.hidden
                        && call.at == thread.last_at
                        && now.since(thread.last_at) >= model.timing.hidden_wait
                };
                match held.or(last.filter(|call| silent(call))) {
                    Some(call) => (process.target(call.id), call.at, false),
                    None => continue,
                }
            }
        };
        let found_here = match target {
            Some(Target::Join(group, seq)) => for_others(model, group, seq, rank),
            Some(Target::Message(group, post)) if recorded => {
                let lone = model.group(group).traffic.lone(&post);
                let alone = lone.and_then(|lone| for_message(model, group, lone, since, now));
                alone.or_else(|| launches::blocked(model, process, &thread.doing, rank, now))
            }
            _ => None,
        };
        if let Some(blocked) = found_here {
            // Where a wait does not hold its thread, it is over in a moment, whatever becomes of the
            // call.
            let group = model.group(blocked.group);
            let holds = group.holds_threads(blocked.call.op);
            if !holds && now.since(thread.last_at) < model.timing.hidden_wait {
                continue;
            }
            found.push(Blocked {
                thread: id,
                until,
                only_thread: process.threads.len() == 1,
                recorded: recorded && holds,
                ..blocked
            });
        }
    }
    found
}

/// The wait of a rank for the members of a group that have not come to its call.
fn for_others(model: &Model, group_id: GroupId, seq: u64, rank: u32) -> Option<Blocked> {
    let group = model.group(group_id);
    let joined = group.join(seq)?.calls.get(&rank)?;
    let needs = joined.needs(rank, &model.missing(group, seq));
    (!needs.is_empty()).then(|| Blocked {
        rank,
        thread: ThreadId::default(),
        group: group_id,
        seq,
        call: Arc::clone(&joined.call),
        since: joined.call.at,
        until: None,
        needs,
        message: None,
        certain: seq > 0 || joined.call.takes_all,
        only_thread: false,
        recorded: false,
        came_back: false,
    })
}

/// The wait for the partner of a point-to-point call.
fn for_message(
    model: &Model,
    group_id: GroupId,
    lone: Lone,
    since: Timestamp,
    now: Timestamp,
) -> Option<Blocked> {
    let group = model.group(group_id);
    let needs = partners(model, group_id, &lone)?;
    let heard_all = model
        .member(group_id, lone.rank)
        .into_iter()
        .chain(
            needs
                .iter()
                .filter_map(|&peer| model.member(group_id, peer)),
        )
        .all(|process| process.lost == 0);
    let sure = lone.sure && heard_all;
    let blocks = lone.side == Side::Receive || group.traffic.transport.sends_wait;
    let believed = (sure && blocks) || lasts(model, &lone, since, now);
    if !believed {
        return None;
    }
    Some(Blocked {
        rank: lone.rank,
        thread: ThreadId::default(),
        group: group_id,
        seq: lone.joined.call.seq,
        call: Arc::clone(&lone.joined.call),
        since,
        until: None,
        needs,
        certain: sure && lone.side == Side::Receive,
        message: Some(lone),
        only_thread: false,
        recorded: false,
        came_back: false,
    })
}

/// Whether a wait for a message that need not be one has lasted: also since a message was sent to the
/// rank, which may just be arriving.
pub(super) fn lasts(model: &Model, lone: &Lone, since: Timestamp, now: Timestamp) -> bool {
    let since = lone.sent.map_or(since, |sent| sent.max(since));
    now.since(since) >= model.timing.uncertain_wait
}

/// The ranks that may be the partner of a point-to-point call; `None` where one of them is not seen,
/// or it is the rank itself.
pub(super) fn partners(model: &Model, group: GroupId, lone: &Lone) -> Option<Vec<u32>> {
    let group = model.group(group);
    match lone.peer {
        Some(peer) => (peer != lone.rank && group.members.contains_key(&peer)).then(|| vec![peer]),
        None => {
            let others = group.members.keys().copied().filter(|&m| m != lone.rank);
            let others: Vec<u32> = others.collect();
            (group.is_fully_seen() && !others.is_empty()).then_some(others)
        }
    }
}

/// Grows the set of free ranks until nothing changes.
fn release(model: &Model, blocked: &BTreeMap<u32, Vec<Blocked>>, free: &mut BTreeSet<u32>) {
    loop {
        let released: Vec<u32> = blocked
            .iter()
            .filter(|(rank, threads)| {
                !free.contains(rank)
                    && threads.iter().any(|thread| {
                        let mut needs = thread.needs.iter();
                        let comes = |needed: &u32| {
                            free.contains(needed) && can_still_come(model, thread.group, *needed)
                        };
                        if thread.needs_any() {
                            needs.any(comes)
                        } else {
                            needs.all(comes)
                        }
                    })
            })
            .map(|(&rank, _)| rank)
            .collect();
        if released.is_empty() {
            return;
        }
        free.extend(released);
    }
}

/// Whether a rank may make further calls in a group.
fn can_still_come(model: &Model, group: GroupId, rank: u32) -> bool {
    let process = model.member(group, rank);
    let group = model.group(group);
    let is_in = match group.members.get(&rank) {
        Some(member) => member.destroyed.is_none(),
        None => model.asked_otherwise(group, rank).is_none(),
    };
    is_in && process.is_some_and(|process| model.ending_of(process) == Ending::None)
}

/// The shortest cycle through each knot of stuck ranks.
fn cycles(blocked: &BTreeMap<u32, Vec<Blocked>>, stuck: &BTreeSet<u32>) -> Vec<Vec<Blocked>> {
    let edge = |from: u32, to: u32| {
        blocked[&from]
            .iter()
            .find(|thread| thread.needs.contains(&to))
            .cloned()
    };
    let mut used: BTreeSet<u32> = BTreeSet::new();
    let mut found: Vec<Vec<u32>> = Vec::new();
    for &start in stuck {
        let Some(path) = shortest_cycle(blocked, stuck, start) else {
            continue;
        };
        found.push(path);
    }
    found.sort_by_key(|path| (path.len(), path.iter().min().copied()));
    let mut cycles = Vec::new();
    for path in found {
        if path.iter().any(|rank| used.contains(rank)) {
            continue;
        }
        used.extend(&path);
        let next = path.iter().cycle().skip(1);
        let waits: Option<Vec<Blocked>> = path
            .iter()
            .zip(next)
            .map(|(&from, &to)| edge(from, to))
            .collect();
        cycles.extend(waits.filter(|waits| closed(waits)));
    }
    cycles
}

/// Whether all of these waits went on when the last of them began.
fn closed(waits: &[Blocked]) -> bool {
    let last = waits.iter().map(|wait| wait.since).max();
    waits
        .iter()
        .all(|wait| wait.until.is_none() || wait.until >= last)
}

/// Breadth first from a rank back to itself.
fn shortest_cycle(
    blocked: &BTreeMap<u32, Vec<Blocked>>,
    stuck: &BTreeSet<u32>,
    start: u32,
) -> Option<Vec<u32>> {
    let mut came_from: BTreeMap<u32, u32> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(rank) = queue.pop_front() {
        for needed in blocked[&rank].iter().flat_map(|thread| &thread.needs) {
            if *needed == start {
                let mut path = vec![rank];
                while let Some(&before) = came_from.get(&path[path.len() - 1]) {
                    path.push(before);
                }
                path.reverse();
                return Some(path);
            }
            if stuck.contains(needed) && !came_from.contains_key(needed) {
                came_from.insert(*needed, rank);
                queue.push_back(*needed);
            }
        }
    }
    None
}
