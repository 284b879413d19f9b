//! Decodes the messages of one node into events for the engine.
//!
//! A node refers to definitions of earlier messages by number, measures time on its own monotonic
//! clock and repeats messages when it attaches again. The decoder resolves all three: an event is
//! self-contained, its time is in nanoseconds since the Unix epoch, and every record yields one
//! event.
//!
//! Input is untrusted: every table is bounded, every number is checked before use, and invalid
//! input is skipped and counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ddp_doctor_diagnosis::event::{
    Event, GroupInfo, KillReason, OomKills, ProcessId, SchedulingSample, StartedRank, ThreadId,
};
use ddp_doctor_diagnosis::model::MAX_WORLD;
use ddp_doctor_proto::report::{Exit, Timestamp};
use ddp_doctor_proto::{NoteKind, ProcessState, VERSION, v1};
use v1::event::Kind;

use super::device_calls;
use super::gpus;
use super::limits::Limits;
pub use super::memory::{JOB_TABLES, Memory};
use super::ports;
use super::stacks;
use super::values::{name, text};
use crate::process_decoder::Process;

/// Time after which an event no longer waits for further messages (an `all_to_all` for its splits): a node
/// reads its black boxes every 50 ms, and may find a call before its splits.
pub const MAX_HOLD: Duration = Duration::from_millis(150);
/// Maximum number of processes per node over the lifetime of a job.
const MAX_PROCESSES: usize = 65_536;
/// Maximum memory of the tables of all processes of a node, in bytes.
const TABLE_BYTES: usize = 256 << 20;
/// Memory of a process without its tables, in bytes, here and in the model of the engine.
const PROCESS_BYTES: usize = 4 << 10;

/// A decoder's knowledge of a process.
#[derive(Clone, Copy, Debug)]
pub struct KnownProcess<'a> {
    /// Number of the process in the node's stream.
    pub number: u64,
    /// Identifies the process in the job.
    pub id: ProcessId,
    /// Identity from the latest message, with an empty layer.
    pub identity: &'a v1::ProcessJoined,
    /// Layer that captures its calls.
    pub layer: &'a Arc<str>,
    /// Ticket that follows its latest record.
    pub next_record: u64,
    /// Time of its latest record; 0: it wrote none.
    pub latest: Timestamp,
    /// Exit status that the process announced, and its time; negative: the process did not know it.
    pub announced: Option<(i32, Timestamp)>,
    /// Whether its latest record begins a call or a wait.
    pub is_inside: bool,
    /// Whether its end was reported.
    pub has_ended: bool,
}

/// Decodes the reports of one node, in order.
#[derive(Debug)]
pub struct Decoder {
    /// Distinguishes the processes of this node from those of other nodes.
    node: u32,
    host: Arc<str>,
    processes: HashMap<u32, Process>,
    rejected: u64,
    /// Version of ddp-doctor on the node.
    version: Arc<str>,
    /// Whether an event of another version was noted.
    noted_version: bool,
    limits: Limits,
    /// Whether an impossible rank or world size was noted.
    noted_claim: bool,
    holding: bool,
    /// Offset of the node's clock from the coordinator's, in nanoseconds; positive: it is ahead.
    ahead: i64,
    /// Number of earlier starts of the job by the batch system.
    attempt: u32,
}

impl Decoder {
    /// A decoder for the node with this number within its job.
    #[must_use]
    pub fn new(node: u32) -> Self {
        Self::with(node, Memory::new(TABLE_BYTES))
    }

    /// A decoder whose tables are part of this memory.
    #[must_use]
    pub fn within(node: u32, memory: Arc<Memory>) -> Self {
        Self::with(node, Memory::part(TABLE_BYTES, memory))
    }

    fn with(node: u32, memory: Memory) -> Self {
        Self {
            node,
            host: "".into(),
            processes: HashMap::new(),
            rejected: 0,
            version: VERSION.into(),
            noted_version: false,
            limits: Limits::new(memory),
            noted_claim: false,
            holding: false,
            ahead: 0,
            attempt: 0,
        }
    }

    /// Sets the offset of the node's clock from the coordinator's, in nanoseconds, which corrects times
    /// from now on. Records of a process use the offset at its join, so that they stay in order.
    pub const fn set_clock_offset(&mut self, ahead: i64) {
        self.ahead = ahead;
    }

    /// Host name of the node, as reported by it.
    #[must_use]
    pub const fn host(&self) -> &Arc<str> {
        &self.host
    }

    /// Converts a time of the node to the coordinator's clock.
    const fn time(&self, unix_ns: u64) -> Timestamp {
        Timestamp(unix_ns.saturating_add_signed(self.ahead.saturating_neg()))
    }

    /// Number of messages skipped because they were invalid or exceeded a limit.
    #[must_use]
    pub const fn rejected(&self) -> u64 {
        self.rejected
    }

    /// Decodes one report and appends its events to `out` in order. The first skipped message also
    /// yields a note.
    pub fn decode(&mut self, report: v1::Report, out: &mut Vec<Event>) {
        let before = self.rejected;
        for event in report.events {
            let taken = match event.kind {
                None if !self.version.is_empty() && &*self.version != VERSION => {
                    self.note_version(self.time(report.sent_unix_ns), out);
                    continue;
                }
                kind => kind.and_then(|kind| self.event(kind, out)),
            };
            if taken.is_none() {
                self.rejected += 1;
            }
        }
        if before == 0 && self.rejected > 0 {
            out.push(Event::Note {
                process: None,
                kind: NoteKind::Unreadable,
                rank: None,
                pid: None,
                text: "a node sent invalid events, which were left out".into(),
                at: self.time(report.sent_unix_ns),
            });
        }
    }

    /// Notes once that a node of another version sent an event that this version does not know.
    fn note_version(&mut self, at: Timestamp, out: &mut Vec<Event>) {
        if std::mem::replace(&mut self.noted_version, true) {
            return;
        }
        let text = format!(
            "host {} runs ddp-doctor {}, and its coordinator {VERSION} leaves out what only the other version knows: \
             install one version on all nodes",
            self.host, self.version
        );
        out.push(Event::Note {
            process: None,
            kind: NoteKind::Unreadable,
            rank: None,
            pid: None,
            text: text.into(),
            at,
        });
    }

    /// All processes, by number.
    pub fn processes(&self) -> impl Iterator<Item = KnownProcess<'_>> {
        let mut known: Vec<KnownProcess<'_>> = self
            .processes
            .iter()
            .map(|(&number, process)| KnownProcess {
                number: u64::from(number),
                id: ProcessId::new(self.node, number),
                identity: process.identity(),
                layer: process.layer(),
                next_record: process.next_record(),
                latest: process.latest(),
                announced: process.announced_status(),
                is_inside: process.is_inside(),
                has_ended: process.has_ended(),
            })
            .collect();
        known.sort_by_key(|process| process.number);
        known.into_iter()
    }

    /// A process by its number, and its world.
    pub fn process_and_world(&self, number: u64) -> Option<(ProcessId, &str)> {
        let number = u32::try_from(number).ok()?;
        let process = self.processes.get(&number)?;
        let id = ProcessId::new(self.node, number);
        Some((id, process.identity().world.as_str()))
    }

    /// A group of a process, by their numbers.
    pub fn group(&self, process: u64, group: u32) -> Option<&Arc<GroupInfo>> {
        let process = self.processes.get(&u32::try_from(process).ok()?)?;
        process.group(group)
    }

    /// Whether an event waits for further messages about it: [`Decoder::release_overdue`] is due soon.
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.holding
    }

    /// Releases the events that wait. A reader of a journal calls this at the end.
    pub fn release(&mut self, out: &mut Vec<Event>) {
        self.release_if(out, Process::release);
    }

    /// Releases the events that have waited for [`MAX_HOLD`].
    pub fn release_overdue(&mut self, now: Instant, out: &mut Vec<Event>) {
        if let Some(since) = now.checked_sub(MAX_HOLD).filter(|_| self.holding) {
            self.release_if(out, |process, id, out| {
                process.release_held_since(since, id, out);
            });
        }
    }

    fn release_if(
        &mut self,
        out: &mut Vec<Event>,
        release: impl Fn(&mut Process, ProcessId, &mut Vec<Event>),
    ) {
        self.holding = false;
        let mut numbers: Vec<u32> = self.processes.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            if let Some(process) = self.processes.get_mut(&number) {
                release(process, ProcessId::new(self.node, number), out);
                self.holding |= process.holds();
            }
        }
    }

    /// `None`: the message is invalid.
    fn event(&mut self, kind: Kind, out: &mut Vec<Event>) -> Option<()> {
        match kind {
            Kind::Hello(hello) => {
                self.host = name(&hello.host);
                self.attempt = hello.attempt;
                self.version = name(&hello.tool_version);
                out.push(Event::JobStarted {
                    job: name(&hello.job).as_ref().into(),
                    attempt: hello.attempt,
                    host: self.host.clone(),
                    at: self.time(hello.started_unix_ns),
                });
            }
            Kind::ProcessJoined(joined) => return self.joined(&joined, out),
            Kind::RankStarted(started) => out.extend(self.started(&started)),
            Kind::ThreadDefined(defined) => {
                let (process, ..) = self.process(defined.process)?;
                let (thread, tid) = (ThreadId(defined.id), defined.tid);
                out.push(Event::ThreadDefined { process, thread, tid });
            }
            Kind::SiteDefined(site) => {
                let (id, process, limits) = self.process(site.process)?;
                return process.define_site(id, site, limits, out);
            }
            Kind::GroupDefined(group) => {
                let (id, process, limits) = self.process(group.process)?;
                return process.define_group(id, group, limits, out);
            }
            Kind::Record(record) => {
                let (id, process, limits) = self.process(record.process)?;
                let taken = process.record(id, record, limits, out);
                self.holding |= process.holds();
                return taken;
            }
            Kind::GroupFrontier(frontier) => {
                let (id, process, _) = self.process(frontier.process)?;
                let group = process.group(frontier.group)?.clone();
                out.push(Event::Frontier {
                    process: id,
                    group,
                    issued: frontier.issued,
                    p2p_issued: frontier.p2p_issued,
                });
            }
            Kind::ProcessChanged(changed) => return self.changed(&changed, out),
            Kind::RecordsLost(lost) => {
                let (process, known, _) = self.process(lost.process)?;
                known.announce_loss(lost.count);
                out.push(Event::RecordsLost { process, count: lost.count });
            }
            Kind::RecordsLeftOut(left_out) => {
                let (id, process, _) = self.process(left_out.process)?;
                process.leave_out(id, &left_out, out);
            }
            Kind::Digest(digest) => {
                let (id, process, _) = self.process(digest.process)?;
                out.push(process.reached(id, &digest));
            }
            // The session of rounds reads dumps itself.
            Kind::CaughtUp(_) | Kind::FlightRecorderDump(_) => {}
            Kind::Stacks(taken) => {
                let (process, ..) = self.process(taken.process)?;
                let mut stacks = stacks::decode(&taken);
                stacks.at = self.time(taken.unix_ns);
                let stacks = Arc::new(stacks);
                out.push(Event::Stacks { process, stacks });
            }
            Kind::DeviceCalls(shown) => {
                let calls = Arc::new(device_calls::decode(&shown, |at| self.time(at)));
                let (process, ..) = self.process(shown.process)?;
                out.push(Event::DeviceCalls { process, calls });
            }
            Kind::Note(note) => return self.note(&note, out),
            Kind::MemorySample(sample) => {
                let (id, process, _) = self.process(sample.process)?;
                return process.memory(id, &sample, out);
            }
            Kind::SchedulingSample(sample) => {
                let at = self.time(sample.unix_ns);
                let (process, known, _) = self.process(sample.process)?;
                if known.has_ended() {
                    return None;
                }
                out.push(Event::Scheduled {
                    process,
                    sample: SchedulingSample {
                        ran_permille: sample.ran_permille,
                        queued_permille: sample.queued_permille,
                        throttled_permille: sample.throttled_permille,
                        major_faults: sample.major_faults,
                        processors: name(&sample.processors),
                        threads_queued_permille: sample.threads_queued_permille,
                        stolen_permille: sample.stolen_permille,
                        cpu_pressure: sample.cpu_pressure_permille,
                        memory_pressure: sample.memory_pressure_permille,
                    },
                    at,
                });
            }
            Kind::GpuSample(sample) => out.push(Event::GpuSampled {
                gpu: gpus::identity(sample.gpu.as_ref(), &self.host)?,
                at: self.time(sample.unix_ns),
                sample: gpus::sample(&sample),
            }),
            Kind::GpuFault(fault) => out.push(Event::GpuFailed {
                gpu: gpus::identity(fault.gpu.as_ref(), &self.host)?,
                at: self.time(fault.unix_ns),
                kind: gpus::fault(&fault),
            }),
            Kind::PortSample(sample) => out.push(Event::PortSampled {
                port: ports::identity(&sample, &self.host)?,
                at: self.time(sample.unix_ns),
                sample: ports::sample(&sample, |at| self.time(at)),
            }),
            Kind::Interrupted(asked) => {
                out.push(Event::Interrupted { signal: asked.signal, at: self.time(asked.unix_ns) });
            }
            Kind::JobEnded(ended) => {
                // No further message can complete a held event.
                self.release(out);
                let reason = ended.reason.as_ref().map(|reason| KillReason {
                    code: name(&reason.code),
                    group: name(&reason.group),
                    seq: reason.seq,
                });
                let at = self.time(ended.unix_ns);
                out.push(Event::JobEnded { status: ended.status, reason, at });
            }
        }
        Some(())
    }

    fn joined(&mut self, joined: &v1::ProcessJoined, out: &mut Vec<Event>) -> Option<()> {
        let number = u32::try_from(joined.process).ok()?;
        let is_new = !self.processes.contains_key(&number);
        if is_new {
            if self.processes.len() >= MAX_PROCESSES {
                return None;
            }
            self.limits.take(PROCESS_BYTES)?;
        }
        let ahead = self.ahead;
        let process = self
            .processes
            .entry(number)
            .or_insert_with(|| Process::new(name(&joined.layer), ahead));
        if process.join(joined, is_new) {
            if let (Some(claim), false) = (impossible_claim(joined), self.noted_claim) {
                self.noted_claim = true;
                out.push(Event::Note {
                    process: None,
                    kind: NoteKind::Unreadable,
                    rank: None,
                    pid: None,
                    text: claim.into(),
                    at: process.to_coordinator_clock(joined.anchor_unix_ns),
                });
            }
            out.push(Event::ProcessJoined {
                process: ProcessId::new(self.node, number),
                rank: valid_rank(joined.rank),
                world_size: valid_size(joined.world_size),
                host: self.host.clone(),
                pid: joined.pid,
                layer: process.layer().clone(),
                world: name(&joined.world),
                restarts: joined.attempt.saturating_sub(self.attempt),
                at: process.to_coordinator_clock(joined.anchor_unix_ns),
            });
        }
        Some(())
    }

    fn started(&self, started: &v1::RankStarted) -> Option<Event> {
        /// The engine compares two.
        const LOOKS: usize = 2;
        let look = |taken: &v1::Stacks| {
            let mut stacks = stacks::decode(taken);
            stacks.at = self.time(taken.unix_ns);
            Arc::new(stacks)
        };
        let exit = Exit { code: started.exit_code, signal: started.exit_signal };
        Some(Event::RankStarted(Box::new(StartedRank {
            node: self.node,
            host: self.host.clone(),
            pid: started.pid,
            start_ticks: started.start_ticks,
            rank: valid_rank(Some(started.rank))?,
            world_size: valid_size(started.world_size),
            seen: self.time(started.seen_unix_ns),
            end: started.ended_unix_ns.map(|at| (self.time(at), exit)),
            looks: started.looks.iter().take(LOOKS).map(look).collect(),
        })))
    }

    fn changed(&mut self, changed: &v1::ProcessChanged, out: &mut Vec<Event>) -> Option<()> {
        let state = ProcessState::from_number(u8::try_from(changed.state).ok()?);
        let at = self.time(changed.unix_ns);
        let (process, known, _) = self.process(changed.process)?;
        if state == ProcessState::Unspecified || known.has_ended() {
            return None;
        }
        if state == ProcessState::Dead {
            known.end(process, out);
        }
        out.push(Event::ProcessChanged {
            process,
            state,
            exit: Exit { code: changed.exit_code, signal: changed.exit_signal },
            oom_kills: OomKills {
                in_cgroup: changed.oom_kills_in_cgroup,
                on_host: changed.oom_kills_on_host,
            },
            at,
        });
        Some(())
    }

    fn note(&mut self, note: &v1::Note, out: &mut Vec<Event>) -> Option<()> {
        let kind = NoteKind::from_number(u8::try_from(note.kind).ok()?);
        let process = match note.process {
            0 => None,
            process => Some(self.process(process)?.0),
        };
        let at = self.time(note.unix_ns);
        // The process is not observed from then on.
        if let (Some(process), NoteKind::Unreadable) = (process, kind) {
            out.push(Event::Unwatched {
                process,
                since: at,
                read_whole: false,
                exit: Exit::default(),
            });
        }
        out.push(Event::Note {
            process,
            kind,
            rank: note.rank,
            pid: (note.pid != 0).then_some(note.pid),
            text: text(&note.text).into(),
            at,
        });
        Some(())
    }

    fn process(&mut self, number: u64) -> Option<(ProcessId, &mut Process, &mut Limits)> {
        let number = u32::try_from(number).ok()?;
        let process = self.processes.get_mut(&number)?;
        Some((ProcessId::new(self.node, number), process, &mut self.limits))
    }
}

/// A claimed world size; `None` if it exceeds the limit.
fn valid_size(claimed: Option<u32>) -> Option<u32> {
    claimed.filter(|&size| size <= MAX_WORLD)
}

/// A claimed rank; `None` if no world has it. Tables by rank would be too large for it.
fn valid_rank(claimed: Option<u32>) -> Option<u32> {
    claimed.filter(|&rank| rank < MAX_WORLD)
}

/// What a process claims that no job has; `None`: nothing.
fn impossible_claim(joined: &v1::ProcessJoined) -> Option<String> {
    let pid = joined.pid;
    if let Some(rank) = joined.rank.filter(|_| valid_rank(joined.rank).is_none()) {
        return Some(format!(
            "process {pid} claims to be rank {rank} of a world of at most {MAX_WORLD}: its rank is treated as unknown"
        ));
    }
    let size = joined.world_size.filter(|_| valid_size(joined.world_size).is_none())?;
    let who = match joined.rank {
        Some(rank) => format!("rank {rank} (process {pid})"),
        None => format!("process {pid}"),
    };
    Some(format!(
        "{who} claims a world of {size} ranks, more than the limit of {MAX_WORLD}: its size is treated as unknown"
    ))
}

/// The number of the node, and the number of the process in its stream.
#[must_use]
pub const fn node_and_process(id: ProcessId) -> (u32, u64) {
    (id.node(), id.0 & 0xffff_ffff)
}

#[cfg(test)]
mod tests;
