//! The memory of a process: how it is, and the most it was.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use super::series::{KEPT_OF_SHARED, Series};
use crate::diagnosis::event::MemorySample;

/// Devices of one process that are told apart.
const KEPT_DEVICES: usize = 64;
/// Values of what was in use on a device that are kept.
const KEPT_LATELY: usize = 8;

/// A value that changes: the latest, and the highest that was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// The latest value.
    pub latest: u64,
    /// When that was measured.
    pub at: Timestamp,
    /// The highest value.
    pub peak: u64,
    /// When that was measured first.
    pub peak_at: Timestamp,
}

/// A count that only rises, as it stood lately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count(BTreeMap<Timestamp, u64>);

/// What is known of the memory of a process, in bytes. `None`: nobody has seen it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Its resident set.
    pub rss: Option<Gauge>,
    /// The same by step.
    pub rss_by_step: Series,
    /// What of it is shared memory, by step.
    pub shared_by_step: Series,
    /// What is taken of the host's memory, by whomever.
    pub host_used: Option<Gauge>,
    /// The same by step.
    pub host_by_step: Series<KEPT_OF_SHARED>,
    /// The host's memory.
    pub host_total: Option<u64>,
    /// What is taken of the memory of its control group, or of one around it.
    pub cgroup_used: Option<Gauge>,
    /// The same by step.
    pub cgroup_by_step: Series<KEPT_OF_SHARED>,
    /// What that may have.
    pub cgroup_limit: Option<u64>,
    /// How often somebody in there came up against that, …
    pub cgroup_held: Count,
    /// … and against the lower limit from which on they are slowed down.
    pub cgroup_slowed: Count,
    /// What is taken of its `/dev/shm`.
    pub shm_used: Option<Gauge>,
    /// The same by step.
    pub shm_by_step: Series<KEPT_OF_SHARED>,
    /// What that has.
    pub shm_total: Option<u64>,
    /// Its address space.
    pub virtual_used: Option<Gauge>,
    /// What that may be.
    pub virtual_limit: Option<u64>,
    /// Processor time lately, in thousandths of one processor.
    pub cpu_permille: Option<Gauge>,
    /// Its devices, by their numbers in the process.
    pub devices: BTreeMap<u32, Device>,
}

/// The memory of one device, as a process knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// In use on it, by whomever.
    pub used: Option<Gauge>,
    /// What was in use lately, by when it was measured.
    pub lately: BTreeMap<Timestamp, u64>,
    /// What it has.
    pub total: Option<u64>,
    /// What the framework's allocator has given to tensors.
    pub allocated: Option<Gauge>,
    /// The same by step.
    pub allocated_by_step: Series,
    /// What the framework's allocator holds.
    pub reserved: Option<Gauge>,
    /// The most that it ever gave to tensors.
    pub most_allocated: Option<Gauge>,
    /// What it holds in pieces left over of blocks in use.
    pub split: Option<Gauge>,
    /// How often it gave back all that it held before it could get more.
    pub retries: Option<Gauge>,
    /// The same by step.
    pub retries_by_step: Series,
    /// How often it could get none.
    pub ooms: Option<Gauge>,
    /// The largest piece that it holds and has given to nobody, as it was when it ran short.
    pub largest: Option<Gauge>,
    /// What NCCL itself holds of it, for the communicators of the process.
    pub nccl: Option<Gauge>,
}

/// Something in the host that has so much memory and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What it is.
    pub kind: RoomKind,
    /// What is taken of it, in bytes.
    pub used: u64,
    /// What it has, in bytes.
    pub limit: u64,
}

/// What has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RoomKind {
    /// The host.
    Host,
    /// The control group of the process, or one around it.
    Cgroup,
    /// The address space of the process.
    AddressSpace,
    /// Its `/dev/shm`.
    Shm,
}

impl Room {
    /// What can still be taken, in bytes.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Whether nobody else takes of it.
    #[must_use]
    pub const fn is_its_own(&self) -> bool {
        matches!(self.kind, RoomKind::AddressSpace)
    }

    /// What it is called in a sentence.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self.kind {
            RoomKind::Host => "the host",
            RoomKind::Cgroup => "its control group",
            RoomKind::AddressSpace => "its address space (ulimit -v)",
            RoomKind::Shm => "/dev/shm",
        }
    }
}

impl Device {
    /// By how much what is in use on it rose last, in bytes, and when that was seen; `None`: it did not rise.
    #[must_use]
    pub fn last_rise(&self) -> Option<(u64, Timestamp)> {
        let (_, &now) = self.lately.last_key_value()?;
        // It may have been told more than once.
        let same = self.lately.iter().rev().take_while(|(_, it)| **it == now);
        let (&at, _) = same.last()?;
        let (_, &before) = self.lately.range(..at).next_back()?;
        now.checked_sub(before).map(|rise| (rise, at))
    }
}

impl Count {
    /// Values that are kept: of a minute, where they come twice a second.
    const KEPT: usize = 128;
    /// What is lately.
    const LATELY: Duration = Duration::from_secs(60);

    fn take(&mut self, count: Option<u64>, at: Timestamp) {
        let Some(count) = count else { return };
        self.0.insert(at, count);
        if self.0.len() > Self::KEPT {
            self.0.pop_first();
        }
    }

    /// By how much it rose in the last minute, or as much of it as was seen, and in what time; `None`: it did
    /// not.
    #[must_use]
    pub fn risen(&self) -> Option<(u64, Duration)> {
        let (&end, &now) = self.0.last_key_value()?;
        let begin = Timestamp(end.0.saturating_sub(Self::LATELY.as_nanos() as u64));
        // A value stands until there is another one.
        let stood = self.0.range(..=begin).next_back();
        let (&from, &before) = stood.or_else(|| self.0.first_key_value())?;
        let risen = now.checked_sub(before).filter(|&risen| risen > 0)?;
        Some((risen, end.since(from.max(begin))))
    }
}

impl Memory {
    /// Takes a sample, made in this step. One that was told before changes nothing.
    pub(super) fn take(&mut self, sample: &MemorySample, step: u64, at: Timestamp) {
        raise(&mut self.rss, sample.rss, at);
        self.rss_by_step.take(sample.rss, step, at);
        self.shared_by_step.take(sample.rss_shared, step, at);
        self.host_total = sample.host_total.or(self.host_total);
        let host_used = sample
            .host_total
            .zip(sample.host_available)
            .map(|(total, available)| total.saturating_sub(available));
        raise(&mut self.host_used, host_used, at);
        self.host_by_step.take(host_used, step, at);
        raise(&mut self.cgroup_used, sample.cgroup_used, at);
        self.cgroup_by_step.take(sample.cgroup_used, step, at);
        if sample.cgroup_limit.is_some() && sample.cgroup_limit != self.cgroup_limit {
            // Another group has counts of its own.
            (self.cgroup_held, self.cgroup_slowed) = Default::default();
            self.cgroup_limit = sample.cgroup_limit;
        }
        self.cgroup_held.take(sample.cgroup_held, at);
        self.cgroup_slowed.take(sample.cgroup_slowed, at);
        raise(&mut self.shm_used, sample.shm_used, at);
        self.shm_by_step.take(sample.shm_used, step, at);
        self.shm_total = sample.shm_total.or(self.shm_total);
        raise(&mut self.virtual_used, sample.virtual_used, at);
        self.virtual_limit = sample.virtual_limit.or(self.virtual_limit);
        let cpu = sample.cpu_permille.map(u64::from);
        raise(&mut self.cpu_permille, cpu, at);
        let Some(device) = sample.device else { return };
        if !self.devices.contains_key(&device) && self.devices.len() >= KEPT_DEVICES {
            return;
        }
        let device = self.devices.entry(device).or_default();
        raise(&mut device.used, sample.gpu_used, at);
        if let Some(used) = sample.gpu_used {
            device.lately.insert(at, used);
            if device.lately.len() > KEPT_LATELY {
                device.lately.pop_first();
            }
        }
        device.total = sample.gpu_total.or(device.total);
        raise(&mut device.allocated, sample.gpu_allocated, at);
        let allocated = &mut device.allocated_by_step;
        allocated.take(sample.gpu_allocated, step, at);
        raise(&mut device.reserved, sample.gpu_reserved, at);
        raise(&mut device.most_allocated, sample.gpu_peak, at);
        raise(&mut device.split, sample.gpu_split, at);
        raise(&mut device.retries, sample.gpu_retries, at);
        device.retries_by_step.take(sample.gpu_retries, step, at);
        raise(&mut device.ooms, sample.gpu_ooms, at);
        raise(&mut device.largest, sample.gpu_largest, at);
        raise(&mut device.nccl, sample.gpu_nccl, at);
    }

    /// Its `/dev/shm`.
    #[must_use]
    pub fn shm(&self) -> Option<Room> {
        Some(Room {
            kind: RoomKind::Shm,
            used: self.shm_used?.latest,
            limit: self.shm_total?,
        })
    }

    /// What of the host's memory has a limit that this process may come up against.
    #[must_use]
    pub fn rooms(&self) -> Vec<Room> {
        let of = |kind, used: Option<Gauge>, limit: Option<u64>| {
            let (used, limit) = (used?.latest, limit?);
            Some(Room { kind, used, limit })
        };
        let rooms = [
            of(RoomKind::Host, self.host_used, self.host_total),
            of(RoomKind::Cgroup, self.cgroup_used, self.cgroup_limit),
            of(
                RoomKind::AddressSpace,
                self.virtual_used,
                self.virtual_limit,
            ),
        ];
        rooms.into_iter().flatten().collect()
    }
}

fn raise(gauge: &mut Option<Gauge>, value: Option<u64>, at: Timestamp) {
    let Some(value) = value else { return };
    let gauge = gauge.get_or_insert(Gauge {
        latest: value,
        at,
        peak: value,
        peak_at: at,
    });
    if at >= gauge.at {
        gauge.latest = value;
        gauge.at = at;
    }
    // The first moment of the highest value, in whatever order they come.
    if value > gauge.peak || (value == gauge.peak && at < gauge.peak_at) {
        gauge.peak = value;
        gauge.peak_at = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rss(bytes: u64) -> MemorySample {
        MemorySample {
            rss: Some(bytes),
            ..MemorySample::default()
        }
    }

    #[test]
    fn the_order_of_samples_does_not_matter() {
        let samples = [(1, 10), (2, 50), (3, 50), (4, 20)];
        let expected = Gauge {
            latest: 20,
            at: Timestamp(4),
            peak: 50,
            peak_at: Timestamp(2),
        };
        let mut forwards = Memory::default();
        let mut backwards = Memory::default();
        for (at, bytes) in samples {
            forwards.take(&rss(bytes), 0, Timestamp(at));
        }
        // And told again, as after the coordinator was lost.
        for (at, bytes) in samples.into_iter().rev().chain(samples) {
            backwards.take(&rss(bytes), 0, Timestamp(at));
        }
        assert_eq!(forwards.rss, Some(expected));
        assert_eq!(forwards, backwards);
    }

    #[test]
    fn a_count_says_by_how_much_it_rose_lately() {
        const SECOND: u64 = 1_000_000_000;
        let mut memory = Memory::default();
        let mut take = |held: u64, limit: u64, seconds: u64| {
            let sample = MemorySample {
                cgroup_held: Some(held),
                cgroup_limit: Some(limit),
                ..MemorySample::default()
            };
            memory.take(&sample, 0, Timestamp(seconds * SECOND));
            let risen = memory.cgroup_held.risen();
            risen.map(|(count, time)| (count, time.as_secs()))
        };
        assert_eq!(take(100, 8, 10), None);
        assert_eq!(take(100, 8, 50), None, "it stood");
        assert_eq!(take(130, 8, 60), Some((30, 50)));
        assert_eq!(take(150, 8, 115), Some((50, 60)), "a minute ago it was 100");
        assert_eq!(take(150, 8, 300), None);
        assert_eq!(take(900, 9, 301), None, "another group's");
        for seconds in 302..1000 {
            take(900 + seconds, 9, seconds);
        }
        assert_eq!(take(2000, 9, 1000), Some((160, 60)));
        assert!(memory.cgroup_held.0.len() <= Count::KEPT);
    }

    #[test]
    fn devices_are_told_apart_and_bounded() {
        let mut memory = Memory::default();
        for device in 0..1000 {
            let sample = MemorySample {
                device: Some(device),
                gpu_used: Some(u64::from(device)),
                gpu_total: Some(1 << 30),
                ..MemorySample::default()
            };
            memory.take(&sample, 0, Timestamp(1));
        }
        assert_eq!(memory.devices.len(), KEPT_DEVICES);
        assert_eq!(memory.devices[&7].used.map(|it| it.latest), Some(7));
        assert_eq!(memory.devices[&7].total, Some(1 << 30));
        assert_eq!(memory.devices[&7].allocated, None);
    }

    #[test]
    fn what_is_taken_of_the_host_is_what_is_not_available() {
        let mut memory = Memory::default();
        let sample = MemorySample {
            host_total: Some(100),
            host_available: Some(30),
            ..MemorySample::default()
        };
        memory.take(&sample, 0, Timestamp(1));
        assert_eq!(memory.host_used.map(|it| it.latest), Some(70));
    }
}
