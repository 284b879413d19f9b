//! Progress of a process: its latest steps, the time it spent, and how the host scheduled it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::Spending;
use ddp_doctor_proto::report::{Timestamp, Where};

use crate::input::event::{SchedulingSample, ThreadId};
use crate::model::columns::{Reader, Writer};
use crate::model::keep_latest;

/// Maximum number of steps kept per process.
const MAX_STEPS: usize = 256;
/// Number of samples of scheduling that are packed together …
const PACKED: usize = 32;
/// … and how often, at most: together somewhat more than the longest time that is examined for stragglers, at one a
/// second.
const MAX_PACKED: usize = 14;
/// Maximum number of other entries kept per process, of each kind.
const MAX_KEPT: usize = 1024;

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
    /// Samples of scheduling, except for the latest.
    packed: VecDeque<PackedSamples>,
    /// The latest samples of scheduling, fewer than [`PACKED`].
    scheduled: Vec<Scheduled>,
    /// Start of the interval that the latest sample covers.
    latest: Option<Timestamp>,
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

    /// The value of the quantity with this number.
    fn value(&self, quantity: usize) -> Option<u64> {
        let value = self.values[quantity];
        (value != UNKNOWN).then_some(u64::from(value))
    }
}

/// Samples of scheduling in columns: the starts of their intervals, and the values of each quantity.
#[derive(Debug)]
struct PackedSamples {
    /// The first start.
    from: Timestamp,
    bytes: Box<[u8]>,
}

impl PackedSamples {
    fn new(samples: &[Scheduled]) -> Self {
        let from = samples.first().map_or(Timestamp::default(), |it| it.from);
        let mut writer = Writer::default();
        writer.column(from.0, samples.iter().map(|it| Some(it.from.0)));
        for quantity in 0..samples.first().map_or(0, |it| it.values.len()) {
            writer.column(0, samples.iter().map(|it| it.value(quantity)));
        }
        Self { from, bytes: writer.finish() }
    }

    /// Starts of the intervals, and the values.
    fn values(&self, of: Quantity) -> impl Iterator<Item = (Timestamp, Option<u64>)> {
        let mut reader = Reader::new(&self.bytes);
        let starts = reader.column(self.from.0, PACKED).flatten().map(Timestamp);
        for _ in 0..of as usize {
            reader.column(0, PACKED);
        }
        starts.zip(reader.column(0, PACKED))
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
        keep_latest(&mut self.spent, spent, MAX_KEPT);
    }

    /// The operating system stopped or continued the process.
    pub(in crate::model) fn state(&mut self, is_stopped: bool, at: Timestamp) {
        match self.stops.back_mut() {
            Some((_, over @ None)) if !is_stopped => *over = Some(at),
            Some((_, None)) => {}
            _ if is_stopped => {
                keep_latest(&mut self.stops, (at, None), MAX_KEPT);
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
        keep_latest(&mut self.phases, (from, to), MAX_KEPT);
    }

    pub(in crate::model) fn scheduled(&mut self, sample: &SchedulingSample, from: Timestamp) {
        // A node repeats samples after a lost connection.
        if self.latest.is_some_and(|latest| latest >= from) {
            return;
        }
        self.latest = Some(from);
        if self.processors != sample.processors {
            self.processors = Arc::clone(&sample.processors);
        }
        if self.scheduled.len() == self.scheduled.capacity() {
            self.scheduled.reserve_exact(PACKED / 4);
        }
        self.scheduled.push(Scheduled::new(sample, from));
        if self.scheduled.len() == PACKED {
            keep_latest(&mut self.packed, PackedSamples::new(&self.scheduled), MAX_PACKED);
            self.scheduled.clear();
        }
    }

    /// Mean of a sampled value from `from` to `to`, as a share of 1; `None`: not known for at least
    /// half of that time.
    pub fn share(&self, of: Quantity, from: Timestamp, to: Timestamp) -> Option<f64> {
        let (mut seen, mut sum) = (Duration::ZERO, 0.0);
        // Earlier samples end before.
        let first = self.packed.partition_point(|packed| packed.from <= from);
        let packed = self.packed.iter().skip(first.saturating_sub(1));
        let latest = self.scheduled.iter().map(|sample| (sample.from, sample.value(of as usize)));
        let mut samples = packed.flat_map(|it| it.values(of)).chain(latest).peekable();
        while let Some((begins, value)) = samples.next_if(|(begins, _)| *begins < to) {
            let ends = samples.peek().map_or(to, |(next, _)| *next).min(to);
            let part = ends.since(begins.max(from));
            if let Some(value) = value {
                seen += part;
                sum += part.as_secs_f64() * value as f64 / 1000.0;
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
    fn packed_samples_are_exact_and_bounded() {
        let mut pace = Pace::default();
        let value = |second: u64| second * 7 % 500;
        for second in 0..1_000 {
            pace.scheduled(&queued(value(second) as u32), Timestamp(second * SECOND));
        }
        let share = |of: Quantity, from: u64, to: u64| {
            pace.share(of, Timestamp(from * SECOND), Timestamp(to * SECOND))
        };
        for (from, to) in [(990, 1_000), (600, 1_000), (930, 970)] {
            let sum: u64 = (from..to).map(value).sum();
            let mean = sum as f64 / (to - from) as f64 / 1_000.0;
            let share = share(Quantity::Queued, from, to);
            assert!(share.is_some_and(|share| (share - mean).abs() < 1e-9), "{share:?}");
        }
        assert_eq!(share(Quantity::Queued, 1, 100), None, "dropped");
        assert_eq!(share(Quantity::Ran, 900, 1_000), None);
        assert_eq!(pace.packed.len(), MAX_PACKED);
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
