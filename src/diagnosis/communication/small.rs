//! Collectives that are small and many, so that most of the time goes into making them.
//!
//! A call takes a time of its own, however little it moves, and a program that averages its gradients one by
//! one pays it for each parameter. A few small calls a step are what every program makes: told is only of
//! many in a row, and of those that could have been one, since nothing is computed between them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::{Timestamp, Where};

use super::{Took, quantile, took};
use crate::diagnosis::event::Call;
use crate::diagnosis::lateness;
use crate::diagnosis::model::{GroupId, Model};

/// A call that moves no more is paid for because it is made.
const SMALL: u64 = 64 << 10;
/// As much as this in one call is sent as well as can be: DDP's buckets are as large.
const BUCKET: u64 = 25 << 20;
/// So many in a round of the loop are many.
const MANY: usize = 16;
/// Rounds it has to be so in.
const ROUNDS: usize = 20;
/// The share of the time that they take, …
const SHARE: f64 = 0.3;
/// … and take in nearly every slice of it.
const SHARE_OF_SLICE: f64 = 0.2;
const SLICES: u64 = 8;
const GOOD_SLICES: u64 = 7;
/// A call shows what data costs if it moves so many times as much.
const LARGER: u64 = 16;
/// Calls of one size, at least, of which something is concluded.
const FEW: usize = 8;

/// Many small collectives, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Small {
    /// Their group.
    pub group: GroupId,
    /// What they do.
    pub op: Op,
    /// Who makes them.
    pub ranks: Vec<u32>,
    /// The lines that make them, whoever makes most of them first.
    pub lines: Vec<Arc<Where>>,
    /// The share of the time that goes into them.
    pub share: f64,
    /// How many there are in a round of the loop.
    pub in_a_round: usize,
    /// Rounds are the training steps that are known.
    pub are_steps: bool,
    /// How much one of them moves, as a rule.
    pub bytes: u64,
    /// How much those of a round move together.
    pub together: u64,
    /// What one of them takes from when all ranks have come to it, as a rule.
    pub each: Duration,
    /// What they would take in buckets; `None`: it is not seen what data costs.
    pub bucketed: Option<Bucketed>,
    /// When that was known.
    pub known_at: Timestamp,
}

/// What the calls of a round would take if they were put together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucketed {
    /// As so many calls …
    pub calls: u64,
    /// … they would take so long, where calls of this group do.
    pub take: Duration,
}

/// A call, as far as it matters here.
#[derive(Debug)]
struct One {
    took: Took,
    bytes: u64,
    step: u64,
    is_async: bool,
    place: Option<Arc<Where>>,
}

/// Where small collectives take much of the time, group by group.
#[must_use]
pub fn small(model: &Model) -> Vec<Small> {
    let Some(begin) = lateness::warmed_up(model) else {
        return Vec::new();
    };
    let mut calls: BTreeMap<(GroupId, Op), Vec<One>> = BTreeMap::new();
    for encounter in model.arrivals.latest() {
        let call = &encounter.call;
        if encounter.buckets.is_some() || !may_be_bucketed(call) {
            continue;
        }
        let (Some(took), Some(bytes)) = (took(model, encounter), call.bytes()) else {
            continue;
        };
        if took.first >= begin {
            let of = calls.entry((encounter.group, call.op)).or_default();
            of.push(One {
                took,
                bytes,
                step: call.step,
                is_async: call.is_async,
                place: call.place.clone(),
            });
        }
    }
    let found = calls.into_iter().filter_map(|((group, op), mut calls)| {
        calls.sort_by_key(|one| one.took.first);
        find(model, group, op, &calls)
    });
    found.collect()
}

/// Whether it reduces what may be put together with others' data, in no phase that the program marked.
fn may_be_bucketed(call: &Call) -> bool {
    matches!(call.op, Op::AllReduce | Op::ReduceScatter) && call.phase.is_none()
}

fn find(model: &Model, group: GroupId, op: Op, all: &[One]) -> Option<Small> {
    let calls: Vec<&One> = all.iter().filter(|one| one.bytes <= SMALL).collect();
    if calls.len() < MANY * ROUNDS {
        return None;
    }
    let are_steps = calls.iter().all(|one| one.step > 0);
    let mut rounds = if are_steps {
        steps(&calls)
    } else {
        periods(&calls).or_else(|| bursts(&calls))?
    };
    // Neither the first round is whole, of which older calls may be forgotten, nor the last.
    let next = rounds.pop()?;
    let known_since = calls[rounds.first()?.start].took.first;
    rounds.remove(0);
    let end = calls[next.start].took.first;
    let begins = |round: &std::ops::Range<usize>| calls[round.start].took.first;
    let shortest = model.timing.small_calls;
    let enough = |latest: &[std::ops::Range<usize>]| {
        latest.len() >= ROUNDS && end.since(begins(&latest[0])) >= shortest
    };
    let from = (0..rounds.len()).rev().find(|&it| enough(&rounds[it..]))?;
    let rounds = &rounds[from..];
    let window = (begins(&rounds[0]), end);
    let mut sizes: Vec<usize> = rounds.iter().map(|round| round.len()).collect();
    let in_a_round = quantile(&mut sizes, 0.5).filter(|&it| it >= MANY)?;

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
    let each = quantile(&mut means(calls.iter().copied()), 0.5)?;
    let bytes = quantile(&mut sizes_of(calls), 0.5)?;
    let together = calls.iter().map(|one| one.bytes).sum::<u64>() / rounds.len() as u64;
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

/// Calls of one step each.
fn steps(calls: &[&One]) -> Vec<std::ops::Range<usize>> {
    split(calls, |one, next| one.step != next.step)
}

/// Rounds by what they move: the same sizes in the same order, again and again; `None`: they do not, or all
/// are alike.
fn periods(calls: &[&One]) -> Option<Vec<std::ops::Range<usize>>> {
    // The latest are enough to know it, and older ones may be another phase's.
    const LATEST: usize = 16_384;
    let first = calls.len().saturating_sub(LATEST);
    let sizes: Vec<u64> = calls[first..].iter().map(|one| one.bytes).collect();
    // How much of the beginning stands again at the end: what Knuth, Morris and Pratt search with.
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

/// Rounds by the pauses between them.
fn bursts(calls: &[&One]) -> Option<Vec<std::ops::Range<usize>>> {
    /// What is a pause at least, and how many times as long as what lies between two calls of a burst.
    const PAUSE: (Duration, u32) = (Duration::from_millis(1), 8);
    let pauses = calls.windows(2).map(|two| pause(two[0], two[1]));
    let mut pauses: Vec<Duration> = pauses.collect();
    let usual = quantile(&mut pauses, 0.5)?;
    let long = PAUSE.0.max(usual * PAUSE.1);
    Some(split(calls, |one, next| pause(one, next) > long))
}

fn split(calls: &[&One], is_apart: impl Fn(&One, &One) -> bool) -> Vec<std::ops::Range<usize>> {
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

/// What lies between two calls. One that is not waited for at once is over when it was made.
fn pause(one: &One, next: &One) -> Duration {
    let over = if one.is_async {
        one.took.last
    } else {
        one.took.end
    };
    next.took.first.since(over)
}

/// Whether nothing much is computed between the calls: then there could have been one instead.
fn follow_at_once(calls: &[&One]) -> bool {
    let pauses = calls.windows(2).map(|two| pause(two[0], two[1]));
    let mut pauses: Vec<Duration> = pauses.collect();
    let each = quantile(&mut means(calls.iter().copied()), 0.5);
    quantile(&mut pauses, 0.5) <= each
}

/// The share of a time that they take.
fn share(calls: &[&One], (from, to): (Timestamp, Timestamp)) -> f64 {
    let sum: Duration = calls.iter().map(|one| one.took.mean).sum();
    sum.as_secs_f64() / to.since(from).as_secs_f64().max(1e-9)
}

fn means<'a>(calls: impl Iterator<Item = &'a One>) -> Vec<Duration> {
    calls.map(|one| one.took.mean).collect()
}

fn sizes_of(calls: &[&One]) -> Vec<u64> {
    calls.iter().map(|one| one.bytes).collect()
}

/// The lines of those calls, all that make a tenth of them.
fn lines(calls: &[&One]) -> Vec<Arc<Where>> {
    let mut counts: BTreeMap<&Arc<Where>, usize> = BTreeMap::new();
    for place in calls.iter().filter_map(|one| one.place.as_ref()) {
        *counts.entry(place).or_default() += 1;
    }
    counts.retain(|_, count| *count * 10 >= calls.len());
    let mut lines: Vec<_> = counts.into_iter().collect();
    lines.sort_by_key(|&(place, count)| (std::cmp::Reverse(count), place));
    lines
        .into_iter()
        .map(|(place, _)| Arc::clone(place))
        .collect()
}

/// What data costs is seen where calls of this kind move much more than these.
fn bucketed(all: &[One], each: Duration, bytes: u64, together: u64) -> Option<Bucketed> {
    let mut large: BTreeMap<u32, Vec<&One>> = BTreeMap::new();
    for one in all.iter().filter(|it| it.bytes >= bytes.max(1) * LARGER) {
        large.entry(one.bytes.ilog2()).or_default().push(one);
    }
    let (_, large) = large.into_iter().rev().find(|(_, of)| of.len() >= FEW)?;
    let moved = quantile(&mut sizes_of(&large), 0.5)?;
    let takes = quantile(&mut means(large.into_iter()), 0.5)?;
    let a_byte = takes.saturating_sub(each).as_secs_f64() / (moved - bytes) as f64;
    let calls = together.div_ceil(BUCKET).max(1);
    let data = Duration::from_secs_f64(a_byte * together as f64);
    let number = u32::try_from(calls).ok()?;
    Some(Bucketed {
        calls,
        take: each * number + data,
    })
}
