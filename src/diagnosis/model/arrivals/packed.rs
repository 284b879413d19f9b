//! The arrivals at one encounter, in as few bytes as their times allow.

use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;

use crate::model::maps::position;

use super::Arrival;

/// Bits of [`Short::at`] above the time.
const IS_ASYNC: u32 = 1 << 30;
const HIDDEN: u32 = 1 << 31;
/// A time of [`Short`] that is not known.
const NONE: u32 = u32::MAX;

/// Arrivals in the order of `Ranks`.
#[derive(Clone, Debug)]
pub struct PackedArrivals {
    ranks: Ranks,
    /// Time of the first arrival, from which short times count.
    pub(super) base: Timestamp,
    times: Times,
}

/// Ranks that arrived.
#[derive(Clone, Debug)]
pub(super) enum Ranks {
    /// Members of a group, ascending. All its collectives share the list.
    Members(Arc<[u32]>),
    /// Sender and receiver of a message.
    Pair([u32; 2]),
}

#[derive(Clone, Debug)]
enum Times {
    /// All times are within a second or, for waits, four seconds.
    Short(Box<[Short]>),
    /// Some are not.
    Long(Box<[Arrival]>),
}

/// Times in nanoseconds since the base.
#[derive(Clone, Copy, Debug)]
struct Short {
    /// Arrival, [`IS_ASYNC`] and [`HIDDEN`].
    at: u32,
    waits: u32,
    until: u32,
}

impl PackedArrivals {
    /// Arrivals of these ranks, of which the first was at `base`.
    pub(super) fn new(ranks: Ranks, base: Timestamp, came: Vec<Arrival>) -> Self {
        let short = came.iter().map(|came| Short::pack(came, base));
        let times = match short.collect() {
            Some(short) => Times::Short(short),
            None => Times::Long(came.into()),
        };
        Self { ranks, base, times }
    }

    /// Number of arrivals.
    pub fn len(&self) -> usize {
        match &self.times {
            Times::Short(short) => short.len(),
            Times::Long(long) => long.len(),
        }
    }

    /// Whether there are no arrivals.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The arrival at this place.
    pub fn get(&self, place: usize) -> Option<Arrival> {
        match &self.times {
            Times::Short(short) => {
                let rank = *self.ranks.as_slice().get(place)?;
                Some(short.get(place)?.came(rank, self.base))
            }
            Times::Long(long) => long.get(place).copied(),
        }
    }

    /// All arrivals.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Arrival> + Clone {
        (0..self.len()).filter_map(|place| self.get(place))
    }

    /// Ranks of the arrivals.
    pub fn ranks(&self) -> &[u32] {
        self.ranks.as_slice()
    }

    /// The place of a rank.
    pub(super) fn place_of(&self, rank: u32) -> Option<usize> {
        match &self.ranks {
            Ranks::Pair(ranks) => ranks.iter().position(|it| *it == rank),
            Ranks::Members(ranks) => {
                let ends = (*ranks.first()?, *ranks.last()?);
                position(rank, ends, ranks.len(), |place| ranks[place])
            }
        }
    }

    /// Changes the arrival at a place.
    pub(super) fn change(&mut self, place: usize, change: impl FnOnce(&mut Arrival)) {
        let Some(mut came) = self.get(place) else { return };
        change(&mut came);
        if let (Times::Short(short), Some(changed)) =
            (&mut self.times, Short::pack(&came, self.base))
        {
            short[place] = changed;
            return;
        }
        if let Times::Short(_) = self.times {
            self.times = Times::Long(self.iter().collect());
        }
        if let Times::Long(long) = &mut self.times {
            long[place] = came;
        }
    }
}

impl Ranks {
    fn as_slice(&self) -> &[u32] {
        match self {
            Self::Members(ranks) => ranks,
            Self::Pair(ranks) => ranks,
        }
    }
}

impl Short {
    /// `None`: a time is too long after the base, or before it.
    fn pack(came: &Arrival, base: Timestamp) -> Option<Self> {
        let short = |at: Timestamp| u32::try_from(at.0.checked_sub(base.0)?).ok();
        let optional = |at: Option<Timestamp>| match at {
            Some(at) => short(at).filter(|at| *at != NONE),
            None => Some(NONE),
        };
        let at = short(came.at).filter(|at| *at < IS_ASYNC)?;
        let is_async = if came.is_async { IS_ASYNC } else { 0 };
        let hidden = if came.hidden { HIDDEN } else { 0 };
        Some(Self {
            at: at | is_async | hidden,
            waits: optional(came.waits)?,
            until: optional(came.until)?,
        })
    }

    fn came(self, rank: u32, base: Timestamp) -> Arrival {
        let time = |short: u32| Timestamp(base.0 + u64::from(short));
        let optional = |short: u32| (short != NONE).then(|| time(short));
        Arrival {
            rank,
            at: time(self.at & (IS_ASYNC - 1)),
            waits: optional(self.waits),
            until: optional(self.until),
            is_async: self.at & IS_ASYNC != 0,
            hidden: self.at & HIDDEN != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn came(rank: u32, at: u64, waits: Option<u64>, until: Option<u64>) -> Arrival {
        Arrival {
            rank,
            at: Timestamp(at),
            waits: waits.map(Timestamp),
            until: until.map(Timestamp),
            is_async: rank.is_multiple_of(2),
            hidden: rank.is_multiple_of(3),
        }
    }

    fn packed(came: &[Arrival]) -> PackedArrivals {
        let ranks: Vec<u32> = came.iter().map(|it| it.rank).collect();
        let first = came.iter().map(|it| it.at).min().unwrap();
        PackedArrivals::new(Ranks::Members(ranks.into()), first, came.to_vec())
    }

    #[test]
    fn short_and_long_times_are_exact() {
        let base = 7 * SECOND;
        let short = [
            came(2, base, None, Some(base + 4 * SECOND)),
            came(3, base + SECOND, Some(base + 2 * SECOND), None),
            came(6, base + 5, Some(base), Some(base + 1)),
        ];
        let all = packed(&short);
        assert!(matches!(all.times, Times::Short(_)));
        assert!(all.iter().eq(short));
        for extreme in [
            came(9, base + 2 * SECOND, None, None),
            came(9, base, None, Some(base + 5 * SECOND)),
            came(9, base, Some(base - 1), None),
            came(9, base, None, Some(base + u64::from(NONE))),
        ] {
            let long = [short[0], short[1], extreme];
            let all = packed(&long);
            assert!(matches!(all.times, Times::Long(_)));
            assert!(all.iter().eq(long));
        }
    }

    #[test]
    fn change_keeps_the_other_arrivals() {
        let base = 7 * SECOND;
        let mut all = packed(&[came(1, base + 3, None, None), came(4, base, None, None)]);
        let place = all.place_of(4).unwrap();
        for until in [9, 9 * SECOND, 10] {
            all.change(place, |came| came.until = Some(Timestamp(base + until)));
            assert_eq!(all.get(0), Some(came(1, base + 3, None, None)));
            assert_eq!(all.get(1), Some(came(4, base, None, Some(base + until))));
        }
        assert_eq!(all.place_of(2), None);
    }
}
