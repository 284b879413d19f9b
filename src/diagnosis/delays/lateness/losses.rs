//! The time that ranks lost by waiting for one another, and who kept them waiting.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use std::{mem, ptr};

use ddp_doctor_proto::report::Timestamp;

use super::{LostTime, MIN_SLICES, SHARE_OF_SLICE, Slice, Straggler, Why, episode, why};
use crate::model::{CompletedCall, Model};

/// Minimum number of rounds after a calm time …
const AFTER_CALM: f64 = 3.0;
/// … from the beginning of the job …
const FROM_THE_BEGINNING: f64 = 6.0;
/// … and otherwise.
const OTHERWISE: f64 = 20.0;
/// Tolerance: an effective number of rounds is a little less than their number.
const ROUNDING: f64 = 0.75;
/// Minimum share of their time that the others lose by waiting for a straggler …
const SHARE: f64 = 0.15;
/// … and where fewer rounds suffice.
const LARGE_SHARE: f64 = 0.25;
/// Minimum share of the loss that is due to the straggler …
const DOMINANCE: f64 = 0.8;
/// … and in a single slice.
const DOMINANCE_OF_SLICE: f64 = 0.7;
/// Minimum number of waits to detect two ranks that take turns …
const ROUNDS_IN_TURN: usize = 40;
/// … minimum number of changes between them, and maximum number of changes per wait …
const MIN_TURNS: usize = 4;
const TURNS: f64 = 0.4;
/// … minimum share of the loss that is due to both …
const DOMINANCE_IN_TURN: f64 = 0.95;
/// … and to each.
const DOMINANCE_OF_EACH: f64 = 0.25;
/// Waits shorter than this part of the usual wait do not count as rounds.
const SHORT_WAIT: f64 = 0.25;
/// Maximum share of the time lost while ranks arrive together.
const CALM: f64 = 0.08;

/// The time that ranks lost by waiting for one another.
pub(super) struct Losses<'a> {
    model: &'a Model,
    slice: Slice,
    /// Start and end of the time examined.
    from: Timestamp,
    to: Timestamp,
    /// Ranks that arrived anywhere.
    ranks: BTreeSet<u32>,
    /// By their ends, so that a window is a range.
    blames: &'a [LostTime<'a>],
}

impl<'a> Losses<'a> {
    /// `completed_calls`: the latest ones, latest first; `blames`: see [`by_end`]. Both may include earlier ones.
    pub(super) fn new(
        model: &'a Model,
        completed_calls: &[Cow<'_, CompletedCall>],
        blames: &'a [LostTime<'a>],
        (from, to): (Timestamp, Timestamp),
        slice: Slice,
    ) -> Self {
        let is_later = |it: &&Cow<'_, CompletedCall>| {
            it.last().is_some_and(|last| last.at.plus(model.timing.straggler) >= from)
        };
        // Encounters of a group share the list of their ranks.
        let mut latest: &[u32] = &[];
        let mut ranks = BTreeSet::new();
        for completed in completed_calls.iter().take_while(is_later) {
            let these = completed.arrivals.ranks();
            if !ptr::eq(latest, these) {
                ranks.extend(these);
                latest = these;
            }
        }
        Self { model, slice, from, to, ranks, blames }
    }

    /// The straggler.
    pub(super) fn straggler(&self) -> Option<Straggler> {
        let lately = (self.model.gaps.before(self.to, self.shortest()), self.to);
        let lost = self.by_rank(lately);
        let (&most, _) = lost.iter().max_by_key(|(_, lost)| **lost)?;
        let host = self.of_host(most);
        let mut candidates = [Some(vec![most]), host].into_iter().flatten();
        candidates.find_map(|late| self.describe(late))
    }

    /// The two ranks that keep the others waiting in turn.
    pub(super) fn in_turn(&self) -> Option<Straggler> {
        let lost = self.by_rank((self.from, self.to));
        let mut pair: Vec<u32> = lost.keys().copied().collect();
        pair.sort_by_key(|rank| std::cmp::Reverse(lost[rank]));
        pair.truncate(2);
        pair.sort_unstable();
        let others = self.others(&pair);
        if pair.len() < 2 || others.is_empty() {
            return None;
        }
        let since = self.since(&pair)?;
        let window = (since, self.to);
        // One of the two waits as well.
        let share = |late: &[u32]| self.share(self.by_these(late, window), 1, window);
        let each = pair.iter().all(|&rank| self.dominates(&[rank], window, 0.0, DOMINANCE_OF_EACH));
        if !each
            || self.to.since(since) < self.model.timing.straggler
            || share(&pair) < SHARE
            || !self.dominates(&pair, window, SHARE, DOMINANCE_IN_TURN)
            || !others.iter().any(|&rank| self.take_turns(&pair, rank, window))
        {
            return None;
        }
        // Both must be late for the same kind of reason.
        let why = |late: &[u32], lost| why::why(self.model, late, &others, window, lost);
        let [one, other] = [pair[0], pair[1]].map(|rank| why(&[rank], share(&[rank])));
        let is_alike = mem::discriminant(&one?) == mem::discriminant(&other?);
        let of_both = share(&pair);
        let reason = why(&pair, of_both / 2.0).filter(|_| is_alike)?;
        self.straggler_of(pair, window, (reason, of_both), true)
    }

    /// Whether a rank waits alternately for these two, for several rounds each.
    fn take_turns(&self, pair: &[u32], waiting: u32, window: (Timestamp, Timestamp)) -> bool {
        let blames = self
            .ended_in(window)
            .iter()
            .filter(|blame| blame.waiting == waiting && pair.contains(&blame.late));
        let mut waits: Vec<(Timestamp, u32, Duration)> =
            blames.map(|blame| (blame.to, blame.late, blame.to.since(blame.from))).collect();
        waits.sort_unstable();
        let lengths: Vec<f64> = waits.iter().map(|(_, _, wait)| wait.as_secs_f64()).collect();
        let usual = lengths.iter().sum::<f64>() / effective(&lengths).max(1.0);
        waits.retain(|(_, _, wait)| wait.as_secs_f64() >= SHORT_WAIT * usual);
        let turns = waits.windows(2).filter(|two| two[0].1 != two[1].1).count();
        waits.len() >= ROUNDS_IN_TURN
            && turns >= MIN_TURNS
            && turns as f64 <= TURNS * waits.len() as f64
    }

    /// Since when these ranks have kept the others waiting in nearly every slice; `None`: they have
    /// not.
    fn since(&self, late: &[u32]) -> Option<Timestamp> {
        episode(&self.model.gaps, (self.from, self.to), self.slice, |window| {
            self.dominates(late, window, SHARE_OF_SLICE, DOMINANCE_OF_SLICE)
        })
    }

    /// Whether an episode has lasted for long enough.
    fn is_established(&self, late: &[u32], since: Timestamp) -> bool {
        let window = (since, self.to);
        if self.to.since(since) < self.shortest() {
            return false;
        }
        let slice = self.slice.length;
        let calm_from = since.minus(self.model.timing.straggler_free.max(slice * 4));
        let was_calm = calm_from >= self.from && self.is_calm((calm_from, since));
        // The warm-up had just ended.
        let is_first = since.since(self.from) < slice * 2;
        let (rounds, share) = if was_calm {
            (AFTER_CALM, LARGE_SHARE)
        } else if is_first {
            (FROM_THE_BEGINNING, LARGE_SHARE)
        } else {
            (OTHERWISE, SHARE)
        };
        let seen = self.rounds(late, window) / ROUNDING;
        let by = |rounds, share| seen >= rounds && self.dominates(late, window, share, DOMINANCE);
        by(rounds, share) || by(OTHERWISE, SHARE)
    }

    /// Minimum duration of an episode.
    fn shortest(&self) -> Duration {
        self.model.timing.straggler.max(self.slice.length * MIN_SLICES)
    }

    /// Waits that ended within the window. A slice includes its end, not its start.
    fn ended_in(&self, (from, to): (Timestamp, Timestamp)) -> &'a [LostTime<'a>] {
        let until = |at| self.blames.partition_point(|blame| blame.to <= at);
        let (begin, end) = (until(from), until(to));
        self.blames.get(begin..end).unwrap_or_default()
    }

    /// Time lost by waiting for each rank, in waits that ended within the window.
    fn by_rank(&self, window: (Timestamp, Timestamp)) -> BTreeMap<u32, Duration> {
        let mut lost: BTreeMap<u32, Duration> = BTreeMap::new();
        for blame in self.ended_in(window) {
            // Count the whole wait: a long one belongs to a single slice.
            *lost.entry(blame.late).or_default() += blame.to.since(blame.from);
        }
        lost
    }

    /// Time lost by waiting for any of these ranks, in waits that ended within the window.
    fn by_these(&self, late: &[u32], window: (Timestamp, Timestamp)) -> Duration {
        let blames = self.ended_in(window).iter().filter(|blame| late.contains(&blame.late));
        blames.map(|blame| blame.to.since(blame.from)).sum()
    }

    /// The other ranks that arrived anywhere.
    fn others(&self, late: &[u32]) -> Vec<u32> {
        self.ranks.iter().copied().filter(|it| !late.contains(it)).collect()
    }

    /// Lost time as a share of the time of the ranks that may wait for `late` others.
    fn share(&self, lost: Duration, late: usize, (from, to): (Timestamp, Timestamp)) -> f64 {
        let waiting = self.ranks.len().saturating_sub(late).max(1) as f64;
        let seen = self.model.gaps.seen_for(from, to).as_secs_f64();
        lost.as_secs_f64() / waiting / seen.max(1e-9)
    }

    /// Effective number of waits for these ranks within the window, so that many short waits beside
    /// a few long ones count little.
    fn rounds(&self, late: &[u32], window: (Timestamp, Timestamp)) -> f64 {
        let episodes = self.episodes(late, window);
        let rounds = episodes.values().map(|waits| effective(waits));
        rounds.fold(0.0, f64::max)
    }

    /// Durations of the waits for these ranks, by waiting rank. Adjacent pieces count as one wait.
    fn episodes(
        &self,
        late: &[u32],
        (from, to): (Timestamp, Timestamp),
    ) -> BTreeMap<u32, Vec<f64>> {
        /// Maximum gap between two pieces of one wait.
        const GAP: Duration = Duration::from_micros(500);
        let mut pieces: BTreeMap<u32, Vec<(Timestamp, Timestamp)>> = BTreeMap::new();
        let blames = self.ended_in((from, Timestamp(u64::MAX))).iter();
        for blame in blames.filter(|it| late.contains(&it.late)) {
            let piece = (blame.from.max(from), blame.to.min(to));
            if piece.0 < piece.1 {
                pieces.entry(blame.waiting).or_default().push(piece);
            }
        }
        let merged = |mut pieces: Vec<(Timestamp, Timestamp)>| {
            pieces.sort_unstable();
            let mut waits: Vec<(Timestamp, Timestamp)> = Vec::new();
            for piece in pieces {
                match waits.last_mut() {
                    Some(last) if piece.0 <= last.1.plus(GAP) => last.1 = last.1.max(piece.1),
                    _ => waits.push(piece),
                }
            }
            let lengths = waits.iter().map(|(from, to)| to.since(*from).as_secs_f64());
            lengths.collect()
        };
        pieces.into_iter().map(|(rank, pieces)| (rank, merged(pieces))).collect()
    }

    /// Whether ranks arrived together throughout the window.
    fn is_calm(&self, window: (Timestamp, Timestamp)) -> bool {
        slices(window, 4).all(|slice| {
            let lost: Duration = self.by_rank(slice).into_values().sum();
            self.slice.is_seen(&self.model.gaps, slice) && self.share(lost, 1, slice) <= CALM
        })
    }

    /// The ranks on the host of this rank, if there are several and at most half of all ranks.
    fn of_host(&self, rank: u32) -> Option<Vec<u32>> {
        let host = |rank: u32| self.model.process_of(rank).map(|process| &process.host);
        let of = host(rank)?;
        let ranks: Vec<u32> =
            self.ranks.iter().copied().filter(|&rank| host(rank) == Some(of)).collect();
        (ranks.len() > 1 && ranks.len() * 2 <= self.ranks.len()).then_some(ranks)
    }

    fn dominates(
        &self,
        late: &[u32],
        window: (Timestamp, Timestamp),
        share: f64,
        dominance: f64,
    ) -> bool {
        let all: Duration = self.by_rank(window).into_values().sum();
        let by_them = self.by_these(late, window);
        self.share(by_them, late.len(), window) >= share
            && by_them.as_secs_f64() >= dominance * all.as_secs_f64()
    }

    fn describe(&self, ranks: Vec<u32>) -> Option<Straggler> {
        let since = self.since(&ranks)?;
        if !self.is_established(&ranks, since) {
            return None;
        }
        // Describe the present: the cause may have changed in a long episode.
        let recent = self.model.gaps.before(self.to, self.shortest() * 2);
        let window = (recent.max(since), self.to);
        let share = self.share(self.by_these(&ranks, window), ranks.len(), window);
        let why = why::why(self.model, &ranks, &self.others(&ranks), window, share)?;
        let found = self.straggler_of(ranks, window, (why, share), false)?;
        Some(Straggler {
            before: self.before(&found.ranks, since),
            known_at: since.plus(self.shortest()).min(self.to),
            since,
            ..found
        })
    }

    /// The description of these ranks as stragglers, with the cause and the share of the time lost.
    fn straggler_of(
        &self,
        ranks: Vec<u32>,
        window: (Timestamp, Timestamp),
        (why, share): (Why, f64),
        in_turn: bool,
    ) -> Option<Straggler> {
        let episodes = self.episodes(&ranks, window);
        let longest = episodes.values().max_by(|a, b| effective(a).total_cmp(&effective(b)))?;
        let typical = longest.iter().sum::<f64>() / effective(longest).max(1.0);
        let place = self.place(&ranks, window)?;
        Some(Straggler {
            waiting: self.others(&ranks),
            share,
            typical: Duration::from_secs_f64(typical),
            since: window.0,
            before: None,
            in_turn,
            group: place.group,
            call: Arc::clone(place.call),
            known_at: window.0.plus(self.model.timing.straggler).min(window.1),
            is_guessed: !self.model.group(place.group).holds_threads(place.call.op),
            ranks,
            why,
        })
    }

    /// A wait at the place where most is lost by waiting for these ranks.
    fn place(&self, late: &[u32], (from, to): (Timestamp, Timestamp)) -> Option<&'a LostTime<'a>> {
        let mut lost: BTreeMap<_, (Duration, &'a LostTime<'a>)> = BTreeMap::new();
        let blames = self.ended_in((from, Timestamp(u64::MAX))).iter();
        for blame in blames.filter(|it| late.contains(&it.late)) {
            let place = (blame.group, blame.call.op, blame.call.place.as_deref());
            let known = lost.entry(place).or_insert((Duration::ZERO, blame));
            known.0 += blame.to.min(to).since(blame.from.max(from));
        }
        let most = lost.into_values().max_by_key(|(lost, _)| *lost)?;
        Some(most.1)
    }

    /// The rank that kept the others waiting before, if it was another one.
    fn before(&self, late: &[u32], since: Timestamp) -> Option<u32> {
        let length = (self.model.timing.straggler / 2).max(self.slice.length * MIN_SLICES);
        let window = (since.minus(length), since);
        if window.0 < self.from {
            return None;
        }
        let lost = self.by_rank(window);
        let (&most, _) = lost.iter().max_by_key(|(_, lost)| **lost)?;
        let dominates = self.dominates(&[most], window, SHARE, DOMINANCE_OF_SLICE);
        (dominates && !late.contains(&most)).then_some(most)
    }
}

/// Lost time that began before `to`, by its end. Time in a phase that the program marked is left out.
pub(super) fn by_end<'a>(
    model: &Model,
    mut blames: Vec<LostTime<'a>>,
    to: Timestamp,
) -> Vec<LostTime<'a>> {
    blames.retain(|blame| blame.from < to && !is_in_phase(model, blame));
    blames.sort_by_key(|blame| blame.to);
    blames
}

/// Effective number of waits: the number of equal waits with the same sum and the same sum of
/// squares.
fn effective(waits: &[f64]) -> f64 {
    let (sum, squares) =
        waits.iter().fold((0.0, 0.0), |(sum, squares), wait| (sum + wait, squares + wait * wait));
    if squares > 0.0 { sum * sum / squares } else { 0.0 }
}

/// Divides a window into equal parts, in order.
fn slices(
    (from, to): (Timestamp, Timestamp),
    number: usize,
) -> impl Iterator<Item = (Timestamp, Timestamp)> {
    let length = to.since(from).as_nanos() as u64;
    let at = move |i: usize| Timestamp(from.0 + length * i as u64 / number as u64);
    (0..number).map(move |i| (at(i), at(i + 1)))
}

/// Whether the late rank was in a phase that the program marked. Such phases may be long.
fn is_in_phase(model: &Model, blame: &LostTime<'_>) -> bool {
    let middle = Timestamp(blame.from.0 / 2 + blame.to.0 / 2);
    model.process_of(blame.late).is_some_and(|process| {
        process.pace.phases.iter().any(|(from, to)| (*from..=*to).contains(&middle))
            || process.phases.iter().any(|phase| phase.since <= middle)
    })
}
