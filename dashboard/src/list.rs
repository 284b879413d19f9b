//! The list of ranks: sorted, filtered, searched.

use std::cmp::Reverse;

use ddp_doctor_proto::words;

use crate::app::moved;
use crate::state::{Health, RankView, State};

/// What ranks are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// How they fare, the worst first, and of those the longest waiting.
    #[default]
    Health,
    /// Their number.
    Rank,
    /// Their host.
    Host,
    /// Their step, the lowest first.
    Step,
    /// How long they wait, the longest first.
    Waited,
    /// How long their steps take, the longest first.
    StepTime,
    /// What is measured of them first, the most first.
    Gauge,
}

impl Sort {
    /// All of them, in the order in which they are gone through.
    pub const ALL: [Self; 7] = [
        Self::Health,
        Self::Rank,
        Self::Host,
        Self::Step,
        Self::Waited,
        Self::StepTime,
        Self::Gauge,
    ];

    /// In a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Health => "state",
            Self::Rank => "rank",
            Self::Host => "host",
            Self::Step => "step",
            Self::Waited => "wait",
            Self::StepTime => "step time",
            Self::Gauge => "memory",
        }
    }

    pub(crate) fn next(self) -> Self {
        let at = Self::ALL.iter().position(|&it| it == self);
        Self::ALL[(at.unwrap_or_default() + 1) % Self::ALL.len()]
    }
}

/// The ranks as they are listed.
#[derive(Debug, Default)]
pub struct RankList {
    /// Order.
    pub sort: Sort,
    /// The other way round.
    pub reverse: bool,
    /// Only those that do not run.
    pub only_odd: bool,
    /// Only those that this is found in.
    pub search: String,
    /// It is being typed.
    pub typing: bool,
    /// All at once, instead of a list.
    pub grid: bool,
    /// The rank that is looked at.
    pub selected: Option<u32>,
    /// Its place in the list.
    pub position: usize,
    /// Places of the ranks among all ranks.
    listed: Vec<u32>,
    /// What the list was made of.
    made_of: Option<(u64, Sort, bool, bool, String)>,
}

impl RankList {
    /// How many are listed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.listed.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// The rank at that place of the list.
    #[must_use]
    pub fn nth<'a>(&self, index: usize, state: &'a State) -> Option<&'a RankView> {
        state.ranks.nth(*self.listed.get(index)? as usize)
    }

    pub(crate) fn go(&mut self, by: isize, state: &State) {
        self.position = moved(self.position, by, self.len());
        self.selected = self.nth(self.position, state).map(RankView::rank);
    }

    /// Makes the list anew, where anything of it has changed.
    pub(crate) fn order(&mut self, state: &State) {
        let of = (
            state.version,
            self.sort,
            self.reverse,
            self.only_odd,
            self.search.clone(),
        );
        if self.made_of.as_ref() == Some(&of) {
            return;
        }
        self.made_of = Some(of);
        let search = self.search.to_lowercase();
        let wanted = |view: &RankView| {
            let is_odd = !matches!(view.health, Health::Running | Health::Exited);
            (is_odd || !self.only_odd) && (search.is_empty() || is_found(view, &search))
        };
        let mut listed: Vec<(u32, &RankView)> = (0..)
            .zip(state.ranks.iter())
            .filter(|(_, view)| wanted(view))
            .collect();
        match self.sort {
            Sort::Health => listed.sort_by_key(|(_, it)| Reverse((it.health, it.waited_ms()))),
            // They are.
            Sort::Rank => {}
            Sort::Host => listed.sort_by_key(|(_, it)| &it.status.host),
            Sort::Step => listed.sort_by_key(|(_, it)| it.status.step),
            Sort::Waited => listed.sort_by_key(|(_, it)| Reverse(it.waited_ms())),
            Sort::StepTime => listed.sort_by_key(|(_, it)| Reverse(it.step_ms)),
            Sort::Gauge => listed
                .sort_by_key(|(_, it)| Reverse(it.detail.gauges.first().map(|gauge| gauge.value))),
        }
        if self.reverse {
            listed.reverse();
        }
        let selected = self.selected;
        let at = listed
            .iter()
            .position(|(_, it)| Some(it.rank()) == selected);
        self.listed = listed.into_iter().map(|(index, _)| index).collect();
        self.position = at.unwrap_or(self.position.min(self.len().saturating_sub(1)));
    }
}

/// Whether something is said of a rank: its number, its host, its state, its call, its line.
fn is_found(view: &RankView, search: &str) -> bool {
    let status = &view.status;
    let has = |text: &str| text.to_lowercase().contains(search);
    if search.parse() == Ok(status.rank) || has(&status.host) || has(view.health.word()) {
        return true;
    }
    let waiting = status.waiting_in.as_ref();
    waiting.is_some_and(|it| has(&it.op) || has(&it.group))
        || status.place.as_ref().is_some_and(|it| has(&it.file))
        || has(&view.detail.phase)
        || has(&words::ended(status.exit)) && view.state >= Health::Dead
}
