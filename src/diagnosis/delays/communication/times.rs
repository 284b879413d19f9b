//! Durations of the latest collectives that may take much of the time.
//!
//! They follow from the encounters of the model alone. Most evaluations need only sums: a first pass over the
//! encounters decides which collectives are examined, and a second one collects them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use crate::delays::clocks::Clocks;
use crate::delays::communication::slow::SlowShare;
use crate::delays::communication::small::{self, SmallShare};
use crate::delays::communication::{CollectiveTime, collective_time, holds_all};
use crate::input::event::Call;
use crate::model::{Block, Buckets, GroupId, Model};

/// Collectives since a time, outside of marked phases, that may take much of it.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// Those that recur, by their last arrivals.
    pub(super) by_kind: BTreeMap<Kind, Vec<Timed>>,
    /// Those that can be combined with others, by their first arrivals.
    pub(super) reductions: BTreeMap<(GroupId, Op), Vec<Timed>>,
}

/// A collective with its duration.
#[derive(Clone, Debug)]
pub(super) struct Timed {
    pub(super) took: CollectiveTime,
    /// The call, or an earlier one like it.
    pub(super) call: Arc<Call>,
    /// Training step in which it was issued; 0: before the first.
    pub(super) step: u64,
    pub(super) kind: Kind,
}

/// Identifies recurrences of one call, or of the same buckets of DDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    pub(super) group: GroupId,
    pub(super) op: Op,
    pub(super) bytes: Option<u64>,
    pub(super) buckets: Option<Buckets>,
}

/// Collectives outside of marked phases that began at `begin` or later.
struct Evaluation<'a> {
    model: &'a Model,
    clocks: Clocks<'a>,
    begin: Timestamp,
}

impl Timed {
    /// Bytes that each rank contributes; 0: unknown.
    pub(super) fn bytes(&self) -> u64 {
        self.kind.bytes.unwrap_or(0)
    }
}

impl Times {
    /// The collectives that began at `begin` or later.
    pub(super) fn since(model: &Model, begin: Timestamp) -> Self {
        let evaluation = Evaluation { model, clocks: Clocks::new(model), begin };
        let mut kinds: BTreeMap<Kind, SlowShare> = BTreeMap::new();
        let mut groups: BTreeMap<(GroupId, Op), SmallShare> = BTreeMap::new();
        for block in model.arrivals.blocks() {
            let is_open = |kind: &Kind| {
                let share = kind.reduction().filter(|_| small::is_small(kind.bytes));
                !kinds.get(kind).is_some_and(SlowShare::is_known)
                    || share.is_some_and(|it| !groups.get(&it).is_some_and(SmallShare::is_known))
            };
            for timed in evaluation.collectives(block, is_open).into_iter().rev() {
                kinds.entry(timed.kind).or_default().add(model, &timed.took);
                if let Some(reduction) = timed.kind.reduction() {
                    groups.entry(reduction).or_default().add(&timed, model.timing.small_calls);
                }
            }
        }
        kinds.retain(|_, share| share.is_much());
        groups.retain(|_, share| share.may_be_much());
        let reduction = |kind: &Kind| kind.reduction().filter(|it| groups.contains_key(it));
        let is_much = |kind: &Kind| kinds.contains_key(kind) || reduction(kind).is_some();
        let mut times = Self::default();
        if kinds.is_empty() && groups.is_empty() {
            return times;
        }
        let blocks = model.arrivals.blocks();
        for timed in blocks.flat_map(|it| evaluation.collectives(it, is_much).into_iter().rev()) {
            if let Some(reduction) = reduction(&timed.kind) {
                times.reductions.entry(reduction).or_default().push(timed.clone());
            }
            if kinds.contains_key(&timed.kind) {
                times.by_kind.entry(timed.kind).or_default().push(timed);
            }
        }
        // Of several at one time, the latest comes first.
        times.by_kind.values_mut().for_each(|of| of.sort_by_key(|it| it.took.last));
        times.reductions.values_mut().for_each(|of| of.sort_by_key(|it| it.took.first));
        times
    }
}

impl Evaluation<'_> {
    /// The collectives of a block that are of these kinds, and possibly others.
    fn collectives(&self, block: Block<'_>, is_wanted: impl Fn(&Kind) -> bool) -> Vec<Timed> {
        let Self { model, clocks, begin } = self;
        let is_timed = |group: GroupId, call: &Call| {
            call.phase.is_none() && holds_all(model.group(group), call)
        };
        let is_wanted = |group: GroupId, call: &Call, buckets: Option<Buckets>| {
            // The last of DDP's buckets stands for all of them.
            (!call.hidden || buckets.is_some())
                && is_timed(group, call)
                && is_wanted(&Kind::from_call(group, call, buckets))
        };
        let mut collectives = Vec::new();
        block.visit(is_wanted, |completed| {
            if !is_timed(completed.group, &completed.call) {
                return;
            }
            let took = collective_time(clocks, completed).filter(|it| it.first >= *begin);
            collectives.extend(took.map(|took| {
                let call = Arc::clone(&completed.call);
                let kind = Kind::from_call(completed.group, &call, completed.buckets());
                Timed { took, call, step: completed.step, kind }
            }));
        });
        collectives
    }
}

impl Kind {
    fn from_call(group: GroupId, call: &Call, buckets: Option<Buckets>) -> Self {
        let bytes = buckets.map_or_else(|| call.bytes(), |it| Some(it.bytes));
        Self { group, op: call.op, bytes, buckets }
    }

    /// If these are reductions of known size that can be combined with others: with which.
    fn reduction(&self) -> Option<(GroupId, Op)> {
        let is_reduction = matches!(self.op, Op::AllReduce | Op::ReduceScatter);
        (is_reduction && self.buckets.is_none() && self.bytes.is_some())
            .then_some((self.group, self.op))
    }
}
