//! How a rank accumulates gradients: which of its training forwards are to synchronise them.

use std::collections::VecDeque;

use crate::diagnosis::event::Forward;

/// Synchronised forwards that are remembered.
const KEPT: usize = 64;

/// A rank's training forwards so far, in the order in which it made them.
#[derive(Debug, Default)]
pub struct Accumulation {
    /// How many there were.
    forwards: u64,
    /// How many of them were to synchronise.
    synchronised: u64,
    /// Which of the forwards the last of those were, oldest first.
    recent: VecDeque<u64>,
    /// Records were lost: nothing can be counted.
    lossy: bool,
}

impl Accumulation {
    pub(super) fn begin(&mut self, forward: &Forward) {
        self.forwards += 1;
        if !forward.unsynchronised {
            self.synchronised += 1;
            self.recent.push_back(self.forwards);
            if self.recent.len() > KEPT {
                self.recent.pop_front();
            }
        }
    }

    pub(super) const fn lost(&mut self) {
        self.lossy = true;
    }

    /// How many forwards there were.
    #[must_use]
    pub const fn forwards(&self) -> u64 {
        self.forwards
    }

    /// Whether its n-th forward, from 1, was to synchronise; `None`: it has not made it, or that is
    /// not known any more.
    #[must_use]
    pub fn is_synchronised(&self, nth: u64) -> Option<bool> {
        let known = self.synchronised <= KEPT as u64 || self.recent.front() <= Some(&nth);
        let made = (1..=self.forwards).contains(&nth) && !self.lossy;
        (known && made).then(|| self.recent.contains(&nth))
    }

    /// Whether it synchronised at the same forwards as another rank, as often as both did: always, or
    /// never; `None`: sometimes.
    #[must_use]
    pub fn went_with(&self, other: &Self) -> Option<bool> {
        let nth = |it: &Self, nth: u64| {
            let first = it.synchronised - it.recent.len() as u64;
            let at = usize::try_from(nth.checked_sub(first + 1)?).ok()?;
            it.recent.get(at).copied()
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
            accumulation.begin(&Forward {
                unsynchronised: flag == '.',
                ..Forward::default()
            });
        }
        accumulation
    }

    #[test]
    fn forwards_are_counted_from_one() {
        let it = of("..s.s");
        assert_eq!(it.forwards(), 5);
        assert_eq!(it.is_synchronised(3), Some(true));
        assert_eq!(it.is_synchronised(4), Some(false));
        assert_eq!(it.is_synchronised(0), None);
        assert_eq!(it.is_synchronised(6), None);
    }

    #[test]
    fn what_is_forgotten_is_not_known() {
        let it = of(&".s".repeat(KEPT + 1));
        assert_eq!(it.is_synchronised(2), None);
        assert_eq!(it.is_synchronised(4), Some(true));
        assert_eq!(it.is_synchronised(5), Some(false));
        let mut it = of("..s");
        it.lost();
        assert_eq!(it.is_synchronised(3), None);
    }

    #[test]
    fn ranks_go_together_always_never_or_sometimes() {
        assert_eq!(of("..s..s").went_with(&of("..s...")), Some(true));
        assert_eq!(of("..s..s").went_with(&of("s..s..s")), Some(false));
        assert_eq!(of("..s...s").went_with(&of("..s..s")), None);
        assert_eq!(of("...").went_with(&of("..s")), Some(true));
    }
}
