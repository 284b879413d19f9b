//! What missing ranks do, and which of them keep others waiting in good order.

use ddp_doctor_proto::vocabulary::Direction;

use crate::model::{Process, Quantity, Side};
use crate::situation::moment::Moment;
use crate::situation::origin_kind::OriginKind;
use crate::situation::stall::Stall;
use crate::stacks::{self, Activity, Occupation};

/// Minimum share of a processor that a process uses which computes.
const COMPUTES: f64 = 1.0 / stacks::IDLE as f64;

impl Moment<'_> {
    /// What a missing rank of a stall does, from its stacks or, without them, from its use of the
    /// processor; `None`: unknown. It is not dormant, and waits for nothing shared: these are resolved.
    pub fn occupation(&self, stall: &Stall, rank: u32, process: &Process) -> Option<Occupation> {
        use Occupation::{Blocked, Dormant, External, Shared};
        if let Some(activity) = stacks::activity(process, &self.model.timing) {
            return Some(match activity.occupation {
                Dormant | Blocked if self.ends_in_time(stall, &activity) => External,
                Shared if self.all_others_wait(process) || self.is_locked_out(stall, process) => {
                    Blocked
                }
                Dormant if !self.begins(stall, rank) => Blocked,
                Shared | Dormant => External,
                occupation => occupation,
            });
        }
        let since = stall.since.max(process.progressed_at());
        let ran = process.pace.share(Quantity::Ran, since, self.now)?;
        (ran >= COMPUTES).then_some(Occupation::Computing)
    }

    /// Whether the wait of a missing rank ends by itself before the ranks that wait for it give up.
    fn ends_in_time(&self, stall: &Stall, activity: &Activity<'_>) -> bool {
        let timeout = || self.model.group(stall.group).timeout(&stall.waiting);
        activity.waits_until.is_some_and(|end| end < stall.since.plus(timeout()))
    }

    /// Whether no other rank can release what a rank waits for: each has ended, or waits for others.
    fn all_others_wait(&self, process: &Process) -> bool {
        let mut others = self
            .model
            .ranks
            .keys()
            .filter(|rank| process.rank != Some(**rank))
            .filter_map(|&rank| self.model.process_of(rank));
        others.all(|it| {
            let waits = it.rank.is_some_and(|rank| self.waits.blocked.contains_key(&rank));
            it.has_ended() || waits
        })
    }

    /// Whether the wait in a stall may end although it has lasted long: one of these missing ranks
    /// does something that ends by itself, or may have to begin and is not seen.
    pub fn may_end(&self, stall: &Stall, ranks: &[u32]) -> bool {
        use Occupation::{Computing, External, Listening};
        let gave_up = stall.failed || stall.timed_out.is_some();
        let mut processes = self.model.members(stall.group, ranks);
        !gave_up
            && processes.any(|(rank, process)| match self.occupation(stall, rank, process) {
                Some(occupation) => matches!(occupation, Computing | External | Listening),
                None => self.begins(stall, rank),
            })
    }

    /// Whether one of these missing ranks of a stall computes.
    pub fn is_computing(&self, stall: &Stall, ranks: &[u32]) -> bool {
        let mut processes = self.model.members(stall.group, ranks);
        processes.any(|(rank, process)| {
            self.occupation(stall, rank, process) == Some(Occupation::Computing)
        })
    }

    /// Whether the waiting ranks receive what this rank sends them: it decides when they go on.
    pub(super) fn begins(&self, stall: &Stall, rank: u32) -> bool {
        if let Some(unmatched) = &stall.message {
            return unmatched.side == Side::Receive;
        }
        let join = self.join(stall.group, stall.seq);
        let call = join.and_then(|join| Some(&join.calls.values().next()?.call));
        call.is_some_and(|it| it.op.direction() == Direction::FromRoot && it.root == Some(rank))
    }

    /// Recognizes missing ranks whose wait ends by itself: those that wait for a time, and those that wait for work before
    /// they send others theirs.
    pub(super) fn recognize_waits_that_end(&self, stall: &mut Stall) {
        if stall.failed || stall.timed_out.is_some() {
            return;
        }
        let mut missing = std::mem::take(&mut stall.missing);
        for absent in &mut missing {
            let is_open = matches!(absent.why, OriginKind::Elsewhere | OriginKind::Stuck);
            let process =
                self.model.member(stall.group, absent.rank).filter(|it| is_open && !it.has_ended());
            let Some(process) = process else { continue };
            let listens =
                self.occupation(stall, absent.rank, process) == Some(Occupation::Listening);
            let activity = || stacks::activity(process, &self.model.timing);
            if listens && self.begins(stall, absent.rank) {
                absent.why = OriginKind::Idle;
            } else if activity().is_some_and(|it| !it.moves && self.ends_in_time(stall, &it)) {
                absent.why = OriginKind::LongPhase;
            }
        }
        stall.missing = missing;
    }
}
