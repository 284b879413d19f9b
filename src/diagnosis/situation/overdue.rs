//! When a wait has lasted long enough to be a finding without a proof.

use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use crate::model::GroupId;
use crate::situation::moment::{FAILED_FOR, Moment};
use crate::situation::stall::Stall;
use crate::situation::stall_origins::{Omission, Stalls};

impl Stalls<'_> {
    /// Whether a stall has lasted long enough to be a finding without a proof, or follows from an omission.
    pub fn is_overdue(&self, stall: &Stall) -> bool {
        self.overdue_at(stall) <= self.known_until(stall)
    }

    /// When the stall becomes overdue.
    pub fn overdue_at(&self, stall: &Stall) -> Timestamp {
        self.omission_at(stall).map_or_else(|| self.limit_of(stall), |omission| omission.closed)
    }

    /// The omission that a stall follows from. It closes a cycle, so no more time needs to pass.
    fn omission_at(&self, stall: &Stall) -> Option<&Omission> {
        let place = (stall.group, stall.seq);
        let mut omissions = self.omissions.iter();
        omissions.find(|it| (it.group, it.seq) == place && stall.message.is_none())
    }
}

impl Moment<'_> {
    /// Whether a stall has lasted for its limit.
    pub(super) fn exceeds_limit(&self, stall: &Stall) -> bool {
        self.limit_of(stall) <= self.known_until(stall)
    }

    /// Up to when a stall is known to last: that of the records of all waiting and missing ranks.
    fn known_until(&self, stall: &Stall) -> Timestamp {
        let missing = stall.missing.iter().map(|absent| absent.rank);
        self.known_of(stall.group, stall.waiting.iter().copied().chain(missing))
    }

    /// Up to when the activity of all of these ranks of a group is known.
    pub fn known_of(&self, group: GroupId, ranks: impl Iterator<Item = u32>) -> Timestamp {
        ranks
            .filter_map(|rank| self.model.member(group, rank)?.known_until)
            .fold(self.until, Timestamp::min)
    }

    /// When a stall reaches its limit: the configured one, or three times the longest earlier wait at these lines,
    /// whichever is longer. A wait that already ended in failure reaches it at once.
    fn limit_of(&self, stall: &Stall) -> Timestamp {
        if stall.failed {
            return stall.since.plus(FAILED_FOR);
        }
        if self.is_cut_short(stall) {
            return self.until;
        }
        let usual = if self.config.has_timed_out { Duration::ZERO } else { self.usual_wait(stall) };
        let limit = self.config.stall_after.max(usual * 3);
        let overdue = stall.since.plus(limit);
        // A rank that has been in a phase gets as much time again after the phase.
        let missing = stall.missing.iter();
        let phases = missing.filter_map(|it| self.model.member(stall.group, it.rank)?.last_phase);
        phases
            .filter(|(began, _)| *began <= overdue)
            .map(|(_, ended)| ended.plus(limit))
            .fold(overdue, Timestamp::max)
    }

    /// The longest earlier wait of the waiting ranks at the same lines.
    pub fn usual_wait(&self, stall: &Stall) -> Duration {
        let calls = self.calls(stall).into_iter();
        let before = calls.filter_map(|(rank, joined)| {
            let process = self.model.member(stall.group, rank)?;
            process.places.longest_wait(joined.call.place.as_ref()?)
        });
        Duration::from_nanos(before.max().unwrap_or(0))
    }

    /// Whether the job was ended while ranks had waited here for at least `interrupted_wait`. Users
    /// mostly end jobs that hang, and want to know why.
    pub fn is_cut_short(&self, stall: &Stall) -> bool {
        let noticeable = self.model.timing.interrupted_wait;
        self.until < self.now && stall.since.plus(noticeable) <= self.until
    }
}
