//! The latest encounters of all groups: when each rank arrived at a collective or message, and
//! until when it waited.
//!
//! Nothing is concluded here. Late ranks and their share in waits are determined in
//! [`crate::speed::lateness`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::Direction;

use crate::evidence::event::{Call, CallId};
use crate::model::channel::{Met, Post};
use crate::model::group::{GroupId, Join, Wait};
use crate::model::process::Target;

/// Maximum number of arrivals kept, over all encounters …
const KEPT: usize = 262_144;
/// … but at least this many encounters.
const LEAST: usize = 8;
/// Maximum number of waits kept that began before their message met its partner.
const KEPT_BEGUN: usize = 4096;

/// The latest encounters, oldest first.
#[derive(Debug, Default)]
pub struct Arrivals {
    encounters: VecDeque<Encounter>,
    /// Number of the first of `encounters`, counted over all.
    first: u64,
    /// Number of arrivals in `encounters`.
    kept: usize,
    /// Numbers of encounters by their calls.
    places: BTreeMap<Spot, u64>,
    /// Since when ranks have been waiting for messages without a partner.
    begun: BTreeMap<Spot, Timestamp>,
    /// When the first encounter was complete …
    began: Option<Timestamp>,
    /// … and when the latest one was.
    end: Timestamp,
}

/// A collective or message at which all ranks have arrived.
#[derive(Clone, Debug)]
pub struct Encounter {
    /// Group of the calls.
    pub group: GroupId,
    /// Sequence number; 0: a message.
    pub seq: u64,
    /// Determines which ranks wait for which.
    pub direction: Direction,
    /// The call of the first arrival in `came`.
    pub call: Arc<Call>,
    /// Arrivals by rank; for a message, the sender first.
    pub came: Vec<Came>,
    /// Set if it is the last of DDP's buckets that ranks waited for together: those buckets,
    /// according to the first wait that was recorded. Waits for other buckets are not assigned to
    /// it.
    pub buckets: Option<Buckets>,
}

/// The buckets that DDP averages in one backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Buckets {
    /// Number of calls.
    pub calls: u32,
    /// Bytes that each rank contributes to all of them.
    pub bytes: u64,
}

/// The wait of a rank for the buckets of one backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Averaged {
    /// The buckets waited for.
    pub buckets: Buckets,
    /// Start of the wait …
    pub from: Timestamp,
    /// … and its end.
    pub to: Timestamp,
}

/// The arrival of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came {
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

/// Identifies a call within the recent encounters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Spot {
    Join(GroupId, u64),
    Message(GroupId, u32, CallId),
}

impl Encounter {
    /// A collective that every member has entered.
    pub(super) fn of_join(group: GroupId, seq: u64, join: &Join) -> Option<Self> {
        let (_, first) = join.calls.iter().next()?;
        let came = join.calls.iter().map(|(&rank, joined)| {
            let (waits, until) = match joined.wait {
                Wait::NotSeen => (None, joined.returned.filter(|_| !joined.call.is_async)),
                Wait::Since(at) => (Some(at), None),
                Wait::Over(at) => (None, Some(at)),
            };
            Came {
                waits,
                until,
                ..Came::new(rank, &joined.call)
            }
        });
        let mut encounter = Self {
            group,
            seq,
            direction: first.call.op.direction(),
            call: Arc::clone(&first.call),
            came: came.collect(),
            buckets: None,
        };
        for (&rank, joined) in &join.calls {
            if let Some(averaged) = joined.averaged {
                encounter.averaged(rank, averaged);
            }
        }
        Some(encounter)
    }

    /// Sets the wait of a rank for buckets, of which this is the last.
    fn averaged(&mut self, rank: u32, averaged: Averaged) {
        let buckets = *self.buckets.get_or_insert(averaged.buckets);
        let came = self.came.iter_mut().find(|came| came.rank == rank);
        if let Some(came) = came.filter(|_| buckets == averaged.buckets) {
            (came.waits, came.until) = (Some(averaged.from), Some(averaged.to));
        }
    }

    /// The last arrival.
    #[must_use]
    pub fn last(&self) -> Option<Came> {
        self.came.iter().copied().max_by_key(|came| came.at)
    }

    /// Time of the first arrival.
    #[must_use]
    pub fn first_at(&self) -> Option<Timestamp> {
        self.came.iter().map(|came| came.at).min()
    }

    /// The arrival that this rank has to wait for; `None` if there is none but its own, or it is
    /// unknown.
    #[must_use]
    pub fn waits_for(&self, rank: u32) -> Option<Came> {
        let of = |rank: u32| self.came.iter().copied().find(|came| came.rank == rank);
        let on = match self.direction {
            Direction::Symmetric => self.last(),
            Direction::FromRoot => of(self.call.root?),
            Direction::ToRoot if self.call.root == Some(rank) => self.last(),
            Direction::PointToPoint => self.came.iter().copied().find(|came| came.rank != rank),
            Direction::ToRoot | Direction::Unknown => None,
        };
        on.filter(|on| on.rank != rank)
    }
}

impl Came {
    fn new(rank: u32, call: &Call) -> Self {
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
    pub fn latest(&self) -> impl Iterator<Item = &Encounter> {
        self.encounters.iter().rev()
    }

    /// When the first encounter was complete.
    #[must_use]
    pub const fn began(&self) -> Option<Timestamp> {
        self.began
    }

    /// When the latest encounter was complete.
    #[must_use]
    pub const fn end(&self) -> Timestamp {
        self.end
    }

    /// Number of arrivals kept.
    #[must_use]
    pub const fn kept(&self) -> usize {
        self.kept
    }

    /// Adds a collective that every member has entered.
    pub(super) fn met(&mut self, encounter: Encounter) {
        let spot = Spot::Join(encounter.group, encounter.seq);
        self.push(encounter, &[spot]);
    }

    /// Adds a send that met its receive.
    pub(super) fn messaged(&mut self, group: GroupId, [send, receive]: &[Met; 2]) {
        let came = [send, receive].map(|met| {
            let spot = Spot::Message(group, met.rank, met.call.id);
            Came {
                waits: self.begun.remove(&spot),
                ..Came::new(met.rank, &met.call)
            }
        });
        let spots = [send, receive].map(|met| Spot::Message(group, met.rank, met.call.id));
        let encounter = Encounter {
            group,
            seq: 0,
            direction: Direction::PointToPoint,
            call: Arc::clone(&send.call),
            came: came.into(),
            buckets: None,
        };
        self.push(encounter, &spots);
    }

    fn push(&mut self, encounter: Encounter, spots: &[Spot]) {
        let number = self.first + self.encounters.len() as u64;
        self.places.extend(spots.iter().map(|&spot| (spot, number)));
        self.kept += encounter.came.len();
        if let Some(last) = encounter.last() {
            self.end = self.end.max(last.at);
            self.began = Some(self.began.map_or(last.at, |began| began.min(last.at)));
        }
        self.encounters.push_back(encounter);
        while self.kept > KEPT && self.encounters.len() > LEAST {
            let Some(oldest) = self.encounters.pop_front() else {
                break;
            };
            self.first += 1;
            self.kept -= oldest.came.len();
        }
        if self.places.len() > 4 * self.encounters.len() + KEPT_BEGUN {
            let first = self.first;
            self.places.retain(|_, number| *number >= first);
        }
    }

    /// Updates the wait of a rank for its call.
    pub(super) fn set_wait(&mut self, rank: u32, target: Target, wait: Wait) {
        let spot = spot(target);
        if self.came(spot, rank).is_none() {
            let message = matches!(spot, Spot::Message(..));
            if let (true, Wait::Since(at)) = (message, wait) {
                if self.begun.len() >= KEPT_BEGUN {
                    self.begun.pop_first();
                }
                self.begun.insert(spot, at);
            }
            return;
        }
        if let Some(came) = self.came(spot, rank) {
            match wait {
                Wait::NotSeen => {}
                Wait::Since(at) => (came.waits, came.until) = (Some(at), None),
                Wait::Over(at) => came.until = Some(at),
            }
        }
    }

    /// A rank's call returned. If there is a separate wait, [`Self::set_wait`] follows.
    pub(super) fn set_returned(&mut self, rank: u32, target: Target, at: Timestamp) {
        if let Some(came) = self.came(spot(target), rank)
            && !came.is_async
            && came.until.is_none()
            && came.waits.is_none()
        {
            came.until = Some(at);
        }
    }

    /// A rank waited for DDP's buckets, of which this is the last.
    pub(super) fn averaged(&mut self, rank: u32, group: GroupId, seq: u64, averaged: Averaged) {
        if let Some(encounter) = self.encounter(Spot::Join(group, seq)) {
            encounter.averaged(rank, averaged);
        }
    }

    fn encounter(&mut self, spot: Spot) -> Option<&mut Encounter> {
        let number = *self.places.get(&spot)?;
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.encounters.get_mut(index)
    }

    fn came(&mut self, spot: Spot, rank: u32) -> Option<&mut Came> {
        let came = &mut self.encounter(spot)?.came;
        match spot {
            Spot::Join(..) => {
                let index = came.binary_search_by_key(&rank, |came| came.rank).ok()?;
                came.get_mut(index)
            }
            Spot::Message(..) => came.iter_mut().find(|came| came.rank == rank),
        }
    }
}

fn spot(target: Target) -> Spot {
    match target {
        Target::Join(group, seq) => Spot::Join(group, seq),
        Target::Message(group, Post { rank, call, .. }) => Spot::Message(group, rank, call),
    }
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::Op;

    use super::*;
    use crate::testing;

    fn met(seq: u64, ats: &[u64]) -> Encounter {
        let call = Arc::new(testing::call(Op::AllReduce).build());
        let came = ats.iter().zip(0..).map(|(&at, rank)| Came {
            at: Timestamp(at),
            ..Came::new(rank, &call)
        });
        Encounter {
            group: GroupId(0),
            seq,
            direction: Direction::Symmetric,
            came: came.collect(),
            call,
            buckets: None,
        }
    }

    #[test]
    fn collective_waits_for_the_last_arrival() {
        let encounter = met(1, &[5, 9, 7]);
        assert_eq!(encounter.waits_for(0).map(|on| on.rank), Some(1));
        assert_eq!(encounter.waits_for(1), None);
        let mut broadcast = encounter;
        broadcast.direction = Direction::FromRoot;
        let mut call = (*broadcast.call).clone();
        call.root = Some(2);
        broadcast.call = Arc::new(call);
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
        assert!(arrivals.kept() <= KEPT);
        assert!(arrivals.places.len() <= 4 * arrivals.encounters.len() + KEPT_BEGUN);
        let over = Wait::Over(Timestamp(77));
        for seq in [1, 1000] {
            arrivals.set_wait(1000, Target::Join(GroupId(0), seq), over);
        }
        let latest = arrivals.latest().next().unwrap();
        assert_eq!(latest.came[1000].until, Some(Timestamp(77)));
        assert_eq!(latest.came[999].until, None);
    }

    #[test]
    fn separate_wait_replaces_the_return() {
        let mut arrivals = Arrivals::default();
        arrivals.met(met(1, &[5, 9]));
        let target = Target::Join(GroupId(0), 1);
        arrivals.set_returned(0, target, Timestamp(6));
        arrivals.set_wait(0, target, Wait::Since(Timestamp(7)));
        let came = |arrivals: &Arrivals| arrivals.latest().next().unwrap().came[0];
        assert_eq!(came(&arrivals).until, None);
        arrivals.set_wait(0, target, Wait::Over(Timestamp(12)));
        assert_eq!(came(&arrivals).until, Some(Timestamp(12)));
        assert_eq!(came(&arrivals).waits, Some(Timestamp(7)));
    }

    #[test]
    fn wait_for_buckets_belongs_to_the_last_bucket() {
        let mut arrivals = Arrivals::default();
        arrivals.met(met(1, &[5, 9, 7]));
        let buckets = Buckets {
            calls: 3,
            bytes: 96,
        };
        let averaged = |buckets| Averaged {
            buckets,
            from: Timestamp(8),
            to: Timestamp(20),
        };
        arrivals.averaged(0, GroupId(0), 1, averaged(buckets));
        arrivals.averaged(1, GroupId(0), 1, averaged(buckets));
        let others = Buckets {
            calls: 4,
            ..buckets
        };
        arrivals.averaged(2, GroupId(0), 1, averaged(others));
        arrivals.averaged(2, GroupId(0), 7, averaged(buckets));
        let encounter = arrivals.latest().next().unwrap();
        assert_eq!(encounter.buckets, Some(buckets));
        let until: Vec<_> = encounter.came.iter().map(|came| came.until).collect();
        let over = Some(Timestamp(20));
        assert_eq!(until, [over, over, None], "rank 2 waited for other buckets");
    }
}
