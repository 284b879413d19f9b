//! Finds stalls: places where ranks wait for members that have not arrived.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{ExceptionKind, Op};

use crate::input::backends::Completion;
use crate::input::event::Call;
use crate::model::{
    Ending, Exception, Group, Join, JoinedCall, Process, Side, UnmatchedMessage, Wait, libc_signal,
};
use crate::situation::open_calls::OpenCalls;
use crate::situation::origin_kind::Hopelessness;
use crate::situation::stall::{Absent, Stall};
use crate::waits::{lasts, partners, waits_for_any};

/// The stalls of a group that were found so far.
#[derive(Default)]
struct EarlierStalls {
    stalls: Vec<Stall>,
    /// Ranks that one of them keeps from later calls.
    held: HashSet<u32>,
}

/// A rank that waits at a place, and the members it waits for that wait nowhere earlier.
struct Waiter<'a> {
    rank: u32,
    joined: &'a JoinedCall,
    open: Rc<[u32]>,
}

/// How earlier stalls explain a wait for some members; the same for all ranks that wait for them.
#[derive(Clone)]
struct Explanation {
    /// The members that wait nowhere earlier.
    open: Rc<[u32]>,
    /// The stall that explains the wait, and whether it holds the ranks.
    by: Option<(usize, bool)>,
}

impl OpenCalls<'_> {
    /// The stalls of a group: places where ranks wait for members that no earlier stall accounts
    /// for.
    pub(super) fn stalls_of(&self, group: &Group) -> Vec<Stall> {
        let first =
            if self.model.not_made_by(group).is_empty() { group.first_open() } else { Some(0) };
        let Some(first) = first else { return Vec::new() };
        let mut found = EarlierStalls::default();
        for (&seq, join) in group.joins.range(first..) {
            let missing = self.model.missing(group, seq);
            if missing.is_empty() {
                continue;
            }
            let waiters = self.unexplained_waiters(group, join, &missing, &mut found);
            if let Some(stall) = self.stall_of(group, (seq, join), waiters) {
                let held = stall.waiting.iter().filter(|it| self.is_held_by(group, **it, &stall));
                found.held.extend(held);
                found.stalls.push(stall);
            }
        }
        for stall in &mut found.stalls {
            stall.waiting.sort_unstable();
            stall.waiting.dedup();
        }
        found.stalls
    }

    /// The ranks that wait in this collective for a reason that no stall in `found` explains. Adds
    /// ranks that one explains to it.
    fn unexplained_waiters<'j>(
        &self,
        group: &Group,
        join: &'j Join,
        missing: &[u32],
        found: &mut EarlierStalls,
    ) -> Vec<Waiter<'j>> {
        let mut waiters: Vec<Waiter<'j>> = Vec::new();
        // For ranks that wait for all missing members.
        let mut for_all: Option<Explanation> = None;
        for (&rank, joined) in join.calls.iter() {
            let waits = self.is_awaited(group, rank, joined);
            if !waits || !self.is_waiter(group, rank, joined) {
                continue;
            }
            let Explanation { open, by } = if joined.needs_all() {
                let all = || Self::explanation(found, missing, true);
                for_all.get_or_insert_with(all).clone()
            } else {
                let needs = self.needed_by(group, rank, joined, missing);
                if needs.is_empty() {
                    continue;
                }
                let must_wait = !self.may_go_on(group, rank, joined, missing);
                Self::explanation(found, &needs, must_wait)
            };
            match by {
                Some((before, true)) => {
                    let stall = &mut found.stalls[before];
                    stall.waiting.push(rank);
                    found.held.extend(self.is_held_by(group, rank, stall).then_some(rank));
                }
                // The members it waits for may still arrive.
                Some((before, false)) if found.stalls[before].may_come(&open) => {}
                _ => waiters.push(Waiter { rank, joined, open }),
            }
        }
        waiters
    }

    /// The stall of these waiters in a collective; `None` if none of them waits there any more.
    fn stall_of(
        &self,
        group: &Group,
        (seq, join): (u64, &Join),
        mut waiters: Vec<Waiter<'_>>,
    ) -> Option<Stall> {
        let timed_out =
            waiters.iter().filter_map(|it| self.timed_out_at(group, it.rank, it.joined)).min();
        let lists = waiters.chunk_by(|a, b| Rc::ptr_eq(&a.open, &b.open));
        let needed: BTreeSet<u32> = lists.flat_map(|same| same[0].open.iter().copied()).collect();
        let missing: Vec<Absent> = needed
            .into_iter()
            .map(|rank| Absent { rank, why: self.absence(group, rank, false, timed_out) })
            .collect();
        retain_hopeless(&mut waiters, &missing);
        let since = waiters.iter().map(|it| it.joined.call.at).min()?;
        let must_wait = |it: &Waiter<'_>| !self.may_go_on(group, it.rank, it.joined, &it.open);
        let mut stall = Stall {
            group: group.id,
            seq,
            waiting: waiters.iter().map(|it| it.rank).collect(),
            missing,
            must_wait: waiters.iter().any(must_wait),
            since,
            failed: !self.was_left(group, join)
                && waiters.iter().any(|it| self.has_failed(group, it.rank, it.joined)),
            timed_out,
            ..Stall::default()
        };
        self.recognize_waits_that_end(&mut stall);
        (!self.is_deserted(group, &stall)).then_some(stall)
    }

    /// The missing members that a rank's call needs. A rooted call that waits for long needs them
    /// even if it may complete without them, and one that failed in the transport needed those that had
    /// left before.
    pub fn needed_by(
        &self,
        group: &Group,
        rank: u32,
        joined: &JoinedCall,
        missing: &[u32],
    ) -> Vec<u32> {
        let needs = joined.needs(rank, missing);
        if !needs.is_empty() || !joined.call.op.is_rooted() {
            return needs;
        }
        if self.may_go_on(group, rank, joined, missing) {
            return missing.to_vec();
        }
        let process = self
            .model
            .member(group.id, rank)
            .filter(|process| has_last_issued_in(group, process, &joined.call));
        let Some(error) = process.and_then(Process::transport_error) else { return needs };
        let has_left = |rank: &u32| self.has_left_before(group, *rank, error.at);
        missing.iter().copied().filter(has_left).collect()
    }

    /// Whether a rooted call waits for long although it need not wait for these members.
    fn may_go_on(&self, group: &Group, rank: u32, joined: &JoinedCall, missing: &[u32]) -> bool {
        joined.needs(rank, missing).is_empty()
            && waits_for_any(self.model, group, rank, joined, self.now)
    }

    /// Whether a member left the group in order before this time.
    pub(crate) fn has_left_before(&self, group: &Group, rank: u32, at: Timestamp) -> bool {
        self.left_at(group, rank).is_some_and(|left| left <= at)
    }

    /// When a member left the group in order, if it did.
    pub(crate) fn left_at(&self, group: &Group, rank: u32) -> Option<Timestamp> {
        let process = self.model.member(group.id, rank)?;
        let destroyed = group.members.get(&rank).and_then(|it| it.destroyed);
        let exited = || {
            let in_order = self.model.ending_of(process) == Ending::InOrder;
            let announced = process.announced.as_ref().map(|it| it.at);
            let ended = process.end.map(|end| end.at);
            announced.or(ended).filter(|_| in_order)
        };
        destroyed.or_else(exited)
    }

    /// How earlier stalls of the group explain a wait for these members, ascending.
    fn explanation(found: &EarlierStalls, needs: &[u32], must_wait: bool) -> Explanation {
        let open: Rc<[u32]> = needs.iter().copied().filter(|it| !found.held.contains(it)).collect();
        let mut stalls = found.stalls.iter();
        let by = stalls
            .position(|it| it.explains(needs, &open, must_wait))
            .map(|at| (at, found.stalls[at].holds(&open)));
        Explanation { open, by }
    }

    /// Whether a stall in which a rank waits keeps it from later calls of the group.
    fn is_held_by(&self, group: &Group, rank: u32, stall: &Stall) -> bool {
        !self.is_gone(group, rank, stall)
            && self.model.member(group.id, rank).is_some_and(|it| self.is_held(it))
    }

    /// Whether a rank that had made its call exited in order without waiting for it. The transport
    /// then fails for the other ranks, which says nothing about missing ones.
    fn was_left(&self, group: &Group, join: &Join) -> bool {
        join.by_rank().any(|(rank, joined)| {
            self.ending(group.id, rank) == Some(Ending::InOrder)
                && !matches!(joined.wait, Wait::Over(_))
        })
    }

    /// Whether a rank that waits in a stall makes no later call of the group even if the stall
    /// ends: it destroyed the group, or died for another reason.
    fn is_gone(&self, group: &Group, rank: u32, stall: &Stall) -> bool {
        let died = |process: &Process| {
            let before = |given_up| process.end.is_some_and(|end| end.at < given_up);
            matches!(self.model.ending_of(process), Ending::Died(_))
                && !self.waits.in_cycle(rank)
                && !stall.failed
                && stall.timed_out.is_none_or(before)
        };
        group.is_destroyed_by(rank) || self.model.member(group.id, rank).is_some_and(died)
    }

    /// Whether no rank waits there any more: all have ended for other reasons.
    fn is_deserted(&self, group: &Group, stall: &Stall) -> bool {
        let gone = |absent: &Absent| absent.why.hopelessness() == Hopelessness::Gone;
        let ended = |&rank: &u32| {
            self.ending(group.id, rank).is_some_and(|it| it != Ending::None)
                && !self.waits.in_cycle(rank)
        };
        let gave_up = stall.failed || stall.timed_out.is_some();
        !gave_up && stall.waiting.iter().all(ended) && !stall.missing.iter().any(gone)
    }

    /// Whether a rank waits or waited for a call that it made, or is blocked in it.
    pub(super) fn is_awaited(&self, group: &Group, rank: u32, joined: &JoinedCall) -> bool {
        joined.is_awaited()
            || self.is_held_in(group, rank, joined)
            || self.has_given_up(group, rank, joined).is_some()
    }

    /// Whether a rank is blocked in a call that it issued asynchronously.
    pub fn is_held_in(&self, group: &Group, rank: u32, joined: &JoinedCall) -> bool {
        let process = self.model.member(group.id, rank);
        process.is_some_and(|it| it.is_held_in(&joined.call, self.now, &self.model.timing))
    }

    /// Whether a rank waits, or waited until its end. An exit in order shows that it did not have
    /// to.
    fn is_waiter(&self, group: &Group, rank: u32, joined: &JoinedCall) -> bool {
        let may_wait = self.ending(group.id, rank) != Some(Ending::InOrder)
            && !self.has_ended_beside(group, rank, joined);
        may_wait || self.has_failed(group, rank, joined)
    }

    /// Whether the program of a rank has ended in order while a call was under way on its device, and makes no
    /// further call: it did not need the result.
    fn has_ended_beside(&self, group: &Group, rank: u32, joined: &JoinedCall) -> bool {
        let process = self.model.member(group.id, rank);
        !group.holds_threads(joined.call.op)
            && process.is_some_and(|it| it.left_in_order().is_some() && !it.is_inside_a_call())
    }

    /// Whether a rank's wait ended without the members it needs, or ended its process.
    fn has_failed(&self, group: &Group, rank: u32, joined: &JoinedCall) -> bool {
        let holds = group.holds_threads(joined.call.op);
        if self.has_given_up(group, rank, joined).is_some() {
            return true;
        }
        if holds && matches!(joined.wait, Wait::Over(at) if self.model.is_before_shutdown(at)) {
            return true;
        }
        let Some(process) = self.model.member(group.id, rank) else { return false };
        match self.model.ending_of(process) {
            Ending::Raised(_) => {
                let out_of = |it: &Exception| it.kind == ExceptionKind::LeftCollective;
                let from_here = process
                    .uncaught()
                    .is_none_or(|it| it.place.is_none() || it.place == joined.call.place);
                process.has_last_issued(&joined.call)
                    && (holds && from_here || process.exceptions.iter().any(out_of))
            }
            // Watchdogs abort the process as a last resort.
            Ending::Died(exit) => exit.signal == Some(libc_signal::ABRT),
            Ending::InOrder | Ending::None => false,
        }
    }

    /// Ranks that wait for the partner of a point-to-point call: the first such call of each.
    pub(super) fn unpartnered(&self, group: &Group) -> Vec<Stall> {
        let mut found: BTreeMap<(u32, Side), Stall> = BTreeMap::new();
        let open = group.traffic.open();
        let is_open = |unmatched: &UnmatchedMessage| {
            unmatched.is_awaited()
                || self.waits.has(unmatched)
                || self.was_refused(group, unmatched)
        };
        for unmatched in open.filter(is_open) {
            let key = (unmatched.rank, unmatched.side);
            if self.has_ended_beside(group, unmatched.rank, &unmatched.joined) {
                continue;
            }
            let Some(stall) = self.without_partner(group, unmatched) else { continue };
            if found.get(&key).is_none_or(|known| stall.since < known.since) {
                found.insert(key, stall);
            }
        }
        found.into_values().collect()
    }

    /// Whether an asynchronous call of a message raised an exception, and ended its rank, because its partner had left.
    fn was_refused(&self, group: &Group, unmatched: &UnmatchedMessage) -> bool {
        let process = self
            .model
            .member(group.id, unmatched.rank)
            .filter(|it| it.has_last_issued(&unmatched.joined.call));
        let error = process.and_then(Process::transport_error);
        let has_left = |rank: u32| error.is_some_and(|it| self.has_left_before(group, rank, it.at));
        unmatched.joined.returned.is_none()
            && partners(self.model, group.id, unmatched)
                .is_some_and(|them| them.into_iter().any(has_left))
    }

    fn without_partner(&self, group: &Group, unmatched: UnmatchedMessage) -> Option<Stall> {
        let process = self.model.member(group.id, unmatched.rank)?;
        let missing = partners(self.model, group.id, &unmatched)?;
        let since = unmatched.since();
        // A send may complete early, and a message that was not recorded may have arrived.
        let must_wait =
            unmatched.sure && (unmatched.side == Side::Receive || group.backend.sends_wait);
        let mut failed = match unmatched.joined.wait {
            // The device has completed it.
            Wait::Over(_) if unmatched.joined.call.on_stream.is_some() => return None,
            Wait::Over(at) if must_wait => {
                group.backend.completion == Completion::AtWait && self.model.is_before_shutdown(at)
            }
            Wait::Over(_) => return None,
            _ if must_wait || lasts(self.model, &unmatched, since, self.now) => false,
            _ => return None,
        };
        if let Some(end) = process.end {
            let in_cycle = self.waits.in_cycle(unmatched.rank);
            failed |= self.has_failed(group, unmatched.rank, &unmatched.joined);
            let explained = match self.model.ending_of(process) {
                // It died before it had waited for long.
                Ending::Died(_) => end.at.since(since) < self.config.stall_after,
                // It did not wait, or ended for another reason.
                Ending::InOrder | Ending::Raised(_) => !failed,
                Ending::None => false,
            };
            if explained && !in_cycle {
                return None;
            }
        }
        let timed_out = self.timed_out_at(group, unmatched.rank, &unmatched.joined);
        // A rank that had waited for the whole stall limit had given up by its end: what happened
        // to its partner later does not explain the wait.
        let gave_up = process.end.map(|end| end.at).filter(|&at| {
            self.model.is_before_shutdown(at) && at.since(since) >= self.config.stall_after
        });
        let given_up = timed_out.or(gave_up);
        let mut stall = Stall {
            group: group.id,
            seq: unmatched.joined.call.seq,
            waiting: vec![unmatched.rank],
            missing: missing
                .into_iter()
                .map(|rank| Absent { rank, why: self.absence(group, rank, true, given_up) })
                .collect(),
            message: Some(unmatched),
            must_wait: true,
            since,
            failed,
            timed_out,
            ..Stall::default()
        };
        self.recognize_waits_that_end(&mut stall);
        Some(stall)
    }
}

/// Whether a call is the last one that its process issued, or the last one of a group on whose streams it was before
/// it destroyed that group, which waits for it.
fn has_last_issued_in(group: &Group, process: &Process, call: &Call) -> bool {
    let Some(last) = &process.last_call else { return false };
    let waits = last.op == Op::DestroyProcessGroup && group.backend.is_on_stream;
    let is_last_of_group = || {
        let rank = process.rank.and_then(|rank| group.members.get(&rank));
        rank.is_some_and(|member| member.destroyed.is_some() && member.issued == call.seq)
    };
    last.id == call.id || waits && is_last_of_group()
}

/// Once some members cannot arrive, drops ranks that wait only for members that may.
fn retain_hopeless(waiters: &mut Vec<Waiter<'_>>, missing: &[Absent]) {
    let all = missing.iter().map(|it| it.why.hopelessness()).min();
    if all == Some(Hopelessness::MayCome) {
        return;
    }
    let mut last: Option<(Rc<[u32]>, bool)> = None;
    waiters.retain(|it| {
        let known = last.take().filter(|(open, _)| Rc::ptr_eq(open, &it.open));
        let may_come = known.map_or_else(
            || Absent::hopelessness(missing, &it.open) == Some(Hopelessness::MayCome),
            |(_, known)| known,
        );
        last = Some((Rc::clone(&it.open), may_come));
        !may_come
    });
}
