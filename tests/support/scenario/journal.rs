//! A scenario as the journals of its nodes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ddp_doctor::diagnosis::event::{
    Call, Event, Forward, GroupInfo, Guard, ProcessId, Stacks, WaitsFor,
};
use ddp_doctor::evidence::journal::Writer;
use ddp_doctor::postmortem;
use ddp_doctor_proto::blackbox::{flags, transfer as code};
use ddp_doctor_proto::report::{Exit, Report, Timestamp, Where};
use ddp_doctor_proto::{NoteKind, Op, ProcessState, RecordKind, v1};
use v1::event::Kind;

use super::{START, Scenario, Script};

impl Scenario {
    /// Writes a journal for each of `nodes` nodes; rank `r` runs on node `r % nodes`. The end of
    /// the job is recorded only if the scenario has it.
    pub(crate) fn journals(&self, dir: &Path, nodes: u32) -> Result<Vec<PathBuf>, String> {
        let script = Script::of(self)?;
        (0..nodes)
            .map(|node| {
                let path = dir.join(format!("node-{node}.ddpj"));
                let mut writer = Writer::create(&path).map_err(|error| error.to_string())?;
                let mut encoder = Encoder::default();
                let mut write = |at: Timestamp, kinds: Vec<Kind>| {
                    let events = kinds.into_iter().map(|kind| v1::Event { kind: Some(kind) });
                    let report = v1::Report {
                        sent_unix_ns: at.0,
                        events: events.collect(),
                        pong: None,
                    };
                    writer.append(&report).map_err(|error| error.to_string())
                };
                write(Timestamp(START), vec![self.hello(node)])?;
                for (at, rank, event) in &script.events {
                    // Every node reports the events of no rank; the first node reports the notes of no rank.
                    let is_note = matches!(event, Event::Note { .. });
                    let first = if is_note { Some(0) } else { None };
                    if (*rank).or(first).is_none_or(|rank| rank % nodes == node) {
                        write(*at, encoder.encode(event)?)?;
                    }
                }
                write(script.end, Vec::new())?;
                Ok(path)
            })
            .collect()
    }

    fn hello(&self, node: u32) -> Kind {
        Kind::Hello(v1::Hello {
            job: "scenario".into(),
            started_unix_ns: START,
            host: format!("node-{node}"),
            // No real boot has this id, so that the processes are not looked up on this machine.
            boot_id: format!("boot of node-{node}"),
            stall_after_s: self.stall_after.map_or(0, |seconds| seconds as u32),
            time_scale: self.time_scale,
            ..v1::Hello::default()
        })
    }

    /// Whether its journals contain all events; those of the coordinator about nodes are in none.
    pub(crate) fn is_in_journals(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Fails if the journals of one or two nodes lead to another diagnosis than the live one.
    pub(super) fn check_journals(&self, live: &Report) -> Result<(), String> {
        if !self.is_in_journals() {
            return Ok(());
        }
        for nodes in [1, 2] {
            let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
            let journals = self.journals(dir.path(), nodes)?;
            let mut analysis = postmortem::analyze(&journals);
            if analysis.reports.len() != 1 || !analysis.remarks.is_empty() {
                return Err(format!("from {nodes} journals: {analysis:?}"));
            }
            let mut report = analysis.reports.remove(0);
            report
                .findings
                .retain(|finding| !reports_unobserved_end(finding));
            let (a, b) = (super::gist(live), super::gist(&report));
            if a != b {
                return Err(format!(
                    "from {nodes} journals it is another diagnosis:\n  live: {a:?}\n  so:   {b:?}"
                ));
            }
        }
        Ok(())
    }
}

/// Whether the finding reports that the end of ranks was not observed; most scenarios do not include
/// it.
fn reports_unobserved_end(finding: &ddp_doctor_proto::report::Finding) -> bool {
    finding.code == "DD901" && finding.summary.starts_with("it is unknown how")
}

/// Encodes events as the protocol messages of a node.
#[derive(Default)]
struct Encoder {
    processes: BTreeMap<ProcessId, Process>,
}

#[derive(Default)]
struct Process {
    number: u64,
    next_ticket: u64,
    groups: Vec<Arc<GroupInfo>>,
    sites: Vec<Arc<Where>>,
}

impl Encoder {
    fn process(&mut self, id: ProcessId) -> &mut Process {
        let number = self.processes.len() as u64 + 1;
        self.processes.entry(id).or_insert_with(|| Process {
            number,
            ..Process::default()
        })
    }

    fn encode(&mut self, event: &Event) -> Result<Vec<Kind>, String> {
        let record = |kind: RecordKind, at: Timestamp| v1::Record {
            kind: i32::from(kind.number()),
            mono_ns: at.0,
            ..v1::Record::default()
        };
        Ok(match event {
            // Each journal starts with a hello in its place.
            Event::JobStarted { .. } => Vec::new(),
            Event::ProcessJoined {
                process,
                rank,
                world_size,
                host: _,
                pid,
                layer,
                world,
                restarts,
                at,
            } => vec![Kind::ProcessJoined(v1::ProcessJoined {
                attempt: *restarts,
                process: self.process(*process).number,
                pid: *pid,
                start_ticks: u64::from(*pid),
                rank: *rank,
                world_size: *world_size,
                local_rank: None,
                layer: layer.as_ref().into(),
                world: world.as_ref().into(),
                anchor_mono_ns: at.0,
                anchor_unix_ns: at.0,
            })],
            Event::GroupJoined { process, group } => {
                let process = self.process(*process);
                process.groups.push(Arc::clone(group));
                vec![Kind::GroupDefined(v1::GroupDefined {
                    process: process.number,
                    id: process.groups.len() as u32,
                    name: group.key.name.clone(),
                    description: group.description.as_ref().into(),
                    backend: group.backend.as_ref().into(),
                    epoch: group.key.epoch,
                    ordinal: group.key.ordinal,
                    members: group.key.members.clone(),
                    seat: None,
                })]
            }
            Event::GroupDestroyed { process, group, at } => {
                let process = self.process(*process);
                let group = process.group(group)?;
                let record = record(RecordKind::GroupDestroyed, *at);
                process.record(v1::Record { group, ..record }, None)
            }
            Event::GroupTimeout {
                process,
                group,
                timeout,
                at,
            } => {
                let process = self.process(*process);
                let record = v1::Record {
                    group: process.group(group)?,
                    code: timeout.as_millis() as i32,
                    ..record(RecordKind::GroupTimeout, *at)
                };
                process.record(record, None)
            }
            Event::Issued { process, call } => {
                let process = self.process(*process);
                let mut kinds = Vec::new();
                let issued = process.issued(call, record(RecordKind::Issued, call.at))?;
                kinds.extend(process.record(issued, call.place.as_ref()));
                for (output, sizes) in [false, true].into_iter().zip(&call.splits) {
                    if !sizes.is_empty() {
                        let splits = v1::Record {
                            call: call.id.0,
                            flags: if output { u32::from(flags::OUTPUT) } else { 0 },
                            splits: sizes.clone(),
                            ..record(RecordKind::Splits, call.at)
                        };
                        kinds.extend(process.record(splits, None));
                    }
                }
                kinds
            }
            Event::Returned {
                process,
                thread,
                call,
                followed,
                at,
            } => {
                let record = v1::Record {
                    thread: thread.0,
                    call: call.0,
                    flags: if *followed {
                        u32::from(flags::FOLLOWED)
                    } else {
                        0
                    },
                    ..record(RecordKind::Returned, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::WaitBegin {
                process,
                thread,
                call,
                place,
                at,
            } => {
                let record = v1::Record {
                    thread: thread.0,
                    call: call.map_or(0, |call| call.0),
                    ..record(RecordKind::WaitBegin, *at)
                };
                self.process(*process).record(record, place.as_ref())
            }
            Event::WaitEnd {
                process,
                thread,
                call,
                at,
            } => {
                let record = v1::Record {
                    thread: thread.0,
                    call: call.map_or(0, |call| call.0),
                    ..record(RecordKind::WaitEnd, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::Completed { process, call, at } => {
                let record = v1::Record {
                    call: call.0,
                    ..record(RecordKind::Completed, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::LowerCall {
                process,
                call,
                lower_call,
                at,
            } => {
                let record = v1::Record {
                    call: call.0,
                    op: i32::from(lower_call.op.number()),
                    reduce_op: i32::from(lower_call.reduce_op.number()),
                    on_stream: lower_call.on_stream.map(|on| v1::OnStream {
                        stream: on.stream,
                        launch: on.launch,
                    }),
                    ..record(RecordKind::LowerCall, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::Within {
                process,
                thread,
                function,
                at,
            } => {
                let record = v1::Record {
                    thread: thread.0,
                    text: function.as_deref().unwrap_or_default().into(),
                    ..record(RecordKind::Within, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::Transfer {
                process,
                call,
                transfer,
                standing,
                at,
            } => {
                let record = v1::Record {
                    call: call.0,
                    op: i32::from([Op::Recv, Op::Send][usize::from(transfer.is_send)].number()),
                    root: i32::try_from(transfer.peer).ok(),
                    tag: i32::try_from(transfer.channel).ok(),
                    numel: standing.map(|it| it.done),
                    tensors: standing.map_or(0, |it| it.steps as u32),
                    code: standing.map_or(code::MOVES, |it| match it.waits_for {
                        WaitsFor::Device => code::DEVICE,
                        WaitsFor::Peer => code::PEER,
                        WaitsFor::Network => code::NETWORK,
                        WaitsFor::Unknown => code::UNKNOWN,
                    }),
                    ..record(RecordKind::Transfer, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::Site {
                process,
                place,
                caller,
                guards,
                reading,
            } => self
                .process(*process)
                .site_event(place, caller.as_ref(), guards, *reading),
            Event::Step {
                process,
                step,
                forward,
                at,
            } => {
                let mut record = v1::Record {
                    step: *step as u32,
                    ..record(RecordKind::Step, *at)
                };
                let mut place = None;
                if let Some(forward) = forward {
                    record.flags = flags_of(forward);
                    record.numel = forward.batches;
                    let path = forward.path.as_ref();
                    let split = path.and_then(|path| path.rsplit_once(':'));
                    place = split.map(|(file, line)| {
                        Arc::new(Where {
                            file: file.into(),
                            line: line.parse().unwrap_or(0),
                            function: "forward".into(),
                            ..Where::default()
                        })
                    });
                }
                self.process(*process).record(record, place.as_ref())
            }
            Event::PhaseBegin { process, name, at } => {
                let record = v1::Record {
                    text: name.as_ref().into(),
                    ..record(RecordKind::PhaseBegin, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::PhaseEnd { process, name, at } => {
                let record = v1::Record {
                    text: name.as_ref().into(),
                    ..record(RecordKind::PhaseEnd, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::Exception {
                process,
                kind,
                text,
                place,
                at,
            } => {
                let record = v1::Record {
                    code: i32::from(kind.number()),
                    text: text.as_ref().into(),
                    ..record(RecordKind::Exception, *at)
                };
                self.process(*process).record(record, place.as_ref())
            }
            Event::ExitAnnounced {
                process,
                thread,
                code,
                how,
                at,
            } => {
                let record = v1::Record {
                    thread: thread.0,
                    code: *code,
                    text: how.as_ref().into(),
                    ..record(RecordKind::Exit, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::Spent {
                process,
                thread,
                on,
                took,
                place,
                at,
            } => {
                let record = v1::Record {
                    thread: thread.0,
                    code: i32::from(on.number()),
                    numel: Some(took.as_nanos() as u64),
                    ..record(RecordKind::Spent, *at)
                };
                self.process(*process).record(record, place.as_ref())
            }
            Event::Scheduled {
                process,
                sample,
                at,
            } => vec![Kind::SchedulingSample(v1::SchedulingSample {
                process: self.process(*process).number,
                unix_ns: at.0,
                ran_permille: sample.ran_permille,
                queued_permille: sample.queued_permille,
                throttled_permille: sample.throttled_permille,
                major_faults: sample.major_faults,
                processors: sample.processors.as_ref().into(),
                threads_queued_permille: sample.threads_queued_permille,
                stolen_permille: sample.stolen_permille,
                cpu_pressure_permille: sample.cpu_pressure,
                memory_pressure_permille: sample.memory_pressure,
                io_pressure_permille: sample.io_pressure,
            })],
            Event::InputEnded { process, place, at } => {
                let record = record(RecordKind::InputEnded, *at);
                self.process(*process).record(record, place.as_ref())
            }
            Event::RankStarted(started) => vec![Kind::RankStarted(v1::RankStarted {
                pid: started.pid,
                start_ticks: started.start_ticks,
                rank: started.rank,
                world_size: started.world_size,
                seen_unix_ns: started.seen.0,
                ended_unix_ns: started.end.map(|(at, _)| at.0),
                exit_code: started.end.and_then(|(_, exit)| exit.code),
                exit_signal: started.end.and_then(|(_, exit)| exit.signal),
                looks: started.looks.iter().map(|look| stacked(0, look)).collect(),
            })],
            Event::Parameters {
                process,
                group,
                said,
                at,
            } => {
                let process = self.process(*process);
                let record = v1::Record {
                    group: process.group(group)?,
                    code: i32::from(said.fact.number()),
                    seq: u64::from(said.model),
                    tensors: said.first,
                    numel: Some(said.total),
                    text: said.lines.to_string(),
                    step: said.step as u32,
                    dtype: i32::from(said.dtype.number()),
                    dims: said.values.clone(),
                    ..record(RecordKind::Parameters, *at)
                };
                process.record(record, said.place.as_ref())
            }
            Event::Setting {
                process,
                name,
                value,
                at,
            } => {
                let record = v1::Record {
                    text: format!("{name}={value}"),
                    ..record(RecordKind::Setting, *at)
                };
                self.process(*process).record(record, None)
            }
            Event::Memory {
                process,
                sample,
                at,
            } => vec![Kind::MemorySample(v1::MemorySample {
                process: self.process(*process).number,
                unix_ns: at.0,
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
                ..v1::MemorySample::default()
            })],
            Event::Frontier {
                process,
                group,
                issued,
                p2p_issued,
            } => {
                let process = self.process(*process);
                vec![Kind::GroupFrontier(v1::GroupFrontier {
                    process: process.number,
                    group: process.group(group)?,
                    issued: *issued,
                    p2p_issued: *p2p_issued,
                    r#final: true,
                })]
            }
            Event::ProcessChanged {
                process,
                state,
                exit,
                oom_kills,
                at,
            } => {
                let number = self.process(*process).number;
                vec![Kind::ProcessChanged(v1::ProcessChanged {
                    oom_kills_in_cgroup: oom_kills.in_cgroup,
                    oom_kills_on_host: oom_kills.on_host,
                    ..changed(number, *state, *exit, *at)
                })]
            }
            Event::Stacks { process, stacks } => {
                let number = self.process(*process).number;
                vec![Kind::Stacks(stacked(number, stacks))]
            }
            Event::RecordsLost { process, count } => {
                let process = self.process(*process);
                process.next_ticket += count;
                vec![Kind::RecordsLost(v1::RecordsLost {
                    process: process.number,
                    count: *count,
                })]
            }
            Event::Note {
                process,
                kind,
                rank,
                pid,
                text,
                at,
            } => {
                let process = process.map_or(0, |process| self.process(process).number);
                vec![Kind::Note(noted(process, *kind, *rank, *pid, text, *at))]
            }
            Event::Interrupted { signal, at } => vec![Kind::Interrupted(v1::Interrupted {
                unix_ns: at.0,
                signal: *signal,
            })],
            Event::JobEnded { status, at } => vec![Kind::JobEnded(v1::JobEnded {
                unix_ns: at.0,
                status: *status,
            })],
            Event::Unawaited {
                process,
                call,
                op,
                group,
                place,
                at,
            } => {
                let process = self.process(*process);
                let group = group.as_ref().map(|group| process.group(group));
                let record = v1::Record {
                    call: call.0,
                    op: i32::from(op.number()),
                    group: group.transpose()?.unwrap_or(0),
                    ..record(RecordKind::Unawaited, *at)
                };
                process.record(record, place.as_ref())
            }
            Event::Clock { .. } | Event::Silent { .. } => {
                return Err("no node sends this event: the coordinator detects it".into());
            }
            Event::Unwatched { .. } | Event::EvidenceEnded { .. } => {
                return Err("no node sends this event: the analysis concludes it".into());
            }
        })
    }
}

fn flags_of(forward: &Forward) -> u32 {
    let mut bits = flags::FORWARD;
    if forward.repeated {
        bits |= flags::REPEATED;
    }
    if forward.unsynchronised {
        bits |= flags::UNSYNCHRONISED;
    }
    u32::from(bits)
}

impl Process {
    fn group(&self, group: &Arc<GroupInfo>) -> Result<u32, String> {
        let at = self
            .groups
            .iter()
            .position(|known| Arc::ptr_eq(known, group));
        at.map(|at| at as u32 + 1).ok_or("no such group".into())
    }

    /// Id of a place. The definition of a new one is added to `kinds`.
    fn site(&mut self, place: &Arc<Where>, caller: u32, kinds: &mut Vec<Kind>) -> u32 {
        if !place.via.is_empty() {
            return self.library_site(place, kinds);
        }
        let known = self.sites.iter().position(|known| known == place);
        let at = known.unwrap_or_else(|| {
            self.sites.push(Arc::clone(place));
            let id = self.sites.len() as u32;
            kinds.push(Kind::SiteDefined(self.definition(place, id, caller)));
            self.sites.len() - 1
        });
        at as u32 + 1
    }

    /// The same for a place with frames of installed packages.
    fn library_site(&mut self, place: &Arc<Where>, kinds: &mut Vec<Kind>) -> u32 {
        if let Some(at) = self.sites.iter().position(|known| known == place) {
            return at as u32 + 1;
        }
        let mut outer = Where::clone(place);
        let frame = outer.via.pop().unwrap_or_default();
        let caller = self.site(&Arc::new(outer), 0, kinds);
        self.sites.push(Arc::clone(place));
        let id = self.sites.len() as u32;
        kinds.push(Kind::SiteDefined(v1::SiteDefined {
            library: true,
            ..self.definition(&frame, id, caller)
        }));
        id
    }

    fn definition(&self, place: &Where, id: u32, caller: u32) -> v1::SiteDefined {
        v1::SiteDefined {
            process: self.number,
            id,
            file: place.file.clone(),
            line: place.line,
            function: place.function.clone(),
            caller,
            ..v1::SiteDefined::default()
        }
    }

    fn site_event(
        &mut self,
        place: &Arc<Where>,
        caller: Option<&Arc<Where>>,
        guards: &[Guard],
        reading: bool,
    ) -> Vec<Kind> {
        let mut kinds = Vec::new();
        let caller = caller.map_or(0, |caller| self.site(caller, 0, &mut kinds));
        let id = self.site(place, caller, &mut kinds);
        if let (true, Some(Kind::SiteDefined(site))) = (reading, kinds.last_mut()) {
            site.reading = true;
        }
        if !guards.is_empty() {
            let guards = guards.iter().map(|guard| v1::Guard {
                line: guard.line,
                test: guard.test.as_ref().into(),
                subject: i32::from(guard.subject.number()),
                form: i32::from(guard.form.number()),
            });
            kinds.push(Kind::SiteDefined(v1::SiteDefined {
                guards: guards.collect(),
                ..self.definition(place, id, caller)
            }));
        }
        kinds
    }

    /// A record, after the definition of its place if that is new.
    fn record(&mut self, record: v1::Record, place: Option<&Arc<Where>>) -> Vec<Kind> {
        let mut kinds = Vec::new();
        let site = place.map_or(0, |place| self.site(place, 0, &mut kinds));
        kinds.push(Kind::Record(v1::Record {
            process: self.number,
            ticket: self.next_ticket,
            site,
            ..record
        }));
        self.next_ticket += 1;
        kinds
    }

    fn issued(&self, call: &Call, record: v1::Record) -> Result<v1::Record, String> {
        let made = call.group.as_ref().filter(|_| call.op.creates_group());
        let group = call.group.as_ref().filter(|_| made.is_none());
        let group = group.map(|group| self.group(group)).transpose()?;
        // Black boxes store partners as ranks within the group.
        let partner = call.root.or(call.peer).and_then(|rank| {
            let members = &call.group.as_ref()?.key.members;
            members.iter().position(|&member| member == rank)
        });
        let flag = |is_set: bool, flag: u16| if is_set { u32::from(flag) } else { 0 };
        Ok(v1::Record {
            thread: call.thread.0,
            group: group.unwrap_or(0),
            seq: call.seq,
            call: call.id.0,
            op: i32::from(call.op.number()),
            dtype: i32::from(call.dtype.number()),
            reduce_op: i32::from(call.reduce_op.number()),
            flags: flag(call.is_async, flags::ASYNC) | flag(call.hidden, flags::HIDDEN),
            root: partner.map(|at| at as i32),
            tag: call.tag,
            numel: call.numel,
            dims: call.shape.clone().unwrap_or_default().to_vec(),
            shape_known: call.shape.is_some(),
            tensors: call.tensors,
            step: call.step as u32,
            phase: call.phase.as_deref().unwrap_or_default().into(),
            creation: made.map(|group| v1::GroupCreation {
                name: group.key.name.clone(),
                description: group.description.as_ref().into(),
                backend: group.backend.as_ref().into(),
                takes_all: call.takes_all,
                epoch: group.key.epoch,
                members: group.key.members.clone(),
                seat: None,
            }),
            on_stream: call.on_stream.map(|on| v1::OnStream {
                stream: on.stream,
                launch: on.launch,
            }),
            ..record
        })
    }
}

fn changed(process: u64, state: ProcessState, exit: Exit, at: Timestamp) -> v1::ProcessChanged {
    v1::ProcessChanged {
        process,
        state: i32::from(state.number()),
        unix_ns: at.0,
        exit_code: exit.code,
        exit_signal: exit.signal,
        ..v1::ProcessChanged::default()
    }
}

fn noted(
    process: u64,
    kind: NoteKind,
    rank: Option<u32>,
    pid: Option<u32>,
    text: &str,
    at: Timestamp,
) -> v1::Note {
    v1::Note {
        process,
        kind: i32::from(kind.number()),
        rank,
        pid: pid.unwrap_or(0),
        text: text.into(),
        unix_ns: at.0,
    }
}

fn stacked(process: u64, stacks: &Stacks) -> v1::Stacks {
    let frames = |frames: &[Where]| {
        let frame = |frame: &Where| v1::Frame {
            file: frame.file.clone(),
            line: frame.line,
            function: frame.function.clone(),
        };
        frames.iter().map(frame).collect()
    };
    let threads = stacks.threads.iter().map(|thread| v1::ThreadStack {
        tid: thread.tid,
        name: thread.name.as_ref().into(),
        state: thread.state.map(String::from).unwrap_or_default(),
        wait_channel: thread.wait_channel.as_deref().unwrap_or_default().into(),
        cpu_ns: thread.cpu_time.map(|time| time.as_nanos() as u64),
        holds_gil: thread.holds_gil,
        python: frames(&thread.python),
        native: frames(&thread.native),
    });
    v1::Stacks {
        process,
        unix_ns: stacks.at.0,
        threads: threads.collect(),
        trouble: stacks.trouble.as_ref().into(),
    }
}
