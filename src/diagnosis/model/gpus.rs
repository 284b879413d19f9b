//! The GPUs of the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ddp_doctor_proto::GpuSlowdown;
use ddp_doctor_proto::report::{DeviceActivity, RankDevice, Timestamp};

use crate::input::event::{GpuFaultKind, GpuIdentity, GpuSample};
use crate::input::settings;
use crate::model::Process;

/// Maximum number of GPUs in a job: as many as ranks.
const MAX_GPUS: usize = super::MAX_WORLD as usize;
/// Maximum number of processes that are kept of a GPU.
const MAX_PIDS: usize = 1024;
/// Maximum number of faults that are kept of a GPU: the earliest.
const MAX_FAULTS: usize = 64;
/// Maximum number of samples that are kept of a GPU: the latest.
const MAX_SAMPLES: usize = 8;
/// Maximum number of different Xids that are reported of a GPU.
const MAX_XIDS: usize = 8;
/// Minimum share of the time in which a kernel runs, in percent, for a GPU that spins.
const MIN_SPINNING_BUSY: u32 = 95;
/// Maximum share of the time in which memory is used, in percent, by a kernel that spins.
const MAX_SPINNING_MEMORY_BUSY: u32 = 1;
/// Maximum power that a kernel takes which spins, as percentage of the limit: an H100 takes 18 %, and several times
/// that when it computes.
const MAX_SPINNING_POWER: u64 = 30;
/// Minimum power that a GPU takes which computes, as percentage of the limit.
const MIN_COMPUTING_POWER: u64 = 40;
/// Maximum share of the time in which a kernel runs, in percent, for an idle GPU.
const MAX_IDLE_BUSY: u32 = 5;

/// All GPUs, by host and UUID.
#[derive(Debug, Default)]
pub struct Gpus(BTreeMap<(Arc<str>, Arc<str>), Gpu>);

/// A GPU.
#[derive(Debug)]
pub struct Gpu {
    /// Its identity.
    pub identity: Arc<GpuIdentity>,
    /// The latest sample, and its time.
    pub sample: Option<(Timestamp, Box<GpuSample>)>,
    /// The latest samples by time, without processes: of them, one shows its state when a rank ended.
    samples: BTreeMap<Timestamp, GpuSample>,
    /// Since when samples show that heat, power supply or hardware slow it; `None`: the latest does not.
    pub slowed_since: Option<Timestamp>,
    /// Processes that computed on it in some sample; a limited number.
    pids: BTreeSet<u32>,
    /// Faults with their times, the earliest first.
    pub faults: Vec<(Timestamp, GpuFaultKind)>,
}

impl Gpus {
    pub(super) fn sampled(
        &mut self,
        gpu: &Arc<GpuIdentity>,
        sample: Box<GpuSample>,
        at: Timestamp,
    ) {
        let Some(gpu) = self.gpu(gpu) else { return };
        let room = MAX_PIDS.saturating_sub(gpu.pids.len());
        gpu.pids.extend(sample.processes.iter().map(|(pid, _)| *pid).take(room));
        gpu.samples.insert(at, GpuSample { processes: Vec::new(), ..(*sample).clone() });
        while gpu.samples.len() > MAX_SAMPLES {
            gpu.samples.pop_first();
        }
        if gpu.sample.as_ref().is_none_or(|(latest, _)| *latest <= at) {
            use GpuSlowdown::{Hardware, Heat, PowerBrake};
            let is_slowed = matches!(sample.slowdown, Heat | PowerBrake | Hardware);
            gpu.slowed_since = is_slowed.then(|| gpu.slowed_since.unwrap_or(at));
            gpu.sample = Some((at, sample));
        }
    }

    pub(super) fn failed(&mut self, gpu: &Arc<GpuIdentity>, kind: GpuFaultKind, at: Timestamp) {
        let Some(gpu) = self.gpu(gpu) else { return };
        // A node repeats faults to a new coordinator.
        if let Err(place) = gpu.faults.binary_search(&(at, kind)) {
            gpu.faults.insert(place, (at, kind));
            gpu.faults.truncate(MAX_FAULTS);
        }
    }

    fn gpu(&mut self, identity: &Arc<GpuIdentity>) -> Option<&mut Gpu> {
        let key = (Arc::clone(&identity.host), Arc::clone(&identity.uuid));
        if self.0.len() >= MAX_GPUS && !self.0.contains_key(&key) {
            return None;
        }
        let identity = Arc::clone(identity);
        Some(self.0.entry(key).or_insert_with(|| Gpu {
            identity,
            sample: None,
            samples: BTreeMap::new(),
            slowed_since: None,
            pids: BTreeSet::new(),
            faults: Vec::new(),
        }))
    }

    /// All GPUs.
    pub fn iter(&self) -> impl Iterator<Item = &Gpu> {
        self.0.values()
    }

    /// The GPU that a process uses: the one that it recorded, or else the only one of its host that has named it among its
    /// processes.
    pub fn used_by(&self, process: &Process) -> Option<&Gpu> {
        if self.0.is_empty() {
            return None;
        }
        let recorded = process.settings.get(settings::GPU).filter(|it| !it.is_empty());
        if let Some(recorded) = recorded {
            if let Some(place) = recorded.strip_prefix("pci ") {
                return self.on(&process.host).find(|gpu| &*gpu.identity.pci == place);
            }
            return self.0.get(&(Arc::clone(&process.host), Arc::clone(recorded)));
        }
        let mut using = self.on(&process.host).filter(|gpu| gpu.pids.contains(&process.pid));
        using.next().filter(|_| using.next().is_none())
    }

    fn on(&self, host: &Arc<str>) -> impl Iterator<Item = &Gpu> {
        let here = self.0.range((Arc::clone(host), Arc::from(""))..);
        here.take_while(|((of, _), _)| *of == *host).map(|(_, gpu)| gpu)
    }
}

impl Gpu {
    /// What it does, according to the latest sample.
    pub fn activity(&self) -> DeviceActivity {
        self.sample.as_ref().map_or(DeviceActivity::Unknown, |(_, sample)| activity(sample))
    }

    /// Bytes of its memory that no process holds.
    pub fn free_memory(&self) -> Option<u64> {
        self.sample.as_ref()?.1.memory_free
    }

    /// Its identity, its errors and its state at a time, as reported; `None`: its latest state.
    pub fn reported(&self, until: Option<Timestamp>) -> RankDevice {
        let all = self.faults.iter().filter_map(|(_, kind)| match kind {
            GpuFaultKind::Xid(xid) => Some(*xid),
            _ => None,
        });
        let last_xid = all.clone().next_back();
        let mut xids: Vec<u64> = Vec::new();
        for xid in all {
            if xids.len() < MAX_XIDS && !xids.contains(&xid) {
                xids.push(xid);
            }
        }
        let until = until.unwrap_or(Timestamp(u64::MAX));
        let sample = self.samples.range(..=until).next_back().map(|(_, sample)| sample);
        let value = |of: fn(&GpuSample) -> Option<u32>| sample.and_then(of);
        let bytes = |of: fn(&GpuSample) -> Option<u64>| sample.and_then(of);
        RankDevice {
            index: self.identity.index,
            name: self.identity.name.to_string(),
            uuid: self.identity.uuid.to_string(),
            activity: DeviceActivity::Unknown,
            last_xid,
            xids,
            memory_errors: bytes(|it| it.uncorrected_errors),
            busy_percent: value(|it| it.busy),
            memory_busy_percent: value(|it| it.memory_busy),
            memory_free_bytes: bytes(|it| it.memory_free),
            memory_total_bytes: bytes(|it| it.memory_total),
            clock_mhz: value(|it| it.clock),
            max_clock_mhz: value(|it| it.max_clock),
            slowdown: sample.and_then(|it| it.slowdown.name()).map(str::to_owned),
            power_watts: value(|it| it.power).map(|it| it / 1000),
            power_limit_watts: value(|it| it.power_limit).map(|it| it / 1000),
            celsius: value(|it| it.celsius),
        }
    }
}

/// A kernel of a collective that waits for peers reads flags in a loop: it occupies the GPU, but not its memory, and takes
/// little power. What fits none of these kinds is unknown.
fn activity(sample: &GpuSample) -> DeviceActivity {
    let Some(busy) = sample.busy.filter(|_| !sample.lost) else { return DeviceActivity::Unknown };
    if busy <= MAX_IDLE_BUSY {
        return DeviceActivity::Idle;
    }
    let limit = sample.power_limit.filter(|&it| it > 0);
    let power = sample.power.zip(limit);
    let Some(power) = power.map(|(power, limit)| u64::from(power) * 100 / u64::from(limit)) else {
        return DeviceActivity::Unknown;
    };
    let is_in_memory = sample.memory_busy.is_none_or(|it| it > MAX_SPINNING_MEMORY_BUSY);
    if busy >= MIN_SPINNING_BUSY && !is_in_memory && power <= MAX_SPINNING_POWER {
        DeviceActivity::Spinning
    } else if power >= MIN_COMPUTING_POWER {
        DeviceActivity::Computing
    } else {
        DeviceActivity::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activity_follows_from_utilization_and_power() {
        let of = |busy, memory_busy, watts: u32| {
            activity(&GpuSample {
                busy: Some(busy),
                memory_busy: Some(memory_busy),
                power: Some(watts * 1000),
                power_limit: Some(700_000),
                ..GpuSample::default()
            })
        };
        assert_eq!(of(0, 0, 70), DeviceActivity::Idle);
        assert_eq!(of(100, 0, 127), DeviceActivity::Spinning);
        assert_eq!(of(100, 40, 600), DeviceActivity::Computing);
        assert_eq!(
            of(100, 0, 600),
            DeviceActivity::Computing,
            "a product of matrices in the cache"
        );
        assert_eq!(of(100, 40, 127), DeviceActivity::Unknown);
        assert_eq!(of(50, 0, 127), DeviceActivity::Unknown);
        let lost = GpuSample { busy: Some(0), lost: true, ..GpuSample::default() };
        assert_eq!(activity(&lost), DeviceActivity::Unknown);
    }

    #[test]
    fn latest_sample_and_earliest_faults_count_in_any_order() {
        let gpu = Arc::new(GpuIdentity { uuid: "GPU-1".into(), ..GpuIdentity::default() });
        let mut gpus = Gpus::default();
        for at in [3, 1, 2] {
            let sample = GpuSample { busy: Some(at), ..GpuSample::default() };
            gpus.sampled(&gpu, Box::new(sample), Timestamp(at.into()));
            gpus.failed(&gpu, GpuFaultKind::Xid(at.into()), Timestamp(at.into()));
        }
        gpus.failed(&gpu, GpuFaultKind::Xid(1), Timestamp(1));
        let gpu = gpus.iter().next().unwrap();
        assert_eq!(gpu.sample.as_ref().unwrap().1.busy, Some(3));
        assert_eq!(gpu.faults[0], (Timestamp(1), GpuFaultKind::Xid(1)));
        assert_eq!((gpu.faults.len(), gpu.reported(None).last_xid), (3, Some(3)));
        assert_eq!(gpu.reported(None).xids, [1, 2, 3]);
        let at = |until: u64| gpu.reported(Some(Timestamp(until))).busy_percent;
        assert_eq!((at(0), at(1), at(2), at(9)), (None, Some(1), Some(2), Some(3)));
    }
}
