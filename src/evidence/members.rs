//! Members of a group in messages: a list, or the runs of a large regular group. Every rank sends
//! the members of its groups, so a list of each would take the square of the number of ranks.

use ddp_doctor_proto::blackbox::members;

/// Maximum number of members.
pub(super) const MAX: usize = 1 << 17;

/// Global ranks in group order as `(members, runs)` of a message: one of both is empty.
#[must_use]
pub fn encode(ranks: Vec<u32>) -> (Vec<u32>, Vec<u8>) {
    let runs = members::encode(&ranks);
    if runs.len() < ranks.len() { (Vec::new(), runs) } else { (ranks, Vec::new()) }
}

/// Members as a message lists them: twelve bytes of runs stand for up to [`MAX`] ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Listed {
    ranks: Vec<u32>,
    runs: Vec<u8>,
}

impl Listed {
    /// The members in `(members, runs)` of a message.
    pub(super) const fn new(ranks: Vec<u32>, runs: Vec<u8>) -> Self {
        Self { ranks, runs }
    }

    /// Number of the members, without expanding the runs; `None`: they are invalid.
    pub(super) fn count(&self) -> Option<usize> {
        let count = match (self.ranks.len(), &self.runs[..]) {
            (listed, []) => listed,
            (0, runs) => members::count(runs)?,
            _ => return None,
        };
        (count <= MAX).then_some(count)
    }

    /// Bytes of the list itself.
    pub(super) const fn bytes(&self) -> usize {
        self.ranks.len() * size_of::<u32>() + self.runs.len()
    }

    /// The ranks; `None`: they are invalid.
    pub(super) fn expand(&self) -> Option<Vec<u32>> {
        let count = self.count()?;
        if self.runs.is_empty() {
            return Some(self.ranks.clone());
        }
        members::decode(&self.runs, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_large_regular_groups_are_runs() {
        let world: Vec<u32> = (0..16_384).collect();
        let strided: Vec<u32> = (0..64).map(|i| 7 + 8 * i).collect();
        let irregular: Vec<u32> = (0..40).map(|i| i * i).collect();
        let lengths = [world, strided, irregular, vec![3, 1]].map(|ranks| {
            let (listed, runs) = encode(ranks.clone());
            let lengths = (listed.len(), runs.len());
            let members = Listed::new(listed, runs);
            assert_eq!(members.count(), Some(ranks.len()));
            assert_eq!(members.expand(), Some(ranks));
            lengths
        });
        assert_eq!(lengths, [(0, 12), (0, 12), (40, 0), (2, 0)]);
    }

    #[test]
    fn runs_beside_a_list_are_invalid() {
        let runs = members::encode(&[0, 1]);
        for (ranks, runs) in [(vec![0, 1], &runs[..]), (Vec::new(), &runs[1..])] {
            let members = Listed::new(ranks, runs.to_vec());
            assert_eq!((members.count(), members.expand()), (None, None));
        }
    }

    #[test]
    fn runs_of_more_ranks_than_a_group_may_have_are_invalid() {
        let run = |count: u32| [0, 1, count].map(u32::to_le_bytes).concat();
        let most = MAX as u32;
        for (runs, count) in [
            (run(most), Some(MAX)),
            (run(most + 1), None),
            ([run(most), run(1)].concat(), None),
            (run(u32::MAX).repeat(4), None),
        ] {
            assert_eq!(Listed::new(Vec::new(), runs).count(), count);
        }
    }
}
