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
    /// large jobs. With many arrivals it is at least a part of the time in which they were, so that each
    /// is evaluated a bounded number of times.
    fn look(
        &mut self,
        model: &Model,
        now: Timestamp,
        patience: [Duration; 3],
        evaluate: impl FnOnce() -> T,
    ) -> &T {
        /// Number of kept arrivals above which evaluations become less frequent.
        const MANY: usize = 4096;
        /// Maximum number of evaluations in the time that the kept arrivals cover.
        const AMORTIZED: u32 = 64;
        let patience = match model.arrivals.kept {
            0..MANY => patience[0],
            n if n < 8 * MANY => patience[1],
            _ => patience[2].max(model.arrivals.covered() / AMORTIZED),
        };
        let is_fresh = |at: Timestamp| now.since(at) < patience && model.over().is_none();
        if !self.looked_at.is_some_and(is_fresh) {
            self.looked_at = Some(now);
            self.found = evaluate();
        }
        &self.found
    }
}
