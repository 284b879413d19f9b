//! The list of ranks: sorted, filtered and searched.

use std::cmp::Reverse;

use ddp_doctor_proto::words;

use crate::state::{Health, RankView, State};

/// Sort order of ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// State, the worst first, and equal states by waiting time, the longest first.
    #[default]
    Health,
    /// Rank number.
    Rank,
    /// Host name.
    Host,
    /// Step, the lowest first.
    Step,
    /// Waiting time, the longest first.
    Waited,
    /// Step time, the longest first.
    StepTime,
    /// First gauge, the highest first.
    Gauge,
}

impl Sort {
    /// All sort orders, in the order of the sort key.
    pub const ALL: [Self; 7] = [
        Self::Health,
        Self::Rank,
        Self::Host,
        Self::Step,
        Self::Waited,
        Self::StepTime,
        Self::Gauge,
    ];

    /// Display name.
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

/// Selection, order and filters of the list.
#[derive(Debug, Default)]
pub struct RankList {
    /// Sort order.
    pub sort: Sort,
    /// Whether the order is reversed.
    pub reverse: bool,
    /// Show only ranks that are neither running nor exited normally.
    pub only_unusual: bool,
    /// Show only ranks that contain this text; empty: all.
    pub search: String,
    /// Whether the search text is being typed.
    pub typing: bool,
    /// Show a grid of all ranks instead of a list.
    pub grid: bool,
    /// The selected rank.
    pub selected: Option<u32>,
    /// Index of the selection in the list.
    pub position: usize,
    /// Indexes of the listed ranks among all ranks.
    listed: Vec<u32>,
    /// Inputs from which the list was built.
    inputs: Option<(u64, Sort, bool, bool, String)>,
}

impl RankList {
    /// Number of listed ranks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.listed.len()
    }

    /// Whether no rank is listed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// The rank at an index of the list.
    #[must_use]
    pub fn nth<'a>(&self, index: usize, state: &'a State) -> Option<&'a RankView> {
        state.ranks.nth(*self.listed.get(index)? as usize)
    }

    pub(crate) fn go(&mut self, by: isize, state: &State) {
        self.position = moved(self.position, by, self.len());
        self.selected = self.nth(self.position, state).map(RankView::rank);
    }

    /// Rebuilds the list if any of its inputs changed.
    pub(crate) fn update(&mut self, state: &State) {
        let of = (state.version, self.sort, self.reverse, self.only_unusual, self.search.clone());
        if self.inputs.as_ref() == Some(&of) {
            return;
        }
        self.inputs = Some(of);
        let search = self.search.to_lowercase();
        let wanted = |view: &RankView| {
            let is_odd = !matches!(view.health, Health::Running | Health::Exited);
            (is_odd || !self.only_unusual) && (search.is_empty() || matches_search(view, &search))
        };
        let mut listed: Vec<(u32, &RankView)> =
            (0..).zip(state.ranks.iter()).filter(|(_, view)| wanted(view)).collect();
        match self.sort {
            Sort::Health => listed.sort_by_key(|(_, it)| Reverse((it.health, it.waited_ms()))),
            // Already sorted.
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
        let at = listed.iter().position(|(_, it)| Some(it.rank()) == selected);
        self.listed = listed.into_iter().map(|(index, _)| index).collect();
        self.position = at.unwrap_or(self.position.min(self.len().saturating_sub(1)));
    }
}

/// Whether the number, host, state, call, file or phase of a rank matches.
fn matches_search(view: &RankView, search: &str) -> bool {
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

/// Moves an index by `by`, within `of` entries.
pub(crate) fn moved(index: usize, by: isize, of: usize) -> usize {
    index.saturating_add_signed(by).min(of.saturating_sub(1))
}
