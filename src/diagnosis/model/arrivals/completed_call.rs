//! One encounter: a collective or message at which all ranks have arrived.

use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::Direction;

use crate::input::event::Call;
use crate::model::ids::GroupId;
use crate::model::maps::position;
use crate::model::{Averaged, Buckets, Join, Wait};

use super::packed::Key;

/// A collective or message at which all ranks have arrived.
#[derive(Clone, Debug)]
pub struct CompletedCall {
    /// Group of the calls.
    pub group: GroupId,
    /// Sequence number; 0: a message.
    pub seq: u64,
    /// The call of the first arrival in `arrivals`, or an earlier one like it.
    pub call: Arc<Call>,
    /// Training step in which that call was issued; 0: before the first.
    pub step: u64,
    /// Arrivals by rank; for a message, the sender first.
    pub arrivals: RankArrivals,
    /// See [`Self::buckets`].
    pub(super) buckets: Option<Arc<Buckets>>,
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

/// Arrivals in the order of `ranks`.
#[derive(Clone, Debug)]
pub struct RankArrivals {
    pub(super) ranks: Ranks,
    all: Vec<Arrival>,
    /// Place of the last arrival.
    last: usize,
}

/// Ranks that arrived.
#[derive(Clone, Debug)]
pub(super) enum Ranks {
    /// Members of a group, ascending. All its collectives share the list.
    Members(Arc<[u32]>),
    /// Sender and receiver of a message.
    Pair([u32; 2]),
}

/// A change of an arrival.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Wait(Wait),
    Returned(Timestamp),
    Averaged(Averaged),
}

impl CompletedCall {
    pub(super) fn new(
        group: GroupId,
        seq: u64,
        call: &Arc<Call>,
        ranks: Ranks,
        arrivals: Vec<Arrival>,
    ) -> Self {
        let mut all = RankArrivals { ranks, all: arrivals, last: 0 };
        all.find_last();
        Self { group, seq, call: Arc::clone(call), step: call.step, arrivals: all, buckets: None }
    }

    /// A collective that every member has entered.
    pub(in crate::model) fn of_join(group: GroupId, seq: u64, join: &Join) -> Option<Self> {
        let (_, first) = join.calls.iter().next()?;
        let arrivals = join.calls.iter().map(|(&rank, joined)| {
            let (waits, until) = match joined.wait {
                Wait::NotSeen => (None, joined.returned.filter(|_| !joined.call.is_async)),
                Wait::Since(at) => (Some(at), None),
                Wait::Over(at) => (None, Some(at)),
            };
            Arrival { waits, until, ..Arrival::new(rank, &joined.call) }
        });
        let ranks = Ranks::Members(join.calls.listed());
        let mut completed = Self::new(group, seq, &first.call, ranks, arrivals.collect());
        for (&rank, joined) in join.calls.iter() {
            if let Some(averaged) = joined.averaged.as_deref() {
                completed.change(rank, Change::Averaged(*averaged));
            }
        }
        Some(completed)
    }

    /// Changes the arrival of a rank.
    pub(super) fn change(&mut self, rank: u32, change: Change) {
        if let Change::Averaged(Averaged { buckets, .. }) = change
            && **self.buckets.get_or_insert_with(|| Arc::new(buckets)) != buckets
        {
            return;
        }
        let Some(place) = self.arrivals.place_of(rank) else { return };
        let arrival = &mut self.arrivals.all[place];
        match change {
            Change::Wait(Wait::NotSeen) => {}
            Change::Wait(Wait::Since(at)) => (arrival.waits, arrival.until) = (Some(at), None),
            Change::Wait(Wait::Over(at)) => arrival.until = Some(at),
            Change::Returned(at) => {
                if !arrival.is_async && arrival.until.is_none() && arrival.waits.is_none() {
                    arrival.until = Some(at);
                }
            }
            // This is the last of the buckets.
            Change::Averaged(Averaged { from, to, .. }) => {
                (arrival.waits, arrival.until) = (Some(from), Some(to));
            }
        }
    }

    /// Identifies this encounter, which has this number.
    pub(super) const fn key(&self, number: u64) -> Key {
        if self.seq == 0 { Key::Message(number) } else { Key::Join(self.group, self.seq) }
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
        self.arrivals.get(self.arrivals.last)
    }

    /// Time of the first arrival.
    pub fn first_at(&self) -> Option<Timestamp> {
        self.arrivals.all.iter().map(|arrival| arrival.at).min()
    }

    /// The arrival that this rank has to wait for; `None` if there is none but its own, or it is
    /// unknown.
    pub fn waits_for(&self, rank: u32) -> Option<Arrival> {
        let of = |rank: u32| self.arrivals.get(self.arrivals.place_of(rank)?);
        let on = match self.direction() {
            Direction::Symmetric => self.last(),
            Direction::FromRoot => of(self.call.root?),
            Direction::ToRoot if self.call.root == Some(rank) => self.last(),
            Direction::PointToPoint => self.arrivals.iter().find(|arrival| arrival.rank != rank),
            Direction::ToRoot | Direction::Unknown => None,
        };
        on.filter(|on| on.rank != rank)
    }
}

impl RankArrivals {
    /// Replaces the arrivals by those of other ranks, whose times `fill` sets.
    pub(super) fn replace(&mut self, ranks: &Ranks, fill: impl FnOnce(&mut [Arrival])) {
        self.ranks = ranks.clone();
        self.all.clear();
        self.all.extend(ranks.as_slice().iter().map(|&rank| Arrival {
            rank,
            at: Timestamp::default(),
            waits: None,
            until: None,
            is_async: false,
            hidden: false,
        }));
        fill(&mut self.all);
        self.find_last();
    }

    fn find_last(&mut self) {
        self.last = 0;
        for (place, arrival) in self.all.iter().enumerate() {
            if arrival.at >= self.all[self.last].at {
                self.last = place;
            }
        }
    }

    /// Number of arrivals.
    pub const fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether it is empty.
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The arrival at this place.
    pub fn get(&self, place: usize) -> Option<Arrival> {
        self.all.get(place).copied()
    }

    /// All arrivals.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Arrival> + Clone {
        self.all.iter().copied()
    }

    /// Ranks of the arrivals.
    pub fn ranks(&self) -> &[u32] {
        self.ranks.as_slice()
    }

    /// The place of a rank.
    fn place_of(&self, rank: u32) -> Option<usize> {
        match &self.ranks {
            Ranks::Pair(ranks) => ranks.iter().position(|it| *it == rank),
            Ranks::Members(ranks) => {
                let ends = (*ranks.first()?, *ranks.last()?);
                position(rank, ends, ranks.len(), |place| ranks[place])
            }
        }
    }
}

impl Ranks {
    pub(super) fn as_slice(&self) -> &[u32] {
        match self {
            Self::Members(ranks) => ranks,
            Self::Pair(ranks) => ranks,
        }
    }

    /// Whether these are the same ranks, in one list if they are members of a group.
    pub(super) fn is_shared_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Members(ranks), Self::Members(others)) => Arc::ptr_eq(ranks, others),
            (Self::Pair(ranks), Self::Pair(others)) => ranks == others,
            _ => false,
        }
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
