//! Many small collectives, whose overhead takes much of the time.
//!
//! Each call has an overhead, however little it moves. A program that averages its gradients one by
//! one pays it for each parameter. A few small calls per step are normal: only many in a row are
//! reported, and only if they could be one call, since nothing is computed between them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::{Timestamp, Where};

use crate::delays::communication::quantile;
use crate::delays::communication::times::{Timed, Times};
use crate::model::{GroupId, Model};

/// Maximum bytes of a call that counts as small.
const SMALL: u64 = 64 << 10;
/// Bytes of a bucket, large enough to be efficient; DDP's default.
const BUCKET: u64 = 25 << 20;
/// Minimum number of small calls per round of the loop.
const MANY: usize = 16;
/// Minimum number of rounds.
const ROUNDS: usize = 20;
/// Minimum share of the time that the calls take …
const SHARE: f64 = 0.3;
/// … and in nearly every slice of it.
const SHARE_OF_SLICE: f64 = 0.2;
const SLICES: u64 = 8;
const GOOD_SLICES: u64 = 7;
/// Minimum factor in size of a call that shows the cost of data.
const LARGER: u64 = 16;
/// Minimum number of calls of one size to conclude from.
const FEW: usize = 8;

/// Many small collectives in a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Small {
    /// Group of the calls.
    pub group: GroupId,
    /// Operation.
    pub op: Op,
    /// Ranks that make them.
    pub ranks: Vec<u32>,
    /// Lines that make them, most frequent first.
    pub lines: Vec<Arc<Where>>,
    /// Share of the time that they take.
    pub share: f64,
    /// Number of calls per round of the loop.
    pub in_a_round: usize,
    /// Rounds are training steps.
    pub are_steps: bool,
    /// Typical size of one call in bytes.
    pub bytes: u64,
    /// Size of the calls of one round together, in bytes.
    pub together: u64,
    /// Typical duration of one call, from the last arrival on.
    pub each: Duration,
    /// Estimate for calls in buckets; `None`: the cost of data is unknown.
    pub bucketed: Option<Bucketed>,
    /// When it became known.
    pub known_at: Timestamp,
}

/// Estimated cost of the calls of one round if they were combined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucketed {
    /// Number of combined calls …
    pub calls: u64,
    /// … and their duration, based on calls in this group.
    pub take: Duration,
    /// Typical size of those calls in bytes.
    pub seen: u64,
}

/// The share of the time that the latest small calls of a group take.
#[derive(Debug, Default)]
pub(super) struct SmallShare {
    /// Step of the latest call, and its beginning: it may not be over.
    last: Option<(u64, Timestamp)>,
    /// Step and beginning of the call added last.
    before: Option<(u64, Timestamp)>,
    rounds: usize,
    sum: Duration,
    is_much: Option<bool>,
    /// Some belong to no step.
    without_step: bool,
}

impl SmallShare {
    /// Adds the call before those so far. The window is that of [`find`].
    pub(super) fn add(&mut self, timed: &Timed, shortest: Duration) {
        if !is_small(timed.kind.bytes) || self.is_known() {
            return;
        }
        self.without_step |= timed.step == 0;
        let call = (timed.step, timed.took.first);
        let (last, end) = *self.last.get_or_insert(call);
        if self.before.is_none() && last == timed.step {
            self.last = Some(call);
            return;
        }
        if let Some((_, begin)) = self.before.filter(|(step, _)| *step != timed.step) {
            self.rounds += 1;
            let length = end.since(begin);
            if self.rounds >= ROUNDS && length >= shortest {
                let share = self.sum.as_secs_f64() / length.as_secs_f64().max(1e-9);
                self.is_much = Some(share >= SHARE);
            }
        }
        self.sum += timed.took.mean;
        self.before = Some(call);
    }

    /// Whether earlier calls do not matter.
    pub(super) const fn is_known(&self) -> bool {
        self.without_step || self.is_much.is_some()
    }

    /// Whether they take enough of the time, or their rounds are unknown.
    pub(super) fn may_be_much(&self) -> bool {
        self.without_step || self.is_much == Some(true)
    }
}

/// Whether a call with this number of bytes counts as small.
pub(super) fn is_small(bytes: Option<u64>) -> bool {
    bytes.unwrap_or(0) <= SMALL
}

/// Groups in which small collectives take much of the time.
pub(super) fn small(model: &Model, times: &Times) -> Vec<Small> {
    let found = times.reductions.iter().filter_map(|(&(group, op), calls)| {
        let calls: Vec<&Timed> = calls.iter().collect();
        find(model, group, op, &calls)
    });
    found.collect()
}

fn find(model: &Model, group: GroupId, op: Op, all: &[&Timed]) -> Option<Small> {
    let calls: Vec<&Timed> = all.iter().copied().filter(|one| one.bytes() <= SMALL).collect();
    if calls.len() < MANY * ROUNDS {
        return None;
    }
    let are_steps = calls.iter().all(|one| one.step > 0);
    let mut rounds =
        if are_steps { steps(&calls) } else { periods(&calls).or_else(|| bursts(&calls))? };
    // The first round may be incomplete because older calls were dropped; the last one may not be
    // over.
    let next = rounds.pop()?;
    let known_since = calls[rounds.first()?.start].took.first;
    rounds.remove(0);
    let end = calls[next.start].took.first;
    let begins = |round: &Range<usize>| calls[round.start].took.first;
    let shortest = model.timing.small_calls;
    let enough = |latest: &[Range<usize>]| {
        latest.len() >= ROUNDS && end.since(begins(&latest[0])) >= shortest
    };
    let from = (0..rounds.len()).rev().find(|&it| enough(&rounds[it..]))?;
    let rounds = &rounds[from..];
    let window = (begins(&rounds[0]), end);
    let in_a_round = quantile(rounds.iter().map(Range::len), 0.5).filter(|&it| it >= MANY)?;

    let calls = &calls[rounds[0].start..next.start];
    let share = share(calls, window);
    let length = end.since(window.0).as_nanos() as u64 / SLICES;
    let slice = |i: u64| (window.0.0 + length * i, window.0.0 + length * (i + 1));
    let good = (0..SLICES).map(slice).filter(|&(from, to)| {
        let first = calls.partition_point(|one| one.took.first.0 < from);
        let last = calls.partition_point(|one| one.took.first.0 < to);
        let slice = (Timestamp(from), Timestamp(to));
        self::share(&calls[first..last], slice) >= SHARE_OF_SLICE
    });
    if share < SHARE || (good.count() as u64) < GOOD_SLICES || !follow_at_once(calls) {
        return None;
    }
    let each = typical_time(calls)?;
    let bytes = typical_size(calls)?;
    let together = calls.iter().map(|one| one.bytes()).sum::<u64>() / rounds.len() as u64;
    let members = model.group(group).members.keys();
    Some(Small {
        group,
        op,
        ranks: members.copied().collect(),
        lines: lines(calls),
        share,
        in_a_round,
        are_steps,
        bytes,
        together,
        each,
        bucketed: bucketed(all, each, bytes, together),
        known_at: known_since.plus(shortest.max(end.since(window.0))).min(end),
    })
}

/// Rounds: the calls of one step each.
fn steps(calls: &[&Timed]) -> Vec<Range<usize>> {
    split(calls, |one, next| one.step != next.step)
}

/// Rounds by the sequence of sizes, if it is periodic; `None`: it is not, or the period is too
/// short.
fn periods(calls: &[&Timed]) -> Option<Vec<Range<usize>>> {
    // The latest calls suffice; older ones may belong to another phase.
    const LATEST: usize = 16_384;
    let first = calls.len().saturating_sub(LATEST);
    let sizes: Vec<u64> = calls[first..].iter().map(|one| one.bytes()).collect();
    // Lengths of prefixes that recur at each position (the failure function of Knuth, Morris and
    // Pratt).
    let mut again = vec![0; sizes.len()];
    for i in 1..sizes.len() {
        let mut length: usize = again[i - 1];
        while length > 0 && sizes[i] != sizes[length] {
            length = again[length - 1];
        }
        again[i] = length + usize::from(sizes[i] == sizes[length]);
    }
    let period = sizes.len() - again.last()?;
    let rounds = sizes.len() / period.max(1);
    if period < MANY || rounds < ROUNDS {
        return None;
    }
    // A round begins after the longest pause.
    let pause = |at: &usize| {
        let at = first + at;
        pause(calls[at - 1], calls[at])
    };
    let begin = (1..=period).max_by_key(pause)?;
    let begins = (first + begin..calls.len()).step_by(period);
    let ends = (first + begin + period..).step_by(period);
    let range = |(from, to): (usize, usize)| from..to.min(calls.len());
    Some(begins.zip(ends).map(range).collect())
}

/// Rounds by the pauses between them; `None`: they are not rounds of a loop, which makes equally many calls in each. A
/// busy host pauses ranks at any call.
fn bursts(calls: &[&Timed]) -> Option<Vec<Range<usize>>> {
    /// Minimum pause between rounds, absolute and as a multiple of the usual pause.
    const PAUSE: (Duration, u32) = (Duration::from_millis(1), 8);
    let long = PAUSE.0.max(typical_pause(calls)? * PAUSE.1);
    let rounds = split(calls, |one, next| pause(one, next) > long);
    let usual = quantile(rounds.iter().map(Range::len), 0.5)?;
    let alike = rounds.iter().filter(|round| round.len() == usual).count();
    (alike * 2 >= rounds.len()).then_some(rounds)
}

fn split(calls: &[&Timed], is_apart: impl Fn(&Timed, &Timed) -> bool) -> Vec<Range<usize>> {
    let mut rounds = Vec::new();
    let mut start = 0;
    for at in 1..=calls.len() {
        if at == calls.len() || is_apart(calls[at - 1], calls[at]) {
            rounds.push(start..at);
            start = at;
        }
    }
    rounds
}

/// Time between two calls. An asynchronous call counts as over once every rank has issued it.
fn pause(one: &Timed, next: &Timed) -> Duration {
    let over = if one.call.is_async { one.took.last } else { one.took.end };
    next.took.first.since(over)
}

/// Whether hardly anything is computed between the calls, so that they could be one call.
fn follow_at_once(calls: &[&Timed]) -> bool {
    typical_pause(calls) <= typical_time(calls)
}

/// Share of a window that the calls take.
fn share(calls: &[&Timed], (from, to): (Timestamp, Timestamp)) -> f64 {
    let sum: Duration = calls.iter().map(|one| one.took.mean).sum();
    sum.as_secs_f64() / to.since(from).as_secs_f64().max(1e-9)
}

/// Median of the pauses between calls.
fn typical_pause(calls: &[&Timed]) -> Option<Duration> {
    quantile(calls.windows(2).map(|two| pause(two[0], two[1])), 0.5)
}

/// Median of the durations of calls.
fn typical_time(calls: &[&Timed]) -> Option<Duration> {
    quantile(calls.iter().map(|one| one.took.mean), 0.5)
}

/// Median of the sizes of calls in bytes.
fn typical_size(calls: &[&Timed]) -> Option<u64> {
    quantile(calls.iter().map(|one| one.bytes()), 0.5)
}

/// Lines that make at least a tenth of the calls.
fn lines(calls: &[&Timed]) -> Vec<Arc<Where>> {
    let mut counts: BTreeMap<&Arc<Where>, usize> = BTreeMap::new();
    for place in calls.iter().filter_map(|one| one.call.place.as_ref()) {
        *counts.entry(place).or_default() += 1;
    }
    counts.retain(|_, count| *count * 10 >= calls.len());
    let mut lines: Vec<_> = counts.into_iter().collect();
    lines.sort_by_key(|&(place, count)| (std::cmp::Reverse(count), place));
    lines.into_iter().map(|(place, _)| Arc::clone(place)).collect()
}

/// The estimate for buckets, if much larger calls of this kind show the cost of data.
fn bucketed(all: &[&Timed], each: Duration, bytes: u64, together: u64) -> Option<Bucketed> {
    let mut large: BTreeMap<u32, Vec<&Timed>> = BTreeMap::new();
    for &one in all.iter().filter(|it| it.bytes() >= bytes.max(1) * LARGER) {
        large.entry(one.bytes().ilog2()).or_default().push(one);
    }
    let (_, large) = large.into_iter().rev().find(|(_, of)| of.len() >= FEW)?;
    let (moved, takes) = (typical_size(&large)?, typical_time(&large)?);
    let a_byte = takes.saturating_sub(each).as_secs_f64() / (moved - bytes) as f64;
    let calls = together.div_ceil(BUCKET).max(1);
    let data = Duration::from_secs_f64(a_byte * together as f64);
    let number = u32::try_from(calls).ok()?;
    Some(Bucketed { calls, take: each * number + data, seen: moved })
}
