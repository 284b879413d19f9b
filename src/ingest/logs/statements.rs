//! What logs add to other evidence of their job: exceptions, ends and stacks of ranks. Calls are left to
//! the other evidence, which records them.

use std::collections::BTreeSet;
use std::time::Duration;

use ddp_doctor_diagnosis::event::Event;
use ddp_doctor_diagnosis::input::transport;
use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use super::Log;
use super::events;
use super::job::{LoggedJob, Topic};

/// Statements of the logs of one job.
pub struct Statements {
    job: LoggedJob,
}

/// A collective that a watchdog gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// The rank that waited.
    pub rank: u32,
    /// Name of its group; empty: not stated.
    pub group: String,
    /// Number within the group, as PyTorch counts.
    pub seq: u64,
    /// The operation.
    pub op: Op,
    /// When the wait began, by the clock of the log.
    pub since: Timestamp,
    /// How long it lasted.
    pub lasted: Duration,
}

impl std::fmt::Debug for Statements {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Statements").finish_non_exhaustive()
    }
}

impl Statements {
    /// The statements of these logs.
    #[must_use]
    pub fn new(logs: &[Log]) -> Self {
        Self { job: LoggedJob::of_logs(logs) }
    }

    /// World size, if the text states it.
    #[must_use]
    pub const fn world_size(&self) -> Option<u32> {
        self.job.names.world
    }

    /// Ranks that the text names.
    pub fn ranks(&self) -> impl Iterator<Item = u32> {
        self.job.ranks.keys().copied()
    }

    /// Ranks with their process ids, as far as the text states them.
    pub fn pids(&self) -> impl Iterator<Item = (u32, u32)> {
        let processes = self.job.names.processes.iter();
        processes.filter_map(|(&rank, (_, pid))| Some((rank, (*pid)?)))
    }

    /// Time of the first and of the last fact.
    #[must_use]
    pub const fn period(&self) -> (Timestamp, Timestamp) {
        (self.job.begins(), self.job.ends)
    }

    /// Collectives that watchdogs gave up.
    pub fn given_up(&self) -> impl Iterator<Item = GivenUp> {
        self.job.ranks.iter().flat_map(|(&rank, known)| {
            known.waits.iter().map(move |(group, waiting)| GivenUp {
                rank,
                group: group.name.clone(),
                seq: waiting.seq,
                op: waiting.op,
                since: waiting.since,
                lasted: waiting.at.since(waiting.since),
            })
        })
    }

    /// Whether some rank gave up a wait for others, in its watchdog or by an exception.
    #[must_use]
    pub fn has_timed_out(&self) -> bool {
        let raised = self.job.ranks.values().flat_map(|rank| &rank.raised);
        let is_end_of_wait =
            |text: &str| transport::is_due_to_others(text) && transport::is_timeout(text);
        self.given_up().next().is_some() || raised.into_iter().any(|it| is_end_of_wait(&it.text))
    }

    /// Whether some rank ended, or raised an exception that nothing caught.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let mut ranks = self.job.ranks.values();
        ranks.any(|rank| rank.ended.is_some() || rank.raised.iter().any(|it| it.uncaught))
    }

    /// Exceptions, ends and stacks as events. What ranks raised and how they ended from `given_up`
    /// on, when the first wait was given up, is a consequence, and left out.
    #[must_use]
    pub fn events(mut self, given_up: Timestamp) -> OfRanks {
        let first = self.job.given_up.map_or(given_up, |it| it.min(given_up));
        self.job.given_up = Some(first);
        self.job.drop_consequences(true);
        self.job.add_ends();
        self.job.note_network();
        let mut of_ranks = OfRanks::default();
        for (&rank, known) in &self.job.ranks {
            if known.ended.is_some() {
                of_ranks.ended.insert(rank);
            } else if known.raised.iter().any(|it| it.uncaught) {
                of_ranks.raised.insert(rank);
            }
        }
        let ends = self.job.ends;
        let notes = std::mem::take(&mut self.job.notes)
            .into_iter()
            .filter(|(topic, _)| !matches!(topic, Topic::Waits | Topic::Startup))
            .map(|(_, text)| (ends, events::note(text, ends)));
        self.job.events.extend(notes);
        self.job.events.sort_by_key(|(at, _)| *at);
        let events = self.job.events.into_iter();
        of_ranks.events = events.map(|(_, event)| event).collect();
        of_ranks
    }
}

/// What logs state of ranks before the first wait was given up.
#[derive(Debug, Default)]
pub struct OfRanks {
    /// In the order of their times.
    pub events: Vec<Event>,
    /// Ranks that ended.
    pub ended: BTreeSet<u32>,
    /// Ranks that raised an exception that nothing caught, and whose end is not stated.
    pub raised: BTreeSet<u32>,
}

impl OfRanks {
    /// Whether the rank ended, or raised an exception that nothing caught.
    #[must_use]
    pub fn is_gone(&self, rank: u32) -> bool {
        self.ended.contains(&rank) || self.raised.contains(&rank)
    }
}
