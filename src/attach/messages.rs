//! What was read of the ranks of a job, as the messages that a node following them would have sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::Stacks;
use ddp_doctor_diagnosis::input::backends::Backend;
use ddp_doctor_diagnosis::input::{place, settings};
use ddp_doctor_diagnosis::model::STACK_LAYER;
use ddp_doctor_diagnosis::timing::TimeScale;
use ddp_doctor_evidence::stacks::decode;
use ddp_doctor_host::proc;
use ddp_doctor_host::proc::Stat;
use ddp_doctor_host::source_files::SourceFolders;
use ddp_doctor_host::sys;
use ddp_doctor_node::source_reader::{self, Sources};
use ddp_doctor_proto::blackbox::flags;
use ddp_doctor_proto::report::Where;
use ddp_doctor_proto::{NoteKind, Op, ProcessState, RecordKind, VERSION, v1};
use v1::event::Kind;

use super::counts::{self, Placed};
use super::find::{self, RankProcess, RankedJob, spawned};
use super::outside;
use super::position::{self, Position, StackCall};
use super::rank_facts::Facts;
use super::ras::Answer;
use super::sample::StackRound;

/// Name of the group of all ranks in PyTorch.
pub(super) const WORLD: &str = "0";
/// Number of that group in the messages of a process.
const WORLD_ID: u32 = 1;
/// Number of the first other group.
const FIRST_GROUP: u32 = 2;
/// Maximum number of frames of the user's program that lead to a call.
const MAX_SITES: usize = 32;

/// Everything that was read of the ranks of a job on this host.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// The job.
    pub job: &'a RankedJob,
    /// Its ranks that have ended since they were found.
    pub ended: &'a [RankProcess],
    /// The communicators of its ranks, as NCCL counts their calls.
    pub answer: Option<&'a Answer>,
    /// The state of the GPUs of this host.
    pub gpus: &'a [v1::GpuSample],
    /// Facts about its ranks, in their order; empty: none.
    pub facts: &'a [Facts],
    /// Duration of a wait that is reported, if it can be measured.
    pub min_wait: Duration,
    /// The captures, each of all ranks, the oldest first.
    pub looks: &'a [StackRound],
    /// Duration of a wait that is reported, in seconds.
    pub stall_after_s: u32,
    /// Factor of all other durations.
    pub time_scale: TimeScale,
}

/// What a rank does.
#[derive(Clone, Debug)]
pub struct Whereabouts {
    /// The rank.
    pub rank: u32,
    /// Its position.
    pub position: Position,
    /// The user's line.
    pub place: Option<Where>,
    /// What NCCL's counts of calls say of it.
    pub counts: Option<String>,
    /// Why its stacks could not be read; `None`: they were.
    pub unreadable: Option<String>,
    /// Its calls return before they are complete.
    pub is_on_device: bool,
}

/// A rank with its position.
struct Seen<'a> {
    number: u64,
    process: &'a RankProcess,
    stacks: Vec<Arc<Stacks>>,
    position: Position,
    backend: Option<&'static Backend>,
    counts: Option<String>,
}

impl Evidence<'_> {
    /// What each rank does, in their order.
    #[must_use]
    pub fn whereabouts(&self) -> Vec<Whereabouts> {
        let seen = self.seen().into_iter();
        let of = |it: Seen<'_>| Whereabouts {
            rank: it.process.rank,
            counts: it.counts.clone(),
            place: it.stacks.last().and_then(|stacks| stacks.place()).cloned(),
            unreadable: it.unreadable().map(str::to_owned),
            is_on_device: it.backend.is_some_and(Backend::is_on_device),
            position: it.position,
        };
        seen.map(of).collect()
    }

    fn seen(&self) -> Vec<Seen<'_>> {
        let ranks = self.job.ranks.iter().enumerate();
        let mut seen: Vec<Seen<'_>> =
            ranks.map(|(at, process)| self.seen_at(at, process)).collect();
        let mut placed: Vec<Placed> = seen.iter().map(Seen::placed).collect();
        let counted = self.answer.map(|it| counts::counted(it, &placed)).unwrap_or_default();
        counts::settle(&mut placed, &counted, self.min_wait);
        for (it, placed) in seen.iter_mut().zip(placed) {
            it.counts = counts::text(&counted, placed.rank);
            it.position = placed.position;
        }
        seen
    }

    /// A rank as its own stacks show it.
    fn seen_at<'a>(&'a self, at: usize, process: &'a RankProcess) -> Seen<'a> {
        let looks = self.looks.iter().filter_map(|look| look.get(at));
        let stacks: Vec<Arc<Stacks>> = looks.map(|it| Arc::new(decode(it))).collect();
        let backend = stacks.last().and_then(|it| backend_of(it));
        let is_on_device = backend.is_some_and(Backend::is_on_device);
        let mut position = match &stacks[..] {
            [first, .., last] => position::locate(first, last, is_on_device),
            _ => Position::Unknown,
        };
        if let Position::Inside(call) = &mut position {
            let last = self.looks.last().and_then(|look| look.get(at)?.threads.first());
            call.group = last.and_then(|thread| thread.group.clone());
        }
        Seen { number: at as u64 + 1, process, stacks, position, backend, counts: None }
    }

    /// The reports for the journal: one for each capture.
    #[must_use]
    pub fn reports(&self) -> Vec<v1::Report> {
        let seen = self.seen();
        let mut reports: Vec<v1::Report> = Vec::new();
        for (index, look) in self.looks.iter().enumerate() {
            let mut kinds = Vec::new();
            let sent_unix_ns = look.iter().map(|it| it.unix_ns).max().unwrap_or_default();
            if index == 0 {
                kinds.push(Kind::Hello(self.hello(sent_unix_ns)));
                kinds.extend(self.gpus.iter().cloned().map(Kind::GpuSample));
                kinds.extend(self.absent(&seen, sent_unix_ns));
                let groups = groups(&seen);
                let longest_join = longest_join(&seen);
                for it in &seen {
                    self.rank(it, &groups, longest_join, &mut kinds);
                }
            }
            for it in seen.iter().filter(|it| it.has_joined()) {
                let stacks = look.get(it.number as usize - 1).cloned().unwrap_or_default();
                kinds.push(Kind::Stacks(v1::Stacks { process: it.number, ..stacks }));
            }
            let events = kinds.into_iter().map(|kind| v1::Event { kind: Some(kind) });
            reports.push(v1::Report {
                sent_unix_ns,
                events: events.collect(),
                ..v1::Report::default()
            });
        }
        reports
    }

    fn hello(&self, now: u64) -> v1::Hello {
        let first = self.job.ranks.first();
        let meeting = first.and_then(|it| meeting(it));
        v1::Hello {
            job: self.job.evidence_name(),
            started_unix_ns: now,
            host: sys::host_name(),
            boot_id: proc::boot_id(),
            tool_version: VERSION.into(),
            command: first.map(|it| outside::arguments(it.pid)).unwrap_or_default(),
            stall_after_s: self.stall_after_s,
            time_scale: Some(self.time_scale.factor()),
            meeting: meeting.map(|(address, port)| format!("{address}:{port}")).unwrap_or_default(),
            attached: true,
            ..v1::Hello::default()
        }
    }

    /// Ranks that have ended, and those that their launcher started on this host and that have no process. The others
    /// have connected to the latter: before that, a rank may not have started yet.
    fn absent(&self, seen: &[Seen<'_>], now: u64) -> Vec<Kind> {
        let is_connected =
            seen.iter().any(|it| it.backend.is_some() || spawned::has_joined(it.process.pid));
        let mut absent: Vec<(u32, Option<&RankProcess>)> =
            self.ended.iter().map(|it| (it.rank, Some(it))).collect();
        if self.job.is_local() && is_connected {
            let unseen = self.job.elsewhere().into_iter().map(|rank| (rank, None));
            absent.extend(unseen.filter(|(rank, _)| self.ended.iter().all(|it| it.rank != *rank)));
        }
        let first = self.job.ranks.len() as u64 + 1;
        let zombie = find::zombies(&self.job.ranks);
        let exit = zombie
            .filter(|_| absent.iter().all(|(_, earlier)| earlier.is_none()))
            .filter(|(pids, _)| pids.len() == absent.len());
        let messages = absent.into_iter().zip(first..).flat_map(|((rank, earlier), process)| {
            let zombie = exit
                .as_ref()
                .and_then(|(pids, exit)| Some((*pids.get((process - first) as usize)?, *exit)));
            let pid = earlier.map(|it| it.pid).or(zombie.map(|(pid, _)| pid));
            let joined = v1::ProcessJoined {
                process,
                pid: pid.unwrap_or(0),
                start_ticks: earlier.map_or(0, |it| it.start_ticks),
                rank: Some(rank),
                world_size: self.job.world_size(),
                layer: STACK_LAYER.into(),
                anchor_unix_ns: now,
                ..v1::ProcessJoined::default()
            };
            let ended = v1::ProcessChanged {
                process,
                state: i32::from(ProcessState::Dead.number()),
                unix_ns: now,
                exit_code: zombie.and_then(|(_, exit)| exit.code),
                exit_signal: zombie.and_then(|(_, exit)| exit.signal),
                ..v1::ProcessChanged::default()
            };
            [
                Kind::ProcessJoined(joined),
                Kind::GroupDefined(self.world(process, "")),
                Kind::ProcessChanged(ended),
            ]
        });
        messages.collect()
    }

    fn world(&self, process: u64, backend: &str) -> v1::GroupDefined {
        v1::GroupDefined {
            process,
            id: WORLD_ID,
            name: WORLD.into(),
            description: "default_pg".into(),
            backend: backend.into(),
            members: (0..self.job.world_size().unwrap_or(0)).collect(),
            ..v1::GroupDefined::default()
        }
    }

    /// The messages about one rank, except for its stacks.
    fn rank(
        &self,
        it: &Seen<'_>,
        groups: &[v1::CallGroup],
        longest_join: Option<Duration>,
        out: &mut Vec<Kind>,
    ) {
        if let Some(why) = it.unreadable() {
            out.push(Kind::Note(v1::Note {
                process: 0,
                kind: i32::from(NoteKind::Unreadable.number()),
                rank: Some(it.process.rank),
                pid: it.process.pid,
                text: why.to_owned(),
                unix_ns: it.stacks.last().map_or(0, |stacks| stacks.at.0),
            }));
            return;
        }
        if !it.has_joined() {
            let looks = self.looks.iter().filter_map(|look| look.get(it.number as usize - 1));
            out.push(Kind::RankStarted(it.started(looks.cloned().collect())));
            return;
        }
        let last = it.stacks.last().map_or(0, |stacks| stacks.at.0);
        let now = sys::monotonic_ns();
        out.push(Kind::ProcessJoined(v1::ProcessJoined {
            process: it.number,
            pid: it.process.pid,
            start_ticks: it.process.start_ticks,
            rank: Some(it.process.rank),
            world_size: it.process.world_size,
            local_rank: it.process.local_rank,
            layer: STACK_LAYER.into(),
            anchor_mono_ns: now,
            anchor_unix_ns: last,
            ..v1::ProcessJoined::default()
        }));
        if let Ok(stat) = Stat::read(it.process.pid) {
            out.push(Kind::ProcessChanged(v1::ProcessChanged {
                process: it.number,
                state: i32::from(stat.state().number()),
                unix_ns: last,
                ..v1::ProcessChanged::default()
            }));
        }
        let facts = self.facts.get(it.number as usize - 1);
        out.extend(facts.map(|facts| {
            Kind::MemorySample(v1::MemorySample { process: it.number, ..facts.memory })
        }));
        let mut records =
            Records { process: it.number, pid: it.process.pid, now, ..Records::default() };
        for (name, value) in it.settings() {
            out.push(records.setting(&name, &value));
        }
        for (name, value) in facts.map(Facts::settings).unwrap_or_default() {
            out.push(records.setting(name, &value));
        }
        records.step = facts.and_then(|facts| facts.step.as_ref()).map_or(0, |it| it.number);
        if records.step > 0 {
            out.push(records.step());
        }
        let call = match &it.position {
            Position::Inside(call) => Some(call),
            _ => None,
        };
        if call.is_none_or(|call| call.op != Op::InitProcessGroup)
            && self.job.world_size() > Some(0)
        {
            out.push(Kind::GroupDefined(self.world(it.number, it.backend_name())));
        }
        let own = groups
            .iter()
            .zip(FIRST_GROUP..)
            .filter(|(group, _)| group.members.contains(&it.process.rank));
        out.extend(own.map(|(group, id)| {
            Kind::GroupDefined(v1::GroupDefined {
                process: it.number,
                id,
                name: group.name.clone(),
                backend: it.backend_name().into(),
                members: group.members.clone(),
                ..v1::GroupDefined::default()
            })
        }));
        if let Some(call) = call {
            let first = it.stacks.first().map_or(last, |stacks| stacks.at.0);
            // Without a known duration, it has waited for as long as it was observed. The rank with the store has begun
            // to join before the others, which have connected to it.
            let known = call.asleep.or(longest_join.filter(|_| call.op == Op::InitProcessGroup));
            let waited = known.map_or(last.saturating_sub(first), |it| it.as_nanos() as u64);
            let thread = it.stacks.last().and_then(|stacks| stacks.threads.first());
            let frames = thread.map(|thread| &thread.python[..]).unwrap_or_default();
            let mut issued = records.call(call, group_of(call, groups), frames, waited);
            if let (Some(Kind::Record(record)), Some(group)) = (issued.last_mut(), &call.group)
                && call.op == Op::NewGroup
            {
                record.creation = Some(Box::new(v1::GroupCreation {
                    name: group.name.clone(),
                    backend: it.backend_name().into(),
                    members: group.members.clone(),
                    ..v1::GroupCreation::default()
                }));
            }
            out.extend(issued);
        }
    }
}

impl Seen<'_> {
    fn placed(&self) -> Placed {
        let main = self.stacks.last().and_then(|it| it.threads.first());
        Placed {
            rank: self.process.rank,
            pid: self.process.pid,
            asleep: main.and_then(|it| it.asleep),
            is_on_device: self.backend.is_some_and(Backend::is_on_device),
            position: self.position.clone(),
        }
    }

    fn backend_name(&self) -> &'static str {
        self.backend.map(Backend::name).unwrap_or_default()
    }

    /// Whether it has joined a process group, or is about to.
    fn has_joined(&self) -> bool {
        let is_inside = matches!(self.position, Position::Inside(_));
        self.unreadable().is_none() && (self.backend.is_some() || is_inside)
    }

    /// Why its stacks could not be read; `None`: they were.
    fn unreadable(&self) -> Option<&str> {
        let last = self.stacks.last()?;
        let mut main = last.threads.first().into_iter();
        let has_frames = main.any(|it| !it.python.is_empty() || !it.native.is_empty());
        let shows_nothing = !has_frames || self.position == Position::Unknown;
        (shows_nothing && !last.trouble.is_empty()).then_some(&last.trouble)
    }

    fn started(&self, looks: Vec<v1::Stacks>) -> v1::RankStarted {
        v1::RankStarted {
            pid: self.process.pid,
            start_ticks: self.process.start_ticks,
            rank: self.process.rank,
            world_size: self.process.world_size,
            seen_unix_ns: self.stacks.first().map_or(0, |it| it.at.0),
            looks,
            ..v1::RankStarted::default()
        }
    }

    /// Settings on which ranks must agree.
    fn settings(&self) -> Vec<(String, String)> {
        let environment = &self.process.environment;
        let mut found = vec![("init.rank".to_owned(), self.process.rank.to_string())];
        found.extend(self.process.world_size.map(|it| ("init.world_size".into(), it.to_string())));
        if let Some((address, port)) = meeting(self.process) {
            found.extend([
                ("init.address".into(), address.into()),
                ("init.port".into(), port.into()),
            ]);
        }
        found.extend(self.backend.map(|it| ("init.backend".into(), it.name().to_owned())));
        let shared = environment.iter().filter(|(name, _)| settings::must_agree(name));
        found.extend(shared.map(|(name, value)| (format!("env.{name}"), value.to_owned())));
        found
    }
}

/// The longest time for which a rank has been asleep while it joins the world.
fn longest_join(seen: &[Seen<'_>]) -> Option<Duration> {
    let joining = seen.iter().filter_map(|it| match &it.position {
        Position::Inside(call) if call.op == Op::InitProcessGroup => call.asleep,
        _ => None,
    });
    joining.max()
}

/// Where the ranks of a process meet: address and port.
fn meeting(process: &RankProcess) -> Option<(&str, &str)> {
    process.environment.get("MASTER_ADDR").zip(process.environment.get("MASTER_PORT"))
}

/// The backend whose threads a process has; `None`: it has joined no process group.
pub(super) fn backend_of(stacks: &Stacks) -> Option<&'static Backend> {
    stacks.threads.iter().find_map(|it| Backend::of_thread(&it.name))
}

/// Records of one process.
#[derive(Default)]
struct Records {
    process: u64,
    pid: u32,
    now: u64,
    tickets: u64,
    /// Its training step; 0: unknown.
    step: u32,
}

impl Records {
    fn record(&mut self, kind: RecordKind) -> v1::Record {
        let ticket = self.tickets;
        self.tickets += 1;
        v1::Record {
            process: self.process,
            ticket,
            mono_ns: self.now,
            kind: i32::from(kind.number()),
            step: self.step,
            ..v1::Record::default()
        }
    }

    fn setting(&mut self, name: &str, value: &str) -> Kind {
        let text = format!("{name}={value}");
        // Settings precede the call.
        Kind::Record(v1::Record { mono_ns: 0, text, ..self.record(RecordKind::Setting) })
    }

    /// The beginning of its training step.
    fn step(&mut self) -> Kind {
        // It precedes the call, at an unknown time.
        Kind::Record(v1::Record { mono_ns: 0, ..self.record(RecordKind::Step) })
    }

    /// The call that the process has been inside for this long, with the lines that lead to it.
    fn call(&mut self, call: &StackCall, group: u32, frames: &[Where], waited: u64) -> Vec<Kind> {
        let mut sites = sites(self.process, frames);
        let site = sites.last().map_or(0, |site| site.id);
        let partner = call.group.as_ref().and_then(|group| {
            let partner = group.partner?;
            let place = group.members.iter().position(|&member| member == partner)?;
            i32::try_from(place).ok()
        });
        let is_numbered =
            call.op.is_collective() || call.op.is_point_to_point() || call.op == Op::Unspecified;
        let record = v1::Record {
            mono_ns: self.now.saturating_sub(waited),
            thread: 1,
            group: if is_numbered { group } else { 0 },
            root: partner,
            // The first call that is known.
            seq: u64::from(is_numbered && group != 0),
            call: 1,
            site,
            op: i32::from(call.op.number()),
            flags: if call.hidden { u32::from(flags::HIDDEN) } else { 0 },
            tensors: 1,
            ..self.record(RecordKind::Issued)
        };
        let mut out: Vec<Kind> = Vec::new();
        read_guards(&mut sites, source_reader::sources_of(self.pid));
        out.extend(sites.into_iter().map(Kind::SiteDefined));
        out.push(Kind::ThreadDefined(v1::ThreadDefined {
            process: self.process,
            id: 1,
            tid: call.tid,
            name: String::new(),
        }));
        out.push(Kind::Record(record));
        out
    }
}

/// The groups other than that of all ranks that ranks are inside calls of.
fn groups(seen: &[Seen<'_>]) -> Vec<v1::CallGroup> {
    let mut groups: Vec<v1::CallGroup> = Vec::new();
    for it in seen {
        if let Position::Inside(StackCall { group: Some(group), op, .. }) = &it.position
            && group.name != WORLD
            && *op != Op::NewGroup
            && !groups.iter().any(|known| is_same_group(known, group))
        {
            groups.push(v1::CallGroup { partner: None, ..group.clone() });
        }
    }
    groups
}

fn is_same_group(a: &v1::CallGroup, b: &v1::CallGroup) -> bool {
    (&a.name, &a.members) == (&b.name, &b.members)
}

/// Number of the group of a call; 0: unknown.
fn group_of(call: &StackCall, groups: &[v1::CallGroup]) -> u32 {
    match &call.group {
        Some(group) if group.name == WORLD => WORLD_ID,
        Some(group) => {
            let known =
                groups.iter().zip(FIRST_GROUP..).find(|(known, _)| is_same_group(known, group));
            known.map_or(0, |(_, id)| id)
        }
        // The reducer and waits have no frame with a group: nearly always it is that of all ranks.
        None if call.hidden || call.op == Op::Unspecified => WORLD_ID,
        None => 0,
    }
}

/// The call sites that lead to a call, the outermost first: the user's lines, and those of installed packages
/// between them and the call.
fn sites(process: u64, frames: &[Where]) -> Vec<v1::SiteDefined> {
    let users = |frame: &&Where| place::is_users(&frame.file) && !frame.file.starts_with('<');
    let frames: Vec<&Where> = frames.iter().filter(users).take(MAX_SITES).collect();
    let outermost_first = frames.into_iter().rev().zip(1..);
    let sites = outermost_first.map(|(frame, id)| v1::SiteDefined {
        process,
        id,
        file: frame.file.clone(),
        line: frame.line,
        function: frame.function.clone(),
        caller: id - 1,
        library: frame.file.contains("-packages/"),
        ..v1::SiteDefined::default()
    });
    sites.collect()
}

/// Adds the tests in the source that decide whether the sites are reached.
fn read_guards(sites: &mut [v1::SiteDefined], folders: SourceFolders) {
    let mut sources = Sources::new(folders);
    sites.iter().for_each(|site| sources.request(site.clone()));
    let answers = sources.last_answers().into_iter().filter_map(|kind| match kind {
        Kind::SiteDefined(site) => Some((site.id, site.guards)),
        _ => None,
    });
    let mut guards: BTreeMap<u32, Vec<v1::Guard>> = answers.collect();
    for site in sites {
        site.guards = guards.remove(&site.id).unwrap_or_default();
    }
}
