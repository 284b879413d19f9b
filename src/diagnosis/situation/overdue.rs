//! When a wait has lasted so long that it is a finding without a proof.

use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use super::{FAILED_FOR, Situation, Stall};
use crate::diagnosis::model::GroupId;

impl Situation<'_> {
    /// Whether a stall has lasted so long that it is a finding without a proof.
    ///
    /// That is: as long as the settings say, or three times as long as anybody waited at these lines
    /// before, whichever is more; at once where a wait has already ended in failure.
    #[must_use]
    pub fn is_overdue(&self, stall: &Stall) -> bool {
        self.overdue_at(stall) <= self.known_until(stall)
    }

    /// Up to when it is known that they wait and that the others have not come: not longer than the
    /// records of each of them are.
    fn known_until(&self, stall: &Stall) -> Timestamp {
        let missing = stall.missing.iter().map(|absent| absent.rank);
        self.known_of(stall.group, stall.waiting.iter().copied().chain(missing))
    }

    /// Up to when it is known what all of these ranks of a group do.
    #[must_use]
    pub fn known_of(&self, group: GroupId, ranks: impl Iterator<Item = u32>) -> Timestamp {
        ranks
            .filter_map(|rank| self.model.member(group, rank)?.known_until)
            .fold(self.until, Timestamp::min)
    }

    /// When that will be.
    #[must_use]
    pub fn overdue_at(&self, stall: &Stall) -> Timestamp {
        if stall.failed {
            return stall.since.plus(FAILED_FOR);
        }
        if self.is_cut_short(stall) {
            return self.until;
        }
        let limit = self.config.stall_after.max(self.usual_wait(stall) * 3);
        let overdue = stall.since.plus(limit);
        // Whoever was in a phase by then is given as much time again to come out of it.
        let phases = stall.missing.iter().filter_map(|absent| {
            let process = self.model.member(stall.group, absent.rank)?;
            process.last_phase
        });
        phases
            .filter(|(began, _)| *began <= overdue)
            .map(|(_, ended)| ended.plus(limit))
            .fold(overdue, Timestamp::max)
    }

    /// The longest time that anybody who waits here has waited at the same line before.
    #[must_use]
    pub fn usual_wait(&self, stall: &Stall) -> Duration {
        let calls = self.calls(stall).into_iter();
        let before = calls.filter_map(|(rank, joined)| {
            let process = self.model.member(stall.group, rank)?;
            process.waits.get(joined.call.place.as_ref()?).copied()
        });
        Duration::from_nanos(before.max().unwrap_or(0))
    }

    /// Whether somebody ended the job while ranks had waited here for more than a moment: most people
    /// who end a job end one that hangs, and want to know why.
    #[must_use]
    pub fn is_cut_short(&self, stall: &Stall) -> bool {
        let noticeable = self.model.timing.interrupted_wait;
        self.until < self.now && stall.since.plus(noticeable) <= self.until
    }
}
