//! Digests of the calls of a process, for a coordinator that asks for them instead of records.
//!
//! A digest has a constant size, whatever the process does: how far it is in each group, for how long
//! it has been stuck or a thread inside a call, and a hash of the part of its calls that its peers must agree
//! on. The hash is stated at sequence numbers that are multiples of 64, so that ranks which are at
//! different places can be compared. Of those since the previous digest the ones with the most trailing
//! zeros are stated: they are the same on every member, wherever its digests begin. While a thread stays inside
//! a call, the hash of all calls of its group is stated as well, once, and later those of the other groups: peers
//! that wait in one call are compared at once.
//!
//! The records stay in the black box, from which the coordinator requests them when digests disagree
//! or calls take long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::{Call, CallId, GroupInfo, ThreadId};
use ddp_doctor_diagnosis::input::align::{EMPTY_HASH, Signature, mix};
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::NCCL_LAYER;
use ddp_doctor_proto::{DType, Op, ParameterFact, RecordKind, ReduceOp, Spending, v1};
use v1::event::Kind;

use crate::values::number;

/// Interval of digests.
pub const INTERVAL: Duration = Duration::from_millis(500);
/// Interval of sequence numbers at which all members state the hash.
pub const EVERY: u64 = 64;
/// Maximum number of checks of a group in one digest.
const MAX_CHECKS: usize = 2;
/// At multiples of this sequence number the hash begins anew, so that a loss of records does not
/// exclude a process forever.
const RESTART: u64 = 1 << 20;
/// Time inside a call after which the hash of all calls of its group is stated.
const STAYS_NS: u64 = 100_000_000;

/// What the calls of a process amount to.
#[derive(Debug, Default)]
pub struct Summary {
    /// Layer that captures its calls.
    layer: String,
    /// The ticket after its latest record.
    through: u64,
    /// By number, and whether values of parameters are meant.
    groups: BTreeMap<(u32, bool), GroupDigest>,
    threads: BTreeMap<u32, Thread>,
    step: u32,
    /// Time of its latest record, monotonic clock.
    latest: u64,
    /// Time of the previous digest, monotonic clock.
    since: u64,
}

#[derive(Debug)]
struct GroupDigest {
    /// The group as far as signatures depend on it.
    info: Arc<GroupInfo>,
    issued: u64,
    /// Hash of the calls since the last multiple of [`RESTART`]; `None`: some of them were lost.
    hash: Option<u64>,
    /// Checks since the previous digest, and the interval of their sequence numbers.
    checks: Vec<v1::Check>,
    stride: u64,
    is_changed: bool,
    /// Number of calls whose hash was stated while a thread was inside a call.
    stated: u64,
}

#[derive(Debug, Default)]
struct Thread {
    /// Since when it has been inside a call or a wait, monotonic clock.
    inside: Option<u64>,
    /// Group of the call or wait that it entered last.
    group: u32,
    /// Nanoseconds inside since the previous digest, up to the last return.
    waited: u64,
    /// Ticket of the record with which it entered.
    entered: u64,
}

impl Summary {
    /// The summary of a process whose calls are captured by `layer`.
    #[must_use]
    pub fn new(layer: &str) -> Self {
        Self { layer: layer.to_owned(), ..Self::default() }
    }

    /// Whether it has recorded something, but nothing for a second.
    #[must_use]
    pub const fn is_quiet(&self, now: u64) -> bool {
        const QUIET_NS: u64 = 1_000_000_000;
        self.latest > 0 && now.saturating_sub(self.latest) >= QUIET_NS
    }

    /// Adds an item of the black box. Every item is added once, in order.
    pub fn add(&mut self, kind: &Kind) {
        match kind {
            Kind::GroupDefined(group) => self.define(group),
            Kind::RecordsLost(_) => {
                for group in self.groups.values_mut() {
                    group.hash = None;
                }
            }
            Kind::MemorySample(sample) => {
                if let Some(ticket) = sample.ticket {
                    self.through = ticket + 1;
                }
            }
            Kind::Record(record) => {
                self.through = record.ticket + 1;
                self.latest = self.latest.max(record.mono_ns);
                self.step = self.step.max(record.step);
                self.record(record);
            }
            _ => {}
        }
    }

    /// The digest of what was added since the previous one; `None`: nothing ever was.
    pub fn digest(&mut self, process: u64, now: u64) -> Option<v1::Digest> {
        let span = now.saturating_sub(self.since).max(1);
        let (mut still, mut waited) = (now.saturating_sub(self.latest), 0);
        let (mut stays, mut stays_in) = (false, BTreeSet::new());
        for thread in self.threads.values_mut() {
            let lasts = thread.inside.map_or(0, |since| now.saturating_sub(since));
            still = still.max(lasts);
            stays |= lasts > span;
            if lasts >= STAYS_NS {
                stays_in.insert(thread.group);
            }
            waited = waited.max(thread.waited + lasts.min(span));
            thread.waited = 0;
        }
        self.since = now;
        let groups: Vec<v1::GroupDigest> = self
            .groups
            .iter_mut()
            .filter(|(_, group)| group.is_changed || stays && group.stated < group.issued)
            .map(|(&(number, values), group)| {
                let is_waited_in = !values && stays_in.contains(&number);
                group.digest(number, values, is_waited_in)
            })
            .collect();
        let through = self.through;
        (through > 0).then(|| v1::Digest {
            process,
            through,
            still_ms: u32::try_from(still / 1_000_000).unwrap_or(u32::MAX),
            waited_permille: u32::try_from((waited * 1000 / span).min(1000)).unwrap_or(0),
            groups,
            step: self.step,
            mono_ns: now,
        })
    }

    /// Threads that are inside a call or a wait, each with the ticket of the record with which it entered.
    pub fn inside(&self) -> impl Iterator<Item = (u32, u64)> {
        let inside = self.threads.iter().filter(|(_, it)| it.inside.is_some());
        inside.map(|(&thread, it)| (thread, it.entered))
    }

    /// Threads that have made records.
    pub fn threads(&self) -> impl Iterator<Item = u32> {
        self.threads.keys().copied()
    }

    fn define(&mut self, group: &v1::GroupDefined) {
        let layer = match group.seat {
            Some(_) => NCCL_LAYER,
            None => self.layer.as_str(),
        };
        let mut info = GroupInfo::c10d("", "", group.backend.as_str(), Vec::new());
        layer.clone_into(&mut info.key.layer);
        let info = Arc::new(info);
        for values in [false, true] {
            let new = || GroupDigest::new(Arc::clone(&info));
            self.groups.entry((group.id, values)).or_insert_with(new);
        }
    }

    fn record(&mut self, record: &v1::Record) {
        let thread = self.threads.entry(record.thread).or_default();
        let (at, since) = (record.mono_ns, self.since);
        match number(record.kind, RecordKind::from_number) {
            RecordKind::Issued => {
                thread.leave(at, since);
                thread.enter(record);
                self.call(record);
            }
            RecordKind::WaitBegin if thread.inside.is_none() => thread.enter(record),
            RecordKind::Returned | RecordKind::WaitEnd => thread.leave(at, since),
            // DDP's wait for its buckets is recorded when it is over.
            RecordKind::Spent
                if number(record.code, Spending::from_number) == Spending::Buckets =>
            {
                thread.waited += record.numel.unwrap_or(0);
            }
            RecordKind::Parameters => self.values(record),
            _ => {}
        }
    }

    fn call(&mut self, record: &v1::Record) {
        let op = number(record.op, Op::from_number);
        let group = self.groups.get_mut(&(record.group, false));
        let Some(group) = group.filter(|_| op.is_collective() && record.seq > 0) else {
            return;
        };
        let call = Call {
            group: Some(Arc::clone(&group.info)),
            dtype: number(record.dtype, DType::from_number),
            reduce_op: number(record.reduce_op, ReduceOp::from_number),
            // The rank in the group, which is the same on all members.
            root: record.root.and_then(|rank| u32::try_from(rank).ok()),
            numel: record.numel,
            tensors: record.tensors,
            ..Call::new(CallId(0), Timestamp(0), ThreadId(0), op)
        };
        group.add(record.seq, |hash| Signature::from_call(&call).mix(hash));
    }

    fn values(&mut self, record: &v1::Record) {
        let fact = number(record.code, ParameterFact::from_number);
        let group = self.groups.get_mut(&(record.group, true));
        if let Some(group) = group.filter(|_| fact == ParameterFact::Values) {
            // The model, its number of averages, the parameter, and its elements.
            let what = [record.seq, record.numel.unwrap_or(0), u64::from(record.tensors)];
            let values = what.into_iter().chain(record.dims.iter().map(|&bits| u64::from(bits)));
            group.add(group.issued + 1, |hash| values.fold(hash, mix));
        }
    }
}

impl GroupDigest {
    const fn new(info: Arc<GroupInfo>) -> Self {
        Self {
            info,
            issued: 0,
            hash: Some(EMPTY_HASH),
            checks: Vec::new(),
            stride: EVERY,
            is_changed: false,
            stated: 0,
        }
    }

    /// Adds a call, whose contribution is `mix`.
    fn add(&mut self, seq: u64, mix_in: impl FnOnce(u64) -> u64) {
        if seq <= self.issued {
            return;
        }
        let (before, below) = (self.issued / EVERY, seq / EVERY);
        if below > before {
            if let Some(hash) = self.hash {
                self.check(below * EVERY, hash);
            }
            if seq / RESTART > self.issued / RESTART {
                self.hash = Some(EMPTY_HASH);
            }
        }
        self.issued = seq;
        self.is_changed = true;
        self.hash = self.hash.map(|hash| mix_in(mix(hash, seq)));
    }

    fn check(&mut self, below: u64, hash: u64) {
        if below.is_multiple_of(self.stride) {
            self.checks.push(v1::Check { below, hash });
        }
        while self.checks.len() > MAX_CHECKS {
            self.stride *= 2;
            let stride = self.stride;
            self.checks.retain(|it| it.below.is_multiple_of(stride));
        }
    }

    /// `is_waited_in`: a thread stays inside a call of the group.
    fn digest(&mut self, group: u32, values: bool, is_waited_in: bool) -> v1::GroupDigest {
        let mut checks = std::mem::take(&mut self.checks);
        if is_waited_in || !self.is_changed {
            self.stated = self.issued;
            let (below, hash) = (self.issued + 1, self.hash);
            let hash = hash.filter(|_| !below.is_multiple_of(EVERY));
            checks.extend(hash.map(|hash| v1::Check { below, hash }));
        }
        self.is_changed = false;
        self.stride = EVERY;
        v1::GroupDigest { group, issued: self.issued, checks, values }
    }
}

impl Thread {
    const fn enter(&mut self, record: &v1::Record) {
        self.inside = Some(record.mono_ns);
        self.group = record.group;
        self.entered = record.ticket;
    }

    /// `since`: time of the previous digest.
    fn leave(&mut self, at: u64, since: u64) {
        if let Some(entered) = self.inside.take() {
            self.waited += at.saturating_sub(entered.max(since));
        }
    }
}

/// Whether the coordinator has to see an item of a black box at once. The others recur in every healthy
/// job.
#[must_use]
pub fn is_notable(kind: &Kind) -> bool {
    match kind {
        Kind::RecordsLost(_) => true,
        Kind::Record(record) => match number(record.kind, RecordKind::from_number) {
            RecordKind::Exception
            | RecordKind::Exit
            | RecordKind::Note
            | RecordKind::GroupDestroyed => true,
            RecordKind::Parameters => {
                number(record.code, ParameterFact::from_number) != ParameterFact::Values
            }
            _ => false,
        },
        _ => false,
    }
}

/// Whether digests replace this evidence. Memory is sampled by the node as well, and reported when it has
/// changed noticeably.
#[must_use]
pub const fn is_covered(kind: &Kind) -> bool {
    match kind {
        Kind::Record(_) | Kind::SchedulingSample(_) | Kind::GpuSample(_) => true,
        Kind::MemorySample(sample) => sample.ticket.is_some(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    /// A process of a group with number 1 on Gloo.
    fn summary() -> Summary {
        let mut summary = Summary::new("c10d");
        summary.add(&Kind::GroupDefined(v1::GroupDefined {
            process: 1,
            id: 1,
            name: "0".into(),
            backend: "gloo".into(),
            members: vec![0, 1],
            ..v1::GroupDefined::default()
        }));
        summary
    }

    fn record(kind: RecordKind, ticket: u64, at: u64) -> v1::Record {
        v1::Record {
            process: 1,
            ticket,
            mono_ns: at,
            kind: i32::from(kind.number()),
            ..v1::Record::default()
        }
    }

    fn issue(summary: &mut Summary, seq: u64, numel: u64) {
        summary.add(&Kind::Record(v1::Record {
            group: 1,
            seq,
            op: i32::from(Op::AllReduce.number()),
            numel: Some(numel),
            tensors: 1,
            ..record(RecordKind::Issued, 2 * seq, seq * MILLISECOND)
        }));
        let over = record(RecordKind::Returned, 2 * seq + 1, seq * MILLISECOND + 1);
        summary.add(&Kind::Record(over));
    }

    /// The checks of a process with 10 000 calls that reports after each of these numbers of them.
    fn checks(every: &[u64], numel: impl Fn(u64) -> u64) -> BTreeMap<u64, u64> {
        let mut summary = summary();
        let mut checks = BTreeMap::new();
        let mut every = every.iter().cycle();
        let mut next = 0;
        for seq in 1..=10_000 {
            issue(&mut summary, seq, numel(seq));
            if seq >= next {
                next = seq + every.next().unwrap();
                let digest = summary.digest(1, seq * MILLISECOND).unwrap();
                assert!(digest.groups.len() == 1 && digest.groups[0].checks.len() <= MAX_CHECKS);
                assert_eq!(digest.groups[0].issued, seq);
                checks.extend(digest.groups[0].checks.iter().map(|it| (it.below, it.hash)));
            }
        }
        checks
    }

    #[test]
    fn members_state_hashes_of_the_same_calls() {
        let a = checks(&[300, 170, 220], |_| 8);
        let b = checks(&[190, 310], |_| 8);
        let common: Vec<u64> = a.keys().filter(|it| b.contains_key(it)).copied().collect();
        assert!(common.len() >= 15, "{common:?}");
        let gaps = common.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(gaps <= Some(1024), "{common:?}");
        assert!(common.iter().all(|it| a[it] == b[it]));
    }

    #[test]
    fn hashes_differ_from_the_first_call_that_does() {
        let a = checks(&[200], |_| 8);
        let b = checks(&[200], |seq| if seq == 4000 { 9 } else { 8 });
        assert!(a.keys().eq(b.keys()));
        for (below, hash) in a {
            assert_eq!(hash == b[&below], below <= 4000, "{below}");
        }
    }

    #[test]
    fn lost_records_are_not_compared_until_the_hash_begins_anew() {
        let mut summary = summary();
        issue(&mut summary, 1, 8);
        summary.add(&Kind::RecordsLost(v1::RecordsLost { process: 1, count: 5 }));
        issue(&mut summary, 200, 8);
        let digest = summary.digest(1, 1).unwrap();
        assert_eq!(digest.groups[0].checks, []);
        issue(&mut summary, RESTART + 5, 8);
        issue(&mut summary, RESTART + 70, 8);
        let digest = summary.digest(1, 2).unwrap();
        let below: Vec<u64> = digest.groups[0].checks.iter().map(|it| it.below).collect();
        assert_eq!(below, [RESTART + EVERY]);
    }

    #[test]
    fn digest_states_how_long_threads_are_inside_calls() {
        let mut summary = summary();
        assert_eq!(summary.digest(1, 0), None, "no call");
        issue(&mut summary, 1, 8);
        let waits = record(RecordKind::WaitBegin, 4, 100 * MILLISECOND);
        summary.add(&Kind::Record(waits));
        let digest = summary.digest(1, 400 * MILLISECOND).unwrap();
        assert_eq!((digest.still_ms, digest.waited_permille), (300, 750));
        assert_eq!((digest.through, digest.groups.len()), (5, 1));
        assert_eq!(summary.inside().collect::<Vec<_>>(), [(0, 4)]);
        let digest = summary.digest(1, 800 * MILLISECOND).unwrap();
        assert_eq!((digest.still_ms, digest.waited_permille), (700, 1000));
        // Peers that are inside the same call state the same hash.
        let checks: Vec<u64> = digest.groups[0].checks.iter().map(|it| it.below).collect();
        assert_eq!(checks, [2]);
        let digest = summary.digest(1, 850 * MILLISECOND).unwrap();
        assert_eq!(digest.groups, [], "no new call");
        let over = record(RecordKind::WaitEnd, 5, 900 * MILLISECOND);
        summary.add(&Kind::Record(over));
        let digest = summary.digest(1, 1_200 * MILLISECOND).unwrap();
        assert_eq!((digest.still_ms, digest.waited_permille), (300, 142));
        let digest = summary.digest(1, 1_600 * MILLISECOND).unwrap();
        assert_eq!((digest.still_ms, digest.waited_permille), (700, 0));
    }

    #[test]
    fn hash_of_a_long_call_is_in_its_first_digest() {
        for (at, below) in [(350, &[][..]), (250, &[3])] {
            let mut summary = summary();
            issue(&mut summary, 1, 8);
            summary.add(&Kind::Record(v1::Record {
                group: 1,
                seq: 2,
                op: i32::from(Op::AllReduce.number()),
                ..record(RecordKind::Issued, 4, at * MILLISECOND)
            }));
            let digest = summary.digest(1, 400 * MILLISECOND).unwrap();
            let checks: Vec<u64> = digest.groups[0].checks.iter().map(|it| it.below).collect();
            assert_eq!(checks, below);
            let digest = summary.digest(1, 440 * MILLISECOND).unwrap();
            assert_eq!(digest.groups.len(), usize::from(below.is_empty()));
        }
    }

    #[test]
    fn values_of_parameters_are_compared_by_themselves() {
        let hash = |value: u32| {
            let mut summary = summary();
            for nth in 1..=EVERY {
                summary.add(&Kind::Record(v1::Record {
                    group: 1,
                    code: i32::from(ParameterFact::Values.number()),
                    numel: Some(nth),
                    dims: vec![1, value],
                    ..record(RecordKind::Parameters, nth, nth)
                }));
            }
            let digest = summary.digest(1, 1).unwrap();
            assert!(digest.groups[0].values);
            digest.groups[0].checks[0].hash
        };
        assert_eq!(hash(2), hash(2));
        assert_ne!(hash(2), hash(3));
    }
}
