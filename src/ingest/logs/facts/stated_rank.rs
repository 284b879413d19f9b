//! Lines that state the rank of a process: those of Lightning and Ray, and of programs that `srun` or `mpirun`
//! label.

use std::ops::RangeInclusive;

use ddp_doctor_proto::report::Timestamp;

use super::{Facts, Statement, Subject};
use crate::logs::lines::{Label, Line, Worker};
use crate::logs::scan;

/// Maximum number of hosts with ranks that are kept.
const MAX_PLACED: usize = 1 << 14;
/// Maximum number of ranks of a host.
const MAX_ON_HOST: u32 = 1024;
/// Maximum length of the name of a host.
const MAX_HOST: usize = 128;

/// Reads a line in which a process states its rank.
pub(super) fn read(line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    if let Some((host, ranks)) = placed(line.text)
        && facts.placed.len() < MAX_PLACED
    {
        facts.placed.push((host.to_owned(), ranks));
    }
    if let Some(worker) = line.label.worker
        && let Some(rank) = of_worker(line.text)
    {
        facts.name(Label { rank: Some(rank), worker: Some(worker), ..Label::default() });
    }
    if let Some(label) = of_ray(line.text) {
        facts.name(label);
    }
    if let Some(rank) = of_lightnings_process(line.text) {
        let who = Subject { rank: Some(rank), ..Subject::default() };
        facts.add(who, at, Statement::Named { of: None });
    }
    if let Some((rank, pid)) = in_header(line.text) {
        let who = Subject { rank: Some(rank), pid: Some(pid), ..Subject::default() };
        facts.add(who, at, Statement::Named { of: None });
    }
    let by_task = || of_task(line.label.task.and(Some(line.text))?);
    let Some((rank, size, host)) = of_lightning(line.text, facts).or_else(by_task) else {
        return;
    };
    let who = Subject {
        rank: Some(rank),
        host: host.map(|it| scan::cut(it, 256).into()),
        ..line.label.into()
    };
    facts.add(who, at, Statement::Named { of: Some(size) });
}

/// Reads the host that a launcher puts in front of a line with the label of PyTorch: "gpu-7: [rank3]: …".
pub(super) fn read_host(line: &str, rank: u32, facts: &mut Facts) {
    if facts.hosted.contains(&rank) {
        return;
    }
    if let Some((host, _)) = line.split_once(": [rank")
        && is_host(host)
        && facts.placed.len() < MAX_PLACED
    {
        facts.placed.push((host.to_owned(), rank..=rank));
        facts.hosted.insert(rank);
    }
}

/// Whether a word may be the name of a host, or its address.
fn is_host(word: &str) -> bool {
    let is_part = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'.' | b'_');
    let has = |kind: fn(&u8) -> bool| word.as_bytes().iter().any(kind);
    let is_name = has(u8::is_ascii_alphabetic) || word.matches('.').count() == 3;
    word.len() <= MAX_HOST && word.bytes().all(is_part) && has(u8::is_ascii_digit) && is_name
}

/// The host and its ranks in a list: "node 1: gpu-07 ranks 8-15", "ranks 8-15 on gpu-07".
fn placed(text: &str) -> Option<(&str, RangeInclusive<u32>)> {
    let (before, own) = scan::split(text, "ranks ")?;
    let (first, rest) = own.trim_start_matches('[').split_once(['-', '.'])?;
    let rest = rest.trim_start_matches('.');
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let last = scan::rank(rest)?;
    let is_number = !first.is_empty() && first.bytes().all(|it| it.is_ascii_digit());
    let first =
        scan::rank(first).filter(|it| is_number && it <= &last && last - it < MAX_ON_HOST)?;
    let is_border = |it: char| {
        it.is_whitespace() || matches!(it, ':' | '=' | '>' | '(' | ')' | '[' | ']' | ',' | '@')
    };
    let is_host = |it: &&str| is_host(it);
    let mut words = before.split(is_border).rev().filter(|it| !matches!(*it, "" | "-" | "global"));
    let mut later = rest[digits..].split(is_border).filter(|it| !matches!(*it, "" | "-" | "on"));
    let host = words.next().filter(is_host).or_else(|| later.next().filter(is_host))?;
    Some((host, first..=last))
}

/// The rank in a line in which a worker introduces itself: "rank=5 local_rank=5".
fn of_worker(text: &str) -> Option<u32> {
    const KEY: &str = "rank=";
    // Most lines do not have it.
    let introduces =
        text.contains(KEY) && ["local_rank=", "world_size="].iter().any(|it| text.contains(it));
    let is_word = |(at, _): &(usize, &str)| {
        !text[..*at].ends_with(|it: char| it.is_alphanumeric() || it == '_')
    };
    let mut ranks = text.match_indices(KEY).filter(is_word);
    let (at, _) = ranks.next().filter(|_| introduces)?;
    scan::rank(&text[at + KEY.len()..]).filter(|_| ranks.next().is_none())
}

/// The rank, the number of ranks and the host in the line of a task: "node-3: rank 12/64".
fn of_task(text: &str) -> Option<(u32, u32, Option<&str>)> {
    let (before, own) = text.split_once("rank ")?;
    // A word in front would say of what: "local rank 3/8".
    let is_word = |it: char| it.is_alphanumeric() || matches!(it, '_' | '-');
    let is_alone = !before.trim_end().ends_with(is_word);
    let (own, rest) = own.split_once('/').filter(|_| is_alone)?;
    let is_number = !own.is_empty() && own.bytes().all(|it| it.is_ascii_digit());
    let size = scan::small(rest)?;
    let rank = scan::rank(own).filter(|&it| is_number && it < size)?;
    let host = before.trim().strip_suffix(':');
    let is_host = |it: &&str| it.bytes().any(|it| it.is_ascii_digit()) && !it.contains(' ');
    Some((rank, size, host.filter(is_host)))
}

/// The rank and the process id in a heading: "== RANK 3 pid 4009 host=n7 ==".
fn in_header(text: &str) -> Option<(u32, u32)> {
    let border = text.chars().next().filter(|it| matches!(it, '=' | '-' | '#' | '*'))?;
    let mut words = text
        .trim_matches(|it: char| it == border || it == ' ')
        .split([' ', '=', ':', '/', ',', '(', ')'])
        .filter(|it| !it.is_empty());
    let is_rank = words.next()?.eq_ignore_ascii_case("rank");
    let rank = words.next().filter(|it| is_rank && it.bytes().all(|it| it.is_ascii_digit()))?;
    let is_pid = words.next()?.eq_ignore_ascii_case("pid");
    let pid = words.next().filter(|_| is_pid)?.parse().ok()?;
    Some((scan::rank(rank)?, pid))
}

/// The worker in "- (node_id=5c1f, ip=10.0.0.7, pid=4009) world_rank=3, local_rank=3, node_rank=0" of Ray.
fn of_ray(text: &str) -> Option<Label> {
    let (process, rank) = scan::split(text, ") world_rank=")?;
    let pid = scan::small_after(process, "pid=")?;
    let host = scan::after(process, " ip=")
        .or_else(|| scan::after(process, "(ip="))
        .map(|it| scan::until(it, &[',']));
    Some(Label {
        rank: scan::rank(rank),
        worker: Worker::of_ray("", pid, host),
        ..Label::default()
    })
}

/// The rank in "[rank: 3] Seed set to 42" of Lightning. Of its children it states the rank on their node.
fn of_lightnings_process(text: &str) -> Option<u32> {
    let (rank, rest) = text.strip_prefix("[rank: ")?.split_once("] ")?;
    let is_own = rest.starts_with("Seed set to ") || rest.starts_with("Received SIG");
    scan::rank(rank).filter(|_| is_own)
}

/// The same in a line of Lightning, "GLOBAL_RANK: 1, MEMBER: 2/8", which states the size of the world.
fn of_lightning<'a>(text: &'a str, facts: &mut Facts) -> Option<(u32, u32, Option<&'a str>)> {
    let own = scan::after(text, "GLOBAL_RANK: ")?;
    let size = scan::world_size_after(scan::after(own, "MEMBER: ")?, "/")?;
    let rank = scan::rank(own)?;
    facts.worlds.insert(size);
    Some((rank, size, None))
}
