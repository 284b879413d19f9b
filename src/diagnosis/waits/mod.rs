//! The graph of waits: blocked ranks, ranks that can still be released, and cycles.
//!
//! A thread is blocked if it waits for a collective that cannot be complete, because members that
//! it must wait for ([`crate::model::JoinedCall::needs`]) have not made their call, or for a
//! message that was not sent. Only waits that must block count: a leaf of a rooted collective may
//! complete early, and a call without a wait blocks no thread. The exceptions are inferred after
//! some time, and prove nothing: a rooted collective that waits nevertheless, an asynchronous call
//! that does not return, since the first call creates a communicator, and a wait for a device,
//! which shows in the stacks (`devices.rs`).
//!
//! Whether a sender must wait depends on the backend and on message sizes
//! ([`crate::input::backends`]). A wait for a send counts as blocked at once if the backend's
//! sends wait, otherwise after some time; it is not *certain* and proves nothing. The same holds
//! for a receive from any source, and for messages between ranks with lost records.
//!
//! # The release fixpoint
//!
//! A rank is *free* if one of its threads is not blocked: that thread may make any call next. Three
//! kinds of threads free no rank: a thread of the backward pass that has been silent for a while,
//! since it acts for the thread that runs the pass, a thread whose call met calls that can never
//! match it, and the threads of a process whose stacks show that they wait for each other. A rank
//! that ended while a thread was free ended for another reason. Starting from the free ranks, a
//! blocked rank becomes free as soon as one of its threads needs only free ranks (for a receive from
//! any source: one free rank). The remaining ranks are *stuck*: no action of free ranks can release
//! them. The needs of a stuck rank lead to a rank that has ended or stopped, or back to itself: a
//! deadlock.
//!
//! This is the AND model of distributed deadlock (Chandy, Misra, Haas, "Distributed deadlock
//! detection", TOCS 1983): a collective never waits for any one of several ranks. With receives
//! from any source a cycle alone is not a deadlock, but a cycle of stuck ranks is.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::Direction;

use crate::input::align::Signature;
use crate::input::backends::Connects;
use crate::input::event::{Call, ThreadId};
use crate::model::{
    Doing, Ending, Group, GroupId, Join, JoinedCall, Model, Process, Side, Target, Thread,
    UnmatchedMessage, Wait,
};
use crate::stacks;

mod cycles;
pub mod device;
mod devices;
pub mod dumped;
pub mod issue_order;
mod launches;
pub(crate) mod numbers;
pub mod order;
pub mod streams;

/// A thread that waits for ranks that have not arrived.
#[derive(Clone, Debug)]
pub struct Blocked {
    /// Rank of the thread.
    pub rank: u32,
    /// The thread.
    pub thread: ThreadId,
    /// Group of the call it waits for.
    pub group: GroupId,
    /// Sequence number of that call.
    pub seq: u64,
    /// The call it waits for.
    pub call: Arc<Call>,
    /// When it issued the call; for a point-to-point call, when it began to wait.
    pub since: Timestamp,
    /// When the wait ended, if it failed and ended the process, or ended with it.
    pub until: Option<Timestamp>,
    /// Ranks it needs, ascending.
    pub needs: Arc<[u32]>,
    /// The point-to-point call it waits for, if it is one.
    pub message: Option<UnmatchedMessage>,
    /// It cannot continue before all of these ranks arrive, whatever the transport does.
    pub certain: bool,
    /// No other thread of the process has issued a call.
    pub only_thread: bool,
    /// The wait itself was recorded; otherwise it is inferred.
    pub recorded: bool,
    /// The call returned before it was complete, as calls on devices do; the program waits later.
    pub came_back: bool,
}

/// The graph of waits at one moment.
#[derive(Debug, Default)]
pub struct Waits {
    /// Blocked threads by rank.
    pub blocked: BTreeMap<u32, Vec<Blocked>>,
    /// Ranks that no free rank can release.
    pub stuck: BTreeSet<u32>,
    /// Ranks all of whose threads wait for calls that met calls which can never match them.
    pub at_odds: BTreeSet<u32>,
    /// Minimal cycles among stuck ranks, one per knot; each wait needs the rank of the next.
    pub cycles: Vec<Vec<Blocked>>,
}

impl Waits {
    /// The graph of the model at `now`.
    pub fn new(model: &Model, now: Timestamp) -> Self {
        let mut blocked: BTreeMap<u32, Vec<Blocked>> = BTreeMap::new();
        let mut free: BTreeSet<u32> = BTreeSet::new();
        let mut all_at_odds: BTreeSet<u32> = BTreeSet::new();
        let mut missing = Missing::new();
        for process in model.processes.values() {
            let Some(rank) = process.rank else { continue };
            let ended = match model.ending_of(process) {
                Ending::None => None,
                Ending::InOrder => continue,
                // Ranks may have ended because of a cycle that was closed before.
                Ending::Raised(_) | Ending::Died(_) => {
                    if model.process_of(rank).is_none_or(|newest| newest.id != process.id) {
                        continue;
                    }
                    Some(process.end.map_or(now, |end| end.at))
                }
            };
            if process.is_stopped() {
                continue;
            }
            let one = ProcessAt { model, now, process, rank };
            let mut threads = one.blocked_threads(ended, &mut missing);
            let mut rests = false;
            if threads.is_empty() && ended.is_none() {
                threads.extend(one.blocked_by_device());
                rests = !threads.is_empty();
            }
            let until = ended.unwrap_or(now);
            let at_odds = |thread: &Thread| one.is_at_odds(thread);
            let several_wait = process.threads.len() > 1
                && !threads.is_empty()
                && stacks::threads_wait(process, threads.iter().map(|it| &*it.call), &model.timing);
            let goes_on = |id: &ThreadId, thread: &Thread| {
                let is_blocked = threads.iter().any(|blocked| blocked.thread == *id);
                let silence = until.since(thread.last_at);
                let acts = thread.of_the_program && !rests || silence < model.timing.hidden_wait;
                !is_blocked && acts && !several_wait && !at_odds(thread)
            };
            let is_held = !threads.is_empty() || process.threads.values().any(|it| at_odds(it));
            if !is_held || process.threads.iter().any(|(id, it)| goes_on(id, it)) {
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
        let stuck: BTreeSet<u32> =
            blocked.keys().copied().filter(|rank| !free.contains(rank)).collect();
        let cycles = cycles::shortest(&blocked, &stuck);
        Self { blocked, stuck, at_odds: all_at_odds, cycles }
    }

    /// Number of ranks in the lists of needs.
    pub fn size(&self) -> u64 {
        let mut known = HashSet::new();
        let lists = self.blocked.values().flatten().map(|it| &it.needs);
        let distinct = lists.filter(|it| known.insert(it.as_ptr().addr()));
        distinct.map(|it| it.len() as u64).sum()
    }

    /// Whether a rank waits in a cycle.
    pub fn in_cycle(&self, rank: u32) -> bool {
        let mut waits = self.cycles.iter().flatten();
        waits.any(|wait| wait.rank == rank)
    }

    /// Whether a thread is blocked in this point-to-point call.
    pub(crate) fn has(&self, unmatched: &UnmatchedMessage) -> bool {
        let waits = self.blocked.get(&unmatched.rank).into_iter().flatten();
        let mut messages = waits.filter_map(|wait| wait.message.as_ref());
        messages.any(|it| it.joined.call.id == unmatched.joined.call.id)
    }

    /// The wait of a stuck rank.
    pub fn stuck_in(&self, rank: u32) -> Option<&Blocked> {
        self.stuck.contains(&rank).then(|| self.blocked.get(&rank)?.first()).flatten()
    }
}

impl Blocked {
    /// A wait for these ranks in a call, of which nothing else is known.
    fn new(
        rank: u32,
        (group, seq): (GroupId, u64),
        call: &Arc<Call>,
        needs: impl Into<Arc<[u32]>>,
    ) -> Self {
        Self {
            rank,
            thread: ThreadId::default(),
            group,
            seq,
            call: Arc::clone(call),
            since: call.at,
            until: None,
            needs: needs.into(),
            message: None,
            certain: false,
            only_thread: false,
            recorded: false,
            came_back: false,
        }
    }

    /// A wait for the partner of a point-to-point call; `None`: there can be none.
    fn for_partner(model: &Model, group: GroupId, unmatched: UnmatchedMessage) -> Option<Self> {
        let needs = partners(model, group, &unmatched)?;
        let call = Arc::clone(&unmatched.joined.call);
        let blocked = Self::new(unmatched.rank, (group, call.seq), &call, needs);
        Some(Self { message: Some(unmatched), ..blocked })
    }

    /// Whether it waits in a rooted collective that need not wait, and may still end.
    pub fn may_end(&self) -> bool {
        self.message.is_none() && !self.certain && self.call.op.is_rooted()
    }

    /// Whether any one of the needed ranks suffices.
    pub fn needs_any(&self) -> bool {
        self.message.as_ref().is_some_and(|unmatched| unmatched.peer.is_none())
    }
}

/// A process that is examined at one moment.
#[derive(Clone, Copy)]
struct ProcessAt<'a> {
    model: &'a Model,
    now: Timestamp,
    process: &'a Process,
    rank: u32,
}

impl ProcessAt<'_> {
    /// Whether a thread waits for a call that met calls which can never match it, and so never
    /// continues.
    fn is_at_odds(&self, thread: &Thread) -> bool {
        let Some(Target::Join(group, seq)) = self.process.target_of(thread) else { return false };
        let group = self.model.group(group);
        let mismatched = group.join(seq).filter(|join| join.mismatch.is_some());
        let Some((join, joined)) =
            mismatched.and_then(|join| Some((join, join.calls.get(&self.rank)?)))
        else {
            return false;
        };
        group.holds_threads(joined.call.op)
            && !joined.call.hidden
            && needs_unmatched(join, self.rank, joined)
    }

    /// When a collective returned to the program, which may still have to wait for it.
    fn returned_at(&self, call: &Call) -> Option<Timestamp> {
        let Some(Target::Join(group, seq)) = self.process.target(call.id) else { return None };
        self.model.group(group).join(seq)?.calls.get(&self.rank)?.returned
    }

    /// The threads of a process that are blocked, or were when it ended.
    fn blocked_threads(&self, ended: Option<Timestamp>, missing: &mut Missing) -> Vec<Blocked> {
        let Self { model, now, process, rank } = *self;
        let mut found = Vec::new();
        for (&id, thread) in &process.threads {
            let mut until = ended;
            let held = thread.held_in(process.seen_until(now), &model.timing);
            let (target, since, recorded) = match &thread.doing {
                Doing::Call(call) => (process.target(call.id), call.at, true),
                Doing::Wait(target, since, _) => (*target, *since, true),
                Doing::Nothing if ended.is_some() => {
                    let Some((target, since, over)) = thread.failed else { continue };
                    until = Some(over);
                    (Some(target), since, true)
                }
                Doing::Nothing => {
                    let last = thread.last_call.as_ref();
                    let silent = |call: &Call| {
                        let is_last = call.at == thread.last_at
                            || call.is_bucket() && self.returned_at(call) == Some(thread.last_at);
                        call.hidden
                            && is_last
                            && now.since(thread.last_at) >= model.timing.hidden_wait
                    };
                    match held.or(last.filter(|call| silent(call))) {
                        Some(call) => (process.target(call.id), call.at, false),
                        None => continue,
                    }
                }
            };
            let found_here = match target {
                Some(Target::Join(group, seq)) => for_others(model, group, seq, rank, now, missing),
                // The first message of two ranks may create their communicator inside of the call.
                Some(Target::Message(group, post)) if recorded || held.is_some() => {
                    let unmatched = model.group(group).traffic.unmatched(&post);
                    let alone = unmatched
                        .and_then(|unmatched| for_message(model, group, unmatched, since, now));
                    alone.or_else(|| self.blocked_in_launch(&thread.doing))
                }
                _ => None,
            };
            if let Some(blocked) = found_here {
                // A wait that does not block its thread ends at once, so only a silent thread is
                // blocked.
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
}

/// Whether a call has to wait for one that it met and can never match.
pub(super) fn needs_unmatched(join: &Join, rank: u32, joined: &JoinedCall) -> bool {
    let own = Signature::from_call(&joined.call);
    let root = joined.call.root;
    if let Some(root) = root.filter(|_| joined.call.op.direction() == Direction::FromRoot) {
        let of_root = join.calls.get(&root);
        return of_root.is_some_and(|it| own.never_matches(&Signature::from_call(&it.call)));
    }
    // Any of the others will do. Comparing signatures instead of calls, this takes the same time however
    // many ranks have met.
    let another = join.calls.keys().copied().find(|&other| other != rank);
    another.is_some_and(|other| !joined.needs(rank, &[other]).is_empty())
        && join.signatures().any(|other| own.never_matches(other))
}

/// Whether a later call on the same stream needs a member that is in a call here which it can never leave.
pub(super) fn needs_one_behind_unmatched(join: &Join, rank: u32, later: &JoinedCall) -> bool {
    let mut others = join.calls.iter().filter(|(other, _)| **other != rank);
    others.any(|(&other, joined)| {
        !later.needs(rank, &[other]).is_empty() && needs_unmatched(join, other, joined)
    })
}

/// Members that have not made their call, by group and sequence number.
type Missing = BTreeMap<(GroupId, u64), Arc<[u32]>>;

/// The wait of a rank for members that have not arrived at its call.
fn for_others(
    model: &Model,
    group_id: GroupId,
    seq: u64,
    rank: u32,
    now: Timestamp,
    missing: &mut Missing,
) -> Option<Blocked> {
    let group = model.group(group_id);
    let joined = group.join(seq)?.calls.get(&rank)?;
    let missing =
        missing.entry((group_id, seq)).or_insert_with(|| model.missing(group, seq).into());
    let needs =
        if joined.needs_all() { Arc::clone(missing) } else { joined.needs(rank, missing).into() };
    let (needs, must_wait) = match &needs[..] {
        [] if waits_for_any(model, group, rank, joined, now) => (Arc::clone(missing), false),
        _ => (needs, true),
    };
    (!needs.is_empty()).then(|| Blocked {
        certain: must_wait && (seq > 0 || joined.call.takes_all),
        ..Blocked::new(rank, (group_id, seq), &joined.call, needs)
    })
}

/// Whether a rooted collective has waited for `uncertain_wait`, to the end or until it failed. It is
/// missing members that it waits for, even if it may complete without them: a root for those that
/// receive, a leaf for those between it and the root.
pub(super) fn waits_for_any(
    model: &Model,
    group: &Group,
    rank: u32,
    joined: &JoinedCall,
    now: Timestamp,
) -> bool {
    let op = joined.call.op;
    let Some(process) = model.member(group.id, rank) else { return false };
    // The first collective creates the communicator, for which each member needs all others.
    let connects = group.backend.connects == Connects::AtFirstCall
        && joined.call.seq == 1
        && joined.returned.is_none()
        && process.is_inside(&joined.call);
    let (since, until) = match joined.wait {
        _ if connects => (joined.call.at, process.seen_until(now)),
        Wait::Since(at) => (at, process.seen_until(now)),
        Wait::Over(at) if joined.failed => (joined.call.at, at),
        Wait::Over(_) | Wait::NotSeen => return false,
    };
    op.is_rooted()
        && (connects || group.holds_threads(op))
        && until.since(since) >= model.timing.uncertain_wait
}

/// The wait for the partner of a point-to-point call.
fn for_message(
    model: &Model,
    group: GroupId,
    unmatched: UnmatchedMessage,
    since: Timestamp,
    now: Timestamp,
) -> Option<Blocked> {
    let (is_sure, receives) = (unmatched.sure, unmatched.side == Side::Receive);
    let has_lasted = lasts(model, &unmatched, since, now);
    let blocked = Blocked::for_partner(model, group, unmatched)?;
    let ranks = [blocked.rank].into_iter().chain(blocked.needs.iter().copied());
    let mut processes = ranks.filter_map(|rank| model.member(group, rank));
    let is_known = is_sure && processes.all(|process| process.lost == 0);
    let blocks = receives || model.group(group).backend.sends_wait;
    let believed = (is_known && blocks) || has_lasted;
    believed.then_some(Blocked { since, certain: is_known && receives, ..blocked })
}

/// Whether a wait that need not block has lasted for `uncertain_wait`, also since the latest
/// message to the rank, which may be arriving.
pub(super) fn lasts(
    model: &Model,
    unmatched: &UnmatchedMessage,
    since: Timestamp,
    now: Timestamp,
) -> bool {
    let since = unmatched.sent.map_or(since, |sent| sent.max(since));
    now.since(since) >= model.timing.uncertain_wait
}

/// The ranks that may be the partner of a point-to-point call; `None` if one of them is not
/// observed, or the partner is the rank itself.
pub(super) fn partners(
    model: &Model,
    group: GroupId,
    unmatched: &UnmatchedMessage,
) -> Option<Vec<u32>> {
    let group = model.group(group);
    match unmatched.peer {
        Some(peer) => {
            (peer != unmatched.rank && group.members.contains_key(&peer)).then(|| vec![peer])
        }
        None => {
            let others: Vec<u32> =
                group.members.keys().copied().filter(|&m| m != unmatched.rank).collect();
            (group.is_fully_seen() && !others.is_empty()).then_some(others)
        }
    }
}

/// Ranks that wait for the same list of members.
struct Waiters {
    group: GroupId,
    waiting: Vec<u32>,
    /// Number of members that still have to be able to come.
    left: usize,
}

/// Extends the set of free ranks to its fixpoint, in a time that grows with the lists of needed ranks alone.
fn release(model: &Model, blocked: &BTreeMap<u32, Vec<Blocked>>, free: &mut BTreeSet<u32>) {
    let mut all: Vec<Waiters> = Vec::new();
    let mut known: HashMap<(usize, GroupId, bool), usize> = HashMap::new();
    let mut needing: HashMap<u32, Vec<usize>> = HashMap::new();
    let mut freed: Vec<u32> = free.iter().copied().collect();
    let waiting = blocked.iter().filter(|(rank, _)| !free.contains(rank));
    for (&rank, thread) in
        waiting.flat_map(|(rank, threads)| threads.iter().map(move |it| (rank, it)))
    {
        let (list, group, any) = (thread.needs.as_ptr().addr(), thread.group, thread.needs_any());
        let at = *known.entry((list, group, any)).or_insert_with(|| {
            let left = if any { 1 } else { thread.needs.len() };
            all.push(Waiters { group, waiting: Vec::new(), left });
            for needed in &*thread.needs {
                needing.entry(*needed).or_default().push(all.len() - 1);
            }
            all.len() - 1
        });
        all[at].waiting.push(rank);
    }
    let needs_none = all.iter().filter(|it| it.left == 0).flat_map(|it| &it.waiting);
    freed.extend(needs_none.filter(|it| free.insert(**it)));
    while let Some(rank) = freed.pop() {
        for &at in needing.get(&rank).into_iter().flatten() {
            let waiters = &mut all[at];
            if waiters.left == 0 || !can_still_come(model, waiters.group, rank) {
                continue;
            }
            waiters.left -= 1;
            if waiters.left == 0 {
                freed.extend(waiters.waiting.iter().filter(|it| free.insert(**it)));
            }
        }
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
