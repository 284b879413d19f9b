//! How a part of the memory of a process went, step by step.

use ddp_doctor_proto::report::Timestamp;

/// Steps of which a value is kept of what others take of as well: that has to fill for a minute before it means
/// anything ([`crate::diagnosis::growth`]), and is measured twice a second where the rank's own memory changes.
pub const KEPT_OF_SHARED: usize = 160;

/// A value at the steps of a process, the last of each step, and of the last so many that have one. Whoever
/// measures says what is noticeable and nothing else, so a value stands until there is another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series<const KEPT: usize = 64> {
    samples: Vec<Sample>,
    /// The most it was before those.
    earlier_peak: u64,
}

/// A value, and where in the training it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When.
    pub at: Timestamp,
    /// In which step.
    pub step: u64,
    /// The value.
    pub value: u64,
}

impl<const KEPT: usize> Series<KEPT> {
    /// Takes a value. In whatever order they come, the same are kept.
    pub fn take(&mut self, value: Option<u64>, step: u64, at: Timestamp) {
        let Some(value) = value else {
            return;
        };
        let sample = Sample { at, step, value };
        let place = self.samples.partition_point(|it| it.step < step);
        match self.samples.get_mut(place).filter(|it| it.step == step) {
            Some(known) if known.at < at => *known = sample,
            Some(_) => {}
            None => self.samples.insert(place, sample),
        }
        if self.samples.len() > KEPT {
            let oldest = self.samples.remove(0);
            self.earlier_peak = self.earlier_peak.max(oldest.value);
        }
    }

    /// What is kept, in the order of steps.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The most it was before what is kept.
    #[must_use]
    pub const fn earlier_peak(&self) -> u64 {
        self.earlier_peak
    }

    /// So many points, evenly spaced over the steps from `first` to `last`, each with the value that stood
    /// then.
    #[must_use]
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
    fn the_order_of_samples_does_not_matter() {
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
        assert_eq!(forwards.samples().last().map(|it| it.value), Some(801));
        assert_eq!(forwards.earlier_peak(), 999);
    }

    #[test]
    fn a_value_stands_until_there_is_another() {
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
