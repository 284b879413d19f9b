//! Threads of a process.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::{Timestamp, Where};

use crate::input::event::Call;
use crate::model::ids::Target;
use crate::model::process::buckets::BucketWaits;
use crate::timing::Timing;

/// A thread that issued calls.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    /// Its current activity.
    pub doing: Doing,
    /// Asynchronous call that has not returned.
    pub(super) issuing: Option<Arc<Call>>,
    /// The latest call it issued.
    pub last_call: Option<Arc<Call>>,
    /// Time of its latest record.
    pub last_at: Timestamp,
    /// It issued a call or wait of the program itself. Threads of the backward pass issue only
    /// DDP's calls.
    pub of_the_program: bool,
    /// The same, other than to join or to leave.
    pub(super) trains: bool,
    /// Target, start and end of its latest wait, if an exception ended it and no call or wait
    /// followed.
    pub failed: Option<(Target, Timestamp, Timestamp)>,
    /// Function of the layer below that it is inside, and since when.
    pub within: Option<(Arc<str>, Timestamp)>,
    /// Its waits for DDP's buckets.
    pub buckets: BucketWaits,
}

impl Thread {
    /// Whether it is inside a call or a wait.
    pub const fn is_under_way(&self) -> bool {
        !matches!(self.doing, Doing::Nothing) || self.issuing.is_some()
    }

    /// The asynchronous call that counts as blocked, because it has not returned for `blocked_issue`.
    pub fn held_in(&self, now: Timestamp, timing: &Timing) -> Option<&Arc<Call>> {
        let held = self.issuing.as_ref();
        held.filter(|call| call.at.plus(timing.blocked_issue) <= now)
    }

    /// Since when it has been inside a function of the layer below, if for at least `long`.
    pub fn within_since(&self, now: Timestamp, long: Duration) -> Option<Timestamp> {
        let (_, since) = self.within.as_ref()?;
        (since.plus(long) <= now).then_some(*since)
    }

    /// The call that it is inside. An asynchronous call counts once it is blocked.
    pub fn inside(&self, now: Timestamp, timing: &Timing) -> Option<&Arc<Call>> {
        match &self.doing {
            Doing::Call(call) => Some(call),
            Doing::Nothing => self.held_in(now, timing),
            Doing::Wait(..) => None,
        }
    }
}

/// Current activity of a thread.
#[derive(Clone, Debug, Default)]
pub enum Doing {
    /// None that is recorded: it runs the user's code.
    #[default]
    Nothing,
    /// A call that has not returned.
    Call(Arc<Call>),
    /// A wait, with its target (`None`: unknown), start and line.
    Wait(Option<Target>, Timestamp, Option<Arc<Where>>),
}
