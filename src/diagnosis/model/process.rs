//! One process: where its threads are, how it fares, how it ended.

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
use crate::diagnosis::event::{
    Call, CallId, GroupInfo, Guard, OomKills, ProcessId, Stacks, Standing, ThreadId, Transfer,
};
use crate::diagnosis::settings;
use crate::diagnosis::timing::Timing;

/// Most places of a process that are remembered.
const KEPT_PLACES: usize = 4096;
/// Most settings that are kept of a process.
const KEPT_SETTINGS: usize = 1024;
/// Most calls of a process on streams of devices that are kept, where nobody tells when they are complete …
const KEPT_QUEUED: usize = 128;
/// … and where somebody does: then they are those that are under way.
const KEPT_UNDER_WAY: usize = 1024;
/// Most transfers of a process that are remembered not to move.
const KEPT_STANDING: usize = 256;
/// Most calls of a process whose waits can still be told apart.
const KEPT_CALLS: usize = 4096;

/// A process that joined a process group.
#[derive(Debug)]
pub struct Process {
    /// Its name.
    pub id: ProcessId,
    /// Its global rank, once known.
    pub rank: Option<u32>,
    /// The number of ranks, as it knows it.
    pub world_size: Option<u32>,
    /// Its host.
    pub host: Arc<str>,
    /// Its process id there.
    pub pid: u32,
    /// What observes it.
    pub layer: Arc<str>,
    /// The world it belongs to.
    pub world: World,
    /// The operating system's view of it.
    pub state: ProcessState,
    /// When that view last changed.
    pub state_at: Timestamp,
    /// Its end, once that was seen.
    pub end: Option<End>,
    /// From when on nobody watched it: it may have ended at any time after.
    pub unwatched: Option<Timestamp>,
    /// Up to when its records are known; `None`: all of them are, or it is still followed.
    pub known_until: Option<Timestamp>,
    /// What it said about its end before.
    pub announced: Option<Announced>,
    /// Since when a thread of it has been on its way out: its main thread, as a rule.
    pub leaving: Option<(Timestamp, ThreadId)>,
    /// The exceptions that were seen, oldest first, a few.
    pub exceptions: Vec<Exception>,
    /// Its threads that made calls.
    pub threads: BTreeMap<ThreadId, Thread>,
    /// Training step; 0 before the first.
    pub step: u64,
    /// When that step began.
    pub step_at: Timestamp,
    /// Its steps as far as they are to synchronise gradients.
    pub turns: Turns,
    /// Which of its training forwards synchronise gradients.
    pub accumulation: Accumulation,
    /// Phases it is in, outermost first.
    pub phases: Vec<Phase>,
    /// Begin and end of the phase that it left last.
    pub last_phase: Option<(Timestamp, Timestamp)>,
    /// The longest that it has been in a phase of each name.
    pub phase_lengths: BTreeMap<Arc<str>, Duration>,
    /// The call it issued last.
    pub last_call: Option<Arc<Call>>,
    /// Calls that it put on streams of devices, oldest first, and of which it is not known that they are
    /// complete: the last ones.
    pub queued: VecDeque<Arc<Call>>,
    /// Those of them of which it will be told when they are complete.
    pub followed: BTreeSet<CallId>,
    /// Some of those were too many to be kept.
    pub queue_cut: bool,
    /// Transfers over the network that do not move: of which call, where they stand, and since when.
    pub standing: BTreeMap<(CallId, Transfer), (Standing, Timestamp)>,
    /// When a call of it was last known to be complete.
    pub completed_at: Option<Timestamp>,
    /// A layer below the one that made its calls has told of them.
    pub has_beneath: bool,
    /// When it was last heard of.
    pub last_at: Timestamp,
    /// Where its input last came to an end, and when.
    pub input_ended: Option<(Timestamp, Option<Arc<Where>>)>,
    /// The step in which that first happened, once the training had begun.
    pub input_ended_in_step: Option<u64>,
    /// How often it was at each place.
    pub places: BTreeMap<Arc<Where>, u64>,
    /// How it comes to its places, as far as that is known.
    pub sites: BTreeMap<Arc<Where>, Site>,
    /// Longest wait at each place, among collectives that every member entered: for its peers at
    /// least, and where its end was seen, all of it.
    pub waits: BTreeMap<Arc<Where>, u64>,
    /// Calls that nobody waited for, by where they were made.
    pub unawaited: BTreeMap<Arc<Where>, Unawaited>,
    /// Its stacks as they were taken, oldest first: the first since it last wrote a record, and the
    /// latest two.
    pub stacks: Vec<Arc<Stacks>>,
    /// Its memory.
    pub memory: Memory,
    /// How it goes on.
    pub pace: Pace,
    /// Versions and settings that ranks may have to agree on, the latest of each.
    pub settings: BTreeMap<Arc<str>, Arc<str>>,
    /// All of those that are compared, as one number.
    pub fingerprint: u64,
    /// When it last said one that it had not said so before.
    pub said_at: Timestamp,
    /// When it said which GPU it exchanges data from.
    pub gpu_at: Option<Timestamp>,
    /// How it joined the world, or tries to: the last time that it began to.
    pub init: Option<Init>,
    /// Elements of the largest call that the program itself made to reduce or to gather something.
    pub largest_own: u64,
    /// Models whose gradients it averages with others.
    pub models: Models,
    /// Records seen.
    pub records: u64,
    /// Records lost.
    pub lost: u64,
    /// When the first of them were known to be.
    pub lost_at: Timestamp,
    /// Groups that it began to make, of those it said which.
    pub groups_made: u64,
    /// It made groups and did not say which.
    pub made_unknown_groups: bool,
    /// Groups it is a member of, by the address of what the evidence calls them.
    pub(super) groups: BTreeMap<usize, (Arc<GroupInfo>, GroupId)>,
    /// Groups it joined before its rank was known.
    pub(super) early_groups: Vec<(Arc<GroupInfo>, Option<Duration>)>,
    /// Calls whose completion or wait may still be told.
    calls: BTreeMap<CallId, Target>,
}

/// How a program comes to a place.
#[derive(Clone, Debug, Default)]
pub struct Site {
    /// The call that first led there.
    pub caller: Option<Arc<Where>>,
    /// The tests in the source that decide whether it comes there, the nearest first.
    pub guards: Option<Arc<[Guard]>>,
    /// The source is still being read.
    pub reading: bool,
}

/// A set of processes that can meet in groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct World {
    /// What its processes say that tells it from others; empty: nothing.
    pub name: Arc<str>,
    /// How many worlds of that name there were before it: restarts.
    pub generation: u32,
}

/// A phase that a program marked.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Its name.
    pub name: Arc<str>,
    /// When it began.
    pub since: Timestamp,
}

/// The end of a process.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// When.
    pub at: Timestamp,
    /// How, as far as it is known.
    pub exit: Exit,
    /// Whom the kernel killed about then.
    pub oom_kills: OomKills,
}

/// What a process said about its end.
#[derive(Clone, Debug)]
pub struct Announced {
    /// Status.
    pub code: i32,
    /// "main returned", "os._exit", …
    pub how: Arc<str>,
    /// When.
    pub at: Timestamp,
}

/// An exception.
#[derive(Clone, Debug)]
pub struct Exception {
    /// Where it was seen.
    pub kind: ExceptionKind,
    /// "Type: message".
    pub text: Arc<str>,
    /// The user's line.
    pub place: Option<Arc<Where>>,
    /// When.
    pub at: Timestamp,
    /// Calls issued by the process before it.
    pub after_calls: u64,
}

/// Calls of one place that nobody waited for.
#[derive(Clone, Debug)]
pub struct Unawaited {
    /// What they do.
    pub op: Op,
    /// Their group.
    pub group: Arc<GroupInfo>,
    /// When each of the first few was known to be one.
    pub at: Vec<Timestamp>,
    /// How many there were.
    pub count: u64,
}

impl Exception {
    /// Whether it is no failure but a request to end.
    #[must_use]
    pub fn asks_to_end(&self) -> bool {
        ["SystemExit", "KeyboardInterrupt"].iter().any(|name| {
            self.text
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        })
    }
}

/// A thread that made calls.
#[derive(Clone, Debug)]
pub struct Thread {
    /// What it is in the middle of.
    pub doing: Doing,
    /// An asynchronous call that has not come back.
    issuing: Option<Arc<Call>>,
    /// The call it issued last.
    pub last_call: Option<Arc<Call>>,
    /// When it last wrote a record.
    pub last_at: Timestamp,
    /// It made a call or a wait of the program's own; a thread of the backward pass makes DDP's alone.
    pub of_the_program: bool,
    /// The wait that an exception ended, if the thread has made no call since: what it was for, when it
    /// began and when it ended.
    pub failed: Option<(Target, Timestamp, Timestamp)>,
    /// The function of the layer below that it is inside of, and since when.
    pub within: Option<(Arc<str>, Timestamp)>,
    /// DDP's buckets that it has sent since it last waited for some, and the last of them.
    sent: Buckets,
    last_sent: Option<(CallId, Timestamp)>,
}

impl Thread {
    /// Whether it is inside of a call or a wait.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        !matches!(self.doing, Doing::Nothing) || self.issuing.is_some()
    }

    /// The asynchronous call that has not come back for so long that something must hold it.
    #[must_use]
    pub fn held_in(&self, now: Timestamp, timing: &Timing) -> Option<&Arc<Call>> {
        let held = self.issuing.as_ref();
        held.filter(|call| call.at.plus(timing.blocked_issue) <= now)
    }

    /// Since when it is inside of a function of the layer below, if that is long enough.
    #[must_use]
    pub fn within_since(&self, now: Timestamp, long: Duration) -> Option<Timestamp> {
        let (_, since) = self.within.as_ref()?;
        (since.plus(long) <= now).then_some(*since)
    }

    /// The call that it is inside of.
    #[must_use]
    pub fn inside(&self, now: Timestamp, timing: &Timing) -> Option<&Arc<Call>> {
        match &self.doing {
            Doing::Call(call) => Some(call),
            Doing::Nothing => self.held_in(now, timing),
            Doing::Wait(..) => None,
        }
    }
}

/// Where a call stands that a thread may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Among the calls of a group with this sequence number.
    Join(GroupId, u64),
    /// In the point-to-point traffic of a group.
    Message(GroupId, Post),
}

impl Target {
    /// The group whose calls it is among.
    #[must_use]
    pub const fn group(self) -> GroupId {
        match self {
            Self::Join(group, _) | Self::Message(group, _) => group,
        }
    }
}

/// What a thread is in the middle of.
#[derive(Clone, Debug)]
pub enum Doing {
    /// The user's code, as far as is known.
    Nothing,
    /// A call that has not returned.
    Call(Arc<Call>),
    /// A wait for a call; `None`: for an unknown one.
    Wait(Option<Target>, Timestamp, Option<Arc<Where>>),
}

/// How a process ended, or is ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending<'a> {
    /// It lives.
    None,
    /// An uncaught exception.
    Raised(&'a str),
    /// A signal, or a non-zero status without an exception.
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

    /// Whether nothing more can come from it.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether nothing but its own announcement says that it has ended.
    #[must_use]
    pub const fn ended_by_its_own_word(&self) -> bool {
        self.end.is_some() && self.unwatched.is_some()
    }

    /// Whether the operating system has stopped it.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.end.is_none() && self.state == ProcessState::Stopped
    }

    /// How it ended, by the operating system's word and its own.
    #[must_use]
    pub fn ending(&self) -> Ending<'_> {
        let uncaught = self.uncaught();
        let Some(end) = self.end else {
            // An uncaught exception ends the rank even while the interpreter still winds down.
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

    /// Whether it aborted after its program had ended in order, as PyTorch's threads may make it when
    /// the interpreter goes away under them.
    #[must_use]
    pub fn aborted_on_its_way_out(&self) -> bool {
        self.end
            .is_some_and(|end| end.exit.signal == Some(libc_signal::ABRT))
            && self.announced_in_order()
            && self.uncaught().is_none()
    }

    /// The exception that nobody caught.
    #[must_use]
    pub fn uncaught(&self) -> Option<&Exception> {
        self.exceptions
            .iter()
            .find(|exception| exception.kind == ExceptionKind::Uncaught)
    }

    /// The exception that was being handled when this call was issued. One that only asks the
    /// program to end is none.
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

    /// The exception that took it off its path before this call: one in flight, or one that nobody
    /// caught.
    #[must_use]
    pub fn raised_before(&self, call: &Call) -> Option<&Exception> {
        let uncaught = self.uncaught().filter(|exception| exception.at <= call.at);
        self.in_flight_at(call).or(uncaught)
    }

    /// Whether it made this call on its way out of the program: it had said that it ends, or was asked
    /// to by an exception.
    #[must_use]
    pub fn is_leaving_at(&self, call: &Call) -> bool {
        self.leaving
            .is_some_and(|(since, thread)| since <= call.at && thread == call.thread)
            || self
                .handled_at(call.at, call.id)
                .any(Exception::asks_to_end)
    }

    /// Whether it is on its way out of the program, or out of a group, and no thread of it does
    /// anything else with other ranks.
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

    /// Groups it is a member of.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.groups.values().map(|(_, id)| *id)
    }

    /// Whether a thread is in the middle of a call or a wait.
    #[must_use]
    pub fn is_inside_a_call(&self) -> bool {
        let mut threads = self.threads.values();
        threads.any(|thread| !matches!(thread.doing, Doing::Nothing))
    }

    /// The exception that ended its last initialisation of the world.
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

    /// Whether it has begun to join the world and has not come back, or came back with an error.
    #[must_use]
    pub fn is_joining(&self) -> bool {
        let init = self.init.as_ref();
        init.is_some_and(|init| init.over.is_none() || self.init_failed().is_some())
    }

    /// Whether it ended in order and ran whatever it had registered for its end.
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
        // The first way there is the one that its calls came by when they were first seen.
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
            // Of several tensors the first alone is known.
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

    /// Puts a call behind the others on its stream, if it is on one.
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

    /// The layer below has told of a call: this is the call with that.
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

    /// A thread has entered a function of the layer below, or has come back from there.
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

    /// A transfer of a call does not move, or does again.
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
            // Those of older calls are over, or tell as much.
            Some(standing) if self.standing.len() < KEPT_STANDING => {
                self.standing.insert(key, (standing, at));
            }
            Some(_) => {}
            None => drop(self.standing.remove(&key)),
        }
    }

    /// Up to when it is known what it does: it may have ended, or be heard of no more.
    #[must_use]
    pub fn seen_until(&self, now: Timestamp) -> Timestamp {
        let ended = self.end.map(|end| end.at);
        let limits = ended.into_iter().chain(self.known_until);
        limits.fold(now, Timestamp::min)
    }

    /// Whether it stands in a call that it asked not to wait for, or did until it ended.
    #[must_use]
    pub fn is_held_in(&self, call: &Call, now: Timestamp, timing: &Timing) -> bool {
        let thread = self.threads.get(&call.thread);
        let held = thread.and_then(|it| it.held_in(self.seen_until(now), timing));
        held.is_some_and(|it| it.id == call.id)
    }

    /// Transfers of a call that do not move, and since when.
    pub fn standing_of(
        &self,
        call: CallId,
    ) -> impl Iterator<Item = (Transfer, Standing, Timestamp)> {
        let of_call = self.standing.iter().filter(move |((of, _), _)| *of == call);
        of_call.map(|((_, transfer), (standing, at))| (*transfer, *standing, *at))
    }

    /// A call is complete, and so is what was put on its stream before. Returns all that is known to be
    /// complete now and was not before, oldest first.
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

    /// It will be told when the call is complete. That may have been told before.
    pub(super) fn follow(&mut self, id: CallId) {
        if self.queued.iter().rev().any(|call| call.id == id) {
            self.followed.insert(id);
        }
    }

    /// A thread waits. Returns what it waits for, where that is known.
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

    /// A wait is over. Returns what it was for.
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

    /// A thread has waited for the buckets that it had sent. Returns the last of them, and that wait;
    /// `None`: none were seen.
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

    /// Where a recent call stands.
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
        /// Enough to know since when there are several.
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
        /// Enough for the one that matters and those it drew after it.
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

    /// The step in which it was then, lately: whoever measures from outside is heard a moment later.
    /// `None`: the program was over, and what it held is given back.
    pub(super) fn step_at_time(&self, at: Timestamp) -> Option<u64> {
        let is_over = self.announced.as_ref().is_some_and(|it| it.at <= at);
        let before = u64::from(at < self.step_at);
        (!is_over).then(|| self.step.saturating_sub(before))
    }

    pub(super) fn phase_began(&mut self, name: Arc<str>, at: Timestamp) {
        /// Deeper than any program nests them.
        const KEPT: usize = 64;
        if self.phases.len() < KEPT {
            self.phases.push(Phase { name, since: at });
        }
    }

    pub(super) fn phase_ended(&mut self, name: &Arc<str>, at: Timestamp) {
        /// More names than any program has.
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

    /// Its stacks were taken. Says nothing of progress: those of before are kept to compare with.
    pub(super) fn stood(&mut self, stacks: Arc<Stacks>) {
        /// The first of a stand-still, and the latest two.
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

/// Whether a thread of the process is in the middle of this call.
#[must_use]
pub fn is_inside(process: &Process, call: &Call) -> bool {
    process
        .threads
        .values()
        .any(|thread| matches!(&thread.doing, Doing::Call(inside) if inside.id == call.id))
}

/// Numbers of the signals that mean something here, as on every Linux.
pub mod libc_signal {
    /// The terminal hung up.
    pub const HUP: i32 = 1;
    /// Interrupt from the keyboard.
    pub const INT: i32 = 2;
    /// Quit from the keyboard.
    pub const QUIT: i32 = 3;
    /// Abort.
    pub const ABRT: i32 = 6;
    /// Kill.
    pub const KILL: i32 = 9;
    /// Polite request to end.
    pub const TERM: i32 = 15;

    /// Whether a process gets it because something has failed: from whoever started it, or itself.
    #[must_use]
    pub const fn is_asked(signal: i32) -> bool {
        matches!(signal, HUP | INT | QUIT | ABRT | TERM)
    }

    pub use ddp_doctor_proto::words::signal_name as name;
}
