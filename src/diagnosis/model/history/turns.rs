//! Turns of a rank: the steps to which its calls belong.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::input::event::{Forward, ThreadId};

/// Maximum number of lines whose forwards are counted, per rank.
const MAX_LINES: usize = 128;
/// Number of forwards on new input after which a forward on the same input counts as a repetition.
const FRESH: u64 = 3;

/// The turn of a rank in which a call is issued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Place of the forwards that are counted; `None`: the program marks steps.
    pub(super) path: Option<Arc<str>>,
    /// Number of turns so far; 0: none is known.
    pub turn: u64,
    /// Batches drawn before the turn, if input is observed.
    pub batches: Option<u64>,
    /// The turn is unknown: records of the rank had been lost before, or another thread began it than
    /// uses the group.
    pub(super) lossy: bool,
}

/// The turns of a rank so far.
#[derive(Debug, Default)]
pub struct Turns {
    /// Position of the next call.
    now: Position,
    /// The thread that began the turn.
    thread: Option<ThreadId>,
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
    pub(in crate::model) fn begin(&mut self, thread: ThreadId, forward: Option<&Forward>) {
        self.thread = Some(thread);
        let path = forward.and_then(|forward| forward.path.clone());
        if !self.counts.contains_key(&path) && self.counts.len() >= MAX_LINES {
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
            if forward.unsynchronized {
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
    pub(in crate::model) fn failed(&mut self) {
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

    pub(in crate::model) const fn lost(&mut self) {
        self.now.lossy = true;
    }

    /// The turn of the next call in a group whose first call came from this thread. Calls beside the
    /// training loop belong to no turn.
    pub(in crate::model) fn position(&self, first: ThreadId) -> Position {
        let mut position = self.now.clone();
        position.lossy |= self.thread.is_some_and(|thread| thread != first);
        position
    }

    /// Whether turns are training forwards.
    pub const fn are_forwards(&self) -> bool {
        self.now.path.is_some()
    }

    /// Batches drawn before the current turn.
    pub const fn batches(&self) -> Option<u64> {
        self.now.batches
    }
}
