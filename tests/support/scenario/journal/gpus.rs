//! Samples of GPUs and network ports, and faults of GPUs in journals.

use ddp_doctor::diagnosis::event::{
    GpuFaultKind, GpuIdentity, GpuSample, PortIdentity, PortSample,
};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{GpuSlowdown, v1};

/// A sample as its node sends it.
pub(super) fn sampled(gpu: &GpuIdentity, sample: &GpuSample, at: Timestamp) -> v1::GpuSample {
    let processes = sample.processes.iter();
    let known = (sample.slowdown != GpuSlowdown::Unspecified).then_some(sample.slowdown);
    v1::GpuSample {
        gpu: Some(identity(gpu)),
        unix_ns: at.0,
        busy_percent: sample.busy,
        memory_busy_percent: sample.memory_busy,
        memory_free: sample.memory_free,
        memory_total: sample.memory_total,
        processes: processes.map(|&(pid, memory)| v1::GpuProcess { pid, memory }).collect(),
        power_mw: sample.power,
        power_limit_mw: sample.power_limit,
        clock_mhz: sample.clock,
        max_clock_mhz: sample.max_clock,
        slowdown: known.map(|it| it.number().into()),
        celsius: sample.celsius,
        pcie_generation: sample.pcie_generation,
        max_pcie_generation: sample.max_pcie_generation,
        pcie_width: sample.pcie_width,
        max_pcie_width: sample.max_pcie_width,
        pcie_replays: sample.pcie_replays,
        links: sample.links,
        active_links: sample.active_links,
        lost: sample.lost,
        link_errors: sample.link_errors,
        link_retries: sample.link_retries,
        ..v1::GpuSample::default()
    }
}

/// A fault as its node sends it.
pub(super) fn failed(gpu: &GpuIdentity, kind: GpuFaultKind, at: Timestamp) -> v1::GpuFault {
    let fault = v1::GpuFault { gpu: Some(identity(gpu)), unix_ns: at.0, ..v1::GpuFault::default() };
    match kind {
        GpuFaultKind::Xid(xid) => v1::GpuFault { xid: Some(xid), ..fault },
        GpuFaultKind::UncorrectedErrors(errors) => {
            v1::GpuFault { uncorrected_errors: errors, ..fault }
        }
        GpuFaultKind::Lost => v1::GpuFault { lost: true, ..fault },
        GpuFaultKind::Unknown => fault,
    }
}

/// A sample of a port as its node sends it.
pub(super) fn port(port: &PortIdentity, sample: &PortSample, at: Timestamp) -> v1::PortSample {
    v1::PortSample {
        name: port.name.to_string(),
        kind: port.kind.number().into(),
        unix_ns: at.0,
        previous_unix_ns: sample.previous.map_or(0, |it| it.0),
        up: sample.is_up,
        downs: sample.downs,
        errors: sample.errors,
        retries: sample.retries,
        bytes: sample.bytes,
    }
}

fn identity(gpu: &GpuIdentity) -> v1::GpuIdentity {
    v1::GpuIdentity {
        uuid: gpu.uuid.to_string(),
        pci: gpu.pci.to_string(),
        name: gpu.name.to_string(),
        index: gpu.index,
    }
}
