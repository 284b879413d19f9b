//! The ranks, one by one and as a whole.

use std::ops::Range;

use ddp_doctor_proto::report::{Evidence, Rank, RankState, Timestamp};
use ddp_doctor_proto::v1;

use super::history::{Moments, halved};

/// Cells that the whole job is summarized into, at most: more than any terminal is wide.
pub const STRIP: usize = 512;
/// Moments of the whole job that a rank's states are kept of.
const MOMENTS: usize = 512;
/// Moments of the whole job that what is measured of it is kept of.
const MEASURED: usize = 128;
/// Gauges of a rank whose values are kept.
const CURVES: usize = 10;
/// Ranks that are shown although nobody has seen them.
const MOST_MISSING: usize = 65_536;

/// How a rank fares, the worse the greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Health {
    /// It is at work.
    #[default]
    Running,
    /// It has ended in order.
    Exited,
    /// It has been in a call for more than a moment.
    Waiting,
    /// Nothing is heard of it, or in a word that is not known here.
    Unknown,
    /// It was never seen.
    Missing,
    /// The operating system has stopped it.
    Stopped,
    /// It has died.
    Dead,
    /// It did it, by a finding.
    Culprit,
}

impl Health {
    /// All of them, the best first.
    pub const ALL: [Self; 8] = [
        Self::Running,
        Self::Exited,
        Self::Waiting,
        Self::Unknown,
        Self::Missing,
        Self::Stopped,
        Self::Dead,
        Self::Culprit,
    ];

    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Exited => "exited",
            Self::Waiting => "waiting",
            Self::Unknown => "unknown",
            Self::Missing => "never seen",
            Self::Stopped => "stopped",
            Self::Dead => "dead",
            Self::Culprit => "culprit",
        }
    }

    const fn of(state: RankState) -> Self {
        match state {
            RankState::Running => Self::Running,
            RankState::Waiting => Self::Waiting,
            RankState::Stopped => Self::Stopped,
            RankState::Exited => Self::Exited,
            RankState::Dead => Self::Dead,
            RankState::Unknown => Self::Unknown,
        }
    }
}

/// One rank.
#[derive(Clone, Debug)]
pub struct RankView {
    /// How it stands; of a rank that was never seen, nothing but its number.
    pub status: Rank,
    /// What else is known of it.
    pub detail: v1::RankDetail,
    /// Whether it was ever seen.
    pub seen: bool,
    /// How it fares, itself.
    pub state: Health,
    /// The same, or that it did it.
    pub health: Health,
    /// How long its steps take, lately.
    pub step_ms: Option<u64>,
    /// How it was, at the moments of [`Ranks::moments`].
    pub lane: Vec<Moment>,
    /// What was measured of it, at the moments of [`Ranks::measured`].
    pub curves: Vec<Curve>,
    step_at: Timestamp,
    step_sampled: u64,
}

/// How a rank was at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// How it fared.
    pub state: Health,
    /// A step of it had begun since the moment before.
    pub stepped: bool,
}

/// What was measured, again and again.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Name of the gauge.
    pub name: String,
    /// Its values, oldest first. Precise enough to be looked at.
    pub values: Vec<f32>,
}

impl RankView {
    fn new(rank: u32) -> Self {
        Self {
            status: Rank {
                rank,
                host: String::new(),
                pid: 0,
                state: RankState::Unknown,
                exit: Default::default(),
                step: 0,
                place: None,
                waiting_in: None,
            },
            detail: v1::RankDetail {
                rank,
                ..Default::default()
            },
            seen: false,
            state: Health::Missing,
            health: Health::Missing,
            step_ms: None,
            lane: Vec::new(),
            curves: Vec::new(),
            step_at: Timestamp::default(),
            step_sampled: 0,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.status.rank
    }

    /// How long it has waited in its call.
    #[must_use]
    pub fn waited_ms(&self) -> Option<u64> {
        self.status.waiting_in.as_ref().map(|it| it.waited_ms)
    }

    /// The gauge of that name.
    #[must_use]
    pub fn gauge(&self, name: &str) -> Option<&v1::Gauge> {
        self.detail.gauges.iter().find(|gauge| gauge.name == name)
    }

    fn take(&mut self, status: v1::RankStatus, at: Timestamp) {
        let step = self.status.step;
        self.status = Rank::from(status);
        self.seen = true;
        self.state = Health::of(self.status.state);
        if self.status.step <= step && self.step_at.0 > 0 {
            return;
        }
        if self.step_at.0 > 0 {
            let steps = self.status.step - step;
            let each = at.since(self.step_at).as_millis() as u64 / steps;
            self.step_ms = Some(self.step_ms.map_or(each, |known| (known * 3 + each) / 4));
        }
        self.step_at = at;
    }

    /// The values of a gauge so far.
    #[must_use]
    pub fn curve(&self, name: &str) -> &[f32] {
        let curve = self.curves.iter().find(|curve| curve.name == name);
        curve.map_or(&[], |curve| &curve.values)
    }

    /// Keeps how it is, as the sample that makes so many.
    fn sample_lane(&mut self, halve: bool, samples: usize) {
        if halve {
            halved(&mut self.lane, |a, b| Moment {
                state: a.state.max(b.state),
                stepped: a.stepped || b.stepped,
            });
        }
        let before = Moment {
            state: Health::Missing,
            stepped: false,
        };
        self.lane.resize(samples - 1, before);
        self.lane.push(Moment {
            state: self.state,
            stepped: self.status.step > self.step_sampled,
        });
        self.step_sampled = self.status.step;
    }

    fn sample_curves(&mut self, halve: bool, samples: usize) {
        for gauge in self.detail.gauges.iter().take(CURVES) {
            let known = self.curves.iter().any(|curve| curve.name == gauge.name);
            if !known && self.curves.len() < CURVES {
                self.curves.push(Curve {
                    name: gauge.name.clone(),
                    values: Vec::new(),
                });
            }
        }
        for curve in &mut self.curves {
            if halve {
                halved(&mut curve.values, |a, b| a.max(*b));
            }
            curve.values.resize(samples - 1, 0.0);
            let gauges = &self.detail.gauges;
            let gauge = gauges.iter().find(|gauge| gauge.name == curve.name);
            curve.values.push(gauge.map_or(0.0, |it| it.value as f32));
        }
    }
}

/// All ranks, ascending.
#[derive(Debug)]
pub struct Ranks {
    list: Vec<RankView>,
    moments: Moments,
    measured: Moments,
    counts: [usize; Health::ALL.len()],
    strip: Vec<Health>,
    gauges: Vec<String>,
    steps: (u64, u64),
    longest_step_ms: Option<u64>,
    hosts: Vec<(String, Range<usize>)>,
}

impl Default for Ranks {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            moments: Moments::new(MOMENTS),
            measured: Moments::new(MEASURED),
            counts: Default::default(),
            strip: Vec::new(),
            gauges: Vec::new(),
            steps: (0, 0),
            longest_step_ms: None,
            hosts: Vec::new(),
        }
    }
}

impl Ranks {
    /// Hosts, and the places of their ranks among all: runs of ranks that are on one.
    #[must_use]
    pub fn hosts(&self) -> &[(String, Range<usize>)] {
        &self.hosts
    }

    /// The place of a rank among all.
    #[must_use]
    pub fn place(&self, rank: u32) -> Option<usize> {
        self.find(rank).ok()
    }

    /// The moments of their lanes.
    #[must_use]
    pub fn moments(&self) -> &[Timestamp] {
        &self.moments.times
    }

    /// The moments of their curves.
    #[must_use]
    pub fn measured(&self) -> &[Timestamp] {
        &self.measured.times
    }

    /// Keeps how they are, where it is time to.
    pub(super) fn sample(&mut self, at: Timestamp) {
        if let Some(due) = self.moments.due(at) {
            let samples = self.moments.times.len();
            for view in &mut self.list {
                view.sample_lane(due.halve, samples);
            }
        }
        if let Some(due) = self.measured.due(at) {
            let samples = self.measured.times.len();
            for view in &mut self.list {
                view.sample_curves(due.halve, samples);
            }
        }
    }

    /// How many there are, those that were never seen included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// A rank by its number.
    #[must_use]
    pub fn get(&self, rank: u32) -> Option<&RankView> {
        self.find(rank).ok().map(|index| &self.list[index])
    }

    /// A rank by its place among them.
    #[must_use]
    pub fn nth(&self, index: usize) -> Option<&RankView> {
        self.list.get(index)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &RankView> {
        self.list.iter()
    }

    /// How many fare like that.
    #[must_use]
    pub const fn count(&self, health: Health) -> usize {
        self.counts[health as usize]
    }

    /// All ranks in at most [`STRIP`] cells, each the worst of its ranks.
    #[must_use]
    pub fn strip(&self) -> &[Health] {
        &self.strip
    }

    fn find(&self, rank: u32) -> Result<usize, usize> {
        // As a rank is mostly at its own place, nobody has to look for it.
        match self.list.get(rank as usize) {
            Some(view) if view.rank() == rank => Ok(rank as usize),
            _ => self.list.binary_search_by_key(&rank, RankView::rank),
        }
    }

    fn entry(&mut self, rank: u32) -> &mut RankView {
        let index = self.find(rank).unwrap_or_else(|index| {
            self.list.insert(index, RankView::new(rank));
            index
        });
        &mut self.list[index]
    }

    pub(super) fn apply(
        &mut self,
        mut statuses: Vec<v1::RankStatus>,
        mut details: Vec<v1::RankDetail>,
        evidence: &Evidence,
        at: Timestamp,
    ) {
        // In order, new ones go to the end, where they move nobody.
        statuses.sort_by_key(|status| status.rank);
        details.sort_by_key(|detail| detail.rank);
        for &rank in evidence.missing_ranks.iter().take(MOST_MISSING) {
            self.entry(rank);
        }
        for status in statuses {
            self.entry(status.rank).take(status, at);
        }
        for detail in details {
            let view = self.entry(detail.rank);
            view.detail = detail;
        }
    }

    /// Names of what is measured of them, as the first that anything is measured of has them.
    #[must_use]
    pub fn gauges(&self) -> &[String] {
        &self.gauges
    }

    /// The lowest and the highest step of those that were seen.
    #[must_use]
    pub const fn steps(&self) -> (u64, u64) {
        self.steps
    }

    /// How long the steps take of the rank whose steps take longest.
    #[must_use]
    pub const fn longest_step_ms(&self) -> Option<u64> {
        self.longest_step_ms
    }

    /// Looks at all of them once, so that no frame has to.
    pub(super) fn summarize(&mut self, culprits: &[u32]) {
        let measured = self.list.iter().find(|it| !it.detail.gauges.is_empty());
        let names = measured.map(|it| it.detail.gauges.iter().map(|it| it.name.clone()));
        self.gauges = names.map(Iterator::collect).unwrap_or_default();
        self.counts = Default::default();
        for view in &mut self.list {
            view.health = match culprits.binary_search(&view.rank()) {
                Ok(_) => Health::Culprit,
                Err(_) => view.state,
            };
            self.counts[view.health as usize] += 1;
        }
        self.hosts.clear();
        for (index, view) in self.list.iter().enumerate() {
            match self.hosts.last_mut() {
                Some((host, range)) if *host == view.status.host => range.end = index + 1,
                _ => self
                    .hosts
                    .push((view.status.host.clone(), index..index + 1)),
            }
        }
        let steps = || {
            self.list
                .iter()
                .filter(|it| it.seen)
                .map(|it| it.status.step)
        };
        self.steps = (steps().min().unwrap_or(0), steps().max().unwrap_or(0));
        self.longest_step_ms = self.list.iter().filter_map(|it| it.step_ms).max();
        let cells = self.list.len().min(STRIP);
        self.strip = (0..cells)
            .map(|cell| {
                let of = share(self.list.len(), cells, cell);
                let worst = self.list[of].iter().map(|view| view.health).max();
                worst.unwrap_or_default()
            })
            .collect();
    }
}

/// The part of so many things that is shown in a cell, where there are fewer cells than things.
#[must_use]
pub(crate) const fn share(things: usize, cells: usize, cell: usize) -> Range<usize> {
    things * cell / cells..things * (cell + 1) / cells
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::testing::{rank, update};
    use super::*;

    #[test]
    fn one_odd_rank_among_thousands_is_seen_in_the_strip() {
        let mut state = State::default();
        let mut all: Vec<_> = (0..16_384).map(|it| rank(it, "running", 1)).collect();
        all[9999].state = "dead".into();
        state.apply(update(1, all));
        let strip = state.ranks.strip();
        assert_eq!(strip.len(), STRIP);
        let odd: Vec<usize> = (0..STRIP).filter(|&i| strip[i] == Health::Dead).collect();
        assert_eq!(odd, [9999 * STRIP / 16_384]);
        assert_eq!(state.ranks.count(Health::Running), 16_383);
        let hosts = state.ranks.hosts();
        assert_eq!(hosts.len(), 2048);
        assert_eq!(hosts[1], ("node1".to_owned(), 8..16));
    }

    #[test]
    fn ranks_come_in_any_order_and_missing_ones_are_there() {
        let mut state = State::default();
        let mut new = update(1, vec![rank(5, "running", 1), rank(2, "waiting", 1)]);
        new.evidence = Some(v1::Evidence {
            missing_ranks: vec![3],
            ..Default::default()
        });
        state.apply(new);
        let healths: Vec<_> = state
            .ranks
            .iter()
            .map(|it| (it.rank(), it.health))
            .collect();
        assert_eq!(
            healths,
            [
                (2, Health::Waiting),
                (3, Health::Missing),
                (5, Health::Running)
            ]
        );
        let mut new = update(2, vec![rank(3, "running", 1)]);
        new.evidence = Some(v1::Evidence::default());
        state.apply(new);
        assert_eq!(
            state.ranks.get(3).map(|it| it.health),
            Some(Health::Running)
        );
    }

    #[test]
    fn the_time_of_a_step_is_that_between_its_changes() {
        let mut state = State::default();
        for (second, step) in [(1, 10), (3, 14), (4, 14), (5, 18)] {
            state.apply(update(
                second * 1_000_000_000,
                vec![rank(0, "running", step)],
            ));
        }
        assert_eq!(state.ranks.get(0).unwrap().step_ms, Some(500));
    }

    #[test]
    fn shares_cover_everything_once() {
        for (things, cells) in [(8, 8), (1000, 7), (16_384, 512)] {
            let covered: Vec<usize> = (0..cells).flat_map(|it| share(things, cells, it)).collect();
            assert_eq!(covered, (0..things).collect::<Vec<_>>());
        }
    }
}
