//! Statistics of time: who keeps the others waiting, and how long collectives take.

use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use crate::model::Model;

mod clocks;
pub mod communication;
pub mod lateness;

/// The result of the latest evaluation of the model, and its time.
#[derive(Debug, Default)]
struct Review<T> {
    looked_at: Option<Timestamp>,
    found: T,
}

impl<T> Review<T> {
    /// The result of an evaluation at most a moment ago: `patience` is how long, in small, large and very
    /// large jobs.
    fn look(
        &mut self,
        model: &Model,
        now: Timestamp,
        patience: [Duration; 3],
        evaluate: impl FnOnce() -> T,
    ) -> &T {
        let patience = interval(patience, model.arrivals.kept, model.arrivals.covered());
        let is_fresh = |at: Timestamp| now.since(at) < patience && model.over().is_none();
        if !self.looked_at.is_some_and(is_fresh) {
            self.looked_at = Some(now);
            self.found = evaluate();
        }
        &self.found
    }
}

/// The time between evaluations of this many arrivals, which cover a time. It grows with their number, so that
/// each is evaluated a bounded number of times.
fn interval([small, large, very_large]: [Duration; 3], kept: usize, covered: Duration) -> Duration {
    /// Number of kept arrivals above which evaluations become less frequent.
    const MANY: usize = 4096;
    /// Number of evaluations in the time that many arrivals cover …
    const AMORTIZED: u32 = 64;
    /// … unless findings would be this many times later than in other very large jobs. Arrivals may cover hours,
    /// of which the last minutes are evaluated.
    const LATEST: u32 = 3;
    match kept {
        0..MANY => small,
        n if n < 8 * MANY => large,
        _ => (covered / AMORTIZED).clamp(very_large, very_large * LATEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_are_less_frequent_with_many_arrivals() {
        let patience = [1, 10, 1000].map(Duration::from_millis);
        let length =
            |kept, covered_s| interval(patience, kept, Duration::from_secs(covered_s)).as_millis();
        assert_eq!([length(0, 9_999), length(4_096, 9_999)], [1, 10]);
        // A short time with many arrivals, one of two minutes, and hours.
        assert_eq!([1, 128, 9_999].map(|covered| length(262_144, covered)), [1_000, 2_000, 3_000]);
    }
}
