//! The cancellation of a job by its batch system: processes that end after it end because of it. What failed before it has
//! another cause.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::NoteText;
use ddp_doctor_diagnosis::input::{request, transport};
use ddp_doctor_proto::report::Timestamp;

use super::clock::Clock;
use crate::logs::facts::{Fact, Facts, Statement};

/// Why Slurm cancels a step of which it lost a node.
const NODE_FAILURE: &str = "NODE FAILURE";
/// Time by which the loss of a peer precedes a cancellation that did not bring it about.
const APART: Duration = Duration::from_secs(2);
/// What to do, by the reason that the batch system states.
const ADVICE: [(&str, &str); 3] = [
    ("TIME LIMIT", "Request more time, or save checkpoints and resume from them."),
    (
        NODE_FAILURE,
        "Find out which node failed (sacct -o NodeList,State, sinfo -R), and exclude it.",
    ),
    ("PREEMPTION", "Submit it with --requeue, and resume from checkpoints."),
];
const ANY: &str = "Find out what canceled it: a user, or a limit of the batch system.";

/// The first cancellation of an attempt.
#[derive(Debug)]
pub(super) struct Cancellation {
    file: Arc<str>,
    line: u64,
    at: Timestamp,
}

impl Cancellation {
    /// The first one in this period, unless it follows from a failure: a batch system also ends a step in which a process
    /// or a node has failed, and states no reason of its own then.
    pub(super) fn find<'a>(
        all: &[&'a Facts],
        clock: Clock,
        period: Range<Timestamp>,
    ) -> Option<Self> {
        let facts = || {
            let of_log = |log: &&'a Facts| {
                let log = *log;
                clock.times(log).map(move |(fact, at)| (log, fact, at))
            };
            all.iter().flat_map(of_log).filter(|it| period.contains(&it.2))
        };
        let canceled = facts().filter(|it| matches!(it.1.what, Statement::Canceled { .. }));
        let (log, fact, at) = canceled.min_by_key(|it| it.2)?;
        let first = Self { file: Arc::clone(&log.file), line: fact.line.number, at };
        let Statement::Canceled { why, .. } = &fact.what else { return None };
        let has_reason = why.as_ref().is_some_and(|it| &**it != NODE_FAILURE);
        let is_cause = |(log, fact, at)| is_failure(fact) && first.follows(log, fact, at);
        (has_reason || !facts().any(is_cause)).then_some(first)
    }

    /// Whether a process ended, or failed, because of it.
    pub(super) fn explains(&self, fact: &Fact, log: &Facts, at: Timestamp) -> bool {
        if log.file == self.file { fact.line.number > self.line } else { at >= self.at }
    }

    /// Whether it follows what a fact states.
    fn follows(&self, log: &Facts, fact: &Fact, at: Timestamp) -> bool {
        match &fact.what {
            Statement::Raised { text, .. } if transport::is_due_to_others(text) => {
                fact.line.is_dated && at.plus(APART) < self.at
            }
            _ => !self.explains(fact, log, at),
        }
    }
}

/// Whether a fact states a failure that ends a job.
fn is_failure(fact: &Fact) -> bool {
    match &fact.what {
        Statement::Ended(how) | Statement::Failed(how) => {
            !how.is_requested() && how.code != Some(0)
        }
        Statement::Raised { text, uncaught, .. } => *uncaught && request::signal_of(text).is_none(),
        Statement::TimedOut { .. }
        | Statement::KilledForMemory { .. }
        | Statement::NodeFailed { .. } => true,
        _ => false,
    }
}

/// States a cancellation, and what to do.
pub(super) fn note(why: Option<&str>, at: &str) -> NoteText {
    let known = ADVICE.iter().find(|(reason, _)| Some(*reason) == why);
    let advice = known.map_or(ANY, |(_, advice)| advice);
    NoteText::new(words(why, at), advice)
}

/// States a cancellation.
pub(super) fn words(why: Option<&str>, at: &str) -> String {
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    format!("the batch system canceled the job{why} at {at}")
}
