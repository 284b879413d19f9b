//! Logs that other tools wrote of a job: whether they are of the job of the dumps, and by how much their clocks
//! differ.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use super::DumpedJob;
use crate::flight_recorder::dump::Entry;
use crate::logs::{GivenUp, Log, Statements};

/// Offsets of time zones are multiples of this many nanoseconds: a quarter of an hour.
const ZONES: i64 = 15 * 60 * 1_000_000_000;
/// Most offsets are multiples of this many nanoseconds.
const HOUR: i64 = 3600 * 1_000_000_000;
/// How much a clock can be behind and ahead of UTC: in nanoseconds, 12 and 14 hours.
const FURTHEST: [i64; 2] = [12 * 3600 * 1_000_000_000, 14 * 3600 * 1_000_000_000];
/// Maximum difference between the time of a call and that in a log, in nanoseconds.
const MAX_SKEW: i64 = 60 * 1_000_000_000;
/// Time after the last call of a dump until which its logs may end: longer than any timeout.
const MAX_WAIT: u64 = 6 * 3600 * 1_000_000_000;

impl DumpedJob {
    /// The time to add to the times of logs, in nanoseconds, if they are shown to be of this job:
    /// they state a wait that a dump contains, or they are of the same time and the same world.
    /// `None`: nothing shows it.
    pub fn offset_of(&self, logs: &Statements) -> Option<i64> {
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

    /// The time to add to the times of logs, in nanoseconds, if they may be of this job.
    ///
    /// # Errors
    ///
    /// What contradicts that: a rank, the size of the world, a wait, or the times.
    pub fn possible_offset_of(&self, logs: &[Log], stated: &Statements) -> Result<i64, String> {
        let size = self.world_size();
        if let Some(other) = stated.world_size().filter(|it| *it != size) {
            return Err(format!("it states a world of {other} ranks, and the dumps one of {size}"));
        }
        if let Some(rank) = stated.ranks().find(|rank| *rank >= size) {
            return Err(format!(
                "it names rank {rank}, and the dumps are of a world of {size} ranks"
            ));
        }
        let is_dated = logs.iter().any(Log::is_dated);
        if let Some(wait) = stated.given_up().find(|it| self.contradicts(it, is_dated)) {
            let GivenUp { rank, op, seq, .. } = wait;
            return Err(format!(
                "it states that rank {rank} gave up on {op} #{seq}, and the dump of that rank does not, or not then"
            ));
        }
        let (first, last) = self.period();
        if !is_dated || last == 0 {
            // They have the time of their files, which may be copies.
            let ends = stated.period().1.0;
            return Ok(i64::try_from(last).unwrap_or(i64::MAX).saturating_sub_unsigned(ends));
        }
        let (begins, ends) = stated.period();
        let overlaps = |zone: &i64| {
            let [begins, ends] = [begins, ends].map(|at| at.0.saturating_add_signed(*zone));
            begins <= last.saturating_add(MAX_WAIT) && ends >= first
        };
        let zones = (-56..=48).map(|quarters: i64| quarters * ZONES).filter(overlaps);
        zones.min_by_key(|zone| zone.abs()).ok_or_else(|| {
            format!("it ends at {ends} by its clock, and the dumps begin at {}", Timestamp(first))
        })
    }

    /// Whether the dump of a rank shows that it did not give up this wait; `is_dated`: or not at that time.
    fn contradicts(&self, wait: &GivenUp, is_dated: bool) -> bool {
        let Some(dump) = self.ranks.get(&wait.rank) else { return false };
        let is_of_group = |entry: &Entry<'_>| {
            let is_group = wait.group.is_empty() || *entry.group.name == *wait.group;
            is_group && !entry.is_message
        };
        let of_group = || dump.entries().filter(is_of_group);
        // A device executes the collectives of a group in order.
        if of_group().any(|entry| entry.is_complete() && entry.seq > wait.seq) {
            return true;
        }
        let mut same = of_group().filter(|entry| entry.seq == wait.seq).peekable();
        let differs = |entry: Entry<'_>| entry.is_complete() || !agree(entry.op, wait.op);
        same.peek().is_some() && (is_dated || same.all(differs))
    }

    fn offset_of_wait(&self, wait: &GivenUp) -> Option<i64> {
        let entries = self.ranks.get(&wait.rank)?.entries();
        let is_it = |entry: &Entry<'_>| {
            let is_group = wait.group.is_empty() || *entry.group.name == *wait.group;
            let is_open = !entry.is_complete() && !entry.is_message;
            is_group && is_open && entry.seq == wait.seq && agree(entry.op, wait.op)
        };
        let created = entries.filter(is_it).last()?.created;
        let difference = i64::try_from(created).ok()? - i64::try_from(wait.since.0).ok()?;
        // The same call of another attempt is at least the timeout apart.
        let half = i64::try_from(wait.lasted.as_nanos() / 2).unwrap_or(i64::MAX).min(HOUR / 4);
        let mut zones = [(ZONES, MAX_SKEW), (HOUR, half)]
            .into_iter()
            .map(|(step, skew)| ((difference + step / 2).div_euclid(step) * step, skew));
        let is_zone = |zone: i64| (-FURTHEST[1]..=FURTHEST[0]).contains(&zone);
        let found = zones.find(|&(zone, skew)| is_zone(zone) && (difference - zone).abs() <= skew);
        found.map(|(zone, _)| zone)
    }

    /// Adds the logs of this job, whose times are behind by `offset` nanoseconds.
    pub fn add_logs(&mut self, mut logs: Vec<Log>, offset: i64) {
        for log in &mut logs {
            log.shift(offset);
        }
        let stated = Statements::new(&logs);
        self.gave_up |= stated.has_timed_out();
        self.has_failed |= stated.has_failed();
        self.logs.extend(logs);
    }
}

/// Whether two operations may be one.
fn agree(one: Op, other: Op) -> bool {
    one == other || one == Op::Unspecified || other == Op::Unspecified
}
