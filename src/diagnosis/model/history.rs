//! History of a group: which steps and which lines of its ranks have met.
//!
//! Ranks may call one collective from different lines and have different step counters. An error
//! shows as a *change*: a relation that held is permanently replaced by another from one call on.
//! So each rank is compared with the lowest member, over the calls that every member made and that
//! agree.
//!
//! # Steps
//!
//! A rank's calls belong to its *turns*: training forwards that are to synchronise gradients,
//! counted by the place that starts them, or steps that the program marks ([`Turns`]). Between two
//! ranks the difference of turns is constant as long as both make the same calls in every turn. It
//! shifts when a rank has a *silent* turn, one without calls, while the other makes its calls. No
//! other shift counts: a rank that makes calls without a forward (`Join`, a dummy backward) begins
//! no turn, nor does one that repeats a forward on the same input, or under `no_sync`.
//!
//! # Lines
//!
//! If lines that habitually meet start to meet other known lines, and the lines of one rank are
//! those of the other shifted by a constant number of calls, the ranks are that many calls apart.
//!
//! Memory is bounded: a window of meetings, and a few relations per rank.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ddp_doctor_proto::report::{Timestamp, Where};

use crate::evidence::event::{Call, Forward};
use crate::model::group::Join;

/// Number of turns for which a relation must hold before a change of it counts.
const HELD: u32 = 3;
/// Number of turns after the first shifted one for which the new relation must hold.
const PERSISTS: u32 = 2;
/// Number of meetings kept.
const WINDOW: usize = 64;
/// Maximum number of calls by which two ranks may be apart.
const FURTHEST: usize = 16;
/// Number of meetings after which two lines are habitual partners.
const HABIT: u32 = 3;
/// Maximum number of turns from one call of a rank to the next; beyond it, the rank does not just
/// skip steps.
const MOST_SILENT: u64 = 16;
/// Maximum number of relations and lines kept per rank.
const KEPT: usize = 128;
/// Number of forwards on new input after which a forward on the same input counts as a repetition.
const FRESH: u64 = 3;

/// The turn of a rank in which a call is issued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Place of the forwards that are counted; `None`: the program marks steps.
    path: Option<Arc<str>>,
    /// Number of turns so far; 0: none is known.
    pub turn: u64,
    /// Batches drawn before the turn, if input is observed.
    pub batches: Option<u64>,
    /// Records of the rank had been lost before.
    lossy: bool,
}

/// The turns of a rank so far.
#[derive(Debug, Default)]
pub struct Turns {
    /// Position of the next call.
    now: Position,
    /// The turn was not counted because its forward failed; the next one may repeat it.
    taken_back: bool,
    counts: BTreeMap<Option<Arc<str>>, Count>,
}

#[derive(Debug, Default)]
struct Count {
    turns: u64,
    fresh: u64,
}

impl Turns {
    /// A step begins, marked by the program or with a training forward.
    pub(super) fn begin(&mut self, forward: Option<&Forward>) {
        let path = forward.and_then(|forward| forward.path.clone());
        if !self.counts.contains_key(&path) && self.counts.len() >= KEPT {
            return;
        }
        let tries_again = std::mem::take(&mut self.taken_back);
        let is_repeated = forward.is_some_and(|forward| forward.repeated);
        let is_new_place = self.counts.get(&path).is_none_or(|count| count.turns == 0);
        if tries_again && path != self.now.path && (is_repeated || is_new_place) {
            // A retry from another line repeats the turn of the forward that failed.
            if let Some(count) = self.counts.get_mut(&self.now.path) {
                count.turns += 1;
                self.now.turn = count.turns;
            }
            return;
        }
        let count = self.counts.entry(path.clone()).or_default();
        if let Some(forward) = forward {
            if forward.unsynchronised {
                return;
            }
            if !forward.repeated {
                count.fresh += 1;
            } else if count.fresh >= FRESH && !tries_again {
                return;
            }
        }
        count.turns += 1;
        self.now.path = path;
        self.now.turn = count.turns;
        self.now.batches = forward.and_then(|forward| forward.batches);
    }

    /// The forward that began the turn raised an exception; the next one may be a retry.
    pub(super) fn failed(&mut self) {
        // Batch counts identify a retry. Without them, one is assumed.
        if self.now.path.is_some()
            && self.now.batches.is_none()
            && let Some(count) = self.counts.get_mut(&self.now.path)
        {
            self.taken_back = true;
            count.turns = count.turns.saturating_sub(1);
            self.now.turn = count.turns;
        }
    }

    pub(super) const fn lost(&mut self) {
        self.now.lossy = true;
    }

    pub(super) fn position(&self) -> Position {
        self.now.clone()
    }

    /// Number of the current turn; 0: before the first.
    #[must_use]
    pub const fn turn(&self) -> u64 {
        self.now.turn
    }

    /// Whether turns are training forwards.
    #[must_use]
    pub const fn are_forwards(&self) -> bool {
        self.now.path.is_some()
    }

    /// Batches drawn before the current turn.
    #[must_use]
    pub const fn batches(&self) -> Option<u64> {
        self.now.batches
    }
}

/// The history of a group.
#[derive(Debug, Default)]
pub struct History {
    recent: VecDeque<Meeting>,
    relations: BTreeMap<u32, Relation>,
    /// Latest silent turn of each rank.
    skips: BTreeMap<u32, Skip>,
    slip: Option<Slip>,
    last: u64,
}

/// Calls that met and agree.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// Sequence number of the calls.
    pub seq: u64,
    /// Calls by rank, ascending.
    pub calls: Vec<Met>,
}

/// One rank's call in a meeting.
#[derive(Clone, Debug)]
pub struct Met {
    /// The rank.
    pub rank: u32,
    /// Line in the user's program.
    pub place: Option<Arc<Where>>,
}

/// A turn without calls of a rank, while others made theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skip {
    /// The turn.
    pub turn: u64,
    /// Sequence number of the first call after it.
    pub seq: u64,
}

/// Ranks that pair calls which do not belong together, and continue.
#[derive(Clone, Debug)]
pub struct Slip {
    /// First sequence number at which they do.
    pub seq: u64,
    /// The calls that met there.
    pub calls: Vec<(u32, Arc<Call>)>,
    /// How far each rank is ahead of the lowest member, for ranks whose relation changed.
    pub shifted: BTreeMap<u32, By>,
    /// Ranks that had silent turns, with the latest such turn.
    pub skipped: BTreeMap<u32, u64>,
    /// The first shifted call of each rank that had its silent turn after the slip was established.
    pub later: BTreeMap<u32, Arc<Call>>,
    /// When the shift had lasted long enough.
    pub at: Timestamp,
}

/// Distance between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// A number of turns.
    Turns(i64),
    /// A number of calls.
    Calls(i64),
}

/// The first shifted calls.
#[derive(Clone, Debug)]
struct Began {
    seq: u64,
    calls: Vec<(u32, Arc<Call>)>,
}

/// The relation of one rank to the lowest member.
#[derive(Debug, Default)]
struct Relation {
    turns: Vec<(PathPair, Steps)>,
    lines: Lines,
}

type PathPair = (Option<Arc<str>>, Option<Arc<str>>);

#[derive(Debug)]
struct Steps {
    offset: i64,
    held: u32,
    last: (Spot, Spot),
    candidate: Option<Candidate>,
}

/// Progress of a rank at the latest meeting.
#[derive(Debug)]
struct Spot {
    turn: u64,
    batches: Option<u64>,
    /// Number of batches that it draws per turn.
    usual: Option<u64>,
}

/// Progress of a rank from one meeting to the next.
struct Went {
    turns: u64,
    batches: Option<u64>,
}

#[derive(Debug)]
struct Candidate {
    offset: i64,
    held: u32,
    began: Began,
    skipped: BTreeMap<u32, u64>,
}

#[derive(Debug, Default)]
struct Lines {
    partners: BTreeMap<Arc<Where>, Partner>,
    shift: Option<Shift>,
    /// The lines turned out to have no habitual partners.
    given_up: bool,
}

#[derive(Debug)]
struct Partner {
    line: Arc<Where>,
    count: u32,
    ambiguous: bool,
}

#[derive(Debug)]
struct Shift {
    /// The first meeting out of order.
    began: Began,
    /// The line that met a new line, if the shift began with one.
    extra: Option<Arc<Where>>,
    /// The first meeting of known lines that do not belong together, and these lines.
    known: Option<(u64, Arc<Where>, Arc<Where>)>,
    rounds: u32,
    /// The difference of turns before the shift; `None`: turns are unknown.
    offset: Option<i64>,
    /// Calls of different turns have met.
    across_turns: bool,
    regular: u32,
}

impl History {
    /// The slip of the group, once it has lasted for some turns.
    #[must_use]
    pub const fn slip(&self) -> Option<&Slip> {
        self.slip.as_ref()
    }

    /// The latest silent turn of a rank.
    #[must_use]
    pub fn skip_of(&self, rank: u32) -> Option<Skip> {
        self.skips.get(&rank).copied()
    }

    /// The latest meetings, newest first.
    pub fn recent(&self) -> impl Iterator<Item = &Meeting> {
        self.recent.iter().rev()
    }

    /// Adds a collective that every member has entered with agreeing calls.
    pub(super) fn observe(&mut self, seq: u64, join: &Join, members: usize) {
        if seq <= self.last || members < 2 {
            return;
        }
        self.last = seq;
        if join.calls.len() < members || join.calls.values().any(|call| call.position.lossy) {
            // Without all calls, nothing that follows can be related to what was before.
            self.relations.clear();
            self.recent.clear();
            return;
        }
        self.recent.push_back(Meeting {
            seq,
            calls: join
                .calls
                .iter()
                .map(|(&rank, joined)| Met {
                    rank,
                    place: joined.call.place.clone(),
                })
                .collect(),
        });
        if self.recent.len() > WINDOW {
            self.recent.pop_front();
        }
        self.relate(seq, join);
    }

    fn relate(&mut self, seq: u64, join: &Join) {
        let mut calls = join.calls.iter();
        let Some((&lowest, reference)) = calls.next() else {
            return;
        };
        let mut shifted: BTreeMap<u32, By> = BTreeMap::new();
        let mut began: Option<Began> = None;
        let mut skipped: BTreeMap<u32, u64> = BTreeMap::new();
        for (&rank, joined) in calls {
            let relation = self.relations.entry(rank).or_default();
            let (here, there) = (&reference.position, &joined.position);
            let known = here.turn > 0 && there.turn > 0;
            let mut offset = None;
            if known {
                let steps = relation.steps(here, there);
                offset = Some(steps.offset);
                let silent = steps.observe(seq, (lowest, here), (rank, there), join);
                for (rank, turn) in silent {
                    self.skips.insert(rank, Skip { turn, seq });
                }
                if let Some((by, candidate)) = steps.take_established() {
                    shifted.insert(rank, By::Turns(by));
                    skipped.extend(&candidate.skipped);
                    began.get_or_insert(candidate.began);
                }
            }
            let difference = known.then(|| difference(here.turn, there.turn));
            let lines = (&reference.call.place, &joined.call.place);
            if self.slip.is_some() {
                continue;
            }
            if let (Some(a), Some(b)) = lines
                && let Some((by, first)) = relation.lines.observe(
                    seq,
                    rank,
                    (a, b),
                    (offset, difference),
                    join,
                    &self.recent,
                )
            {
                shifted.entry(rank).or_insert(By::Calls(by));
                began.get_or_insert(first);
            }
        }
        let Some(Began { seq, calls }) = began else {
            return;
        };
        match &mut self.slip {
            Some(slip) => slip.extend(&calls, shifted, skipped),
            None => {
                let last = join.calls.values().map(|joined| joined.call.at).max();
                self.slip = Some(Slip {
                    seq,
                    calls,
                    shifted,
                    skipped,
                    later: BTreeMap::new(),
                    at: last.unwrap_or_default(),
                });
            }
        }
    }
}

impl Began {
    fn at(seq: u64, join: &Join) -> Self {
        let calls = join.calls.iter();
        let calls = calls.map(|(&rank, joined)| (rank, Arc::clone(&joined.call)));
        Self {
            seq,
            calls: calls.collect(),
        }
    }
}

impl Slip {
    /// Adds ranks that had a silent turn after the slip was established.
    fn extend(
        &mut self,
        calls: &[(u32, Arc<Call>)],
        shifted: BTreeMap<u32, By>,
        skipped: BTreeMap<u32, u64>,
    ) {
        for (rank, turn) in skipped {
            let call = calls.iter().find(|(other, _)| *other == rank);
            if let (false, Some((_, call))) = (self.skipped.contains_key(&rank), call) {
                self.skipped.insert(rank, turn);
                self.later.insert(rank, Arc::clone(call));
            }
        }
        for (rank, by) in shifted {
            self.shifted.entry(rank).or_insert(by);
        }
    }

    /// Ranks grouped by their shift, largest class first.
    #[must_use]
    pub fn classes(&self) -> Vec<Vec<u32>> {
        let mut classes: BTreeMap<Option<By>, Vec<u32>> = BTreeMap::new();
        for (rank, _) in &self.calls {
            let by = self.shifted.get(rank).copied();
            classes.entry(by).or_default().push(*rank);
        }
        let mut classes: Vec<Vec<u32>> = classes.into_values().collect();
        classes.sort_by_key(|ranks| (std::cmp::Reverse(ranks.len()), ranks[0]));
        classes
    }
}

impl Relation {
    fn steps(&mut self, here: &Position, there: &Position) -> &mut Steps {
        let known = self
            .turns
            .iter()
            .position(|((a, b), _)| *a == here.path && *b == there.path);
        let at = known.unwrap_or_else(|| {
            if self.turns.len() >= KEPT {
                self.turns.clear();
            }
            let steps = Steps {
                offset: difference(here.turn, there.turn),
                held: 0,
                last: (Spot::of(here), Spot::of(there)),
                candidate: None,
            };
            self.turns
                .push(((here.path.clone(), there.path.clone()), steps));
            self.turns.len() - 1
        });
        &mut self.turns[at].1
    }
}

impl Steps {
    /// Adds a meeting. Returns the silent turns since the previous one.
    fn observe(
        &mut self,
        seq: u64,
        (lowest, here): (u32, &Position),
        (rank, there): (u32, &Position),
        join: &Join,
    ) -> Vec<(u32, u64)> {
        let went = (self.last.0.pass(here), self.last.1.pass(there));
        let now = difference(here.turn, there.turn);
        let together = (went.0.turns, went.1.turns) == (1, 1);
        let dense = went.0.turns <= 1 && went.1.turns <= 1;
        if together {
            self.last.0.usual = went.0.batches;
            self.last.1.usual = went.1.batches;
        }
        if let Some(candidate) = self.candidate.as_mut().filter(|_| dense) {
            if now == candidate.offset {
                candidate.held += u32::from(together);
            } else {
                self.rebase(now);
            }
            return Vec::new();
        }
        if now == self.offset {
            if together {
                self.held = self.held.saturating_add(1);
            } else if !dense {
                self.rebase(now);
            }
            return Vec::new();
        }
        // One rank began several turns without a call between them; the other made calls in each
        // turn.
        let silent: Vec<(u32, u64)> = match (went.0.turns, went.1.turns) {
            (1, 2..=MOST_SILENT) if self.last.1.drew_for(&went.1) => {
                went.1.silent(there).map(|turn| (rank, turn)).collect()
            }
            (2..=MOST_SILENT, 1) if self.last.0.drew_for(&went.0) => {
                went.0.silent(here).map(|turn| (lowest, turn)).collect()
            }
            _ => Vec::new(),
        };
        if silent.is_empty() {
            self.rebase(now);
            return Vec::new();
        }
        if let Some(candidate) = &mut self.candidate {
            // Another silent turn before the first shift was established.
            candidate.offset = now;
            candidate.held = 0;
            candidate.skipped.extend(silent.iter().copied());
            return silent;
        }
        if self.held < HELD {
            self.rebase(now);
            return silent;
        }
        self.candidate = Some(Candidate {
            offset: now,
            held: 0,
            began: Began::at(seq, join),
            skipped: silent.iter().copied().collect(),
        });
        silent
    }

    fn rebase(&mut self, offset: i64) {
        self.offset = offset;
        self.held = 0;
        self.candidate = None;
    }

    /// The change of the relation, once it has lasted, and the turns by which it changed. It is the
    /// relation from then on.
    fn take_established(&mut self) -> Option<(i64, Candidate)> {
        let lasts = |candidate: &mut Candidate| candidate.held >= PERSISTS;
        let candidate = self.candidate.take_if(lasts)?;
        let by = candidate.offset - self.offset;
        self.offset = candidate.offset;
        Some((by, candidate))
    }
}

impl Spot {
    const fn of(position: &Position) -> Self {
        Self {
            turn: position.turn,
            batches: position.batches,
            usual: None,
        }
    }

    /// Advances to the current position; returns the progress.
    fn pass(&mut self, now: &Position) -> Went {
        let batches = self.batches.zip(now.batches);
        let went = Went {
            turns: now.turn.saturating_sub(self.turn),
            batches: batches.map(|(before, now)| now.saturating_sub(before)),
        };
        (self.turn, self.batches) = (now.turn, now.batches);
        went
    }

    /// Whether each of the turns drew its usual number of batches, if input is observed. A turn
    /// without batches was a retry.
    fn drew_for(&self, went: &Went) -> bool {
        match (self.usual, went.batches) {
            (Some(usual), Some(batches)) => batches >= usual.saturating_mul(went.turns),
            _ => true,
        }
    }
}

impl Went {
    /// The silent turns: those before the current one.
    fn silent(&self, now: &Position) -> std::ops::Range<u64> {
        now.turn - self.turns + 1..now.turn
    }
}

impl Lines {
    /// Adds the lines that met. Once the ranks are a constant number of calls apart, returns that
    /// number and the first shifted calls.
    fn observe(
        &mut self,
        seq: u64,
        rank: u32,
        (a, b): (&Arc<Where>, &Arc<Where>),
        (offset, difference): (Option<i64>, Option<i64>),
        join: &Join,
        recent: &VecDeque<Meeting>,
    ) -> Option<(i64, Began)> {
        if self.given_up {
            return None;
        }
        let Some(partner) = self.partners.get_mut(a) else {
            if self.shift.is_some() || self.partners.len() >= KEPT {
                self.give_up();
                return None;
            }
            self.partners.insert(
                Arc::clone(a),
                Partner {
                    line: Arc::clone(b),
                    count: 1,
                    ambiguous: false,
                },
            );
            return None;
        };
        if partner.line == *b {
            partner.count = partner.count.saturating_add(1);
            self.regular();
            return None;
        }
        let habitual = |partner: &Partner| partner.count >= HABIT && !partner.ambiguous;
        let own = habitual(partner);
        let mut others = self.partners.iter().filter(|(line, _)| *line != a);
        let (known, expected) = match others.find(|(_, partner)| partner.line == *b) {
            Some((_, partner)) => (true, habitual(partner)),
            None => (false, false),
        };
        // The first new line may be an additional call.
        let extra = !known && self.shift.is_none();
        if !own || !(expected || extra) {
            if let Some(partner) = self.partners.get_mut(a) {
                partner.ambiguous = true;
            }
            if self.shift.is_some() {
                self.give_up();
            }
            return None;
        }
        let shift = self.shift.get_or_insert_with(|| Shift {
            began: Began::at(seq, join),
            extra: extra.then(|| Arc::clone(a)),
            known: None,
            rounds: 0,
            offset,
            across_turns: false,
            regular: 0,
        });
        shift.regular = 0;
        shift.across_turns |= difference.is_some() && difference != shift.offset;
        if extra {
            return None;
        }
        let first = shift
            .known
            .get_or_insert_with(|| (seq, Arc::clone(a), Arc::clone(b)));
        if (a, b) != (&first.1, &first.2) {
            return None;
        }
        let since = first.0;
        shift.rounds += 1;
        if shift.rounds <= PERSISTS {
            return None;
        }
        let window: Vec<(&Arc<Where>, &Arc<Where>)> = recent
            .iter()
            .filter(|meeting| meeting.seq >= since)
            .filter_map(|meeting| {
                let own = meeting.calls.iter().find(|met| met.rank == rank)?;
                Some((meeting.calls.first()?.place.as_ref()?, own.place.as_ref()?))
            })
            .collect();
        let mut lines: Vec<&Arc<Where>> = window.iter().map(|(a, _)| *a).collect();
        lines.sort_unstable();
        lines.dedup();
        // Two alternating lines may be swapped as well as shifted; only steps distinguish these
        // cases.
        let told = match shift.offset {
            Some(_) => shift.across_turns,
            None => lines.len() >= 3,
        };
        let apart = told.then(|| moved_by(&window, &self.partners)).flatten();
        if let Some(by) = apart {
            return Some((by, shift.began.clone()));
        }
        if shift.rounds > 3 * PERSISTS {
            self.give_up();
        }
        None
    }

    /// Two lines met that belong together.
    fn regular(&mut self) {
        let Some(shift) = &mut self.shift else { return };
        shift.regular += 1;
        if shift.known.is_none() {
            // One call from another line, then the usual pairs: the call may come from either line.
            let extra = self.shift.take().and_then(|shift| shift.extra);
            if let Some(partner) = extra.and_then(|line| self.partners.get_mut(&line)) {
                partner.ambiguous = true;
            }
        } else if shift.regular as usize > 2 * self.partners.len() {
            // The disorder has passed, so these lines have no habitual partners.
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        self.given_up = true;
        self.partners.clear();
        self.shift = None;
    }
}

/// Number of calls by which the second sequence of lines is ahead of the first, according to the
/// habitual partners.
fn moved_by(
    window: &[(&Arc<Where>, &Arc<Where>)],
    partners: &BTreeMap<Arc<Where>, Partner>,
) -> Option<i64> {
    let furthest = FURTHEST.min(window.len() / 2);
    let fits = |by: i64| {
        window.iter().enumerate().all(|(i, (_, b))| {
            let at = i as i64 + by;
            let peer = usize::try_from(at).ok().and_then(|at| window.get(at));
            peer.is_none_or(|(a, _)| partners.get(*a).is_some_and(|p| p.line == **b))
        })
    };
    (1..=furthest as i64)
        .flat_map(|by| [by, -by])
        .find(|&by| fits(by))
}

fn difference(here: u64, there: u64) -> i64 {
    there.cast_signed().wrapping_sub(here.cast_signed())
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
