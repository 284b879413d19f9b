//! Calls that met and cannot match: their nature and their origin.

use std::sync::Arc;

use ddp_doctor_proto::GuardForm;
use ddp_doctor_proto::report::{Timestamp, Where};

use crate::guards::{self, RankGuard};
use crate::input::align::Mismatch;
use crate::model::{Ending, Group, GroupId, Join, JoinedCall, Slip};
use crate::situation::moment::Moment;
use crate::situation::origin_kind::{OriginKind, StallOrigin};
use crate::situation::stall::Stall;
use crate::waits::order::{self, Permutation};

/// Number of calls before a divergence in which the ranks' paths may have separated.
const PARTED_BEFORE: usize = 16;

/// The calls of one collective cannot match.
#[derive(Clone, Debug)]
pub struct Divergence {
    /// Group of the calls.
    pub group: GroupId,
    /// Sequence number of the calls.
    pub seq: u64,
    /// The first disagreement of the calls.
    pub mismatch: Mismatch,
    /// Earliest time at which calls that disagree had met.
    pub at: Timestamp,
    /// Origin: the mismatch itself, an exception that diverted a rank, or a call that ranks make
    /// while exiting.
    pub origin: StallOrigin,
    /// Nature of the mismatch.
    pub nature: Nature,
}

/// The nature of a mismatch.
#[derive(Clone, Debug)]
pub enum Nature {
    /// Different calls.
    Mismatch,
    /// The same calls in a different order.
    Order(Permutation),
    /// A call that only some ranks reach because of a test on the rank.
    Parted(RankGuard),
}

impl<'a> Moment<'a> {
    pub(super) fn divergence(&self, group: &Group) -> Option<Divergence> {
        let seq = group.diverged?;
        let join = group.join(seq)?;
        let (mismatch, at) = join.mismatch?;
        let (raised, leaving) = self.on_their_way_out(group.id, join.by_rank());
        let some = |ranks: &Vec<u32>| !ranks.is_empty() && ranks.len() < join.calls.len();
        // If most ranks make their call in a handler after which they go on, the others have left out something.
        let common = raised.len() * 2 > join.calls.len()
            && raised.iter().all(|&it| self.goes_on_after(group, it, join));
        let origin = if some(&raised) && !common {
            StallOrigin { why: OriginKind::Raised, ranks: raised }
        } else if some(&leaving) {
            StallOrigin { why: OriginKind::Leaving, ranks: leaving }
        } else {
            StallOrigin::without_ranks(OriginKind::Diverged(group.id, seq))
        };
        let acts = |rank, thread| {
            let process = self.model.member(group.id, rank);
            process.and_then(|it| it.threads.get(&thread)).is_some_and(|it| it.of_the_program)
        };
        let nature = match order::permutation(group, seq, &acts) {
            Some(permutation) => Nature::Order(permutation),
            // Ranks whose calls differ only in their data reached the same call.
            None if mismatch != Mismatch::Op => Nature::Mismatch,
            None => self.rank_guard(group, seq, join).map_or(Nature::Mismatch, Nature::Parted),
        };
        Some(Divergence { group: group.id, seq, mismatch, at, origin, nature })
    }

    /// Whether these ranks have ended in order although their calls did not match: NCCL does not check sizes, and if the
    /// messages are small, no rank waits.
    pub fn have_ended_in_order(&self, group: GroupId, ranks: &[u32]) -> bool {
        ranks.iter().all(|&rank| self.ending(group, rank) == Some(Ending::InOrder))
    }

    /// Whether one of these ranks has raised an exception or died.
    pub fn has_one_crashed<'r>(
        &self,
        group: GroupId,
        ranks: impl IntoIterator<Item = &'r u32>,
    ) -> bool {
        let mut endings = ranks.into_iter().filter_map(|&rank| self.ending(group, rank));
        endings.any(|it| matches!(it, Ending::Raised(_) | Ending::Died(_)))
    }

    /// The ranks that made these calls because of an exception, and those that made them while
    /// exiting.
    pub(in super::super) fn on_their_way_out<'b>(
        &self,
        group: GroupId,
        calls: impl Iterator<Item = (u32, &'b JoinedCall)>,
    ) -> (Vec<u32>, Vec<u32>) {
        let (mut raised, mut leaving) = (Vec::new(), Vec::new());
        for (rank, joined) in calls {
            let Some(process) = self.model.member(group, rank) else { continue };
            if process.raised_before(&joined.call).is_some() {
                raised.push(rank);
            } else if process.is_leaving_at(&joined.call) {
                leaving.push(rank);
            }
        }
        (raised, leaving)
    }

    /// Whether a rank makes its call in a handler that neither raises nor ends the program.
    fn goes_on_after(&self, group: &Group, rank: u32, join: &Join) -> bool {
        let process = self.model.member(group.id, rank);
        let place = join.calls.get(&rank).and_then(|it| it.call.place.as_ref());
        process.zip(place).is_some_and(|(process, place)| {
            let mut around = guards::around(process, place);
            process.uncaught().is_none() && around.any(|(_, it)| it.form == GuardForm::Handles)
        })
    }

    /// The test on the rank that explains a mismatch: around one of the calls, or around an earlier
    /// collective from which on the lines of the ranks differ.
    pub fn rank_guard(&self, group: &Group, seq: u64, join: &Join) -> Option<RankGuard> {
        let sides = join.classes();
        let place_of = |rank: u32| join.calls.get(&rank).and_then(|it| it.call.place.clone());
        let here = self.part(group, seq, &sides, &place_of);
        let mut before = group.history.recent().take(PARTED_BEFORE);
        here.or_else(|| {
            let mut next = seq;
            before.find_map(|meeting| {
                let place_of = |rank: u32| meeting.place_of(rank).cloned();
                let apart = next == meeting.seq + 1
                    && sides.iter().skip(1).any(|side| place_of(side[0]) != place_of(sides[0][0]));
                // Beyond the point where lines were equal again, nothing is relevant.
                next = if apart { meeting.seq } else { 0 };
                apart.then(|| self.part(group, meeting.seq, &sides, &place_of)).flatten()
            })
        })
    }

    /// The test on the rank around the line of one side only. If every side has one, all ranks make
    /// a call and it is unclear which is right; so no source may still be unread.
    fn part(
        &self,
        group: &Group,
        seq: u64,
        sides: &[Vec<u32>],
        place_of: &dyn Fn(u32) -> Option<Arc<Where>>,
    ) -> Option<RankGuard> {
        let is_open = |side: &Vec<u32>| {
            let rank = *side.first()?;
            let process = self.model.member(group.id, rank)?;
            Some(guards::are_being_read(process, &place_of(rank)?))
        };
        if sides.iter().any(|side| is_open(side) == Some(true)) {
            return None;
        }
        let partings: Vec<RankGuard> = sides
            .iter()
            .filter_map(|side| {
                let place = place_of(*side.first()?)?;
                let others: Vec<u32> =
                    sides.iter().filter(|it| *it != side).flatten().copied().collect();
                guards::parted(self.model, (group.id, seq), &place, side, &others)
            })
            .collect();
        if partings.len() == sides.len() {
            return None;
        }
        partings.into_iter().min_by_key(|rank_guard| rank_guard.inside.len())
    }

    pub(in super::super) fn parting_of(&self, stall: &Stall) -> Option<RankGuard> {
        match stall.origin.why {
            // A rank that makes progress may still reach a call that matches.
            OriginKind::Elsewhere | OriginKind::Stuck => {
                let gave_up = stall.failed || stall.timed_out.is_some();
                let goes_on = !gave_up && self.is_computing(stall, &stall.origin.ranks);
                self.parting_at(stall).filter(|_| !goes_on)
            }
            // Ranks that left are at fault unless it is the call that only a few make.
            OriginKind::Left => {
                let is_call_of_few = |it: &RankGuard| it.few() == Some(&it.inside[..]);
                self.parting_at(stall).filter(is_call_of_few)
            }
            _ => None,
        }
    }

    /// The test on the rank that keeps all missing ranks of a stall away, whatever these do.
    pub(in super::super) fn parting_at(&self, stall: &Stall) -> Option<RankGuard> {
        if stall.message.is_some() {
            return None;
        }
        let join = self.join(stall.group, stall.seq)?;
        let absent: Vec<u32> = stall.missing.iter().map(|absent| absent.rank).collect();
        let here: Vec<u32> = join.calls.keys().copied().collect();
        let place = join.calls.values().next()?.call.place.clone()?;
        let together = join.calls.values().all(|it| it.call.place.as_ref() == Some(&place));
        together
            .then(|| guards::parted(self.model, (stall.group, stall.seq), &place, &here, &absent))
            .flatten()
    }

    /// A slip of the group before this call: ranks pair calls that do not belong together.
    pub fn slip_before(&self, group: GroupId, seq: u64) -> Option<&'a Slip> {
        let slip = self.model.group(group).history.slip();
        slip.filter(|slip| slip.seq < seq)
    }
}
