//! The relation of ranks to the lowest member of their group.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::Join;
use crate::model::history::Position;

use super::lines::Lines;
use super::{Began, MAX_KEPT, PERSISTS};

/// Number of turns for which a relation must hold before a change of it counts.
const HELD: u32 = 3;
/// Maximum number of turns from one call of a rank to the next; beyond it, the rank does not just
/// skip steps.
const MAX_SILENT: u64 = 16;

/// The relation of a class of ranks to the lowest member.
#[derive(Clone, Debug, Default)]
pub(super) struct Relation {
    turns: Vec<(PathPair, Steps)>,
    pub(super) lines: Lines,
}

/// Whose turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Of {
    /// The lowest member.
    Lowest,
    /// The ranks of the class.
    Ranks,
}

type PathPair = (Option<Arc<str>>, Option<Arc<str>>);

#[derive(Clone, Debug)]
pub(super) struct Steps {
    /// The difference of turns that has held for long enough.
    pub(super) offset: i64,
    held: u32,
    last: (Spot, Spot),
    candidate: Option<Candidate>,
    early: Option<Early>,
}

/// Progress of a rank at the latest meeting.
#[derive(Clone, Debug)]
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

/// A change of the relation that may last.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    offset: i64,
    held: u32,
    pub(super) began: Began,
    /// The latest silent turns that led to the change.
    pub(super) skipped: BTreeMap<Of, u64>,
}

/// Silent turns before the relation had held long enough. They are not a slip by themselves: a rank may
/// begin with a turn of its own.
#[derive(Clone, Debug)]
pub(super) struct Early {
    pub(super) began: Began,
    /// The latest of them.
    pub(super) skipped: (Of, u64),
}

impl Relation {
    fn steps(&mut self, here: &Position, there: &Position) -> &mut Steps {
        let at = self.position(here, there).unwrap_or_else(|| {
            if self.turns.len() >= MAX_KEPT {
                self.turns.clear();
            }
            let steps = Steps {
                offset: difference(here.turn, there.turn),
                held: 0,
                last: (Spot::new(here), Spot::new(there)),
                candidate: None,
                early: None,
            };
            self.turns.push(((here.path.clone(), there.path.clone()), steps));
            self.turns.len() - 1
        });
        &mut self.turns[at].1
    }

    /// Adds a meeting. Returns its steps, and the latest silent turn since the previous one.
    pub(super) fn observe(
        &mut self,
        seq: u64,
        here: &Position,
        there: &Position,
        join: &Join,
    ) -> (&mut Steps, Option<(Of, u64)>) {
        let pairs = || self.turns.iter();
        let ours = pairs().filter(|((path, _), _)| *path == here.path);
        let theirs = pairs().filter(|((_, path), _)| *path == there.path);
        let paired = (
            ours.map(|(_, steps)| steps.last.0.turn).max().unwrap_or(0),
            theirs.map(|(_, steps)| steps.last.1.turn).max().unwrap_or(0),
        );
        let steps = self.steps(here, there);
        let silent = steps.observe(seq, (here, there), paired, join);
        (steps, silent)
    }

    pub(super) fn known_steps(&self, here: &Position, there: &Position) -> Option<&Steps> {
        Some(&self.turns[self.position(here, there)?].1)
    }

    fn position(&self, here: &Position, there: &Position) -> Option<usize> {
        let mut turns = self.turns.iter();
        turns.position(|((a, b), _)| *a == here.path && *b == there.path)
    }
}

impl Steps {
    /// Adds a meeting. Returns the latest silent turn since the previous one. `paired`: the latest turns of
    /// these paths that met, also with other paths.
    fn observe(
        &mut self,
        seq: u64,
        (here, there): (&Position, &Position),
        paired: (u64, u64),
        join: &Join,
    ) -> Option<(Of, u64)> {
        let unmet = (paired.0 <= self.last.0.turn, paired.1 <= self.last.1.turn);
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
            return None;
        }
        if now == self.offset {
            if together {
                self.held = self.held.saturating_add(1);
            } else if !dense {
                self.rebase(now);
            }
            return None;
        }
        // One rank began several turns without a call between them; the other made calls in each
        // turn. All turns but the current one were silent.
        let silent = match (went.0.turns, went.1.turns) {
            (1, 2..=MAX_SILENT) if unmet.1 && self.last.1.drew_for(&went.1) => {
                (Of::Ranks, there.turn - 1)
            }
            (2..=MAX_SILENT, 1) if unmet.0 && self.last.0.drew_for(&went.0) => {
                (Of::Lowest, here.turn - 1)
            }
            _ => {
                self.rebase(now);
                return None;
            }
        };
        if let Some(candidate) = &mut self.candidate {
            // Another silent turn before the first shift was established.
            candidate.offset = now;
            candidate.held = 0;
            candidate.skipped.extend([silent]);
            return Some(silent);
        }
        if self.held < HELD {
            let early =
                (self.held > 0).then(|| Early { began: Began::at(seq, join), skipped: silent });
            self.rebase(now);
            self.early = early;
            return Some(silent);
        }
        self.candidate = Some(Candidate {
            offset: now,
            held: 0,
            began: Began::at(seq, join),
            skipped: [silent].into(),
        });
        Some(silent)
    }

    fn rebase(&mut self, offset: i64) {
        self.offset = offset;
        self.held = 0;
        self.candidate = None;
        self.early = None;
    }

    /// Silent turns before the relation had held long enough, if the relation since then has.
    pub(super) fn early(&self) -> Option<&Early> {
        self.early.as_ref().filter(|_| self.held >= HELD)
    }

    /// The change of the relation, once it has lasted, and the turns by which it changed. It is the
    /// relation from then on.
    pub(super) fn take_established(&mut self) -> Option<(i64, Candidate)> {
        let lasts = |candidate: &mut Candidate| candidate.held >= PERSISTS;
        let candidate = self.candidate.take_if(lasts)?;
        let by = candidate.offset - self.offset;
        self.offset = candidate.offset;
        Some((by, candidate))
    }
}

impl Spot {
    const fn new(position: &Position) -> Self {
        Self { turn: position.turn, batches: position.batches, usual: None }
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

pub(super) fn difference(here: u64, there: u64) -> i64 {
    there.cast_signed().wrapping_sub(here.cast_signed())
}
