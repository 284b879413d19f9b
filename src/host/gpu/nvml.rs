//! NVIDIA's GPUs, by NVML.
//!
//! A value that a GPU, its driver or its mode does not support stays unknown.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{GpuSlowdown, v1};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::struct_wrappers::event::EventData;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, Nvml};

use super::{Observation, Settings};

/// Interval of samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of GPUs.
const MAX_GPUS: u32 = 64;
/// Maximum number of processes that are reported of a GPU.
const MAX_PROCESSES: usize = 64;
/// Maximum number of NVLinks of a GPU.
const MAX_LINKS: u32 = 36;

/// Mode of a partitioned GPU (`NVML_DEVICE_MIG_ENABLE`).
const MIG_ENABLED: u32 = 1;

/// A GPU that is observed.
struct Gpu<'nvml> {
    device: Device<'nvml>,
    /// Its identity, which a GPU that has fallen off the bus may not report.
    identity: v1::GpuIdentity,
    /// Uncorrectable memory errors in the latest sample.
    uncorrected: Option<u64>,
    /// Whether the driver has lost it.
    is_lost: bool,
}

/// The state and settings of all GPUs, read with the library at this path or of this name.
pub(super) fn read(library: &OsString) -> Vec<(v1::GpuSample, Settings)> {
    let Ok(nvml) = Nvml::builder().lib_path(library).init() else { return Vec::new() };
    Gpu::usable(&nvml).iter().map(|gpu| (gpu.read(), gpu.settings())).collect()
}

/// Observes all GPUs with the library at this path or of this name.
pub(super) fn observe(library: &OsString, take: &mut dyn FnMut(Observation) -> bool) {
    let Ok(nvml) = Nvml::builder().lib_path(library).init() else { return };
    let mut gpus = Gpu::usable(&nvml);
    if gpus.is_empty() {
        return;
    }
    // The driver keeps no event for those that register later.
    let events = register(&nvml, &gpus);
    let mut next = Instant::now();
    loop {
        let now = Instant::now();
        if now >= next {
            next = now + INTERVAL;
            for gpu in &mut gpus {
                if !gpu.sample().into_iter().all(&mut *take) {
                    return;
                }
            }
        }
        let left = next.saturating_duration_since(Instant::now());
        let Some(events) = &events else {
            thread::sleep(left);
            continue;
        };
        match events.wait(u32::try_from(left.as_millis()).unwrap_or(0) + 1) {
            Ok(event) => {
                if let Some(fault) = fault(&gpus, &event)
                    && !take(Observation::Fault(fault))
                {
                    return;
                }
            }
            Err(NvmlError::Timeout) => {}
            // Such as that a GPU was lost: the wait ends at once every time.
            Err(_) => thread::sleep(next.saturating_duration_since(Instant::now())),
        }
    }
}

/// An event set for the critical errors (Xid) of the GPUs that report them.
fn register<'nvml>(nvml: &'nvml Nvml, gpus: &[Gpu<'nvml>]) -> Option<EventSet<'nvml>> {
    let wanted = EventTypes::CRITICAL_XID_ERROR;
    let reports =
        |gpu: &Gpu<'_>| gpu.device.supported_event_types().is_ok_and(|it| it.contains(wanted));
    let reporting: Vec<usize> = (0..gpus.len()).filter(|&at| reports(&gpus[at])).collect();
    let mut refused = BTreeSet::new();
    // A refusal takes the set with it, and the others register again without that GPU.
    'again: loop {
        let accepted: Vec<usize> =
            reporting.iter().copied().filter(|at| !refused.contains(at)).collect();
        let mut set = nvml.create_event_set().ok().filter(|_| !accepted.is_empty())?;
        for at in accepted {
            match gpus[at].device.register_events(wanted, set) {
                Ok(registered) => set = registered,
                Err(_) => {
                    refused.insert(at);
                    continue 'again;
                }
            }
        }
        return Some(set);
    }
}

/// The fault that an event reports. A GPU that has fallen off the bus may not even report its name: it is then the one
/// that was not known to be lost, if there is one.
fn fault(gpus: &[Gpu<'_>], event: &EventData<'_>) -> Option<v1::GpuFault> {
    let xid = match event.event_data.as_ref()? {
        XidError::Value(xid) => Some(*xid),
        XidError::Unknown => None,
    };
    let uuid = event.device.uuid();
    let gpu = match uuid {
        Ok(uuid) => gpus.iter().find(|gpu| gpu.identity.uuid == uuid)?,
        Err(_) => {
            let mut lost = gpus.iter().filter(|gpu| !gpu.is_lost && gpu.device.uuid().is_err());
            lost.next().filter(|_| lost.next().is_none())?
        }
    };
    Some(v1::GpuFault { xid, ..gpu.fault() })
}

impl<'nvml> Gpu<'nvml> {
    /// The GPUs that this process may use.
    fn usable(nvml: &'nvml Nvml) -> Vec<Self> {
        let count = nvml.device_count().unwrap_or(0).min(MAX_GPUS);
        let found = (0..count).filter_map(|index| {
            let device = nvml.device_by_index(index).ok()?;
            let pci = device.pci_info().ok();
            let identity = v1::GpuIdentity {
                index,
                uuid: device.uuid().ok()?,
                name: device.name().unwrap_or_default(),
                pci: pci.map_or_else(String::new, |pci| {
                    format!("{:04x}:{:02x}:{:02x}", pci.domain, pci.bus, pci.device)
                }),
            };
            Some(Self { device, identity, uncorrected: None, is_lost: false })
        });
        found.collect()
    }

    fn fault(&self) -> v1::GpuFault {
        v1::GpuFault {
            gpu: Some(self.identity.clone()),
            unix_ns: Timestamp::now().0,
            ..v1::GpuFault::default()
        }
    }

    /// Samples it. What shows only in its state is a fault as well.
    fn sample(&mut self) -> Vec<Observation> {
        let sample = self.read();
        let mut found = Vec::new();
        if sample.lost && !self.is_lost {
            self.is_lost = true;
            found.push(Observation::Fault(v1::GpuFault { lost: true, ..self.fault() }));
        }
        let errors = sample.uncorrected_errors;
        let more =
            errors.zip(self.uncorrected).map_or(0, |(now, before)| now.saturating_sub(before));
        if more > 0 {
            found.push(Observation::Fault(v1::GpuFault {
                uncorrected_errors: more,
                ..self.fault()
            }));
        }
        self.uncorrected = errors.or(self.uncorrected);
        found.push(Observation::Sample(Box::new(sample)));
        found
    }

    fn read(&self) -> v1::GpuSample {
        let device = &self.device;
        let utilization = device.utilization_rates();
        let memory = device.memory_info();
        let is_lost = |error: Option<&NvmlError>| matches!(error, Some(NvmlError::GpuLost));
        let mut sample = v1::GpuSample {
            gpu: Some(self.identity.clone()),
            unix_ns: Timestamp::now().0,
            lost: is_lost(utilization.as_ref().err()) || is_lost(memory.as_ref().err()),
            ..v1::GpuSample::default()
        };
        if sample.lost {
            return sample;
        }
        if let Ok(utilization) = utilization {
            sample.busy_percent = Some(utilization.gpu);
            sample.memory_busy_percent = Some(utilization.memory);
        }
        if let Ok(memory) = memory {
            sample.memory_free = Some(memory.free);
            sample.memory_total = Some(memory.total);
        }
        let processes = device.running_compute_processes().unwrap_or_default();
        sample.processes = processes
            .into_iter()
            .take(MAX_PROCESSES)
            .map(|it| v1::GpuProcess {
                pid: it.pid,
                memory: match it.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                },
            })
            .collect();
        sample.power_mw = device.power_usage().ok();
        sample.power_limit_mw = device.enforced_power_limit().ok();
        sample.clock_mhz = device.clock_info(Clock::SM).ok();
        sample.max_clock_mhz = device.max_clock_info(Clock::SM).ok();
        let reasons = device.current_throttle_reasons().ok();
        sample.slowdown = reasons.map(|it| slowdown(it).number().into());
        sample.celsius = device.temperature(TemperatureSensor::Gpu).ok();
        sample.pcie_generation = device.current_pcie_link_gen().ok();
        sample.max_pcie_generation = device.max_pcie_link_gen().ok();
        sample.pcie_width = device.current_pcie_link_width().ok();
        sample.max_pcie_width = device.max_pcie_link_width().ok();
        sample.pcie_replays = device.pcie_replay_counter().ok().map(u64::from);
        let errors = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
        sample.uncorrected_errors = errors.ok();
        let [remapped, pending, failed] = self.remapped_rows();
        sample.remapped_rows = remapped;
        sample.remapping_pending = pending.map(|it| it > 0);
        sample.remapping_failed = failed.map(|it| it > 0);
        let links: Vec<bool> = (0..MAX_LINKS)
            .map_while(|link| device.link_wrapper_for(link).is_active().ok())
            .collect();
        if !links.is_empty() {
            sample.links = Some(links.len() as u32);
            sample.active_links = Some(links.iter().filter(|active| **active).count() as u32);
        }
        if sample.links.is_some() {
            [sample.link_errors, sample.link_retries] = self.link_errors();
        }
        sample
    }

    fn settings(&self) -> Settings {
        let device = &self.device;
        Settings {
            is_persistent: device.is_in_persistent_mode().ok(),
            is_partitioned: device.mig_mode().ok().map(|it| it.current == MIG_ENABLED),
            clock_mhz: device.applications_clock(Clock::Graphics).ok(),
            default_clock_mhz: device.default_applications_clock(Clock::Graphics).ok(),
        }
    }

    /// Damaged and repeated packets on all NVLinks.
    fn link_errors(&self) -> [Option<u64>; 2] {
        let [flits, data, replays, recoveries] = self.fields([
            field_id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
            field_id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
            field_id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
            field_id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
        ]);
        [[flits, data], [replays, recoveries]]
            .map(|it| it.into_iter().flatten().reduce(u64::saturating_add))
    }

    /// Rows remapped because of uncorrectable errors, whether more are pending a reset, and whether remapping failed.
    fn remapped_rows(&self) -> [Option<u64>; 3] {
        self.fields([
            field_id::NVML_FI_DEV_REMAPPED_UNC,
            field_id::NVML_FI_DEV_REMAPPED_PENDING,
            field_id::NVML_FI_DEV_REMAPPED_FAILURE,
        ])
    }

    /// Values of fields.
    fn fields<const N: usize>(&self, fields: [u32; N]) -> [Option<u64>; N] {
        let mut values = self
            .device
            .field_values_for(&fields.map(FieldId))
            .unwrap_or_default()
            .into_iter()
            .take(N)
            .map(|value| match value.ok()?.value.ok()? {
                SampleValue::U32(it) => Some(it.into()),
                SampleValue::U64(it) => Some(it),
                SampleValue::I64(it) => u64::try_from(it).ok(),
                SampleValue::F64(_) => None,
            });
        fields.map(|_| values.next().flatten())
    }
}

/// The gravest of the reasons for lower clocks.
const fn slowdown(reasons: ThrottleReasons) -> GpuSlowdown {
    let heat = ThrottleReasons::SW_THERMAL_SLOWDOWN.union(ThrottleReasons::HW_THERMAL_SLOWDOWN);
    if reasons.intersects(heat) {
        GpuSlowdown::Heat
    } else if reasons.intersects(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN) {
        GpuSlowdown::PowerBrake
    } else if reasons.intersects(ThrottleReasons::HW_SLOWDOWN) {
        GpuSlowdown::Hardware
    } else if reasons.intersects(ThrottleReasons::SW_POWER_CAP) {
        GpuSlowdown::PowerLimit
    } else if reasons.intersects(ThrottleReasons::APPLICATIONS_CLOCKS_SETTING) {
        GpuSlowdown::Setting
    } else {
        GpuSlowdown::None
    }
}
