//! Progress of a process: its latest steps, the time it spent, and how the host scheduled it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::Spending;
use ddp_doctor_proto::report::{Timestamp, Where};

use crate::input::event::{SchedulingSample, ThreadId};
use crate::model::keep_latest;

/// Maximum number of steps kept per process.
const MAX_STEPS: usize = 256;
/// Maximum number of samples of scheduling kept per process: somewhat more than the longest time
/// that is examined for stragglers, at one a second.
const MAX_SAMPLES: usize = 448;
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
    /// Samples of scheduling.
    scheduled: VecDeque<Scheduled>,
    /// Processors of the latest sample that it may run on ("0-3,8"); empty: unknown.
    processors: Arc<str>,
}

/// What a sample of scheduling measures, in the units of [`SchedulingSample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Running time of the main thread.
    Ran,
    /// Time in which the main thread had no processor.
    Queued,
    /// Time in which a quota kept the main thread from running.
    Throttled,
    /// Pages read from disk.
    MajorFaults,
    /// Time in which threads had no processor, over all threads.
    ThreadsQueued,
    /// Processor time that a hypervisor gave to others.
    Stolen,
    /// Pressure for processors.
    CpuPressure,
    /// Pressure for memory.
    MemoryPressure,
}

/// A sample of scheduling.
#[derive(Clone, Copy, Debug)]
struct Scheduled {
    /// Start of the interval it covers.
    from: Timestamp,
    /// Values by [`Quantity`], at most `UNKNOWN - 1`.
    values: [u16; 8],
}

/// A value that was not measured.
const UNKNOWN: u16 = u16::MAX;

impl Scheduled {
    fn new(sample: &SchedulingSample, from: Timestamp) -> Self {
        // In the order of `Quantity`.
        let values = [
            sample.ran_permille,
            sample.queued_permille,
            sample.throttled_permille,
            sample.major_faults,
            sample.threads_queued_permille,
            sample.stolen_permille,
            sample.cpu_pressure,
            sample.memory_pressure,
        ];
        let most = u32::from(UNKNOWN) - 1;
        let value = |it: Option<u32>| it.map_or(UNKNOWN, |it| it.min(most) as u16);
        Self { from, values: values.map(value) }
    }

    fn value(&self, quantity: Quantity) -> Option<u32> {
        let value = self.values[quantity as usize];
        (value != UNKNOWN).then_some(u32::from(value))
    }
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
    pub(in crate::model) fn step(&mut self, at: Timestamp) {
        let dropped = keep_latest(&mut self.steps, at, MAX_STEPS);
        self.steps_before += u64::from(dropped.is_some());
    }

    pub(in crate::model) fn spent(&mut self, spent: Spent) {
        keep_latest(&mut self.spent, spent, KEPT);
    }

    /// The operating system stopped or continued the process.
    pub(in crate::model) fn state(&mut self, is_stopped: bool, at: Timestamp) {
        match self.stops.back_mut() {
            Some((_, over @ None)) if !is_stopped => *over = Some(at),
            Some((_, None)) => {}
            _ if is_stopped => {
                keep_latest(&mut self.stops, (at, None), KEPT);
            }
            _ => {}
        }
    }

    /// When a stopped process is expected to continue, if it was stopped and continued at least
    /// twice recently.
    pub fn goes_on_at(&self) -> Option<Timestamp> {
        /// Maximum time since the end of an earlier stop.
        const LATELY: Duration = Duration::from_secs(30);
        let &(since, None) = self.stops.back()? else { return None };
        let before: Vec<Duration> = self
            .stops
            .iter()
            .filter_map(|(from, to)| {
                let to = (*to)?;
                (since.since(to) < LATELY).then(|| to.since(*from))
            })
            .collect();
        let longest = before.iter().max().filter(|_| before.len() > 1)?;
        Some(since.plus(*longest * 2))
    }

    pub(super) fn phase(&mut self, from: Timestamp, to: Timestamp) {
        keep_latest(&mut self.phases, (from, to), KEPT);
    }

    pub(in crate::model) fn scheduled(&mut self, sample: &SchedulingSample, from: Timestamp) {
        // A node repeats samples after a lost connection.
        if self.scheduled.back().is_some_and(|last| last.from >= from) {
            return;
        }
        if self.processors != sample.processors {
            self.processors = Arc::clone(&sample.processors);
        }
        let scheduled = Scheduled::new(sample, from);
        keep_latest(&mut self.scheduled, scheduled, MAX_SAMPLES);
    }

    /// Mean of a sampled value from `from` to `to`, as a share of 1; `None`: not known for at least
    /// half of that time.
    pub fn share(&self, of: Quantity, from: Timestamp, to: Timestamp) -> Option<f64> {
        let (mut seen, mut sum) = (Duration::ZERO, 0.0);
        // Earlier samples end before.
        let first = self.scheduled.partition_point(|sample| sample.from <= from);
        let samples = self.scheduled.iter().enumerate().skip(first.saturating_sub(1));
        for (i, sample) in samples.take_while(|(_, sample)| sample.from < to) {
            let next = self.scheduled.get(i + 1);
            let ends = next.map_or(to, |next| next.from).min(to);
            let part = ends.since(sample.from.max(from));
            if let Some(value) = sample.value(of) {
                seen += part;
                sum += part.as_secs_f64() * f64::from(value) / 1000.0;
            }
        }
        let enough = seen * 2 >= to.since(from) && !seen.is_zero();
        enough.then(|| sum / seen.as_secs_f64())
    }

    /// Processors that it may run on, if known.
    pub fn processors(&self) -> Option<&str> {
        Some(&*self.processors).filter(|it| !it.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn queued(permille: u32) -> SchedulingSample {
        SchedulingSample { queued_permille: Some(permille), ..SchedulingSample::default() }
    }

    #[test]
    fn sample_holds_until_the_next_one() {
        let mut pace = Pace::default();
        pace.scheduled(&queued(0), Timestamp(9 * SECOND));
        pace.scheduled(&queued(600), Timestamp(14 * SECOND));
        pace.scheduled(&queued(600), Timestamp(14 * SECOND));
        let share_of = |of: Quantity, from: u64, to: u64| {
            pace.share(of, Timestamp(from * SECOND), Timestamp(to * SECOND))
        };
        let share = |from: u64, to: u64| share_of(Quantity::Queued, from, to);
        let close = |a: Option<f64>, b: f64| a.is_some_and(|a| (a - b).abs() < 1e-6);
        assert!(close(share(14, 20), 0.6));
        assert!(close(share(9, 14), 0.0));
        assert!(close(share(12, 16), 0.3), "{:?}", share(12, 16));
        assert_eq!(share(1, 5), None, "no samples");
        assert_eq!(share_of(Quantity::Ran, 0, 20), None);
    }

    #[test]
    fn stops_have_a_start_and_an_end() {
        let mut pace = Pace::default();
        for (stopped, at) in [(false, 1), (true, 2), (true, 3), (false, 5), (false, 6), (true, 8)] {
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
