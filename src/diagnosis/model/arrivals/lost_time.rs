//! An upper bound of the time that ranks lost by waiting, by parts of the time.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use super::CompletedCall;

/// Maximum number of parts that are kept.
const MAX_PARTS: usize = 2048;

/// Lost time in the latest parts of the time in which there were encounters.
#[derive(Debug)]
pub(super) struct LostTime {
    /// By the number of the part.
    parts: BTreeMap<u64, Part>,
    /// Length of a part in nanoseconds.
    length: u64,
}

/// Encounters that were under way in a part of the time.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// Sum of the times from each arrival to the last one of its encounter, in nanoseconds.
    waited: u64,
    /// Maximum number of ranks of an encounter.
    most_ranks: usize,
}

impl LostTime {
    pub(super) fn new(part: Duration) -> Self {
        Self { parts: BTreeMap::new(), length: (part.as_nanos() as u64).max(1) }
    }

    pub(super) fn add(&mut self, completed: &CompletedCall) {
        let Some((first, last)) = completed.first_at().zip(completed.last()) else { return };
        let waits = completed.arrivals.iter().map(|arrival| last.at.0 - arrival.at.0);
        let waited = waits.fold(0, u64::saturating_add);
        // A part includes its end, not its start.
        let end = last.at.0.saturating_sub(1) / self.length;
        let begin = (first.0 / self.length).max(end.saturating_sub(MAX_PARTS as u64));
        for number in begin.min(end)..=end {
            let part = self.parts.entry(number).or_default();
            part.waited = part.waited.saturating_add(waited);
            part.most_ranks = part.most_ranks.max(completed.arrivals.len());
        }
        while self.parts.len() > MAX_PARTS {
            self.parts.pop_first();
        }
    }

    /// Upper bound of the time lost by waiting in the encounters of an interval, and the maximum number of ranks
    /// of one; `None`: unknown, since it was too long ago. Costs less than an examination of the encounters.
    pub(super) fn at_most(&self, (from, to): (Timestamp, Timestamp)) -> Option<(Duration, usize)> {
        let first = from.0 / self.length;
        let is_known = self.parts.len() < MAX_PARTS
            || self.parts.first_key_value().is_some_and(|(oldest, _)| *oldest <= first);
        let last = (to.0.saturating_sub(1) / self.length).max(first);
        let parts = self.parts.range(first..=last);
        let both = parts.fold((0_u64, 0), |(waited, most), (_, part)| {
            (waited.saturating_add(part.waited), most.max(part.most_ranks))
        });
        is_known.then_some((Duration::from_nanos(both.0), both.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::arrivals::tests::completed_call;

    #[test]
    fn lost_time_is_bounded_by_parts_of_the_time() {
        const SECOND: u64 = 1_000_000_000;
        let mut losses = LostTime::new(Duration::from_millis(500));
        let lost = |losses: &LostTime, from, to| {
            let lost = losses.at_most((Timestamp(from * SECOND), Timestamp(to * SECOND)));
            lost.map(|(lost, most)| (lost.as_secs(), most))
        };
        losses.add(&completed_call(1, &[SECOND, 3 * SECOND, 2 * SECOND]));
        losses.add(&completed_call(2, &[9 * SECOND, 9 * SECOND]));
        assert_eq!(lost(&losses, 5, 20), Some((0, 2)));
        assert!(lost(&losses, 2, 4).is_some_and(|(lost, most)| lost >= 3 && most == 3));
        (10..10_000)
            .for_each(|at| losses.add(&completed_call(at, &[at * SECOND, at * SECOND + 1])));
        assert_eq!(lost(&losses, 2, 4), None, "too long ago");
        assert!(lost(&losses, 9_990, 9_999).is_some());
        losses.add(&completed_call(10_000, &[0, u64::MAX]));
        assert_eq!(losses.parts.len(), MAX_PARTS);
    }
}
