//! Faults of devices, as the runtime of ROCm and the driver of NVIDIA report them.

use std::sync::Arc;

use ddp_doctor_diagnosis::input::xids;
use ddp_doctor_proto::report::Timestamp;

use crate::logs::facts::{Facts, Gpu, Statement, Subject};
use crate::logs::lines::{Line, kernel_time};
use crate::logs::scan::{self, after, cut, small_after, split};

/// Beginnings of errors by which the runtime of ROCm ends a process.
const ROCM: [&str; 2] = ["HW Exception by GPU node", "Memory access fault by GPU node"];
/// What precedes the number of an error of the driver of NVIDIA.
const XID: &str = "NVRM: Xid (";
/// What stands between the name of the host and a message of the kernel in a journal.
const KERNEL: &str = " kernel: ";
/// Maximum length of a text.
const MAX_TEXT: usize = 512;

/// Reads one line.
pub(super) fn read(line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    if let Some(error) = ROCM.iter().find_map(|it| Some(it.to_string() + after(line.text, it)?)) {
        facts.add(line.label.into(), at, raised(&error));
        return;
    }
    let Some((before, rest)) = split(line.text, XID) else { return };
    let Some((device, rest)) = rest.split_once("): ") else { return };
    let (number, what) = rest.split_once(", ").unwrap_or((rest, ""));
    let Some(number) = scan::number(number) else { return };
    let host: Option<Arc<str>> = before
        .split_once(KERNEL)
        .and_then(|(before, _)| before.rsplit(' ').next())
        .filter(|it| !it.is_empty())
        .map(|it| cut(it, 256).into());
    let device = device.strip_prefix("PCI:").unwrap_or(device);
    // The process is known otherwise.
    let is_of_process = |it: &&str| it.starts_with("pid=") || it.starts_with("name=");
    let what: Vec<&str> = what.split(", ").skip_while(is_of_process).collect();
    let text = format!("Xid {number} of GPU {device}: {}", what.join(", "));
    // Others follow from its end, or are corrected.
    if !xids::ends_processes(number) {
        let on = host.unwrap_or_default();
        let text = Arc::from(cut(&text, MAX_TEXT));
        let what = Statement::Reported { by: "the driver of NVIDIA", on, text, next: "" };
        facts.add(line.label.into(), at, what);
        return;
    }
    let pid = small_after(rest, "pid=").filter(|&pid| pid > 0);
    let on = kernel_time(line.text);
    let gpu = bus(device).map(|bus| Gpu { bus, file: Arc::clone(&facts.file), on });
    let who = Subject { pid, host, gpu, ..line.label.into() };
    facts.add(who, at, raised(&text));
}

/// The address "0000:9b:00" of the first function of a device, as NCCL writes it: domain, bus and device in one
/// number.
fn bus(device: &str) -> Option<u64> {
    let digits: String = device.split(':').collect();
    let is_address = digits.len() == 8 && device.matches(':').count() == 2;
    u64::from_str_radix(&digits, 16).ok().filter(|_| is_address).map(|it| it << 4)
}

fn raised(text: &str) -> Statement {
    Statement::uncaught(cut(text.trim_end(), MAX_TEXT).into())
}
