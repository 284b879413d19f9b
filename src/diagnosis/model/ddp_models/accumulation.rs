//! Gradient accumulation of a rank: which of its training forwards synchronize gradients.

use std::collections::VecDeque;

use ddp_doctor_proto::report::Timestamp;

use crate::input::event::Forward;
use crate::model::keep_latest;

/// Number of synchronized forwards kept.
const MAX_FORWARDS: usize = 64;
/// Number of synchronized forwards that have to move apart.
const DRIFT: usize = 3;

/// Training forwards of a rank, in order.
#[derive(Debug, Default)]
pub struct Accumulation {
    /// Number of forwards.
    pub forwards: u64,
    /// Number of those that synchronize.
    synchronized: u64,
    /// 1-based indices of the latest synchronized forwards and when they began, oldest first.
    recent: VecDeque<(u64, Timestamp)>,
    /// Records were lost: forwards cannot be counted.
    lossy: bool,
}

impl Accumulation {
    pub(in crate::model) fn begin(&mut self, forward: &Forward, at: Timestamp) {
        self.forwards += 1;
        if !forward.unsynchronized {
            self.synchronized += 1;
            keep_latest(&mut self.recent, (self.forwards, at), MAX_FORWARDS);
        }
    }

    pub(in crate::model) const fn lost(&mut self) {
        self.lossy = true;
    }

    /// Whether the `nth` forward, from 1, synchronizes; `None`: it has not begun, or is no longer
    /// known.
    pub fn is_synchronized(&self, nth: u64) -> Option<bool> {
        let oldest = self.recent.front().map(|&(nth, _)| nth);
        let known = self.synchronized <= MAX_FORWARDS as u64 || oldest <= Some(nth);
        let made = (1..=self.forwards).contains(&nth) && !self.lossy;
        (known && made).then(|| self.recent.iter().any(|&(it, _)| it == nth))
    }

    /// The latest synchronized forward that began before this time, from 1.
    pub fn synchronized_before(&self, at: Timestamp) -> Option<u64> {
        let mut latest = self.recent.iter().rev();
        latest.find(|(_, began)| *began <= at).map(|&(nth, _)| nth)
    }

    /// The first forward that synchronizes, from 1; `None`: none does, or it is no longer known.
    pub fn first_synchronized(&self) -> Option<u64> {
        let known = self.synchronized <= MAX_FORWARDS as u64 && !self.lossy;
        self.recent.front().filter(|_| known).map(|&(nth, _)| nth)
    }

    /// The last forward up to which both ranks synchronized at the same forwards, from 1; 0: they
    /// never did. `None`: they differed in between, as when one of them repeats or leaves out a
    /// forward. Compares as many synchronized forwards as both have.
    pub fn agreed_until(&self, other: &Self) -> Option<u64> {
        let nth = |it: &Self, nth: u64| {
            let first = it.synchronized - it.recent.len() as u64;
            let at = usize::try_from(nth.checked_sub(first + 1)?).ok()?;
            it.recent.get(at).map(|&(nth, _)| nth)
        };
        let both = 1..=self.synchronized.min(other.synchronized);
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

    fn accumulation(flags: &str) -> Accumulation {
        let mut accumulation = Accumulation::default();
        for flag in flags.chars() {
            let forward = Forward { unsynchronized: flag == '.', ..Forward::default() };
            let at = Timestamp(10 * (accumulation.forwards + 1));
            accumulation.begin(&forward, at);
        }
        accumulation
    }

    #[test]
    fn forwards_are_counted_from_one() {
        let it = accumulation("..s.s");
        assert_eq!(it.forwards, 5);
        assert_eq!(it.is_synchronized(3), Some(true));
        assert_eq!(it.is_synchronized(4), Some(false));
        assert_eq!(it.is_synchronized(0), None);
        assert_eq!(it.is_synchronized(6), None);
    }

    #[test]
    fn the_forward_of_a_call_is_the_last_synchronized_one_before_it() {
        let it = accumulation("..s.s.");
        assert_eq!(it.synchronized_before(Timestamp(29)), None);
        assert_eq!(it.synchronized_before(Timestamp(45)), Some(3));
        assert_eq!(it.synchronized_before(Timestamp(70)), Some(5));
    }

    #[test]
    fn dropped_forwards_are_unknown() {
        let it = accumulation(&".s".repeat(MAX_FORWARDS + 1));
        assert_eq!(it.is_synchronized(2), None);
        assert_eq!(it.is_synchronized(4), Some(true));
        assert_eq!(it.is_synchronized(5), Some(false));
        let mut it = accumulation("..s");
        it.lost();
        assert_eq!(it.is_synchronized(3), None);
    }

    #[test]
    fn ranks_synchronize_together_always_never_or_up_to_a_forward() {
        let agreed = |one, other| accumulation(one).agreed_until(&accumulation(other));
        assert_eq!(agreed("..s..s", "..s..."), Some(3));
        assert_eq!(agreed("..s..s", "s..s..s"), Some(0));
        assert_eq!(agreed("...", "..s"), Some(0));
        // One rank left out a forward, and all later boundaries are shifted.
        assert_eq!(agreed("..s...s...s...s", "..s..s...s...s"), None);
        // From the fourth forward on, one rank synchronizes at every second forward.
        assert_eq!(agreed("..s..s..s..s", "..s.s.s.s"), Some(3));
        assert_eq!(agreed("..s..s..s", "..s.s.s"), None);
    }
}
