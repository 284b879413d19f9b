//! Who keeps the others waiting, lately and again and again.
//!
//! What is looked at is how much of their time ranks lose by waiting, and for whom ([`blame`]); never how
//! long a call or a step takes. Time is cut into slices, each as long as a round of the loop at least, and a
//! rank is a straggler since the first of the latest slices in (nearly) all of which most of what is lost is
//! lost by waiting for it.
//!
//! How many rounds that takes depends on what was before. Where ranks had come together for long, three
//! rounds and four seconds are enough. Where they never had, or where now this one was late and now that
//! one, lateness may be chance: batches of different lengths, a busy host. Then it takes twenty rounds, or
//! six of the job's first ones.
//!
//! Where no single rank is one, two may be that take turns: now this one is late for some rounds, now that
//! one, and nearly never anybody else. That takes longer to know, a third rank to be sure of it, and both
//! are named.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use super::event::Call;
use super::model::{GroupId, Model};
use super::timing::Timing;

mod blame;
mod why;

pub use blame::{Blame, apart, blame};
pub use why::{Host, Why};

/// How often the shortest slice is doubled until it is as long as a round.
const DOUBLED: u32 = 5;
/// The same, where it is not known how long a round is.
const DOUBLED_BLINDLY: u32 = 3;
/// Slices that are looked at.
const SLICES: u32 = 24;
/// Slices in which it has to be so, at least.
const FEWEST_SLICES: u32 = 3;
/// A slice in which it is not so is passed over once in so many.
const PASSED_OVER: u32 = 7;
/// Rounds it takes where it was calm before, …
const AFTER_CALM: f64 = 3.0;
/// … where it has been so from the beginning on, …
const FROM_THE_BEGINNING: f64 = 6.0;
/// … and otherwise.
const OTHERWISE: f64 = 20.0;
/// An effective number of rounds is a little less than their number.
const ROUNDING: f64 = 0.75;
/// The share of their time that others lose by waiting for a straggler, at least, …
const SHARE: f64 = 0.15;
/// … and where fewer rounds are enough.
const LARGE_SHARE: f64 = 0.25;
/// The same, in a single slice.
const SHARE_OF_SLICE: f64 = 0.08;
/// The share of all that is lost which is lost by waiting for it, …
const DOMINANCE: f64 = 0.8;
/// … and in a single slice.
const DOMINANCE_OF_SLICE: f64 = 0.7;
/// Rounds it takes to know that two take turns, …
const ROUNDS_IN_TURN: usize = 40;
/// … how often it has to be the other's, at least, and in how large a part of the rounds at most, …
const FEWEST_TURNS: usize = 4;
const TURNS: f64 = 0.4;
/// … the share of all that is lost which is lost by waiting for them, …
const DOMINANCE_IN_TURN: f64 = 0.95;
/// … and for each.
const DOMINANCE_OF_EACH: f64 = 0.25;
/// A wait that is shorter than this part of the usual one is none of them.
const SHORT_WAIT: f64 = 0.25;
/// Where less is lost, ranks come together.
const CALM: f64 = 0.08;
/// Steps in which programs compile, load and try out.
const WARM_UP: u64 = 3;
/// Arrivals from which on it is looked less often at all of them.
const MANY: usize = 4096;

/// Ranks that keep the others waiting.
#[derive(Clone, Debug, PartialEq)]
pub struct Straggler {
    /// Who: one rank, or all that are of one host.
    pub ranks: Vec<u32>,
    /// Who waits for them.
    pub waiting: Vec<u32>,
    /// The share of their time that those lose by it.
    pub share: f64,
    /// How long they wait each time, as a rule.
    pub typical: Duration,
    /// Since when it is so, at least.
    pub since: Timestamp,
    /// Who it was before them.
    pub before: Option<u32>,
    /// They take turns, which those of one host do not.
    pub in_turn: bool,
    /// In which group most is lost, …
    pub group: GroupId,
    /// … and in which call.
    pub call: Arc<Call>,
    /// When that was known.
    pub known_at: Timestamp,
    /// What takes them so long.
    pub why: Why,
    /// Waits are only concluded from what ranks do next, as on a device.
    pub is_guessed: bool,
}

/// The stragglers as of the last look, and how far evidence had come then.
#[derive(Debug, Default)]
pub struct Review {
    looked_at: Option<Timestamp>,
    found: Option<Straggler>,
}

impl Review {
    /// Looks at the job, unless it has just done so: what it says follows from the evidence of a moment ago
    /// at least, of a second ago in large jobs.
    pub fn look(&mut self, model: &Model, now: Timestamp) -> Option<&Straggler> {
        let patience = match model.arrivals.kept() {
            0..MANY => Duration::from_millis(100),
            n if n < 8 * MANY => Duration::from_millis(250),
            _ => Duration::from_secs(1),
        };
        let is_fresh = |at: Timestamp| now.since(at) < patience && model.over().is_none();
        if !self.looked_at.is_some_and(is_fresh) {
            self.looked_at = Some(now);
            self.found = straggler(model);
        }
        self.found.as_ref()
    }
}

/// The rank, or the ranks of a host, that keep the others waiting.
#[must_use]
pub fn straggler(model: &Model) -> Option<Straggler> {
    let begin = warmed_up(model)?;
    let end = model.arrivals.end();
    let step = step(model);
    let timing = &model.timing;
    let lengths = match step {
        Some(step) => {
            // A little longer, so that a round ends in each.
            let first =
                (0..=DOUBLED).find(|&it| timing.straggler_slice * 2_u32.pow(it) * 4 >= step * 5)?;
            // What keeps a rank of short steps need not do so in each of them: collections, stops.
            first..=first.max(1)
        }
        None => 0..=DOUBLED_BLINDLY,
    };
    let mut in_turn = None;
    for length in lengths {
        let slice = timing.straggler_slice * 2_u32.pow(length);
        let horizon = before(
            end,
            slice * SLICES + timing.straggler_free + timing.straggler,
        )
        .max(begin);
        if end.since(horizon) < timing.straggler.max(slice * FEWEST_SLICES) {
            break;
        }
        let losses = Losses::of(model, horizon, end);
        if let Some(found) = losses.straggler(model, slice) {
            return Some(found);
        }
        in_turn = in_turn.or_else(|| losses.in_turn(model, slice));
    }
    in_turn
}

/// How long a step takes, as a rule; `None`: nobody has steps.
fn step(model: &Model) -> Option<Duration> {
    /// Steps that are looked at.
    const LATEST: usize = 16;
    let processes = model
        .ranks
        .keys()
        .filter_map(|&rank| model.process_of(rank));
    let rates = processes.filter_map(|process| {
        let steps = &process.pace.steps;
        let first = steps.get(steps.len().saturating_sub(LATEST + 1))?;
        let number = (steps.len() - 1).min(LATEST) as u32;
        (number > 0).then(|| steps.back().map(|last| last.since(*first) / number))?
    });
    rates.min()
}

fn before(at: Timestamp, time: Duration) -> Timestamp {
    Timestamp(at.0.saturating_sub(time.as_nanos() as u64))
}

/// When the job had found its pace: all ranks had begun their third step, or a moment had passed where
/// nobody has steps.
#[must_use]
pub fn warmed_up(model: &Model) -> Option<Timestamp> {
    let began = model.arrivals.began()?;
    let processes = model
        .ranks
        .keys()
        .filter_map(|&rank| model.process_of(rank));
    let mut warm = began;
    let mut steps = false;
    for process in processes {
        let pace = &process.pace;
        if pace.steps.is_empty() {
            continue;
        }
        steps = true;
        if let Some(more) = WARM_UP.checked_sub(pace.steps_before).filter(|&it| it > 0) {
            warm = warm.max(*pace.steps.get(more as usize - 1)?);
        }
    }
    Some(if steps {
        warm
    } else {
        warm.plus(model.timing.warm_up)
    })
}

/// What ranks lost by waiting for one another.
struct Losses {
    timing: Timing,
    /// From when on and until when it is known.
    from: Timestamp,
    to: Timestamp,
    /// Ranks that came anywhere.
    ranks: BTreeSet<u32>,
    blames: Vec<Blame>,
}

impl Losses {
    fn of(model: &Model, from: Timestamp, to: Timestamp) -> Self {
        let timing = model.timing;
        let recent = model.arrivals.latest().take_while(|encounter| {
            // In the order of hearing, which is nearly that of time.
            encounter
                .last()
                .is_some_and(|last| last.at.plus(timing.straggler) >= from)
        });
        let ranks = recent.flat_map(|encounter| encounter.came.iter().map(|came| came.rank));
        let ranks = ranks.collect();
        let mut blames = blame(model, from);
        blames.retain(|blame| blame.from < to && !is_in_phase(model, blame));
        Self {
            timing,
            from,
            to,
            ranks,
            blames,
        }
    }

    /// Who keeps the others waiting, by slices of this length.
    fn straggler(&self, model: &Model, slice: Duration) -> Option<Straggler> {
        let lately = (
            before(self.to, self.timing.straggler.max(slice * FEWEST_SLICES)),
            self.to,
        );
        let lost = self.by_rank(lately);
        let (&most, _) = lost.iter().max_by_key(|(_, lost)| **lost)?;
        let host = self.of_host(model, most);
        let mut candidates = [Some(vec![most]), host].into_iter().flatten();
        candidates.find_map(|late| self.describe(model, late, slice))
    }

    /// The two ranks that keep the others waiting in turn.
    fn in_turn(&self, model: &Model, slice: Duration) -> Option<Straggler> {
        let mut lost: Vec<(u32, Duration)> =
            self.by_rank((self.from, self.to)).into_iter().collect();
        lost.sort_by_key(|&(rank, lost)| (std::cmp::Reverse(lost), rank));
        let mut pair: Vec<u32> = lost.iter().take(2).map(|(rank, _)| *rank).collect();
        pair.sort_unstable();
        let others = self.ranks.iter().copied().filter(|it| !pair.contains(it));
        let others: Vec<u32> = others.collect();
        if pair.len() < 2 || others.is_empty() {
            return None;
        }
        let since = self.since(&pair, slice)?;
        let window = (since, self.to);
        let share = |late: &[u32]| {
            let lost = self.by_rank(window);
            let lost = late.iter().filter_map(|rank| lost.get(rank)).sum();
            // The other one waits as well.
            self.share(lost, 1, window)
        };
        let each = pair
            .iter()
            .all(|&rank| self.dominates(&[rank], window, 0.0, DOMINANCE_OF_EACH));
        if !each
            || self.to.since(since) < self.timing.straggler
            || share(&pair) < SHARE
            || !self.dominates(&pair, window, SHARE, DOMINANCE_IN_TURN)
            || !others
                .iter()
                .any(|&rank| self.take_turns(&pair, rank, window))
        {
            return None;
        }
        // What takes the one so long has to be what takes the other so long.
        let why = |late: &[u32], lost| why::why(model, late, &others, window, lost);
        let [one, other] = [pair[0], pair[1]].map(|rank| why(&[rank], share(&[rank])));
        let is_alike = std::mem::discriminant(&one?) == std::mem::discriminant(&other?);
        let why = why(&pair, share(&pair) / 2.0).filter(|_| is_alike)?;
        self.tell(model, pair, window, why, true)
    }

    /// Whether a rank waits for these two in turn: for some rounds now for the one and now for the other.
    fn take_turns(&self, pair: &[u32], waiting: u32, (from, to): (Timestamp, Timestamp)) -> bool {
        let blames = self.blames.iter().filter(|blame| {
            blame.waiting == waiting
                && from < blame.to
                && blame.to <= to
                && pair.contains(&blame.late)
        });
        let mut waits: Vec<(Timestamp, u32, Duration)> = blames
            .map(|blame| (blame.to, blame.late, blame.to.since(blame.from)))
            .collect();
        waits.sort_unstable();
        let lengths: Vec<f64> = waits
            .iter()
            .map(|(_, _, wait)| wait.as_secs_f64())
            .collect();
        let usual = lengths.iter().sum::<f64>() / effective(&lengths).max(1.0);
        waits.retain(|(_, _, wait)| wait.as_secs_f64() >= SHORT_WAIT * usual);
        let turns = waits.windows(2).filter(|two| two[0].1 != two[1].1).count();
        waits.len() >= ROUNDS_IN_TURN
            && turns >= FEWEST_TURNS
            && turns as f64 <= TURNS * waits.len() as f64
    }

    /// Since when these have kept the others waiting in nearly every slice; `None`: they do not.
    fn since(&self, late: &[u32], slice: Duration) -> Option<Timestamp> {
        // Slices begin with a multiple of their length, so that it does not change from look to look; the
        // last one takes in what is left.
        let grid = slice.as_nanos() as u64;
        let mut at = Timestamp((self.to.0 / grid - 1) * grid);
        let mut end = self.to;
        let mut since = None;
        let mut good = PASSED_OVER;
        while at >= self.from {
            if self.dominates(late, (at, end), SHARE_OF_SLICE, DOMINANCE_OF_SLICE) {
                since = Some(at);
                good += 1;
            } else if good < PASSED_OVER {
                break;
            } else {
                good = 0;
            }
            end = at;
            at = before(at, slice);
        }
        since
    }

    /// Whether it has been so for long enough.
    fn is_established(&self, late: &[u32], since: Timestamp, slice: Duration) -> bool {
        let window = (since, self.to);
        if self.to.since(since) < self.timing.straggler.max(slice * FEWEST_SLICES) {
            return false;
        }
        let calm_from = before(since, self.timing.straggler_free.max(slice * 4));
        let was_calm = calm_from >= self.from && self.is_calm((calm_from, since));
        // The warm-up was just over.
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

    /// How long ranks waited for each one, together, in waits that ended in this time.
    fn by_rank(&self, (from, to): (Timestamp, Timestamp)) -> BTreeMap<u32, Duration> {
        let mut lost: BTreeMap<u32, Duration> = BTreeMap::new();
        for blame in &self.blames {
            // All of it: a single long wait is to be in a single slice.
            if from < blame.to && blame.to <= to {
                *lost.entry(blame.late).or_default() += blame.to.since(blame.from);
            }
        }
        lost
    }

    /// What so much waiting is of the time of those who may wait for so many others.
    fn share(&self, lost: Duration, late: usize, (from, to): (Timestamp, Timestamp)) -> f64 {
        let waiting = self.ranks.len().saturating_sub(late).max(1) as f64;
        lost.as_secs_f64() / waiting / to.since(from).as_secs_f64().max(1e-9)
    }

    /// How often ranks waited for these in this time: an effective number, so that many short waits beside a
    /// few long ones count for little.
    fn rounds(&self, late: &[u32], window: (Timestamp, Timestamp)) -> f64 {
        let episodes = self.episodes(late, window);
        let rounds = episodes.values().map(|waits| effective(waits));
        rounds.fold(0.0, f64::max)
    }

    /// How long each rank waited for these, time after time: pieces without anything of its own between
    /// them are one.
    fn episodes(
        &self,
        late: &[u32],
        (from, to): (Timestamp, Timestamp),
    ) -> BTreeMap<u32, Vec<f64>> {
        /// What lies between two waits that are one.
        const GAP: Duration = Duration::from_micros(500);
        let mut pieces: BTreeMap<u32, Vec<(Timestamp, Timestamp)>> = BTreeMap::new();
        for blame in self.blames.iter().filter(|it| late.contains(&it.late)) {
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
        pieces
            .into_iter()
            .map(|(rank, pieces)| (rank, merged(pieces)))
            .collect()
    }

    /// Whether ranks came together all of this time.
    fn is_calm(&self, window: (Timestamp, Timestamp)) -> bool {
        slices(window, 4).all(|slice| {
            let lost: Duration = self.by_rank(slice).into_values().sum();
            self.share(lost, 1, slice) <= CALM
        })
    }

    /// The ranks on the host of this one, where they are no more than half of all.
    fn of_host(&self, model: &Model, rank: u32) -> Option<Vec<u32>> {
        let host = |rank: u32| model.process_of(rank).map(|process| &process.host);
        let of = host(rank)?;
        let ranks = self.ranks.iter().copied();
        let ranks: Vec<u32> = ranks.filter(|&rank| host(rank) == Some(of)).collect();
        (ranks.len() > 1 && ranks.len() * 2 <= self.ranks.len()).then_some(ranks)
    }

    fn dominates(
        &self,
        late: &[u32],
        window: (Timestamp, Timestamp),
        share: f64,
        dominance: f64,
    ) -> bool {
        let lost = self.by_rank(window);
        let all: Duration = lost.values().sum();
        let by_them: Duration = late.iter().filter_map(|rank| lost.get(rank)).sum();
        self.share(by_them, late.len(), window) >= share
            && by_them.as_secs_f64() >= dominance * all.as_secs_f64()
    }

    fn describe(&self, model: &Model, ranks: Vec<u32>, slice: Duration) -> Option<Straggler> {
        let since = self.since(&ranks, slice)?;
        if !self.is_established(&ranks, since, slice) {
            return None;
        }
        // What it is like now; what has been so for minutes may have had another reason.
        let recent = before(
            self.to,
            (self.timing.straggler * 2).max(slice * FEWEST_SLICES * 2),
        );
        let window = (recent.max(since), self.to);
        let lost = self.by_rank(window);
        let by_them: Duration = ranks.iter().filter_map(|rank| lost.get(rank)).sum();
        let share = self.share(by_them, ranks.len(), window);
        let others = self.ranks.iter().copied().filter(|it| !ranks.contains(it));
        let waiting: Vec<u32> = others.collect();
        let why = why::why(model, &ranks, &waiting, window, share)?;
        let told = self.tell(model, ranks, window, why, false)?;
        Some(Straggler {
            before: self.before(&told.ranks, since, slice),
            known_at: since
                .plus(self.timing.straggler.max(slice * FEWEST_SLICES))
                .min(self.to),
            since,
            ..told
        })
    }

    /// These keep the others waiting, and that is why.
    fn tell(
        &self,
        model: &Model,
        ranks: Vec<u32>,
        window: (Timestamp, Timestamp),
        why: Why,
        in_turn: bool,
    ) -> Option<Straggler> {
        let lost = self.by_rank(window);
        let by_them: Duration = ranks.iter().filter_map(|rank| lost.get(rank)).sum();
        let others = self.ranks.iter().copied().filter(|it| !ranks.contains(it));
        let episodes = self.episodes(&ranks, window);
        let longest = episodes
            .values()
            .max_by(|a, b| effective(a).total_cmp(&effective(b)))?;
        let typical = longest.iter().sum::<f64>() / effective(longest).max(1.0);
        let place = self.place(&ranks, window)?;
        Some(Straggler {
            waiting: others.collect(),
            share: self.share(by_them, if in_turn { 1 } else { ranks.len() }, window),
            typical: Duration::from_secs_f64(typical),
            since: window.0,
            before: None,
            in_turn,
            group: place.group,
            call: Arc::clone(&place.call),
            known_at: window.0.plus(self.timing.straggler).min(window.1),
            is_guessed: !model.group(place.group).holds_threads(place.call.op),
            ranks,
            why,
        })
    }

    /// Where most is lost by waiting for these: one of the waits there.
    fn place(&self, late: &[u32], (from, to): (Timestamp, Timestamp)) -> Option<&Blame> {
        let mut lost: BTreeMap<_, (Duration, &Blame)> = BTreeMap::new();
        for blame in self.blames.iter().filter(|it| late.contains(&it.late)) {
            let place = (blame.group, blame.call.op, blame.call.place.as_deref());
            let known = lost.entry(place).or_insert((Duration::ZERO, blame));
            known.0 += blame.to.min(to).since(blame.from.max(from));
        }
        let most = lost.into_values().max_by_key(|(lost, _)| *lost)?;
        Some(most.1)
    }

    /// Who kept the others waiting before, and until when, if it was somebody else.
    fn before(&self, late: &[u32], since: Timestamp, slice: Duration) -> Option<u32> {
        let length = (self.timing.straggler / 2).max(slice * FEWEST_SLICES);
        let window = (before(since, length), since);
        if window.0 < self.from {
            return None;
        }
        let lost = self.by_rank(window);
        let (&most, _) = lost.iter().max_by_key(|(_, lost)| **lost)?;
        let dominates = self.dominates(&[most], window, SHARE, DOMINANCE_OF_SLICE);
        (dominates && !late.contains(&most)).then_some(most)
    }
}

/// The effective number of waits: that of waits of one length with the same sum and the same squares.
fn effective(waits: &[f64]) -> f64 {
    let (sum, squares) = waits.iter().fold((0.0, 0.0), |(sum, squares), wait| {
        (sum + wait, squares + wait * wait)
    });
    if squares > 0.0 {
        sum * sum / squares
    } else {
        0.0
    }
}

/// A time in so many parts, the last one last.
fn slices(
    (from, to): (Timestamp, Timestamp),
    number: usize,
) -> impl Iterator<Item = (Timestamp, Timestamp)> {
    let length = to.since(from).as_nanos() as u64;
    let at = move |i: usize| Timestamp(from.0 + length * i as u64 / number as u64);
    (0..number).map(move |i| (at(i), at(i + 1)))
}

/// Whether the late rank was in a phase that the program marked: those may take long.
fn is_in_phase(model: &Model, blame: &Blame) -> bool {
    let Some(process) = model.process_of(blame.late) else {
        return false;
    };
    let middle = Timestamp(blame.from.0 / 2 + blame.to.0 / 2);
    let over = process.pace.phases.iter();
    let mut over = over.filter(|(from, to)| *from <= middle && middle <= *to);
    over.next().is_some() || process.phases.iter().any(|phase| phase.since <= middle)
}
