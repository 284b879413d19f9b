//! Which processes were ranks of which world, indexed so that a join need not visit every process.

use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;

/// Layer and name of a world; equal for all of its restarts.
type Key = (Arc<str>, Arc<str>);

/// The generations of every world, and the sizes that processes claim.
#[derive(Debug, Default)]
pub(super) struct Worlds {
    generations: BTreeMap<Key, Generations>,
    /// Number of processes by the world size that they claim.
    sizes: BTreeMap<u32, usize>,
}

/// The generations of one world. Each generation has every rank once.
#[derive(Debug, Default)]
struct Generations {
    /// Number of processes by rank and generation.
    by_rank: BTreeMap<u32, BTreeMap<u32, usize>>,
    /// By generation, when the first of its processes failed.
    failed: BTreeMap<u32, Timestamp>,
}

impl Worlds {
    /// Generation of a process that joins as `rank`: after all generations that had the rank, and
    /// after those in which a process had failed by then.
    pub(super) fn next_generation(&self, key: &Key, rank: u32, at: Timestamp) -> u32 {
        let Some(known) = self.generations.get(key) else {
            return 0;
        };
        let ranks = known.by_rank.get(&rank);
        let had = ranks.and_then(|it| it.last_key_value()).map(|(&it, _)| it);
        let mut failed = known.failed.iter().rev();
        let failed = failed.find(|(_, first)| **first < at).map(|(&it, _)| it);
        had.max(failed).map_or(0, |latest| latest + 1)
    }

    /// A process became this rank.
    pub(super) fn joined(&mut self, key: Key, rank: u32, generation: u32) {
        let known = self.generations.entry(key).or_default();
        let ranks = known.by_rank.entry(rank).or_default();
        *ranks.entry(generation).or_default() += 1;
    }

    /// A process gave up this rank.
    pub(super) fn left(&mut self, key: &Key, rank: u32, generation: u32) {
        let Some(known) = self.generations.get_mut(key) else {
            return;
        };
        let Some(ranks) = known.by_rank.get_mut(&rank) else {
            return;
        };
        forget_one(ranks, generation);
        if ranks.is_empty() {
            known.by_rank.remove(&rank);
        }
    }

    /// A process of that generation failed.
    pub(super) fn failed(&mut self, key: Key, generation: u32, at: Timestamp) {
        let known = self.generations.entry(key).or_default();
        let first = known.failed.entry(generation).or_insert(at);
        *first = at.min(*first);
    }

    /// A process claims another world size than before.
    pub(super) fn resized(&mut self, before: Option<u32>, now: Option<u32>) {
        if before == now {
            return;
        }
        if let Some(before) = before {
            forget_one(&mut self.sizes, before);
        }
        if let Some(now) = now {
            *self.sizes.entry(now).or_default() += 1;
        }
    }

    /// The largest size that a process claims.
    pub(super) fn size(&self) -> Option<u32> {
        self.sizes.last_key_value().map(|(&size, _)| size)
    }
}

fn forget_one(counts: &mut BTreeMap<u32, usize>, key: u32) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
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
        assert_eq!(worlds.next_generation(&key, 0, at(1)), 0);
        worlds.joined(key.clone(), 0, 0);
        assert_eq!(worlds.next_generation(&key, 1, at(2)), 0);
        assert_eq!(worlds.next_generation(&key, 0, at(2)), 1);
        worlds.failed(key.clone(), 0, at(5));
        assert_eq!(worlds.next_generation(&key, 1, at(5)), 0, "not failed yet");
        assert_eq!(worlds.next_generation(&key, 1, at(6)), 1);
        let other: Key = ("c10d".into(), "v".into());
        assert_eq!(worlds.next_generation(&other, 0, at(6)), 0);
        worlds.left(&key, 0, 0);
        assert_eq!(worlds.next_generation(&key, 0, at(4)), 0);
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
