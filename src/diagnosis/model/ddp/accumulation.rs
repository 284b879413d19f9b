//! Gradient accumulation of a rank: which of its training forwards synchronise gradients.

use std::collections::VecDeque;

use ddp_doctor_proto::report::Timestamp;

use crate::evidence::event::Forward;
use crate::model::keep_latest;

/// Number of synchronised forwards kept.
const KEPT: usize = 64;

/// Training forwards of a rank, in order.
#[derive(Debug, Default)]
pub struct Accumulation {
    /// Number of forwards.
    pub forwards: u64,
    /// Number of those that synchronise.
    synchronised: u64,
    /// 1-based indices of the latest synchronised forwards and when they began, oldest first.
    recent: VecDeque<(u64, Timestamp)>,
    /// Records were lost: forwards cannot be counted.
    lossy: bool,
}

impl Accumulation {
    pub(in crate::model) fn begin(&mut self, forward: &Forward, at: Timestamp) {
        self.forwards += 1;
        if !forward.unsynchronised {
            self.synchronised += 1;
            keep_latest(&mut self.recent, (self.forwards, at), KEPT);
        }
    }

    pub(in crate::model) const fn lost(&mut self) {
        self.lossy = true;
    }

    /// Whether the `nth` forward, from 1, synchronises; `None`: it has not begun, or is no longer
    /// known.
    pub fn is_synchronised(&self, nth: u64) -> Option<bool> {
        let oldest = self.recent.front().map(|&(nth, _)| nth);
        let known = self.synchronised <= KEPT as u64 || oldest <= Some(nth);
        let made = (1..=self.forwards).contains(&nth) && !self.lossy;
        (known && made).then(|| self.recent.iter().any(|&(it, _)| it == nth))
    }

    /// The latest synchronised forward that began before this time, from 1.
    pub fn synchronised_before(&self, at: Timestamp) -> Option<u64> {
        let mut latest = self.recent.iter().rev();
        latest.find(|(_, began)| *began <= at).map(|&(nth, _)| nth)
    }

    /// Whether both ranks synchronise at the same forwards: always (`true`), never (`false`) or
    /// sometimes (`None`). Compares as many synchronised forwards as both have.
    pub fn went_with(&self, other: &Self) -> Option<bool> {
        let nth = |it: &Self, nth: u64| {
            let first = it.synchronised - it.recent.len() as u64;
            let at = usize::try_from(nth.checked_sub(first + 1)?).ok()?;
            it.recent.get(at).map(|&(nth, _)| nth)
        };
        let both = 1..=self.synchronised.min(other.synchronised);
        let mut pairs = both.filter_map(|n| Some(nth(self, n)? == nth(other, n)?));
        let first = pairs.next().unwrap_or(true);
        pairs.all(|it| it == first).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(flags: &str) -> Accumulation {
        let mut accumulation = Accumulation::default();
        for flag in flags.chars() {
            let forward = Forward { unsynchronised: flag == '.', ..Forward::default() };
            let at = Timestamp(10 * (accumulation.forwards + 1));
            accumulation.begin(&forward, at);
        }
        accumulation
    }

    #[test]
    fn forwards_are_counted_from_one() {
        let it = of("..s.s");
        assert_eq!(it.forwards, 5);
        assert_eq!(it.is_synchronised(3), Some(true));
        assert_eq!(it.is_synchronised(4), Some(false));
        assert_eq!(it.is_synchronised(0), None);
        assert_eq!(it.is_synchronised(6), None);
    }

    #[test]
    fn the_forward_of_a_call_is_the_last_synchronised_one_before_it() {
        let it = of("..s.s.");
        assert_eq!(it.synchronised_before(Timestamp(29)), None);
        assert_eq!(it.synchronised_before(Timestamp(45)), Some(3));
        assert_eq!(it.synchronised_before(Timestamp(70)), Some(5));
    }

    #[test]
    fn dropped_forwards_are_unknown() {
        let it = of(&".s".repeat(KEPT + 1));
        assert_eq!(it.is_synchronised(2), None);
        assert_eq!(it.is_synchronised(4), Some(true));
        assert_eq!(it.is_synchronised(5), Some(false));
        let mut it = of("..s");
        it.lost();
        assert_eq!(it.is_synchronised(3), None);
    }

    #[test]
    fn ranks_synchronise_together_always_never_or_sometimes() {
        assert_eq!(of("..s..s").went_with(&of("..s...")), Some(true));
        assert_eq!(of("..s..s").went_with(&of("s..s..s")), Some(false));
        assert_eq!(of("..s...s").went_with(&of("..s..s")), None);
        assert_eq!(of("...").went_with(&of("..s")), Some(true));
    }
}
