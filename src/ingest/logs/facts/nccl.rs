//! Lines of NCCL: "host:pid:tid [device] NCCL INFO …", "… file.cc:7 NCCL WARN …".

use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;

use super::{Facts, Statement, Subject};
use crate::ingest::logs::lines::Line;
use crate::ingest::logs::scan::{after, cut, rank, split, until, world_size_after};

/// Maximum length of a text that is kept.
const MAX_TEXT: usize = 1024;

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
        let who = Subject { rank: Some(rank), ..who };
        facts.add(who, at, Statement::Named { of: Some(size) });
        return;
    }
    if message.starts_with("INFO Using network ") {
        facts.found_network(who);
        return;
    }
    let is_network = ["NET/IB", "Net : ", "socket"];
    if let Some(warning) = message.strip_prefix("WARN ")
        && is_network.iter().any(|it| warning.contains(it))
    {
        let text = Arc::from(cut(warning, MAX_TEXT));
        facts.add(who, at, Statement::Network { text });
    }
}

/// The process in "host:2303:2343 [4]".
fn process(head: &str, line: &Line<'_>) -> Option<Subject> {
    let head = until(head, &[' ']);
    let mut parts = head.rsplitn(3, ':');
    let (tid, pid, host) = (parts.next()?, parts.next()?, parts.next()?);
    let _: u32 = tid.parse().ok()?;
    Some(Subject {
        label: line.label,
        pid: Some(pid.parse().ok()?),
        host: Some(cut(host, 256).into()),
        ..Subject::default()
    })
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
