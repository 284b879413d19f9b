//! Lines of PyTorch's c10d: watchdog, store, barriers, comparison of collectives, DDP.

use std::sync::Arc;

use ddp_doctor_diagnosis::input::backends;
use ddp_doctor_diagnosis::model::MAX_WORLD;
use ddp_doctor_diagnosis::model::libc_signal::ABRT;
use ddp_doctor_diagnosis::situation::contract::{GRAPH_CHANGED, READY_TWICE};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{Op, ParameterFact};

use super::{ExitStatus, Facts, GroupName, Statement, Subject};
use crate::logs::lines::{Label, Line, bracketed_rank};
use crate::logs::scan::{
    after, cut, number, number_after, rank, small_after, split, until, world_size_after,
};

/// Maximum length of a name.
const MAX_NAME: usize = 128;
/// Maximum number of ranks or parameters in a list.
const MAX_LIST: usize = 4096;
/// Name of the key under which ranks meet in a store, before its number.
const BARRIER_KEY: &str = "store_based_barrier_key:";
/// Sequence numbers from here on cannot be.
const MAX_SEQ: u64 = 1 << 40;
/// An element count that c10d prints for a call without one.
const NO_COUNT: u64 = u64::MAX;

/// Who reports that another rank timed out.
pub(in super::super) const WATCHDOG: &str = "PyTorch";

/// Reads one line.
pub(super) fn read(line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    let text = line.text;
    let who = who(line);
    let mut found = Vec::new();
    found.extend(after(text, "operation timeout: Work").and_then(of_class).and_then(timed_out));
    found.extend(progress(text));
    found.extend(stuck(text));
    found.extend(desync(text));
    for what in found {
        facts.add(who.clone(), at, what);
    }
    if text.contains(" taking the entire process down") {
        facts.add(who.clone(), at, Statement::EndedLater(ExitStatus::of_status(-ABRT)));
    }
    fingerprints(text, &who, at, facts);
    store(text, &who, at, facts);
    ddp(text, &who, at, facts);
    if let Some(what) = of_other_watchdog(text) {
        facts.add(who.clone(), at, what);
    }
    if let Some(what) = barrier(text) {
        // Only rank 0 names others. In a group of some of the ranks, it has another number in the job.
        let rank = who.label.rank.or(who.rank);
        let what = match what {
            Statement::Misses { op, waited_ms, .. } if who.rank.is_some() && rank != who.rank => {
                Statement::Misses { op, ranks: Vec::new(), waited_ms }
            }
            what => what,
        };
        facts.add(Subject { rank, ..who }, at, what);
    }
}

/// What follows the parenthesis of "NCCL(": text after the name of a backend's class.
fn of_class(text: &str) -> Option<&str> {
    let mut classes = backends::ALL.iter().filter_map(|it| it.class);
    classes.find_map(|class| text.strip_prefix(class)?.strip_prefix('('))
}

/// The process that a line of PyTorch is about.
pub(super) fn who(line: &Line<'_>) -> Subject {
    let (group, rank) = in_group(line.text).unzip();
    Subject {
        label: line.label,
        rank: bracketed_rank(line.text).or(rank),
        group: group.unwrap_or_default(),
        ..Subject::default()
    }
}

/// The rank that a line states, if it does so within the group of all ranks.
pub(super) fn rank_in_world(text: &str) -> Option<u32> {
    let (group, rank) = in_group(text)?;
    group.is_world().then_some(rank)
}

/// The group and the rank in "[PG ID 0 PG GUID 119(name) Rank 1]" and its older forms.
fn in_group(text: &str) -> Option<(GroupName, u32)> {
    let inner = after(text, "[PG ")?;
    let (group, own) = inner.split_once(" Rank ")?;
    if group.len() > 4 * MAX_NAME {
        return None;
    }
    let rest = after(group, "PG GUID ").unwrap_or(group);
    let group = rest.strip_prefix("ID ").unwrap_or(rest);
    let (name, description) = group.split_once('(').unwrap_or((group, ""));
    let group = GroupName {
        name: cut(name.trim(), MAX_NAME).to_owned(),
        description: cut(description.trim_end_matches(')'), MAX_NAME).to_owned(),
    };
    Some((group, rank(own)?))
}

/// "SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 …".
fn timed_out(work: &str) -> Option<Statement> {
    let name = until(after(work, "OpType=")?, &[',', ')']);
    let timeout = number_after(work, "Timeout(ms)=")?;
    let count = |key: &str| number_after(work, key).filter(|&it| it != NO_COUNT);
    let (numel, whole) = (count("NumelIn="), count("NumelOut="));
    let op = op(name);
    // The pieces of all members have one size in these.
    let (pieces, piece) = match op {
        Op::AllGather => (whole, numel),
        Op::ReduceScatter => (numel, whole),
        _ => (None, None),
    };
    let is_of_one_size = name.ends_with("_BASE");
    let size = pieces.zip(piece).filter(|_| is_of_one_size).and_then(|(pieces, piece)| {
        let is_whole = piece > 0 && pieces.is_multiple_of(piece);
        is_whole
            .then(|| u32::try_from(pieces / piece).ok().filter(|it| (2..=MAX_WORLD).contains(it)))?
    });
    Some(Statement::TimedOut {
        seq: sequence_after(work, "SeqNum=")?,
        op,
        numel,
        size,
        waited_ms: number_after(work, " ran for ").unwrap_or(timeout),
    })
}

/// "last enqueued work: 7, last completed work: 6", in several forms.
fn progress(text: &str) -> Option<Statement> {
    let (before, status) =
        split(text, "ast enqueued work: ").or_else(|| split(text, "ast enqueued NCCL work: "))?;
    let completed = after(status, "ast completed work: ")
        .or_else(|| after(status, "ast completed NCCL work: "))?;
    let failed = ["at work sequence id: ", "at work: ", "NCCL work: "]
        .iter()
        .find_map(|key| sequence_after(before, key));
    // The counters of PyTorch 2.3 may be what lay in memory. All before the failed call are complete.
    let completed = counter(completed).or(failed.map(|it| it.saturating_sub(1)))?;
    let enqueued = counter(status).or(failed)?;
    Some(Statement::Progress { enqueued, completed, failed })
}

/// The sequence number that follows `key`.
fn sequence_after(text: &str, key: &str) -> Option<u64> {
    number_after(text, key).filter(|&it| it < MAX_SEQ)
}

/// The sequence number at the beginning of `text`. PyTorch's counters are -1 before the first
/// collective, which is 0 here.
fn counter(text: &str) -> Option<u64> {
    let number = number(text).filter(|&it| it < MAX_SEQ);
    number.or_else(|| text.starts_with("-1").then_some(0))
}

/// What a watchdog reports of the timeout of another rank: "Received a dump signal due to a collective timeout from
/// rank 13".
fn of_other_watchdog(text: &str) -> Option<Statement> {
    const NEXT: &str = "Add the log of that rank: it states which collective timed out.";
    const SIGNALS: [&str; 4] = [
        "Received a dump signal",
        "Received a global timeout from another rank",
        "Received a timeout signal from this local rank",
        "Observed flight recorder dump signal from another rank",
    ];
    SIGNALS.iter().find(|it| text.contains(**it))?;
    let of = after(text, " from ").and_then(|it| rank(it.trim_start().strip_prefix("rank ")?));
    let (text, next): (Arc<str>, _) = match of {
        Some(of) => (format!("a collective of rank {of} timed out").into(), NEXT),
        // Another line may name it.
        None => ("a collective of another rank timed out".into(), ""),
    };
    Some(Statement::Reported { by: WATCHDOG, on: Arc::default(), text, next })
}

/// What a line of a watchdog states that is cut off before the operation.
pub(super) fn unstated_timeout() -> Statement {
    const NEXT: &str =
        "Add the whole line, and the logs of all ranks: they state which collective timed out.";
    let text = "a collective that the text does not name timed out".into();
    Statement::Reported { by: WATCHDOG, on: Arc::default(), text, next: NEXT }
}

fn stuck(text: &str) -> Option<Statement> {
    let seconds = number_after(text, "watchdog got stuck for ");
    let says_so = ["ProcessGroupNCCL watchdog hang", "Heartbeat monitor timed out"];
    let is_stuck = seconds.is_some() || says_so.iter().any(|it| text.contains(it));
    is_stuck.then_some(Statement::WatchdogStuck { seconds })
}

/// "[3, 5] finished collective #29, but didn't join collective #30" or "[0, 1] joined but didn't finish collective
/// #30", in a report on a desync.
fn desync(text: &str) -> Vec<Statement> {
    let ranks = || {
        const INSIDE: &str = "] joined but didn't finish collective #";
        let (before, seq, is_inside) = match split(text, INSIDE) {
            Some((before, seq)) => (before, seq, true),
            None => {
                let (before, seq) = split(text, ", but didn't join collective #")?;
                let (before, _) = before.split_once("] finished collective #")?;
                (before, seq, false)
            }
        };
        let (_, ranks) = before.rsplit_once('[')?;
        let before = number(seq)?.saturating_sub(1);
        Some((ranks.split(',').take(MAX_LIST), before, is_inside))
    };
    let Some((ranks, seq, is_inside)) = ranks() else {
        return Vec::new();
    };
    let ranks = ranks.filter_map(|it| rank(it.trim()));
    let finishes = ranks.map(|rank| Statement::Finishes { rank, seq, is_inside });
    finishes.collect()
}

/// "Rank 1 is running collective: CollectiveFingerPrint(…), but Rank 0 is running collective: …".
fn fingerprints(text: &str, who: &Subject, at: Timestamp, facts: &mut Facts) {
    const RUNS: &str = " is running collective: CollectiveFingerPrint(";
    let Some(both) = after(text, " between collectives on ranks. ") else {
        return;
    };
    let mut seq = None;
    let mut rest = both;
    while let Some((before, print)) = rest.split_once(RUNS) {
        rest = print;
        let Some(rank) = before.rsplit("Rank ").next().and_then(rank) else {
            continue;
        };
        let print = until_next_rank(print);
        let Some(name) = after(print, "OpType=") else {
            continue;
        };
        // The second print is not always complete: both are of one call of the group.
        let own = sequence_after(print, "SequenceNumber=").unwrap_or(0);
        let seq = *seq.get_or_insert(own);
        // What PyTorch could not read of a peer has number 0, and any operation.
        if own == 0 && seq > 0 && print.contains("SequenceNumber=") {
            continue;
        }
        let shape = after(print, "TensorShape=[").map(|shape| until(shape, &[']']));
        let dtype = after(print, "TensorDtypes=").map(|dtype| until(dtype, &[',', ')']));
        let what = Statement::Runs {
            seq,
            op: op(until(name, &[',', ')'])),
            shape: shape.and_then(sizes),
            dtype: cut(dtype.unwrap_or_default(), MAX_NAME).to_owned(),
        };
        facts.add(named(who, rank), at, what);
    }
}

/// The part about one rank.
fn until_next_rank(print: &str) -> &str {
    print.split_once(", but Rank ").map_or(print, |(own, _)| own)
}

fn sizes(text: &str) -> Option<Vec<u32>> {
    let sizes = text.split(',').take(MAX_LIST).map(str::trim).filter(|it| !it.is_empty());
    sizes.map(|it| it.parse().ok()).collect()
}

/// Waits for the store, in which ranks meet.
fn store(text: &str, who: &Subject, at: Timestamp, facts: &mut Facts) {
    if let Some(rest) = after(text, "store based barrier")
        && let Some(rank) = after(rest, "rank: ").or_else(|| after(rest, "on rank ")).and_then(rank)
        && let Some(world_size) = world_size_after(rest, "world_size=")
        && let Some(joined) =
            small_after(rest, "worker_count=").or_else(|| small_after(rest, "num_workers_joined="))
    {
        let who = Subject { rank: Some(rank), ..who.clone() };
        facts.worlds.insert(world_size);
        if text.contains("Timed out") {
            let waited_ms = after(rest, "timeout=").and_then(hours).unwrap_or(0);
            let what = Statement::Joins {
                world_size,
                joined,
                key: number_after(rest, BARRIER_KEY).unwrap_or(0),
                waited_ms,
            };
            facts.add(who, at, what);
        } else {
            facts.add(who, at, Statement::Named { of: None });
        }
        return;
    }
    if let Some(key) = number_after(text, BARRIER_KEY)
        && let Some(rank) = after(text, " to store for rank: ").and_then(rank)
    {
        let who = Subject { rank: Some(rank), ..who.clone() };
        facts.add(who, at, Statement::Joined { key });
        return;
    }
    if let Some((before, rest)) = split(text, " waiting for clients. ")
        && let Some(joined) = number(rest)
        && let Some(expected) = number_after(rest, "/")
    {
        let what = Statement::Clients {
            expected: u32::try_from(expected).unwrap_or(u32::MAX),
            joined: u32::try_from(joined).unwrap_or(u32::MAX),
            waited_ms: number_after(before, "Timed out after ")
                .map_or(0, |it| it.saturating_mul(1000)),
        };
        facts.add(who.clone(), at, what);
        return;
    }
    let lost = ["recvValue failed on", "sendBytes failed on", "recvVector failed on"];
    if let Some(server) = after(text, "remote=[")
        && lost.iter().any(|it| text.contains(it))
    {
        let server = cut(&until(server, &[')']).replacen(']', "", 1), MAX_NAME).into();
        facts.add(who.clone(), at, Statement::LostStore { server });
        return;
    }
    // The ranks have joined: the first of a communicator has not come to its first call.
    if let Some(first) = after(text, " retrieving ncclUniqueId from [").and_then(rank)
        && let Some(waited_ms) = number_after(text, "wait timeout after ")
    {
        let what = Statement::Misses { op: Op::Unspecified, ranks: vec![first], waited_ms };
        facts.add(who.clone(), at, what);
        return;
    }
    if let Some(rest) = after(text, "wait timeout after ")
        && let Some(key) = after(rest, "keys: /default_pg/0//")
        && let Some((_, of)) = key.rsplit_once('/')
        && of.trim().bytes().all(|it| it.is_ascii_digit())
        && let Some(of) = rank(of.trim())
    {
        let waited_ms = number(rest).unwrap_or(0);
        facts.add(who.clone(), at, Statement::MissesAddress { of, waited_ms });
        return;
    }
    facts.worlds.extend(world_size(text));
}

/// "world_size=8", but not "tp_world_size=8".
fn world_size(text: &str) -> Option<u32> {
    const KEY: &str = "world_size=";
    let (before, _) = split(text, KEY)?;
    let is_part = before.ends_with(|it: char| it.is_ascii_alphanumeric() || it == '_');
    world_size_after(text, KEY).filter(|_| !is_part)
}

/// Milliseconds of "0:30:00", or of "1 day, 0:00:00".
fn hours(text: &str) -> Option<u64> {
    let days = number(text).filter(|_| text.contains(" day")).unwrap_or(0);
    let clock = text.rsplit(", ").next()?;
    let mut parts = clock.split(':');
    let mut part = || number(parts.next()?);
    let (hour, minute, second) = (part()?, part()?, part()?);
    days.checked_mul(24)?
        .checked_add(hour)?
        .checked_mul(60)?
        .checked_add(minute)?
        .checked_mul(60)?
        .checked_add(second)?
        .checked_mul(1000)
}

/// "Rank 1 failed to pass monitoredBarrier in 1000 ms", "Ranks 1, 2 failed …".
fn barrier(text: &str) -> Option<Statement> {
    let (before, rest) = split(text, " failed to pass monitoredBarrier in ")?;
    let list = before.rsplit("Rank").next()?.trim_start_matches('s');
    let ranks: Option<Vec<u32>> =
        list.split(',').take(MAX_LIST).map(|it| rank(it.trim())).collect();
    let (op, waited_ms) = (Op::MonitoredBarrier, number(rest).unwrap_or(0));
    Some(Statement::Misses { op, ranks: ranks?, waited_ms })
}

/// Errors of DDP that name parameters.
fn ddp(text: &str, who: &Subject, at: Timestamp, facts: &mut Facts) {
    const LACKS: &str = " which did not receive grad for rank ";
    const EXPECTS: &str = "DDP expects same model across all ranks, but Rank ";
    if let Some((what, rest)) = split(text, LACKS)
        && let Some((own, list)) = rest.split_once(": ")
        && let Some(rank) = rank(own.trim())
    {
        let (kind, list): (_, Vec<&str>) = if what.ends_with("indices") {
            let is_number = |it: &&str| it.bytes().all(|it| it.is_ascii_digit());
            let numbers = list.split_whitespace().take_while(is_number);
            ("parameter ", numbers.collect())
        } else {
            ("", list.split(", ").map(str::trim).collect())
        };
        let lines: String =
            list.iter().take(MAX_LIST).map(|it| format!("- - {kind}{it}\n")).collect();
        let what = Statement::OfModel {
            fact: ParameterFact::WithoutGradient,
            total: list.len() as u64,
            lines: lines.into(),
        };
        facts.add(named(who, rank), at, what);
    }
    if let Some(rest) = after(text, EXPECTS)
        && let Some((own, other)) = rest.split_once(", while rank ")
        && let (Some(first), Some(total)) = (rank(own), number_after(own, "has "))
        && let (Some(peer), Some(count)) = (rank(other), number_after(other, "inconsistent "))
        // A count that was not exchanged is zero or what lay in memory.
        && [total, count].iter().all(|it| (1..1 << 24).contains(it))
    {
        for (rank, total) in [(first, total), (peer, count)] {
            let (fact, lines) = (ParameterFact::Layout, Arc::default());
            facts.add(named(who, rank), at, Statement::OfModel { fact, total, lines });
        }
    }
    let raised =
        [(READY_TWICE, ParameterFact::ReadyTwice), (GRAPH_CHANGED, ParameterFact::GraphChanged)];
    for (_, fact) in raised.iter().filter(|(words, _)| text.contains(words)) {
        let (fact, total, lines) = (*fact, 0, Arc::default());
        facts.add(who.clone(), at, Statement::OfModel { fact, total, lines });
    }
    if let Some(rest) = after(text, "Parameter at index ")
        && let Some((before, _)) = rest.split_once(" has been marked as ready twice")
    {
        let name = match before.split_once(" with name ") {
            Some((_, name)) => cut(name, MAX_NAME).to_owned(),
            None => format!("parameter {}", cut(before, MAX_NAME)),
        };
        let what = Statement::OfModel {
            fact: ParameterFact::ReadyTwice,
            total: 1,
            lines: format!("- - {name}\n").into(),
        };
        facts.add(who.clone(), at, what);
    }
}

fn named(who: &Subject, rank: u32) -> Subject {
    Subject { label: Label::default(), rank: Some(rank), ..who.clone() }
}

/// The operation that c10d calls this: "_ALLGATHER_BASE".
fn op(name: &str) -> Op {
    let name = match name.trim_start_matches('_').trim_end_matches("_BASE") {
        "ALLTOALL" => "all_to_all".to_owned(),
        "RECVANYSOURCE" => "recv".to_owned(),
        name => name.replace("ALL", "ALL_").to_lowercase(),
    };
    Op::from_name(&name).unwrap_or(Op::Unspecified)
}
