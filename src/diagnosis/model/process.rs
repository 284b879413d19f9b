//! One process: where its threads are, how it fares, how it ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor_proto::report::{Exit, Timestamp, Where};
use ddp_doctor_proto::{ExceptionKind, Op, ProcessState};

use super::group::GroupId;
use crate::diagnosis::event::{Call, CallId, GroupInfo, ProcessId, ThreadId};

/// Most places of a process that are remembered.
const KEPT_PLACES: usize = 4096;
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
    /// What it said about its end before.
    pub announced: Option<Announced>,
    /// The exceptions that were seen, oldest first, a few.
    pub exceptions: Vec<Exception>,
    /// Its threads that made calls.
    pub threads: BTreeMap<ThreadId, Thread>,
    /// Training step; 0 before the first.
    pub step: u64,
    /// When that step began.
    pub step_at: Timestamp,
    /// Phases it is in, outermost first.
    pub phases: Vec<Arc<str>>,
    /// The call it issued last.
    pub last_call: Option<Arc<Call>>,
    /// When it was last heard of.
    pub last_at: Timestamp,
    /// Where its input last came to an end, and when.
    pub input_ended: Option<(Timestamp, Option<Arc<Where>>)>,
    /// How often it was at each place.
    pub places: BTreeMap<Arc<Where>, u64>,
    /// Longest wait at each place, among collectives that every member entered: for its peers at
    /// least, and where its end was seen, all of it.
    pub waits: BTreeMap<Arc<Where>, u64>,
    /// Calls that nobody waited for, by where they were made.
    pub unawaited: BTreeMap<Arc<Where>, Unawaited>,
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
    pub(super) early_groups: Vec<Arc<GroupInfo>>,
    /// Calls whose completion or wait may still be told.
    calls: BTreeMap<CallId, (GroupId, u64)>,
}

/// A set of processes that can meet in groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct World {
    /// What its processes say that tells it from others; empty: nothing.
    pub name: Arc<str>,
    /// How many worlds of that name there were before it: restarts.
    pub generation: u32,
}

/// The end of a process.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// When.
    pub at: Timestamp,
    /// How, as far as it is known.
    pub exit: Exit,
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

/// A thread that made calls.
#[derive(Clone, Debug)]
pub struct Thread {
    /// What it is in the middle of.
    pub doing: Doing,
    /// The call it issued last.
    pub last_call: Option<Arc<Call>>,
    /// When it last wrote a record.
    pub last_at: Timestamp,
}

/// What a thread is in the middle of.
#[derive(Clone, Debug)]
pub enum Doing {
    /// The user's code, as far as is known.
    Nothing,
    /// A call that has not returned.
    Call(Arc<Call>),
    /// A wait for a call; `None`: for an unknown one.
    Wait(Option<(GroupId, u64)>, Timestamp, Option<Arc<Where>>),
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
            announced: None,
            exceptions: Vec::new(),
            threads: BTreeMap::new(),
            step: 0,
            step_at: Timestamp::default(),
            phases: Vec::new(),
            last_call: None,
            last_at: Timestamp::default(),
            input_ended: None,
            places: BTreeMap::new(),
            waits: BTreeMap::new(),
            unawaited: BTreeMap::new(),
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
            // PyTorch's threads may abort the process when the interpreter goes away under them,
            // after all its work was done.
            (_, Some(libc_signal::ABRT)) if self.announced_in_order() && uncaught.is_none() => {
                Ending::InOrder
            }
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

    /// The exception that nobody caught.
    #[must_use]
    pub fn uncaught(&self) -> Option<&Exception> {
        self.exceptions
            .iter()
            .find(|exception| exception.kind == ExceptionKind::Uncaught)
    }

    /// The exception that was being handled when this call was issued.
    #[must_use]
    pub fn in_flight_at(&self, call: &Call) -> Option<&Exception> {
        self.exceptions.iter().rev().find(|exception| {
            exception.kind == ExceptionKind::InFlight
                && exception.at <= call.at
                && exception.after_calls + 1 >= call.id.0
        })
    }

    fn announced_in_order(&self) -> bool {
        self.announced
            .as_ref()
            .is_some_and(|announced| announced.code == 0)
    }

    pub(super) fn issued(&mut self, call: &Arc<Call>, joined: Option<GroupId>) {
        self.records += 1;
        self.last_at = call.at;
        self.step = self.step.max(call.step);
        let thread = self.thread(call.thread, call.at);
        thread.last_call = Some(Arc::clone(call));
        if !call.is_async {
            thread.doing = Doing::Call(Arc::clone(call));
        }
        self.last_call = Some(Arc::clone(call));
        if let Some(place) = &call.place {
            if let Some(count) = self.places.get_mut(place) {
                *count += 1;
            } else if self.places.len() < KEPT_PLACES {
                self.places.insert(Arc::clone(place), 1);
            }
        }
        if let Some(group) = joined {
            self.calls.insert(call.id, (group, call.seq));
            if self.calls.len() > KEPT_CALLS {
                self.calls.pop_first();
            }
        }
    }

    pub(super) fn returned(&mut self, thread: ThreadId, call: CallId, at: Timestamp) {
        self.records += 1;
        self.last_at = at;
        let thread = self.thread(thread, at);
        if matches!(&thread.doing, Doing::Call(inside) if inside.id == call) {
            thread.doing = Doing::Nothing;
        }
    }

    /// A thread waits. Returns the call it waits for, where it is a collective.
    pub(super) fn wait_begin(
        &mut self,
        thread: ThreadId,
        call: Option<CallId>,
        place: Option<Arc<Where>>,
        at: Timestamp,
    ) -> Option<(GroupId, u64)> {
        self.records += 1;
        self.last_at = at;
        let target = call.and_then(|call| self.calls.get(&call)).copied();
        self.thread(thread, at).doing = Doing::Wait(target, at, place);
        target
    }

    /// A wait is over. Returns what it was for.
    pub(super) fn wait_end(
        &mut self,
        thread: ThreadId,
        call: Option<CallId>,
        at: Timestamp,
    ) -> Option<(GroupId, u64)> {
        self.records += 1;
        self.last_at = at;
        self.thread(thread, at).doing = Doing::Nothing;
        call.and_then(|call| self.calls.get(&call)).copied()
    }

    /// The group and sequence number of a recent collective.
    #[must_use]
    pub fn target(&self, call: CallId) -> Option<(GroupId, u64)> {
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

    pub(super) fn raised(&mut self, mut exception: Exception) {
        /// Enough for the one that matters and those it drew after it.
        const KEPT: usize = 16;
        self.records += 1;
        self.last_at = exception.at;
        exception.after_calls = self.last_call.as_ref().map_or(0, |call| call.id.0);
        if self.exceptions.len() == KEPT {
            self.exceptions.remove(KEPT / 2);
        }
        self.exceptions.push(exception);
    }

    fn thread(&mut self, id: ThreadId, at: Timestamp) -> &mut Thread {
        let thread = self.threads.entry(id).or_insert_with(|| Thread {
            doing: Doing::Nothing,
            last_call: None,
            last_at: at,
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

    /// Name of a signal as people write it.
    #[must_use]
    pub fn name(signal: i32) -> String {
        let known = match signal {
            HUP => "SIGHUP",
            INT => "SIGINT",
            QUIT => "SIGQUIT",
            4 => "SIGILL",
            5 => "SIGTRAP",
            ABRT => "SIGABRT",
            7 => "SIGBUS",
            8 => "SIGFPE",
            KILL => "SIGKILL",
            10 => "SIGUSR1",
            11 => "SIGSEGV",
            12 => "SIGUSR2",
            13 => "SIGPIPE",
            14 => "SIGALRM",
            TERM => "SIGTERM",
            19 => "SIGSTOP",
            other => return format!("signal {other}"),
        };
        known.to_owned()
    }
}
