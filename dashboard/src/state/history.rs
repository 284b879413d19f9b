//! History of the whole job in bounded memory: when it is full, its samples are halved and the
//! sampling interval doubles.

use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

/// Sampling interval at the beginning of a job.
const FIRST_INTERVAL: Duration = Duration::from_millis(250);

/// Times at which samples are taken.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Times of the samples taken, in order.
    pub times: Vec<Timestamp>,
    every: Duration,
    most: usize,
}

/// How to take the sample that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// Merge every two samples into one first.
    pub(super) halve: bool,
}

impl Moments {
    pub(super) const fn new(most: usize) -> Self {
        Self { times: Vec::new(), every: FIRST_INTERVAL, most }
    }

    /// Whether a sample is due at `at`. Records its time if so.
    pub(super) fn due(&mut self, at: Timestamp) -> Option<Due> {
        let last = self.times.last().copied();
        if last.is_some_and(|last| at.since(last) < self.every) {
            return None;
        }
        let halve = self.times.len() >= self.most;
        if halve {
            halved(&mut self.times, |_, later| *later);
            self.every *= 2;
        }
        self.times.push(at);
        Some(Due { halve })
    }
}

/// Merges every two samples into one, with the earlier sample as the first argument.
pub(super) fn halved<T: Clone>(samples: &mut Vec<T>, merge: impl Fn(&T, &T) -> T) {
    let pairs = samples.chunks(2).map(|pair| match pair {
        [a, b] => merge(a, b),
        rest => rest[0].clone(),
    });
    *samples = pairs.collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_job_fits_the_bounded_history() {
        let mut moments = Moments::new(64);
        let mut samples = Vec::new();
        for second in 0..100_000_u64 {
            let at = Timestamp(second * 1_000_000_000);
            if let Some(due) = moments.due(at) {
                if due.halve {
                    halved(&mut samples, |_, later| *later);
                }
                samples.push(at);
            }
        }
        assert_eq!(samples, moments.times);
        assert!((32..=64).contains(&samples.len()), "{}", samples.len());
        assert!(samples.is_sorted());
        assert!(samples[1] < Timestamp(8_000_000_000_000), "{}", samples[1]);
    }
}
