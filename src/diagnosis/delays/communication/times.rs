//! Durations of the latest collectives, kept up to date as events come.
//!
//! They follow from the encounters of the model alone: those that have changed are taken again,
//! and those that the model dropped are dropped.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use crate::delays::clocks::Clocks;
use crate::delays::communication::{CollectiveTime, collective_time};
use crate::input::event::Call;
use crate::model::{Buckets, CompletedCall, GroupId, Model};

/// Durations by encounter, by kind of call, and by reduction.
#[derive(Debug, Default)]
pub struct Times {
    /// State of the clocks that the durations allow for.
    clocks: Option<(Duration, u64)>,
    /// Number of the first of `all`.
    first: u64,
    /// Durations by number of the encounter; `None`: not recorded.
    all: VecDeque<Option<Timed>>,
    /// Collectives outside of marked phases, by their last arrivals.
    by_kind: BTreeMap<Arc<Kind>, Ordered>,
    /// Those of them that can be combined with others, by their first arrivals.
    reductions: BTreeMap<(GroupId, Op), Reductions>,
}

/// A collective with its duration.
#[derive(Clone, Debug)]
pub(super) struct Timed {
    pub(super) took: CollectiveTime,
    /// The call, or an earlier one like it.
    pub(super) call: Arc<Call>,
    /// Training step in which it was issued; 0: before the first.
    pub(super) step: u64,
    kind: Arc<Kind>,
}

/// Identifies recurrences of one call, or of the same buckets of DDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    pub(super) group: GroupId,
    pub(super) op: Op,
    pub(super) bytes: Option<u64>,
    pub(super) buckets: Option<Buckets>,
}

/// Numbers of encounters by time. Of several at one time, the latest comes first. A queue, since almost all come at its
/// end and leave at its front.
#[derive(Debug, Default)]
struct Ordered(VecDeque<(Timestamp, Reverse<u64>)>);

/// Reductions of a group, by first arrival.
#[derive(Debug, Default)]
struct Reductions {
    ordered: Ordered,
    /// Number of calls that belong to no training step.
    without_step: usize,
}

impl Timed {
    /// Bytes that each rank contributes; 0: unknown.
    pub(super) fn bytes(&self) -> u64 {
        self.kind.bytes.unwrap_or(0)
    }
}

impl Times {
    /// Takes the encounters that have changed since the last call.
    pub fn update(&mut self, model: &mut Model) {
        let changed = model.arrivals.take_changed();
        let first = model.arrivals.first;
        while self.first < first {
            if let Some(Some(timed)) = self.all.pop_front() {
                self.remove(self.first, &timed);
            }
            self.first += 1;
        }
        let end = first + model.arrivals.latest().len() as u64;
        self.all.resize((end - first) as usize, None);
        let clocks = Clocks::new(model);
        if self.clocks == clocks.state() {
            changed.iter().for_each(|&number| self.take(model, &clocks, number));
        } else {
            self.clocks = clocks.state();
            (first..end).for_each(|number| self.take(model, &clocks, number));
        }
    }

    fn take(&mut self, model: &Model, clocks: &Clocks<'_>, number: u64) {
        let Some(encounter) = model.arrivals.get(number) else { return };
        let place = (number - self.first) as usize;
        if let Some(timed) = self.all[place].take() {
            self.remove(number, &timed);
        }
        let Some(took) = collective_time(model, clocks, encounter) else { return };
        let call = &encounter.call;
        if call.phase.is_some() {
            return;
        }
        let kind = Kind::from_call(encounter);
        let kind = match self.by_kind.get_key_value(&kind) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::new(kind),
        };
        let by_kind = self.by_kind.entry(Arc::clone(&kind)).or_default();
        by_kind.insert(took.last, number);
        let timed = Timed { took, call: Arc::clone(call), step: encounter.step, kind };
        if let Some(reduction) = timed.kind.reduction() {
            let reductions = self.reductions.entry(reduction).or_default();
            reductions.ordered.insert(took.first, number);
            reductions.without_step += usize::from(timed.step == 0);
        }
        self.all[place] = Some(timed);
    }

    fn remove(&mut self, number: u64, timed: &Timed) {
        if let Some(by_kind) = self.by_kind.get_mut(&timed.kind) {
            by_kind.remove(timed.took.last, number);
            if by_kind.0.is_empty() {
                self.by_kind.remove(&timed.kind);
            }
        }
        if let Some(reduction) = timed.kind.reduction()
            && let Some(reductions) = self.reductions.get_mut(&reduction)
        {
            reductions.ordered.remove(timed.took.first, number);
            reductions.without_step -= usize::from(timed.step == 0);
            if reductions.ordered.0.is_empty() {
                self.reductions.remove(&reduction);
            }
        }
    }

    /// Kinds of collectives, each with those that began at `begin` or later, by last arrival.
    pub(super) fn kinds(
        &self,
        begin: Timestamp,
    ) -> impl Iterator<Item = (Kind, impl DoubleEndedIterator<Item = &Timed> + Clone)> {
        let kinds = self.by_kind.iter();
        kinds.map(move |(kind, calls)| (**kind, self.calls(calls, begin)))
    }

    /// Reductions, each with whether all of them belong to steps, and those that began at `begin` or
    /// later, by first arrival.
    pub(super) fn reductions(
        &self,
        begin: Timestamp,
    ) -> impl Iterator<Item = (GroupId, Op, bool, impl DoubleEndedIterator<Item = &Timed> + Clone)>
    {
        self.reductions.iter().map(move |(&(group, op), of)| {
            let calls = self.calls(&of.ordered, begin);
            (group, op, of.without_step == 0, calls)
        })
    }

    fn calls<'a>(
        &'a self,
        calls: &'a Ordered,
        begin: Timestamp,
    ) -> impl DoubleEndedIterator<Item = &'a Timed> + Clone {
        let numbers = calls.0.iter().map(|(_, Reverse(number))| *number);
        let calls = numbers.filter_map(|number| {
            let place = number.checked_sub(self.first)?;
            self.all.get(place as usize)?.as_ref()
        });
        calls.filter(move |timed| timed.took.first >= begin)
    }
}

impl Kind {
    fn from_call(encounter: &CompletedCall) -> Self {
        let buckets = encounter.buckets();
        Self {
            group: encounter.group,
            op: encounter.call.op,
            bytes: buckets.map_or_else(|| encounter.call.bytes(), |it| Some(it.bytes)),
            buckets,
        }
    }

    /// If these are reductions of known size that can be combined with others: with which.
    fn reduction(&self) -> Option<(GroupId, Op)> {
        let is_reduction = matches!(self.op, Op::AllReduce | Op::ReduceScatter);
        (is_reduction && self.buckets.is_none() && self.bytes.is_some())
            .then_some((self.group, self.op))
    }
}

impl Ordered {
    fn insert(&mut self, at: Timestamp, number: u64) {
        let key = (at, Reverse(number));
        if self.0.back().is_none_or(|last| *last < key) {
            self.0.push_back(key);
        } else if let Err(place) = self.0.binary_search(&key) {
            self.0.insert(place, key);
        }
    }

    fn remove(&mut self, at: Timestamp, number: u64) {
        let key = (at, Reverse(number));
        if self.0.front() == Some(&key) {
            self.0.pop_front();
        } else if let Ok(place) = self.0.binary_search(&key) {
            self.0.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ordered_by_time() {
        let mut ordered = Ordered::default();
        for (at, number) in [(5, 1), (9, 2), (7, 3), (9, 4), (1, 5)] {
            ordered.insert(Timestamp(at), number);
        }
        ordered.remove(Timestamp(7), 3);
        ordered.remove(Timestamp(7), 3);
        let numbers: Vec<u64> = ordered.0.iter().map(|(_, Reverse(number))| *number).collect();
        assert_eq!(numbers, [5, 1, 4, 2]);
    }
}
