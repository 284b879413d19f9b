//! How things were, over the whole job, in bounded memory: where it is full, samples become half as
//! frequent.

use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

/// Time between two samples of a job that has just begun.
const BEGIN: Duration = Duration::from_millis(250);

/// Moments at which samples are taken.
#[derive(Clone, Debug)]
pub struct Moments {
    /// When samples were taken, in order.
    pub times: Vec<Timestamp>,
    every: Duration,
    most: usize,
}

/// What is to be done with samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// Every two become one, first.
    pub(super) halve: bool,
}

impl Moments {
    pub(super) const fn new(most: usize) -> Self {
        Self {
            times: Vec::new(),
            every: BEGIN,
            most,
        }
    }

    /// Whether a sample is due.
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

/// Makes one of every two samples, the earlier ones first.
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
    fn a_job_of_any_length_fits() {
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
