//! Who waits for whom: the graph of waits, what it can still release, and its cycles.
//!
//! A thread is blocked when it waits for a collective that cannot be complete: the members it must
//! wait for ([`super::model::JoinedCall::needs`]) have not made their call. Only what must block counts. A leaf of
//! a rooted collective and a sender may be done early, and a call that nobody waits for blocks
//! nobody.
//!
//! # The release fixpoint
//!
//! A rank is *free* if one of its threads that make calls is not blocked: nothing is known about
//! what it will do next, so it may yet make any call. Starting from the free ranks, a blocked rank
//! becomes free as soon as one of its threads needs only free ranks. The ranks that this never
//! reaches are *stuck*: whatever the free ones do, these cannot move. Following a stuck rank's needs
//! leads to a rank that has ended or stopped, or back to itself: a deadlock.
//!
//! This is the AND model of distributed deadlock (Chandy, Misra, Haas, "Distributed deadlock
//! detection", TOCS 1983): collectives know no waiting for any one of several.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use super::event::ThreadId;
use super::model::{Doing, Ending, GroupId, Model, Process};

/// DDP waits for its buckets where no probe sees it: a thread whose last record is such a call, and
/// that has written none for this long, is taken to wait for it.
const HIDDEN_WAIT: Duration = Duration::from_secs(3);

/// A thread that waits for ranks that have not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Its rank.
    pub rank: u32,
    /// The thread.
    pub thread: ThreadId,
    /// The group of the call it waits for.
    pub group: GroupId,
    /// That call's sequence number.
    pub seq: u64,
    /// When it made the call.
    pub since: Timestamp,
    /// The ranks it needs, ascending.
    pub needs: Vec<u32>,
    /// No other thread of the process ever made a call.
    pub only_thread: bool,
    /// The wait itself was recorded; otherwise it is inferred.
    pub recorded: bool,
}

/// The graph of waits at one moment.
#[derive(Debug, Default)]
pub struct Waits {
    /// Blocked threads by rank.
    pub blocked: BTreeMap<u32, Vec<Blocked>>,
    /// Ranks that no free rank can release.
    pub stuck: BTreeSet<u32>,
    /// Minimal cycles among stuck ranks, one per knot; each wait needs the rank of the next.
    pub cycles: Vec<Vec<Blocked>>,
}

impl Waits {
    /// The graph as the model has it now.
    #[must_use]
    pub fn of(model: &Model, now: Timestamp) -> Self {
        let mut blocked: BTreeMap<u32, Vec<Blocked>> = BTreeMap::new();
        let mut free: BTreeSet<u32> = BTreeSet::new();
        for process in model.processes.values() {
            let Some(rank) = process.rank else { continue };
            if model.ending_of(process) != Ending::None || process.is_stopped() {
                continue;
            }
            let threads = blocked_threads(model, process, rank, now);
            if threads.len() < process.threads.len() || process.threads.is_empty() {
                free.insert(rank);
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
            cycles,
        }
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

fn blocked_threads(model: &Model, process: &Process, rank: u32, now: Timestamp) -> Vec<Blocked> {
    let mut found = Vec::new();
    for (&id, thread) in &process.threads {
        let (target, recorded) = match &thread.doing {
            Doing::Call(call) => (process.target(call.id), true),
            Doing::Wait(target, ..) => (*target, true),
            Doing::Nothing => {
                let last = thread.last_call.as_ref();
                let silent = now.since(thread.last_at) >= HIDDEN_WAIT;
                match last.filter(|call| call.hidden && silent && call.at == thread.last_at) {
                    Some(call) => (process.target(call.id), false),
                    None => (None, false),
                }
            }
        };
        let Some((group_id, seq)) = target else {
            continue;
        };
        let group = model.group(group_id);
        let Some(joined) = group.join(seq).and_then(|join| join.calls.get(&rank)) else {
            continue;
        };
        let needs = joined.needs(rank, &model.missing(group, seq));
        if !needs.is_empty() {
            found.push(Blocked {
                rank,
                thread: id,
                group: group_id,
                seq,
                since: joined.call.at,
                needs,
                only_thread: process.threads.len() == 1,
                recorded,
            });
        }
    }
    found
}

/// Grows the set of free ranks until nothing changes.
fn release(model: &Model, blocked: &BTreeMap<u32, Vec<Blocked>>, free: &mut BTreeSet<u32>) {
    loop {
        let released: Vec<u32> = blocked
            .iter()
            .filter(|(rank, threads)| {
                !free.contains(rank)
                    && threads.iter().any(|thread| {
                        thread.needs.iter().all(|&needed| {
                            free.contains(&needed) && can_still_come(model, thread.group, needed)
                        })
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
        cycles.extend(waits);
    }
    cycles
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
