//! Horovod: its checks for stalled tensors, which the coordinator prints (rank 0), and for requests that differ.

use std::sync::Arc;

use ddp_doctor_diagnosis::words::Ranks;
use ddp_doctor_proto::report::Timestamp;

use super::{of_rank, op_in};
use crate::logs::facts::{Facts, Statement};
use crate::logs::lines::Line;
use crate::logs::scan::{after, number, rank, until};

/// What precedes the seconds in the first line of a report.
const STALLED: &str = "waiting for remainder of ranks for more than ";
/// Heads of a list with a line for each missing rank: "3: [tensor, …]".
const HEADS: [&str; 2] = ["Missing ranks:", "Stalled ranks:"];
/// Lists within the line of a tensor.
const MISSING: &str = "[missing ranks: ";
const READY: &str = "[ready ranks: ";
/// What lines about tensors have in front in some versions, and how its tensors are named in others.
const OWN: [&str; 2] = ["horovod/common/", "Horovod"];
/// How long the coordinator waits before it reports, at least.
const MIN_WAIT_MS: u64 = 1000;
/// What to do if a report lists the ranks that are ready.
const NEXT: &str =
    "Look at the ranks of the world that the report does not list as ready (py-spy dump).";
/// What Horovod says of requests that do not match; it names neither rank.
const MISMATCHED: [&str; 3] = ["Mismatched ", ": One rank ", ", but another rank "];
/// What to do about them.
const NEXT_FOR_MISMATCHES: &str =
    "Print rank, shape and dtype of what each rank passes to this call.";
/// The rank that reports.
const COORDINATOR: u32 = 0;
/// Maximum number of ranks of a list.
const MAX_LIST: usize = 4096;

/// Whether a line is the head of a list of ranks, each in a line of its own.
pub(super) fn is_head(text: &str) -> bool {
    HEADS.contains(&text.trim())
}

/// A report that is being read.
#[derive(Debug, Default)]
pub(super) struct Stalled {
    /// How long the tensors were waited for; `None`: no report is being read.
    waited_ms: Option<u64>,
    is_list: bool,
}

impl Stalled {
    /// Reads one line of a process.
    pub(super) fn read(&mut self, line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
        let text = line.text;
        if text.starts_with(MISMATCHED[0]) && MISMATCHED.iter().all(|it| text.contains(it)) {
            let next = NEXT_FOR_MISMATCHES;
            let what =
                Statement::Reported { by: "Horovod", on: Arc::default(), text: text.into(), next };
            facts.add(line.label.into(), at, what);
        }
        if let Some(seconds) = after(text, STALLED).and_then(number) {
            *self = Self { waited_ms: Some(seconds.saturating_mul(1000)), is_list: false };
        }
        // The head of a report may be cut off.
        let is_tensor = text.contains(MISSING) && OWN.iter().any(|it| text.contains(it));
        let Some(waited_ms) = self.waited_ms.or_else(|| is_tensor.then_some(MIN_WAIT_MS)) else {
            return;
        };
        if let Some(list) = after(text, READY).filter(|_| !text.contains(MISSING)) {
            let mut ready = ranks(list);
            ready.sort_unstable();
            let text = format!("{} are ready, and wait for the others", Ranks(&ready));
            let what = Statement::Reported {
                by: "Horovod",
                on: Arc::default(),
                text: text.into(),
                next: NEXT,
            };
            facts.add(line.label.into(), at, what);
        }
        if is_head(text) {
            self.is_list = true;
        } else if let Some(list) = after(text, MISSING) {
            let ready = after(text, READY).map_or_else(Vec::new, ranks);
            let op = op_in(until(text, &['[']));
            let what = Statement::Misses { op, ranks: ranks(list), waited_ms };
            facts.add(of_rank(line, ready.first().copied().or(Some(COORDINATOR))), at, what);
        } else if self.is_list {
            let Some((own, names)) = text.trim().split_once(": [") else {
                *self = Self::default();
                return;
            };
            if let Some(missing) = rank(own).filter(|_| own.bytes().all(|it| it.is_ascii_digit())) {
                let what = Statement::Misses { op: op_in(names), ranks: vec![missing], waited_ms };
                facts.add(of_rank(line, Some(COORDINATOR)), at, what);
            }
        }
    }
}

/// "1, 3]".
fn ranks(list: &str) -> Vec<u32> {
    let ranks = until(list, &[']']).split(',').take(MAX_LIST);
    ranks.filter_map(|it| rank(it.trim())).collect()
}
