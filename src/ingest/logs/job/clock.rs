//! Times of facts in lines that have none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ddp_doctor_diagnosis::input::transport::is_due_to_others;
use ddp_doctor_proto::report::Timestamp;

use super::joins::is_about_a_wait;
use crate::logs::Log;
use crate::logs::facts::{Fact, Facts, Statement};

/// Time by which facts without one precede those with one.
pub(in super::super) const EARLIER: Duration = Duration::from_secs(1);

/// The time before `at`.
pub(in super::super) fn before(at: Timestamp, by: Duration) -> Timestamp {
    Timestamp(at.0.saturating_sub(by.as_nanos() as u64))
}

/// Times of facts.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    /// Time of the first fact that has one.
    pub(super) first: Timestamp,
    /// Time of facts without one.
    undated: Timestamp,
    /// First and last time that lines state; zero: none does.
    period: (Timestamp, Timestamp),
}

/// Maximum difference between the times of the kernel and of a job that are those of one period: the kernel may use another
/// time zone.
const MAX_APART: Duration = Duration::from_secs(15 * 3600);

impl Clock {
    pub(super) fn new(logs: &[Log]) -> Self {
        let facts = logs.iter().flat_map(|log| &log.facts.facts);
        let stacks = logs.iter().flat_map(|log| &log.facts.stacks);
        let times = facts.map(|fact| fact.at).chain(stacks.map(|it| it.at));
        let first = times.filter(|at| at.0 > 0).min();
        let written = logs.iter().map(|log| log.written).max();
        let undated = first.map(|first| before(first, EARLIER)).or(written);
        let begins = logs.iter().map(|log| log.facts.first).filter(|at| at.0 > 0).min();
        let ends = logs.iter().map(|log| log.facts.last).max().unwrap_or_default();
        Self {
            first: first.or(written).unwrap_or_default(),
            undated: undated.unwrap_or_default(),
            period: (begins.unwrap_or_default(), ends),
        }
    }

    /// The facts of a log with their times.
    pub(super) fn times(self, facts: &Facts) -> impl Iterator<Item = (&Fact, Timestamp)> {
        let times =
            of_facts(facts).into_iter().enumerate().map(move |(index, at)| self.time(at, index));
        let has_other = facts.facts.iter().any(is_own_failure);
        let facts_with_times = facts.facts.iter().zip(times).map(move |(fact, at)| {
            // Where no line has a time, consequences follow the failures.
            let is_undated = fact.at.0 == 0 && facts.last.0 == 0;
            let is_late = is_undated && has_other && may_be_later(fact);
            let at = if is_late { at.plus(EARLIER / 2) } else { at };
            (fact, self.stated_by_kernel(fact).unwrap_or(at))
        });
        facts_with_times.filter(move |(fact, _)| !self.is_of_another_period(fact))
    }

    /// When the kernel reported the fault of a device, if that is within the period of the job.
    fn stated_by_kernel(self, fact: &Fact) -> Option<Timestamp> {
        let (begins, ends) = self.period;
        fact.who.gpu.as_ref()?.on.filter(|on| (begins..=ends).contains(on))
    }

    /// Whether the kernel reported the fault of a device long before or after the job: its log reaches back to the start of
    /// the host.
    fn is_of_another_period(self, fact: &Fact) -> bool {
        let (begins, ends) = self.period;
        let on = fact.who.gpu.as_ref().and_then(|gpu| gpu.on).filter(|_| begins.0 > 0);
        on.is_some_and(|on| on.plus(MAX_APART) < begins || ends.plus(MAX_APART) < on)
    }

    /// The time of the fact with this index in its file; facts keep their order.
    pub(super) fn time(self, at: Timestamp, index: usize) -> Timestamp {
        let at = if at.0 > 0 { at } else { self.undated };
        at.plus(Duration::from_nanos(index as u64))
    }

    /// Time of the last restart if a failure follows it, or if the ranks are known to go on: what is stated before it
    /// concerns an earlier attempt. Otherwise zero.
    pub(super) fn last_restart(self, all: &[&Facts]) -> Timestamp {
        let facts = || all.iter().flat_map(|facts| self.times(facts));
        let last = |kinds: &[Statement]| {
            let restarts = facts().filter(|(fact, _)| kinds.contains(&fact.what));
            restarts.map(|(_, at)| at).max().unwrap_or_default()
        };
        let goes_on = last(&[Statement::Requeued]);
        let last = goes_on.max(last(&[Statement::Restarted]));
        let fails = |(fact, at): (&Fact, Timestamp)| {
            let is_failure = match fact.what {
                Statement::Ended(how) | Statement::EndedLater(how) | Statement::Failed(how) => {
                    how.code != Some(0)
                }
                Statement::Raised { uncaught, .. } => uncaught,
                Statement::TimedOut { .. }
                | Statement::Interrupted { .. }
                | Statement::Canceled { .. } => true,
                _ => false,
            };
            is_failure && at > last
        };
        if facts().any(fails) { last } else { goes_on }
    }
}

/// The times of all facts.
///
/// A line without a time was written between the one with a time before it and the next one. Failures are
/// read as early as that. What another rank may have brought about, a wait that was given up or the loss
/// of a peer, is read as late as that: in the failure report of the rank, if there is one.
fn of_facts(facts: &Facts) -> Vec<Timestamp> {
    let mut times: Vec<Timestamp> = Vec::with_capacity(facts.facts.len());
    // Times of the facts below, and of the next reported end of each rank.
    let mut below = BTreeSet::new();
    let mut ends: BTreeMap<u32, Timestamp> = BTreeMap::new();
    for fact in facts.facts.iter().rev() {
        let rank = fact.who.label.rank.or(fact.who.rank);
        let own = rank.and_then(|rank| ends.get(&rank)).copied().filter(|&at| at > fact.at);
        let next = below.range(Timestamp(fact.at.0 + 1)..).next().copied();
        let latest = own.or(next).unwrap_or(facts.last.max(fact.at));
        times.push(if may_be_later(fact) { latest } else { fact.at });
        below.insert(fact.at);
        if let (Statement::Ended(_) | Statement::EndedLater(_), Some(rank)) = (&fact.what, rank) {
            ends.insert(rank, fact.at);
        }
    }
    times.reverse();
    times
}

/// Whether the fact is a failure that nothing else brought about.
fn is_own_failure(fact: &Fact) -> bool {
    let is_failure = matches!(
        fact.what,
        Statement::Raised { .. }
            | Statement::Ended(_)
            | Statement::EndedLater(_)
            | Statement::Failed(_)
    );
    is_failure && !may_be_later(fact)
}

fn may_be_later(fact: &Fact) -> bool {
    let is_consequence = match &fact.what {
        Statement::TimedOut { .. } => true,
        Statement::Raised { text, .. } => is_due_to_others(text) || is_about_a_wait(text),
        _ => false,
    };
    is_consequence && !fact.line.is_dated
}
