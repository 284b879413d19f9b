//! Conversion of the state of GPUs from messages to the engine, with limits.

use std::sync::Arc;

use ddp_doctor_diagnosis::event::{GpuFaultKind, GpuIdentity, GpuSample};
use ddp_doctor_proto::{GpuSlowdown, v1};

use super::values::{name, number};

/// Maximum number of processes kept of a GPU.
const MAX_PROCESSES: usize = 64;

/// The GPU of a host; `None`: the message does not identify it.
pub(super) fn identity(gpu: Option<&v1::GpuIdentity>, host: &Arc<str>) -> Option<Arc<GpuIdentity>> {
    let gpu = gpu.filter(|gpu| !gpu.uuid.is_empty())?;
    Some(Arc::new(GpuIdentity {
        host: Arc::clone(host),
        uuid: name(&gpu.uuid),
        pci: name(&gpu.pci),
        name: name(&gpu.name),
        index: gpu.index,
    }))
}

/// Decodes a sample.
pub(super) fn sample(sample: &v1::GpuSample) -> Box<GpuSample> {
    let processes = sample.processes.iter().take(MAX_PROCESSES);
    Box::new(GpuSample {
        busy: sample.busy_percent,
        memory_busy: sample.memory_busy_percent,
        memory_free: sample.memory_free,
        memory_total: sample.memory_total,
        processes: processes.map(|it| (it.pid, it.memory)).collect(),
        power: sample.power_mw,
        power_limit: sample.power_limit_mw,
        clock: sample.clock_mhz,
        max_clock: sample.max_clock_mhz,
        slowdown: number(sample.slowdown.unwrap_or(0), GpuSlowdown::from_number),
        celsius: sample.celsius,
        pcie_generation: sample.pcie_generation,
        max_pcie_generation: sample.max_pcie_generation,
        pcie_width: sample.pcie_width,
        max_pcie_width: sample.max_pcie_width,
        pcie_replays: sample.pcie_replays,
        uncorrected_errors: sample.uncorrected_errors,
        needs_reset: sample.remapping_pending == Some(true)
            || sample.remapping_failed == Some(true),
        links: sample.links,
        active_links: sample.active_links,
        link_errors: sample.link_errors,
        link_retries: sample.link_retries,
        lost: sample.lost,
    })
}

/// Decodes what a GPU reported.
pub(super) fn fault(fault: &v1::GpuFault) -> GpuFaultKind {
    match fault {
        v1::GpuFault { xid: Some(xid), .. } => GpuFaultKind::Xid(*xid),
        v1::GpuFault { lost: true, .. } => GpuFaultKind::Lost,
        v1::GpuFault { uncorrected_errors: 0, .. } => GpuFaultKind::Unknown,
        v1::GpuFault { uncorrected_errors, .. } => {
            GpuFaultKind::UncorrectedErrors(*uncorrected_errors)
        }
    }
}
