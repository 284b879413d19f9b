//! Memory that grows with every step, and the limit that it will reach.
//!
//! A rank grows if its values by step have a significant and steady trend ([`Trend`]) beyond their
//! earlier peak. The end depends on the limit: on its device and in its address space the rank
//! counts alone, in its control group and on its host together with all ranks that grow there.
//!
//! Where a program marks no steps, the repetitions of its calls take their place, if all ranks repeat
//! equally many calls, and have done so for a minute.

use std::collections::BTreeMap;

use ddp_doctor_proto::report::Timestamp;

use crate::model::{Memory, Model, Process, Room, RoomKind, Series};
use crate::timing::Timing;
use crate::trends::trend::Trend;

/// Number of steps in which a program warms up.
const WARM: u64 = 4;
/// Minimum number of steps with growth.
pub const MIN_STEPS: u64 = 20;
/// Minimum number of values.
const MIN_VALUES: usize = 8;
/// Maximum number of points by which a trend is judged.
const POINTS: usize = 24;
/// Minimum z of a trend; fewer than one in two thousand series without a trend reach it.
const SIGNIFICANT: f64 = 3.3;
/// Minimum lower confidence bound of the slope, relative to the slope.
const SURE: f64 = 0.5;
/// Minimum growth, in bytes and as a share of the initial value (its inverse).
const MIN_GROWTH: u64 = 64 << 20;
const MIN_SHARE: u64 = 20;
/// The part of the growth that counts as nearly all.
const NEARLY_ALL: f64 = 0.8;
/// A limit at most this many steps away is in sight, however short the observation.
const NEAR: f64 = 40.0;

/// Observed growth.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// Trend in bytes per step.
    pub trend: Trend,
    /// First and last step of the observation.
    pub steps: (u64, u64),
    /// Number of those steps since the latest measurement.
    pub unmeasured: u64,
    /// First and last value in bytes.
    pub bytes: (u64, u64),
    /// Time of the latest measurement.
    pub at: Timestamp,
}

/// A rank whose memory grows.
#[derive(Clone, Copy, Debug)]
pub struct Grower<'a> {
    /// Its rank.
    pub rank: u32,
    /// Its process.
    pub process: &'a Process,
    /// Device; `None`: host memory.
    pub device: Option<u32>,
    /// The growth.
    pub growth: Growth,
    /// The limit that it reaches first, if there is one.
    pub end: Option<Exhausted>,
    /// Kind of memory that grows.
    pub place: GrowsIn,
    /// The program marks no steps: each one is a repetition of so many calls.
    pub repeated_calls: Option<usize>,
}

/// Kind of memory that grows, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowsIn {
    /// At least in part the process's own memory.
    Own,
    /// Nearly all of it shared memory, while the limit of /dev/shm is not in sight, or is not
    /// reached first.
    Shared,
    /// Files in /dev/shm, whose limit is reached first.
    Shm,
    /// Unknown whether it is shared.
    Unknown,
}

/// When a limit is reached.
#[derive(Clone, Copy, Debug)]
pub struct Exhausted {
    /// What is limited; `None`: the device.
    pub room: Option<Room>,
    /// Bytes left.
    pub left: u64,
    /// Limit in bytes.
    pub limit: u64,
    /// Expected number of steps …
    pub steps: f64,
    /// … and its bounds; infinite: possibly never.
    pub between: (f64, f64),
}

impl Growth {
    /// When this limit is reached if nothing else uses the memory.
    pub fn until(&self, room: Room) -> Exhausted {
        Exhausted::new(Some(room), room.left(), room.limit, &self.trend, self)
    }
}

impl Exhausted {
    /// Whether the limit is near enough to report: no more steps away than the growth was observed
    /// for.
    ///
    /// The first tooth of a sawtooth and a filling cache rise like a leak. Growth over half the way
    /// to the limit is hardly one of these, since programs leave enough room for them.
    pub fn is_in_sight(&self, growth: &Growth) -> bool {
        let (from, to) = growth.steps;
        self.steps <= NEAR.max(to.saturating_sub(from) as f64)
    }

    /// When what is left is used up by this trend, which is based on `growth`.
    ///
    /// The trend's own interval assumes independent deviations from the line. Memory accumulates:
    /// what one step uses in excess remains in use. So the bounds allow for the scatter of values
    /// at the start of the line, and for as much again per half of the observed range that lies
    /// ahead.
    fn new(room: Option<Room>, left: u64, limit: u64, trend: &Trend, growth: &Growth) -> Self {
        let left_now = left as f64;
        let at = |slope: f64| {
            if slope > 0.0 { left_now / slope } else { f64::INFINITY }
        };
        let passed = growth.unmeasured as f64;
        let ahead = |steps: f64| (steps - passed).max(0.0);
        let (from, to) = growth.steps;
        let steps = at(trend.slope);
        let ways = steps / to.saturating_sub(from).max(1) as f64;
        let margin = 1.0 + trend.scatter * (1.0 + 2.0 * ways) / trend.slope;
        Self {
            room,
            left,
            limit,
            steps: ahead(steps),
            between: (ahead(at(trend.high) - margin), ahead(at(trend.low) + margin)),
        }
    }
}

impl Grower<'_> {
    /// Whether the growth is the rank's own, and not that of /dev/shm.
    pub fn is_its_own(&self) -> bool {
        self.place != GrowsIn::Shm
    }

    /// Its limit, if that is in sight.
    pub fn ends_in_sight(&self) -> Option<Exhausted> {
        self.end.filter(|end| end.is_in_sight(&self.growth))
    }
}

/// The growth of a value up to the current step; `None`: it does not grow, or this is not known
/// yet.
pub fn growth<const MAX_SAMPLES: usize>(series: &Series<MAX_SAMPLES>, step: u64) -> Option<Growth> {
    let samples = series.samples();
    let warm = samples.partition_point(|it| it.step <= WARM);
    let samples = &samples[warm..];
    let (first, last) = (samples.first()?, samples.last()?);
    let to = step.max(last.step);
    let growth = last.value.checked_sub(first.value)?;
    let beyond = last.value.saturating_sub(series.earlier_peak);
    // A return to an earlier level is not growth.
    let is_new = beyond >= growth / 2;
    let is_much = growth >= MIN_GROWTH.max(first.value / MIN_SHARE);
    if samples.len() < MIN_VALUES || to - first.step < MIN_STEPS || !is_new || !is_much {
        return None;
    }
    let points = series.spread(first.step, to, samples.len().min(POINTS));
    let trend = Trend::fit(&points)?;
    let is_sure = trend.z >= SIGNIFICANT && trend.low >= SURE * trend.slope;
    (is_sure && trend.is_steady(&points)).then_some(Growth {
        trend,
        steps: (first.step, to),
        unmeasured: to - last.step,
        bytes: (first.value, last.value),
        at: last.at,
    })
}

/// Shared memory that fills steadily: the host, a control group or /dev/shm.
pub fn filling(process: &Process, timing: &Timing) -> impl Iterator<Item = Filling> {
    fillings(process, timing).filter(|it| it.lasts && it.end.is_in_sight(&it.growth))
}

/// Memory shared with other processes that fills.
#[derive(Clone, Copy, Debug)]
pub struct Filling {
    /// The memory.
    pub room: Room,
    /// How it fills.
    pub growth: Growth,
    /// When it is full.
    pub end: Exhausted,
    /// It has filled for `shared_memory_growth`.
    lasts: bool,
}

fn fillings(process: &Process, timing: &Timing) -> impl Iterator<Item = Filling> {
    let enough = timing.shared_memory_growth;
    let memory = &process.memory;
    let all_series = [
        (RoomKind::Host, &memory.host_by_step),
        (RoomKind::Cgroup, &memory.cgroup_by_step),
        (RoomKind::Shm, &memory.shm_by_step),
    ];
    // Repetitions of calls serve for the memory of the ranks alone.
    let series = all_series.into_iter().filter(|_| process.step > 0);
    series.filter_map(move |(kind, series)| {
        let room = memory.room(kind)?;
        let growth = growth(series, process.training_step())?;
        let first = series.samples().first()?;
        Some(Filling {
            room,
            growth,
            end: growth.until(room),
            lasts: growth.at.since(first.at) >= enough,
        })
    })
}

/// All ranks that grow, in host memory or on a device.
pub fn growers(model: &Model) -> Vec<Grower<'_>> {
    let processes = model.processes.values();
    let mut growers: Vec<Grower<'_>> = processes.flat_map(of_process).collect();
    if growers.iter().any(|it| it.process.step == 0) {
        let repeated = model.repeated_calls();
        growers.retain_mut(|it| {
            it.repeated_calls = repeated.filter(|_| it.process.step == 0);
            it.process.step > 0 || it.repeated_calls.is_some() && lasts(it, &model.timing)
        });
    }
    // Of a rank that was restarted, the memory of the newest process counts.
    let is_newest = |process: &Process| {
        let newest = process.rank.and_then(|rank| model.process_of(rank));
        newest.is_some_and(|newest| newest.id == process.id)
    };
    let in_hosts = growers.iter().filter(|it| it.device.is_none() && is_newest(it.process));
    let mut together: BTreeMap<&str, Trend> = BTreeMap::new();
    for Grower { process, growth: Growth { trend, .. }, .. } in in_hosts {
        let all = together.entry(&process.host);
        all.and_modify(|all| *all = sum(all, trend)).or_insert(*trend);
    }
    for grower in &mut growers {
        let (memory, growth) = (&grower.process.memory, &grower.growth);
        match grower.device {
            Some(device) => grower.end = on_device(memory, device, growth),
            None => {
                let together = together.get(&*grower.process.host).unwrap_or(&growth.trend);
                grower.end = in_host(memory, growth, together);
                grower.place = place(grower, &model.timing);
            }
        }
    }
    growers
}

/// Whether memory has grown for long enough that the repeated calls are unlikely to be a part of a step,
/// such as the layers of a forward pass.
fn lasts(grower: &Grower<'_>, timing: &Timing) -> bool {
    let memory = &grower.process.memory;
    let device = grower.device.and_then(|number| memory.devices.get(&number));
    let series = device.map_or(&memory.rss_by_step, |device| &device.allocated_by_step);
    let first = series.samples().iter().find(|it| it.step >= grower.growth.steps.0);
    first.is_some_and(|first| grower.growth.at.since(first.at) >= timing.shared_memory_growth)
}

/// Kind of memory that grows.
fn place(grower: &Grower<'_>, timing: &Timing) -> GrowsIn {
    let memory = &grower.process.memory;
    let shared = memory.shared_by_step.samples();
    let (from, _) = grower.growth.steps;
    let before = shared.partition_point(|it| it.step <= from);
    let ends = (shared.get(before.saturating_sub(1)), shared.last());
    let (Some(before), Some(now)) = ends else { return GrowsIn::Unknown };
    let (was, is) = grower.growth.bytes;
    let part = now.value.saturating_sub(before.value) as f64 / is.saturating_sub(was).max(1) as f64;
    if part < NEARLY_ALL {
        return GrowsIn::Own;
    }
    let own = grower.ends_in_sight();
    let is_first = |it: &Filling| match own {
        Some(own) => it.lasts && it.end.steps <= own.steps,
        // Until it is known whether the filling lasts, neither is reported.
        None => true,
    };
    let fills = |it: Filling| {
        let is_told = !it.lasts || it.end.is_in_sight(&it.growth);
        it.room.kind == RoomKind::Shm && is_told && is_first(&it)
    };
    if fillings(grower.process, timing).any(fills) { GrowsIn::Shm } else { GrowsIn::Shared }
}

fn of_process(process: &Process) -> Vec<Grower<'_>> {
    let Some(rank) = process.rank else { return Vec::new() };
    let grower = |device, series: &Series| {
        Some(Grower {
            rank,
            process,
            device,
            growth: growth(series, process.memory_step())?,
            end: None,
            place: GrowsIn::Own,
            repeated_calls: None,
        })
    };
    let memory = &process.memory;
    let devices = memory.devices.iter();
    devices
        .filter_map(|(&number, device)| grower(Some(number), &device.allocated_by_step))
        .chain(grower(None, &memory.rss_by_step))
        .collect()
}

/// The limit of host memory that a process reaches first.
fn in_host(memory: &Memory, growth: &Growth, together: &Trend) -> Option<Exhausted> {
    let ends = memory.rooms().map(|room| {
        let trend = if room.is_its_own() { &growth.trend } else { together };
        Exhausted::new(Some(room), room.left(), room.limit, trend, growth)
    });
    ends.min_by(|a, b| a.steps.total_cmp(&b.steps))
}

/// When a device is full: its free memory is used up, and what the allocator holds beyond the peak
/// of tensors.
fn on_device(memory: &Memory, device: u32, growth: &Growth) -> Option<Exhausted> {
    let device = memory.devices.get(&device)?;
    let limit = device.total?;
    let reserved = device.reserved?.latest;
    let free = limit.saturating_sub(device.used.map_or(reserved, |it| it.latest));
    let most = device.most_allocated.or(device.allocated)?.latest;
    let left = free.saturating_add(reserved.saturating_sub(most));
    Some(Exhausted::new(None, left, limit, &growth.trend, growth))
}

/// The trend of the sum of two values.
const fn sum(a: &Trend, b: &Trend) -> Trend {
    Trend {
        slope: a.slope + b.slope,
        low: a.low + b.low,
        high: a.high + b.high,
        scatter: a.scatter + b.scatter,
        z: a.z.min(b.z),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn series(steps: u64, value: impl Fn(u64) -> u64) -> Series {
        let mut series = Series::default();
        for step in 1..=steps {
            series.take(Some(value(step) * MIB), step, Timestamp(step));
        }
        series
    }

    #[test]
    fn leak_is_measured_in_bytes_per_step() {
        let leak = series(40, |step| 500 + 20 * step);
        let growth = growth(&leak, 40).unwrap();
        assert_eq!(growth.trend.slope, (20 * MIB) as f64);
        assert_eq!(growth.steps, (5, 40));
        assert_eq!(growth.bytes, (600 * MIB, 1300 * MIB));
    }

    #[test]
    fn healthy_patterns_are_no_growth() {
        for (what, series) in [
            ("short", series(23, |step| 500 + 20 * step)),
            ("sawtooth", series(60, |step| 500 + 50 * (step % 12))),
            ("long sawtooth", series(205, |step| 500 + 20 * (step % 70))),
            ("warm-up", series(60, |step| 500 + 300 * step.min(8))),
            ("cache", series(60, |step| 500 + 20 * step.min(25))),
            ("a jump", series(60, |step| if step < 30 { 500 } else { 900 })),
            (
                "a cache, and something at the end",
                series(120, |step| 500 + 2 * step.min(60) + 40 * (step / 118)),
            ),
            ("little", series(60, |step| 5000 + step)),
            ("down", series(60, |step| 5000 - 20 * step)),
        ] {
            let step = series.samples().last().map_or(0, |it| it.step);
            assert!(growth(&series, step).is_none(), "{what}");
        }
    }

    #[test]
    fn ended_growth_is_no_growth() {
        let cache = series(40, |step| 500 + 20 * step);
        // No noticeable change since.
        assert!(growth(&cache, 80).is_none());
    }
}
