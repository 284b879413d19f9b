//! The latest encounters of all groups: when each rank arrived at a collective or message, and
//! until when it waited.
//!
//! Nothing is concluded here. Late ranks and their share in waits are determined in
//! [`crate::delays::lateness`].

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::Direction;

use crate::input::event::{Call, CallId};
use crate::model::group::MatchedSide;
use crate::model::ids::{GroupId, Post, Target};
use crate::model::maps::{ByNumber, NumberHasher};
use crate::model::{Averaged, Buckets, Join, Wait};

mod packed;

pub use packed::PackedArrivals;

use packed::Ranks;

/// Maximum number of arrivals kept, over all encounters …
const KEPT: usize = 262_144;
/// … but at least this many encounters.
const LEAST: usize = 8;
/// Maximum number of waits kept that began before their message met its partner.
const MAX_BEGUN: usize = 4096;
/// Maximum number of different calls kept to share one between encounters.
const MAX_CALLS: usize = 4096;

/// The latest encounters, oldest first.
#[derive(Debug, Default)]
pub struct Arrivals {
    encounters: VecDeque<CompletedCall>,
    /// Number of the first of `encounters`, counted over all.
    pub first: u64,
    /// Number of arrivals in `encounters`.
    pub kept: usize,
    /// Numbers of collectives by group and sequence number.
    collectives: Vec<BySeq>,
    /// Numbers of messages by their calls.
    messages: BTreeMap<Message, u64>,
    /// Number of messages in `encounters`.
    kept_messages: usize,
    /// The latest calls that differ, by a hash of what usually distinguishes them.
    calls: ByNumber<u64, Arc<Call>>,
    /// Since when ranks have been waiting for messages without a partner.
    begun: BTreeMap<Message, Timestamp>,
    /// Numbers of the encounters that are new or have changed since they were last taken.
    changed: Vec<u64>,
    /// When the first encounter was complete …
    pub began: Option<Timestamp>,
    /// … and when the latest one was.
    pub end: Timestamp,
}

/// A collective or message at which all ranks have arrived.
#[derive(Clone, Debug)]
pub struct CompletedCall {
    /// Group of the calls.
    pub group: GroupId,
    /// Sequence number; 0: a message.
    pub seq: u64,
    /// The call of the first arrival in `came`, or an earlier one like it.
    pub call: Arc<Call>,
    /// Training step in which that call was issued; 0: before the first.
    pub step: u64,
    /// Arrivals by rank; for a message, the sender first.
    pub came: PackedArrivals,
    /// See [`Self::buckets`].
    buckets: Option<Box<Buckets>>,
    /// Place in `came` of the last arrival.
    last: u32,
    /// Sum of the times from each arrival to the last, in nanoseconds.
    waited: u64,
    /// Its number is in the list of changed encounters.
    is_changed: bool,
}

/// The arrival of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The rank.
    pub rank: u32,
    /// When it issued its call.
    pub at: Timestamp,
    /// When a separate wait for the call began; for DDP's buckets, the wait for all of them.
    pub waits: Option<Timestamp>,
    /// When the call or the wait was over.
    pub until: Option<Timestamp>,
    /// The caller asked not to wait for the call.
    pub is_async: bool,
    /// The call is DDP's. A wait is recorded only for the last of its buckets, if at all.
    pub hidden: bool,
}

/// Identifies a message by one of its calls.
type Message = (GroupId, u32, CallId);

/// Numbers of encounters by sequence number, ascending.
type BySeq = VecDeque<(u64, u64)>;

impl CompletedCall {
    fn new(group: GroupId, seq: u64, call: &Arc<Call>, ranks: Ranks, came: Vec<Arrival>) -> Self {
        let arrivals = (0..).zip(&came);
        let last = arrivals.max_by_key(|(_, came)| came.at);
        let (last, last_at) = last.map_or((0, Timestamp::default()), |(i, came)| (i, came.at));
        let first_at = came.iter().map(|came| came.at).min().unwrap_or_default();
        let waits = came.iter().map(|came| last_at.0 - came.at.0);
        Self {
            group,
            seq,
            call: Arc::clone(call),
            step: call.step,
            last,
            waited: waits.fold(0, u64::saturating_add),
            came: PackedArrivals::new(ranks, first_at, came),
            buckets: None,
            is_changed: false,
        }
    }

    /// A collective that every member has entered.
    pub(super) fn of_join(group: GroupId, seq: u64, join: &Join) -> Option<Self> {
        let (_, first) = join.calls.iter().next()?;
        let came = join.calls.iter().map(|(&rank, joined)| {
            let (waits, until) = match joined.wait {
                Wait::NotSeen => (None, joined.returned.filter(|_| !joined.call.is_async)),
                Wait::Since(at) => (Some(at), None),
                Wait::Over(at) => (None, Some(at)),
            };
            Arrival { waits, until, ..Arrival::new(rank, &joined.call) }
        });
        let ranks = Ranks::Members(join.calls.listed());
        let mut encounter = Self::new(group, seq, &first.call, ranks, came.collect());
        for (&rank, joined) in join.calls.iter() {
            if let Some(averaged) = joined.averaged.as_deref() {
                encounter.averaged(rank, *averaged);
            }
        }
        Some(encounter)
    }

    /// Sets the wait of a rank for buckets, of which this is the last.
    fn averaged(&mut self, rank: u32, averaged: Averaged) {
        let known = self.buckets.get_or_insert_with(|| Box::new(averaged.buckets));
        let buckets = **known;
        if let Some(place) = self.came.place_of(rank)
            && buckets == averaged.buckets
        {
            self.came.change(place, |came| {
                (came.waits, came.until) = (Some(averaged.from), Some(averaged.to));
            });
        }
    }

    /// Determines which ranks wait for which.
    pub fn direction(&self) -> Direction {
        self.call.op.direction()
    }

    /// If it is the last of DDP's buckets that ranks waited for together: those buckets, according to
    /// the first wait that was recorded. Waits for other buckets are not assigned to it.
    pub fn buckets(&self) -> Option<Buckets> {
        self.buckets.as_deref().copied()
    }

    /// The last arrival.
    pub fn last(&self) -> Option<Arrival> {
        self.came.get(self.last as usize)
    }

    /// Time of the first arrival.
    pub fn first_at(&self) -> Option<Timestamp> {
        (!self.came.is_empty()).then_some(self.came.base)
    }

    /// Sum of the times from each arrival to the last.
    pub const fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited)
    }

    /// The arrival that this rank has to wait for; `None` if there is none but its own, or it is
    /// unknown.
    pub fn waits_for(&self, rank: u32) -> Option<Arrival> {
        let of = |rank: u32| self.came.get(self.came.place_of(rank)?);
        let on = match self.direction() {
            Direction::Symmetric => self.last(),
            Direction::FromRoot => of(self.call.root?),
            Direction::ToRoot if self.call.root == Some(rank) => self.last(),
            Direction::PointToPoint => self.came.iter().find(|came| came.rank != rank),
            Direction::ToRoot | Direction::Unknown => None,
        };
        on.filter(|on| on.rank != rank)
    }
}

impl Arrival {
    pub(crate) fn new(rank: u32, call: &Call) -> Self {
        Self {
            rank,
            at: call.at,
            waits: None,
            until: None,
            is_async: call.is_async,
            hidden: call.hidden,
        }
    }
}

impl Arrivals {
    /// The encounters, latest first, in the order in which they became complete.
    pub fn latest(&self) -> impl ExactSizeIterator<Item = &CompletedCall> {
        self.encounters.iter().rev()
    }

    /// The latest encounters, back to this time. They are in the order of completion, which is nearly that of time:
    /// by at most `slack`.
    pub fn back_to(
        &self,
        from: Timestamp,
        slack: Duration,
    ) -> impl Iterator<Item = &CompletedCall> {
        let is_later =
            move |it: &&CompletedCall| it.last().is_some_and(|last| last.at.plus(slack) >= from);
        self.latest().take_while(is_later)
    }

    /// Time between the oldest encounter that is kept and the latest.
    pub fn covered(&self) -> Duration {
        let at = |encounter: Option<&CompletedCall>| encounter.and_then(CompletedCall::first_at);
        let ends = at(self.encounters.front()).zip(at(self.encounters.back()));
        ends.map_or(Duration::ZERO, |(oldest, latest)| latest.since(oldest))
    }

    /// Adds a collective that every member has entered.
    pub(super) fn met(&mut self, encounter: CompletedCall) {
        let (group, seq) = (encounter.group.0 as usize, encounter.seq);
        let number = self.push(encounter);
        if self.collectives.len() <= group {
            self.collectives.resize_with(group + 1, BySeq::new);
        }
        let by_seq = &mut self.collectives[group];
        match by_seq.back() {
            Some((latest, _)) if *latest >= seq => match position(by_seq, seq) {
                Ok(known) => by_seq[known].1 = number,
                Err(place) => by_seq.insert(place, (seq, number)),
            },
            _ => by_seq.push_back((seq, number)),
        }
        self.limit();
    }

    /// Adds a send that met its receive.
    pub(super) fn messaged(&mut self, group: GroupId, send: &MatchedSide, receive: &MatchedSide) {
        let messages = [send, receive].map(|met| (group, met.rank, met.call.id));
        let came = [send, receive].map(|met| Arrival {
            waits: self.begun.remove(&(group, met.rank, met.call.id)),
            ..Arrival::new(met.rank, &met.call)
        });
        let ranks = Ranks::Pair([send.rank, receive.rank]);
        let encounter = CompletedCall::new(group, 0, &send.call, ranks, came.into());
        let number = self.push(encounter);
        self.messages.extend(messages.map(|it| (it, number)));
        self.kept_messages += 1;
        self.limit();
    }

    /// Adds an encounter; returns its number.
    fn push(&mut self, mut encounter: CompletedCall) -> u64 {
        encounter.call = self.call_like(encounter.group, encounter.call);
        let number = self.first + self.encounters.len() as u64;
        self.kept += encounter.came.len();
        if let Some(last) = encounter.last() {
            self.end = self.end.max(last.at);
            self.began = Some(self.began.map_or(last.at, |began| began.min(last.at)));
        }
        // Doubling would leave up to half of the room unused.
        if self.encounters.len() == self.encounters.capacity() {
            self.encounters.reserve_exact(self.encounters.len() / 8 + LEAST);
        }
        self.encounters.push_back(encounter);
        self.note_change(number);
        number
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

    /// Drops the oldest encounters that exceed the limit.
    fn limit(&mut self) {
        while self.kept > KEPT && self.encounters.len() > LEAST {
            let Some(oldest) = self.encounters.pop_front() else { break };
            let number = self.first;
            self.first += 1;
            self.kept -= oldest.came.len();
            self.kept_messages -= usize::from(oldest.direction() == Direction::PointToPoint);
            if let Some(by_seq) = self.collectives.get_mut(oldest.group.0 as usize)
                && let Ok(place) = position(by_seq, oldest.seq)
                && by_seq[place].1 == number
            {
                by_seq.remove(place);
            }
        }
        // A message has two calls.
        if self.messages.len() > 4 * self.kept_messages + MAX_BEGUN {
            let first = self.first;
            self.messages.retain(|_, number| *number >= first);
        }
        if self.changed.len() > 2 * self.encounters.len() + MAX_BEGUN {
            let first = self.first;
            self.changed.retain(|&number| number >= first);
        }
    }

    /// See [`Self::get`].
    fn get_mut(&mut self, number: u64) -> Option<&mut CompletedCall> {
        self.encounters.get_mut(number.checked_sub(self.first)? as usize)
    }

    fn note_change(&mut self, number: u64) {
        if let Some(encounter) = self.get_mut(number).filter(|it| !it.is_changed) {
            encounter.is_changed = true;
            self.changed.push(number);
        }
    }

    /// Numbers of the encounters that are new or have changed since the last call, except for those
    /// that were dropped.
    pub(crate) fn take_changed(&mut self) -> Vec<u64> {
        let mut changed = std::mem::take(&mut self.changed);
        changed.retain(|&number| self.get_mut(number).map(|it| it.is_changed = false).is_some());
        changed
    }

    /// The encounter with this number; `None`: it was dropped.
    pub fn get(&self, number: u64) -> Option<&CompletedCall> {
        self.encounters.get(number.checked_sub(self.first)? as usize)
    }

    /// Updates the wait of a rank for its call.
    pub(super) fn set_wait(&mut self, rank: u32, target: Target, wait: Wait) {
        let Some(number) = self.number(target) else {
            if let (Target::Message(group, post), Wait::Since(at)) = (target, wait) {
                if self.begun.len() >= MAX_BEGUN {
                    self.begun.pop_first();
                }
                self.begun.insert((group, post.rank, post.call), at);
            }
            return;
        };
        self.change(number, rank, |came| match wait {
            Wait::NotSeen => {}
            Wait::Since(at) => (came.waits, came.until) = (Some(at), None),
            Wait::Over(at) => came.until = Some(at),
        });
    }

    /// A rank's call returned. If there is a separate wait, [`Self::set_wait`] follows.
    pub(super) fn set_returned(&mut self, rank: u32, target: Target, at: Timestamp) {
        let Some(number) = self.number(target) else { return };
        self.change(number, rank, |came| {
            if !came.is_async && came.until.is_none() && came.waits.is_none() {
                came.until = Some(at);
            }
        });
    }

    /// A rank waited for DDP's buckets, of which this is the last.
    pub(super) fn averaged(&mut self, rank: u32, group: GroupId, seq: u64, averaged: Averaged) {
        if let Some(number) = self.number(Target::Join(group, seq))
            && let Some(encounter) = self.get_mut(number)
        {
            encounter.averaged(rank, averaged);
            self.note_change(number);
        }
    }

    /// The number of a recent encounter.
    fn number(&self, target: Target) -> Option<u64> {
        let number = match target {
            Target::Join(group, seq) => {
                let by_seq = self.collectives.get(group.0 as usize)?;
                by_seq[position(by_seq, seq).ok()?].1
            }
            Target::Message(group, Post { rank, call, .. }) => {
                *self.messages.get(&(group, rank, call))?
            }
        };
        (number >= self.first).then_some(number)
    }

    fn change(&mut self, number: u64, rank: u32, change: impl FnOnce(&mut Arrival)) {
        if let Some(encounter) = self.get_mut(number)
            && let Some(place) = encounter.came.place_of(rank)
        {
            encounter.came.change(place, change);
            self.note_change(number);
        }
    }
}

/// The place of a sequence number, or where it is to be inserted. Sequence numbers are usually
/// consecutive.
fn position(by_seq: &BySeq, seq: u64) -> Result<usize, usize> {
    let first = by_seq.front().map_or(0, |(first, _)| *first);
    let guess = seq.wrapping_sub(first) as usize;
    if by_seq.get(guess).is_some_and(|(it, _)| *it == seq) {
        return Ok(guess);
    }
    by_seq.binary_search_by_key(&seq, |(seq, _)| *seq)
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::Op;

    use super::*;
    use crate::testing;

    fn met(seq: u64, ats: &[u64]) -> CompletedCall {
        let call = Arc::new(testing::call(Op::AllReduce));
        let came = ats
            .iter()
            .zip(0..)
            .map(|(&at, rank)| Arrival { at: Timestamp(at), ..Arrival::new(rank, &call) });
        let ranks = (0..ats.len() as u32).collect();
        let ranks = Ranks::Members(ranks);
        CompletedCall::new(GroupId(0), seq, &call, ranks, came.collect())
    }

    #[test]
    fn collective_waits_for_the_last_arrival() {
        let encounter = met(1, &[5, 9, 7]);
        assert_eq!(encounter.waits_for(0).map(|on| on.rank), Some(1));
        assert_eq!(encounter.waits_for(1), None);
        let mut broadcast = encounter;
        broadcast.call = Arc::new(Call { root: Some(2), ..testing::call(Op::Broadcast) });
        assert_eq!(broadcast.waits_for(0).map(|on| on.rank), Some(2));
        assert_eq!(broadcast.waits_for(2), None);
    }

    #[test]
    fn encounters_are_bounded_and_updated_in_place() {
        let mut arrivals = Arrivals::default();
        let ranks: Vec<u64> = (0..1024).collect();
        for seq in 1..=1000 {
            arrivals.met(met(seq, &ranks));
        }
        assert!(arrivals.kept <= KEPT);
        assert_eq!(arrivals.collectives[0].len(), arrivals.encounters.len());
        assert!(arrivals.changed.len() <= 2 * arrivals.encounters.len() + MAX_BEGUN);
        let changed = arrivals.take_changed();
        assert_eq!(changed.len(), arrivals.encounters.len());
        let over = Wait::Over(Timestamp(77));
        for seq in [1, 1000] {
            arrivals.set_wait(1000, Target::Join(GroupId(0), seq), over);
        }
        assert_eq!(arrivals.take_changed(), [999]);
        let latest = arrivals.latest().next().unwrap();
        let until = |place| latest.came.get(place).unwrap().until;
        assert_eq!(until(1000), Some(Timestamp(77)));
        assert_eq!(until(999), None);
    }

    #[test]
    fn encounters_before_a_time_are_not_visited() {
        let mut arrivals = Arrivals::default();
        (1..=1000).for_each(|seq| arrivals.met(met(seq, &[seq * 10, seq * 10 + 1])));
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
        arrivals.met(met(1, &[5, 9]));
        let target = Target::Join(GroupId(0), 1);
        arrivals.set_returned(0, target, Timestamp(6));
        arrivals.set_wait(0, target, Wait::Since(Timestamp(7)));
        let came = |arrivals: &Arrivals| arrivals.latest().next().unwrap().came.get(0).unwrap();
        assert_eq!(came(&arrivals).until, None);
        arrivals.set_wait(0, target, Wait::Over(Timestamp(12)));
        assert_eq!(came(&arrivals).until, Some(Timestamp(12)));
        assert_eq!(came(&arrivals).waits, Some(Timestamp(7)));
    }

    #[test]
    fn wait_for_buckets_belongs_to_the_last_bucket() {
        let mut arrivals = Arrivals::default();
        arrivals.met(met(1, &[5, 9, 7]));
        let buckets = Buckets { calls: 3, bytes: 96 };
        let averaged = |buckets| Averaged { buckets, from: Timestamp(8), to: Timestamp(20) };
        arrivals.averaged(0, GroupId(0), 1, averaged(buckets));
        arrivals.averaged(1, GroupId(0), 1, averaged(buckets));
        let others = Buckets { calls: 4, ..buckets };
        arrivals.averaged(2, GroupId(0), 1, averaged(others));
        arrivals.averaged(2, GroupId(0), 7, averaged(buckets));
        let encounter = arrivals.latest().next().unwrap();
        assert_eq!(encounter.buckets(), Some(buckets));
        let until: Vec<_> = encounter.came.iter().map(|came| came.until).collect();
        let over = Some(Timestamp(20));
        assert_eq!(until, [over, over, None], "rank 2 waited for other buckets");
    }
}
