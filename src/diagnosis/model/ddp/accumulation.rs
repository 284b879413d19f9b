//! Gradient accumulation of a rank: which of its training forwards synchronise gradients.

use std::collections::VecDeque;

use ddp_doctor_proto::report::Timestamp;

use crate::evidence::event::Forward;
use crate::model::keep_latest;

/// Number of synchronised forwards kept.
const KEPT: usize = 64;
/// Number of synchronised forwards that have to move apart.
const DRIFT: usize = 3;

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

    /// The last forward up to which both ranks synchronised at the same forwards, from 1; 0: they
    /// never did. `None`: they differed in between, as when one of them repeats or leaves out a
    /// forward. Compares as many synchronised forwards as both have.
    pub fn agreed_until(&self, other: &Self) -> Option<u64> {
        let nth = |it: &Self, nth: u64| {
            let first = it.synchronised - it.recent.len() as u64;
            let at = usize::try_from(nth.checked_sub(first + 1)?).ok()?;
            it.recent.get(at).map(|&(nth, _)| nth)
        };
        let both = 1..=self.synchronised.min(other.synchronised);
        let pairs: Vec<(u64, u64)> = both.filter_map(|n| nth(self, n).zip(nth(other, n))).collect();
        let agreed = pairs.iter().take_while(|(a, b)| a == b).count();
        let (before, after) = pairs.split_at(agreed);
        let until = before.last().map_or(0, |&(nth, _)| nth);
        // A forward left out once shifts all later ones by as much. Boundaries of two kinds drift
        // apart.
        let apart = |&(a, b): &(u64, u64)| a.abs_diff(b);
        let drift = after.len() >= DRIFT && after.is_sorted_by(|a, b| apart(a) < apart(b));
        let differ = match until {
            0 => after.iter().all(|(a, b)| a != b),
            _ => after.is_empty() || drift,
        };
        differ.then_some(until)
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
    fn ranks_synchronise_together_always_never_or_up_to_a_forward() {
        let agreed = |one, other| of(one).agreed_until(&of(other));
        assert_eq!(agreed("..s..s", "..s..."), Some(3));
        assert_eq!(agreed("..s..s", "s..s..s"), Some(0));
        assert_eq!(agreed("...", "..s"), Some(0));
        // One rank left out a forward, and all later boundaries are shifted.
        assert_eq!(agreed("..s...s...s...s", "..s..s...s...s"), None);
        // From the fourth forward on, one rank synchronises at every second forward.
        assert_eq!(agreed("..s..s..s..s", "..s.s.s.s"), Some(3));
        assert_eq!(agreed("..s..s..s", "..s.s.s"), None);
    }
}
