//! Splits of an `all_to_all`: what each rank sends to a peer must be what that peer expects from it.

use std::collections::{BTreeMap, BTreeSet};

use crate::input::align::OddOnes;
use crate::input::event::Call;

/// A rank sends another number of elements to a peer than the peer expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Misfit {
    /// Rank that sends.
    pub sender: u32,
    /// Rank that receives; may be the sender.
    pub receiver: u32,
    /// Elements that the sender sends to the receiver.
    pub sends: u32,
    /// Elements that the receiver expects from the sender.
    pub expects: u32,
}

/// The disagreements between the splits of two ranks of one group, or within those of one rank. Unknown splits fit all
/// others.
pub fn misfits(a: (u32, &Call), b: (u32, &Call)) -> impl Iterator<Item = Misfit> {
    let [input, output] = &a.1.splits;
    // Most calls are divided evenly, and equal on all ranks.
    let is_even = input.len() == 1 && input == output && a.1.splits == b.1.splits;
    let there = (!is_even).then(|| misfit(a, b)).flatten();
    let back = (!is_even && a.0 != b.0).then(|| misfit(b, a)).flatten();
    there.into_iter().chain(back)
}

fn misfit(sender: (u32, &Call), receiver: (u32, &Call)) -> Option<Misfit> {
    let members = &sender.1.group.as_ref()?.key.members[..];
    let index = |rank| index_of(members, rank);
    let [input, output] = [&sender.1.splits[0], &receiver.1.splits[1]];
    let sends = piece(input, index(receiver.0)?, members.len())?;
    let expects = piece(output, index(sender.0)?, members.len())?;
    (sends != expects).then_some(Misfit { sender: sender.0, receiver: receiver.0, sends, expects })
}

/// Position of a rank in the members of a group, which are usually ascending.
fn index_of(members: &[u32], rank: u32) -> Option<usize> {
    let found = members.binary_search(&rank).ok();
    found.or_else(|| members.iter().position(|&member| member == rank))
}

/// Elements that a call sends to the member with this index, or expects from it.
fn piece(splits: &[u32], index: usize, members: usize) -> Option<u32> {
    match splits {
        // The total, divided evenly.
        [total] => {
            let members = u32::try_from(members).ok()?;
            (total % members == 0).then_some(total / members)
        }
        sizes => sizes.get(index).copied(),
    }
}

/// The ranks whose splits differ from those of most others: each disagrees with itself, or with more than half of
/// its peers, and every disagreement involves one of them. Without such ranks, all that disagree;
/// `None` if none do. `compared`: number of ranks whose splits are compared with those of a rank, itself included.
pub fn odd_ones(
    misfits: &[Misfit],
    ranks: usize,
    compared: impl Fn(u32) -> usize,
) -> Option<OddOnes> {
    let involved: BTreeSet<u32> = misfits.iter().flat_map(|it| [it.sender, it.receiver]).collect();
    if involved.is_empty() {
        return None;
    }
    let pairs: BTreeSet<(u32, u32)> = misfits
        .iter()
        .map(|it| (it.sender.min(it.receiver), it.sender.max(it.receiver)))
        .filter(|(a, b)| a != b)
        .collect();
    let mut peers: BTreeMap<u32, usize> = BTreeMap::new();
    for rank in pairs.into_iter().flat_map(|(a, b)| [a, b]) {
        *peers.entry(rank).or_default() += 1;
    }
    let odd = peers.into_iter().filter(|(rank, peers)| 2 * peers + 1 > compared(*rank));
    let with_itself = misfits.iter().filter(|it| it.sender == it.receiver).map(|it| it.sender);
    let odd: BTreeSet<u32> = odd.map(|(rank, _)| rank).chain(with_itself).collect();
    let covers = misfits.iter().all(|it| odd.contains(&it.sender) || odd.contains(&it.receiver));
    let is_minority = covers && 2 * odd.len() < ranks;
    let ranks = if is_minority { odd } else { involved };
    Some(OddOnes { ranks: ranks.into_iter().collect(), is_minority })
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::Op;

    use super::*;
    use crate::testing::{call, group};

    fn exchange(input: &[u32], output: &[u32]) -> Call {
        let mut call = call(Op::AllToAll);
        call.group = Some(group("0", "gloo", &[4, 5, 6]));
        call.splits = [input.to_vec(), output.to_vec()];
        call
    }

    #[test]
    fn splits_fit_if_each_rank_expects_what_its_peer_sends() {
        let a = exchange(&[1, 2, 3], &[1, 5, 6]);
        let b = exchange(&[5, 1, 1], &[2, 1, 1]);
        assert_eq!(misfits((4, &a), (5, &b)).next(), None);
        let c = exchange(&[7, 0, 0], &[3, 0, 0]);
        let misfit = Misfit { sender: 6, receiver: 4, sends: 7, expects: 6 };
        assert_eq!(misfits((4, &a), (6, &c)).collect::<Vec<_>>(), [misfit]);
    }

    #[test]
    fn one_size_is_a_total_that_is_divided_evenly() {
        let even = exchange(&[6], &[6]);
        let uneven = exchange(&[2, 3, 1], &[2, 3, 1]);
        assert_eq!(misfits((4, &even), (5, &uneven)).next(), None);
        assert!(misfits((5, &uneven), (6, &even)).next().is_some());
        let unknown = exchange(&[], &[]);
        assert_eq!(misfits((4, &even), (5, &unknown)).next(), None);
    }

    #[test]
    fn rank_that_expects_something_else_from_itself_is_odd() {
        let call = exchange(&[1, 2, 3], &[1, 4, 3]);
        let misfit = Misfit { sender: 5, receiver: 5, sends: 2, expects: 4 };
        assert_eq!(misfits((5, &call), (5, &call)).collect::<Vec<_>>(), [misfit]);
        let odd = odd_ones(&[misfit], 3, |_| 3).unwrap();
        assert_eq!((odd.ranks, odd.is_minority), (vec![5], true));
    }

    #[test]
    fn odd_rank_disagrees_with_most_others() {
        let misfit = |sender, receiver| Misfit { sender, receiver, sends: 1, expects: 2 };
        let with_both = [misfit(0, 1), misfit(1, 2)];
        let odd = |misfits: &[Misfit], ranks| {
            let odd = odd_ones(misfits, ranks, |_| ranks)?;
            Some((odd.ranks, odd.is_minority))
        };
        assert_eq!(odd(&with_both, 3), Some((vec![1], true)));
        assert_eq!(odd(&with_both[..1], 3), Some((vec![0, 1], false)));
        assert_eq!(odd(&with_both[..1], 2), Some((vec![0, 1], false)));
        let all = [misfit(0, 1), misfit(1, 2), misfit(2, 0)];
        assert_eq!(odd(&all, 3), Some((vec![0, 1, 2], false)));
        assert_eq!(odd(&[], 3), None);
    }
}
