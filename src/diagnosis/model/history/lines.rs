//! Lines of ranks that habitually meet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ddp_doctor_proto::report::Where;

use crate::model::Join;

use super::{Began, MAX_KEPT, Meeting, PERSISTS};

/// Maximum number of calls by which two ranks may be apart.
const FURTHEST: usize = 16;
/// Number of meetings after which two lines are habitual partners.
const HABIT: u32 = 3;

/// Lines of the lowest member and of a class of ranks.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    partners: BTreeMap<Arc<Where>, Partner>,
    shift: Option<Shift>,
    /// The lines turned out to have no habitual partners.
    given_up: bool,
}

#[derive(Clone, Debug)]
struct Partner {
    line: Arc<Where>,
    count: u32,
    ambiguous: bool,
}

#[derive(Clone, Debug)]
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

impl Lines {
    /// Adds the lines that met. Once the ranks are a constant number of calls apart, returns that
    /// number and the first shifted calls.
    pub(super) fn observe(
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
            self.learn(a, b);
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
        let first = shift.known.get_or_insert_with(|| (seq, Arc::clone(a), Arc::clone(b)));
        if (a, b) != (&first.1, &first.2) {
            return None;
        }
        shift.rounds += 1;
        if shift.rounds <= PERSISTS {
            return None;
        }
        if let Some(by) = shift.distance(rank, recent, &self.partners) {
            return Some((by, shift.began.clone()));
        }
        if shift.rounds > 3 * PERSISTS {
            self.give_up();
        }
        None
    }

    /// The first meeting of a line.
    fn learn(&mut self, a: &Arc<Where>, b: &Arc<Where>) {
        if self.shift.is_some() || self.partners.len() >= MAX_KEPT {
            self.give_up();
            return;
        }
        let partner = Partner { line: Arc::clone(b), count: 1, ambiguous: false };
        self.partners.insert(Arc::clone(a), partner);
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

impl Shift {
    /// Number of calls by which the rank is ahead of the lowest member since known lines do not
    /// belong together, if that is certain.
    fn distance(
        &self,
        rank: u32,
        recent: &VecDeque<Meeting>,
        partners: &BTreeMap<Arc<Where>, Partner>,
    ) -> Option<i64> {
        let (since, ..) = self.known.as_ref()?;
        let window: Vec<(&Arc<Where>, &Arc<Where>)> = recent
            .iter()
            .filter(|meeting| meeting.seq >= *since)
            .filter_map(|meeting| Some((meeting.first_place()?, meeting.place_of(rank)?)))
            .collect();
        let mut lines: Vec<&Arc<Where>> = window.iter().map(|(a, _)| *a).collect();
        lines.sort_unstable();
        lines.dedup();
        // Two alternating lines may be swapped as well as shifted; only steps distinguish these
        // cases.
        let is_certain = match self.offset {
            Some(_) => self.across_turns,
            None => lines.len() >= 3,
        };
        is_certain.then(|| moved_by(&window, partners)).flatten()
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
    (1..=furthest as i64).flat_map(|by| [by, -by]).find(|&by| fits(by))
}
