//! A stall: a place where ranks wait for members that have not arrived.

use std::collections::BTreeSet;

use ddp_doctor_proto::report::Timestamp;

use crate::guards::RankGuard;
use crate::model::{GroupId, UnmatchedMessage};
use crate::situation::origin_kind::{Hopelessness, OriginKind, StallOrigin};

/// A member that has not arrived.
#[derive(Clone, Debug)]
pub struct Absent {
    /// Its rank.
    pub rank: u32,
    /// Reason, as far as known.
    pub why: OriginKind,
}

impl Absent {
    /// The worst reason among some of the missing members, ascending.
    pub(super) fn hopelessness(missing: &[Self], of: &[u32]) -> Option<Hopelessness> {
        let asked = missing.iter().filter(|absent| of.binary_search(&absent.rank).is_ok());
        asked.map(|absent| absent.why.hopelessness()).min()
    }
}

/// Ranks of a group wait for members that have not made their call.
#[derive(Clone, Debug, Default)]
pub struct Stall {
    /// Group of the call.
    pub group: GroupId,
    /// Sequence number at which they wait.
    pub seq: u64,
    /// The point-to-point call that the rank waits in, if it is one.
    pub message: Option<UnmatchedMessage>,
    /// Ranks that wait here, or at a later call of the group.
    pub waiting: Vec<u32>,
    /// Members they need that have not arrived.
    pub missing: Vec<Absent>,
    /// Whether it is certain that a rank waits. It is not for a rooted collective that need not wait.
    pub must_wait: bool,
    /// When the first of the ranks began to wait.
    pub since: Timestamp,
    /// A wait ended without the missing ranks, or ended its process.
    pub failed: bool,
    /// When the first of the waits timed out.
    pub timed_out: Option<Timestamp>,
    /// The first condition that explains the stall.
    pub origin: StallOrigin,
    /// The test on the rank that keeps the missing ranks away, if the source shows one.
    pub rank_guard: Option<RankGuard>,
}

impl Stall {
    /// All ranks that wait in these stalls, ascending.
    pub fn victims(stalls: &[&Self]) -> Vec<u32> {
        let waiting = stalls.iter().flat_map(|stall| stall.waiting.iter());
        let victims: BTreeSet<u32> = waiting.copied().collect();
        victims.into_iter().collect()
    }

    /// Whether any one of the missing ranks can release the wait.
    pub fn takes_any(&self) -> bool {
        self.message.as_ref().is_some_and(|unmatched| unmatched.peer.is_none())
    }

    /// Whether the ranks of the origin are missing here, not behind other waits.
    pub fn is_direct(&self) -> bool {
        let StallOrigin { why, ranks } = &self.origin;
        match why {
            OriginKind::Raised if *ranks == self.waiting => true,
            // These may also be the waiting ranks.
            OriginKind::Leaving => {
                let mut absent = self.missing.iter().map(|absent| &absent.rank);
                absent.any(|rank| ranks.contains(rank))
                    || self.waiting.iter().any(|rank| ranks.contains(rank))
            }
            OriginKind::OtherTag(group, sender, receiver) => {
                let message = self.message.as_ref();
                let between = |unmatched: &UnmatchedMessage| {
                    [*sender, *receiver].contains(&unmatched.rank)
                        && unmatched.peer.is_some_and(|peer| [*sender, *receiver].contains(&peer))
                };
                *group == self.group && message.is_some_and(between)
            }
            OriginKind::LocalNumbers(group, _) => {
                let message = self.message.as_ref();
                *group == self.group
                    && message.is_some_and(|unmatched| ranks.contains(&unmatched.rank))
            }
            // Missing here for that reason: a rank that left another group may still arrive here.
            _ => {
                let mut missing = self.missing.iter();
                missing.any(|absent| absent.why == *why && ranks.contains(&absent.rank))
            }
        }
    }

    /// Whether this stall explains a later wait in the group: it is for members missing here
    /// (`open`: those that wait nowhere in the group), or, if `open` is empty, for a member that
    /// waits here. A wait that is certain (`must_wait`) is not explained by one that is not. Both lists are ascending.
    pub(super) fn explains(&self, needs: &[u32], open: &[u32], must_wait: bool) -> bool {
        if must_wait && !self.must_wait {
            return false;
        }
        if open.is_empty() {
            return self.waiting.iter().any(|rank| needs.binary_search(rank).is_ok());
        }
        let mut missing = self.missing.iter();
        open.iter().all(|needed| missing.any(|absent| absent.rank == *needed))
    }

    /// Whether such a later wait is blocked as hopelessly as this stall.
    pub(super) fn holds(&self, open: &[u32]) -> bool {
        let all = self.missing.iter().map(|it| it.why.hopelessness()).min();
        open.is_empty() || Absent::hopelessness(&self.missing, open) == all
    }

    /// Whether all of these members may still arrive.
    pub(super) fn may_come(&self, open: &[u32]) -> bool {
        Absent::hopelessness(&self.missing, open) == Some(Hopelessness::MayCome)
    }
}
