//! State of the process groups: progress of each member.

use std::collections::BTreeMap;

use ddp_doctor_proto::report::RankCall;
use ddp_doctor_proto::viewer::{CallsAt, GroupStatus};

use super::ranks::share;

/// Maximum number of cells in the summary of a group: more than fit on a screen.
const MAX_CELLS: usize = 4096;
/// Maximum number of groups kept.
const MAX_GROUPS: usize = 16_384;

/// A group.
#[derive(Clone, Debug, Default)]
pub struct GroupCalls {
    /// Identifies the group.
    pub number: u32,
    /// Description of the group, or its name if it has none.
    pub title: String,
    /// "gloo", …
    pub backend: String,
    /// Layer that captures its calls.
    pub layer: String,
    /// Global ranks in group order.
    pub ranks: Vec<u32>,
    /// Highest sequence number issued by each member, in the order of `ranks`.
    pub issued: Vec<u64>,
    /// Members that were never seen in the group, ascending.
    pub unseen: Vec<u32>,
    /// First sequence number whose calls cannot match.
    pub diverged: Option<u64>,
    /// Calls at its latest sequence numbers.
    pub seqs: Vec<Seq>,
    /// Highest sequence number issued by any member.
    pub front: u64,
    /// Lowest value of `issued` among members that were seen.
    pub back: u64,
    /// Number of members behind the front.
    pub behind: usize,
    /// Lag of the members in at most 4096 cells, each with the largest lag of its members; `None`:
    /// none of them was ever seen.
    pub cells: Vec<Option<u64>>,
}

/// The calls at one sequence number.
#[derive(Clone, Debug, Default)]
pub struct Seq {
    /// Sequence number in the group.
    pub seq: u64,
    /// The calls cannot match.
    pub mismatch: bool,
    /// Calls, ascending by rank.
    pub calls: Vec<RankCall>,
    /// Number of known calls that are not listed.
    pub more: u32,
}

impl GroupCalls {
    fn from(status: GroupStatus) -> Self {
        let mut unseen = status.unseen;
        unseen.sort_unstable();
        let mut issued = status.issued;
        issued.resize(status.ranks.len(), 0);
        let seen = |&(rank, _): &(&u32, &u64)| unseen.binary_search(rank).is_err();
        let known = || status.ranks.iter().zip(&issued).filter(seen).map(|it| *it.1);
        let (front, back) = (known().max().unwrap_or(0), known().min().unwrap_or(0));
        let behind = known().filter(|&it| it < front).count();
        let title = match status.description.as_str() {
            "default_pg" => "default group".to_owned(),
            "" | "undefined" => status.name,
            _ => status.description,
        };
        let mut group = Self {
            number: status.number,
            title,
            backend: status.backend,
            layer: status.layer,
            front,
            back,
            behind,
            ranks: status.ranks,
            issued,
            unseen,
            diverged: status.diverged,
            seqs: status.calls.into_iter().map(Seq::from).collect(),
            cells: Vec::new(),
        };
        let cells = group.ranks.len().min(MAX_CELLS);
        let worst = |cell| {
            let of = share(group.ranks.len(), cells, cell);
            of.map(|member| group.lag(member)).max().flatten()
        };
        group.cells = (0..cells).map(worst).collect();
        group
    }

    /// Number of calls that the member at an index lags behind the first; `None`: it was never
    /// seen.
    #[must_use]
    pub fn lag(&self, member: usize) -> Option<u64> {
        let rank = self.ranks.get(member)?;
        let seen = self.unseen.binary_search(rank).is_err();
        seen.then(|| self.front - self.issued[member].min(self.front))
    }

    /// The most relevant sequence number: the first mismatch, otherwise the first call that a
    /// member has not made.
    #[must_use]
    pub fn relevant_seq(&self) -> Option<u64> {
        let first_open = (self.back < self.front).then_some(self.back + 1);
        let telling = self.diverged.or(first_open);
        let known = telling.filter(|&seq| self.seqs.iter().any(|it| it.seq == seq));
        known.or_else(|| self.seqs.last().map(|it| it.seq))
    }
}

impl Seq {
    fn from(at: CallsAt) -> Self {
        let mut calls = at.calls;
        calls.sort_by_key(|call| call.rank);
        Self { seq: at.seq, mismatch: at.mismatch, calls, more: at.more }
    }

    /// Call of a rank at this sequence number.
    #[must_use]
    pub fn call(&self, rank: u32) -> Option<&RankCall> {
        let found = self.calls.binary_search_by_key(&rank, |call| call.rank);
        found.ok().map(|index| &self.calls[index])
    }
}

/// All groups, those with a mismatch first, then those with members behind.
#[derive(Debug, Default)]
pub struct Groups {
    by_number: BTreeMap<u32, GroupCalls>,
    order: Vec<u32>,
}

impl Groups {
    /// Number of groups.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are no groups.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The group at an index.
    #[must_use]
    pub fn nth(&self, index: usize) -> Option<&GroupCalls> {
        self.by_number.get(self.order.get(index)?)
    }

    pub(super) fn apply(&mut self, groups: Vec<GroupStatus>) {
        if groups.is_empty() {
            return;
        }
        for status in groups {
            if self.by_number.len() < MAX_GROUPS || self.by_number.contains_key(&status.number) {
                self.by_number.insert(status.number, GroupCalls::from(status));
            }
        }
        self.order = self.by_number.keys().copied().collect();
        let groups = &self.by_number;
        self.order.sort_by_key(|number| {
            let group = &groups[number];
            (group.diverged.is_none(), group.behind == 0, group.number)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::group;
    use super::*;

    #[test]
    fn lag_is_counted_from_the_first_seen_member() {
        let mut groups = Groups::default();
        let mut status = group(0, &[4, 5, 6, 7], &[9, 8, 9, 0]);
        status.unseen = vec![7];
        groups.apply(vec![status]);
        let group = groups.nth(0).unwrap();
        assert_eq!((group.front, group.back, group.behind), (9, 8, 1));
        let lags: Vec<_> = (0..4).map(|it| group.lag(it)).collect();
        assert_eq!(lags, [Some(0), Some(1), Some(0), None]);
    }

    #[test]
    fn diverged_and_lagging_groups_come_first() {
        let mut groups = Groups::default();
        let mut diverged = group(2, &[0, 1], &[3, 3]);
        diverged.diverged = Some(2);
        groups.apply(vec![group(0, &[0, 1], &[7, 7]), group(1, &[0, 1], &[7, 6]), diverged]);
        let order: Vec<_> = (0..3).map(|it| groups.nth(it).unwrap().number).collect();
        assert_eq!(order, [2, 1, 0]);
    }

    #[test]
    fn message_with_lists_of_wrong_lengths_is_accepted() {
        let mut groups = Groups::default();
        let mut status = group(0, &[0, 1, 2], &[5]);
        status.unseen = vec![9, 1];
        groups.apply(vec![status]);
        let group = groups.nth(0).unwrap();
        let lags: Vec<_> = (0..4).map(|it| group.lag(it)).collect();
        assert_eq!(lags, [Some(0), None, Some(5), None]);
    }
}
