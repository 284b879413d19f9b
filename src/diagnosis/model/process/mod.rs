//! One process: its threads, its progress and its end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::ProcessState;
use ddp_doctor_proto::report::{Exit, Timestamp, Where};

use crate::input::event::{
    Call, CallId, DeviceCalls, GroupInfo, Guard, NodeFailure, ProcessId, Stacks, StalledTransfer,
    Stated, ThreadId, Transfer,
};
use crate::input::settings;
use crate::model::ddp_models::{Accumulation, Models};
use crate::model::history::Turns;
use crate::model::ids::{GroupId, Target, World};
use crate::model::worlds::Init;

mod buckets;
mod calls;
mod ending;
mod memory;
mod optimizer;
mod pace;
mod recent;
mod repetition;
mod series;
mod thread;

pub use calls::Unawaited;
pub(super) use ending::ExitBegun;
pub use ending::{Announced, End, Ending, Exception};
pub use memory::{Count, Device, Gauge, Memory, Room, RoomKind};
pub(in crate::model) use optimizer::OptimizerSteps;
pub use pace::{Pace, Quantity, Spent};
pub use recent::Places;
pub use repetition::Repetition;
pub use series::{MAX_SHARED_SAMPLES, Sample, Series};
pub use thread::{Doing, Thread};

use recent::RecentCalls;

/// Maximum number of places kept per process.
const MAX_PLACES: usize = 4096;
/// Maximum number of settings kept per process.
const MAX_SETTINGS: usize = 1024;
/// Maximum number of enqueued calls kept per process, if their completion is not reported …
const MAX_QUEUED: usize = 128;
/// … and if it is: these are the calls under way.
const MAX_UNDER_WAY: usize = 1024;
/// Maximum number of stalled transfers kept per process.
const MAX_STALLED_TRANSFERS: usize = 256;

/// A process that joined a process group.
#[derive(Debug, Default)]
pub struct Process {
    /// Its id in the model.
    pub id: ProcessId,
    /// Global rank, if known.
    pub rank: Option<u32>,
    /// World size as known to the process.
    pub world_size: Option<u32>,
    /// Host name.
    pub host: Arc<str>,
    /// Process id on that host.
    pub pid: u32,
    /// What an engine calls it, if it has a name of its own.
    pub worker: Option<Arc<str>>,
    /// The failure of its node that ended it.
    pub node_failure: Option<Arc<NodeFailure>>,
    /// What its log states about the time in which others waited for it, oldest first; a limited number.
    pub stated: VecDeque<(Timestamp, Stated)>,
    /// Layer that captures its calls.
    pub layer: Arc<str>,
    /// The world it belongs to.
    pub world: World,
    /// Number of earlier starts of its rank, as counted by the launcher.
    pub restarts: u32,
    /// When it joined a process group.
    pub joined_at: Timestamp,
    /// State in the operating system.
    pub state: ProcessState,
    /// When that state last changed.
    pub state_at: Timestamp,
    /// Its end, if observed.
    pub end: Option<End>,
    /// From when on it was not observed; it may have ended at any time after.
    pub unwatched: Option<Timestamp>,
    /// How it ended while it was not observed, as far as known.
    pub later_exit: Exit,
    /// Up to when its records are known; `None`: all of them, or it is still followed.
    pub known_until: Option<Timestamp>,
    /// Its announcement that it exits.
    pub announced: Option<Announced>,
    /// Since when it has been exiting, and the thread that announced it, usually the main thread.
    pub leaving: Option<(Timestamp, ThreadId)>,
    /// Observed exceptions, oldest first; a limited number.
    pub exceptions: Vec<Exception>,
    /// Threads that issued calls.
    pub threads: BTreeMap<ThreadId, Box<Thread>>,
    /// Ids of threads in the operating system.
    pub(super) tids: BTreeMap<ThreadId, u32>,
    /// Recorded step, such as a training forward; 0: before the first.
    pub step: u64,
    /// The steps of its optimizer, to which recorded steps belong.
    pub optimizer: OptimizerSteps,
    /// When that step began.
    pub step_at: Timestamp,
    /// Its turns: steps that are to synchronize gradients.
    pub turns: Turns,
    /// Which of its training forwards synchronize gradients.
    pub accumulation: Accumulation,
    /// Repetitions of its calls, as long as it has no step.
    pub repetition: Repetition,
    /// Phases in progress, outermost first.
    pub phases: Vec<Phase>,
    /// Start and end of the phase that ended last.
    pub last_phase: Option<(Timestamp, Timestamp)>,
    /// Longest duration of a phase, by name.
    pub phase_lengths: BTreeMap<Arc<str>, Duration>,
    /// The latest call it issued.
    pub last_call: Option<Arc<Call>>,
    /// Lines of its latest collectives, oldest first, with their groups.
    pub recent_lines: VecDeque<(GroupId, Arc<Where>)>,
    /// Latest calls enqueued on streams of devices that are not known to be complete, oldest first.
    pub queued: VecDeque<Arc<Call>>,
    /// Those of them whose completion will be reported.
    pub followed: BTreeSet<CallId>,
    /// Some of `queued` were dropped because there were too many.
    pub queue_cut: bool,
    /// Stalled network transfers: progress of each, and since when it has not moved.
    pub standing: BTreeMap<(CallId, Transfer), (StalledTransfer, Timestamp)>,
    /// Time of the latest reported completion of a call.
    pub completed_at: Option<Timestamp>,
    /// The layer below has reported on its calls.
    pub has_lower_calls: bool,
    /// Time of its latest record.
    pub last_at: Timestamp,
    /// When it began to exit, unless it has issued another call since.
    pub(super) exit: Option<ExitBegun>,
    /// When the whole job was asked to end.
    pub(super) asked_to_end: Option<Timestamp>,
    /// When waits of its world timed out.
    pub(super) timeouts: VecDeque<Timestamp>,
    /// When its input was last exhausted, and where.
    pub input_ended: Option<InputEnd>,
    /// First step in which its input was exhausted, once the training had begun.
    pub input_ended_in_step: Option<u64>,
    /// Number of calls and longest wait at each place.
    pub places: Places,
    /// How the program reaches its places, if known.
    pub sites: BTreeMap<Arc<Where>, Site>,
    /// Calls that were never waited for, by the place that issued them.
    pub unawaited: BTreeMap<Arc<Where>, Unawaited>,
    /// Captured stacks, oldest first: the first capture since its latest record, and the latest
    /// two.
    pub stacks: Vec<Arc<Stacks>>,
    /// Its collectives over NCCL, according to the latest dump of PyTorch's Flight Recorder.
    pub device_calls: Option<Arc<DeviceCalls>>,
    /// Its memory.
    pub memory: Memory,
    /// Steps, time spent and scheduling.
    pub pace: Pace,
    /// Versions and settings that ranks may have to agree on, with their latest values.
    pub settings: BTreeMap<Arc<str>, Arc<str>>,
    /// Fingerprint of the settings that are compared between ranks.
    pub fingerprint: u64,
    /// When it last reported a new or changed setting.
    pub said_at: Timestamp,
    /// When it reported which GPU it exchanges data from.
    pub gpu_at: Option<Timestamp>,
    /// Its latest attempt to join the world.
    pub init: Option<Init>,
    /// Largest element count of the program's own calls other than barrier, broadcast and scatter;
    /// `u64::MAX` if one is unknown.
    pub largest_own: u64,
    /// Models whose gradients it averages with its peers.
    pub models: Models,
    /// Number of records received.
    pub records: u64,
    /// Number of records lost.
    pub lost: u64,
    /// Time of its latest record when the first loss was reported.
    pub lost_at: Timestamp,
    /// Number of groups it began to create and identified.
    pub groups_made: u64,
    /// It created groups without identifying them.
    pub made_unknown_groups: bool,
    /// Groups it is a member of, by the address of their [`GroupInfo`].
    pub(super) groups: BTreeMap<usize, (Arc<GroupInfo>, GroupId)>,
    /// Groups it joined before its rank was known, with their timeouts.
    pub(super) early_groups: Vec<(Arc<GroupInfo>, Option<Duration>)>,
    /// Recent calls whose completion or wait may still be reported.
    pub(super) calls: RecentCalls,
}

/// How a program reaches a place.
#[derive(Clone, Debug, Default)]
pub struct Site {
    /// The call that led there first.
    pub caller: Option<Arc<Where>>,
    /// Tests in the source that decide whether the program reaches the place, nearest first; `None`: the
    /// source is unknown.
    pub guards: Option<Arc<[Guard]>>,
    /// The source is still being read.
    pub reading: bool,
}

/// The end of an iterator over the input, or its last batch.
#[derive(Clone, Copy, Debug)]
pub struct InputEnd {
    /// Time of the end, or since then of the latest step that drew no further batch.
    pub at: Timestamp,
    /// Batches drawn until the latest turn, or all of them; `None`: unknown.
    pub batches: Option<u64>,
    /// The last batch was drawn. The iterator may not have been asked for another one: a loop that knows the number of
    /// batches does not.
    pub is_announced: bool,
    /// No step has drawn another batch since.
    pub is_latest: bool,
}

impl InputEnd {
    /// A step begins after this many batches.
    pub(super) fn step_begins(&mut self, batches: Option<u64>, at: Timestamp) {
        self.is_latest &= batches.is_some() && batches == self.batches;
        if self.is_latest {
            self.at = at;
        }
    }
}

/// A phase marked by the program.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Name given by the program.
    pub name: Arc<str>,
    /// When it began.
    pub since: Timestamp,
}

impl Process {
    /// Whether it is known from logs alone: calls that these do not state may have been made.
    pub fn is_from_text(&self) -> bool {
        &*self.layer == crate::model::TEXT_LAYER
    }

    /// Whether its calls are those that its stacks show: earlier ones are unknown.
    pub fn is_attached(&self) -> bool {
        &*self.layer == crate::model::STACK_LAYER
    }

    /// Up to when its waits are known: a log states how long they had lasted when they were given up.
    pub fn waits_known_until(&self, now: Timestamp) -> Timestamp {
        let until = self.unwatched.filter(|_| self.is_from_text());
        until.map_or(now, |it| it.min(now))
    }

    /// Whether it has ended, so that no further events follow.
    pub const fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether its own announcement is the only evidence of its end.
    pub const fn ended_by_its_own_word(&self) -> bool {
        self.end.is_some() && self.unwatched.is_some()
    }

    /// Whether the operating system has stopped it.
    pub fn is_stopped(&self) -> bool {
        self.end.is_none() && self.state == ProcessState::Stopped
    }

    /// Id in the operating system of the thread that trains, if it is known not to be the main thread: the main thread
    /// made no call but to join and to leave, and this one made the latest call of the program. If no thread made one,
    /// calls of the framework decide, such as those of DDP.
    pub fn training_tid(&self) -> Option<u32> {
        let latest = |counts: fn(&Thread) -> bool| {
            let makers = self.threads.iter().filter(|(_, thread)| counts(thread));
            let tids: Vec<(Timestamp, Option<u32>)> =
                makers.map(|(id, thread)| (thread.last_at, self.tids.get(id).copied())).collect();
            let is_main = |tid: Option<u32>| tid.is_none_or(|tid| tid == self.pid);
            let main = tids.iter().find(|(_, tid)| is_main(*tid));
            main.or_else(|| tids.iter().max_by_key(|(at, _)| at)).map(|(_, tid)| *tid)
        };
        // On GPUs, threads of autograd issue the buckets.
        let made = latest(|it| it.trains)
            .or_else(|| {
                latest(|it| it.last_call.as_ref().is_some_and(|it| it.hidden && !it.is_bucket()))
            })
            .or_else(|| latest(|it| it.last_call.as_ref().is_some_and(|it| it.is_bucket())));
        made.flatten().filter(|&tid| tid != self.pid)
    }

    pub(super) fn thread_defined(&mut self, thread: ThreadId, tid: u32) {
        /// More threads than programs have that make calls.
        const MAX_KEPT: usize = 1024;
        if self.tids.len() < MAX_KEPT {
            self.tids.insert(thread, tid);
        }
    }

    /// Groups that it is a member of.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.groups.values().map(|(_, id)| *id)
    }

    /// Whether it began to join the world and has not returned, or returned with an error.
    pub fn is_joining(&self) -> bool {
        let init = self.init.as_ref();
        init.is_some_and(|init| init.over.is_none() || self.init_failed().is_some())
    }

    /// Up to when its activity is known: `now`, its end, or the end of its records.
    pub fn seen_until(&self, now: Timestamp) -> Timestamp {
        let ended = self.end.map(|end| end.at);
        let limits = ended.into_iter().chain(self.known_until);
        limits.fold(now, Timestamp::min)
    }

    /// Counts a record of this time.
    pub(super) const fn count_record(&mut self, at: Timestamp) {
        self.records += 1;
        self.last_at = at;
    }

    pub(super) fn set(&mut self, name: Arc<str>, value: Arc<str>, at: Timestamp) {
        let known = self.settings.get(&name);
        if known == Some(&value) || (known.is_none() && self.settings.len() >= MAX_SETTINGS) {
            return;
        }
        for said in [known, Some(&value)].into_iter().flatten() {
            self.fingerprint ^= settings::fingerprint(&name, said).unwrap_or(0);
        }
        self.said_at = at;
        if &*name == settings::GPU {
            self.gpu_at = Some(at);
        }
        self.settings.insert(name, value);
    }

    /// Whether the watchdog of its process groups aborts calls at their timeout, if their backend has one.
    pub(crate) fn has_watchdog(&self) -> bool {
        let value = |name| self.settings.get(name).map(|value| &**value);
        !settings::WATCHDOG.into_iter().any(|name| value(name) == Some("0"))
    }

    /// The training step in progress at a recent time; samples taken from outside arrive late. `None`: the
    /// program was over, and its memory released.
    pub(super) fn step_at_time(&self, at: Timestamp) -> Option<u64> {
        let is_over = self.announced.as_ref().is_some_and(|it| it.at <= at);
        let before = u64::from(at < self.step_at);
        let step = || match self.step {
            0 => self.repetition.number_at(at),
            step => self.optimizer.at(step.saturating_sub(before)),
        };
        (!is_over).then(step)
    }

    /// Whether a time is so long after the beginning of its last step that the loop has probably ended, or
    /// paused, in which it may have released memory.
    pub(super) fn is_past_step(&self, at: Timestamp) -> bool {
        /// Number of steps by whose length this is judged, at least and at most …
        const STEPS: std::ops::RangeInclusive<usize> = 4..=16;
        /// … and minimum time since the last one, in lengths of the longest of them.
        const LENGTHS: u32 = 3;
        let steps = &self.pace.steps;
        let latest = steps.iter().skip(steps.len().saturating_sub(*STEPS.end()));
        let lengths = latest.clone().zip(latest.skip(1)).map(|(from, to)| to.since(*from));
        let longest = lengths.max().filter(|_| steps.len() > *STEPS.start());
        longest.is_some_and(|longest| at.since(self.step_at) > longest * LENGTHS)
    }

    /// Its training step: that of its optimizer, if known.
    pub fn training_step(&self) -> u64 {
        self.optimizer.at(self.step)
    }

    /// The step to which its memory belongs now: without training steps, the repetition of its calls.
    pub fn memory_step(&self) -> u64 {
        if self.step == 0 { self.repetition.number() } else { self.training_step() }
    }

    /// Its first step begins, unless it had one.
    pub(super) fn begin_steps(&mut self) {
        if self.step == 0 && self.repetition.length().is_some() {
            self.memory.restart_steps();
        }
        self.repetition = Repetition::default();
    }

    pub(super) fn phase_began(&mut self, name: Arc<str>, at: Timestamp) {
        /// More than programs nest.
        const MAX_KEPT: usize = 64;
        if self.phases.len() < MAX_KEPT {
            self.phases.push(Phase { name, since: at });
        }
    }

    pub(super) fn phase_ended(&mut self, name: &Arc<str>, at: Timestamp) {
        /// More names than programs use.
        const MAX_KEPT: usize = 256;
        let Some(i) = self.phases.iter().rposition(|open| open.name == *name) else { return };
        let since = self.phases.remove(i).since;
        self.last_phase = Some((since, at));
        self.pace.phase(since, at);
        let length = at.since(since);
        if self.phase_lengths.len() < MAX_KEPT || self.phase_lengths.contains_key(name) {
            let longest = self.phase_lengths.entry(Arc::clone(name)).or_default();
            *longest = length.max(*longest);
        }
    }

    /// The messages that its threads are inside, or wait for.
    pub(super) fn messages(&self) -> Vec<CallId> {
        let of = |thread: &Thread| match &thread.doing {
            Doing::Call(call) => Some(call.id),
            Doing::Wait(Some(Target::Message(_, post)), ..) => Some(post.call),
            _ => None,
        };
        self.threads.values().filter_map(|it| of(it)).collect()
    }

    /// Records were left out, with which all other threads left the calls that they were inside. Returns
    /// what they had waited for.
    pub(super) fn left_out(&mut self, inside: &[ThreadId], threads: &[ThreadId]) -> Vec<Target> {
        for &thread in threads {
            if !self.threads.contains_key(&thread) {
                // It may be one of the program, and make any call.
                let thread = self.thread(thread, self.last_at);
                (thread.of_the_program, thread.trains) = (true, true);
            }
        }
        let mut left = Vec::new();
        for (_, thread) in self.threads.iter_mut().filter(|(id, _)| !inside.contains(id)) {
            match std::mem::replace(&mut thread.doing, Doing::Nothing) {
                Doing::Wait(target, ..) => left.extend(target),
                Doing::Call(call) => left.extend(self.calls.get(call.id)),
                Doing::Nothing => {}
            }
            thread.issuing = None;
            thread.within = None;
        }
        self.queued.clear();
        self.followed.clear();
        self.standing.clear();
        self.phases.clear();
        self.turns.lost();
        self.accumulation.lost();
        left
    }

    /// Adds a capture of stacks, which says nothing about progress. Captures from before the latest
    /// record are dropped. One that failed replaces none that succeeded: the process is where it was seen until
    /// something else is seen.
    pub(super) fn stood(&mut self, stacks: Arc<Stacks>) {
        /// The first capture since the latest record, and the latest two.
        const MAX_KEPT: usize = 3;
        if self.exits_on_request() {
            return;
        }
        let last_at = self.last_at;
        self.stacks.retain(|older| older.at >= last_at);
        if stacks.threads.is_empty() && self.stacks.iter().any(|it| !it.threads.is_empty()) {
            return;
        }
        self.stacks.retain(|older| !older.threads.is_empty());
        // A capture that took long is reported late.
        let place = self.stacks.partition_point(|older| older.at <= stacks.at);
        self.stacks.insert(place, stacks);
        if self.stacks.len() > MAX_KEPT {
            self.stacks.remove(1);
        }
    }
}
