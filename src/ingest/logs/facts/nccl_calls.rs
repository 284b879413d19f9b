//! Calls that NCCL logs with `NCCL_DEBUG_SUBSYS=COLL`: collectives of one communicator that have one number on
//! all of its ranks must agree.
//!
//! A communicator is known from the lines that its ranks write when they create it, which have its hash. NCCL
//! gives calls that are launched together one number: only calls that are alone with theirs are compared. Ranks
//! count the messages of a communicator together with its collectives, and may have different ones: where there are
//! messages, nothing is compared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use super::{Facts, Statement, Subject};
use crate::ingest::logs::scan::{after, cut, number_after, rank, until, world_size_after};

/// Maximum number of communicators of all processes.
const MAX_COMMUNICATORS: usize = 1 << 14;
/// Number of the latest calls of a communicator that are kept.
const MAX_CALLS: usize = 1024;
/// Numbers of calls from here on cannot be.
const MAX_COUNT: u64 = 1 << 40;
/// Maximum length of an address or a hash.
const MAX_TEXT: usize = 32;

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

/// The calls of one number, by rank.
type Numbered = BTreeMap<u32, Option<(Subject, Timestamp, Statement)>>;

/// The calls that were logged so far.
#[derive(Debug, Default)]
pub(super) struct NcclCalls {
    communicators: BTreeMap<(Process, String), Communicator>,
    /// Calls by communicator and number; `None` for a rank with several calls of one number.
    calls: BTreeMap<(String, u32), BTreeMap<u64, Numbered>>,
    /// Communicators with messages, or with operations that are not known.
    mixed: BTreeSet<(String, u32)>,
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
    pub(super) fn called(&mut self, who: &Subject, message: &str, at: Timestamp) {
        let Some(address) = address(message) else { return };
        let Some(own) = self.communicators.get(&(process(who), address)) else { return };
        if world_size_after(message, "[nranks=") != Some(own.size) {
            return;
        }
        let key = (own.hash.clone(), own.size);
        let Some((number, what)) = called(message) else {
            self.mixed.insert(key);
            return;
        };
        let calls = self.calls.entry(key).or_default();
        let of_rank = calls.entry(number).or_default();
        let who = Subject { rank: Some(own.rank), ..who.clone() };
        let call = Some((who, at, what));
        of_rank.entry(own.rank).and_modify(|known| *known = None).or_insert(call);
        if calls.len() > MAX_CALLS {
            calls.pop_first();
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
            // Ranks with several calls of one number show that the numbers do not count calls.
            if calls.values().flat_map(BTreeMap::values).any(Option::is_none) {
                continue;
            }
            let differ = |calls: &&Numbered| {
                let mut calls = calls.values().flatten().map(|(_, _, what)| what);
                let first = calls.next();
                calls.any(|it| Some(it) != first)
            };
            let Some(first) = calls.into_values().find(|it| differ(&it)) else { continue };
            for (who, at, what) in first.into_values().flatten() {
                facts.add(who, at, what);
            }
            return;
        }
    }
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
    let dtype = number_after(rest, " datatype ").and_then(|it| usize::try_from(it).ok());
    let dtype = dtype.and_then(|it| DTYPES.get(it)).copied().unwrap_or_default();
    let shape = count.map(|it| vec![it]);
    Some((number, Statement::Runs { seq: number, op, shape, dtype: dtype.into() }))
}
