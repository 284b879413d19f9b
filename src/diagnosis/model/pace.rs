//! Progress of a process: its latest steps, the time it spent, and how the host scheduled it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::Spending;
use ddp_doctor_proto::report::{Timestamp, Where};

use crate::evidence::event::{SchedulingSample, ThreadId};

/// Maximum number of steps kept per process.
const KEPT_STEPS: usize = 256;
/// Maximum number of samples of scheduling kept per process: somewhat more than the longest time
/// that is examined for stragglers, at one a second.
const KEPT_SAMPLES: usize = 448;
/// Maximum number of other entries kept per process, of each kind.
const KEPT: usize = 1024;

/// Progress of a process; all lists are oldest first.
#[derive(Debug, Default)]
pub struct Pace {
    /// When the latest steps began.
    pub steps: VecDeque<Timestamp>,
    /// Number of steps before those.
    pub steps_before: u64,
    /// Time spent on something other than the process's own work.
    pub spent: VecDeque<Spent>,
    /// Where the latest batch was drawn that took noticeable time.
    pub draws_at: Option<Arc<Where>>,
    /// When the operating system stopped the process, and when it continued; only the last entry
    /// may be open.
    pub stops: VecDeque<(Timestamp, Option<Timestamp>)>,
    /// Start and end of marked phases that are over.
    pub phases: VecDeque<(Timestamp, Timestamp)>,
    /// Samples of scheduling, each with the start of the interval it covers.
    pub scheduled: VecDeque<(Timestamp, SchedulingSample)>,
}

/// Time spent on something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// What it was spent on.
    pub on: Spending,
    /// Thread that spent it.
    pub thread: ThreadId,
    /// Start …
    pub from: Timestamp,
    /// … and end.
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
        keep(&mut self.spent, spent, KEPT);
    }

    /// The operating system stopped or continued the process.
    pub(super) fn state(&mut self, is_stopped: bool, at: Timestamp) {
        match self.stops.back_mut() {
            Some((_, over @ None)) if !is_stopped => *over = Some(at),
            Some((_, None)) => {}
            _ if is_stopped => keep(&mut self.stops, (at, None), KEPT),
            _ => {}
        }
    }

    /// When a stopped process is expected to continue, if it was stopped and continued at least
    /// twice recently.
    #[must_use]
    pub fn goes_on_at(&self) -> Option<Timestamp> {
        /// Maximum time since the end of an earlier stop.
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
        keep(&mut self.phases, (from, to), KEPT);
    }

    pub(super) fn scheduled(&mut self, mut sample: SchedulingSample, from: Timestamp) {
        if let Some((last, known)) = self.scheduled.back() {
            // A node repeats samples after a lost connection.
            if *last >= from {
                return;
            }
            if known.processors == sample.processors {
                sample.processors = Arc::clone(&known.processors);
            }
        }
        keep(&mut self.scheduled, (from, sample), KEPT_SAMPLES);
    }

    /// Mean of a sampled value from `from` to `to`, as a share of 1; `None`: not known for at least
    /// half of that time.
    #[must_use]
    pub fn share(
        &self,
        of: impl Fn(&SchedulingSample) -> Option<u32>,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<f64> {
        let (mut seen, mut sum) = (Duration::ZERO, 0.0);
        // Earlier samples end before.
        let first = self
            .scheduled
            .partition_point(|(begins, _)| *begins <= from);
        let samples = self.scheduled.iter().enumerate();
        let samples = samples.skip(first.saturating_sub(1));
        for (i, (begins, sample)) in samples.take_while(|(_, (begins, _))| *begins < to) {
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

    /// Processors that it may run on, if known.
    #[must_use]
    pub fn processors(&self) -> Option<&str> {
        let (_, latest) = self.scheduled.back()?;
        Some(&*latest.processors).filter(|it| !it.is_empty())
    }
}

fn keep<T>(kept: &mut VecDeque<T>, one: T, most: usize) {
    if kept.len() == most {
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
    fn sample_holds_until_the_next_one() {
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
        assert_eq!(share(1, 5), None, "no samples");
        let ran = |sample: &SchedulingSample| sample.ran_permille;
        assert_eq!(pace.share(ran, Timestamp(0), Timestamp(20 * SECOND)), None);
    }

    #[test]
    fn stops_have_a_start_and_an_end() {
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
        assert_eq!(pace.goes_on_at(), None, "one earlier stop only");
        let stops: Vec<_> = pace.stops.iter().copied().collect();
        let at = |at| Timestamp(at);
        assert_eq!(stops, [(at(2), Some(at(5))), (at(8), None)]);
        pace.state(false, at(9));
        assert_eq!(pace.goes_on_at(), None, "running");
        pace.state(true, at(10));
        assert_eq!(pace.goes_on_at(), Some(at(16)));
    }
}
