//! State of the ranks, of each and summarized.

use std::ops::Range;

use ddp_doctor_proto::report::{Evidence, Exit, Rank, RankState, Timestamp};
use ddp_doctor_proto::viewer::{Gauge, RankDetail};
use ddp_doctor_proto::words;

use super::history::{Moments, halved};

/// Maximum number of cells in the summary of all ranks: more than the width of any terminal.
pub const STRIP: usize = 512;
/// Maximum number of samples of a rank's state over the whole job.
const MAX_STATE_SAMPLES: usize = 512;
/// Maximum number of samples of a gauge over the whole job.
const MAX_GAUGE_SAMPLES: usize = 128;
/// Maximum number of gauges per rank whose history is kept.
const MAX_CURVES: usize = 10;
/// Maximum number of ranks listed that were never seen.
const MAX_MISSING: usize = 65_536;

/// Exit status of a program that ends because of a signal, less its number.
const SIGNALED: i32 = 128;

/// Health of a rank, from best to worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Health {
    /// It runs its own code.
    #[default]
    Running,
    /// It ended with status 0, or because it was asked to.
    Exited,
    /// It has been waiting in a call for a noticeable time.
    Waiting,
    /// Its state is unknown, or not supported by this version.
    Unknown,
    /// It was never seen.
    Missing,
    /// The operating system stopped it.
    Stopped,
    /// It ended with another status or by another signal.
    Dead,
    /// A finding names it as a root cause rank.
    Culprit,
}

impl Health {
    /// All values, from best to worst.
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

    /// Display name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Exited => "ended",
            Self::Waiting => "waiting",
            Self::Unknown => "unknown",
            Self::Missing => "never seen",
            Self::Stopped => "stopped",
            Self::Dead => "dead",
            Self::Culprit => "culprit",
        }
    }

    fn of_rank(rank: &Rank) -> Self {
        match rank.state {
            RankState::Dead if is_requested(rank.exit) => Self::Exited,
            RankState::Running => Self::Running,
            RankState::Waiting => Self::Waiting,
            RankState::Stopped => Self::Stopped,
            RankState::Exited => Self::Exited,
            RankState::Dead => Self::Dead,
            RankState::Unknown => Self::Unknown,
        }
    }
}

/// Whether a process ended because the user or the launcher asked it to, as by Ctrl-C.
fn is_requested(exit: Exit) -> bool {
    let signal = exit.signal.or_else(|| exit.code?.checked_sub(SIGNALED));
    signal.is_some_and(words::asks_to_end)
}

/// One rank.
#[derive(Clone, Debug)]
pub struct RankView {
    /// Status of the rank; for a rank that was never seen, only its number is valid.
    pub status: Rank,
    /// Further details of the rank.
    pub detail: RankDetail,
    /// Whether it was ever seen.
    pub seen: bool,
    /// Health without regard to findings.
    pub state: Health,
    /// Health, with [`Health::Culprit`] for root cause ranks.
    pub health: Health,
    /// Moving average of the step time, in milliseconds.
    pub step_ms: Option<u64>,
    /// States sampled at the times of [`Ranks::moments`].
    pub lane: Vec<Moment>,
    /// Gauges sampled at the times of [`Ranks::measured`].
    pub curves: Vec<Curve>,
    step_at: Timestamp,
    step_sampled: u64,
}

/// Sampled state of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Worst health in the merged samples.
    pub state: Health,
    /// Number of merged samples.
    pub samples: u32,
    /// Number of them in which the rank was waiting.
    pub waiting: u32,
    /// Whether a step began since the previous sample.
    pub stepped: bool,
}

impl Moment {
    /// One sample.
    #[must_use]
    pub fn new(state: Health, stepped: bool) -> Self {
        Self { state, samples: 1, waiting: u32::from(state == Health::Waiting), stepped }
    }
}

/// Samples of a gauge.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Name of the gauge.
    pub name: String,
    /// Values, oldest first; precise enough for display.
    pub values: Vec<f32>,
}

impl RankView {
    fn new(rank: u32) -> Self {
        Self {
            status: Rank { rank, ..Default::default() },
            detail: RankDetail { rank, ..Default::default() },
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

    /// Global rank.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.status.rank
    }

    /// Whether its process has ended.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        matches!(self.state, Health::Exited | Health::Dead)
    }

    /// Time that it has been waiting in its call, in milliseconds.
    #[must_use]
    pub fn waited_ms(&self) -> Option<u64> {
        self.status.waiting_in.as_ref()?.waited_ms
    }

    /// The gauge with a name.
    #[must_use]
    pub fn gauge(&self, name: &str) -> Option<&Gauge> {
        self.detail.gauges.iter().find(|gauge| gauge.name == name)
    }

    fn take(&mut self, status: Rank, at: Timestamp) {
        let step = self.status.step;
        self.status = status;
        self.seen = true;
        self.state = Health::of_rank(&self.status);
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

    /// Samples of a gauge.
    #[must_use]
    pub fn curve(&self, name: &str) -> &[f32] {
        let curve = self.curves.iter().find(|curve| curve.name == name);
        curve.map_or(&[], |curve| &curve.values)
    }

    /// Samples the state. `samples` is the number of samples including this one.
    fn sample_lane(&mut self, halve: bool, samples: usize) {
        if halve {
            halved(&mut self.lane, |a, b| Moment {
                state: a.state.max(b.state),
                samples: a.samples + b.samples,
                waiting: a.waiting + b.waiting,
                stepped: a.stepped || b.stepped,
            });
        }
        let stepped = self.status.step > self.step_sampled;
        let before = Moment::new(Health::Missing, false);
        self.lane.resize(samples - 1, before);
        self.lane.push(Moment::new(self.state, stepped));
        self.step_sampled = self.status.step;
    }

    fn sample_curves(&mut self, halve: bool, samples: usize) {
        for gauge in self.detail.gauges.iter().take(MAX_CURVES) {
            let known = self.curves.iter().any(|curve| curve.name == gauge.name);
            if !known && self.curves.len() < MAX_CURVES {
                self.curves.push(Curve { name: gauge.name.clone(), values: Vec::new() });
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
    devices: Vec<u32>,
}

impl Default for Ranks {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            moments: Moments::new(MAX_STATE_SAMPLES),
            measured: Moments::new(MAX_GAUGE_SAMPLES),
            counts: Default::default(),
            strip: Vec::new(),
            gauges: Vec::new(),
            steps: (0, 0),
            longest_step_ms: None,
            hosts: Vec::new(),
            devices: Vec::new(),
        }
    }
}

impl Ranks {
    /// Hosts and the indexes of their ranks among all ranks: runs of consecutive ranks on one host.
    #[must_use]
    pub fn hosts(&self) -> &[(String, Range<usize>)] {
        &self.hosts
    }

    /// Index of a rank among all ranks.
    #[must_use]
    pub fn place(&self, rank: u32) -> Option<usize> {
        self.find(rank).ok()
    }

    /// Sampling times of the states.
    #[must_use]
    pub fn moments(&self) -> &[Timestamp] {
        &self.moments.times
    }

    /// Sampling times of the gauges.
    #[must_use]
    pub fn measured(&self) -> &[Timestamp] {
        &self.measured.times
    }

    /// Records the samples that are due.
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

    /// Number of ranks, including those that were never seen.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are no ranks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The rank with a global rank.
    #[must_use]
    pub fn get(&self, rank: u32) -> Option<&RankView> {
        self.find(rank).ok().map(|index| &self.list[index])
    }

    /// The rank at an index.
    #[must_use]
    pub fn nth(&self, index: usize) -> Option<&RankView> {
        self.list.get(index)
    }

    /// All ranks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &RankView> {
        self.list.iter()
    }

    /// Number of ranks with a health.
    #[must_use]
    pub const fn count(&self, health: Health) -> usize {
        self.counts[health as usize]
    }

    /// All ranks in at most [`STRIP`] cells, each with the worst health of its ranks.
    #[must_use]
    pub fn strip(&self) -> &[Health] {
        &self.strip
    }

    fn find(&self, rank: u32) -> Result<usize, usize> {
        // The index mostly equals the rank, which avoids the search.
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
        mut statuses: Vec<Rank>,
        mut details: Vec<RankDetail>,
        evidence: &Evidence,
        at: Timestamp,
    ) {
        // In ascending order new ranks are appended, which avoids moving others.
        statuses.sort_by_key(|status| status.rank);
        details.sort_by_key(|detail| detail.rank);
        for &rank in evidence.missing_ranks.iter().take(MAX_MISSING) {
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

    /// Names of the gauges, from the first rank that has any.
    #[must_use]
    pub fn gauges(&self) -> &[String] {
        &self.gauges
    }

    /// Indexes of the ranks with a GPU or a faulty link: first those that are in trouble, then the others.
    #[must_use]
    pub fn devices(&self) -> &[u32] {
        &self.devices
    }

    /// Lowest and highest step of the ranks that were seen.
    #[must_use]
    pub const fn steps(&self) -> (u64, u64) {
        self.steps
    }

    /// Longest step time among the ranks, in milliseconds.
    #[must_use]
    pub const fn longest_step_ms(&self) -> Option<u64> {
        self.longest_step_ms
    }

    /// Summarizes all ranks once per update, so that frames do not need to.
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
        let trouble = |view: &RankView| {
            let device = view.status.device.as_ref();
            match (device, &view.status.ports[..]) {
                (None, []) => None,
                (device, ports) => {
                    Some(!ports.is_empty() || device.is_some_and(|it| it.has_trouble()))
                }
            }
        };
        let with = |is_troubled: bool| {
            let all = self.list.iter().enumerate();
            all.filter(move |(_, view)| trouble(view) == Some(is_troubled)).map(|it| it.0 as u32)
        };
        self.devices = with(true).chain(with(false)).collect();
        self.hosts.clear();
        for (index, view) in self.list.iter().enumerate() {
            match self.hosts.last_mut() {
                Some((host, range)) if *host == view.status.host => range.end = index + 1,
                _ => self.hosts.push((view.status.host.clone(), index..index + 1)),
            }
        }
        let steps = || self.list.iter().filter(|it| it.seen).map(|it| it.status.step);
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

/// Indexes of `things` entries that belong to one of `cells` cells, where there are fewer cells
/// than entries.
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
    fn one_dead_rank_among_thousands_shows_in_the_strip() {
        let mut state = State::default();
        let mut all: Vec<_> = (0..16_384).map(|it| rank(it, "running", 1)).collect();
        all[9999].state = RankState::Dead;
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
    fn rank_that_the_user_ends_is_not_dead() {
        let of = |code, signal| {
            let mut rank = rank(0, "running", 1);
            rank.state = RankState::Dead;
            rank.exit = Exit { code, signal };
            Health::of_rank(&rank)
        };
        for (code, signal) in
            [(None, Some(2)), (None, Some(15)), (Some(130), None), (Some(143), None)]
        {
            assert_eq!(of(code, signal), Health::Exited, "{code:?} {signal:?}");
        }
        for (code, signal) in [
            (None, Some(9)),
            (None, Some(11)),
            (Some(1), None),
            (None, None),
            (Some(i32::MIN), None),
        ] {
            assert_eq!(of(code, signal), Health::Dead, "{code:?} {signal:?}");
        }
    }

    #[test]
    fn ranks_arrive_in_any_order_and_missing_ones_are_listed() {
        let mut state = State::default();
        let mut new = update(1, vec![rank(5, "running", 1), rank(2, "waiting", 1)]);
        new.evidence.missing_ranks = vec![3];
        state.apply(new);
        let healths: Vec<_> = state.ranks.iter().map(|it| (it.rank(), it.health)).collect();
        assert_eq!(healths, [(2, Health::Waiting), (3, Health::Missing), (5, Health::Running)]);
        state.apply(update(2, vec![rank(3, "running", 1)]));
        assert_eq!(state.ranks.get(3).map(|it| it.health), Some(Health::Running));
    }

    #[test]
    fn step_time_is_measured_between_step_changes() {
        let mut state = State::default();
        for (second, step) in [(1, 10), (3, 14), (4, 14), (5, 18)] {
            state.apply(update(second * 1_000_000_000, vec![rank(0, "running", step)]));
        }
        assert_eq!(state.ranks.get(0).unwrap().step_ms, Some(500));
    }

    #[test]
    fn shares_cover_every_entry_once() {
        for (things, cells) in [(8, 8), (1000, 7), (16_384, 512)] {
            let covered: Vec<usize> = (0..cells).flat_map(|it| share(things, cells, it)).collect();
            assert_eq!(covered, (0..things).collect::<Vec<_>>());
        }
    }
}
