//! A process group: the progress of each member, and the calls that are not complete.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::{Direction, NCCL_LAYER};

use crate::input::backends::{Backend, Completion};
use crate::input::event::{Call, GroupInfo, ProcessId, ThreadId, UNKNOWN_PROGRESS};
use crate::model::arrivals::CompletedCall;
use crate::model::ddp_models::Replicas;
use crate::model::history::{History, Turns};
use crate::model::ids::{GroupId, World};
use crate::model::keep_latest;
use crate::model::maps::ByRank;

mod channel;
mod creation;
mod crossings;
mod join;
mod lower_layer;

pub use channel::{Clash, Traffic, UnmatchedMessage};
pub use creation::{CreationRequest, Creations, Meeting, MeetingPoint, Request};
pub use crossings::{Crossing, Crossings};
pub use join::{Averaged, Buckets, Join, JoinedCall, MAX_MISFITS, Wait};

pub(in crate::model) use channel::MatchedSide;

/// Number of calls in entered collectives that a group keeps, over all members …
const MAX_CALLS: usize = 4096;
/// … but at least and at most the calls of this many collectives.
const MAX_ENTERED: (usize, usize) = (4, 64);
/// Maximum number of joins that a group keeps while members are unseen, and after its ranks
/// diverged.
const MAX_JOINS: usize = 1024;
/// Joins after the first divergence that are kept although every member arrived: they show whether
/// the calls were only made in a different order.
pub const MAX_JOINS_AFTER: u64 = 8;

/// Complete mismatches after the first divergence that a group keeps: a rank may be blocked at one
/// of them.
const MAX_DIVERGENCES: usize = 16;

/// A process group with all its members.
#[derive(Debug, Default)]
pub struct Group {
    /// Its id in the model.
    pub id: GroupId,
    /// World of the group.
    pub world: World,
    /// Description of the group, equal on all members.
    pub info: Arc<GroupInfo>,
    /// Properties of its backend.
    pub backend: &'static Backend,
    /// Its creation was recorded for a member, and so will be for all of them.
    pub making_seen: bool,
    /// Observed members, by global rank.
    pub members: ByRank<Member>,
    /// Calls by sequence number until every member has made its own, and the first divergence. Call
    /// 0 is the creation of the group, until every member returned from it.
    pub joins: BTreeMap<u64, Join>,
    /// Collectives that every member has entered and may still wait for. Only the latest ones:
    /// waits for most asynchronous calls are never recorded.
    pub entered: BTreeMap<u64, Join>,
    /// The latest collectives on devices that every member has entered and for which no further event is expected:
    /// a dump may show that they are not complete.
    pub unfollowed: BTreeMap<u64, Join>,
    /// Global ranks of all members, ascending.
    ranks: Arc<[u32]>,
    /// Place among the ranks of a member that had not made the call which was checked last.
    behind: usize,
    /// First sequence number at which calls met that cannot match.
    pub diverged: Option<u64>,
    /// Latest sequence numbers far after the first divergence at which every member arrived and
    /// calls cannot match.
    diverged_again: VecDeque<u64>,
    /// Point-to-point calls of the group.
    pub traffic: Traffic,
    /// Which steps and lines of the ranks have met.
    pub history: History,
    /// Collectives whose calls came from different lines.
    pub crossings: Crossings,
    /// Values of parameters that the members reported.
    pub replicas: Replicas,
    /// Collectives completed by the latest call, for [`crate::model::Arrivals`].
    pub(super) completed: Vec<CompletedCall>,
    /// The wait that ended longest before the last member arrived, by their clocks.
    pub ended_early: Option<EndedEarly>,
}

/// A wait that ended before the last member arrived: it failed, or clocks differ.
#[derive(Clone, Copy, Debug)]
pub struct EndedEarly {
    /// The rank whose wait ended.
    pub ended: u32,
    /// The rank that arrived last.
    pub arrived: u32,
    /// Time from the end of the wait to that arrival.
    pub by: Duration,
    /// Time of that arrival, by the clock of that rank.
    pub at: Timestamp,
}

/// One member of a group.
#[derive(Debug, Default)]
pub struct Member {
    /// The process that is this rank.
    pub process: ProcessId,
    /// Highest issued sequence number.
    pub issued: u64,
    /// Highest sequence number whose completion was recorded.
    pub completed: u64,
    /// Timeout of its calls, if known.
    pub timeout: Option<Duration>,
    threads: Threads,
    /// When it destroyed the group.
    pub destroyed: Option<Timestamp>,
    /// Moving average of how much later than the first member it arrives; `None`: no complete call
    /// yet.
    pub late: Option<Duration>,
}

/// The threads that have made calls of a member.
#[derive(Clone, Copy, Debug, Default)]
enum Threads {
    #[default]
    None,
    One(ThreadId),
    /// Several; this one made the first call.
    Several(ThreadId),
}

impl Threads {
    /// Adds a call of a thread. Returns the thread of the first call.
    fn add(&mut self, thread: ThreadId) -> ThreadId {
        let first = match *self {
            Self::None => thread,
            Self::One(first) | Self::Several(first) => first,
        };
        let is_only = first == thread && !matches!(self, Self::Several(_));
        *self = if is_only { Self::One(first) } else { Self::Several(first) };
        first
    }
}

impl Member {
    /// The thread that has made all its calls; `None`: several have, or it has made none.
    pub const fn thread(&self) -> Option<ThreadId> {
        match self.threads {
            Threads::One(thread) => Some(thread),
            Threads::None | Threads::Several(_) => None,
        }
    }

    /// Whether it may have issued any number of calls.
    pub const fn is_unknown(&self) -> bool {
        self.issued == UNKNOWN_PROGRESS
    }

    /// Takes the time by which it arrived later than the first member into the average.
    fn note_arrival(&mut self, late: Duration) {
        // Averages about the last eight calls.
        self.late = Some(self.late.map_or(late, |known| known * 7 / 8 + late / 8));
    }
}

impl Group {
    pub(super) fn new(id: GroupId, world: World, info: Arc<GroupInfo>) -> Self {
        let mut ranks = info.key.members.clone();
        ranks.sort_unstable();
        ranks.dedup();
        let ranks: Arc<[u32]> = ranks.into();
        let backend = Backend::of_group(&info.backend);
        Self {
            id,
            world,
            traffic: Traffic::new(backend),
            info,
            backend,
            members: ByRank::new(Arc::clone(&ranks)),
            ranks,
            ..Self::default()
        }
    }

    /// Completes the description from another member. A rank that is about to create a group may
    /// not know all of it.
    pub(super) fn describe(&mut self, info: &Arc<GroupInfo>) {
        if self.info.backend.is_empty() && !info.backend.is_empty() {
            self.backend = Backend::of_group(&info.backend);
            self.traffic = Traffic::new(self.backend);
            self.info = Arc::clone(info);
        }
    }

    /// The shortest timeout that one of these members has configured; `None`: none has.
    pub fn configured_timeout(&self, ranks: &[u32]) -> Option<Duration> {
        ranks.iter().filter_map(|rank| self.members.get(rank)?.timeout).min()
    }

    /// Time after which the first of these members gives up a call.
    pub fn timeout(&self, ranks: &[u32]) -> Duration {
        self.configured_timeout(ranks).unwrap_or(self.backend.default_timeout)
    }

    /// Whether every member is observed.
    pub fn is_fully_seen(&self) -> bool {
        self.members.len() == self.info.key.members.len()
    }

    /// Whether a wait for such a call blocks the thread until the call completes. c10d's waits for
    /// collectives on a device only order streams, except for barriers; NCCL itself blocks only
    /// while a communicator is created.
    pub fn holds_threads(&self, op: Op) -> bool {
        match &*self.info.key.layer {
            "c10d" => self.backend.completion == Completion::AtWait || op.is_barrier(),
            NCCL_LAYER => op.creates_group(),
            _ => true,
        }
    }

    /// The join at a sequence number, if it is open or part of a divergence.
    pub fn join(&self, seq: u64) -> Option<&Join> {
        self.joins.get(&seq)
    }

    /// The join at a sequence number, also if every member has entered it.
    pub fn open_or_entered(&self, seq: u64) -> Option<&Join> {
        self.join(seq).or_else(|| self.met_at(seq))
    }

    /// The lowest sequence number at which some observed members have made their call and others
    /// have not.
    pub fn first_open(&self) -> Option<u64> {
        let lowest = self.members.values().map(|member| member.issued).min()?;
        let highest = self.members.values().map(|member| member.issued).max()?;
        (lowest < highest).then(|| lowest + 1)
    }

    /// Whether a member has destroyed the group.
    pub fn is_destroyed_by(&self, rank: u32) -> bool {
        let member = self.members.get(&rank);
        member.is_some_and(|member| member.destroyed.is_some())
    }

    /// A process becomes a member.
    pub(super) fn join_member(&mut self, rank: u32, process: ProcessId) {
        if !self.members.contains_key(&rank) {
            self.members.insert(rank, Member { process, ..Member::default() });
        }
    }

    fn join_at(&mut self, seq: u64) -> &mut Join {
        let ranks = &self.ranks;
        self.joins.entry(seq).or_insert_with(|| Join::new(ranks))
    }

    /// A member begins to create the group.
    pub(super) fn begin(&mut self, rank: u32, process: ProcessId, call: &Arc<Call>) {
        self.making_seen = true;
        self.join_member(rank, process);
        let join = self.join_at(0);
        join.calls.insert(rank, JoinedCall::new(call));
    }

    /// A member returned from creating the group, successfully or not.
    pub(super) fn made(&mut self, rank: u32, at: Timestamp) {
        self.set_wait(rank, 0, Wait::Over(at), false);
        let is_over = |it: &JoinedCall| matches!(it.wait, Wait::Over(_));
        let is_made = |join: &Join| join.calls.values().all(is_over);
        if self.is_fully_seen() && self.joins.get(&0).is_some_and(is_made) {
            self.joins.remove(&0);
        }
    }

    /// Adds a call of a member. If every member has made its call and all agree, returns until when
    /// each of them waited, as far as known.
    pub(super) fn issue(
        &mut self,
        rank: u32,
        call: &Arc<Call>,
        turns: &Turns,
        in_backward: bool,
    ) -> Vec<(u32, Arc<Call>, Timestamp)> {
        let Some(member) = self.members.get_mut(&rank) else { return Vec::new() };
        member.issued = member.issued.max(call.seq);
        let position = turns.position(member.threads.add(call.thread));
        let seq = call.seq;
        if self.backend.completion == Completion::AtOnce {
            return Vec::new();
        }
        if self.diverged.is_some_and(|at| seq > at) && self.joins.len() >= MAX_JOINS {
            return Vec::new();
        }
        let join = self.join_at(seq);
        let joined = JoinedCall { position, in_backward, ..JoinedCall::new(call) };
        join.add(rank, joined);
        if join.mismatch.is_some() {
            self.diverged = Some(self.diverged.map_or(seq, |at| at.min(seq)));
        }
        self.settle(seq)
    }

    /// Removes the join once every member arrived and all agree, and joins that exceed the limits.
    fn settle(&mut self, seq: u64) -> Vec<(u32, Arc<Call>, Timestamp)> {
        // The creation of the group ends in `made`.
        if seq == 0 {
            return Vec::new();
        }
        let everybody = self.is_fully_seen() && self.update_behind(seq);
        let join = self.joins.get(&seq);
        let agreed = join.is_none_or(|join| join.mismatch.is_none());
        let diverged = self.diverged.filter(|&at| at <= seq);
        let far_behind = diverged.is_some_and(|at| at + MAX_JOINS_AFTER < seq);
        if everybody && !agreed && far_behind && !self.diverged_again.contains(&seq) {
            let oldest = keep_latest(&mut self.diverged_again, seq, MAX_DIVERGENCES);
            oldest.and_then(|seq| self.joins.remove(&seq));
        }
        if everybody && agreed && (diverged.is_none() || far_behind) {
            let Some(join) = self.joins.remove(&seq) else { return Vec::new() };
            if diverged.is_none() {
                if join.calls.len() == self.members.len() && join.calls.len() > 1 {
                    self.completed.extend(CompletedCall::of_join(self.id, seq, &join));
                }
                self.history.observe(seq, &join, self.members.len());
                self.crossings.add(seq, &join);
            }
            let first = join.calls.values().map(|it| it.call.at).min();
            for (&rank, joined) in join.calls.iter() {
                if let (Some(member), Some(first)) = (self.members.get_mut(&rank), first) {
                    member.note_arrival(joined.call.at.since(first));
                }
                self.ended_early = longest(self.ended_early, &join, rank, joined);
            }
            let last = join.last_at();
            // The wait for a synchronous call is reported when it ends.
            let until = |joined: &JoinedCall| match joined.wait {
                _ if joined.call.is_async => Some(last),
                Wait::Over(at) => Some(last.max(at)),
                Wait::Since(_) => None,
                Wait::NotSeen => joined.returned.map(|at| last.max(at)),
            };
            let calls = join
                .calls
                .iter()
                .filter_map(|(&rank, it)| Some((rank, Arc::clone(&it.call), until(it)?)))
                .collect();
            self.enter(seq, join);
            return calls;
        }
        while self.joins.len() > MAX_JOINS {
            let oldest = self.joins.keys().copied().find(|&seq| Some(seq) != self.diverged);
            match oldest {
                Some(seq) => self.joins.remove(&seq),
                None => break,
            };
        }
        Vec::new()
    }

    /// Whether every observed member has made its call at `seq`.
    fn update_behind(&mut self, seq: u64) -> bool {
        let behind = self.members.first_from(self.behind, |member| member.issued < seq);
        self.behind = behind.unwrap_or(self.behind);
        behind.is_none()
    }

    /// Keeps a collective that every member has entered, if a wait for it may still be recorded.
    fn enter(&mut self, seq: u64, join: Join) {
        if join.mismatch.is_some() {
            return;
        }
        self.leave_if_over(seq, &join);
        self.entered.insert(seq, join);
        self.leave_if_done(seq);
        if self.entered.len() > self.kept()
            && let Some((oldest, join)) = self.entered.pop_first()
        {
            self.leave(oldest, join);
        }
    }

    /// Maximum number of collectives that it keeps of those which every member has entered.
    fn kept(&self) -> usize {
        let (least, most) = MAX_ENTERED;
        (MAX_CALLS / self.info.key.members.len().max(1)).clamp(least, most)
    }

    /// No further event is expected for a collective that every member has entered.
    fn leave(&mut self, seq: u64, join: Join) {
        if !self.has_lower_calls() {
            return;
        }
        self.unfollowed.insert(seq, join);
        if self.unfollowed.len() > self.kept() {
            self.unfollowed.pop_first();
        }
    }

    /// The collective at a sequence number that every member has entered.
    pub fn met_at(&self, seq: u64) -> Option<&Join> {
        self.entered.get(&seq).or_else(|| self.unfollowed.get(&seq))
    }

    /// Applies the counters of a member, which include lost records.
    pub(super) fn advance(&mut self, rank: u32, issued: u64) {
        if let Some(member) = self.members.get_mut(&rank) {
            member.issued = member.issued.max(issued);
        }
        let open: Vec<u64> = self.joins.keys().copied().collect();
        for seq in open {
            self.settle(seq);
        }
    }

    /// A member's call returned. Returns the call if all members had arrived by then and no
    /// separate wait for it is recorded.
    pub(super) fn set_returned(&mut self, rank: u32, seq: u64, at: Timestamp) -> Option<Arc<Call>> {
        let well = self.entered.contains_key(&seq);
        let joined = self.joined_mut(rank, seq)?;
        joined.returned = Some(at);
        let alone = joined.wait == Wait::NotSeen && !joined.call.is_async;
        let call = Arc::clone(&joined.call);
        self.leave_if_done(seq);
        (well && alone).then_some(call)
    }

    /// The join at a sequence number, whether or not every member has entered it.
    pub(super) fn any_join_mut(&mut self, seq: u64) -> Option<&mut Join> {
        self.entered.get_mut(&seq).or_else(|| self.joins.get_mut(&seq))
    }

    /// The call of a member there.
    pub(super) fn joined_mut(&mut self, rank: u32, seq: u64) -> Option<&mut JoinedCall> {
        self.any_join_mut(seq)?.calls.get_mut(&rank)
    }

    /// Changes what is known of a member's call, of which no more may be expected then. Complete
    /// collectives are updated in [`crate::model::Arrivals`].
    pub(super) fn change(&mut self, rank: u32, seq: u64, change: impl FnOnce(&mut JoinedCall)) {
        if let Some(joined) = self.joined_mut(rank, seq) {
            change(joined);
        }
        self.leave_if_done(seq);
    }

    /// Updates the wait of a member's call (`failed`: an exception ended it). Returns a synchronous
    /// call whose wait succeeded after all members had arrived.
    pub(super) fn set_wait(
        &mut self,
        rank: u32,
        seq: u64,
        wait: Wait,
        failed: bool,
    ) -> Option<Arc<Call>> {
        let (well, ended_early) = (self.entered.contains_key(&seq), self.ended_early);
        let join = self.any_join_mut(seq)?;
        let joined = join.calls.get_mut(&rank)?;
        joined.wait = wait;
        joined.failed = failed;
        let joined = joined.clone();
        if well {
            self.ended_early = longest(ended_early, join, rank, &joined);
            self.leave_if_done(seq);
        }
        (well && joined.is_done() && !joined.call.is_async).then_some(joined.call)
    }
}

/// The wait that ended longer before the last arrival: `known`, or that of this rank.
fn longest(
    known: Option<EndedEarly>,
    join: &Join,
    rank: u32,
    joined: &JoinedCall,
) -> Option<EndedEarly> {
    let (at, arrived) = join.last;
    let Wait::Over(over) = joined.wait else { return known };
    let by = at.since(over);
    let counts = !joined.failed && joined.call.op.direction() == Direction::Symmetric;
    if counts && by > known.map_or(Duration::ZERO, |known| known.by) {
        Some(EndedEarly { ended: rank, arrived, by, at })
    } else {
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_thread_that_made_all_calls_is_that_of_a_member() {
        let [main, other] = [1, 2].map(ThreadId);
        let mut member = Member::default();
        assert_eq!(member.thread(), None);
        for (calling, only) in [(main, Some(main)), (main, Some(main)), (other, None), (main, None)]
        {
            assert_eq!(member.threads.add(calling), main);
            assert_eq!(member.thread(), only);
        }
    }
}
