//! Collectives that have become slow: after the arrival of all ranks they take many times as long
//! as before.
//!
//! A busy host slows down collectives as well, along with everything else. A slow collective is
//! reported only if the time was certainly not lost on a host: threads had their processors, no
//! hypervisor took these away, memory was not short, and the work between calls takes no longer
//! than before. If any of this is unknown, nothing is reported.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use crate::delays::communication::times::{Kind, Timed, Times};
use crate::delays::communication::{CollectiveTime, quantile};
use crate::input::event::Call;
use crate::model::{Arrival, CompletedCall, GroupId, Model, Process, Quantity};

/// Minimum number of calls in a stretch.
const CALLS: usize = 20;
/// Minimum factor by which nearly all current calls take longer than nearly all earlier ones.
const SLOWER: u32 = 3;
/// The part of the calls that counts as nearly all.
const NEARLY_ALL: f64 = 0.8;
/// Minimum increase of the duration.
const LONGER: Duration = Duration::from_millis(2);
/// Maximum number of kinds of calls, those that lose the most time, for which the work between calls is examined.
const MAX_KINDS: usize = 16;
/// Minimum share of the time that is lost.
const SHARE: f64 = 0.3;
/// Maximum part of the loss that hosts may account for.
const HOST: f64 = 0.5;
/// Delays by hosts are summed over this many ranks, those with the most.
const WORST: usize = 4;
/// Number of ranks whose own work is examined: it changes on whole hosts, not on a few ranks.
const LOOKED_AT: usize = 64;
/// Thousands of pages per second read from disk for a process that swaps.
const PAGING: f64 = 0.1;
/// Maximum factor by which the work between two calls may take longer than before …
const BETWEEN: f64 = 1.5;
/// … plus this part of the increase of the calls themselves.
const BETWEEN_BESIDE: f64 = 0.2;

/// A collective that has become slow.
#[derive(Clone, Debug, PartialEq)]
pub struct Slow {
    /// Group of the calls.
    pub group: GroupId,
    /// One of the calls.
    pub call: Arc<Call>,
    /// Ranks that make them.
    pub ranks: Vec<u32>,
    /// Bytes that each rank contributes, if known.
    pub bytes: Option<u64>,
    /// Number of DDP's buckets that it stands for, which DDP waits for together.
    pub buckets: Option<u32>,
    /// Typical duration from the last arrival on: now …
    pub now: Duration,
    /// … and before.
    pub before: Duration,
    /// Share of the time that is lost.
    pub share: f64,
    /// Share of the time in which hosts kept ranks from running.
    pub kept: f64,
    /// Number of other kinds of calls, by group and size, that have become slow as well.
    pub others: usize,
    /// Start of the slowdown, at the latest.
    pub since: Timestamp,
    /// When the slowdown became known.
    pub known_at: Timestamp,
}

/// Consecutive calls of one kind, and the time in which they were made.
struct Stretch<'a> {
    calls: &'a [&'a Timed],
    window: Window,
}

/// The time in which a number of calls were made.
#[derive(Clone, Copy)]
struct Window {
    calls: usize,
    from: Timestamp,
    to: Timestamp,
}

/// A collective that takes longer than before, whether or not a host is the reason.
struct Longer {
    slow: Slow,
    by: Duration,
    now: Window,
    before: Window,
}

/// The share of the time that the latest calls of a kind take.
#[derive(Debug, Default)]
pub(super) struct SlowShare {
    /// Number of calls, up to the end of the latest, and their sum.
    number: usize,
    to: Timestamp,
    lost: Duration,
    is_much: Option<bool>,
}

impl SlowShare {
    /// Adds the call before those so far.
    pub(super) fn add(&mut self, model: &Model, took: &CollectiveTime) {
        if self.number == 0 {
            self.to = took.end;
        }
        self.number += 1;
        self.lost += took.least;
        let is_stretch = self.number >= CALLS && took.last.plus(model.timing.slowdown) <= self.to;
        if is_stretch && self.is_much.is_none() {
            let seen = model.gaps.seen_for(took.last, self.to).as_secs_f64();
            self.is_much = Some(self.lost.as_secs_f64() / seen.max(1e-9) >= SHARE);
        }
    }

    /// Whether earlier calls do not matter.
    pub(super) const fn is_known(&self) -> bool {
        self.is_much.is_some()
    }

    /// Whether they take enough of the time to be reported even if they took none before. The current
    /// stretch of calls is that of [`latest`].
    pub(super) fn is_much(&self) -> bool {
        self.is_much == Some(true)
    }
}

/// The collective that has become slow and costs the most time.
pub(super) fn slow(model: &Model, times: &Times) -> Option<Slow> {
    let slower = times.by_kind.iter().filter_map(|(kind, calls)| {
        let calls: Vec<&Timed> = calls.iter().collect();
        find(model, *kind, &calls)
    });
    let mut found: Vec<Longer> = slower.collect();
    found.sort_by(|a, b| a.slow.share.total_cmp(&b.slow.share));
    let mut worst =
        found.into_iter().rev().take(MAX_KINDS).filter_map(|it| it.unless_hosts_explain(model));
    let slow = worst.next()?;
    Some(Slow { others: worst.count(), ..slow })
}

fn find(model: &Model, kind: Kind, calls: &[&Timed]) -> Option<Longer> {
    let timing = &model.timing;
    let (now, rest) = latest(calls, timing.slowdown)?;
    // Compare with the best time so far: calls may have been slow for long.
    let mut best: Option<(Duration, Stretch<'_>)> = None;
    let mut since = now.window.from;
    let mut is_so = true;
    let fastest = least(now.calls, 1.0 - NEARLY_ALL)?;
    let mut left = rest;
    while let Some((stretch, rest)) = latest(left, timing.slowdown_baseline) {
        left = rest;
        let slowest = least(stretch.calls, NEARLY_ALL)?;
        is_so &= least(stretch.calls, 1.0 - NEARLY_ALL)? * 2 > fastest;
        if is_so {
            since = stretch.window.from;
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
    let lost: Duration =
        now.calls.iter().map(|it| it.took.least).map(|least| least.saturating_sub(was)).sum();
    let Window { from, to, .. } = now.window;
    let seen = model.gaps.seen_for(from, to).as_secs_f64();
    let share = lost.as_secs_f64() / seen.max(1e-9);
    if longer < LONGER || share < SHARE {
        return None;
    }
    let members = &model.group(kind.group).members;
    let slow = Slow {
        group: kind.group,
        call: Arc::clone(&now.calls.last()?.call),
        ranks: members.keys().copied().collect(),
        bytes: kind.bytes,
        buckets: kind.buckets.map(|buckets| buckets.calls),
        now: typical,
        before: was,
        share,
        kept: 0.0,
        others: 0,
        since,
        known_at: since.plus(timing.slowdown).min(to),
    };
    Some(Longer { slow, by: longer, now: now.window, before: before.window })
}

impl Longer {
    /// The collective, if the time was certainly not lost on a host.
    fn unless_hosts_explain(self, model: &Model) -> Option<Slow> {
        let Self { slow, by, now, before } = self;
        let some = &slow.ranks[..slow.ranks.len().min(LOOKED_AT)];
        let mut own_work = between(model, some, now).into_iter().zip(between(model, some, before));
        let own_work_is_as_ever =
            own_work.all(|(now, was)| now <= was * BETWEEN + by.as_secs_f64() * BETWEEN_BESIDE);
        let kept = kept(model, &slow.ranks, (now.from, now.to))?;
        (own_work_is_as_ever && kept <= HOST * slow.share).then_some(Slow { kept, ..slow })
    }
}

/// The latest calls that are enough and last for at least `lasting`, and the calls before them.
fn latest<'a>(calls: &'a [&'a Timed], lasting: Duration) -> Option<(Stretch<'a>, &'a [&'a Timed])> {
    let to = calls.last()?.took.end;
    let most = calls.len().checked_sub(CALLS)?;
    let late = calls.partition_point(|it| it.took.last.plus(lasting) <= to);
    let at = late.checked_sub(1)?.min(most);
    let (before, calls) = calls.split_at(at);
    let from = calls.first()?.took.last;
    Some((Stretch { calls, window: Window { calls: calls.len(), from, to } }, before))
}

/// Quantile of the durations of these calls, from the last arrival on.
fn least(calls: &[&Timed], part: f64) -> Option<Duration> {
    quantile(calls.iter().map(|it| it.took.least), part)
}

/// Mean time between these calls in which each of the ranks was in no call, in seconds.
fn between(model: &Model, ranks: &[u32], window: Window) -> Vec<f64> {
    let Window { calls, from, to } = window;
    let mut inside: Vec<Vec<(Timestamp, Timestamp)>> = vec![Vec::new(); ranks.len()];
    let mut add = |completed: &CompletedCall| {
        for arrival in completed.arrivals.iter() {
            if let Ok(place) = ranks.binary_search(&arrival.rank) {
                inside[place].extend(is_inside(&arrival).filter(|it| it.0 < to && from < it.1));
            }
        }
    };
    for block in model.arrivals.within((from, to)) {
        block.visit(|_, _, _| true, &mut add);
    }
    let outside = inside.into_iter().map(|mut inside| {
        inside.sort_unstable();
        let (mut at, mut sum) = (from, Duration::ZERO);
        for (begin, end) in inside {
            sum += model.gaps.seen_for(at, begin.min(to));
            at = at.max(end);
        }
        (sum + model.gaps.seen_for(at, to)).as_secs_f64() / calls as f64
    });
    outside.collect()
}

/// Start and end of the call of a rank, or of its wait.
fn is_inside(arrival: &Arrival) -> Option<(Timestamp, Timestamp)> {
    let is_apart = arrival.is_async || arrival.hidden;
    let begins = if is_apart { arrival.waits? } else { arrival.at };
    Some((begins, arrival.until?))
}

/// Sum of the shares of time in which hosts kept the worst-off ranks from running; `None`: not
/// known for all ranks.
fn kept(model: &Model, ranks: &[u32], window: (Timestamp, Timestamp)) -> Option<f64> {
    let mut kept: Vec<f64> = ranks
        .iter()
        .map(|&rank| kept_from_running(model.process_of(rank)?, window))
        .collect::<Option<_>>()?;
    kept.sort_by(f64::total_cmp);
    Some(kept.iter().rev().take(WORST).sum())
}

fn kept_from_running(process: &Process, (from, to): (Timestamp, Timestamp)) -> Option<f64> {
    let share = |of: Quantity| process.pace.share(of, from, to);
    // The waits of all its threads are the best measure; without them, those of anything on the
    // host.
    let queued = share(Quantity::ThreadsQueued).or_else(|| share(Quantity::CpuPressure))?;
    let stolen = share(Quantity::Stolen)?;
    let throttled = share(Quantity::Throttled).unwrap_or(0.0);
    let memory = share(Quantity::MemoryPressure).unwrap_or(0.0);
    let paging = if share(Quantity::MajorFaults).unwrap_or(0.0) >= PAGING { 1.0 } else { 0.0 };
    Some(queued + stolen + throttled + memory + paging)
}
