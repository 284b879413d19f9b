//! The memory of a process: how it is, and the most it was.

use std::collections::BTreeMap;

use ddp_doctor_proto::report::Timestamp;

use crate::diagnosis::event::MemorySample;

/// Devices of one process that are told apart.
const KEPT_DEVICES: usize = 64;

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

/// What is known of the memory of a process, in bytes. `None`: nobody has seen it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Its resident set.
    pub rss: Option<Gauge>,
    /// What is taken of the host's memory, by whomever.
    pub host_used: Option<Gauge>,
    /// The host's memory.
    pub host_total: Option<u64>,
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
    /// What it has.
    pub total: Option<u64>,
    /// What the framework's allocator has given to tensors.
    pub allocated: Option<Gauge>,
    /// What the framework's allocator holds.
    pub reserved: Option<Gauge>,
}

impl Memory {
    /// Takes a sample. One that was told before changes nothing.
    pub(super) fn take(&mut self, sample: &MemorySample, at: Timestamp) {
        raise(&mut self.rss, sample.rss, at);
        self.host_total = sample.host_total.or(self.host_total);
        let host_used = sample
            .host_total
            .zip(sample.host_available)
            .map(|(total, available)| total.saturating_sub(available));
        raise(&mut self.host_used, host_used, at);
        let cpu = sample.cpu_permille.map(u64::from);
        raise(&mut self.cpu_permille, cpu, at);
        let Some(device) = sample.device else { return };
        if !self.devices.contains_key(&device) && self.devices.len() >= KEPT_DEVICES {
            return;
        }
        let device = self.devices.entry(device).or_default();
        raise(&mut device.used, sample.gpu_used, at);
        device.total = sample.gpu_total.or(device.total);
        raise(&mut device.allocated, sample.gpu_allocated, at);
        raise(&mut device.reserved, sample.gpu_reserved, at);
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
            forwards.take(&rss(bytes), Timestamp(at));
        }
        // And told again, as after the coordinator was lost.
        for (at, bytes) in samples.into_iter().rev().chain(samples) {
            backwards.take(&rss(bytes), Timestamp(at));
        }
        assert_eq!(forwards.rss, Some(expected));
        assert_eq!(forwards, backwards);
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
            memory.take(&sample, Timestamp(1));
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
        memory.take(&sample, Timestamp(1));
        assert_eq!(memory.host_used.map(|it| it.latest), Some(70));
    }
}
