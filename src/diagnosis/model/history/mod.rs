//! History of a group: which steps and which lines of its ranks have met.
//!
//! Ranks may call one collective from different lines and have different step counters. An error
//! shows as a *change*: a relation that held is permanently replaced by another from one call on.
//! So each rank is compared with the lowest member, over the calls that every member made and that
//! agree.
//!
//! # Steps
//!
//! A rank's calls belong to its *turns*: training forwards that are to synchronize gradients,
//! counted by the place that starts them, or steps that the program marks (`turns.rs`). Between two
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

use crate::input::align;
use crate::input::event::Call;
use crate::model::{Join, JoinedCall, keep_latest};

mod lines;
mod relation;
mod turns;

pub(in crate::model) use turns::{Position, Turns};

use relation::{Of, Relation, difference};

/// Number of turns after the first shifted one for which the new relation must hold.
const PERSISTS: u32 = 2;
/// Number of meetings kept.
pub const WINDOW: usize = 64;
/// Maximum number of relations and lines kept per class of ranks.
const MAX_KEPT: usize = 128;
/// Number of classes formed at one meeting that are compared with each other.
const COMPARED: usize = 64;

/// The history of a group.
#[derive(Debug, Default)]
pub struct History {
    recent: VecDeque<Meeting>,
    /// Ranks at the latest meeting, ascending.
    ranks: Arc<[u32]>,
    /// Class of each of them, except for the lowest rank.
    class_of: Vec<u32>,
    /// Relation of each class. Ranks are in one class as long as they have made the same calls in
    /// the same turns, so that the cost of a meeting grows with the variety of its calls.
    classes: Vec<Relation>,
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
    ranks: Arc<[u32]>,
    /// Lines in the user's program: one for all ranks if it is the same, or one for each.
    places: Vec<Option<Arc<Where>>>,
}

/// The call of one class of ranks at a meeting.
struct OfClass<'a> {
    /// First of its ranks, and its call.
    rank: u32,
    joined: &'a JoinedCall,
    /// Last of its ranks.
    last: u32,
    class: usize,
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
    /// The first shifted call of each rank that had its silent turn after the slip began.
    pub later: BTreeMap<u32, Arc<Call>>,
    /// When the shift had lasted long enough.
    pub at: Timestamp,
}

/// What a meeting changed in the relations, by class.
#[derive(Default)]
struct Changes {
    /// How far the class is ahead since the change.
    shifted: Vec<(usize, By)>,
    /// Latest silent turn since the previous meeting.
    silent: BTreeMap<usize, (Of, u64)>,
    /// Silent turns that led to an established change.
    led: BTreeMap<usize, BTreeMap<Of, u64>>,
    /// The first calls shifted by one of the changes.
    began: Option<Began>,
}

/// Distance between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

impl History {
    /// The slip of the group, once it has lasted for some turns.
    pub const fn slip(&self) -> Option<&Slip> {
        self.slip.as_ref()
    }

    /// The latest silent turn of a rank.
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
            self.classes.clear();
            self.class_of.clear();
            self.ranks = Arc::default();
            self.recent.clear();
            return;
        }
        if !self.ranks.iter().eq(join.calls.keys()) {
            self.add_ranks(join);
        }
        keep_latest(&mut self.recent, Meeting::new(seq, &self.ranks, join), WINDOW);
        self.relate(seq, join);
    }

    /// Ranks that were not at the latest meeting form a class of their own.
    fn add_ranks(&mut self, join: &Join) {
        let known: BTreeMap<u32, u32> = self
            .ranks
            .iter()
            .skip(1)
            .zip(&self.class_of)
            .map(|(&rank, &class)| (rank, class))
            .collect();
        let new = self.classes.len() as u32;
        self.classes.push(Relation::default());
        self.ranks = join.calls.keys().copied().collect();
        let ranks = self.ranks.iter().skip(1);
        let classes = ranks.map(|rank| known.get(rank).copied().unwrap_or(new));
        self.class_of = classes.collect();
    }

    /// Divides classes whose ranks made different calls. Returns the classes in the order of their
    /// first ranks.
    fn divide<'a>(&mut self, join: &'a Join) -> Vec<OfClass<'a>> {
        let mut found: Vec<OfClass<'a>> = Vec::new();
        // Index in `found` by class.
        let mut index: Vec<Option<usize>> = vec![None; self.classes.len()];
        let mut divided: Vec<(usize, usize)> = Vec::new();
        let calls = join.calls.iter().skip(1);
        for ((&rank, joined), class) in calls.zip(&mut self.class_of) {
            let from = *class as usize;
            let is_alike = |it: &OfClass<'_>| {
                it.joined.position == joined.position && it.joined.call.place == joined.call.place
            };
            let known = index[from].map_or(Some(from), |of| is_alike(&found[of]).then_some(from));
            let existing = known.or_else(|| {
                let mut latest = divided.iter().rev().take(COMPARED);
                let same = latest.find(|(of, at)| *of == from && is_alike(&found[*at]));
                same.map(|(_, at)| found[*at].class)
            });
            let class_here = existing.unwrap_or_else(|| {
                let relation = self.classes[from].clone();
                self.classes.push(relation);
                index.push(None);
                divided.push((from, found.len()));
                self.classes.len() - 1
            });
            *class = class_here as u32;
            match index[class_here] {
                Some(of) => found[of].last = rank,
                None => {
                    index[class_here] = Some(found.len());
                    found.push(OfClass { rank, joined, last: rank, class: class_here });
                }
            }
        }
        found
    }

    /// Updates the relations of all classes, and the silent turns and the slip that follow from them.
    fn relate(&mut self, seq: u64, join: &Join) {
        let Some(reference) = join.calls.values().next() else { return };
        let mut found = self.divide(join);
        let changes = self.update_relations(seq, join, reference, &found);
        if changes.silent.is_empty() && changes.began.is_none() {
            return;
        }
        // For the lowest rank, the relation to the last of the ranks counts.
        found.sort_by_key(|it| it.last);
        for it in &found {
            if let Some(&(of, turn)) = changes.silent.get(&it.class) {
                for rank in self.ranks_of(of, it.class) {
                    self.skips.insert(rank, Skip { turn, seq });
                }
            }
        }
        let Some(began) = changes.began else { return };
        let mut skipped: BTreeMap<u32, u64> = BTreeMap::new();
        for it in &found {
            for (&of, &turn) in changes.led.get(&it.class).into_iter().flatten() {
                skipped.extend(self.ranks_of(of, it.class).into_iter().map(|rank| (rank, turn)));
            }
        }
        let shifted: BTreeMap<u32, By> = changes
            .shifted
            .iter()
            .flat_map(|&(class, by)| {
                let ranks = self.ranks_of(Of::Ranks, class);
                ranks.into_iter().map(move |rank| (rank, by))
            })
            .collect();
        if let Some(slip) = &mut self.slip {
            slip.extend(&began.calls, shifted, skipped);
            return;
        }
        let mut silent = Vec::new();
        // Lines alone do not tell which rank left something out.
        if !skipped.is_empty() {
            silent = self.early(reference, &found);
            silent.sort_by_key(|(began, _)| began.seq);
        }
        silent.push((began, skipped));
        let last = join.calls.values().map(|joined| joined.call.at).max();
        self.slip = Slip::new(silent, shifted, last.unwrap_or_default());
    }

    /// Adds the calls to the relation of each class.
    fn update_relations(
        &mut self,
        seq: u64,
        join: &Join,
        reference: &JoinedCall,
        found: &[OfClass<'_>],
    ) -> Changes {
        let mut changes = Changes::default();
        for it in found {
            let relation = &mut self.classes[it.class];
            let (here, there) = (&reference.position, &it.joined.position);
            let known = here.turn > 0 && there.turn > 0;
            let mut offset = None;
            let mut shifted = None;
            if known {
                offset = relation.known_steps(here, there).map(|steps| steps.offset);
                let (steps, silent) = relation.observe(seq, here, there, join);
                offset.get_or_insert(steps.offset);
                changes.silent.extend(silent.map(|silent| (it.class, silent)));
                if let Some((by, candidate)) = steps.take_established() {
                    shifted = Some(By::Turns(by));
                    changes.led.insert(it.class, candidate.skipped);
                    changes.began.get_or_insert(candidate.began);
                }
            }
            let difference = known.then(|| difference(here.turn, there.turn));
            let lines = (&reference.call.place, &it.joined.call.place);
            if let (Some(a), Some(b)) = lines
                && self.slip.is_none()
                && let Some((by, first)) = relation.lines.observe(
                    seq,
                    it.rank,
                    (a, b),
                    (offset, difference),
                    join,
                    &self.recent,
                )
            {
                shifted.get_or_insert(By::Calls(by));
                changes.began.get_or_insert(first);
            }
            changes.shifted.extend(shifted.map(|by| (it.class, by)));
        }
        changes
    }

    /// The first calls after silent turns that came before a relation had held long enough, with the
    /// turns by rank.
    fn early(
        &self,
        reference: &JoinedCall,
        found: &[OfClass<'_>],
    ) -> Vec<(Began, BTreeMap<u32, u64>)> {
        let early = found.iter().filter_map(|it| {
            let (here, there) = (&reference.position, &it.joined.position);
            let early = self.classes[it.class].known_steps(here, there)?.early()?;
            let (of, turn) = early.skipped;
            let ranks = self.ranks_of(of, it.class).into_iter();
            Some((early.began.clone(), ranks.map(|rank| (rank, turn)).collect()))
        });
        early.collect()
    }

    /// The lowest rank, or the ranks of a class.
    fn ranks_of(&self, of: Of, class: usize) -> Vec<u32> {
        match of {
            Of::Lowest => self.ranks.first().copied().into_iter().collect(),
            Of::Ranks => {
                let ranks = self
                    .ranks
                    .iter()
                    .skip(1)
                    .zip(&self.class_of)
                    .filter(|(_, of)| **of as usize == class);
                ranks.map(|(rank, _)| *rank).collect()
            }
        }
    }
}

impl Meeting {
    fn new(seq: u64, ranks: &Arc<[u32]>, join: &Join) -> Self {
        let mut places = join.calls.values().map(|joined| &joined.call.place);
        let first = places.next().cloned().flatten();
        let places = if places.all(|place| *place == first) {
            vec![first]
        } else {
            let calls = join.calls.values();
            calls.map(|joined| joined.call.place.clone()).collect()
        };
        Self { seq, ranks: Arc::clone(ranks), places }
    }

    /// Line of a rank in the user's program.
    pub fn place_of(&self, rank: u32) -> Option<&Arc<Where>> {
        let place = self.ranks.binary_search(&rank).ok()?;
        let only = self.places.first().filter(|_| self.places.len() == 1);
        only.or_else(|| self.places.get(place))?.as_ref()
    }

    /// Line of the lowest rank.
    fn first_place(&self) -> Option<&Arc<Where>> {
        self.places.first()?.as_ref()
    }
}

impl Began {
    fn at(seq: u64, join: &Join) -> Self {
        let calls = join.calls.iter().map(|(&rank, joined)| (rank, Arc::clone(&joined.call)));
        Self { seq, calls: calls.collect() }
    }
}

impl Slip {
    /// The slip that began at the first of these calls. `silent`: calls after silent turns, with the
    /// latest such turn of each rank.
    fn new(
        silent: Vec<(Began, BTreeMap<u32, u64>)>,
        shifted: BTreeMap<u32, By>,
        at: Timestamp,
    ) -> Option<Self> {
        let mut silent = silent.into_iter();
        let (began, skipped) = silent.next()?;
        let mut slip = Self {
            seq: began.seq,
            calls: began.calls,
            shifted,
            skipped,
            later: BTreeMap::new(),
            at,
        };
        for (began, skipped) in silent {
            slip.extend(&began.calls, BTreeMap::new(), skipped);
        }
        Some(slip)
    }

    /// Adds ranks that had a silent turn after the slip began.
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
    pub fn classes(&self) -> Vec<Vec<u32>> {
        let shifts = self.calls.iter().map(|(rank, _)| (*rank, self.shifted.get(rank)));
        align::classes(shifts, |shift| *shift, |a, b| a == b)
    }
}

#[cfg(test)]
mod tests;
