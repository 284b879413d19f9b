//! Calls that NCCL logs with `NCCL_DEBUG_SUBSYS=COLL`: collectives of one communicator that have one number on
//! all of its ranks must agree.
//!
//! A communicator is known from the lines that its ranks write when they create it, which have its hash. Without
//! them, processes that have one communicator of this size each, and are as many, share it: their ranks in it are
//! not known. NCCL gives calls that are launched together one number: only calls that are alone with theirs are compared. Ranks
//! count the messages of a communicator together with its collectives, and may have different ones: where there are
//! messages, nothing is compared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ddp_doctor_diagnosis::input::backends::NCCL;
use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use super::{Facts, Statement, Subject};
use crate::logs::scan::{after, cut, number_after, rank, until, world_size_after};

/// Maximum number of communicators of all processes.
const MAX_COMMUNICATORS: usize = 1 << 14;
/// Number of the latest calls of a communicator that are kept.
const MAX_CALLS: usize = 1024;
/// Numbers of calls from here on cannot be.
const MAX_COUNT: u64 = 1 << 40;
/// What to do if calls of processes differ whose ranks are not known.
const NAME_THEM: &str = "Let every rank make the same calls in the same order. NCCL_DEBUG_SUBSYS=INIT,COLL also logs \
                         the rank of each process.";
/// Maximum length of an address or a hash.
const MAX_TEXT: usize = 32;

/// Maximum number of calls that a sentence names.
const MAX_NAMED: usize = 4;

/// Types of elements by their number in `ncclDataType_t`.
const DTYPES: [&str; 10] =
    ["Char", "Byte", "Int", "UInt32", "Long", "UInt64", "Half", "Float", "Double", "BFloat16"];

/// Operations by the name that NCCL logs. Messages are matched by their peers, not by their numbers.
const OPS: [(&str, Op); 5] = [
    ("AllReduce", Op::AllReduce),
    ("AllGather", Op::AllGather),
    ("ReduceScatter", Op::ReduceScatter),
    ("Broadcast", Op::Broadcast),
    ("Reduce", Op::Reduce),
];

/// Host and process id.
type Process = (Option<Arc<str>>, Option<u32>);

/// A rank's communicator: its hash, size, and rank.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Communicator {
    hash: String,
    size: u32,
    rank: u32,
}

/// A call: its process, and where that runs.
#[derive(Clone, Debug)]
struct Called {
    who: Subject,
    on: Arc<str>,
    at: Timestamp,
    what: Statement,
}

/// The calls of one number, by rank, or by the index of a process whose rank is not known.
type Numbered = BTreeMap<u32, Option<Called>>;
/// Calls by their numbers.
type Calls = BTreeMap<u64, Numbered>;

/// Communicators of one size whose creation was not logged.
#[derive(Debug, Default)]
struct Unnamed {
    /// Processes with their indices, and the addresses of their communicators.
    processes: BTreeMap<Process, (u32, BTreeSet<String>)>,
    calls: Calls,
    is_mixed: bool,
}

/// The calls that were logged so far.
#[derive(Debug, Default)]
pub(super) struct NcclCalls {
    communicators: BTreeMap<(Process, String), Communicator>,
    /// Calls by communicator and number; `None` for a rank with several calls of one number.
    calls: BTreeMap<(String, u32), Calls>,
    /// Communicators with messages, or with operations that are not known.
    mixed: BTreeSet<(String, u32)>,
    /// Other communicators, by size.
    unnamed: BTreeMap<u32, Unnamed>,
}

impl NcclCalls {
    /// Takes the creation of a communicator: "comm 0x98 rank 12 nranks 16 … commId 0xa1 - Init COMPLETE".
    pub(super) fn created(&mut self, who: &Subject, message: &str) {
        let Some(made) = created(message) else { return };
        let (address, communicator) = made;
        if self.communicators.len() < MAX_COMMUNICATORS {
            self.communicators.insert((process(who), address), communicator);
        }
    }

    /// Takes a call: "AllReduce: opCount 6 sendbuff … count 512 datatype 7 op 0 root 0 comm 0x98 [nranks=2] …".
    pub(super) fn called(&mut self, who: &Subject, on: &Arc<str>, message: &str, at: Timestamp) {
        let Some(address) = address(message) else { return };
        let Some(size) = world_size_after(message, "[nranks=") else { return };
        let own = self.communicators.get(&(process(who), address.clone()));
        let call = called(message).map(|(number, what)| {
            let who = Subject { rank: own.map(|it| it.rank), ..who.clone() };
            (number, Called { who, on: Arc::clone(on), at, what })
        });
        let Some(own) = own else {
            self.unnamed.entry(size).or_default().called(process(who), address, call);
            return;
        };
        if size != own.size {
            return;
        }
        let key = (own.hash.clone(), own.size);
        match call {
            Some((number, call)) => add(self.calls.entry(key).or_default(), number, own.rank, call),
            None => {
                self.mixed.insert(key);
            }
        }
    }

    /// Adds the first calls of a communicator that disagree. Of several communicators, the largest counts: its
    /// ranks are those of the job.
    pub(super) fn finish(self, facts: &mut Facts) {
        let largest = self.communicators.values().map(|it| it.size).max();
        for ((hash, size), calls) in self.calls {
            if Some(size) != largest || self.mixed.contains(&(hash, size)) {
                continue;
            }
            let Some(first) = first_difference(calls) else { continue };
            for call in first {
                facts.add(call.who, call.at, call.what);
            }
            return;
        }
        if let Some((size, unnamed)) = self.unnamed.into_iter().next_back()
            && Some(size) >= largest
        {
            unnamed.finish(size, facts);
        }
    }
}

impl Unnamed {
    /// Takes a call; `None`: a message, or an operation that is not known.
    fn called(&mut self, process: Process, address: String, call: Option<(u64, Called)>) {
        let next = self.processes.len();
        if next >= MAX_COMMUNICATORS && !self.processes.contains_key(&process) {
            return;
        }
        let (index, addresses) =
            self.processes.entry(process).or_insert_with(|| (next as u32, BTreeSet::new()));
        if addresses.len() < 2 {
            addresses.insert(address);
        }
        let Some((number, call)) = call else {
            self.is_mixed = true;
            return;
        };
        add(&mut self.calls, number, *index, call);
    }

    fn finish(self, size: u32, facts: &mut Facts) {
        let is_one = self.processes.values().all(|(_, it)| it.len() == 1);
        if self.is_mixed || !is_one || self.processes.len() as u64 != u64::from(size) {
            return;
        }
        let Some(first) = first_difference(self.calls) else { return };
        if first.iter().all(|it| it.who.label.rank.is_some()) {
            for call in first {
                facts.add(call.who, call.at, call.what);
            }
            return;
        }
        let at = first.first().map(|it| it.at).unwrap_or_default();
        let described: Vec<String> = first
            .iter()
            .take(MAX_NAMED)
            .map(|call| {
                let pid = call.who.pid.unwrap_or_default();
                format!("process {pid} ({}) calls {}", call.on, describe(&call.what))
            })
            .collect();
        let text = format!("call {}: {}", number_of(&first), described.join(", "));
        let what = Statement::Reported {
            by: NCCL.label,
            on: Arc::default(),
            text: cut(&text, 512).into(),
            next: NAME_THEM,
        };
        facts.add(Subject::default(), at, what);
    }
}

/// Adds a call; a rank with several calls of one number has `None`.
fn add(calls: &mut Calls, number: u64, rank: u32, call: Called) {
    let of_rank = calls.entry(number).or_default();
    of_rank.entry(rank).and_modify(|known| *known = None).or_insert(Some(call));
    if calls.len() > MAX_CALLS {
        calls.pop_first();
    }
}

/// The first calls of one number that disagree.
fn first_difference(calls: Calls) -> Option<Vec<Called>> {
    // Ranks with several calls of one number show that the numbers do not count calls.
    if calls.values().flat_map(BTreeMap::values).any(Option::is_none) {
        return None;
    }
    let differ = |calls: &Numbered| {
        let mut calls = calls.values().flatten().map(|it| &it.what);
        let first = calls.next();
        calls.any(|it| Some(it) != first)
    };
    let first = calls.into_values().find(differ)?;
    Some(first.into_values().flatten().collect())
}

/// "#31" of calls of one number.
fn number_of(calls: &[Called]) -> String {
    match calls.first().map(|it| &it.what) {
        Some(Statement::Runs { seq, .. }) => format!("#{seq}"),
        _ => String::new(),
    }
}

/// "`all_reduce` Float[512]".
fn describe(what: &Statement) -> String {
    let Statement::Runs { op, shape, dtype, .. } = what else { return String::new() };
    let count = shape
        .iter()
        .flatten()
        .next()
        .map_or_else(String::new, |count| format!(" {dtype}[{count}]"));
    format!("{op}{count}")
}

fn process(who: &Subject) -> Process {
    (who.host.clone(), who.pid)
}

fn created(message: &str) -> Option<(String, Communicator)> {
    let rest = after(message, "comm 0x")?;
    let address = cut(until(rest, &[' ']), MAX_TEXT).to_owned();
    let size = world_size_after(rest, " nranks ")?;
    let rank = rank(after(rest, " rank ")?).filter(|&it| it < size)?;
    let hash = cut(until(after(rest, "commId ")?, &[' ']), MAX_TEXT).to_owned();
    Some((address, Communicator { hash, size, rank }))
}

/// Address of the communicator of a call.
fn address(message: &str) -> Option<String> {
    Some(cut(until(after(message, " comm 0x")?, &[' ']), MAX_TEXT).to_owned())
}

/// Number and contents of a collective.
fn called(message: &str) -> Option<(u64, Statement)> {
    let (before, rest) = message.split_once(": opCount ")?;
    let name = before.rsplit(' ').next()?;
    let (_, op) = *OPS.iter().find(|(it, _)| *it == name)?;
    let number = u64::from_str_radix(until(rest, &[' ']), 16).ok().filter(|&it| it < MAX_COUNT)?;
    let count = number_after(rest, " count ").and_then(|it| u32::try_from(it).ok());
    let dtype = number_after(rest, " datatype ")
        .and_then(|it| usize::try_from(it).ok())
        .and_then(|it| DTYPES.get(it))
        .copied()
        .unwrap_or_default();
    let shape = count.map(|it| vec![it]);
    Some((number, Statement::Runs { seq: number, op, shape, dtype: dtype.into() }))
}
