//! Lines of NCCL: "host:pid:tid [device] NCCL INFO …", "… file.cc:7 NCCL WARN …".

use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;

use super::{Facts, Statement, Subject};
use crate::ingest::logs::lines::{Label, Line};
use crate::ingest::logs::scan::{after, cut, rank, split, until, world_size_after};

/// Maximum length of a text that is kept.
const MAX_TEXT: usize = 1024;

/// Parts of warnings about the network.
const NETWORK: [&str; 5] = ["NET/IB", "NET/OFI", "Net : ", "socket", "ibv_modify_qp failed"];
/// How a warning about an error of CUDA begins.
const CUDA: &str = "Cuda failure";

/// Reads one line.
pub(super) fn read(line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    let text = line.text;
    if let Some(rest) = after(text, "Duplicate GPU detected : rank ") {
        duplicate(rest, line, at, facts);
    }
    let Some((head, message)) = split(text, " NCCL ") else {
        return;
    };
    let Some(who) = process(head, line) else {
        return;
    };
    if let Some(rest) = after(message, " rank ")
        && let Some(size) = world_size_after(rest, " nranks ")
        && let Some(rank) = rank(rest).filter(|&rank| rank < size)
    {
        facts.worlds.insert(size);
        facts.nccl_calls.created(&who, message);
        let who = Subject { rank: Some(rank), ..who };
        facts.add(who, at, Statement::Named { of: Some(size) });
        return;
    }
    if message.contains(": opCount ") {
        facts.nccl_calls.called(&who, message, at);
        return;
    }
    if let Some(error) = message.strip_prefix("INFO misc/socket.cc:")
        && let Some((_, reason)) = error.split_once(" -> 2 (")
    {
        let text = Arc::from(format!("a socket failed: {}", reason.trim_end_matches(')')));
        facts.add(who, at, Statement::Network { text });
        return;
    }
    if message.starts_with("INFO Using network ") {
        facts.found_network(who);
        return;
    }
    if let Some(warning) = message.strip_prefix("WARN ")
        && warning.starts_with(CUDA)
    {
        let text = cut(warning, MAX_TEXT).into();
        let (place, uncaught, went_on, is_last, by_launcher) = (None, true, false, false, false);
        let what = Statement::Raised { text, place, uncaught, went_on, is_last, by_launcher };
        facts.add(who, at, what);
        return;
    }
    if let Some(warning) = message.strip_prefix("WARN ")
        && NETWORK.iter().any(|it| warning.contains(it))
    {
        let text = Arc::from(cut(warning, MAX_TEXT));
        facts.add(who, at, Statement::Network { text });
    }
}

/// The process in "host:2303:2343 [4]".
fn process(head: &str, line: &Line<'_>) -> Option<Subject> {
    let (task, head) = of_task(head);
    let head = until(head, &[' ']);
    let mut parts = head.rsplitn(3, ':');
    let (tid, pid, host) = (parts.next()?, parts.next()?, parts.next()?);
    let _: u32 = tid.parse().ok()?;
    let label = Label { task: line.label.task.or(task), ..line.label };
    Some(Subject {
        label,
        pid: Some(pid.parse().ok()?),
        host: Some(cut(host, 256).into()),
        ..Subject::default()
    })
}

/// The task in "[3] host:2303:2343 [4]", which Intel MPI puts in front, and the rest.
fn of_task(head: &str) -> (Option<u32>, &str) {
    let split = head.strip_prefix('[').and_then(|it| it.split_once("] "));
    let task = split.and_then(|(task, rest)| {
        let is_number = !task.is_empty() && task.bytes().all(|it| it.is_ascii_digit());
        Some((rank(task).filter(|_| is_number)?, rest))
    });
    task.map_or((None, head), |(task, rest)| (Some(task), rest))
}

/// "2 and rank 0 both on CUDA device 1000".
fn duplicate(rest: &str, line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    let Some(device) = after(rest, " both on CUDA device ") else {
        return;
    };
    let device: Arc<str> = cut(until(device, &[' ']), 64).into();
    let ranks = [rank(rest), after(rest, "and rank ").and_then(rank)];
    for rank in ranks.into_iter().flatten() {
        let who = Subject {
            rank: Some(rank),
            host: process(line.text, line).and_then(|it| it.host),
            ..Subject::default()
        };
        let device = Arc::clone(&device);
        facts.add(who, at, Statement::Uses { device });
    }
}
