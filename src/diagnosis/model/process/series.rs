//! Values of a part of the memory of a process, step by step.

use ddp_doctor_proto::report::Timestamp;

/// Number of steps kept for memory that processes share. It has to fill for a minute before it
/// counts ([`crate::trends::growth`]), and may be measured twice a second.
pub const MAX_SHARED_SAMPLES: usize = 160;
/// Number of steps by which the room for values grows: most values change rarely, and each process has many
/// series.
const GROWTH: usize = 8;

/// A value at the latest steps that have one: the highest of each, so that memory which is released once
/// the loop is over does not count. Only noticeable changes are
/// reported, so a value holds until the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series<const MAX_SAMPLES: usize = 64> {
    samples: Vec<Sample>,
    /// Highest value of steps that are no longer kept.
    pub earlier_peak: u64,
}

/// A value and the step in which it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Time of the measurement.
    pub at: Timestamp,
    /// Training step.
    pub step: u64,
    /// The value.
    pub value: u64,
}

impl<const MAX_SAMPLES: usize> Series<MAX_SAMPLES> {
    /// Adds the value of a step, if both are known. The kept values do not depend on the order in which
    /// values arrive.
    pub fn take(&mut self, value: Option<u64>, step: impl Into<Option<u64>>, at: Timestamp) {
        let Some((value, step)) = value.zip(step.into()) else { return };
        let sample = Sample { at, step, value };
        let place = self.samples.partition_point(|it| it.step < step);
        if let Some(known) = self.samples.get_mut(place).filter(|it| it.step == step) {
            if (known.value, known.at) < (value, at) {
                *known = sample;
            }
        } else if self.samples.len() < MAX_SAMPLES {
            if self.samples.len() == self.samples.capacity() {
                self.samples.reserve_exact(GROWTH);
            }
            self.samples.insert(place, sample);
        } else {
            // The sample takes the place of the oldest one, or is itself the oldest.
            let oldest = if place > 0 { self.samples[0] } else { sample };
            if let Some(before) = place.checked_sub(1) {
                self.samples.copy_within(1..place, 0);
                self.samples[before] = sample;
            }
            self.earlier_peak = self.earlier_peak.max(oldest.value);
        }
    }

    /// Makes the values so far one that precedes the first step.
    pub fn restart(&mut self) {
        let highest = self.samples.iter().max_by_key(|it| (it.value, it.at)).copied();
        let Some(highest) = highest else { return };
        let value = highest.value.max(self.earlier_peak);
        *self = Self { samples: vec![Sample { step: 0, value, ..highest }], earlier_peak: 0 };
    }

    /// The kept values, by step.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// `points` points, evenly spaced over the steps from `first` to `last`, with the value that
    /// held at each.
    pub fn spread(&self, first: u64, last: u64, points: usize) -> Vec<(f64, f64)> {
        let steps = last.saturating_sub(first);
        let step = |i: usize| first + steps * i as u64 / (points.max(2) as u64 - 1);
        let mut spread: Vec<(f64, f64)> = (0..points)
            .filter_map(|i| {
                let step = step(i);
                let after = self.samples.partition_point(|it| it.step <= step);
                let standing = self.samples.get(after.checked_sub(1)?)?;
                Some((step as f64, standing.value as f64))
            })
            .collect();
        spread.dedup_by(|a, b| a.0 == b.0);
        spread
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_samples_does_not_matter() {
        let samples = (0..200_u64).map(|i| (1000 - i, 1 + i / 2, Timestamp(i)));
        let (mut forwards, mut backwards): (Series, Series) = Default::default();
        for (value, step, at) in samples.clone() {
            forwards.take(Some(value), step, at);
        }
        for (value, step, at) in samples.clone().rev().chain(samples) {
            backwards.take(Some(value), step, at);
        }
        assert_eq!(forwards.samples(), backwards.samples());
        assert_eq!(forwards.samples().len(), 64);
        assert_eq!(forwards.samples().last().map(|it| it.value), Some(802));
        assert_eq!(forwards.earlier_peak, 1000);
    }

    #[test]
    fn value_holds_until_the_next_one() {
        let mut series: Series = Series::default();
        for (step, value) in [(2, 10), (4, 30)] {
            series.take(Some(value), step, Timestamp(step));
        }
        let points = series.spread(2, 8, 4);
        assert_eq!(points, [(2.0, 10.0), (4.0, 30.0), (6.0, 30.0), (8.0, 30.0)]);
        assert_eq!(series.spread(1, 3, 3), [(2.0, 10.0), (3.0, 10.0)]);
        assert_eq!(series.spread(3, 3, 5), [(3.0, 10.0)]);
    }
}
