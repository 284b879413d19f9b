//! HCCL, of Ascend devices: a wait for a notification, or for the socket of a peer, that timed out.

use ddp_doctor_proto::report::Timestamp;

use super::{of_rank, op_in};
use crate::logs::facts::{Facts, Statement};
use crate::logs::lines::{Line, bracketed_rank};
use crate::logs::scan::{after, number_after, rank, until};

/// What states such a timeout: its codes, the task that waits, and the link that was not made.
const TIMEOUTS: [&str; 4] =
    ["EI0002", "EI0006", "taskType[Notify Wait]", "Create Dest error! createLink"];
/// What precedes the rank that did not come, in brackets.
const MISSING: [&str; 5] =
    ["remote rank [", "remote rank:[", "remote rank[", "remoteRank[", "dst_rank["];
/// What precedes the rank that waited.
const OWN: [&str; 4] = ["local rank [", "local rank[", "localRank[", "para:rank["];
/// Shortest wait: the text may state none.
const MIN_WAIT_MS: u64 = 1;

/// Reads one line.
pub(super) fn read(line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    let text = line.text;
    if !TIMEOUTS.iter().any(|it| text.contains(it)) {
        return;
    }
    let bracketed = |keys: &[&str]| keys.iter().find_map(|key| rank(after(text, key)?));
    let Some(missing) = bracketed(&MISSING) else { return };
    let own = bracketed(&OWN).or_else(|| bracketed_rank(text));
    let tag = after(text, "tag[").map_or("", |it| until(it, &[']']));
    let seconds = number_after(text, "timeout[").or_else(|| number_after(text, "timeout:"));
    let waited_ms = seconds.map_or(MIN_WAIT_MS, |it| it.saturating_mul(1000));
    let what = Statement::Misses { op: op_in(tag), ranks: vec![missing], waited_ms };
    facts.add(of_rank(line, own), at, what);
}
