//! Consecutive completed calls in as few bytes as their times allow.
//!
//! What completed calls share is listed once, and their times are columns. Nothing is rounded.

use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;

use crate::input::event::Call;
use crate::model::Buckets;
use crate::model::columns::{Reader, Writer};
use crate::model::ids::GroupId;
use crate::model::maps::ByNumber;

use super::{Arrival, Change, CompletedCall, Ranks};

/// Flags of an arrival.
const IS_ASYNC: u64 = 1;
const HIDDEN: u64 = 2;

/// Encounters, and changes of them since they were packed.
#[derive(Debug)]
pub(crate) struct Packed {
    /// Number of the first completed call.
    pub(super) first: u64,
    /// Number of completed calls.
    pub(super) len: usize,
    /// Number of their arrivals.
    pub(super) arrivals: usize,
    /// Lowest and highest time.
    pub(super) span: (Timestamp, Timestamp),
    kinds: Box<[Kind]>,
    bytes: Box<[u8]>,
    changes: Vec<(Key, u32, Change)>,
}

/// Identifies a completed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// A collective.
    Join(GroupId, u64),
    /// A message, by its number.
    Message(u64),
}

/// What completed calls share.
#[derive(Debug)]
struct Kind {
    group: GroupId,
    call: Arc<Call>,
    ranks: Ranks,
    buckets: Option<Arc<Buckets>>,
    /// Lowest and highest sequence number.
    seqs: (u64, u64),
}

impl Packed {
    /// Packs completed calls, of which the first has this number.
    pub(super) fn new(first: u64, completed_calls: &[CompletedCall]) -> Self {
        let mut kinds: Vec<Kind> = Vec::new();
        let mut known = ByNumber::default();
        let places: Vec<usize> =
            completed_calls.iter().map(|it| Kind::place(&mut kinds, &mut known, it)).collect();
        let mut seqs: Vec<u64> = kinds.iter().map(|kind| kind.seqs.0).collect();
        let mut writer = Writer::default();
        let (mut step, mut base) = (0, 0);
        for (completed, kind) in completed_calls.iter().zip(places) {
            writer.number(kind as u64);
            writer.difference(completed.seq, seqs[kind]);
            writer.difference(completed.step, step);
            let arrivals = completed.arrivals.iter();
            writer.column(base, arrivals.clone().map(|it| Some(it.at.0)));
            base = arrivals.clone().map(|it| it.at.0).min().unwrap_or(base);
            writer.column(base, arrivals.clone().map(|it| it.waits.map(|at| at.0)));
            writer.column(base, arrivals.clone().map(|it| it.until.map(|at| at.0)));
            let flags = |it: Arrival| {
                let is_async = if it.is_async { IS_ASYNC } else { 0 };
                Some(is_async | if it.hidden { HIDDEN } else { 0 })
            };
            writer.column(0, arrivals.map(flags));
            (seqs[kind], step) = (completed.seq, completed.step);
        }
        Self {
            first,
            len: completed_calls.len(),
            arrivals: completed_calls.iter().map(|it| it.arrivals.len()).sum(),
            span: span(completed_calls),
            kinds: kinds.into(),
            bytes: writer.finish(),
            changes: Vec::new(),
        }
    }

    /// Visits the completed calls that are wanted, and possibly others, oldest first.
    pub(super) fn visit(
        &self,
        is_wanted: impl Fn(GroupId, &Call, Option<Buckets>) -> bool,
        mut visit: impl FnMut(&CompletedCall),
    ) {
        let mut changes: BTreeMap<Key, Vec<(u32, Change)>> = BTreeMap::new();
        for &(key, rank, change) in &self.changes {
            changes.entry(key).or_default().push((rank, change));
        }
        let is_wanted = |kind: &Kind| {
            // A change may assign buckets to DDP's calls.
            !changes.is_empty() && kind.call.hidden
                || is_wanted(kind.group, &kind.call, kind.buckets.as_deref().copied())
        };
        let wanted: Vec<bool> = self.kinds.iter().map(is_wanted).collect();
        let Some(first) = self.kinds.first().filter(|_| wanted.contains(&true)) else { return };
        // One for all completed calls: an allocation for each would take much of the time.
        let ranks = first.ranks.clone();
        let mut it = CompletedCall::new(first.group, first.seqs.0, &first.call, ranks, Vec::new());
        let mut seqs: Vec<u64> = self.kinds.iter().map(|kind| kind.seqs.0).collect();
        let mut reader = Reader::new(&self.bytes);
        let (mut step, mut base) = (0, 0);
        for number in self.first..self.first + self.len as u64 {
            let place = reader.number() as usize;
            let kind = &self.kinds[place];
            seqs[place] = reader.difference(seqs[place]);
            step = reader.difference(step);
            let ranks = kind.ranks.as_slice();
            let at = reader.column(base, ranks.len());
            base = at.lowest;
            let waits = reader.column(base, ranks.len());
            let until = reader.column(base, ranks.len());
            let flags = reader.column(0, ranks.len());
            if !wanted[place] {
                continue;
            }
            it.arrivals.replace(&kind.ranks, |arrivals| {
                // Several short loops take less time than one over all columns.
                arrivals.iter_mut().zip(at).for_each(|(it, at)| it.at = Timestamp(at.unwrap_or(0)));
                arrivals.iter_mut().zip(waits).for_each(|(it, at)| it.waits = at.map(Timestamp));
                arrivals.iter_mut().zip(until).for_each(|(it, at)| it.until = at.map(Timestamp));
                for (it, flags) in arrivals.iter_mut().zip(flags) {
                    let flags = flags.unwrap_or(0);
                    (it.is_async, it.hidden) = (flags & IS_ASYNC != 0, flags & HIDDEN != 0);
                }
            });
            (it.group, it.seq, it.step) = (kind.group, seqs[place], step);
            (it.call, it.buckets) = (Arc::clone(&kind.call), kind.buckets.clone());
            for (rank, change) in changes.get(&it.key(number)).into_iter().flatten() {
                it.change(*rank, *change);
            }
            visit(&it);
        }
    }

    /// All completed calls, oldest first.
    pub(super) fn unpack(&self) -> Vec<CompletedCall> {
        let mut all = Vec::with_capacity(self.len);
        self.visit(|_, _, _| true, |it| all.push(it.clone()));
        all
    }

    /// Whether no time is within an interval. Changes are not examined.
    pub(super) fn is_outside(&self, (from, to): (Timestamp, Timestamp)) -> bool {
        self.changes.is_empty() && (self.span.1 < from || to < self.span.0)
    }

    /// Whether it may contain a collective.
    pub(super) fn may_contain(&self, group: GroupId, seq: u64) -> bool {
        let mut kinds = self.kinds.iter();
        kinds.any(|it| it.group == group && (it.seqs.0..=it.seqs.1).contains(&seq))
    }

    /// Changes the arrival of a rank.
    pub(super) fn change(&mut self, key: Key, rank: u32, change: Change) {
        self.changes.push((key, rank, change));
        // An amortized cost per change that does not depend on the number of completed calls.
        if self.changes.len() > self.arrivals / 8 + 8 {
            *self = Self::new(self.first, &self.unpack());
        }
    }
}

impl Kind {
    /// The place of the kind of a completed call, which is added if it is new. `known`: the latest place by call.
    fn place(
        kinds: &mut Vec<Self>,
        known: &mut ByNumber<usize, usize>,
        it: &CompletedCall,
    ) -> usize {
        let is_same = |kind: &Self| {
            kind.group == it.group
                && Arc::ptr_eq(&kind.call, &it.call)
                && kind.ranks.is_shared_with(&it.arrivals.ranks)
                && kind.buckets == it.buckets
        };
        let latest = known.entry(Arc::as_ptr(&it.call).addr()).or_insert(kinds.len());
        let place = match kinds.get(*latest) {
            Some(kind) if is_same(kind) => *latest,
            Some(_) => kinds.iter().position(is_same).unwrap_or(kinds.len()),
            None => kinds.len(),
        };
        *latest = place;
        if place == kinds.len() {
            let (call, ranks) = (Arc::clone(&it.call), it.arrivals.ranks.clone());
            let (buckets, seqs) = (it.buckets.clone(), (it.seq, it.seq));
            kinds.push(Self { group: it.group, call, ranks, buckets, seqs });
        }
        let (lowest, highest) = kinds[place].seqs;
        kinds[place].seqs = (lowest.min(it.seq), highest.max(it.seq));
        place
    }
}

/// Lowest and highest time of completed calls.
fn span(completed_calls: &[CompletedCall]) -> (Timestamp, Timestamp) {
    let arrivals = completed_calls.iter().flat_map(|it| it.arrivals.iter());
    let times = arrivals.flat_map(|it| [Some(it.at), it.waits, it.until]).flatten();
    let span = times.fold(None, |span: Option<(Timestamp, Timestamp)>, at| {
        Some(span.map_or((at, at), |(lowest, highest)| (lowest.min(at), highest.max(at))))
    });
    span.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::Op;

    use super::*;
    use crate::testing;

    #[test]
    fn unpacked_encounters_are_those_that_were_packed() {
        const LATE: u64 = 1 << 62;
        let call = Arc::new(testing::call(Op::AllReduce));
        let members = Ranks::Members([2, 3, 9].into());
        let arrival = |rank, at, waits: Option<u64>, until: Option<u64>| Arrival {
            waits: waits.map(Timestamp),
            until: until.map(Timestamp),
            is_async: at == 7,
            hidden: rank == 3,
            ..Arrival { at: Timestamp(at), ..Arrival::new(rank, &call) }
        };
        let times = [
            [(5, None, Some(9)), (7, None, Some(8)), (6, None, Some(8))],
            [(LATE, Some(3), None), (0, None, None), (LATE, None, Some(u64::MAX))],
            [(5, None, None), (5, None, None), (5, None, None)],
            [(u64::MAX, Some(0), Some(u64::MAX)), (0, None, Some(0)), (1, Some(u64::MAX), None)],
        ];
        let mut all: Vec<CompletedCall> = times
            .into_iter()
            .zip([9, 10, 700, 3])
            .map(|(times, seq)| {
                let arrivals = [2, 3, 9]
                    .into_iter()
                    .zip(times)
                    .map(|(rank, (at, waits, until))| arrival(rank, at, waits, until));
                let ranks = members.clone();
                CompletedCall::new(GroupId(1), seq, &call, ranks, arrivals.collect())
            })
            .collect();
        all[1].buckets = Some(Arc::new(Buckets { calls: 3, bytes: u64::MAX }));
        all[2].step = 1 << 40;
        let pair = vec![arrival(8, 60, None, None), arrival(1, 50, Some(55), None)];
        all.push(CompletedCall::new(GroupId(0), 0, &call, Ranks::Pair([8, 1]), pair));
        let mut packed = Packed::new(40, &all);
        assert_eq!(format!("{:?}", packed.unpack()), format!("{all:?}"));
        assert_eq!((packed.kinds.len(), packed.arrivals), (3, 14));
        assert_eq!(
            [2, 9, 700, 701].map(|seq| packed.may_contain(GroupId(1), seq)),
            [false, true, true, false]
        );

        for round in 0..40 {
            let over = Change::Wait(crate::model::Wait::Over(Timestamp(100 + round)));
            packed.change(Key::Join(GroupId(1), 10), 9, over);
            packed.change(Key::Message(44), 1, over);
            all[1].change(9, over);
            all[4].change(1, over);
            assert_eq!(format!("{:?}", packed.unpack()), format!("{all:?}"));
        }
    }
}
