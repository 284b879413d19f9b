//! The engine: turns evidence into findings.
//!
//! A state machine without I/O, clock or threads. [`Engine::handle`] applies an event to the
//! [`model`]; [`Engine::poll_change`] evaluates the whole model. Between evaluations the engine
//! keeps only when each finding was first seen, when findings over time held, and short-lived caches:
//! the same evidence gives the same findings, whether it is live, from a journal or from a scenario file.
//!
//! ```text
//! event ─► model ─► situation ─────────────► findings/* ─► causal order ─► report
//!                    stalls, divergences      drafts
//!                    waits, cycles            with certificates
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ddp_doctor_proto::report::{
    Confidence, DeviceActivity, Effect, Evidence, Exit, Finding, Job, Rank, RankActivity,
    RankDevice, RankState, Report, Role, Severity, Timestamp, Tool, Verdict, WaitingIn, Where,
};
use ddp_doctor_proto::vocabulary::NCCL_LAYER;
use ddp_doctor_proto::{NoteKind, Op, catalogue};

pub mod capture;
pub mod causal_order;
mod common_root;
mod config;
pub mod delays;
mod dump_requests;
mod episodes;
pub mod findings;
pub mod guards;
pub mod input;
mod known_causes;
pub mod model;
pub mod proof;
mod restarts;
mod retained;
pub mod situation;
pub mod source;
pub mod stacks;
#[cfg(test)]
pub(crate) mod testing;
pub mod timing;
pub mod trends;
pub mod waits;
pub mod words;

pub use config::Config;
pub use input::event::{self, Event};

use capture::CaptureRequests;
use dump_requests::DumpRequests;
use episodes::Episodes;
use event::{Call, ProcessId};
use findings::{Draft, Key, Rule};
use input::roster::Roster;
use model::{Attempt, Attempts, Doing, Ending, Gpu, Model, Process, Target};
use retained::Retained;
use situation::{LostTime, Situation};

/// The engine's state.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    rules: &'static [Rule],
    /// Determines the members of communicators before the model receives their events.
    roster: Roster,
    model: Model,
    now: Timestamp,
    dirty: bool,
    /// When each current finding was first seen.
    first_seen: BTreeMap<(Attempt, Key), Timestamp>,
    /// When findings over time held.
    episodes: Episodes,
    findings: Vec<Finding>,
    /// Number of them that concern the last attempt; they come first.
    current: usize,
    /// Rank states as of the last evaluation.
    ranks: Vec<Rank>,
    timeout: Option<Timestamp>,
    /// Size of what the last evaluation examined.
    cost: u64,
    /// Cached analysis of stragglers.
    late: delays::lateness::Review,
    /// Cached analysis of the duration of collectives.
    communication: delays::communication::Review,
    /// Withdrawn findings, one of which may be the reason for ending the job.
    retained: Retained,
    /// Stack captures requested so far, and those to request next.
    asked: CaptureRequests,
    wanted: Vec<ProcessId>,
    /// Dumps of PyTorch's Flight Recorder requested so far, and those to request next.
    asked_for_dumps: DumpRequests,
    wanted_dumps: Vec<ProcessId>,
}

impl Engine {
    /// An engine without evidence.
    pub fn new(config: Config) -> Self {
        Self::with_rules(config, findings::ALL)
    }

    /// An engine without evidence that applies these rules instead of [`findings::ALL`], for tests of a rule. Rules
    /// of one code are side by side. This may change in any version.
    pub fn with_rules(config: Config, rules: &'static [Rule]) -> Self {
        Self {
            roster: Roster::default(),
            model: Model::new(config.timing),
            config,
            rules,
            now: Timestamp::default(),
            dirty: false,
            first_seen: BTreeMap::new(),
            episodes: Episodes::default(),
            findings: Vec::new(),
            current: 0,
            ranks: Vec::new(),
            timeout: None,
            cost: 0,
            late: delays::lateness::Review::default(),
            communication: delays::communication::Review::default(),
            retained: Retained::default(),
            asked: CaptureRequests::default(),
            wanted: Vec::new(),
            asked_for_dumps: DumpRequests::default(),
            wanted_dumps: Vec::new(),
        }
    }

    /// Applies one event. Findings do not change before [`Engine::poll_change`].
    pub fn handle(&mut self, event: Event, now: Timestamp) {
        self.handle_timeout(now);
        if self.roster.ignores(&event) {
            self.model.apply(event);
            return;
        }
        let mut understood = Vec::new();
        self.roster.take(event, self.now, &mut understood);
        self.apply(understood);
    }

    fn apply(&mut self, events: Vec<Event>) {
        for mistaken in self.roster.take_mistaken() {
            self.model.forget(&mistaken);
        }
        for event in events {
            self.model.apply(event);
        }
    }

    /// Advances the time of the engine.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        self.dirty = true;
    }

    /// When to call [`Engine::handle_timeout`] if no event arrives earlier.
    pub const fn poll_timeout(&self) -> Option<Timestamp> {
        self.timeout
    }

    /// Evaluates the model; returns whether findings or rank states have changed since the last
    /// evaluation. Call it after a batch of events and after [`Engine::handle_timeout`].
    pub fn poll_change(&mut self) -> bool {
        if !std::mem::take(&mut self.dirty) {
            return false;
        }
        // Time stops with the job: the last diagnosis depends on the evidence alone.
        let now = self.model.ended.map_or(self.now, |at| self.now.min(at));
        self.now = now;
        let mut understood = Vec::new();
        self.roster.release(now, &mut understood);
        self.apply(understood);
        self.model.recognize_interrupt();
        let losses = LostTime {
            communication: self.communication.look(&self.model, now).clone(),
            straggler: self.late.look(&self.model, now).cloned(),
        };
        let situation = Situation::new(&self.model, &self.config, now, losses);
        self.cost = self.model.processes.values().count() as u64 + situation.waits.size();
        let mut drafts = findings::detect(self.rules, &situation);
        self.episodes.update(&situation, &mut drafts);
        let judged = causal_order::judge(&situation, drafts);
        let next = next_look(&situation).into_iter().chain(self.roster.next_release());
        self.timeout = next.min().filter(|_| self.model.ended.is_none());
        self.wanted = self.asked.wanted(&situation);
        let attempts = &situation.attempts;
        self.current = judged.iter().filter(|draft| !attempts.is_over(draft.attempt)).count();
        let activities = findings::stalls::idle::activities(&situation);
        let ranks = self.rank_states(attempts, activities);
        let mut findings = conclude(&situation, judged, &mut self.first_seen);
        self.wanted_dumps = self.asked_for_dumps.wanted(&situation, &findings);
        self.retained.note(&self.findings, &findings);
        let reason = self.model.kill_reason.as_ref();
        if reason.is_some_and(|it| self.retained.restore_reason(it, &mut findings)) {
            self.current += 1;
        }
        let changed = !same_findings(&findings, &self.findings) || !same_ranks(&ranks, &self.ranks);
        self.findings = findings;
        self.ranks = ranks;
        changed
    }

    /// Processes whose stacks to capture, as of the last evaluation. Each is listed once, and again
    /// after a pause. Pass the stacks in as [`Event::Stacks`]; without them fewer findings are
    /// possible.
    pub fn poll_capture(&mut self) -> Vec<ProcessId> {
        std::mem::take(&mut self.wanted)
    }

    /// Processes whose Flight Recorders to ask for a dump, as of the last evaluation, under the same conditions. Pass what
    /// dumps show in as [`Event::DeviceCalls`].
    pub fn poll_dumps(&mut self) -> Vec<ProcessId> {
        std::mem::take(&mut self.wanted_dumps)
    }

    /// Size of what the last evaluation examined, in processes and ranks that they wait for. The time of an evaluation is
    /// at least proportional to it.
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// The evidence that findings are derived from.
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// The report as of the last evaluation.
    pub fn report(&self) -> Report {
        let model = &self.model;
        let world_size = model.world_size();
        let mut layers: BTreeSet<String> =
            model.processes.values().map(|process| process.layer.to_string()).collect();
        // Calls of NCCL may be recorded in the black box of another layer.
        layers.extend(model.groups().map(|group| group.info.key.layer.clone()));
        if model.processes.values().any(|process| process.has_lower_calls) {
            layers.insert(NCCL_LAYER.into());
        }
        let mut backends: BTreeSet<String> =
            model.groups().map(|group| group.info.backend.to_string()).collect();
        backends.remove("");
        Report {
            schema: ddp_doctor_proto::report::SCHEMA.into(),
            schema_version: ddp_doctor_proto::report::SCHEMA_VERSION.into(),
            tool: Tool::this(),
            job: Job {
                id: model.job.clone(),
                attempt: model.attempt,
                world_size,
                nodes: model.nodes(),
                backends: backends.into_iter().collect(),
                started_at: model.started.filter(|_| !self.config.provenance.is_attached()),
                ended_at: model.ended,
            },
            verdict: self.verdict(),
            evidence: Evidence {
                ranks_expected: world_size,
                ranks_reporting: model.ranks.len() as u32,
                missing_ranks: model.unseen(),
                layers: layers.into_iter().collect(),
                records: model.processes.values().map(|process| process.records).sum(),
                records_lost: (model.processes.values())
                    .fold(0, |sum: u64, process| sum.saturating_add(process.lost)),
                clock_uncertainty_ms: model.clock_uncertainty().as_secs_f64() * 1e3,
            },
            findings: self.findings.clone(),
            ranks: self.ranks.clone(),
        }
    }

    /// Verdict on the job, from the leading finding of the last attempt.
    pub fn verdict(&self) -> Verdict {
        let model = &self.model;
        // Nothing was seen of a job that is over, or that has evidence which cannot be read.
        let is_unreadable = || model.notes.iter().any(|note| note.kind == NoteKind::Unreadable);
        // Nor were ranks that had not joined their world seen at work.
        let has_begun = |process: &Process| {
            let joins = process.last_call.as_ref().is_some_and(|it| it.op == Op::InitProcessGroup);
            !joins || !process.is_inside_a_call()
        };
        let is_blind = model.over().is_some() && !model.processes.values().any(has_begun)
            || model.processes.is_empty() && is_unreadable();
        // The job failed, and nothing says why: after a restart, or because a rank ended in an unknown way.
        let is_unknown = || {
            let mut ends = model.processes.values().filter_map(|process| process.end);
            ends.any(|end| end.exit == Exit::default())
        };
        let failed_later =
            |exit: Exit| exit.signal.is_some() || exit.code.is_some_and(|it| it != 0);
        let mut later = model.processes.values().map(|process| process.later_exit);
        let is_unexplained = later.any(failed_later)
            || model.has_failed && (self.current < self.findings.len() || is_unknown());
        match self.verdict_of_findings() {
            Verdict::Healthy if is_blind || is_unexplained => Verdict::Insufficient,
            verdict => verdict,
        }
    }

    /// The verdict by the findings alone, at a cost that does not depend on the number of processes.
    pub fn verdict_of_findings(&self) -> Verdict {
        verdict_of(self.findings.get(..self.current).unwrap_or_default())
    }

    fn rank_states(
        &self,
        attempts: &Attempts,
        mut activities: BTreeMap<u32, RankActivity>,
    ) -> Vec<Rank> {
        let mut ranks = self.not_joined(attempts);
        let replaced: BTreeSet<u32> = ranks.iter().map(|rank| rank.rank).collect();
        let joined = self.model.ranks.keys().filter(|it| !replaced.contains(it));
        ranks.extend(joined.filter_map(|&rank| {
            let process = self.model.process_of(rank)?;
            let activity = activities.remove(&rank);
            let state = self.rank_state(rank, process, attempts.of_process(process).index);
            Some(Rank { activity, ..state })
        }));
        ranks.sort_by_key(|rank| rank.rank);
        ranks
    }

    /// Ranks whose newest process has not joined a process group.
    fn not_joined(&self, attempts: &Attempts) -> Vec<Rank> {
        let model = &self.model;
        let started = model.started_ranks.values();
        let ranks: BTreeSet<u32> = started.map(|started| started.rank).collect();
        let started = ranks.into_iter().filter_map(|rank| {
            let newest = model.not_joined(rank).into_iter().next()?;
            let Some(joined) = model.process_of(rank) else { return Some((newest, 0)) };
            // Only after a restart: a helper may declare the rank of a process that has ended.
            let earlier = attempts.of_process(joined);
            let is_restart =
                attempts.is_over(earlier) && joined.end.is_some_and(|end| end.at <= newest.seen);
            is_restart.then(|| (newest, attempts.last(earlier)))
        });
        started
            .map(|(started, attempt)| Rank {
                rank: started.rank,
                attempt,
                host: started.host.to_string(),
                pid: started.pid,
                state: match started.end {
                    Some((_, exit)) if exit.code == Some(0) => RankState::Exited,
                    Some(_) => RankState::Dead,
                    None => RankState::Running,
                },
                exit: started.end.map(|(_, exit)| exit).unwrap_or_default(),
                ..Rank::default()
            })
            .collect()
    }

    fn rank_state(&self, rank: u32, process: &Process, attempt: u32) -> Rank {
        let silent = self.model.silent_since(process).is_some();
        let waiting_in =
            if process.has_ended() || silent { None } else { self.waiting_in(rank, process) };
        let state = match process.ending() {
            Ending::InOrder => RankState::Exited,
            _ if process.has_ended() => RankState::Dead,
            _ if process.later_exit.code == Some(0) => RankState::Exited,
            _ if process.later_exit != Exit::default() => RankState::Dead,
            _ if silent => RankState::Unknown,
            _ if waiting_in.is_some() => RankState::Waiting,
            _ if process.unwatched.is_some() => RankState::Unknown,
            _ if process.is_stopped() => RankState::Stopped,
            _ => RankState::Running,
        };
        let gpu = self.model.gpus.used_by(process);
        let used = gpu.filter(|_| !process.has_ended());
        Rank {
            rank,
            attempt,
            host: process.host.to_string(),
            pid: process.pid,
            state,
            exit: process.end.map_or(process.later_exit, |end| end.exit),
            step: process.training_step(),
            place: self.place_of(process),
            blocked_on: stacks::blocked_on(&self.model, process),
            waiting_in,
            activity: None,
            device: gpu.map(|gpu| RankDevice {
                activity: used.map_or(DeviceActivity::Unknown, Gpu::activity),
                ..gpu.reported(process.end.map(|end| end.at))
            }),
            ports: {
                let has_peers = self.model.nodes() > 1;
                let gpu = gpu.map(|gpu| &*gpu.identity.uuid);
                self.model.ports.faulty(&process.host, gpu, has_peers)
            },
            memory: process.memory.reported(used.and_then(Gpu::free_memory)),
        }
    }

    /// The line of a rank's last call. Without records, that of its stacks.
    fn place_of(&self, process: &Process) -> Option<Where> {
        let of_call = process.last_call.as_ref().and_then(|call| call.place.as_deref());
        let of_stacks =
            || process.stacks.last().filter(|_| self.config.provenance.is_attached())?.place();
        of_call.or_else(of_stacks).cloned()
    }

    /// The call or wait that a rank has been in for at least `visible_wait`: the longest of all
    /// threads.
    fn waiting_in(&self, rank: u32, process: &Process) -> Option<WaitingIn> {
        let timing = &self.model.timing;
        let waits = process.threads.values().filter_map(|thread| {
            let (call, since) = match (thread.inside(self.now, timing), &thread.doing) {
                (Some(call), _) => (Some(call.clone()), call.at),
                (None, Doing::Wait(target, since, _)) => {
                    let call = target.and_then(|target| self.call_at(target, rank));
                    (call.or_else(|| thread.last_call.clone()), *since)
                }
                (None, _) => {
                    // DDP's waits for its own calls are not recorded: a call that peers have not
                    // joined is one.
                    let last = thread.last_call.as_ref().filter(|call| call.hidden)?;
                    let Some(Target::Join(group, seq)) = process.target(last.id) else {
                        return None;
                    };
                    self.model.group(group).join(seq)?.calls.get(&rank)?;
                    (Some(last.clone()), last.at)
                }
            };
            let waited = process.waits_known_until(self.now).since(since);
            (waited >= timing.visible_wait).then(|| WaitingIn {
                group: call
                    .as_ref()
                    .and_then(|call| call.group.as_ref())
                    .map(|group| group.key.name.clone())
                    .unwrap_or_default(),
                seq: call.as_ref().and_then(|call| call.stated_seq()),
                op: call.map_or_else(|| "wait".to_owned(), |call| call.op.to_string()),
                waited_ms: Some(waited.as_millis() as u64),
            })
        });
        waits.max_by_key(|waiting| waiting.waited_ms)
    }

    /// The call of a rank that is at this place, if it is still known.
    fn call_at(&self, target: Target, rank: u32) -> Option<Arc<Call>> {
        let group = self.model.group(target.group());
        match target {
            Target::Message(_, post) => Some(group.traffic.unmatched(&post)?.joined.call),
            Target::Join(_, seq) => {
                Some(Arc::clone(&group.open_or_entered(seq)?.calls.get(&rank)?.call))
            }
        }
    }
}

/// Verdict on a job, from the leading one of its findings.
pub fn verdict_of(findings: &[Finding]) -> Verdict {
    // DD901 may also concern a process that is not a rank. It is an error if it leaves the verdict open.
    let is_gap = |finding: &Finding| {
        catalogue::is_gap(&finding.code)
            && (finding.code != catalogue::DD901.code || finding.severity >= Severity::Error)
    };
    let leading = findings
        .iter()
        .find(|finding| finding.role == Role::Initiating && finding.effect != Effect::None);
    match leading.map_or(Effect::None, |finding| finding.effect) {
        Effect::Blocks => Verdict::Hang,
        Effect::Crashes => Verdict::Crash,
        Effect::Corrupts => Verdict::Wrong,
        Effect::Slows => Verdict::Slow,
        Effect::None if findings.iter().any(is_gap) => Verdict::Insufficient,
        Effect::None => Verdict::Healthy,
    }
}

/// Turns drafts into findings with the time each was first seen. Forgets findings that no longer
/// hold.
fn conclude(
    situation: &Situation<'_>,
    judged: Vec<Draft>,
    first_seen: &mut BTreeMap<(Attempt, Key), Timestamp>,
) -> Vec<Finding> {
    let keys: Vec<(Attempt, Key)> =
        judged.iter().map(|draft| (draft.attempt, draft.key.clone())).collect();
    first_seen.retain(|key, _| keys.contains(key));
    let findings = judged.into_iter().zip(&keys).map(|(draft, key)| {
        let detected_at = *first_seen.entry(key.clone()).or_insert(situation.now);
        let cause = draft
            .caused_by
            .clone()
            .map(|cause| (draft.attempt, cause))
            .and_then(|cause| keys.iter().position(|key| *key == cause));
        let caused_by = cause.into_iter().collect();
        let drafted = findings::finding(draft, situation, detected_at);
        let finding =
            if situation.config.provenance.is_attached() { unproved(drafted) } else { drafted };
        Finding { caused_by, ..finding }
    });
    findings.collect()
}

/// A finding from evidence that proves nothing.
fn unproved(mut finding: Finding) -> Finding {
    finding.certificate = None;
    finding.confidence = finding.confidence.min(Confidence::Supported);
    finding.ranks.root_confidence = finding.ranks.root_confidence.min(Confidence::Supported);
    finding
}

/// When the passage of time alone may change the findings.
fn next_look(situation: &Situation<'_>) -> Option<Timestamp> {
    let model = situation.model;
    let any_busy = model.processes.values().any(|process| {
        let mut threads = process.threads.values();
        let is_busy = threads.any(|thread| {
            let hidden = thread.last_call.as_ref().is_some_and(|call| call.hidden);
            thread.is_under_way() || hidden
        });
        !process.has_ended() && (is_busy || capture::may_stand_unseen(model, process))
    });
    let busy = any_busy || situation.settled().next().is_some();
    let again = busy.then(|| situation.now.plus(model.timing.reexamination_interval));
    let overdue = situation.stalls.iter().map(|stall| situation.overdue_at(stall));
    let inside = situation.inside.iter().map(|inside| inside.overdue_at);
    let faults = model.processes.values().filter_map(|it| situation.end_is_fault_at(it));
    let dumps = dump_requests::due_at(situation);
    let due = overdue.chain(inside).chain(faults).chain(dumps).filter(|&at| at > situation.now);
    due.chain(again).min()
}

/// Whether the findings are equal except for elapsed times.
fn same_findings(a: &[Finding], b: &[Finding]) -> bool {
    let timeless = |findings: &[Finding]| {
        let mut findings = findings.to_vec();
        for call in findings.iter_mut().flat_map(|finding| &mut finding.per_rank) {
            call.waited_ms = None;
        }
        findings
    };
    timeless(a) == timeless(b)
}

/// Whether the rank states are equal except for elapsed times and measurements.
fn same_ranks(a: &[Rank], b: &[Rank]) -> bool {
    let timeless = |rank: &Rank| {
        let mut rank = rank.clone();
        if let Some(waiting) = &mut rank.waiting_in {
            waiting.waited_ms = None;
        }
        rank.memory = None;
        rank.device = rank.device.map(|it| RankDevice { activity: DeviceActivity::Unknown, ..it });
        rank
    };
    let same = |(a, b): (&Rank, &Rank)| a == b || timeless(a) == timeless(b);
    a.len() == b.len() && a.iter().zip(b).all(same)
}
