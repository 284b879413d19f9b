//! How a process goes on: its latest steps, what it spent time on, and how its host let it run.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::Spending;
use ddp_doctor_proto::report::{Timestamp, Where};

use crate::diagnosis::event::{SchedulingSample, ThreadId};

/// Most steps of a process whose beginnings are kept.
const KEPT_STEPS: usize = 256;
/// Most of what else is kept of a process.
const KEPT: usize = 1024;

/// What is known of how a process goes on, oldest first.
#[derive(Debug, Default)]
pub struct Pace {
    /// When its latest steps began.
    pub steps: VecDeque<Timestamp>,
    /// How many began before those.
    pub steps_before: u64,
    /// What it spent time on that is no work of its own.
    pub spent: VecDeque<Spent>,
    /// Where its latest batch was drawn that took it noticeably long.
    pub draws_at: Option<Arc<Where>>,
    /// From when until when the operating system had stopped it; the last one may go on.
    pub stops: VecDeque<(Timestamp, Option<Timestamp>)>,
    /// Marked phases that are over.
    pub phases: VecDeque<(Timestamp, Timestamp)>,
    /// Samples of scheduling, each with the start of the interval it covers.
    pub scheduled: VecDeque<(Timestamp, SchedulingSample)>,
}

/// Time that was spent on something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// On what.
    pub on: Spending,
    /// By which thread.
    pub thread: ThreadId,
    /// From when …
    pub from: Timestamp,
    /// … until when.
    pub to: Timestamp,
}

impl Pace {
    pub(super) fn step(&mut self, at: Timestamp) {
        if self.steps.len() == KEPT_STEPS {
            self.steps.pop_front();
            self.steps_before += 1;
        }
        self.steps.push_back(at);
    }

    pub(super) fn spent(&mut self, on: Spending, thread: ThreadId, took: Duration, at: Timestamp) {
        let from = Timestamp(at.0.saturating_sub(took.as_nanos() as u64));
        let spent = Spent {
            on,
            thread,
            from,
            to: at,
        };
        keep(&mut self.spent, spent);
    }

    /// The operating system stopped it, or lets it run.
    pub(super) fn state(&mut self, is_stopped: bool, at: Timestamp) {
        match self.stops.back_mut() {
            Some((_, over @ None)) if !is_stopped => *over = Some(at),
            Some((_, None)) => {}
            _ if is_stopped => keep(&mut self.stops, (at, None)),
            _ => {}
        }
    }

    /// Until when it is to be let go on, where it was stopped and continued several times lately.
    #[must_use]
    pub fn goes_on_at(&self) -> Option<Timestamp> {
        /// For how long a stop is remembered.
        const LATELY: Duration = Duration::from_secs(30);
        let &(since, None) = self.stops.back()? else {
            return None;
        };
        let before = self.stops.iter().filter_map(|(from, to)| {
            let to = (*to)?;
            (since.since(to) < LATELY).then(|| to.since(*from))
        });
        let before: Vec<Duration> = before.collect();
        let longest = before.iter().max().filter(|_| before.len() > 1)?;
        Some(since.plus(*longest * 2))
    }

    pub(super) fn phase(&mut self, from: Timestamp, to: Timestamp) {
        keep(&mut self.phases, (from, to));
    }

    pub(super) fn scheduled(&mut self, sample: SchedulingSample, from: Timestamp) {
        // Samples are repeated to a coordinator that was lost.
        if self.scheduled.back().is_none_or(|(last, _)| *last < from) {
            keep(&mut self.scheduled, (from, sample));
        }
    }

    /// The mean of something that samples tell, over a time, and 0 to 1; `None`: it was not seen for most
    /// of it.
    #[must_use]
    pub fn share(
        &self,
        of: impl Fn(&SchedulingSample) -> Option<u32>,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<f64> {
        let (mut seen, mut sum) = (Duration::ZERO, 0.0);
        for (i, (begins, sample)) in self.scheduled.iter().enumerate() {
            let next = self.scheduled.get(i + 1);
            let ends = next.map_or(to, |(next, _)| *next).min(to);
            let part = ends.since((*begins).max(from));
            if let Some(value) = of(sample) {
                seen += part;
                sum += part.as_secs_f64() * f64::from(value) / 1000.0;
            }
        }
        let enough = seen * 2 >= to.since(from) && !seen.is_zero();
        enough.then(|| sum / seen.as_secs_f64())
    }

    /// The processors that it may run on, as far as that is known.
    #[must_use]
    pub fn processors(&self) -> Option<&str> {
        let (_, latest) = self.scheduled.back()?;
        Some(&*latest.processors).filter(|it| !it.is_empty())
    }
}

fn keep<T>(kept: &mut VecDeque<T>, one: T) {
    if kept.len() == KEPT {
        kept.pop_front();
    }
    kept.push_back(one);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn queued(permille: u32) -> SchedulingSample {
        SchedulingSample {
            queued_permille: Some(permille),
            ..SchedulingSample::default()
        }
    }

    #[test]
    fn a_sample_holds_until_the_next_one() {
        let mut pace = Pace::default();
        pace.scheduled(queued(0), Timestamp(9 * SECOND));
        pace.scheduled(queued(600), Timestamp(14 * SECOND));
        pace.scheduled(queued(600), Timestamp(14 * SECOND));
        let of = |sample: &SchedulingSample| sample.queued_permille;
        let share =
            |from: u64, to: u64| pace.share(of, Timestamp(from * SECOND), Timestamp(to * SECOND));
        let close = |a: Option<f64>, b: f64| a.is_some_and(|a| (a - b).abs() < 1e-6);
        assert!(close(share(14, 20), 0.6));
        assert!(close(share(9, 14), 0.0));
        assert!(close(share(12, 16), 0.3), "{:?}", share(12, 16));
        assert_eq!(share(1, 5), None, "nothing was seen then");
        let ran = |sample: &SchedulingSample| sample.ran_permille;
        assert_eq!(pace.share(ran, Timestamp(0), Timestamp(20 * SECOND)), None);
    }

    #[test]
    fn stops_have_a_beginning_and_an_end() {
        let mut pace = Pace::default();
        for (stopped, at) in [
            (false, 1),
            (true, 2),
            (true, 3),
            (false, 5),
            (false, 6),
            (true, 8),
        ] {
            pace.state(stopped, Timestamp(at));
        }
        assert_eq!(pace.goes_on_at(), None, "it was stopped once before");
        let stops: Vec<_> = pace.stops.iter().copied().collect();
        let at = |at| Timestamp(at);
        assert_eq!(stops, [(at(2), Some(at(5))), (at(8), None)]);
        pace.state(false, at(9));
        assert_eq!(pace.goes_on_at(), None, "it runs");
        pace.state(true, at(10));
        assert_eq!(pace.goes_on_at(), Some(at(16)));
    }
}
