//! What a later segment of a journal repeats, so that the segments before it can be dropped.
//!
//! That is everything but the records of calls that are over and the samples that later ones replace:
//! definitions, the rare records on which findings depend, calls under way, and the latest state of
//! each process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ddp_doctor_proto::blackbox::flags;
use ddp_doctor_proto::v1;
use ddp_doctor_proto::{Op, ParameterFact, RecordKind};
use v1::event::Kind;

use crate::ports;
use crate::values::number;

/// Maximum number of rare events that are repeated, of each process and of the job: the first half
/// and the latest half.
const MAX_RARE: usize = 512;
/// Maximum number of calls under way that are repeated of each process: the latest ones.
const MAX_OPEN: usize = 1_024;
/// Maximum number of records that are repeated of a call under way.
const MAX_CALL_RECORDS: usize = 64;
/// Number of stacks that are repeated of each process: the first and the latest ones.
const MAX_STACKS: usize = 3;

/// The events of a node that every later segment repeats.
#[derive(Debug, Default)]
pub struct Kept {
    hello: Option<v1::Hello>,
    started: BTreeMap<(u32, u64), v1::RankStarted>,
    processes: BTreeMap<u64, Process>,
    /// The latest sample of each GPU, by UUID.
    gpus: BTreeMap<String, v1::GpuSample>,
    /// Samples of ports.
    ports: ports::Samples,
    /// Notes, faults of GPUs, and requests to end the job.
    rare: Rare<Kind>,
}

impl Kept {
    /// Adds an event of the journal. Every event is added once, in order.
    pub fn add(&mut self, kind: &Kind) {
        match kind {
            Kind::Hello(hello) => self.hello = Some(hello.clone()),
            Kind::RankStarted(it) => {
                self.started.insert((it.pid, it.start_ticks), it.clone());
            }
            Kind::Note(_) | Kind::GpuFault(_) | Kind::Interrupted(_) | Kind::JobEnded(_) => {
                self.rare.push(kind.clone());
            }
            Kind::Digest(_) | Kind::CaughtUp(_) | Kind::FlightRecorderDump(_) => {}
            Kind::ProcessJoined(it) => self.process(it.process).joined = Some(it.clone()),
            Kind::SiteDefined(it) => self.process(it.process).sites.define(it.id, it),
            Kind::GroupDefined(it) => self.process(it.process).groups.define(it.id, it),
            Kind::ThreadDefined(it) => self.process(it.process).threads.define(it.id, it),
            Kind::Record(it) => self.process(it.process).record(it),
            Kind::GroupFrontier(it) => {
                self.process(it.process).count(it.group, it.issued, it.p2p_issued);
            }
            Kind::ProcessChanged(it) => self.process(it.process).state = Some(*it),
            Kind::RecordsLost(it) => self.process(it.process).lost += it.count,
            Kind::RecordsLeftOut(it) => self.process(it.process).next_ticket = it.before,
            Kind::Stacks(it) => self.process(it.process).stood(it),
            Kind::DeviceCalls(it) => self.process(it.process).device_calls = Some(it.clone()),
            Kind::MemorySample(it) => self.process(it.process).memory(it),
            Kind::SchedulingSample(it) => self.process(it.process).scheduled = Some(it.clone()),
            Kind::GpuSample(it) => {
                let uuid = it.gpu.as_ref().map_or_else(String::new, |gpu| gpu.uuid.clone());
                self.gpus.insert(uuid, it.clone());
            }
            Kind::PortSample(it) => self.ports.add(it),
        }
    }

    /// The events, in an order in which a decoder accepts them. A decoder that knows them already
    /// changes nothing, with the exception of losses, which count again.
    #[must_use]
    pub fn events(&self) -> Vec<Kind> {
        let mut out = Vec::new();
        out.extend(self.hello.clone().map(Kind::Hello));
        out.extend(self.started.values().cloned().map(Kind::RankStarted));
        for (&number, process) in &self.processes {
            process.events(number, &mut out);
        }
        out.extend(self.gpus.values().cloned().map(Kind::GpuSample));
        out.extend(self.ports.iter().cloned().map(Kind::PortSample));
        out.extend(self.rare.iter().cloned());
        out
    }

    fn process(&mut self, number: u64) -> &mut Process {
        self.processes.entry(number).or_default()
    }
}

/// The first and the latest items of a series.
#[derive(Debug)]
struct Rare<T> {
    first: Vec<T>,
    latest: VecDeque<T>,
}

impl<T> Default for Rare<T> {
    fn default() -> Self {
        Self { first: Vec::new(), latest: VecDeque::new() }
    }
}

impl<T> Rare<T> {
    fn push(&mut self, item: T) {
        if self.first.len() < MAX_RARE / 2 {
            return self.first.push(item);
        }
        if self.latest.len() == MAX_RARE / 2 {
            self.latest.pop_front();
        }
        self.latest.push_back(item);
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.latest)
    }
}

/// Definitions by number, in the order in which they were made: a site may refer to earlier ones.
#[derive(Debug)]
struct Definitions<T> {
    list: Vec<T>,
    indexes: BTreeMap<u32, usize>,
}

impl<T> Default for Definitions<T> {
    fn default() -> Self {
        Self { list: Vec::new(), indexes: BTreeMap::new() }
    }
}

impl<T: Clone> Definitions<T> {
    /// Adds a definition, or replaces the one of the same number.
    fn define(&mut self, id: u32, definition: &T) {
        match self.indexes.get(&id) {
            Some(&index) => self.list[index] = definition.clone(),
            None => {
                self.indexes.insert(id, self.list.len());
                self.list.push(definition.clone());
            }
        }
    }
}

#[derive(Debug, Default)]
struct Process {
    joined: Option<v1::ProcessJoined>,
    threads: Definitions<v1::ThreadDefined>,
    sites: Definitions<v1::SiteDefined>,
    groups: Definitions<v1::GroupDefined>,
    /// Ticket of the next record.
    next_ticket: u64,
    rare: Rare<v1::Record>,
    /// Records of calls under way, by call.
    open: BTreeMap<u64, Vec<v1::Record>>,
    /// The record with which each thread entered the call or wait that it is inside.
    inside: BTreeMap<u32, v1::Record>,
    /// Threads that have made records.
    active: BTreeSet<u32>,
    step: Option<v1::Record>,
    /// Phases that have begun and not ended.
    phases: BTreeMap<String, v1::Record>,
    /// By group: highest sequence number of a collective, and number of point-to-point calls.
    counters: BTreeMap<u32, (u64, u64)>,
    lost: u64,
    /// The latest sample that the process wrote, and the latest of the node.
    own_memory: Option<v1::MemorySample>,
    memory: Option<v1::MemorySample>,
    scheduled: Option<v1::SchedulingSample>,
    stacks: Vec<v1::Stacks>,
    device_calls: Option<v1::DeviceCalls>,
    state: Option<v1::ProcessChanged>,
}

impl Process {
    fn record(&mut self, record: &v1::Record) {
        self.next_ticket = record.ticket + 1;
        self.active.insert(record.thread);
        match number(record.kind, RecordKind::from_number) {
            RecordKind::Issued => {
                self.count_call(record);
                self.inside.insert(record.thread, record.clone());
                self.open.insert(record.call, vec![record.clone()]);
                if self.open.len() > MAX_OPEN {
                    self.open.pop_first();
                }
            }
            RecordKind::Returned => {
                self.inside.remove(&record.thread);
                let followed = record.flags & u32::from(flags::FOLLOWED) != 0;
                self.continues(record, |issued| followed || is_async(issued));
            }
            RecordKind::WaitBegin => {
                self.inside.entry(record.thread).or_insert_with(|| record.clone());
                self.continues(record, |_| true);
            }
            RecordKind::WaitEnd => {
                self.inside.remove(&record.thread);
                self.open.remove(&record.call);
            }
            RecordKind::Completed => {
                self.open.remove(&record.call);
            }
            RecordKind::Splits
            | RecordKind::LowerCall
            | RecordKind::Transfer
            | RecordKind::Within => self.continues(record, |_| true),
            RecordKind::Step => self.step = Some(record.clone()),
            RecordKind::PhaseBegin => {
                self.phases.insert(record.text.clone(), record.clone());
            }
            RecordKind::PhaseEnd => {
                self.phases.remove(&record.text);
            }
            RecordKind::Parameters
                if number(record.code, ParameterFact::from_number) == ParameterFact::Values => {}
            RecordKind::Spent | RecordKind::Memory | RecordKind::Unspecified => {}
            RecordKind::Unawaited
            | RecordKind::Parameters
            | RecordKind::InputEnded
            | RecordKind::GroupDestroyed
            | RecordKind::GroupTimeout
            | RecordKind::Exception
            | RecordKind::Exit
            | RecordKind::Note
            | RecordKind::Setting => self.rare.push(record.clone()),
        }
    }

    /// Adds a record to its call, if that goes on after it.
    fn continues(&mut self, record: &v1::Record, goes_on: impl Fn(&v1::Record) -> bool) {
        let Some(records) = self.open.get_mut(&record.call) else { return };
        if !records.first().is_some_and(goes_on) {
            self.open.remove(&record.call);
        } else if records.len() < MAX_CALL_RECORDS {
            records.push(record.clone());
        } else {
            // The call itself and its first records stay.
            records[MAX_CALL_RECORDS / 2..].rotate_left(1);
            records[MAX_CALL_RECORDS - 1] = record.clone();
        }
    }

    fn count_call(&mut self, record: &v1::Record) {
        let op = number(record.op, Op::from_number);
        if record.group == 0 || op.creates_group() {
            return;
        }
        let (_, messages) = self.counters.get(&record.group).copied().unwrap_or_default();
        if op.is_point_to_point() {
            self.count(record.group, 0, messages + 1);
        } else {
            self.count(record.group, record.seq, messages);
        }
    }

    /// Raises the counters of a group.
    fn count(&mut self, group: u32, issued: u64, messages: u64) {
        let counters = self.counters.entry(group).or_default();
        *counters = (counters.0.max(issued), counters.1.max(messages));
    }

    fn memory(&mut self, sample: &v1::MemorySample) {
        match sample.ticket {
            Some(ticket) => {
                self.next_ticket = ticket + 1;
                self.own_memory = Some(*sample);
            }
            None => self.memory = Some(*sample),
        }
    }

    fn stood(&mut self, stacks: &v1::Stacks) {
        if self.stacks.len() == MAX_STACKS {
            self.stacks.remove(1);
        }
        self.stacks.push(stacks.clone());
    }

    fn events(&self, number: u64, out: &mut Vec<Kind>) {
        let Some(joined) = &self.joined else { return };
        out.push(Kind::ProcessJoined(joined.clone()));
        out.extend(self.threads.list.iter().cloned().map(Kind::ThreadDefined));
        out.extend(self.sites.list.iter().cloned().map(Kind::SiteDefined));
        out.extend(self.groups.list.iter().cloned().map(Kind::GroupDefined));
        if self.lost > 0 {
            out.push(Kind::RecordsLost(v1::RecordsLost { process: number, count: self.lost }));
        }
        let mut next = 0;
        for (ticket, kind) in self.records() {
            if ticket > next {
                out.push(self.left_out(number, ticket));
            }
            out.push(kind);
            next = ticket + 1;
        }
        if self.next_ticket > next {
            out.push(self.left_out(number, self.next_ticket));
        }
        for (&group, &(issued, p2p_issued)) in &self.counters {
            out.push(Kind::GroupFrontier(v1::GroupFrontier {
                process: number,
                group,
                issued,
                p2p_issued,
                r#final: false,
            }));
        }
        out.extend(self.memory.map(Kind::MemorySample));
        out.extend(self.scheduled.clone().map(Kind::SchedulingSample));
        out.extend(self.stacks.iter().cloned().map(Kind::Stacks));
        out.extend(self.device_calls.iter().cloned().map(Kind::DeviceCalls));
        out.extend(self.state.map(Kind::ProcessChanged));
    }

    /// The kept records by ticket.
    fn records(&self) -> BTreeMap<u64, Kind> {
        let calls = self.open.values().flatten().chain(self.inside.values());
        let others = self.rare.iter().chain(&self.step).chain(self.phases.values());
        let records = calls.chain(others);
        let mut kept: BTreeMap<u64, Kind> =
            records.map(|record| (record.ticket, Kind::Record(record.clone()))).collect();
        if let Some(sample) = self.own_memory
            && let Some(ticket) = sample.ticket
        {
            kept.insert(ticket, Kind::MemorySample(sample));
        }
        kept
    }

    /// States that records before this ticket are not repeated.
    fn left_out(&self, process: u64, before: u64) -> Kind {
        let inside = self.inside.iter().filter(|(_, entered)| entered.ticket < before);
        Kind::RecordsLeftOut(v1::RecordsLeftOut {
            process,
            before,
            threads_inside: inside.map(|(&thread, _)| thread).collect(),
            threads: self.active.iter().copied().collect(),
        })
    }
}

const fn is_async(issued: &v1::Record) -> bool {
    issued.flags & flags::ASYNC as u32 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(ticket: u64, kind: RecordKind, call: u64) -> Kind {
        Kind::Record(v1::Record {
            process: 1,
            ticket,
            kind: i32::from(kind.number()),
            call,
            thread: 1,
            group: 1,
            seq: call,
            op: i32::from(Op::AllReduce.number()),
            ..v1::Record::default()
        })
    }

    fn kept(kinds: impl IntoIterator<Item = Kind>) -> Kept {
        let mut kept = Kept::default();
        kept.add(&Kind::ProcessJoined(v1::ProcessJoined {
            process: 1,
            ..v1::ProcessJoined::default()
        }));
        kinds.into_iter().for_each(|kind| kept.add(&kind));
        kept
    }

    /// Tickets of the repeated records, and the tickets before which records are left out.
    fn tickets(kept: &Kept) -> (Vec<u64>, Vec<u64>) {
        let (mut records, mut left_out) = (Vec::new(), Vec::new());
        for kind in kept.events() {
            match kind {
                Kind::Record(record) => records.push(record.ticket),
                Kind::RecordsLeftOut(it) => left_out.push(it.before),
                _ => {}
            }
        }
        (records, left_out)
    }

    #[test]
    fn calls_that_are_over_are_not_repeated() {
        let calls = (0..5_000).flat_map(|call| {
            [
                record(2 * call, RecordKind::Issued, call + 1),
                record(2 * call + 1, RecordKind::Returned, call + 1),
            ]
        });
        let kept = kept(calls);
        assert_eq!(tickets(&kept), (vec![], vec![10_000]));
        let frontier = kept.events().into_iter().find_map(|kind| match kind {
            Kind::GroupFrontier(it) => Some(it.issued),
            _ => None,
        });
        assert_eq!(frontier, Some(5_000));
    }

    #[test]
    fn call_under_way_is_repeated_with_its_thread() {
        let kept = kept([
            record(0, RecordKind::Setting, 0),
            record(1, RecordKind::Issued, 1),
            record(2, RecordKind::Returned, 1),
            record(3, RecordKind::Issued, 2),
            record(4, RecordKind::Spent, 0),
        ]);
        assert_eq!(tickets(&kept), (vec![0, 3], vec![3, 5]));
        let inside: Vec<_> = kept
            .events()
            .into_iter()
            .filter_map(|kind| match kind {
                Kind::RecordsLeftOut(it) => Some(it.threads_inside),
                _ => None,
            })
            .collect();
        assert_eq!(inside, [vec![], vec![1]]);
    }

    #[test]
    fn rare_records_are_bounded() {
        let kept = kept((0..2_000).map(|ticket| record(ticket, RecordKind::Exception, 0)));
        let (records, _) = tickets(&kept);
        assert_eq!(records.len(), MAX_RARE);
        assert_eq!((records[0], records[MAX_RARE - 1]), (0, 1_999));
    }
}
