//! One process: its threads, its progress and its end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::{Exit, Timestamp, Where};
use ddp_doctor_proto::{ExceptionKind, Op, ProcessState};

use super::accumulation::Accumulation;
use super::arrivals::{Averaged, Buckets};
use super::channel::Post;
use super::group::GroupId;
use super::history::Turns;
use super::init::Init;
use super::memory::Memory;
use super::pace::Pace;
use super::parameters::Models;
use crate::event::{
    Call, CallId, GroupInfo, Guard, OomKills, ProcessId, Stacks, Standing, ThreadId, Transfer,
};
use crate::settings;
use crate::timing::Timing;

/// Maximum number of places kept per process.
const KEPT_PLACES: usize = 4096;
/// Maximum number of settings kept per process.
const KEPT_SETTINGS: usize = 1024;
/// Maximum number of enqueued calls kept per process, if their completion is not reported …
const KEPT_QUEUED: usize = 128;
/// … and if it is: these are the calls under way.
const KEPT_UNDER_WAY: usize = 1024;
/// Maximum number of stalled transfers kept per process.
const KEPT_STANDING: usize = 256;
/// Maximum number of calls per process whose later waits can be assigned.
const KEPT_CALLS: usize = 4096;

/// A process that joined a process group.
#[derive(Debug)]
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
    /// Layer that captures its calls.
    pub layer: Arc<str>,
    /// The world it belongs to.
    pub world: World,
    /// State in the operating system.
    pub state: ProcessState,
    /// When that state last changed.
    pub state_at: Timestamp,
    /// Its end, if observed.
    pub end: Option<End>,
    /// From when on it was not observed; it may have ended at any time after.
    pub unwatched: Option<Timestamp>,
    /// Up to when its records are known; `None`: all of them, or it is still followed.
    pub known_until: Option<Timestamp>,
    /// Its announcement that it exits.
    pub announced: Option<Announced>,
    /// Since when it has been exiting, and the thread that announced it, usually the main thread.
    pub leaving: Option<(Timestamp, ThreadId)>,
    /// Observed exceptions, oldest first; a limited number.
    pub exceptions: Vec<Exception>,
    /// Threads that issued calls.
    pub threads: BTreeMap<ThreadId, Thread>,
    /// Training step; 0: before the first.
    pub step: u64,
    /// When that step began.
    pub step_at: Timestamp,
    /// Its turns: steps that are to synchronise gradients.
    pub turns: Turns,
    /// Which of its training forwards synchronise gradients.
    pub accumulation: Accumulation,
    /// Phases in progress, outermost first.
    pub phases: Vec<Phase>,
    /// Start and end of the phase that ended last.
    pub last_phase: Option<(Timestamp, Timestamp)>,
    /// Longest duration of a phase, by name.
    pub phase_lengths: BTreeMap<Arc<str>, Duration>,
    /// The latest call it issued.
    pub last_call: Option<Arc<Call>>,
    /// Latest calls enqueued on streams of devices that are not known to be complete, oldest first.
    pub queued: VecDeque<Arc<Call>>,
    /// Those of them whose completion will be reported.
    pub followed: BTreeSet<CallId>,
    /// Some of `queued` were dropped because there were too many.
    pub queue_cut: bool,
    /// Stalled network transfers: progress of each, and since when it has not moved.
    pub standing: BTreeMap<(CallId, Transfer), (Standing, Timestamp)>,
    /// Time of the latest reported completion of a call.
    pub completed_at: Option<Timestamp>,
    /// The layer below has reported on its calls.
    pub has_beneath: bool,
    /// Time of its latest record.
    pub last_at: Timestamp,
    /// When its input was last exhausted, and where.
    pub input_ended: Option<(Timestamp, Option<Arc<Where>>)>,
    /// First step in which its input was exhausted, once the training had begun.
    pub input_ended_in_step: Option<u64>,
    /// Number of calls issued at each place.
    pub places: BTreeMap<Arc<Where>, u64>,
    /// How the program reaches its places, if known.
    pub sites: BTreeMap<Arc<Where>, Site>,
    /// Longest wait at each place in nanoseconds, in calls that all peers joined: at least until
    /// the last of them arrived, and to the end if that was recorded.
    pub waits: BTreeMap<Arc<Where>, u64>,
    /// Calls that were never waited for, by the place that issued them.
    pub unawaited: BTreeMap<Arc<Where>, Unawaited>,
    /// Captured stacks, oldest first: the first capture since its latest record, and the latest
    /// two.
    pub stacks: Vec<Arc<Stacks>>,
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
    calls: BTreeMap<CallId, Target>,
}

/// How a program reaches a place.
#[derive(Clone, Debug, Default)]
pub struct Site {
    /// The call that led there first.
    pub caller: Option<Arc<Where>>,
    /// Tests in the source that decide whether the program reaches the place, nearest first.
    pub guards: Option<Arc<[Guard]>>,
    /// The source is still being read.
    pub reading: bool,
}

/// A set of processes that can meet in groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct World {
    /// Distinguishes it from other worlds of the job; may be empty.
    pub name: Arc<str>,
    /// Number of earlier worlds of that name, that is, of restarts.
    pub generation: u32,
}

/// A phase marked by the program.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Name given by the program.
    pub name: Arc<str>,
    /// When it began.
    pub since: Timestamp,
}

/// The end of a process.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Time of the end.
    pub at: Timestamp,
    /// Exit status, as far as known.
    pub exit: Exit,
    /// Processes that the kernel killed for lack of memory at about that time.
    pub oom_kills: OomKills,
}

/// The announcement of a process that it exits.
#[derive(Clone, Debug)]
pub struct Announced {
    /// Exit status.
    pub code: i32,
    /// "main returned", "os._exit", …
    pub how: Arc<str>,
    /// Time of the announcement.
    pub at: Timestamp,
}

/// An observed exception.
#[derive(Clone, Debug)]
pub struct Exception {
    /// Where it was observed.
    pub kind: ExceptionKind,
    /// "Type: message".
    pub text: Arc<str>,
    /// Line in the user's program.
    pub place: Option<Arc<Where>>,
    /// Time of the observation.
    pub at: Timestamp,
    /// Id of the latest call issued before it; 0: none.
    pub after_calls: u64,
}

/// Calls of one place that were never waited for.
#[derive(Clone, Debug)]
pub struct Unawaited {
    /// Operation.
    pub op: Op,
    /// Group.
    pub group: Arc<GroupInfo>,
    /// When each of the first few became known.
    pub at: Vec<Timestamp>,
    /// Number of such calls.
    pub count: u64,
}

impl Exception {
    /// Whether it requests the process to exit, rather than being a failure.
    #[must_use]
    pub fn asks_to_end(&self) -> bool {
        ["SystemExit", "KeyboardInterrupt"].iter().any(|name| {
            self.text
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        })
    }
}

/// A thread that issued calls.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Its current activity.
    pub doing: Doing,
    /// Asynchronous call that has not returned.
    issuing: Option<Arc<Call>>,
    /// The latest call it issued.
    pub last_call: Option<Arc<Call>>,
    /// Time of its latest record.
    pub last_at: Timestamp,
    /// It issued a call or wait of the program itself. Threads of the backward pass issue only
    /// DDP's calls.
    pub of_the_program: bool,
    /// Target, start and end of its latest wait, if an exception ended it and no call or wait
    /// followed.
    pub failed: Option<(Target, Timestamp, Timestamp)>,
    /// Function of the layer below that it is inside, and since when.
    pub within: Option<(Arc<str>, Timestamp)>,
    /// DDP's buckets issued since it last waited for buckets.
    sent: Buckets,
    last_sent: Option<(CallId, Timestamp)>,
}

impl Thread {
    /// Whether it is inside a call or a wait.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        !matches!(self.doing, Doing::Nothing) || self.issuing.is_some()
    }

    /// The asynchronous call that counts as blocked, because it has not returned for `blocked_issue`.
    #[must_use]
    pub fn held_in(&self, now: Timestamp, timing: &Timing) -> Option<&Arc<Call>> {
        let held = self.issuing.as_ref();
        held.filter(|call| call.at.plus(timing.blocked_issue) <= now)
    }

    /// Since when it has been inside a function of the layer below, if for at least `long`.
    #[must_use]
    pub fn within_since(&self, now: Timestamp, long: Duration) -> Option<Timestamp> {
        let (_, since) = self.within.as_ref()?;
        (since.plus(long) <= now).then_some(*since)
    }

    /// The call that it is inside. An asynchronous call counts once it is blocked.
    #[must_use]
    pub fn inside(&self, now: Timestamp, timing: &Timing) -> Option<&Arc<Call>> {
        match &self.doing {
            Doing::Call(call) => Some(call),
            Doing::Nothing => self.held_in(now, timing),
            Doing::Wait(..) => None,
        }
    }
}

/// The place of a call that a thread may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The calls of a group with one sequence number.
    Join(GroupId, u64),
    /// A call in the point-to-point traffic of a group.
    Message(GroupId, Post),
}

impl Target {
    /// The group of the call.
    #[must_use]
    pub const fn group(self) -> GroupId {
        match self {
            Self::Join(group, _) | Self::Message(group, _) => group,
        }
    }
}

/// Current activity of a thread.
#[derive(Clone, Debug)]
pub enum Doing {
    /// None that is recorded: it runs the user's code.
    Nothing,
    /// A call that has not returned.
    Call(Arc<Call>),
    /// A wait, with its target (`None`: unknown), start and line.
    Wait(Option<Target>, Timestamp, Option<Arc<Where>>),
}

/// How a process ended, or is ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending<'a> {
    /// It is alive.
    None,
    /// By an uncaught exception.
    Raised(&'a str),
    /// By a signal, or with a non-zero status without an exception.
    Died(Exit),
    /// In order.
    InOrder,
}

impl Process {
    pub(super) fn new(
        id: ProcessId,
        host: Arc<str>,
        pid: u32,
        layer: Arc<str>,
        world: Arc<str>,
    ) -> Self {
        Self {
            id,
            rank: None,
            world_size: None,
            host,
            pid,
            layer,
            world: World {
                name: world,
                generation: 0,
            },
            state: ProcessState::Unspecified,
            state_at: Timestamp::default(),
            end: None,
            unwatched: None,
            known_until: None,
            announced: None,
            leaving: None,
            exceptions: Vec::new(),
            threads: BTreeMap::new(),
            step: 0,
            step_at: Timestamp::default(),
            turns: Turns::default(),
            accumulation: Accumulation::default(),
            phases: Vec::new(),
            last_phase: None,
            phase_lengths: BTreeMap::new(),
            last_call: None,
            queued: VecDeque::new(),
            followed: BTreeSet::new(),
            queue_cut: false,
            standing: BTreeMap::new(),
            completed_at: None,
            has_beneath: false,
            last_at: Timestamp::default(),
            input_ended: None,
            input_ended_in_step: None,
            places: BTreeMap::new(),
            sites: BTreeMap::new(),
            waits: BTreeMap::new(),
            unawaited: BTreeMap::new(),
            stacks: Vec::new(),
            memory: Memory::default(),
            pace: Pace::default(),
            settings: BTreeMap::new(),
            fingerprint: 0,
            said_at: Timestamp::default(),
            gpu_at: None,
            init: None,
            largest_own: 0,
            models: Models::default(),
            records: 0,
            lost: 0,
            lost_at: Timestamp::default(),
            groups_made: 0,
            made_unknown_groups: false,
            groups: BTreeMap::new(),
            early_groups: Vec::new(),
            calls: BTreeMap::new(),
        }
    }

    /// Whether it is known from logs alone: calls that these do not state may have been made.
    #[must_use]
    pub fn is_from_text(&self) -> bool {
        &*self.layer == super::TEXT_LAYER
    }

    /// Whether it has ended, so that no further events follow.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether its own announcement is the only evidence of its end.
    #[must_use]
    pub const fn ended_by_its_own_word(&self) -> bool {
        self.end.is_some() && self.unwatched.is_some()
    }

    /// Whether the operating system has stopped it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.end.is_none() && self.state == ProcessState::Stopped
    }

    /// How it ended, from its exit status and its announcement.
    #[must_use]
    pub fn ending(&self) -> Ending<'_> {
        let uncaught = self.uncaught();
        let Some(end) = self.end else {
            // An uncaught exception ends the rank, even while the interpreter is still shutting
            // down.
            return uncaught.map_or(Ending::None, |exception| Ending::Raised(&exception.text));
        };
        match (end.exit.code, end.exit.signal) {
            (Some(0), _) => Ending::InOrder,
            _ if self.aborted_on_its_way_out() => Ending::InOrder,
            _ => match uncaught {
                Some(exception) => Ending::Raised(&exception.text),
                None if end.exit.code.is_none()
                    && end.exit.signal.is_none()
                    && self.announced_in_order() =>
                {
                    Ending::InOrder
                }
                None => Ending::Died(end.exit),
            },
        }
    }

    /// Whether it aborted after its program had ended in order. Threads of PyTorch may abort while
    /// the interpreter shuts down.
    #[must_use]
    pub fn aborted_on_its_way_out(&self) -> bool {
        self.end
            .is_some_and(|end| end.exit.signal == Some(libc_signal::ABRT))
            && self.announced_in_order()
            && self.uncaught().is_none()
    }

    /// The uncaught exception.
    #[must_use]
    pub fn uncaught(&self) -> Option<&Exception> {
        self.exceptions
            .iter()
            .find(|exception| exception.kind == ExceptionKind::Uncaught)
    }

    /// The exception that was being handled when this call was issued, except requests to exit.
    #[must_use]
    pub fn in_flight_at(&self, call: &Call) -> Option<&Exception> {
        self.handled_at(call.at, call.id)
            .find(|exception| !exception.asks_to_end())
    }

    fn handled_at(&self, at: Timestamp, call: CallId) -> impl Iterator<Item = &Exception> {
        self.exceptions.iter().rev().filter(move |exception| {
            exception.kind == ExceptionKind::InFlight
                && exception.at <= at
                && exception.after_calls + 1 >= call.0
        })
    }

    /// The exception that diverted it before this call: one being handled, or an uncaught one.
    #[must_use]
    pub fn raised_before(&self, call: &Call) -> Option<&Exception> {
        let uncaught = self.uncaught().filter(|exception| exception.at <= call.at);
        self.in_flight_at(call).or(uncaught)
    }

    /// Whether it issued this call while exiting: after it had announced its exit, or while
    /// handling a request to exit.
    #[must_use]
    pub fn is_leaving_at(&self, call: &Call) -> bool {
        self.leaving
            .is_some_and(|(since, thread)| since <= call.at && thread == call.thread)
            || self
                .handled_at(call.at, call.id)
                .any(Exception::asks_to_end)
    }

    /// Whether it is leaving the program or a group, and no other thread communicates with other
    /// ranks.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        let goes_on = |since: Timestamp, thread: ThreadId| {
            let mut others = self.threads.iter().filter(|(id, _)| **id != thread);
            others.any(|(_, other)| other.last_at > since)
        };
        let destroys = self.threads.values().any(|thread| {
            matches!(&thread.doing, Doing::Call(call) if call.op == Op::DestroyProcessGroup)
        });
        destroys
            || self
                .leaving
                .is_some_and(|(since, thread)| !goes_on(since, thread))
            || self
                .last_call
                .as_ref()
                .is_some_and(|call| self.is_leaving_at(call) && self.is_inside_a_call())
    }

    /// Groups that it is a member of.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.groups.values().map(|(_, id)| *id)
    }

    /// Whether a thread is inside a call or a wait.
    #[must_use]
    pub fn is_inside_a_call(&self) -> bool {
        let mut threads = self.threads.values();
        threads.any(|thread| !matches!(thread.doing, Doing::Nothing))
    }

    /// The exception that ended its latest initialisation of the world.
    #[must_use]
    pub fn init_failed(&self) -> Option<&Exception> {
        let init = self.init.as_ref()?;
        self.exceptions.iter().find(|exception| {
            exception.kind == ExceptionKind::LeftCollective
                && exception.at >= init.call.at
                && exception.after_calls == init.call.id.0
                && init.over.is_none_or(|over| exception.at <= over)
        })
    }

    /// Whether it began to join the world and has not returned, or returned with an error.
    #[must_use]
    pub fn is_joining(&self) -> bool {
        let init = self.init.as_ref();
        init.is_some_and(|init| init.over.is_none() || self.init_failed().is_some())
    }

    /// Whether it exited with status 0 after a regular shutdown of the interpreter, including exit
    /// handlers.
    #[must_use]
    pub fn ended_through_the_interpreter(&self) -> bool {
        self.end.is_some_and(|end| end.exit.code == Some(0))
            && self
                .announced
                .as_ref()
                .is_some_and(|announced| &*announced.how != "os._exit")
    }

    fn announced_in_order(&self) -> bool {
        self.announced
            .as_ref()
            .is_some_and(|announced| announced.code == 0)
    }

    pub(super) fn site(
        &mut self,
        place: Arc<Where>,
        caller: Option<Arc<Where>>,
        guards: Arc<[Guard]>,
        reading: bool,
    ) {
        if self.sites.len() >= KEPT_PLACES && !self.sites.contains_key(&place) {
            return;
        }
        let site = self.sites.entry(place).or_default();
        // Keep the first caller: it issued the first call at this place.
        site.caller = site.caller.take().or(caller);
        site.reading = reading;
        if !guards.is_empty() {
            site.guards = Some(guards);
        }
    }

    pub(super) fn issued(&mut self, call: &Arc<Call>, target: Option<Target>) {
        self.records += 1;
        self.last_at = call.at;
        self.step = self.step.max(call.step);
        if call.op == Op::InitProcessGroup {
            let nth = self.init.as_ref().map_or(0, |init| init.nth + 1);
            self.init = Some(Init::begun(nth, call, &self.settings));
        } else if self.init.is_none() && self.last_call.is_none() {
            self.init = Init::of_communicator(call, self.rank, self.world_size, &self.settings);
        }
        let thread = self.thread(call.thread, call.at);
        thread.failed = None;
        thread.last_call = Some(Arc::clone(call));
        thread.of_the_program |= !call.hidden;
        if call.is_bucket() {
            thread.sent.calls += 1;
            thread.sent.bytes += call.bytes().unwrap_or(0);
            thread.last_sent = Some((call.id, call.at));
        }
        if !call.is_async {
            thread.doing = Doing::Call(Arc::clone(call));
        }
        thread.issuing = call.is_async.then(|| Arc::clone(call));
        self.last_call = Some(Arc::clone(call));
        let is_empty = matches!(call.op, Op::Barrier | Op::Broadcast | Op::Scatter);
        if !call.hidden && call.seq > 0 && !is_empty {
            // Only the first of several tensors is recorded.
            let numel = call.numel.filter(|_| call.tensors <= 1);
            self.largest_own = self.largest_own.max(numel.unwrap_or(u64::MAX));
        }
        self.queue(call);
        if let Some(place) = &call.place {
            if let Some(count) = self.places.get_mut(place) {
                *count += 1;
            } else if self.places.len() < KEPT_PLACES {
                self.places.insert(Arc::clone(place), 1);
            }
        }
        if let Some(target) = target {
            self.calls.insert(call.id, target);
            if self.calls.len() > KEPT_CALLS {
                self.calls.pop_first();
            }
        }
    }

    /// Appends a call to the queue, if it occupies a stream.
    fn queue(&mut self, call: &Arc<Call>) {
        if call.queued_on().is_some() {
            let kept = match self.followed.is_empty() {
                true => KEPT_QUEUED,
                false => KEPT_UNDER_WAY,
            };
            while self.queued.len() >= kept {
                let oldest = self.queued.pop_front();
                oldest.map(|call| self.followed.remove(&call.id));
                self.queue_cut = true;
            }
            self.queued.push_back(Arc::clone(call));
        }
    }

    /// Replaces a call by the same call with the contents that the layer below reported.
    pub(super) fn told_beneath(&mut self, call: &Arc<Call>, at: Timestamp) {
        self.records += 1;
        self.last_at = at;
        self.has_beneath = true;
        let replace = |known: &mut Arc<Call>| {
            if known.id == call.id {
                *known = Arc::clone(call);
            }
        };
        self.last_call.iter_mut().for_each(replace);
        if let Some(thread) = self.threads.get_mut(&call.thread) {
            thread.last_at = at;
            thread.last_call.iter_mut().for_each(replace);
            thread.issuing.iter_mut().for_each(replace);
            if let Doing::Call(known) = &mut thread.doing {
                replace(known);
            }
        }
        self.queue(call);
    }

    /// A thread entered a function of the layer below, or returned from it.
    pub(super) fn within(&mut self, thread: ThreadId, function: Option<Arc<str>>, at: Timestamp) {
        self.records += 1;
        self.last_at = at;
        self.has_beneath = true;
        self.thread(thread, at).within = function.map(|function| (function, at));
    }

    pub(super) fn returned(&mut self, thread: ThreadId, call: CallId, at: Timestamp) {
        self.records += 1;
        self.last_at = at;
        let thread = self.thread(thread, at);
        if matches!(&thread.doing, Doing::Call(inside) if inside.id == call) {
            thread.doing = Doing::Nothing;
        }
        thread.issuing.take_if(|it| it.id == call);
        if let Some(init) = self.init.as_mut().filter(|init| init.call.id == call) {
            init.over.get_or_insert(at);
        }
    }

    /// A transfer of a call has not moved since `at`, or moves again.
    pub(super) fn transfer(
        &mut self,
        call: CallId,
        transfer: Transfer,
        standing: Option<Standing>,
        at: Timestamp,
    ) {
        self.records += 1;
        let key = (call, transfer);
        match standing {
            // Beyond this number, further stalled transfers add no information.
            Some(standing) if self.standing.len() < KEPT_STANDING => {
                self.standing.insert(key, (standing, at));
            }
            Some(_) => {}
            None => drop(self.standing.remove(&key)),
        }
    }

    /// Up to when its activity is known: `now`, its end, or the end of its records.
    #[must_use]
    pub fn seen_until(&self, now: Timestamp) -> Timestamp {
        let ended = self.end.map(|end| end.at);
        let limits = ended.into_iter().chain(self.known_until);
        limits.fold(now, Timestamp::min)
    }

    /// Whether it is blocked in a call that was issued asynchronously, or was until it ended.
    #[must_use]
    pub fn is_held_in(&self, call: &Call, now: Timestamp, timing: &Timing) -> bool {
        let thread = self.threads.get(&call.thread);
        let held = thread.and_then(|it| it.held_in(self.seen_until(now), timing));
        held.is_some_and(|it| it.id == call.id)
    }

    /// Stalled transfers of a call, and since when each has not moved.
    pub fn standing_of(
        &self,
        call: CallId,
    ) -> impl Iterator<Item = (Transfer, Standing, Timestamp)> {
        let of_call = self.standing.iter().filter(move |((of, _), _)| *of == call);
        of_call.map(|((_, transfer), (standing, at))| (*transfer, *standing, *at))
    }

    /// Marks a call and the calls enqueued before it on its stream as complete. Returns those that
    /// were not complete before, oldest first.
    pub(super) fn completed(&mut self, id: CallId, at: Timestamp) -> Vec<CallId> {
        self.completed_at = self.completed_at.max(Some(at));
        let done = self.queued.iter().find(|call| call.id == id);
        let Some(stream) = done.and_then(|call| call.on_stream).map(|on| on.stream) else {
            self.standing.retain(|(of, _), _| *of != id);
            return vec![id];
        };
        let (mut complete, mut under_way) = (Vec::new(), VecDeque::new());
        for call in self.queued.drain(..) {
            let behind = call.id > id || call.on_stream.is_some_and(|on| on.stream != stream);
            match behind {
                true => under_way.push_back(call),
                false => complete.push(call.id),
            }
        }
        for id in &complete {
            self.followed.remove(id);
        }
        self.standing.retain(|(of, _), _| !complete.contains(of));
        self.queue_cut &= !under_way.is_empty();
        self.queued = under_way;
        complete
    }

    /// The completion of the call will be reported, or already was: then the call is no longer
    /// queued.
    pub(super) fn follow(&mut self, id: CallId) {
        if self.queued.iter().rev().any(|call| call.id == id) {
            self.followed.insert(id);
        }
    }

    /// A thread begins to wait. Returns the target of the wait, if known.
    pub(super) fn wait_begin(
        &mut self,
        thread: ThreadId,
        call: Option<CallId>,
        place: Option<Arc<Where>>,
        at: Timestamp,
    ) -> Option<Target> {
        self.records += 1;
        self.last_at = at;
        let target = call.and_then(|call| self.calls.get(&call)).copied();
        let thread = self.thread(thread, at);
        thread.failed = None;
        thread.of_the_program = true;
        thread.issuing = None;
        thread.doing = Doing::Wait(target, at, place);
        target
    }

    /// A wait ends. Returns its target, if known.
    pub(super) fn wait_end(
        &mut self,
        thread: ThreadId,
        call: Option<CallId>,
        at: Timestamp,
    ) -> Option<Target> {
        self.records += 1;
        self.last_at = at;
        let left = self
            .exceptions
            .iter()
            .rev()
            .find(|exception| exception.kind == ExceptionKind::LeftCollective)
            .map(|exception| exception.at);
        let thread = self.thread(thread, at);
        let before = std::mem::replace(&mut thread.doing, Doing::Nothing);
        if let Doing::Wait(Some(target), since, _) = before
            && left.is_some_and(|left| left >= since)
        {
            thread.failed = Some((target, since, at));
        }
        call.and_then(|call| self.calls.get(&call)).copied()
    }

    /// A thread has waited for the buckets that it issued. Returns the place of the last of them,
    /// with the wait; `None`: no bucket was recorded.
    pub(super) fn averaged(
        &mut self,
        thread: ThreadId,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<(Target, Averaged)> {
        let thread = self.threads.get_mut(&thread)?;
        let buckets = std::mem::take(&mut thread.sent);
        let (last, _) = thread.last_sent.take().filter(|(_, at)| *at <= from)?;
        let averaged = Averaged { buckets, from, to };
        Some((self.target(last)?, averaged))
    }

    /// The place of a recent call.
    #[must_use]
    pub fn target(&self, call: CallId) -> Option<Target> {
        self.calls.get(&call).copied()
    }

    pub(super) fn unawaited(
        &mut self,
        op: Op,
        group: Arc<GroupInfo>,
        place: Arc<Where>,
        at: Timestamp,
    ) {
        /// Enough to determine since when there have been several.
        const KEPT: usize = 8;
        if self.unawaited.len() >= KEPT_PLACES && !self.unawaited.contains_key(&place) {
            return;
        }
        let known = self.unawaited.entry(place).or_insert_with(|| Unawaited {
            op,
            group,
            at: Vec::new(),
            count: 0,
        });
        known.count += 1;
        if known.at.len() < KEPT {
            known.at.push(at);
        }
    }

    pub(super) fn set(&mut self, name: Arc<str>, value: Arc<str>, at: Timestamp) {
        let known = self.settings.get(&name);
        if known == Some(&value) || (known.is_none() && self.settings.len() >= KEPT_SETTINGS) {
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

    pub(super) fn raised(&mut self, mut exception: Exception) {
        /// Enough for the first exceptions and the latest ones.
        const KEPT: usize = 16;
        self.records += 1;
        self.last_at = exception.at;
        if exception.kind == ExceptionKind::LeftForward {
            self.turns.failed();
        }
        exception.after_calls = self.last_call.as_ref().map_or(0, |call| call.id.0);
        if self.exceptions.len() == KEPT {
            self.exceptions.remove(KEPT / 2);
        }
        self.exceptions.push(exception);
    }

    /// The step in progress at a recent time; samples taken from outside arrive late. `None`: the
    /// program was over, and its memory released.
    pub(super) fn step_at_time(&self, at: Timestamp) -> Option<u64> {
        let is_over = self.announced.as_ref().is_some_and(|it| it.at <= at);
        let before = u64::from(at < self.step_at);
        (!is_over).then(|| self.step.saturating_sub(before))
    }

    pub(super) fn phase_began(&mut self, name: Arc<str>, at: Timestamp) {
        /// More than programs nest.
        const KEPT: usize = 64;
        if self.phases.len() < KEPT {
            self.phases.push(Phase { name, since: at });
        }
    }

    pub(super) fn phase_ended(&mut self, name: &Arc<str>, at: Timestamp) {
        /// More names than programs use.
        const KEPT: usize = 256;
        let Some(i) = self.phases.iter().rposition(|open| open.name == *name) else {
            return;
        };
        let since = self.phases.remove(i).since;
        self.last_phase = Some((since, at));
        self.pace.phase(since, at);
        let length = at.since(since);
        if self.phase_lengths.len() < KEPT || self.phase_lengths.contains_key(name) {
            let longest = self.phase_lengths.entry(Arc::clone(name)).or_default();
            *longest = length.max(*longest);
        }
    }

    /// Adds a capture of stacks, which says nothing about progress. Captures from before the latest
    /// record are dropped.
    pub(super) fn stood(&mut self, stacks: Arc<Stacks>) {
        /// The first capture since the latest record, and the latest two.
        const KEPT: usize = 3;
        let last_at = self.last_at;
        self.stacks.retain(|older| older.at >= last_at);
        if self.stacks.len() == KEPT {
            self.stacks.remove(1);
        }
        self.stacks.push(stacks);
    }

    fn thread(&mut self, id: ThreadId, at: Timestamp) -> &mut Thread {
        let thread = self.threads.entry(id).or_insert_with(|| Thread {
            doing: Doing::Nothing,
            issuing: None,
            last_call: None,
            last_at: at,
            of_the_program: false,
            failed: None,
            within: None,
            sent: Buckets::default(),
            last_sent: None,
        });
        thread.last_at = at;
        thread
    }
}

/// Whether a thread of the process is inside this call.
#[must_use]
pub fn is_inside(process: &Process, call: &Call) -> bool {
    process
        .threads
        .values()
        .any(|thread| matches!(&thread.doing, Doing::Call(inside) if inside.id == call.id))
}

/// Signal numbers on Linux.
pub mod libc_signal {
    /// Hangup of the terminal.
    pub const HUP: i32 = 1;
    /// Interrupt from the keyboard.
    pub const INT: i32 = 2;
    /// Quit from the keyboard.
    pub const QUIT: i32 = 3;
    /// Abort.
    pub const ABRT: i32 = 6;
    /// Kill.
    pub const KILL: i32 = 9;
    /// Termination request.
    pub const TERM: i32 = 15;

    /// Whether the signal is a reaction to a failure, sent by the launcher or by the process
    /// itself.
    #[must_use]
    pub const fn is_asked(signal: i32) -> bool {
        matches!(signal, HUP | INT | QUIT | ABRT | TERM)
    }

    pub use ddp_doctor_proto::words::signal_name as name;
}
