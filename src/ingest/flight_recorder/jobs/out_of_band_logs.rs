//! Logs that other tools wrote of a job: whether they are of the job of the dumps, and by how much their clocks
//! differ.

use super::Job;
use crate::ingest::flight_recorder::dump::Entry;
use crate::ingest::logs::{GivenUp, Log, Statements};

/// Offsets of time zones are multiples of this many nanoseconds: a quarter of an hour.
const ZONES: i64 = 15 * 60 * 1_000_000_000;
/// How much a clock can be behind and ahead of UTC: in nanoseconds, 12 and 14 hours.
const FURTHEST: [i64; 2] = [12 * 3600 * 1_000_000_000, 14 * 3600 * 1_000_000_000];
/// Maximum difference between the time of a call and that in a log, in nanoseconds.
const MAX_SKEW: i64 = 60 * 1_000_000_000;
/// Time after the last call of a dump until which its logs may end: longer than any timeout.
const MAX_WAIT: u64 = 6 * 3600 * 1_000_000_000;

impl Job {
    /// The time to add to the times of logs, in nanoseconds, if they are shown to be of this job:
    /// they state a wait that a dump contains, or they are of the same time and the same world.
    /// `None`: nothing shows it.
    pub(crate) fn offset_of(&self, logs: &Statements) -> Option<i64> {
        let size = self.world_size();
        if logs.ranks().any(|rank| rank >= size) || logs.world_size().is_some_and(|it| it != size) {
            return None;
        }
        let mut waits = logs.given_up().peekable();
        if waits.peek().is_some() {
            return waits.find_map(|it| self.offset_of_wait(&it));
        }
        let (begins, ends) = logs.period();
        let (first, last) = self.period();
        let overlaps = begins.0 <= last.saturating_add(MAX_WAIT) && ends.0 >= first;
        let is_same_world = logs.world_size() == Some(size) && logs.ranks().next().is_some();
        (is_same_world && overlaps).then_some(0)
    }

    fn offset_of_wait(&self, wait: &GivenUp) -> Option<i64> {
        let entries = self.ranks.get(&wait.rank)?.entries.iter();
        let is_it = |entry: &&Entry| {
            let is_group = wait.group.is_empty() || *entry.group.name == *wait.group;
            let is_open = !entry.is_complete() && !entry.is_message;
            is_group && is_open && entry.seq == wait.seq && entry.op == wait.op
        };
        let created = entries.rev().find(is_it)?.created;
        let difference = i64::try_from(created).ok()? - i64::try_from(wait.since.0).ok()?;
        let zone = (difference + ZONES / 2).div_euclid(ZONES) * ZONES;
        let is_zone = (-FURTHEST[1]..=FURTHEST[0]).contains(&zone);
        (is_zone && (difference - zone).abs() <= MAX_SKEW).then_some(zone)
    }

    /// Adds the logs of this job, whose times are behind by `offset` nanoseconds.
    pub(crate) fn add_logs(&mut self, mut logs: Vec<Log>, offset: i64) {
        for log in &mut logs {
            log.shift(offset);
        }
        self.gave_up |= Statements::of(&logs).given_up().next().is_some();
        self.logs.extend(logs);
    }
}
