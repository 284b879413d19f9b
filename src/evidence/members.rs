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

/// The ranks of `(members, runs)` of a message; `None`: they are invalid.
pub(super) fn decode(listed: Vec<u32>, runs: &[u8]) -> Option<Vec<u32>> {
    if runs.is_empty() {
        return Some(listed);
    }
    members::decode(runs, MAX).filter(|_| listed.is_empty())
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
            assert_eq!(decode(listed, &runs), Some(ranks));
            lengths
        });
        assert_eq!(lengths, [(0, 12), (0, 12), (40, 0), (2, 0)]);
    }

    #[test]
    fn runs_beside_a_list_are_invalid() {
        let runs = members::encode(&[0, 1]);
        assert_eq!(decode(vec![0, 1], &runs), None);
        assert_eq!(decode(Vec::new(), &runs[1..]), None);
    }
}
