//! When the evidence of a job is incomplete: intervals without the records of some process.
//!
//! They are the intervals between two pulls while digests replace records, and those in which records were lost.
//! Shares of time refer to the time outside of them.

use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

/// Maximum number of gaps that are kept.
const MAX_GAPS: usize = 1024;

/// The latest gaps, disjoint and by time.
#[derive(Debug, Default)]
pub struct Gaps(Vec<(Timestamp, Timestamp)>);

impl Gaps {
    /// The records of a process between these times are unknown.
    pub(super) fn add(&mut self, from: Timestamp, to: Timestamp) {
        if from >= to {
            return;
        }
        let first = self.0.partition_point(|gap| gap.1 < from);
        let end = self.0.partition_point(|gap| gap.0 <= to);
        let known = &self.0[first..end];
        let from = known.first().map_or(from, |gap| gap.0.min(from));
        let to = known.last().map_or(to, |gap| gap.1.max(to));
        self.0.splice(first..end, [(from, to)]);
        if self.0.len() > MAX_GAPS {
            self.0.remove(0);
        }
    }

    /// The parts of an interval outside of all gaps, in order.
    pub fn seen(
        &self,
        from: Timestamp,
        to: Timestamp,
    ) -> impl Iterator<Item = (Timestamp, Timestamp)> {
        let first = self.0.partition_point(|gap| gap.1 <= from);
        let gaps = self.0[first..].iter().take_while(move |gap| gap.0 < to);
        let begins = std::iter::once(from).chain(gaps.clone().map(|gap| gap.1));
        let ends = gaps.map(|gap| gap.0).chain([to]);
        begins.zip(ends).filter(|(begin, end)| begin < end)
    }

    /// Duration of an interval without its gaps.
    pub fn seen_for(&self, from: Timestamp, to: Timestamp) -> Duration {
        self.seen(from, to).map(|(begin, end)| end.since(begin)).sum()
    }

    /// The latest time before `to` from which on at least `duration` is outside of all gaps.
    pub fn before(&self, to: Timestamp, duration: Duration) -> Timestamp {
        let mut from = to.minus(duration);
        for gap in self.0.iter().rev().filter(|gap| gap.0 < to) {
            if gap.1.min(to) <= from {
                break;
            }
            from = from.minus(gap.1.min(to).since(gap.0));
        }
        from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(all: &[(u64, u64)]) -> Gaps {
        let mut gaps = Gaps::default();
        for &(from, to) in all {
            gaps.add(Timestamp(from), Timestamp(to));
        }
        gaps
    }

    fn seen(gaps: &Gaps, from: u64, to: u64) -> Vec<(u64, u64)> {
        let seen = gaps.seen(Timestamp(from), Timestamp(to));
        seen.map(|(from, to)| (from.0, to.0)).collect()
    }

    #[test]
    fn gaps_of_processes_are_joined() {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
            let all = [(10, 20), (15, 22), (40, 50), (50, 55)];
            let gaps = gaps(&order.map(|i: usize| all[i]));
            assert_eq!(seen(&gaps, 0, 60), [(0, 10), (22, 40), (55, 60)]);
            assert_eq!(seen(&gaps, 12, 21), []);
            assert_eq!(seen(&gaps, 5, 45), [(5, 10), (22, 40)]);
            let seen_for = gaps.seen_for(Timestamp(5), Timestamp(45));
            assert_eq!(seen_for, Duration::from_nanos(23));
        }
        assert_eq!(seen(&gaps(&[(7, 7)]), 5, 9), [(5, 9)], "no gap");
    }

    #[test]
    fn time_before_leaves_gaps_out() {
        let gaps = gaps(&[(10, 20), (40, 50)]);
        let before = |to, duration| gaps.before(Timestamp(to), Duration::from_nanos(duration)).0;
        assert_eq!(before(60, 10), 50);
        assert_eq!(before(60, 12), 38);
        assert_eq!(before(60, 31), 9);
        assert_eq!(before(45, 5), 35);
        assert_eq!(before(30, 50), 0);
        for (to, duration) in [(60, 12), (60, 31), (45, 5)] {
            let from = Timestamp(before(to, duration));
            assert_eq!(gaps.seen_for(from, Timestamp(to)).as_nanos() as u64, duration);
        }
    }

    #[test]
    fn gaps_are_bounded() {
        let all: Vec<(u64, u64)> = (0..3000).map(|i| (10 * i, 10 * i + 1)).collect();
        let gaps = gaps(&all);
        assert_eq!(gaps.0.len(), MAX_GAPS);
        assert_eq!(seen(&gaps, 29_985, 29_999), [(29_985, 29_990), (29_991, 29_999)]);
    }
}
