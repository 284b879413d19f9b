//! State of the decoder for one process, and the conversion of its records into events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::blackbox::site::ADDRESS;
use ddp_doctor_proto::blackbox::{MAX_DIMS, flags, transfer};
use ddp_doctor_proto::report::{GroupRef, Timestamp, Where};
use ddp_doctor_proto::{
    DType, ExceptionKind, GuardForm, GuardSubject, NoteKind, Op, ParameterFact, RecordKind,
    ReduceOp, Spending, v1,
};

use super::decode::{cut, name, text};
use super::limits::Limits;
use crate::diagnosis::event::{
    Beneath, Call, CallId, Event, Forward, GroupInfo, Guard, MemorySample, OnStream, Parameters,
    ProcessId, Seat, Standing, ThreadId, Transfer, WaitsFor,
};

/// Maximum number of call sites per process.
const MAX_SITES: usize = 65_536;
/// Maximum number of tests kept per site.
const MAX_GUARDS: usize = 64;
/// Maximum number of frames of installed packages between the user's line and a call.
const MAX_VIA: usize = 16;
/// Maximum number of callers that distinguish paths to a site.
const MAX_CALLERS: usize = 8;
/// Maximum length of a test's source text, in bytes.
const MAX_TEST: usize = 256;
/// Maximum number of process groups per process.
const MAX_GROUPS: usize = 8192;
/// Maximum number of group creations per process.
const MAX_CREATIONS: usize = 65_536;
/// Maximum size of a group whose members are unknown.
const MAX_MEMBERS: u32 = 1 << 17;
/// Maximum number of split sizes kept per `all_to_all`, in each direction.
const MAX_SPLITS: usize = 65_536;

/// A call site.
#[derive(Debug)]
struct Site {
    /// The user's line, with the frames of installed packages up to the site.
    place: Arc<Where>,
    /// File and line of the site itself.
    text: Arc<str>,
    /// Site of the first caller; 0: unknown.
    caller: u32,
    /// Whether its source was read.
    is_read: bool,
    /// Whether its source is being read.
    reading: bool,
}

/// A process and its black box, as known from messages.
#[derive(Debug)]
pub(super) struct Process {
    layer: Arc<str>,
    identity: v1::ProcessJoined,
    sites: HashMap<u32, Site>,
    /// Forward call sites with their callers, as one text each.
    paths: HashMap<u32, Arc<str>>,
    groups: HashMap<u32, Arc<GroupInfo>>,
    phases: HashMap<String, Arc<str>>,
    /// Ticket of the next record, if none is lost or repeated.
    next_ticket: u64,
    /// Number of lost records that were announced and not yet passed.
    announced: u64,
    /// An `all_to_all` whose split sizes may still follow.
    held_call: Option<Box<Call>>,
    /// Time of the latest record.
    latest: Timestamp,
    /// Exit status that the process announced, and when.
    announced_status: Option<(i32, Timestamp)>,
    /// Kind of the latest record.
    latest_kind: RecordKind,
    /// Thread that announced the exit.
    announced_by: u32,
    /// Whether that thread is inside a call made after the announcement.
    is_delayed: bool,
    ended: bool,
    /// Number of group creations so far.
    creations: usize,
    /// Offset of the node's clock from the coordinator's when the process joined, in nanoseconds; positive:
    /// ahead.
    ahead: i64,
    /// Current training step.
    step: u64,
}

impl Process {
    pub(super) fn new(layer: Arc<str>, ahead: i64) -> Self {
        Self {
            ahead,
            creations: 0,
            layer,
            identity: v1::ProcessJoined::default(),
            sites: HashMap::new(),
            paths: HashMap::new(),
            groups: HashMap::new(),
            phases: HashMap::new(),
            next_ticket: 0,
            announced: 0,
            held_call: None,
            latest: Timestamp::default(),
            announced_status: None,
            latest_kind: RecordKind::default(),
            announced_by: 0,
            is_delayed: false,
            ended: false,
            step: 0,
        }
    }

    pub(super) const fn layer(&self) -> &Arc<str> {
        &self.layer
    }

    pub(super) const fn identity(&self) -> &v1::ProcessJoined {
        &self.identity
    }

    pub(super) const fn next_record(&self) -> u64 {
        self.next_ticket
    }

    pub(super) const fn latest(&self) -> Timestamp {
        self.latest
    }

    pub(super) const fn is_inside(&self) -> bool {
        matches!(
            self.latest_kind,
            RecordKind::Issued | RecordKind::WaitBegin | RecordKind::Splits
        )
    }

    pub(super) const fn announced_status(&self) -> Option<(i32, Timestamp)> {
        if self.is_delayed {
            return None;
        }
        self.announced_status
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Stores the identity. Returns whether it is new or changed.
    pub(super) fn join(&mut self, joined: &v1::ProcessJoined, is_new: bool) -> bool {
        let mut joined = joined.clone();
        joined.layer.clear();
        let changed = is_new || joined != self.identity;
        self.identity = joined;
        changed
    }

    pub(super) fn define_site(
        &mut self,
        process: ProcessId,
        site: v1::SiteDefined,
        limits: &mut Limits,
        out: &mut Vec<Event>,
    ) -> Option<()> {
        if let Some(known) = self.sites.get_mut(&site.id) {
            let says_something = !site.guards.is_empty() || known.reading;
            if known.is_read || site.reading || !says_something {
                return Some(());
            }
            let guards: Arc<[Guard]> = site.guards.iter().take(MAX_GUARDS).map(guard).collect();
            let bytes: usize = guards.iter().map(|guard| guard.test.len() + 64).sum();
            limits.take(bytes)?;
            known.is_read = true;
            out.push(Event::Site {
                process,
                place: known.place.clone(),
                caller: None,
                guards,
                reading: false,
            });
            return Some(());
        }
        if site.id == 0 || self.sites.len() >= MAX_SITES {
            return None;
        }
        // An address that was not resolved while its process was alive.
        if site.file.starts_with(ADDRESS) {
            return Some(());
        }
        let frame = Where {
            file: text(&site.file).as_ref().into(),
            line: site.line,
            function: text(&site.function).as_ref().into(),
            ..Where::default()
        };
        let text: Arc<str> = format!("{}:{};", frame.file, frame.line).into();
        // Only sites defined earlier, so that callers never form a cycle.
        let caller = self.sites.get(&site.caller).map(|it| it.place.clone());
        let place = if site.library {
            called_by(caller.as_deref(), frame)
        } else {
            frame
        };
        limits.take(text.len() + 64)?;
        let place = limits.place(place)?;
        let known = Site {
            place: place.clone(),
            text,
            caller: if caller.is_some() { site.caller } else { 0 },
            is_read: false,
            reading: site.reading,
        };
        self.sites.insert(site.id, known);
        let caller = caller.map(users_line);
        if caller.is_some() || site.reading {
            out.push(Event::Site {
                process,
                place,
                caller,
                guards: Arc::new([]),
                reading: site.reading,
            });
        }
        if site.guards.is_empty() {
            return Some(());
        }
        self.define_site(process, site, limits, out)
    }

    fn place(&self, site: u32) -> Option<Arc<Where>> {
        self.sites.get(&site).map(|site| site.place.clone())
    }

    /// Details of a step that began with a forward pass; `None`: the program marked the step.
    fn forward(&mut self, record: &v1::Record, limits: &mut Limits) -> Option<Forward> {
        let has = |flag: u16| record.flags & u32::from(flag) != 0;
        has(flags::FORWARD).then(|| Forward {
            path: self.path(record.site, limits),
            batches: record.numel,
            repeated: has(flags::REPEATED),
            unsynchronised: has(flags::UNSYNCHRONISED),
        })
    }

    /// A site and its callers as one text, equal for calls from the same lines.
    fn path(&mut self, site: u32, limits: &mut Limits) -> Option<Arc<str>> {
        if let Some(known) = self.paths.get(&site) {
            return Some(known.clone());
        }
        let mut path = String::new();
        let mut next = site;
        for _ in 0..MAX_CALLERS {
            let Some(site) = self.sites.get(&next) else {
                break;
            };
            path.push_str(&site.text);
            next = site.caller;
        }
        if path.is_empty() {
            return None;
        }
        limits.take(path.len() + 64)?;
        let path: Arc<str> = path.into();
        self.paths.insert(site, path.clone());
        Some(path)
    }

    pub(super) fn define_group(
        &mut self,
        process: ProcessId,
        group: v1::GroupDefined,
        limits: &mut Limits,
        out: &mut Vec<Event>,
    ) -> Option<()> {
        if self.groups.contains_key(&group.id) {
            return Some(());
        }
        let seat = seat(group.seat)?;
        let nobody = group.members.is_empty() && seat.is_none();
        if group.id == 0 || self.groups.len() >= MAX_GROUPS || nobody {
            return None;
        }
        let info = GroupInfo {
            key: GroupRef {
                layer: self.layer_of(seat).into(),
                epoch: group.epoch,
                name: name(&group.name).as_ref().into(),
                ordinal: group.ordinal,
                members: group.members,
            },
            description: name(&group.description),
            backend: name(&group.backend),
            seat,
        };
        let info = limits.group(info)?;
        self.groups.insert(group.id, info.clone());
        out.push(Event::GroupJoined {
            process,
            group: info,
        });
        Some(())
    }

    /// Layer of a group. c10d records the members of its groups: a group without them in its box is an
    /// NCCL communicator.
    fn layer_of(&self, seat: Option<Seat>) -> &str {
        match (&*self.layer, seat) {
            ("c10d", Some(_)) => "nccl",
            (layer, _) => layer,
        }
    }

    pub(super) fn group(&self, id: u32) -> Option<&Arc<GroupInfo>> {
        self.groups.get(&id)
    }

    /// Announces that `count` records will be missing before the next one.
    pub(super) const fn announce_loss(&mut self, count: u64) {
        self.announced = self.announced.saturating_add(count);
    }

    /// Marks the process as ended: no records follow.
    pub(super) fn end(&mut self, process: ProcessId, out: &mut Vec<Event>) {
        self.release(process, out);
        self.ended = true;
    }

    /// Whether an event waits for split sizes that may follow.
    pub(super) const fn holds(&self) -> bool {
        self.held_call.is_some()
    }

    /// Releases the event that waits.
    pub(super) fn release(&mut self, process: ProcessId, out: &mut Vec<Event>) {
        if let Some(call) = self.held_call.take() {
            out.push(Event::Issued {
                process,
                call: Arc::from(call),
            });
        }
    }

    /// Decodes one record; `None`: it is invalid. A repeated record is valid and yields no event.
    pub(super) fn record(
        &mut self,
        process: ProcessId,
        record: v1::Record,
        limits: &mut Limits,
        out: &mut Vec<Event>,
    ) -> Option<()> {
        if !self.is_next(process, record.ticket, out)? {
            return Some(());
        }
        let kind = number(record.kind, RecordKind::from_number);
        self.latest_kind = kind;
        if kind == RecordKind::Splits {
            return self.splits(&record);
        }
        self.release(process, out);
        let at = self.time(record.mono_ns);
        self.latest = self.latest.max(at);
        self.track_exit(kind, &record, at);
        let thread = ThreadId(record.thread);
        if kind == RecordKind::Step {
            self.step = u64::from(record.step);
        }
        let call = CallId(record.call);
        let named_call = (record.call != 0).then_some(call);
        let place = self.place(record.site);
        let op = number(record.op, Op::from_number);
        let followed = record.flags & u32::from(flags::FOLLOWED) != 0;
        out.push(match kind {
            RecordKind::Issued => {
                let call = self.call(record, limits)?;
                if call.op == Op::AllToAll {
                    self.held_call = Some(Box::new(call));
                    return Some(());
                }
                Event::Issued {
                    process,
                    call: Arc::new(call),
                }
            }
            RecordKind::Returned => Event::Returned {
                process,
                thread,
                call: named_call?,
                followed,
                at,
            },
            RecordKind::WaitBegin => Event::WaitBegin {
                process,
                thread,
                call: named_call,
                place,
                at,
            },
            RecordKind::WaitEnd => Event::WaitEnd {
                process,
                thread,
                call: named_call,
                at,
            },
            RecordKind::Completed => Event::Completed {
                process,
                call: named_call?,
                at,
            },
            RecordKind::Beneath => Event::Beneath {
                process,
                call: named_call?,
                beneath: Arc::new(self.beneath(&record)),
                at,
            },
            RecordKind::Within => Event::Within {
                process,
                thread,
                function: (!record.text.is_empty()).then(|| name(&record.text)),
                at,
            },
            RecordKind::Transfer => Event::Transfer {
                process,
                call: named_call?,
                transfer: Transfer {
                    peer: u32::try_from(record.root?).ok()?,
                    is_send: op == Op::Send,
                    channel: u32::try_from(record.tag?).ok()?,
                },
                standing: waits_for(record.code).map(|waits_for| Standing {
                    waits_for,
                    done: record.numel.unwrap_or(0),
                    steps: u64::from(record.tensors),
                }),
                at,
            },
            RecordKind::Step => Event::Step {
                process,
                step: u64::from(record.step),
                forward: self.forward(&record, limits),
                at,
            },
            RecordKind::PhaseBegin => Event::PhaseBegin {
                process,
                name: name(&record.text),
                at,
            },
            RecordKind::PhaseEnd => Event::PhaseEnd {
                process,
                name: name(&record.text),
                at,
            },
            RecordKind::GroupDestroyed => {
                let group = self.groups.get(&record.group)?.clone();
                Event::GroupDestroyed { process, group, at }
            }
            RecordKind::GroupTimeout => {
                let group = self.groups.get(&record.group)?.clone();
                let timeout = Duration::from_millis(u64::try_from(record.code).ok()?);
                Event::GroupTimeout {
                    process,
                    group,
                    timeout,
                    at,
                }
            }
            RecordKind::Exception => Event::Exception {
                process,
                kind: number(record.code, ExceptionKind::from_number),
                text: text(&record.text),
                place,
                at,
            },
            RecordKind::Exit => Event::ExitAnnounced {
                process,
                thread,
                code: record.code,
                how: text(&record.text),
                at,
            },
            RecordKind::Note => Event::Note {
                process: Some(process),
                kind: number(record.code, NoteKind::from_number),
                rank: self.identity.rank,
                pid: Some(self.identity.pid),
                text: text(&record.text),
                at,
            },
            RecordKind::Unawaited => Event::Unawaited {
                process,
                call: named_call?,
                op,
                group: self.groups.get(&record.group).cloned(),
                place,
                at,
            },
            RecordKind::InputEnded => Event::InputEnded { process, place, at },
            RecordKind::Spent => Event::Spent {
                process,
                thread,
                on: number(record.code, Spending::from_number),
                took: Duration::from_nanos(record.numel?),
                place,
                at,
            },
            RecordKind::Parameters => Event::Parameters {
                process,
                group: self.groups.get(&record.group)?.clone(),
                said: Parameters {
                    fact: number(record.code, ParameterFact::from_number),
                    model: u32::try_from(record.seq).ok()?,
                    first: record.tensors,
                    total: record.numel.unwrap_or_default(),
                    lines: limits.lines(&record.text)?,
                    place,
                    step: u64::from(record.step),
                    dtype: number(record.dtype, DType::from_number),
                    values: record.dims.into_iter().take(MAX_DIMS).collect(),
                },
                at,
            },
            RecordKind::Setting => {
                let (setting, value) = record.text.split_once('=')?;
                Event::Setting {
                    process,
                    name: name(setting),
                    value: text(value),
                    at,
                }
            }
            // Memory samples have a message of their own.
            RecordKind::Memory | RecordKind::Splits | RecordKind::Unspecified => return None,
        });
        Some(())
    }

    /// Decodes a memory sample; `None`: it is invalid.
    pub(super) fn memory(
        &mut self,
        process: ProcessId,
        sample: &v1::MemorySample,
        out: &mut Vec<Event>,
    ) -> Option<()> {
        let is_new = match sample.ticket {
            Some(ticket) => self.is_next(process, ticket, out)?,
            // Measured by the node. The model accepts repeated and reordered samples.
            None => !self.ended,
        };
        if is_new {
            out.push(Event::Memory {
                process,
                at: match sample.unix_ns {
                    0 => self.time(sample.mono_ns),
                    at => self.to_coordinator_clock(at),
                },
                sample: Box::new(MemorySample {
                    rss: sample.rss,
                    rss_shared: sample.rss_shared,
                    host_available: sample.host_available,
                    host_total: sample.host_total,
                    cpu_permille: sample.cpu_permille,
                    cgroup_used: sample.cgroup_used,
                    cgroup_limit: sample.cgroup_limit,
                    cgroup_held: sample.cgroup_held,
                    cgroup_slowed: sample.cgroup_slowed,
                    shm_used: sample.shm_used,
                    shm_total: sample.shm_total,
                    virtual_used: sample.virtual_used,
                    virtual_limit: sample.virtual_limit,
                    device: sample.device,
                    gpu_used: sample.gpu_used,
                    gpu_total: sample.gpu_total,
                    gpu_allocated: sample.gpu_allocated,
                    gpu_reserved: sample.gpu_reserved,
                    gpu_peak: sample.gpu_peak,
                    gpu_split: sample.gpu_split,
                    gpu_retries: sample.gpu_retries,
                    gpu_ooms: sample.gpu_ooms,
                    gpu_largest: sample.gpu_largest,
                    gpu_nccl: sample.gpu_nccl,
                }),
            });
        }
        Some(())
    }

    /// Whether the ticket is new; `None`: invalid. Emits an event for records lost before it.
    fn is_next(&mut self, process: ProcessId, ticket: u64, out: &mut Vec<Event>) -> Option<bool> {
        if self.ended || ticket == u64::MAX {
            return None;
        }
        if ticket < self.next_ticket {
            return Some(false);
        }
        let missing = (ticket - self.next_ticket).saturating_sub(self.announced);
        if missing > 0 {
            out.push(Event::RecordsLost {
                process,
                count: missing,
            });
        }
        self.announced = 0;
        self.next_ticket = ticket + 1;
        Some(true)
    }

    /// Tracks an announced exit. A call made afterwards delays it; activity of another thread
    /// revokes it.
    fn track_exit(&mut self, kind: RecordKind, record: &v1::Record, at: Timestamp) {
        match kind {
            RecordKind::Exit => {
                self.announced_status = Some((record.code, at));
                self.announced_by = record.thread;
                self.is_delayed = false;
            }
            _ if self.announced_status.is_none() => {}
            _ if record.thread != self.announced_by => self.announced_status = None,
            RecordKind::Issued | RecordKind::WaitBegin => self.is_delayed = true,
            RecordKind::Returned | RecordKind::WaitEnd => self.is_delayed = false,
            _ => {}
        }
    }

    fn call(&mut self, mut record: v1::Record, limits: &mut Limits) -> Option<Call> {
        let op = number(record.op, Op::from_number);
        let takes_all = record.creation.as_ref().is_some_and(|it| it.takes_all);
        let group = match record.group {
            _ if op.creates_group() => self.created(record.creation.take(), limits),
            0 => None,
            group => Some(self.groups.get(&group)?.clone()),
        };
        let partner = record.root.and_then(|rank| global(group.as_deref(), rank));
        let has = |flag: u16| record.flags & u32::from(flag) != 0;
        Some(Call {
            group,
            seq: record.seq,
            dtype: number(record.dtype, DType::from_number),
            reduce_op: number(record.reduce_op, ReduceOp::from_number),
            root: partner.filter(|_| op.is_rooted()),
            peer: partner.filter(|_| op.is_point_to_point()),
            tag: record.tag,
            numel: record.numel,
            shape: record
                .shape_known
                .then(|| record.dims.into_iter().take(64).collect()),
            tensors: record.tensors,
            takes_all,
            is_async: has(flags::ASYNC),
            hidden: has(flags::HIDDEN),
            on_stream: record.on_stream.map(|on| OnStream {
                stream: on.stream,
                launch: on.launch,
            }),
            step: u64::from(record.step),
            phase: self.phase(&record.phase, limits),
            place: self.place(record.site),
            ..Call::new(
                CallId(record.call),
                self.time(record.mono_ns),
                ThreadId(record.thread),
                op,
            )
        })
    }

    /// What a call requests of the layer below.
    fn beneath(&self, record: &v1::Record) -> Beneath {
        let op = number(record.op, Op::from_number);
        let group = self.groups.get(&record.group).map(|group| &**group);
        let root = record.root.filter(|_| op.is_rooted());
        // A captured call runs later, at an unknown time.
        let runs = record.flags & u32::from(flags::CAPTURED) == 0;
        let on_stream = record.on_stream.as_ref().filter(|_| runs);
        Beneath {
            op,
            reduce_op: number(record.reduce_op, ReduceOp::from_number),
            root: root.and_then(|rank| global(group, rank)),
            on_stream: on_stream.map(|on| OnStream {
                stream: on.stream,
                launch: on.launch,
            }),
        }
    }

    /// The group that a call is about to create; `None`: not recorded, invalid, or over a limit.
    fn created(
        &mut self,
        group: Option<v1::GroupCreation>,
        limits: &mut Limits,
    ) -> Option<Arc<GroupInfo>> {
        let group = group.filter(|group| !group.name.is_empty())?;
        let seat = seat(group.seat)?;
        if group.members.is_empty() && seat.is_none() {
            return None;
        }
        if self.creations >= MAX_CREATIONS {
            return None;
        }
        self.creations += 1;
        limits.group(GroupInfo {
            key: GroupRef {
                layer: self.layer_of(seat).into(),
                epoch: group.epoch,
                name: name(&group.name).as_ref().into(),
                ordinal: 0,
                members: group.members,
            },
            description: name(&group.description),
            backend: name(&group.backend),
            seat,
        })
    }

    /// Adds split sizes to their call; `None`: invalid. Valid parts follow their call in order.
    fn splits(&mut self, record: &v1::Record) -> Option<()> {
        let call = self
            .held_call
            .as_mut()
            .filter(|call| call.id.0 == record.call)?;
        let output = record.flags & u32::from(flags::OUTPUT) != 0;
        let sizes = &mut call.splits[usize::from(output)];
        if record.seq != sizes.len() as u64 || sizes.len() + record.splits.len() > MAX_SPLITS {
            return None;
        }
        sizes.extend(&record.splits);
        Some(())
    }

    /// The shared name of a phase: every record carries one of a few names.
    fn phase(&mut self, phase: &str, limits: &mut Limits) -> Option<Arc<str>> {
        if phase.is_empty() {
            return None;
        }
        if let Some(known) = self.phases.get(phase) {
            return Some(known.clone());
        }
        let new = name(phase);
        if limits.take(2 * phase.len() + 64).is_some() {
            self.phases.insert(phase.to_owned(), new.clone());
        }
        Some(new)
    }

    /// Converts a time of the host's monotonic clock to the coordinator's clock.
    fn time(&self, mono_ns: u64) -> Timestamp {
        let offset = i128::from(mono_ns) - i128::from(self.identity.anchor_mono_ns);
        let unix = i128::from(self.identity.anchor_unix_ns) + offset;
        self.to_coordinator_clock(unix.clamp(0, i128::from(u64::MAX)) as u64)
    }

    /// Converts a time of the node to the coordinator's clock.
    pub(super) const fn to_coordinator_clock(&self, unix_ns: u64) -> Timestamp {
        Timestamp(unix_ns.saturating_add_signed(self.ahead.saturating_neg()))
    }
}

/// The place of a frame of an installed package with this caller.
fn called_by(caller: Option<&Where>, frame: Where) -> Where {
    let Some(caller) = caller else {
        return Where {
            library: true,
            ..frame
        };
    };
    let mut place = caller.clone();
    if place.via.len() < MAX_VIA {
        place.via.push(frame);
    }
    place
}

/// A place without the frames of installed packages.
fn users_line(place: Arc<Where>) -> Arc<Where> {
    if place.via.is_empty() {
        return place;
    }
    let mut line = Arc::unwrap_or_clone(place);
    line.via.clear();
    Arc::new(line)
}

fn guard(guard: &v1::Guard) -> Guard {
    Guard {
        line: guard.line,
        test: cut(&guard.test, MAX_TEST).into(),
        subject: number(guard.subject, GuardSubject::from_number),
        form: number(guard.form, GuardForm::from_number),
    }
}

/// Converts a number that may be out of range.
fn number<T: Default>(number: i32, from_number: impl Fn(u8) -> T) -> T {
    u8::try_from(number).map_or_else(|_| T::default(), from_number)
}

/// What a stalled transfer waits for; `None`: it makes progress.
const fn waits_for(code: i32) -> Option<WaitsFor> {
    Some(match code {
        transfer::MOVES => return None,
        transfer::DEVICE => WaitsFor::Device,
        transfer::PEER => WaitsFor::Peer,
        transfer::NETWORK => WaitsFor::Network,
        _ => WaitsFor::Unknown,
    })
}

/// Converts a group rank to a global rank; stays a group rank if the members are unknown.
fn global(group: Option<&GroupInfo>, rank: i32) -> Option<u32> {
    let group = group?;
    if let Some(seat) = group.seat {
        return u32::try_from(rank).ok().filter(|&rank| rank < seat.size);
    }
    let members = &group.key.members;
    members.get(usize::try_from(rank).ok()?).copied()
}

/// Validates the rank in a group; outer `None`: invalid, inner `None`: absent.
fn seat(seat: Option<v1::Seat>) -> Option<Option<Seat>> {
    let Some(v1::Seat { rank, size }) = seat else {
        return Some(None);
    };
    (rank < size && size <= MAX_MEMBERS).then_some(Some(Seat { rank, size }))
}
