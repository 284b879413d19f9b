//! Values by rank, for the members of a group.

use std::sync::Arc;

/// Values per block. Blocks without values take no memory.
const BLOCK: usize = 16;

type Block<V> = [Option<V>];

/// Values by rank, ascending. A lookup takes the same time in groups of any size.
///
/// The ranks that may have values are listed once per group; a value has the place of its rank in
/// that list.
#[derive(Clone, Debug)]
pub struct ByRank<V> {
    ranks: Arc<[u32]>,
    blocks: Vec<Option<Box<Block<V>>>>,
    len: usize,
}

impl<V> Default for ByRank<V> {
    fn default() -> Self {
        Self::new(Arc::from([]))
    }
}

impl<V> ByRank<V> {
    /// No values, with places for these ranks. They are ascending.
    pub(in crate::model) const fn new(ranks: Arc<[u32]>) -> Self {
        Self { ranks, blocks: Vec::new(), len: 0 }
    }

    /// The ranks with values.
    pub(in crate::model) fn listed(&self) -> Arc<[u32]> {
        if self.len == self.ranks.len() {
            return Arc::clone(&self.ranks);
        }
        self.keys().copied().collect()
    }

    /// The rank at this place of all that may have values, if there are as many.
    pub(in crate::model) fn nth_rank(&self, place: usize) -> Option<u32> {
        self.ranks.get(place).copied()
    }

    /// Number of values.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no values.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a rank.
    pub fn get(&self, rank: &u32) -> Option<&V> {
        self.at(place_of(&self.ranks, *rank)?)
    }

    /// The value of a rank.
    pub fn get_mut(&mut self, rank: &u32) -> Option<&mut V> {
        let place = place_of(&self.ranks, *rank)?;
        let block = self.blocks.get_mut(place / BLOCK)?.as_mut()?;
        block[place % BLOCK].as_mut()
    }

    /// Whether a rank has a value.
    pub fn contains_key(&self, rank: &u32) -> bool {
        self.get(rank).is_some()
    }

    /// Sets the value of a rank; returns the previous one.
    pub fn insert(&mut self, rank: u32, value: V) -> Option<V> {
        let place = match place_of(&self.ranks, rank) {
            Some(place) => place,
            None => self.extend(rank),
        };
        if self.blocks.len() <= place / BLOCK {
            self.blocks.resize_with(place / BLOCK + 1, || None);
        }
        let places = BLOCK.min(self.ranks.len() - place / BLOCK * BLOCK);
        let block = self.blocks[place / BLOCK]
            .get_or_insert_with(|| std::iter::repeat_with(|| None).take(places).collect());
        let known = block[place % BLOCK].replace(value);
        self.len += usize::from(known.is_none());
        known
    }

    /// Ranks with values and these.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&u32, &V)> + Clone {
        let blocks = self
            .blocks
            .iter()
            .enumerate()
            .filter_map(|(number, block)| Some((number, block.as_ref()?)));
        blocks.flat_map(|(number, block)| {
            let ranks = &self.ranks[number * BLOCK..];
            let values = ranks.iter().zip(block.iter());
            values.filter_map(|(rank, value)| Some((rank, value.as_ref()?)))
        })
    }

    /// Ranks with values.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &u32> + Clone {
        self.iter().map(|(rank, _)| rank)
    }

    /// Values in the order of their ranks.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + Clone {
        self.blocks.iter().flatten().flat_map(|block| block.iter().flatten())
    }

    /// Values in the order of their ranks, to be changed.
    pub(in crate::model) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.blocks.iter_mut().flatten().flat_map(|block| block.iter_mut().flatten())
    }

    /// The place of the first value from `start` on that fits; after the last one the search begins
    /// anew. As the start, the result of the last search avoids examining all ranks for each event.
    pub(in crate::model) fn first_from(
        &self,
        start: usize,
        fits: impl Fn(&V) -> bool,
    ) -> Option<usize> {
        let fits = |place: &usize| self.at(*place).is_some_and(&fits);
        let end = self.blocks.len() * BLOCK;
        (start..end).chain(0..start.min(end)).find(fits)
    }

    fn at(&self, place: usize) -> Option<&V> {
        let block = self.blocks.get(place / BLOCK)?.as_ref()?;
        block.get(place % BLOCK)?.as_ref()
    }

    /// Makes a place for another rank. Groups whose members are known never need that.
    fn extend(&mut self, rank: u32) -> usize {
        let place = self.ranks.partition_point(|&known| known < rank);
        let mut ranks = self.ranks.to_vec();
        ranks.insert(place, rank);
        let known = std::mem::replace(self, Self::new(ranks.into()));
        let values = known.blocks.into_iter().enumerate();
        for (number, block) in values.filter_map(|(number, block)| Some((number, block?))) {
            let values = (number * BLOCK..).zip(block);
            for (old, value) in values.filter_map(|(old, value)| Some((old, value?))) {
                self.insert(known.ranks[old], value);
            }
        }
        place
    }
}

/// The place of a rank in an ascending list.
fn place_of(ranks: &[u32], rank: u32) -> Option<usize> {
    let ends = (*ranks.first()?, *ranks.last()?);
    position(rank, ends, ranks.len(), |place| ranks[place])
}

/// The place of a rank among this many ranks in ascending order with these ends.
///
/// Ranks of a group are usually evenly spaced, so the place is guessed first.
pub(in crate::model) fn position(
    rank: u32,
    (first, last): (u32, u32),
    number: usize,
    rank_at: impl Fn(usize) -> u32,
) -> Option<usize> {
    if rank < first || last < rank {
        return None;
    }
    let steps = u64::from(rank - first) * (number as u64 - 1);
    let guess = (steps / u64::from(last - first).max(1)) as usize;
    if rank_at(guess) == rank {
        return Some(guess);
    }
    let (mut low, mut high) = (0, number);
    while low < high {
        let middle = low + (high - low) / 2;
        if rank_at(middle) < rank {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    (low < number && rank_at(low) == rank).then_some(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_and_ordered_by_rank() {
        for ranks in [
            (0..40).collect::<Vec<u32>>(),
            (0..40).map(|it| it * 8 + 3).collect(),
            vec![1, 2, 3, 70, 71, 5_000],
            vec![9],
        ] {
            let mut by_rank = ByRank::new(ranks.clone().into());
            for &rank in ranks.iter().rev() {
                assert_eq!(by_rank.insert(rank, rank + 1), None);
            }
            assert_eq!(by_rank.len(), ranks.len());
            assert!(ranks.iter().all(|rank| by_rank.get(rank) == Some(&(rank + 1))));
            assert_eq!(
                by_rank.get(&(ranks[0] + 1)).is_some(),
                ranks.get(1) == Some(&(ranks[0] + 1))
            );
            assert_eq!(by_rank.get(&100_000), None);
            assert_eq!(by_rank.keys().copied().collect::<Vec<_>>(), ranks);
        }
    }

    #[test]
    fn unlisted_ranks_get_a_place() {
        let mut by_rank = ByRank::new([4, 8].into());
        for rank in [8, 6, 30, 0, 4] {
            by_rank.insert(rank, rank);
        }
        assert_eq!(by_rank.insert(6, 7), Some(6));
        let all: Vec<(u32, u32)> = by_rank.iter().map(|(&rank, &it)| (rank, it)).collect();
        assert_eq!(all, [(0, 0), (4, 4), (6, 7), (8, 8), (30, 30)]);
        assert_eq!(by_rank.len(), 5);
    }

    #[test]
    fn search_continues_at_the_beginning() {
        let mut by_rank = ByRank::new((0..40).collect::<Vec<u32>>().into());
        for rank in [1, 20, 39] {
            by_rank.insert(rank, rank);
        }
        assert_eq!(by_rank.first_from(2, |it| *it > 20), Some(39));
        assert_eq!(by_rank.first_from(21, |it| *it <= 20), Some(1));
        assert_eq!(by_rank.first_from(100, |it| *it == 20), Some(20));
        assert_eq!(by_rank.first_from(0, |it| *it > 39), None);
    }
}
