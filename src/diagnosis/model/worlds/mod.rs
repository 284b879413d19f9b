//! The failed generations of worlds and their sizes, so that a join need not visit every process.

use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;

mod attempts;
mod init;

pub use attempts::{Attempt, Attempts};
pub use init::{Init, Place};

/// Layer and name of a world; equal for all of its restarts.
type Key = (Arc<str>, Arc<str>);

/// The failed generations of every world, and the sizes that processes claim.
#[derive(Debug, Default)]
pub(in crate::model) struct Worlds {
    /// By world and generation, when the first of its processes failed.
    failed: BTreeMap<Key, BTreeMap<u32, Timestamp>>,
    /// Number of processes by the world size that they claim.
    sizes: BTreeMap<u32, usize>,
}

impl Worlds {
    /// Generation of a process that joins as a rank: after the latest generation that `had` the rank,
    /// and after those in which a process had failed by then.
    pub(in crate::model) fn next_generation(
        &self,
        key: &Key,
        had: Option<u32>,
        at: Timestamp,
    ) -> u32 {
        let failed = self
            .failed
            .get(key)
            .into_iter()
            .flatten()
            .rev()
            .find(|(_, first)| **first < at)
            .map(|(&it, _)| it);
        had.max(failed).map_or(0, |latest| latest + 1)
    }

    /// A process of that generation failed.
    pub(in crate::model) fn failed(&mut self, key: Key, generation: u32, at: Timestamp) {
        let first = self.failed.entry(key).or_default().entry(generation).or_insert(at);
        *first = at.min(*first);
    }

    /// A process claims another world size than before.
    pub(in crate::model) fn resized(&mut self, before: Option<u32>, now: Option<u32>) {
        if let Some(count) = before.and_then(|before| self.sizes.get_mut(&before)) {
            *count -= 1;
        }
        if let Some(now) = now {
            *self.sizes.entry(now).or_default() += 1;
        }
        self.sizes.retain(|_, count| *count > 0);
    }

    /// The largest size that a process claims.
    pub(in crate::model) fn size(&self) -> Option<u32> {
        self.sizes.last_key_value().map(|(&size, _)| size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_follows_same_rank_and_failures() {
        let mut worlds = Worlds::default();
        let key: Key = ("c10d".into(), "w".into());
        let at = Timestamp;
        assert_eq!(worlds.next_generation(&key, None, at(1)), 0);
        assert_eq!(worlds.next_generation(&key, Some(0), at(2)), 1);
        worlds.failed(key.clone(), 0, at(5));
        assert_eq!(worlds.next_generation(&key, None, at(5)), 0, "not failed yet");
        assert_eq!(worlds.next_generation(&key, None, at(6)), 1);
        let other: Key = ("c10d".into(), "v".into());
        assert_eq!(worlds.next_generation(&other, None, at(6)), 0);
    }

    #[test]
    fn largest_claimed_size_counts_while_it_is_claimed() {
        let mut worlds = Worlds::default();
        assert_eq!(worlds.size(), None);
        worlds.resized(None, Some(4));
        worlds.resized(None, Some(8));
        assert_eq!(worlds.size(), Some(8));
        worlds.resized(Some(8), Some(4));
        assert_eq!(worlds.size(), Some(4));
    }
}
