//! Memory that grows with every step, and what it will come up against.
//!
//! A rank grows where the values of its steps have a significant and steady trend ([`Trend`]) to more than
//! it ever had. When that ends is a matter of what room there is: of the rank alone on its device and in
//! its address space; in its control group and on its host, of all that grow there together.

use ddp_doctor_proto::report::Timestamp;

use super::model::{Ending, Memory, Model, Process, Room, RoomKind, Series};
use super::timing::Timing;
use super::trend::Trend;

/// Steps in which a program gets warm.
const WARM: u64 = 4;
/// Steps over which growth has to have gone on.
pub const LEAST_STEPS: u64 = 20;
/// Values that there have to be.
const LEAST_VALUES: usize = 8;
/// Points by which a trend is judged, at most.
const POINTS: usize = 24;
/// Less than one case in two thousand without a trend has so much of one.
const SIGNIFICANT: f64 = 3.3;
/// What the slope is at least, as a share of what it is.
const SURE: f64 = 0.5;
/// What growth has to come to at least: bytes, and a share of what there was in the beginning.
const LEAST_GROWTH: u64 = 64 << 20;
const LEAST_SHARE: u64 = 20;
/// The part of it that is nearly all.
const NEARLY_ALL: f64 = 0.8;
/// An end in so many steps is in sight however short the time is that the growth was seen for.
const NEAR: f64 = 40.0;

/// Growth that was seen.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    /// Bytes per step.
    pub trend: Trend,
    /// The steps over which it was seen.
    pub steps: (u64, u64),
    /// Of those, steps since it was measured last.
    pub unmeasured: u64,
    /// Bytes before and after.
    pub bytes: (u64, u64),
    /// When there was enough of it.
    pub at: Timestamp,
}

/// A rank that grows.
#[derive(Clone, Copy, Debug)]
pub struct Grower<'a> {
    /// Its rank.
    pub rank: u32,
    /// Its process.
    pub process: &'a Process,
    /// The device; `None`: in the host's memory.
    pub device: Option<u32>,
    /// How it grows.
    pub growth: Growth,
    /// What it will come up against first, where anything has a limit.
    pub end: Option<Exhausted>,
    /// Where what it grows by is.
    pub place: GrowsIn,
}

/// Where what a rank grows by is, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowsIn {
    /// In memory of its own, at least a part of it.
    Own,
    /// In shared memory, nearly all of it. The end of /dev/shm is not in sight, or behind that of something
    /// else.
    Shared,
    /// In /dev/shm, which fills and is what runs out first.
    Shm,
    /// Whether it is shared is not known.
    Unknown,
}

/// When something will have run out.
#[derive(Clone, Copy, Debug)]
pub struct Exhausted {
    /// What; `None`: the device.
    pub room: Option<Room>,
    /// What is left of it, in bytes.
    pub left: u64,
    /// What it has, in bytes.
    pub limit: u64,
    /// In so many steps …
    pub steps: f64,
    /// … at least in so many, and at most (infinite: it may never).
    pub between: (f64, f64),
}

impl Growth {
    /// When this room will have run out, if nothing else takes of it.
    #[must_use]
    pub fn until(&self, room: Room) -> Exhausted {
        Exhausted::of(Some(room), room.left(), room.limit, &self.trend, self)
    }
}

impl Exhausted {
    /// Whether it is near enough to be told: as near as the growth was seen for.
    ///
    /// The first tooth of a sawtooth, and a cache while it fills, rise like a leak. What has gone on for
    /// half of the way to the end is hardly one of these: programs are written to fit twice.
    #[must_use]
    pub fn is_in_sight(&self, growth: &Growth) -> bool {
        let (from, to) = growth.steps;
        self.steps <= NEAR.max(to.saturating_sub(from) as f64)
    }

    /// When what is left will have been used up by this trend, which rests on that growth.
    ///
    /// The trend's own interval takes what is off the line for chance that is gone with the next value.
    /// Memory is not like that: what one step took more than others is still there in the next. So the
    /// line may be off by what values scatter around it where it begins, and by as much more again at
    /// each half of the way that was seen.
    fn of(room: Option<Room>, left: u64, limit: u64, trend: &Trend, growth: &Growth) -> Self {
        let left_now = left as f64;
        let at = |slope: f64| match slope > 0.0 {
            true => left_now / slope,
            false => f64::INFINITY,
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
            between: (
                ahead(at(trend.high) - margin),
                ahead(at(trend.low) + margin),
            ),
        }
    }
}

impl Grower<'_> {
    /// Whether it is the rank's own affair, and not that of what is in /dev/shm.
    #[must_use]
    pub fn is_its_own(&self) -> bool {
        self.place != GrowsIn::Shm
    }

    /// Its end, where what was seen reaches so far that it can be told.
    #[must_use]
    pub fn ends_in_sight(&self) -> Option<Exhausted> {
        self.end.filter(|end| end.is_in_sight(&self.growth))
    }
}

/// The growth of a value up to the step in which the process is; `None`: it does not grow, or it cannot be
/// told yet.
#[must_use]
pub fn of<const KEPT: usize>(series: &Series<KEPT>, step: u64) -> Option<Growth> {
    let samples = series.samples();
    let warm = samples.partition_point(|it| it.step <= WARM);
    let samples = &samples[warm..];
    let (first, last) = (samples.first()?, samples.last()?);
    let to = step.max(last.step);
    let growth = last.value.checked_sub(first.value)?;
    let beyond = last.value.saturating_sub(series.earlier_peak());
    // What has only come back to where it was before does not grow.
    let is_new = beyond >= growth / 2;
    let is_much = growth >= LEAST_GROWTH.max(first.value / LEAST_SHARE);
    if samples.len() < LEAST_VALUES || to - first.step < LEAST_STEPS || !is_new || !is_much {
        return None;
    }
    let points = series.spread(first.step, to, samples.len().min(POINTS));
    let trend = Trend::of(&points)?;
    let is_sure = trend.z >= SIGNIFICANT && trend.low >= SURE * trend.slope;
    (is_sure && trend.is_steady(&points)).then_some(Growth {
        trend,
        steps: (first.step, to),
        unmeasured: to - last.step,
        bytes: (first.value, last.value),
        at: last.at,
    })
}

/// What fills steadily of what others than this process take of as well: the host, a control group,
/// /dev/shm. With how it grows, and when it is full.
pub fn filling(
    process: &Process,
    timing: &Timing,
) -> impl Iterator<Item = (Room, Growth, Exhausted)> {
    let fillings =
        fillings(process, timing).filter(|it| it.lasts && it.end.is_in_sight(&it.growth));
    fillings.map(|it| (it.room, it.growth, it.end))
}

/// Something that others take of as well, and that fills.
struct Filling {
    room: Room,
    growth: Growth,
    end: Exhausted,
    /// It has done so for long enough to mean anything.
    lasts: bool,
}

fn fillings(process: &Process, timing: &Timing) -> impl Iterator<Item = Filling> {
    let enough = timing.shared_memory_growth;
    let memory = &process.memory;
    let series = [
        (RoomKind::Host, &memory.host_by_step),
        (RoomKind::Cgroup, &memory.cgroup_by_step),
        (RoomKind::Shm, &memory.shm_by_step),
    ];
    series.into_iter().filter_map(move |(kind, series)| {
        let rooms = memory.rooms().into_iter().chain(memory.shm());
        let room = rooms.into_iter().find(|room| room.kind == kind)?;
        let growth = of(series, process.step)?;
        let first = series.samples().first()?;
        Some(Filling {
            room,
            growth,
            end: growth.until(room),
            lasts: growth.at.since(first.at) >= enough,
        })
    })
}

/// Every rank that grows, in the host's memory or on a device.
#[must_use]
pub fn growers(model: &Model) -> Vec<Grower<'_>> {
    let processes = model.processes.values();
    let mut growers: Vec<Grower<'_>> = processes
        // What a process that failed held is told with its end.
        .filter(|process| matches!(process.ending(), Ending::None | Ending::InOrder))
        .flat_map(of_process)
        .collect();
    let together: Vec<(&str, Trend)> = growers
        .iter()
        .filter(|grower| grower.device.is_none() && !grower.process.has_ended())
        .map(|grower| (&*grower.process.host, grower.growth.trend))
        .collect();
    for grower in &mut growers {
        let growth = grower.growth;
        let own = growth.trend;
        grower.end = match grower.device {
            Some(device) => on_device(&grower.process.memory, device, &growth),
            None => {
                let of_all = together
                    .iter()
                    .filter(|(host, _)| *host == &*grower.process.host)
                    .map(|(_, trend)| *trend);
                let together = sum(of_all).unwrap_or(own);
                in_host(&grower.process.memory, &growth, &together)
            }
        };
        if grower.device.is_none() {
            grower.place = place(grower, &model.timing);
        }
    }
    growers
}

/// Where what it grows by is.
fn place(grower: &Grower<'_>, timing: &Timing) -> GrowsIn {
    let memory = &grower.process.memory;
    let shared = memory.shared_by_step.samples();
    let (from, _) = grower.growth.steps;
    let before = shared.partition_point(|it| it.step <= from);
    let ends = (shared.get(before.saturating_sub(1)), shared.last());
    let (Some(before), Some(now)) = ends else {
        return GrowsIn::Unknown;
    };
    let (was, is) = grower.growth.bytes;
    let part = now.value.saturating_sub(before.value) as f64 / is.saturating_sub(was).max(1) as f64;
    if part < NEARLY_ALL {
        return GrowsIn::Own;
    }
    let own = grower.ends_in_sight();
    let is_first = |it: &Filling| match own {
        Some(own) => it.lasts && it.end.steps <= own.steps,
        // As long as nobody knows whether that will last, nothing is told of either.
        None => true,
    };
    let fills = |it: Filling| {
        let is_told = !it.lasts || it.end.is_in_sight(&it.growth);
        it.room.kind == RoomKind::Shm && is_told && is_first(&it)
    };
    match fillings(grower.process, timing).any(fills) {
        true => GrowsIn::Shm,
        false => GrowsIn::Shared,
    }
}

fn of_process(process: &Process) -> Vec<Grower<'_>> {
    let Some(rank) = process.rank else {
        return Vec::new();
    };
    let grower = |device, series: &Series| {
        Some(Grower {
            rank,
            process,
            device,
            growth: of(series, process.step)?,
            end: None,
            place: GrowsIn::Own,
        })
    };
    let memory = &process.memory;
    let devices = memory.devices.iter();
    devices
        .filter_map(|(&number, device)| grower(Some(number), &device.allocated_by_step))
        .chain(grower(None, &memory.rss_by_step))
        .collect()
}

/// What of the host's memory a process comes up against first.
fn in_host(memory: &Memory, growth: &Growth, together: &Trend) -> Option<Exhausted> {
    let rooms = memory.rooms().into_iter();
    let ends = rooms.map(|room| {
        let trend = match room.is_its_own() {
            true => &growth.trend,
            false => together,
        };
        Exhausted::of(Some(room), room.left(), room.limit, trend, growth)
    });
    ends.min_by(|a, b| a.steps.total_cmp(&b.steps))
}

/// When a device has no more: what nobody holds is used up, and what the allocator holds beyond the most
/// that it gives to tensors in a step.
fn on_device(memory: &Memory, device: u32, growth: &Growth) -> Option<Exhausted> {
    let device = memory.devices.get(&device)?;
    let limit = device.total?;
    let reserved = device.reserved?.latest;
    let free = limit.saturating_sub(device.used.map_or(reserved, |it| it.latest));
    let most = device.most_allocated.or(device.allocated)?.latest;
    let left = free.saturating_add(reserved.saturating_sub(most));
    Some(Exhausted::of(None, left, limit, &growth.trend, growth))
}

fn sum(trends: impl Iterator<Item = Trend>) -> Option<Trend> {
    trends.reduce(|a, b| Trend {
        slope: a.slope + b.slope,
        low: a.low + b.low,
        high: a.high + b.high,
        scatter: a.scatter + b.scatter,
        z: a.z.min(b.z),
    })
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
    fn a_leak_is_told_by_its_bytes_per_step() {
        let leak = series(40, |step| 500 + 20 * step);
        let growth = of(&leak, 40).unwrap();
        assert_eq!(growth.trend.slope, (20 * MIB) as f64);
        assert_eq!(growth.steps, (5, 40));
        assert_eq!(growth.bytes, (600 * MIB, 1300 * MIB));
    }

    #[test]
    fn what_healthy_programs_do_is_no_growth() {
        for (what, series) in [
            ("short", series(23, |step| 500 + 20 * step)),
            ("sawtooth", series(60, |step| 500 + 50 * (step % 12))),
            ("long sawtooth", series(205, |step| 500 + 20 * (step % 70))),
            ("warm-up", series(60, |step| 500 + 300 * step.min(8))),
            ("cache", series(60, |step| 500 + 20 * step.min(25))),
            (
                "a jump",
                series(60, |step| if step < 30 { 500 } else { 900 }),
            ),
            (
                "a cache, and something at the end",
                series(120, |step| 500 + 2 * step.min(60) + 40 * (step / 118)),
            ),
            ("little", series(60, |step| 5000 + step)),
            ("down", series(60, |step| 5000 - 20 * step)),
        ] {
            let step = series.samples().last().map_or(0, |it| it.step);
            assert!(of(&series, step).is_none(), "{what}");
        }
    }

    #[test]
    fn growth_that_has_ended_is_none() {
        let cache = series(40, |step| 500 + 20 * step);
        // Nothing noticeable happened since.
        assert!(of(&cache, 80).is_none());
    }
}
