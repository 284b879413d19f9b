//! The latest encounters of all groups: when each rank arrived at a collective or message, and
//! until when it waited.
//!
//! Nothing is concluded here. Late ranks and their share in waits are determined in
//! [`crate::delays::lateness`].

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use crate::input::event::{Call, CallId};
use crate::model::group::MatchedSide;
use crate::model::ids::{GroupId, Post, Target};
use crate::model::maps::{ByNumber, NumberHasher};
use crate::model::{Averaged, Buckets, Wait};
use crate::timing::Timing;

mod completed_call;
mod lost_time;
mod packed;

pub use completed_call::{Arrival, CompletedCall, RankArrivals};

use completed_call::{Change, Ranks};
use lost_time::LostTime;
use packed::{Key, Packed};

/// Maximum number of arrivals kept, over all encounters …
const MAX_ARRIVALS: usize = 262_144;
/// … but at least this many encounters.
const MIN_KEPT: usize = 8;
/// Maximum number of encounters that are packed together …
const MAX_PACKED: usize = 512;
/// … and of their arrivals, unless it is one encounter. Up to twice as many are not packed.
const MAX_PACKED_ARRIVALS: usize = 8192;
/// Maximum number of waits kept that began before their message met its partner.
const MAX_BEGUN: usize = 4096;
/// Number of asynchronous sends and receives whose waits can be assigned.
const MAX_MESSAGES: usize = 4096;
/// Maximum number of different calls kept to share one between encounters.
const MAX_CALLS: usize = 4096;

/// The latest encounters, oldest first.
#[derive(Debug)]
pub struct Arrivals {
    packed: VecDeque<Packed>,
    /// Those after the packed ones.
    recent: VecDeque<CompletedCall>,
    /// Number of the first of `recent`, counted over all.
    first_recent: u64,
    /// Number of arrivals in `recent`.
    recent_arrivals: usize,
    /// Number of arrivals in all encounters.
    pub kept: usize,
    /// Collectives by group.
    collectives: Vec<Collectives>,
    /// Numbers of messages by their asynchronous calls.
    messages: BTreeMap<Message, u64>,
    /// The latest calls that differ, by a hash of what usually distinguishes them.
    calls: ByNumber<u64, Arc<Call>>,
    /// Since when ranks have been waiting for messages without a partner.
    begun: BTreeMap<Message, Timestamp>,
    lost: LostTime,
    /// When the first encounter was complete …
    pub began: Option<Timestamp>,
    /// … and when the latest one was.
    pub end: Timestamp,
}

/// Collectives of a group.
#[derive(Debug, Default)]
struct Collectives {
    /// Sequence numbers of those in `recent` with their numbers, ascending.
    recent: VecDeque<(u64, u64)>,
    /// Highest sequence number of a packed one.
    packed_to: u64,
}

/// Identifies a message by one of its calls.
type Message = (GroupId, u32, CallId);

/// Consecutive encounters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Block<'a> {
    Packed(&'a Packed),
    Recent(&'a VecDeque<CompletedCall>),
}

impl<'a> Block<'a> {
    /// Visits the encounters that are wanted, and possibly others, oldest first. Those of one group, call and list of
    /// buckets are wanted together.
    pub(crate) fn visit(
        self,
        is_wanted: impl Fn(GroupId, &Call, Option<Buckets>) -> bool,
        visit: impl FnMut(&CompletedCall),
    ) {
        match self {
            Self::Packed(packed) => packed.visit(is_wanted, visit),
            Self::Recent(recent) => {
                let wanted = |it: &&CompletedCall| is_wanted(it.group, &it.call, it.buckets());
                recent.iter().filter(wanted).for_each(visit);
            }
        }
    }

    /// The encounters, oldest first.
    fn completed_calls(self) -> Vec<Cow<'a, CompletedCall>> {
        match self {
            Self::Packed(packed) => packed.unpack().into_iter().map(Cow::Owned).collect(),
            Self::Recent(recent) => recent.iter().map(Cow::Borrowed).collect(),
        }
    }
}

impl Default for Arrivals {
    fn default() -> Self {
        Self::new(&Timing::default())
    }
}

impl Arrivals {
    pub(super) fn new(timing: &Timing) -> Self {
        Self {
            packed: VecDeque::new(),
            recent: VecDeque::new(),
            first_recent: 0,
            recent_arrivals: 0,
            kept: 0,
            collectives: Vec::new(),
            messages: BTreeMap::new(),
            calls: ByNumber::default(),
            begun: BTreeMap::new(),
            lost: LostTime::new(timing.straggler_slice),
            began: None,
            end: Timestamp::default(),
        }
    }

    /// The encounters, latest first, in the order in which they became complete.
    pub fn latest(&self) -> impl Iterator<Item = Cow<'_, CompletedCall>> {
        self.blocks().flat_map(|block| block.completed_calls().into_iter().rev())
    }

    /// The encounters in blocks, the latest block first.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Block<'_>> {
        let packed = self.packed.iter().rev().map(Block::Packed);
        std::iter::once(Block::Recent(&self.recent)).chain(packed)
    }

    /// The blocks whose encounters may have times within an interval, the latest first.
    pub(crate) fn within(
        &self,
        interval: (Timestamp, Timestamp),
    ) -> impl Iterator<Item = Block<'_>> {
        let is_outside =
            move |it: &Block<'_>| matches!(it, Block::Packed(it) if it.is_outside(interval));
        self.blocks().filter(move |it| !is_outside(it))
    }

    /// The latest encounters, back to this time. They are in the order of completion, which is nearly that of time:
    /// by at most `slack`.
    pub fn back_to(
        &self,
        from: Timestamp,
        slack: Duration,
    ) -> impl Iterator<Item = Cow<'_, CompletedCall>> {
        self.latest()
            .take_while(move |it| it.last().is_some_and(|last| last.at.plus(slack) >= from))
    }

    /// Time between the oldest encounter that is kept and the latest.
    pub fn covered(&self) -> Duration {
        let oldest = match self.packed.front() {
            Some(packed) => Some(packed.span.0),
            None => self.recent.front().and_then(CompletedCall::first_at),
        };
        let ends = oldest.zip(self.recent.back().and_then(CompletedCall::first_at));
        ends.map_or(Duration::ZERO, |(oldest, latest)| latest.since(oldest))
    }

    /// Adds a collective that every member has entered.
    pub(super) fn add(&mut self, completed: CompletedCall) {
        let (group, seq) = (completed.group.0 as usize, completed.seq);
        let number = self.push(completed);
        if self.collectives.len() <= group {
            self.collectives.resize_with(group + 1, Collectives::default);
        }
        let recent = &mut self.collectives[group].recent;
        match place_of(recent, seq) {
            Ok(known) => recent[known].1 = number,
            Err(place) => recent.insert(place, (seq, number)),
        }
        self.limit();
    }

    /// Adds a send that met its receive.
    pub(super) fn messaged(&mut self, group: GroupId, send: &MatchedSide, receive: &MatchedSide) {
        let arrivals = [send, receive].map(|side| Arrival {
            waits: self.begun.remove(&(group, side.rank, side.call.id)),
            ..Arrival::new(side.rank, &side.call)
        });
        let ranks = Ranks::Pair([send.rank, receive.rank]);
        let completed = CompletedCall::new(group, 0, &send.call, ranks, arrivals.into());
        let number = self.push(completed);
        let waited_for = [send, receive].into_iter().filter(|side| side.call.is_async);
        self.messages.extend(waited_for.map(|side| ((group, side.rank, side.call.id), number)));
        self.limit();
    }

    /// Adds an encounter; returns its number.
    fn push(&mut self, mut completed: CompletedCall) -> u64 {
        completed.call = self.call_like(completed.group, completed.call);
        let number = self.first_recent + self.recent.len() as u64;
        self.kept += completed.arrivals.len();
        self.recent_arrivals += completed.arrivals.len();
        if let Some(last) = completed.last() {
            self.end = self.end.max(last.at);
            self.began = Some(self.began.map_or(last.at, |began| began.min(last.at)));
        }
        self.lost.add(&completed);
        self.recent.push_back(completed);
        number
    }

    /// Upper bound of the time lost by waiting in the encounters of an interval, and the maximum number of ranks
    /// of one; `None`: unknown, since it was too long ago.
    pub fn lost_at_most(&self, interval: (Timestamp, Timestamp)) -> Option<(Duration, usize)> {
        self.lost.at_most(interval)
    }

    /// An earlier call that differs in its time and number only; otherwise this one. A program makes
    /// the same few calls over and over.
    fn call_like(&mut self, group: GroupId, call: Arc<Call>) -> Arc<Call> {
        let mut key = NumberHasher::default();
        key.write_u64(u64::from(group.0));
        key.write_u64(call.op as u64);
        key.write_u64(call.numel.unwrap_or_default());
        let peer = call.peer.or(call.root).map_or(u64::MAX, u64::from);
        key.write_u64(peer);
        key.write_u64(u64::from(call.tag.unwrap_or_default().cast_unsigned()));
        key.write_usize(call.place.as_ref().map_or(0, |it| Arc::as_ptr(it).addr()));
        if self.calls.len() >= MAX_CALLS {
            self.calls.clear();
        }
        let known = self.calls.entry(key.finish()).or_insert_with(|| Arc::clone(&call));
        if !known.is_like(&call) {
            *known = call;
        }
        Arc::clone(known)
    }

    /// Packs encounters, and drops the oldest that exceed the limit.
    fn limit(&mut self) {
        while self.recent.len() > 2 * MAX_PACKED
            || self.recent.len() > 1 && self.recent_arrivals > 2 * MAX_PACKED_ARRIVALS
        {
            self.pack();
        }
        let end = self.first_recent + self.recent.len() as u64;
        while self.kept > MAX_ARRIVALS
            && let Some(oldest) = self.packed.front()
            && oldest.first + (oldest.len + MIN_KEPT) as u64 <= end
        {
            self.kept -= oldest.arrivals;
            self.packed.pop_front();
        }
        if self.messages.len() > 2 * MAX_MESSAGES {
            let mut numbers: Vec<u64> = self.messages.values().copied().collect();
            let (_, &mut first, _) = numbers.select_nth_unstable(MAX_MESSAGES);
            self.messages.retain(|_, number| *number >= first);
        }
    }

    /// Packs the oldest encounters that are not packed.
    fn pack(&mut self) {
        let mut arrivals = 0;
        let fits = |it: &&CompletedCall| {
            arrivals += it.arrivals.len();
            arrivals <= MAX_PACKED_ARRIVALS
        };
        let number = self.recent.iter().take(MAX_PACKED).take_while(fits).count().max(1);
        let oldest: Vec<CompletedCall> = self.recent.drain(..number).collect();
        let packed = Packed::new(self.first_recent, &oldest);
        for (completed, number) in oldest.iter().zip(self.first_recent..) {
            if let Some(group) = self.collectives.get_mut(completed.group.0 as usize)
                && let Ok(place) = place_of(&group.recent, completed.seq)
                && group.recent[place].1 == number
            {
                group.recent.remove(place);
                group.packed_to = group.packed_to.max(completed.seq);
            }
        }
        self.first_recent += number as u64;
        self.recent_arrivals -= packed.arrivals;
        self.packed.push_back(packed);
    }

    /// Updates the wait of a rank for its call.
    pub(super) fn set_wait(&mut self, rank: u32, target: Target, wait: Wait) {
        let is_known = self.change(rank, target, Change::Wait(wait));
        if let (false, Target::Message(group, post), Wait::Since(at)) = (is_known, target, wait) {
            if self.begun.len() >= MAX_BEGUN {
                self.begun.pop_first();
            }
            self.begun.insert((group, post.rank, post.call), at);
        }
    }

    /// A rank's call returned. If there is a separate wait, [`Self::set_wait`] follows.
    pub(super) fn set_returned(&mut self, rank: u32, target: Target, at: Timestamp) {
        self.change(rank, target, Change::Returned(at));
    }

    /// A rank waited for DDP's buckets, of which this is the last.
    pub(super) fn averaged(&mut self, rank: u32, group: GroupId, seq: u64, averaged: Averaged) {
        self.change(rank, Target::Join(group, seq), Change::Averaged(averaged));
    }

    /// Changes the arrival of a rank; whether its encounter is kept.
    fn change(&mut self, rank: u32, target: Target, change: Change) -> bool {
        let (key, number) = match target {
            Target::Join(group, seq) => {
                let Some(of_group) = self.collectives.get(group.0 as usize) else { return false };
                let recent = place_of(&of_group.recent, seq).map(|place| of_group.recent[place].1);
                if recent.is_err() && seq > of_group.packed_to {
                    return false;
                }
                (Key::Join(group, seq), recent.ok())
            }
            Target::Message(group, Post { rank, call, .. }) => {
                let Some(&number) = self.messages.get(&(group, rank, call)) else { return false };
                (Key::Message(number), Some(number))
            }
        };
        if let Some(recent) = number.and_then(|it| it.checked_sub(self.first_recent)) {
            self.recent[recent as usize].change(rank, change);
            return true;
        }
        let packed = self.packed.iter_mut().rev().find(|it| match key {
            Key::Join(group, seq) => it.may_contain(group, seq),
            Key::Message(number) => it.first <= number,
        });
        packed.map(|it| it.change(key, rank, change)).is_some()
    }
}

/// The place of a sequence number, or where it is to be inserted. Sequence numbers are usually
/// consecutive.
fn place_of(by_seq: &VecDeque<(u64, u64)>, seq: u64) -> Result<usize, usize> {
    if by_seq.back().is_none_or(|(last, _)| *last < seq) {
        return Err(by_seq.len());
    }
    let first = by_seq.front().map_or(0, |(first, _)| *first);
    let guess = seq.wrapping_sub(first) as usize;
    if by_seq.get(guess).is_some_and(|(it, _)| *it == seq) {
        return Ok(guess);
    }
    by_seq.binary_search_by_key(&seq, |(seq, _)| *seq)
}

#[cfg(test)]
pub(in crate::model::arrivals) mod tests {
    use ddp_doctor_proto::Op;

    use super::*;
    use crate::model::Side;
    use crate::testing;

    pub(in crate::model::arrivals) fn completed_call(seq: u64, ats: &[u64]) -> CompletedCall {
        let call = Arc::new(testing::call(Op::AllReduce));
        let arrivals = ats
            .iter()
            .zip(0..)
            .map(|(&at, rank)| Arrival { at: Timestamp(at), ..Arrival::new(rank, &call) });
        let ranks = Ranks::Members((0..ats.len() as u32).collect());
        CompletedCall::new(GroupId(0), seq, &call, ranks, arrivals.collect())
    }

    #[test]
    fn collective_waits_for_the_last_arrival() {
        let completed = completed_call(1, &[5, 9, 7]);
        assert_eq!(completed.waits_for(0).map(|on| on.rank), Some(1));
        assert_eq!(completed.waits_for(1), None);
        let mut broadcast = completed;
        broadcast.call = Arc::new(Call { root: Some(2), ..testing::call(Op::Broadcast) });
        assert_eq!(broadcast.waits_for(0).map(|on| on.rank), Some(2));
        assert_eq!(broadcast.waits_for(2), None);
    }

    #[test]
    fn encounters_are_bounded_and_updated_in_place() {
        let mut arrivals = Arrivals::default();
        let ranks: Vec<u64> = (0..1024).collect();
        for seq in 1..=1000 {
            arrivals.add(completed_call(seq, &ranks));
        }
        assert!(arrivals.kept <= MAX_ARRIVALS);
        let kept: Vec<u64> = arrivals.latest().map(|it| it.seq).collect();
        assert_eq!(kept.len() * 1024, arrivals.kept);
        assert!(kept.iter().copied().eq((1..=1000).rev().take(kept.len())));
        assert_eq!(arrivals.collectives[0].recent.len(), arrivals.recent.len());
        assert!(arrivals.recent_arrivals <= 2 * MAX_PACKED_ARRIVALS);
        for (rank, seq) in [(1000, 1000), (7, 900), (8, 900), (1000, 1)] {
            let over = Wait::Over(Timestamp(u64::from(rank)));
            arrivals.set_wait(rank, Target::Join(GroupId(0), seq), over);
        }
        let changed = |seq| {
            let completed = arrivals.latest().find(|it| it.seq == seq).unwrap();
            let until = completed.arrivals.iter().filter_map(|it| it.until);
            until.map(|it| it.0).collect::<Vec<u64>>()
        };
        assert_eq!([changed(1000), changed(999), changed(900)], [vec![1000], vec![], vec![7, 8]]);
    }

    #[test]
    fn waits_for_packed_messages_are_assigned() {
        let mut arrivals = Arrivals::default();
        let side = |rank, id| {
            let call = Call { id: CallId(id), is_async: rank == 1, ..testing::call(Op::Recv) };
            MatchedSide { rank, call: Arc::new(call) }
        };
        for id in 0..2000 {
            arrivals.messaged(GroupId(0), &side(0, id), &side(1, id));
        }
        assert!(arrivals.packed.len() > 1);
        for id in [3, 1000, 1999] {
            let post = Post {
                side: Side::Receive,
                rank: 1,
                peer: Some(0),
                lane: Some(0),
                call: CallId(id),
            };
            arrivals.set_wait(1, Target::Message(GroupId(0), post), Wait::Since(Timestamp(id)));
        }
        let waits: Vec<_> = arrivals.latest().filter_map(|it| it.arrivals.get(1)?.waits).collect();
        assert_eq!(waits, [1999, 1000, 3].map(Timestamp));
        assert!(arrivals.begun.is_empty());
    }

    #[test]
    fn encounters_before_a_time_are_not_visited() {
        let mut arrivals = Arrivals::default();
        (1..=1000).for_each(|seq| arrivals.add(completed_call(seq, &[seq * 10, seq * 10 + 1])));
        let seqs = |from, slack| {
            let recent = arrivals.back_to(Timestamp(from), Duration::from_nanos(slack));
            recent.map(|it| it.seq).collect::<Vec<u64>>()
        };
        assert_eq!(seqs(9991, 0), [1000, 999]);
        assert_eq!(seqs(9991, 10), [1000, 999, 998]);
        assert_eq!(seqs(0, 0).len(), 1000);
    }

    #[test]
    fn separate_wait_replaces_the_return() {
        let mut arrivals = Arrivals::default();
        arrivals.add(completed_call(1, &[5, 9]));
        let target = Target::Join(GroupId(0), 1);
        arrivals.set_returned(0, target, Timestamp(6));
        arrivals.set_wait(0, target, Wait::Since(Timestamp(7)));
        let second = |all: &Arrivals| all.latest().next().unwrap().arrivals.get(0).unwrap();
        assert_eq!(second(&arrivals).until, None);
        arrivals.set_wait(0, target, Wait::Over(Timestamp(12)));
        assert_eq!(second(&arrivals).until, Some(Timestamp(12)));
        assert_eq!(second(&arrivals).waits, Some(Timestamp(7)));
    }

    #[test]
    fn wait_for_buckets_belongs_to_the_last_bucket() {
        let mut arrivals = Arrivals::default();
        arrivals.add(completed_call(1, &[5, 9, 7]));
        let buckets = Buckets { calls: 3, bytes: 96 };
        let averaged = |buckets| Averaged { buckets, from: Timestamp(8), to: Timestamp(20) };
        arrivals.averaged(0, GroupId(0), 1, averaged(buckets));
        arrivals.averaged(1, GroupId(0), 1, averaged(buckets));
        let others = Buckets { calls: 4, ..buckets };
        arrivals.averaged(2, GroupId(0), 1, averaged(others));
        arrivals.averaged(2, GroupId(0), 7, averaged(buckets));
        let completed = arrivals.latest().next().unwrap();
        assert_eq!(completed.buckets(), Some(buckets));
        let until: Vec<_> = completed.arrivals.iter().map(|arrivals| arrivals.until).collect();
        let over = Some(Timestamp(20));
        assert_eq!(until, [over, over, None], "rank 2 waited for other buckets");
    }
}
