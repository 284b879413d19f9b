//! The memory of a process: latest values, peaks and values by step.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_proto::report::{RankMemory, Timestamp};

use crate::input::event::MemorySample;
use crate::model::process::{MAX_SHARED_SAMPLES, Series};

/// Maximum number of devices per process.
const MAX_DEVICES: usize = 64;
/// Number of values of the memory in use kept per device.
const MAX_RECENT: usize = 8;

/// A value that changes: the latest and the highest observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// The latest value.
    pub latest: u64,
    /// When it was measured.
    pub at: Timestamp,
    /// The highest value.
    pub peak: u64,
}

/// Recent values of a count that only rises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count(BTreeMap<Timestamp, u64>);

/// Memory of a process, in bytes; `None`: not measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident set.
    pub rss: Option<Gauge>,
    /// Resident set by step.
    pub rss_by_step: Series,
    /// Shared memory within the resident set, by step.
    pub shared_by_step: Series,
    /// Memory in use on the host, by all processes.
    pub host_used: Option<Gauge>,
    /// Memory in use on the host, by step.
    pub host_by_step: Series<MAX_SHARED_SAMPLES>,
    /// Total memory of the host.
    pub host_total: Option<u64>,
    /// Memory in use in the control group of the process, or one around it.
    pub cgroup_used: Option<Gauge>,
    /// Memory in use in that control group, by step.
    pub cgroup_by_step: Series<MAX_SHARED_SAMPLES>,
    /// Limit of that control group.
    pub cgroup_limit: Option<u64>,
    /// Number of reclaims at that limit.
    pub cgroup_held: Count,
    /// Number of reclaims at `memory.high`, above which its processes are slowed down.
    pub cgroup_slowed: Count,
    /// Memory in use in its `/dev/shm`.
    pub shm_used: Option<Gauge>,
    /// Memory in use in its `/dev/shm`, by step.
    pub shm_by_step: Series<MAX_SHARED_SAMPLES>,
    /// Size of its `/dev/shm`.
    pub shm_total: Option<u64>,
    /// Address space.
    pub virtual_used: Option<Gauge>,
    /// Limit of the address space.
    pub virtual_limit: Option<u64>,
    /// Recent CPU time, in thousandths of one processor.
    pub cpu_permille: Option<Gauge>,
    /// Devices by their number in the process.
    pub devices: BTreeMap<u32, Box<Device>>,
}

/// The memory of one device, as seen by a process; in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// In use on the device, by all processes.
    pub used: Option<Gauge>,
    /// Recent values of `used`, by the time they were measured.
    pub lately: BTreeMap<Timestamp, u64>,
    /// Total memory of the device.
    pub total: Option<u64>,
    /// Given to tensors by the framework's allocator.
    pub allocated: Option<Gauge>,
    /// Given to tensors, by step.
    pub allocated_by_step: Series,
    /// Held by the framework's allocator.
    pub reserved: Option<Gauge>,
    /// Peak of the memory given to tensors.
    pub most_allocated: Option<Gauge>,
    /// Held in unused parts of blocks that are partly in use.
    pub split: Option<Gauge>,
    /// Number of times the allocator released its free memory to retry an allocation, by step.
    pub retries_by_step: Series,
    /// Largest free block that the allocator holds.
    pub largest: Option<Gauge>,
    /// Held by NCCL itself, for the communicators of the process.
    pub nccl: Option<Gauge>,
}

/// Memory of the host that has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Kind of limit.
    pub kind: RoomKind,
    /// In use, in bytes.
    pub used: u64,
    /// Limit in bytes.
    pub limit: u64,
}

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RoomKind {
    /// The host.
    Host,
    /// The control group of the process, or one around it.
    Cgroup,
    /// The address space of the process.
    AddressSpace,
    /// The `/dev/shm` of the process.
    Shm,
}

impl Room {
    /// Bytes that can still be allocated.
    pub const fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Whether it belongs to this process alone.
    pub const fn is_its_own(&self) -> bool {
        matches!(self.kind, RoomKind::AddressSpace)
    }

    /// Name to use in a sentence.
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
    /// The latest rise of the memory in use, in bytes, and when it was measured; `None`: it did not
    /// rise.
    pub fn last_rise(&self) -> Option<(u64, Timestamp)> {
        let (_, &now) = self.lately.last_key_value()?;
        // Samples may be repeated.
        let same = self.lately.iter().rev().take_while(|(_, it)| **it == now);
        let (&at, _) = same.last()?;
        let (_, &before) = self.lately.range(..at).next_back()?;
        now.checked_sub(before).map(|rise| (rise, at))
    }
}

impl Count {
    /// Number of values kept: a minute, at two values per second.
    const MAX_VALUES: usize = 128;
    /// Time over which a rise counts as recent.
    const LATELY: Duration = Duration::from_secs(60);

    fn take(&mut self, count: Option<u64>, at: Timestamp) {
        let Some(count) = count else { return };
        self.0.insert(at, count);
        // A value holds until the next one: between equal values none is needed.
        let mut latest = self.0.iter().rev();
        if let (Some(last), Some((&at, middle)), Some(first)) =
            (latest.next(), latest.next(), latest.next())
            && (last.1, middle) == (middle, first.1)
        {
            self.0.remove(&at);
        }
        if self.0.len() > Self::MAX_VALUES {
            self.0.pop_first();
        }
    }

    /// The rise over the last minute, or the part of it that was observed, and the time it covers;
    /// `None`: no rise.
    pub fn risen(&self) -> Option<(u64, Duration)> {
        let (&end, &now) = self.0.last_key_value()?;
        let begin = end.minus(Self::LATELY);
        // A value holds until the next one.
        let stood = self.0.range(..=begin).next_back();
        let (&from, &before) = stood.or_else(|| self.0.first_key_value())?;
        let risen = now.checked_sub(before).filter(|&risen| risen > 0)?;
        Some((risen, end.since(from.max(begin))))
    }
}

impl Memory {
    /// Adds a sample taken in this step; `None`: outside of a step. A repeated sample changes nothing.
    pub(in crate::model) fn take(
        &mut self,
        sample: &MemorySample,
        step: impl Into<Option<u64>>,
        at: Timestamp,
    ) {
        let step = step.into();
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
            // Each control group has its own counts.
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
        if !self.devices.contains_key(&device) && self.devices.len() >= MAX_DEVICES {
            return;
        }
        let device = self.devices.entry(device).or_default();
        raise(&mut device.used, sample.gpu_used, at);
        if let Some(used) = sample.gpu_used {
            device.lately.insert(at, used);
            if device.lately.len() > MAX_RECENT {
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
        device.retries_by_step.take(sample.gpu_retries, step, at);
        raise(&mut device.largest, sample.gpu_largest, at);
        raise(&mut device.nccl, sample.gpu_nccl, at);
    }

    /// The values so far belong to no step of what follows: as one step, they precede the first.
    pub(in crate::model) fn restart_steps(&mut self) {
        self.rss_by_step.restart();
        self.shared_by_step.restart();
        self.host_by_step.restart();
        self.cgroup_by_step.restart();
        self.shm_by_step.restart();
        for device in self.devices.values_mut() {
            device.allocated_by_step.restart();
            device.retries_by_step.restart();
        }
    }

    /// The latest values, as reported: of the devices, that on which the allocator holds most. `free`: bytes of
    /// its device that no process holds, according to the driver.
    pub fn reported(&self, free: Option<u64>) -> Option<RankMemory> {
        let latest = |gauge: Option<Gauge>| gauge.map(|it| it.latest);
        let held = |it: &&Device| (latest(it.allocated), latest(it.used));
        let device = self.devices.values().map(|it| &**it).max_by_key(held);
        let unused = |it: &Device| it.total?.checked_sub(latest(it.used)?);
        let memory = RankMemory {
            host_bytes: latest(self.rss),
            device_allocated_bytes: device.and_then(|it| latest(it.allocated)),
            device_reserved_bytes: device.and_then(|it| latest(it.reserved)),
            device_largest_free_bytes: device.and_then(|it| latest(it.largest)),
            device_free_bytes: free.or_else(|| device.and_then(unused)),
        };
        (memory != RankMemory::default()).then_some(memory)
    }

    /// The room of this kind in the latest step; `None`: usage or limit is unknown.
    pub fn room(&self, kind: RoomKind) -> Option<Room> {
        let (by_step, used, limit) = match kind {
            RoomKind::Host => (self.host_by_step.samples(), self.host_used, self.host_total),
            RoomKind::Cgroup => {
                (self.cgroup_by_step.samples(), self.cgroup_used, self.cgroup_limit)
            }
            RoomKind::AddressSpace => (&[][..], self.virtual_used, self.virtual_limit),
            RoomKind::Shm => (self.shm_by_step.samples(), self.shm_used, self.shm_total),
        };
        let in_step = by_step.last().map(|sample| sample.value);
        Some(Room { kind, used: in_step.or(used.map(|it| it.latest))?, limit: limit? })
    }

    /// The limits that the process may reach on its host, except that of `/dev/shm`.
    pub fn rooms(&self) -> impl Iterator<Item = Room> {
        let kinds = [RoomKind::Host, RoomKind::Cgroup, RoomKind::AddressSpace];
        kinds.into_iter().filter_map(|kind| self.room(kind))
    }
}

fn raise(gauge: &mut Option<Gauge>, value: Option<u64>, at: Timestamp) {
    let Some(value) = value else { return };
    let gauge = gauge.get_or_insert(Gauge { latest: value, at, peak: value });
    if at >= gauge.at {
        gauge.latest = value;
        gauge.at = at;
    }
    gauge.peak = gauge.peak.max(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rss(bytes: u64) -> MemorySample {
        MemorySample { rss: Some(bytes), ..MemorySample::default() }
    }

    #[test]
    fn order_of_samples_does_not_matter() {
        let samples = [(1, 10), (2, 50), (3, 50), (4, 20)];
        let expected = Gauge { latest: 20, at: Timestamp(4), peak: 50 };
        let mut forwards = Memory::default();
        let mut backwards = Memory::default();
        for (at, bytes) in samples {
            forwards.take(&rss(bytes), 0, Timestamp(at));
        }
        // Repeat them, as a node does after a lost connection.
        for (at, bytes) in samples.into_iter().rev().chain(samples) {
            backwards.take(&rss(bytes), 0, Timestamp(at));
        }
        assert_eq!(forwards.rss, Some(expected));
        assert_eq!(forwards, backwards);
    }

    #[test]
    fn count_reports_its_rise_over_the_last_minute() {
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
        assert_eq!(take(100, 8, 50), None, "unchanged");
        assert_eq!(take(130, 8, 60), Some((30, 50)));
        assert_eq!(take(150, 8, 115), Some((50, 60)), "a minute ago it was 100");
        assert_eq!(take(150, 8, 300), None);
        assert_eq!(take(900, 9, 301), None, "other control group");
        for seconds in 302..1000 {
            take(900 + seconds, 9, seconds);
        }
        assert_eq!(take(2000, 9, 1000), Some((160, 60)));
        assert!(memory.cgroup_held.0.len() <= Count::MAX_VALUES);
    }

    #[test]
    fn devices_are_separate_and_bounded() {
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
        assert_eq!(memory.devices.len(), MAX_DEVICES);
        assert_eq!(memory.devices[&7].used.map(|it| it.latest), Some(7));
        assert_eq!(memory.devices[&7].total, Some(1 << 30));
        assert_eq!(memory.devices[&7].allocated, None);
    }

    #[test]
    fn host_memory_in_use_is_total_less_available() {
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
