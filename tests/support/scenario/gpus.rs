//! Samples of GPUs and network ports, and faults of GPUs in scenarios.

use ddp_doctor::diagnosis::event::{GpuFaultKind, GpuSample, PortSample};
use ddp_doctor_proto::{GpuSlowdown, PortKind};

/// Parses `busy=100 memory-busy=0 power=127 limit=700`.
pub(super) fn sample(args: &[String]) -> Result<GpuSample, String> {
    let mut sample = GpuSample::default();
    for arg in args {
        let (name, value) = arg.split_once('=').ok_or(format!("unknown word {arg:?}"))?;
        if name == "slowdown" {
            sample.slowdown = GpuSlowdown::from_name(value).ok_or(format!("unknown: {arg}"))?;
            continue;
        }
        let number: u32 = value.parse().ok().ok_or(format!("no number: {arg}"))?;
        let bytes = u64::from(number) << 20;
        let place = match name {
            "busy" => &mut sample.busy,
            "memory-busy" => &mut sample.memory_busy,
            "power" | "limit" => {
                let place =
                    if name == "power" { &mut sample.power } else { &mut sample.power_limit };
                *place = Some(number * 1000);
                continue;
            }
            "clock" => &mut sample.clock,
            "max-clock" => &mut sample.max_clock,
            "celsius" => &mut sample.celsius,
            "width" => &mut sample.pcie_width,
            "max-width" => &mut sample.max_pcie_width,
            "generation" => &mut sample.pcie_generation,
            "max-generation" => &mut sample.max_pcie_generation,
            "links" => &mut sample.links,
            "active-links" => &mut sample.active_links,
            "free" | "total" => {
                let place =
                    if name == "free" { &mut sample.memory_free } else { &mut sample.memory_total };
                *place = Some(bytes);
                continue;
            }
            "link-errors" | "link-retries" => {
                let place = match name {
                    "link-errors" => &mut sample.link_errors,
                    _ => &mut sample.link_retries,
                };
                *place = Some(number.into());
                continue;
            }
            "replays" => {
                sample.pcie_replays = Some(number.into());
                continue;
            }
            "process" => {
                sample.processes.push((number, None));
                continue;
            }
            _ => return Err(format!("unknown value of a GPU: {arg:?}")),
        };
        *place = Some(number);
    }
    Ok(sample)
}

/// Parses `mlx5_0/1 up downs=0 errors=2 retries=3 mib=100`: its name, its kind by the form of that, and its state.
pub(super) fn port(args: &[String]) -> Result<(String, PortKind, PortSample), String> {
    let (name, args) = args.split_first().ok_or("no port")?;
    let kind = match name.as_str() {
        it if it.starts_with("eth") => PortKind::Ethernet,
        it if it.starts_with("roce") => PortKind::Roce,
        _ => PortKind::Infiniband,
    };
    let mut sample = PortSample::default();
    for arg in args {
        let Some((name, value)) = arg.split_once('=') else {
            sample.is_up = arg == "up";
            continue;
        };
        let number: u64 = value.parse().ok().ok_or(format!("no number: {arg}"))?;
        match name {
            "downs" => sample.downs = Some(number),
            "errors" => sample.errors = Some(number),
            "retries" => sample.retries = Some(number),
            "mib" => sample.bytes = Some(number << 20),
            _ => return Err(format!("unknown value of a port: {arg:?}")),
        }
    }
    Ok((name.clone(), kind, sample))
}

/// Parses `xid=79`, `errors=1` or `lost`.
pub(super) fn fault(args: &[String]) -> Result<GpuFaultKind, String> {
    let arg = args.first().ok_or("no fault")?;
    let number = |text: &str| text.parse().ok().ok_or(format!("no number: {arg}"));
    Ok(match arg.split_once('=') {
        Some(("xid", xid)) => GpuFaultKind::Xid(number(xid)?),
        Some(("errors", errors)) => GpuFaultKind::UncorrectedErrors(number(errors)?),
        None if arg == "lost" => GpuFaultKind::Lost,
        _ => return Err(format!("unknown fault: {arg:?}")),
    })
}
