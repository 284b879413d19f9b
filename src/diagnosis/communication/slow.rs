//! Collectives that have become slow: all ranks come to them, and then they take many times as long as they
//! did before.
//!
//! A host that is busy makes a collective slow as well, and everything else with it. So it is told only
//! where the time was surely not lost on a host: the threads of the ranks had their processors, no
//! hypervisor gave those to others, no memory was wanting, and what ranks do between their calls takes as
//! long as ever. Where one of these is not known, nothing is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use super::{Took, quantile, took};
use crate::diagnosis::event::{Call, SchedulingSample};
use crate::diagnosis::lateness;
use crate::diagnosis::model::{Buckets, Encounter, GroupId, Model, Process};

/// Minimum number of calls in a stretch.
const CALLS: usize = 20;
/// How many times as long calls have to take: nearly all of those now, as nearly all of those before.
const SLOWER: u32 = 3;
/// What is nearly all.
const NEARLY_ALL: f64 = 0.8;
/// What they take longer, at least.
const LONGER: Duration = Duration::from_millis(2);
/// The share of the time that is lost by it.
const SHARE: f64 = 0.3;
/// The part of that which the host may make up for.
const HOST: f64 = 0.5;
/// A sum over ranks of what hosts keep from them is one over so many, the worst.
const WORST: usize = 4;
/// Ranks whose own work is looked at: it is a matter of all hosts or of one, not of many.
const LOOKED_AT: usize = 64;
/// Thousands of pages a second that have to be read from a disk for a process that swaps.
const PAGING: f64 = 0.1;
/// How many times as long what lies between two calls may take as before, …
const BETWEEN: f64 = 1.5;
/// … and that part of what the calls take longer beside it.
const BETWEEN_BESIDE: f64 = 0.2;

/// A collective that has become slow.
#[derive(Clone, Debug, PartialEq)]
pub struct Slow {
    /// Its group.
    pub group: GroupId,
    /// One of the calls.
    pub call: Arc<Call>,
    /// Who makes them.
    pub ranks: Vec<u32>,
    /// How much each of them gives, where that is known.
    pub bytes: Option<u64>,
    /// It stands for so many of DDP's, which waits for them together.
    pub buckets: Option<u32>,
    /// What it takes from when all ranks have come, as a rule: now, …
    pub now: Duration,
    /// … and before.
    pub before: Duration,
    /// The share of the time that is lost by it.
    pub share: f64,
    /// The share of the time that their hosts kept the ranks from running.
    pub kept: f64,
    /// How many other kinds of calls, by group and size, have become slow as well.
    pub others: usize,
    /// Since when it is so, at least.
    pub since: Timestamp,
    /// When that was known.
    pub known_at: Timestamp,
}

/// What is one call, again and again, or are the same buckets of DDP's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    group: GroupId,
    op: Op,
    bytes: Option<u64>,
    buckets: Option<Buckets>,
}

/// A call, and what it took.
type Timed = (Took, Arc<Call>);

/// Some calls of one kind, and the time in which they were made.
struct Stretch<'a> {
    calls: &'a [Timed],
    from: Timestamp,
    to: Timestamp,
}

/// The collective that has become slow and takes most time.
#[must_use]
pub fn slow(model: &Model) -> Option<Slow> {
    let begin = lateness::warmed_up(model)?;
    let mut kinds: BTreeMap<Kind, Vec<Timed>> = BTreeMap::new();
    for encounter in model.arrivals.latest() {
        let call = &encounter.call;
        let took = took(model, encounter).filter(|took| took.first >= begin);
        if let Some(took) = took.filter(|_| call.phase.is_none()) {
            let kind = Kind {
                group: encounter.group,
                op: call.op,
                bytes: match encounter.buckets {
                    Some(buckets) => Some(buckets.bytes),
                    None => call.bytes(),
                },
                buckets: encounter.buckets,
            };
            kinds
                .entry(kind)
                .or_default()
                .push((took, Arc::clone(call)));
        }
    }
    let mut found: Vec<Slow> = Vec::new();
    for (kind, mut calls) in kinds {
        calls.sort_by_key(|(took, _)| took.last);
        found.extend(find(model, kind, &calls));
    }
    let others = found.len().saturating_sub(1);
    let worst = found
        .into_iter()
        .max_by(|a, b| a.share.total_cmp(&b.share))?;
    Some(Slow { others, ..worst })
}

fn find(model: &Model, kind: Kind, calls: &[Timed]) -> Option<Slow> {
    let timing = &model.timing;
    let (now, rest) = latest(calls, timing.slowdown)?;
    // The best time there was: what is slow now has perhaps been so for long.
    let mut best: Option<(Duration, Stretch<'_>)> = None;
    let mut since = now.from;
    let mut is_so = true;
    let fastest = least(now.calls, 1.0 - NEARLY_ALL)?;
    let mut left = rest;
    while let Some((stretch, rest)) = latest(left, timing.slowdown_baseline) {
        left = rest;
        let slowest = least(stretch.calls, NEARLY_ALL)?;
        is_so &= least(stretch.calls, 1.0 - NEARLY_ALL)? * 2 > fastest;
        if is_so {
            since = stretch.from;
        }
        if best.as_ref().is_none_or(|(least, _)| slowest < *least) {
            best = Some((slowest, stretch));
        }
    }
    let (slowest, before) = best?;
    if fastest < slowest * SLOWER {
        return None;
    }
    let (typical, was) = (least(now.calls, 0.5)?, least(before.calls, 0.5)?);
    let longer = typical.saturating_sub(was);
    let lost = now.calls.iter().map(|(took, _)| took.least);
    let lost: Duration = lost.map(|least| least.saturating_sub(was)).sum();
    let share = lost.as_secs_f64() / now.to.since(now.from).as_secs_f64().max(1e-9);
    if longer < LONGER || share < SHARE {
        return None;
    }
    let members = &model.group(kind.group).members;
    let ranks: Vec<u32> = members.keys().copied().collect();
    let own_work_is_as_ever = ranks.iter().take(LOOKED_AT).all(|&rank| {
        let (now, was) = (between(model, rank, &now), between(model, rank, &before));
        now <= was * BETWEEN + longer.as_secs_f64() * BETWEEN_BESIDE
    });
    let kept = kept(model, &ranks, (now.from, now.to))?;
    if !own_work_is_as_ever || kept > HOST * share {
        return None;
    }
    Some(Slow {
        group: kind.group,
        call: Arc::clone(&now.calls.last()?.1),
        ranks,
        bytes: kind.bytes,
        buckets: kind.buckets.map(|buckets| buckets.calls),
        now: typical,
        before: was,
        share,
        kept,
        others: 0,
        since,
        known_at: since.plus(timing.slowdown).min(now.to),
    })
}

/// The latest calls, as many as it takes to be enough and last so long; and those before them.
fn latest(calls: &[Timed], lasting: Duration) -> Option<(Stretch<'_>, &[Timed])> {
    let to = calls.last()?.0.end;
    let most = calls.len().checked_sub(CALLS)?;
    let late = calls.partition_point(|(took, _)| took.last.plus(lasting) <= to);
    let at = late.checked_sub(1)?.min(most);
    let (before, calls) = calls.split_at(at);
    let from = calls.first()?.0.last;
    Some((Stretch { calls, from, to }, before))
}

/// What so large a part of them took no longer than, from when all ranks had come.
fn least(calls: &[Timed], part: f64) -> Option<Duration> {
    let mut took: Vec<Duration> = calls.iter().map(|(took, _)| took.least).collect();
    quantile(&mut took, part)
}

/// How long a rank was in no call at all, for each of these, in seconds.
fn between(model: &Model, rank: u32, stretch: &Stretch<'_>) -> f64 {
    let (from, to) = (stretch.from, stretch.to);
    let mut inside: Vec<(Timestamp, Timestamp)> = Vec::new();
    for encounter in model.arrivals.latest() {
        inside.extend(is_inside(encounter, rank).filter(|it| it.0 < to && from < it.1));
    }
    inside.sort_unstable();
    let (mut at, mut sum) = (from, Duration::ZERO);
    for (begin, end) in inside {
        sum += begin.min(to).since(at);
        at = at.max(end);
    }
    (sum + to.since(at)).as_secs_f64() / stretch.calls.len() as f64
}

/// From when until when a rank was in a call.
fn is_inside(encounter: &Encounter, rank: u32) -> impl Iterator<Item = (Timestamp, Timestamp)> {
    let came = encounter.came.iter().filter(move |came| came.rank == rank);
    came.filter_map(|came| {
        let is_apart = came.is_async || came.hidden;
        let begins = if is_apart { came.waits? } else { came.at };
        Some((begins, came.until?))
    })
}

/// The share of the time that hosts kept those ranks from running who fared worst, together; `None`: that was
/// not seen of all.
fn kept(model: &Model, ranks: &[u32], window: (Timestamp, Timestamp)) -> Option<f64> {
    let mut kept = Vec::new();
    for &rank in ranks {
        kept.push(kept_from_running(model.process_of(rank)?, window)?);
    }
    kept.sort_by(f64::total_cmp);
    Some(kept.iter().rev().take(WORST).sum())
}

fn kept_from_running(process: &Process, (from, to): (Timestamp, Timestamp)) -> Option<f64> {
    let share = |of: fn(&SchedulingSample) -> Option<u32>| process.pace.share(of, from, to);
    // What all its threads waited for together says most; where it is not known, that anybody did.
    let queued = share(|it| it.threads_queued_permille).or_else(|| share(|it| it.cpu_pressure))?;
    let stolen = share(|it| it.stolen_permille)?;
    let throttled = share(|it| it.throttled_permille).unwrap_or(0.0);
    let memory = share(|it| it.memory_pressure).unwrap_or(0.0);
    let paging = share(|it| it.major_faults).unwrap_or(0.0);
    let paging = if paging >= PAGING { 1.0 } else { 0.0 };
    Some(queued + stolen + throttled + memory + paging)
}
