//! What a group's past says about how its ranks go together: which steps and which lines meet.
//!
//! Different lines at one sequence number are normal, and so are step counters that differ. What is
//! not: a relation that held, and from one call on is another one for good. So everything here is
//! compared by *change*, rank by rank against the lowest member, over the calls that every member
//! made and that agreed.
//!
//! # Steps
//!
//! A rank's calls belong to its *turns*: training forwards that are to synchronise gradients, counted
//! by the place they are made at, or steps that the program marks ([`Turns`]). Between two ranks the
//! difference of turns is constant as long as both make the same calls in every turn. It shifts when
//! a rank passes a turn *in silence*: it began one and made no call in it, while the other made its
//! own. A turn without a call of its own is the only shift that counts: a rank that joins in calls
//! without a forward (`Join`, a dummy backward) makes calls and no turns, and a rank that repeats a
//! forward on the same input, or under `no_sync`, makes no turn.
//!
//! # Lines
//!
//! Where lines that belong together by long habit meet other known lines instead, and the sequence of
//! one rank is that of the other moved by a constant number of calls, the ranks are that many calls
//! apart.
//!
//! Memory is bounded: a window of meetings, and per rank a few relations.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ddp_doctor_proto::report::{Timestamp, Where};

use super::group::Join;
use crate::diagnosis::event::{Call, Forward};

/// Turns for which a relation has to hold before a change of it means anything.
const HELD: u32 = 3;
/// Turns after the first shifted one for which the new relation has to hold.
const PERSISTS: u32 = 2;
/// Meetings that are remembered.
const WINDOW: usize = 64;
/// Calls that two ranks may be apart.
const FURTHEST: usize = 16;
/// How often lines must have met before it is a habit.
const HABIT: u32 = 3;
/// Turns after which a rank that makes no call does something else than to leave out steps.
const MOST_SILENT: u64 = 16;
/// Relations and lines of one rank that are remembered.
const KEPT: usize = 128;
/// Forwards on new input after which one on the old input is a repetition.
const FRESH: u64 = 3;

/// Where a call stands in its rank's turns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The place at which turns are counted.
    path: Option<Arc<str>>,
    /// How many there were; 0: none is known.
    pub turn: u64,
    /// Batches that were drawn before the turn, where input is seen.
    pub batches: Option<u64>,
    /// Records of the rank had been lost before.
    lossy: bool,
}

/// A rank's turns so far.
#[derive(Debug, Default)]
pub struct Turns {
    /// Where the next call stands.
    now: Position,
    /// The turn was taken back, for what follows to count as another try at it.
    taken_back: bool,
    counts: BTreeMap<Option<Arc<str>>, Count>,
}

#[derive(Debug, Default)]
struct Count {
    turns: u64,
    fresh: u64,
}

impl Turns {
    /// A step begins: by the program's mark, or with a training forward.
    pub(super) fn begin(&mut self, forward: Option<&Forward>) {
        let path = forward.and_then(|forward| forward.path.clone());
        if !self.counts.contains_key(&path) && self.counts.len() >= KEPT {
            return;
        }
        let tries_again = std::mem::take(&mut self.taken_back);
        let is_repeated = forward.is_some_and(|forward| forward.repeated);
        let is_new_place = self.counts.get(&path).is_none_or(|count| count.turns == 0);
        if tries_again && path != self.now.path && (is_repeated || is_new_place) {
            // Another try, from a line of its own: the turn is that of the place which failed.
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

    /// The forward that began the turn ended in an exception, and what follows may be another try.
    pub(super) fn failed(&mut self) {
        // Batches tell whether it is one; without them nothing does, and it counts as one.
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

    /// The turn it is in; 0 before the first.
    #[must_use]
    pub const fn turn(&self) -> u64 {
        self.now.turn
    }

    /// Whether it was a training forward that began it.
    #[must_use]
    pub const fn are_forwards(&self) -> bool {
        self.now.path.is_some()
    }

    /// Batches that were drawn before it.
    #[must_use]
    pub const fn batches(&self) -> Option<u64> {
        self.now.batches
    }
}

/// A group's past.
#[derive(Debug, Default)]
pub struct History {
    recent: VecDeque<Meeting>,
    relations: BTreeMap<u32, Relation>,
    /// Turns that ranks passed in silence while others made calls in theirs: the last of each.
    skips: BTreeMap<u32, Skip>,
    slip: Option<Slip>,
    last: u64,
}

/// Calls that met, and agreed.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// Their sequence number.
    pub seq: u64,
    /// By rank, ascending.
    pub calls: Vec<Met>,
}

/// One rank's call in a meeting.
#[derive(Clone, Debug)]
pub struct Met {
    /// The rank.
    pub rank: u32,
    /// The user's line.
    pub place: Option<Arc<Where>>,
}

/// A turn that a rank passed in silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skip {
    /// The turn.
    pub turn: u64,
    /// The first call after it.
    pub seq: u64,
}

/// Ranks pair calls that do not belong together, and go on.
#[derive(Clone, Debug)]
pub struct Slip {
    /// The first sequence number at which they do.
    pub seq: u64,
    /// The calls that met there.
    pub calls: Vec<(u32, Arc<Call>)>,
    /// By how much each rank is ahead of the lowest member, where that changed.
    pub shifted: BTreeMap<u32, By>,
    /// The ranks that passed a turn in silence.
    pub skipped: BTreeMap<u32, u64>,
    /// When it had stood long enough.
    pub at: Timestamp,
}

/// How far ranks are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// Turns.
    Turns(i64),
    /// Calls.
    Calls(i64),
}

/// The first calls that are shifted.
#[derive(Clone, Debug)]
struct Began {
    seq: u64,
    calls: Vec<(u32, Arc<Call>)>,
}

/// How one rank goes together with the lowest member.
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

/// How far a rank had come at the last meeting.
#[derive(Debug)]
struct Spot {
    turn: u64,
    batches: Option<u64>,
    /// Batches that it draws for a turn.
    usual: Option<u64>,
}

/// How far a rank went from one meeting to the next.
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
    /// Habits turned out to be none.
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
    /// The first meeting that is out of order.
    began: Began,
    /// The line that met one which was never seen before, where that is how it began.
    extra: Option<Arc<Where>>,
    /// The first at which known lines met that do not belong together, and these.
    known: Option<(u64, Arc<Where>, Arc<Where>)>,
    rounds: u32,
    /// The difference of turns as it had been; `None`: turns are not known.
    offset: Option<i64>,
    /// Calls of different turns have met.
    across_turns: bool,
    regular: u32,
}

impl History {
    /// Ranks that pair calls which do not belong together, once that has stood for some turns.
    #[must_use]
    pub const fn slip(&self) -> Option<&Slip> {
        self.slip.as_ref()
    }

    /// The turn that a rank last passed in silence while others made calls in theirs.
    #[must_use]
    pub fn skip_of(&self, rank: u32) -> Option<Skip> {
        self.skips.get(&rank).copied()
    }

    /// The latest meetings, newest first.
    pub fn recent(&self) -> impl Iterator<Item = &Meeting> {
        self.recent.iter().rev()
    }

    /// Everybody has made this call and all agree.
    pub(super) fn observe(&mut self, seq: u64, join: &Join, members: usize) {
        if seq <= self.last || members < 2 {
            return;
        }
        self.last = seq;
        if join.calls.len() < members || join.calls.values().any(|call| call.position.lossy) {
            // Something was not seen: nothing that follows can be told from what was before.
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
        if self.slip.is_none() {
            self.relate(seq, join);
        }
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
                if let Some(slip) = steps.established() {
                    shifted.insert(rank, By::Turns(slip.offset - steps.offset));
                    skipped.extend(&slip.skipped);
                    began.get_or_insert_with(|| slip.began.clone());
                }
            }
            let difference = known.then(|| difference(here.turn, there.turn));
            let lines = (&reference.call.place, &joined.call.place);
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
        if let Some(Began { seq, calls }) = began {
            let last = join.calls.values().map(|joined| joined.call.at).max();
            self.slip = Some(Slip {
                seq,
                calls,
                shifted,
                skipped,
                at: last.unwrap_or_default(),
            });
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
    /// Ranks that are together as before, largest class first.
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
    /// Takes a meeting; returns the turns that were passed in silence since the one before.
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
        // One of them began a turn, or several, without a call in it; the other went on as ever.
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
            // Once more before the first had stood long enough.
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

    fn established(&self) -> Option<&Candidate> {
        let candidate = self.candidate.as_ref();
        candidate.filter(|candidate| candidate.held >= PERSISTS)
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

    /// Goes on to where the rank is now.
    fn pass(&mut self, now: &Position) -> Went {
        let batches = self.batches.zip(now.batches);
        let went = Went {
            turns: now.turn.saturating_sub(self.turn),
            batches: batches.map(|(before, now)| now.saturating_sub(before)),
        };
        (self.turn, self.batches) = (now.turn, now.batches);
        went
    }

    /// Whether each of the turns had batches of its own, where input is seen. One that drew none was
    /// another try of the one before.
    fn drew_for(&self, went: &Went) -> bool {
        match (self.usual, went.batches) {
            (Some(usual), Some(batches)) => batches >= usual.saturating_mul(went.turns),
            _ => true,
        }
    }
}

impl Went {
    /// The turns before the one it is in now.
    fn silent(&self, now: &Position) -> std::ops::Range<u64> {
        now.turn - self.turns + 1..now.turn
    }
}

impl Lines {
    /// Takes the lines that met; once the ranks are a constant number of calls apart, says how many,
    /// and since when.
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
        // A line that is new here may be a call too many, once.
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
        // Two lines in turn are as well swapped as shifted; only steps tell which.
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

    /// Lines have met that belong together.
    fn regular(&mut self) {
        let Some(shift) = &mut self.shift else { return };
        shift.regular += 1;
        if shift.known.is_none() {
            // A call from another line, and all goes on as before: so it may come from either.
            let extra = self.shift.take().and_then(|shift| shift.extra);
            if let Some(partner) = extra.and_then(|line| self.partners.get_mut(&line)) {
                partner.ambiguous = true;
            }
        } else if shift.regular as usize > 2 * self.partners.len() {
            // A moment's disorder: whatever it was, these lines are no habit.
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        self.given_up = true;
        self.partners.clear();
        self.shift = None;
    }
}

/// By how many calls the second sequence of lines is ahead of the first, by these habits.
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
