//! Stragglers: ranks that repeatedly keep the others waiting.
//!
//! The measure is the share of their time that ranks lose by waiting, and for whom (`blame`);
//! never the duration of a call or a step. Time is divided into slices, each at least as long as a
//! round of the loop. A rank is a straggler since the first of the latest slices in nearly all of
//! which most of the loss is due to it.
//!
//! How many rounds this takes depends on the time before. If ranks had long arrived together, three
//! rounds and four seconds suffice. If they never had, or different ranks were late, lateness may
//! be chance: batches of different lengths, or a busy host. Then it takes twenty rounds, or the
//! first six of the job.
//!
//! If no single rank is a straggler, two ranks may take turns: one is late for some rounds, then
//! the other, and hardly ever a third. That takes longer to detect and needs a third rank to be
//! certain; both are named.
//!
//! Time of which records are unknown ([`Gaps`]) is left out: shares refer to the rest, and a slice of which less
//! than a round is known counts neither for a straggler nor against one.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use crate::delays;
use crate::input::event::Call;
use crate::model::{Gaps, GroupId, Model};

mod blame;
mod losses;
mod why;

pub use why::{Host, Why};

use self::blame::{LostTime, blame};
use self::losses::{Losses, by_end};

/// Maximum number of doublings of the shortest slice to reach the length of a round.
const DOUBLED: u32 = 5;
/// The same if the length of a round is unknown.
const DOUBLED_BLINDLY: u32 = 3;
/// Minimum part of a slice that must be known if the length of a round is unknown.
const UNKNOWN_ROUND: u32 = 4;
/// Number of slices examined.
const SLICES: u32 = 24;
/// Maximum number of slices examined together with those in gaps, whose length evidence states.
const MAX_SLICES: u32 = 1 << 14;
/// Minimum number of slices in an episode.
const MIN_SLICES: u32 = 3;
/// One slice without a straggler is tolerated per this many slices with one.
const PASSED_OVER: u32 = 7;
/// Minimum share lost in a single slice.
const SHARE_OF_SLICE: f64 = 0.08;
/// Step whose start ends the warm-up: before it, programs compile, load and tune themselves.
const WARM_UP: u64 = 3;

/// Ranks that keep the others waiting.
#[derive(Clone, Debug, PartialEq)]
pub struct Straggler {
    /// One rank, all ranks of a host, or two ranks that take turns.
    pub ranks: Vec<u32>,
    /// Ranks that wait for them.
    pub waiting: Vec<u32>,
    /// Share of the time of the waiting ranks that is lost.
    pub share: f64,
    /// Typical duration of a wait.
    pub typical: Duration,
    /// Start of the episode, at the latest.
    pub since: Timestamp,
    /// The straggler before them.
    pub before: Option<u32>,
    /// The ranks take turns; false for the ranks of one host.
    pub in_turn: bool,
    /// Group in which most of the time is lost …
    pub group: GroupId,
    /// … and a call at which it is.
    pub call: Arc<Call>,
    /// When the episode became known.
    pub known_at: Timestamp,
    /// Why they are late.
    pub why: Why,
    /// Waits are inferred from later activity, as on a device.
    pub is_guessed: bool,
}

/// The straggler, evaluated from time to time.
#[derive(Debug, Default)]
pub struct Review(delays::Review<Option<Straggler>>);

impl Review {
    /// The straggler according to an evaluation at most a moment ago; up to a second in large jobs.
    pub fn look(&mut self, model: &Model, now: Timestamp) -> Option<&Straggler> {
        let patience = [100, 250, 1000].map(Duration::from_millis);
        self.0.look(model, now, patience, || straggler(model)).as_ref()
    }
}

/// The ranks that keep the others waiting.
pub fn straggler(model: &Model) -> Option<Straggler> {
    let begin = warmed_up(model)?;
    let end = model.arrivals.end;
    let step = step(model);
    let timing = &model.timing;
    let lengths = match step {
        Some(step) => {
            // Slightly longer than a round, so that each slice contains the end of one.
            let first =
                (0..=DOUBLED).find(|&it| timing.straggler_slice * 2_u32.pow(it) * 4 >= step * 5)?;
            // With short steps, causes such as garbage collection or stops do not affect every
            // step.
            first..=first.max(1)
        }
        None => 0..=DOUBLED_BLINDLY,
    };
    let length = |doublings: u32| timing.straggler_slice * 2_u32.pow(doublings);
    let horizon_of = |length: Duration| {
        let examined = length * SLICES + timing.straggler_free + timing.straggler;
        let width = length.saturating_mul(MAX_SLICES).as_nanos();
        let reach = end.0.saturating_sub(u64::try_from(width).unwrap_or(u64::MAX));
        model.gaps.before(end, examined).max(begin).max(Timestamp(reach))
    };
    let earliest = horizon_of(length(*lengths.end()));
    // Those of all lengths, determined once.
    let completed_calls = OnceCell::new();
    let blames = OnceCell::new();
    let mut in_turn = None;
    for length in lengths.map(length) {
        let slice =
            Slice { length, seen: step.map_or(length / UNKNOWN_ROUND, |step| step * 5 / 4) };
        let horizon = horizon_of(length);
        if end.since(horizon) < timing.straggler.max(length * MIN_SLICES) {
            break;
        }
        if !may_have_straggler(model, horizon, end, slice) {
            continue;
        }
        let completed_calls: &Vec<_> = completed_calls
            .get_or_init(|| model.arrivals.back_to(earliest, timing.straggler).collect());
        let blames =
            blames.get_or_init(|| by_end(model, blame(model, completed_calls, earliest), end));
        let losses = Losses::new(model, completed_calls, blames, (horizon, end), slice);
        if let Some(found) = losses.straggler() {
            return Some(found);
        }
        in_turn = in_turn.or_else(|| losses.in_turn());
    }
    in_turn
}

/// How time is divided.
#[derive(Clone, Copy, Debug)]
struct Slice {
    length: Duration,
    /// Minimum time of a slice that is outside of gaps.
    seen: Duration,
}

impl Slice {
    /// Whether enough of this interval is known.
    fn is_seen(self, gaps: &Gaps, (from, to): (Timestamp, Timestamp)) -> bool {
        gaps.seen_for(from, to) >= self.seen
    }
}

/// Whether enough time was lost for a straggler if every rank had waited in each encounter from its
/// arrival to the last one. This is an upper bound, and takes much less time than [`blame`].
fn may_have_straggler(model: &Model, from: Timestamp, to: Timestamp, slice: Slice) -> bool {
    let Some((_, most_ranks)) = model.arrivals.lost_at_most((from, to)) else { return true };
    // At most half of the ranks are late.
    let waiting = (most_ranks / 2).max(1) as f64;
    let since = episode(&model.gaps, (from, to), slice, |(begin, end)| {
        let lost = model.arrivals.lost_at_most((begin, end)).map(|(lost, _)| lost.as_secs_f64());
        let seen = model.gaps.seen_for(begin, end).as_secs_f64();
        lost.is_none_or(|lost| lost / waiting / seen.max(1e-9) >= SHARE_OF_SLICE)
    });
    since.is_some_and(|since| to.since(since) >= model.timing.straggler)
}

/// Start of the latest slices nearly all of which `holds` for; `None`: there are none.
///
/// Slices are aligned to multiples of their length, so that evaluations agree; the last one includes
/// the remainder.
fn episode(
    gaps: &Gaps,
    (from, to): (Timestamp, Timestamp),
    slice: Slice,
    holds: impl Fn((Timestamp, Timestamp)) -> bool,
) -> Option<Timestamp> {
    let grid = slice.length.as_nanos() as u64;
    let mut at = Timestamp((to.0 / grid).checked_sub(1)? * grid);
    let mut end = to;
    let mut since = None;
    let mut good = PASSED_OVER;
    while at >= from {
        let window = (at, end);
        if slice.is_seen(gaps, window) {
            if holds(window) {
                since = Some(at);
                good += 1;
            } else if good < PASSED_OVER {
                break;
            } else {
                good = 0;
            }
        }
        end = at;
        at = at.minus(slice.length);
    }
    since
}

/// Mean duration of the latest steps without gaps, the shortest of all ranks; `None`: no steps are known.
fn step(model: &Model) -> Option<Duration> {
    /// Number of steps examined.
    const LATEST: usize = 16;
    let processes = model.ranks.keys().filter_map(|&rank| model.process_of(rank));
    let rates = processes.filter_map(|process| {
        let steps = &process.pace.steps;
        let first = steps.get(steps.len().saturating_sub(LATEST + 1))?;
        let number = (steps.len() - 1).min(LATEST) as u32;
        (number > 0)
            .then(|| steps.back().map(|last| model.gaps.seen_for(*first, *last) / number))?
    });
    rates.min()
}

/// When the warm-up was over: all ranks had begun their third step or, if no steps are known, some
/// time after the first encounter.
pub fn warmed_up(model: &Model) -> Option<Timestamp> {
    let began = model.arrivals.began?;
    let processes = model.ranks.keys().filter_map(|&rank| model.process_of(rank));
    let mut paces =
        processes.map(|process| &process.pace).filter(|pace| !pace.steps.is_empty()).peekable();
    if paces.peek().is_none() {
        return Some(began.plus(model.timing.warm_up));
    }
    paces.try_fold(began, |warm, pace| match WARM_UP.checked_sub(pace.steps_before) {
        None | Some(0) => Some(warm),
        Some(more) => Some(warm.max(*pace.steps.get(more as usize - 1)?)),
    })
}
