//! How a process ends: exceptions, announcements, exit.

use std::sync::Arc;

use ddp_doctor_proto::report::{Exit, Timestamp, Where};
use ddp_doctor_proto::{ExceptionKind, Op};

use crate::input::event::{Call, CallId, OomKills, ThreadId};
use crate::input::transport::is_from_transport;

use super::Process;
use crate::input::libc_signal;
use crate::model::is_before_request;

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
    /// Line of the user's program that ends the process.
    pub place: Option<Arc<Where>>,
    /// Time of the announcement.
    pub at: Timestamp,
}

/// The first record of a process that exits.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct ExitBegun {
    at: Timestamp,
    /// Time of the record before it.
    before: Timestamp,
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

impl Exception {
    /// Whether it left a collective, a forward or a backward.
    pub const fn has_left_a_call(&self) -> bool {
        use ExceptionKind::{LeftBackward, LeftCollective, LeftForward};
        matches!(self.kind, LeftForward | LeftBackward | LeftCollective)
    }

    /// Whether it requests the process to exit, rather than being a failure.
    pub fn asks_to_end(&self) -> bool {
        matches!(self.text.split(':').next(), Some("SystemExit" | "KeyboardInterrupt"))
    }
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
    /// How it ended, from its exit status and its announcement.
    pub fn ending(&self) -> Ending<'_> {
        let uncaught = self.uncaught();
        let Some(end) = self.end else {
            // An uncaught exception ends the rank, even while the interpreter is still shutting
            // down.
            return uncaught.map_or(Ending::None, |exception| Ending::Raised(&exception.text));
        };
        if end.exit.code == Some(0) {
            return Ending::InOrder;
        }
        match uncaught {
            Some(exception) => Ending::Raised(&exception.text),
            None if self.aborted_on_its_way_out() || self.terminated_on_its_way_out() => {
                Ending::InOrder
            }
            None if end.exit == Exit::default() && self.announced_in_order() => Ending::InOrder,
            None => Ending::Died(end.exit),
        }
    }

    /// Whether it is alive or has ended in order.
    pub fn has_not_failed(&self) -> bool {
        matches!(self.ending(), Ending::None | Ending::InOrder)
    }

    /// Whether it aborted after its program had ended in order. Threads of PyTorch may abort while
    /// the interpreter shuts down.
    pub fn aborted_on_its_way_out(&self) -> bool {
        self.end.is_some_and(|end| end.exit.signal == Some(libc_signal::ABRT))
            && self.announced_in_order()
            && self.uncaught().is_none()
    }

    /// Whether it was asked to end after its program had ended in order, and made no call since then. The
    /// interpreter may take a while to exit, in which the launcher ends all ranks because a peer failed.
    fn terminated_on_its_way_out(&self) -> bool {
        self.end.is_some_and(|end| end.exit.signal == Some(libc_signal::TERM))
            && self.announced_in_order()
            && !self.last_call.as_ref().is_some_and(|call| self.is_leaving_at(call))
    }

    /// The uncaught exception.
    pub fn uncaught(&self) -> Option<&Exception> {
        self.exceptions.iter().find(|exception| exception.kind == ExceptionKind::Uncaught)
    }

    /// The last exception that ended a thread other than the main one.
    pub fn failed_thread(&self) -> Option<&Exception> {
        self.latest_exception(ExceptionKind::UncaughtInThread)
    }

    pub(super) fn latest_exception(&self, kind: ExceptionKind) -> Option<&Exception> {
        self.exceptions.iter().rev().find(|exception| exception.kind == kind)
    }

    /// The exception that was being handled when this call was issued, except requests to exit.
    pub fn in_flight_at(&self, call: &Call) -> Option<&Exception> {
        self.handled_at(call.at, call.id).find(|exception| !exception.asks_to_end())
    }

    /// Whether the exception may be due to the failure of a peer: it left a collective, or its text
    /// comes from a transport.
    pub fn is_from_communication(&self, exception: &Exception) -> bool {
        let is_same = |other: &Exception| {
            other.kind == ExceptionKind::LeftCollective && other.text == exception.text
        };
        self.exceptions.iter().any(is_same) || is_from_transport(&exception.text)
    }

    /// The uncaught exception, if it may be due to the failure of a peer.
    pub fn transport_error(&self) -> Option<&Exception> {
        self.uncaught().filter(|it| self.is_from_communication(it))
    }

    fn handled_at(&self, at: Timestamp, call: CallId) -> impl Iterator<Item = &Exception> {
        self.exceptions.iter().rev().filter(move |exception| {
            exception.kind == ExceptionKind::InFlight
                && exception.at <= at
                && exception.after_calls + 1 >= call.0
        })
    }

    /// The exception that diverted it before this call: one being handled, or an uncaught one.
    pub fn raised_before(&self, call: &Call) -> Option<&Exception> {
        let uncaught = self.uncaught().filter(|exception| exception.at <= call.at);
        self.in_flight_at(call).or(uncaught)
    }

    /// Whether it issued this call while exiting: after it had announced its exit, or while
    /// handling a request to exit.
    pub fn is_leaving_at(&self, call: &Call) -> bool {
        self.leaving.is_some_and(|(since, thread)| since <= call.at && thread == call.thread)
            || self.handled_at(call.at, call.id).any(Exception::asks_to_end)
    }

    /// Whether it is leaving the program or a group, and no other thread communicates with other
    /// ranks.
    pub fn is_leaving(&self) -> bool {
        let goes_on = |since: Timestamp, thread: ThreadId| {
            let mut others = self.threads.iter().filter(|(id, _)| **id != thread);
            others.any(|(_, other)| other.last_at > since)
        };
        self.entered().any(|call| call.op == Op::DestroyProcessGroup)
            || self.leaving.is_some_and(|(since, thread)| !goes_on(since, thread))
            || self
                .last_call
                .as_ref()
                .is_some_and(|call| self.is_leaving_at(call) && self.is_inside_a_call())
    }

    /// Counts a record of a process that exits: it shows no progress if the job was asked to end.
    pub(in crate::model) fn count_exit_record(&mut self, at: Timestamp) {
        let before = self.last_at;
        self.count_record(at);
        self.exit.get_or_insert(ExitBegun { at, before });
    }

    /// Whether it exits because the job was asked to end, or a peer gave up its wait.
    pub fn exits_on_request(&self) -> bool {
        self.exit.as_ref().is_some_and(|exit| {
            let follows = |request: &Timestamp| !is_before_request(exit.at, *request);
            let mut since = self.timeouts.iter().filter(|it| exit.before <= **it);
            self.asked_to_end.as_ref().is_some_and(follows) || since.any(follows)
        })
    }

    /// Time of its latest record that shows what it did by itself: not one of an exit on request.
    pub fn progressed_at(&self) -> Timestamp {
        let exit = self.exit.filter(|_| self.exits_on_request());
        exit.map_or(self.last_at, |exit| exit.before)
    }

    /// The exception that ended its latest initialization of the world.
    pub fn init_failed(&self) -> Option<&Exception> {
        let init = self.init.as_ref()?;
        self.exceptions.iter().find(|exception| {
            exception.kind == ExceptionKind::LeftCollective
                && exception.at >= init.call.at
                && exception.after_calls == init.call.id.0
                && init.over.is_none_or(|over| exception.at <= over)
        })
    }

    /// Whether it exited with status 0 after a regular shutdown of the interpreter, including exit
    /// handlers.
    pub fn ended_through_the_interpreter(&self) -> bool {
        self.end.is_some_and(|end| end.exit.code == Some(0))
            && self.announced.as_ref().is_some_and(|announced| &*announced.how != "os._exit")
    }

    /// When its program ended in order.
    pub fn left_in_order(&self) -> Option<Timestamp> {
        self.leaving.filter(|_| self.announced_in_order()).map(|(since, _)| since)
    }

    fn announced_in_order(&self) -> bool {
        self.announced.as_ref().is_some_and(|announced| announced.code == 0)
    }

    pub(in crate::model) fn raised(&mut self, mut exception: Exception) {
        /// Enough for the first exceptions and the latest ones.
        const MAX_EXCEPTIONS: usize = 16;
        if exception.asks_to_end() {
            self.count_exit_record(exception.at);
        } else {
            self.count_record(exception.at);
        }
        if exception.kind == ExceptionKind::IgnoredCall {
            exception.place.iter().for_each(|it| self.places.ignored(it));
            return;
        }
        if exception.kind == ExceptionKind::LeftForward {
            self.turns.failed();
        }
        exception.after_calls = self.last_call.as_ref().map_or(0, |call| call.id.0);
        if self.exceptions.len() == MAX_EXCEPTIONS {
            self.exceptions.remove(MAX_EXCEPTIONS / 2);
        }
        self.exceptions.push(exception);
    }
}
