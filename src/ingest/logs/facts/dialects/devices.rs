//! Faults of devices, as the runtime of ROCm and the driver of NVIDIA report them.

use ddp_doctor_proto::report::Timestamp;

use crate::ingest::logs::facts::{Facts, Statement, Subject};
use crate::ingest::logs::lines::Line;
use crate::ingest::logs::scan::{after, cut, number, small_after, split};

/// Beginnings of errors by which the runtime of ROCm ends a process.
const ROCM: [&str; 2] = ["HW Exception by GPU node", "Memory access fault by GPU node"];
/// What precedes the number of an error of the driver of NVIDIA.
const XID: &str = "NVRM: Xid (";
/// Numbers of errors after which a process cannot go on; others follow from its end.
const FATAL: [u64; 13] = [13, 31, 48, 62, 63, 64, 74, 79, 94, 95, 119, 120, 140];
/// Maximum length of a text.
const MAX_TEXT: usize = 512;

/// Reads one line.
pub(super) fn read(line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    if let Some(error) = ROCM.iter().find_map(|it| Some(it.to_string() + after(line.text, it)?)) {
        facts.add(line.label.into(), at, raised(&error));
        return;
    }
    let Some((_, rest)) = split(line.text, XID) else { return };
    let Some((device, rest)) = rest.split_once("): ") else { return };
    if !number(rest).is_some_and(|it| FATAL.contains(&it)) {
        return;
    }
    let pid = small_after(rest, "pid=").filter(|&pid| pid > 0);
    let who = Subject { pid, ..line.label.into() };
    facts.add(who, at, raised(&format!("Xid {rest} ({device})")));
}

fn raised(text: &str) -> Statement {
    Statement::Raised {
        text: cut(text.trim_end(), MAX_TEXT).into(),
        place: None,
        uncaught: true,
        went_on: false,
        is_last: false,
        by_launcher: false,
    }
}
