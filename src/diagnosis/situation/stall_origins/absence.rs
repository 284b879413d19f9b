//! Why a member has not arrived.

use ddp_doctor_proto::report::{Exit, Timestamp};

use crate::input::event::ThreadId;
use crate::model::{Doing, Ending, Group, Join, Process, Target, Thread, libc_signal};
use crate::situation::open_calls::{Inside, OpenCalls};
use crate::situation::origin_kind::OriginKind;
use crate::{stacks, waits};

impl OpenCalls<'_> {
    /// Why a member has not arrived at a call, or at its side of a message. If the wait for it was
    /// given up before it ended or left, that is not the reason: launchers end the remaining ranks, and
    /// frameworks destroy their groups.
    pub(super) fn absence(
        &self,
        group: &Group,
        rank: u32,
        message: bool,
        given_up: Option<Timestamp>,
    ) -> OriginKind {
        let Some(process) = self.model.member(group.id, rank) else { return OriginKind::Elsewhere };
        if process.is_stopped() {
            return OriginKind::Stopped;
        }
        let ended_later =
            process.end.is_some_and(|end| given_up.is_some_and(|given_up| given_up < end.at));
        let has_left_later = given_up
            .is_some_and(|given_up| self.left_at(group, rank).is_some_and(|left| given_up < left));
        match self.model.ending_of(process) {
            // A rank in a cycle ends because of the cycle.
            Ending::Raised(_) | Ending::Died(_) if self.waits.in_cycle(rank) => {
                return self.held(group, rank, message).unwrap_or(OriginKind::Elsewhere);
            }
            Ending::Raised(_) => return OriginKind::Raised,
            // Launchers also end ranks that have left and are exiting.
            Ending::Died(exit)
                if (exit == Exit::default() || exit.signal.is_some_and(libc_signal::is_asked))
                    && group.is_destroyed_by(rank)
                    && !has_left_later =>
            {
                return OriginKind::Left;
            }
            Ending::Died(_) if !ended_later => return OriginKind::Died,
            // A partner that ended after the wait was given up was in its last wait before that.
            Ending::InOrder | Ending::Died(_) if message && ended_later => {
                return self.held(group, rank, message).unwrap_or(OriginKind::Elsewhere);
            }
            Ending::InOrder if !has_left_later => return OriginKind::Left,
            Ending::InOrder | Ending::Died(_) | Ending::None => {}
        }
        if group.is_destroyed_by(rank) && !has_left_later {
            return OriginKind::Left;
        }
        let diverged = self.divergences.iter().find(|divergence| {
            let group = self.model.group(divergence.group);
            let mut joins = group.joins.range(divergence.seq..);
            joins.any(|(_, join)| join.mismatch.is_some() && self.is_held_up(group, join, process))
        });
        if let Some(divergence) = diverged {
            return OriginKind::Diverged(divergence.group, divergence.seq);
        }
        let outside = || {
            let nothing = !process.is_inside_a_call();
            nothing.then(|| stacks::activity(process, &self.model.timing)).flatten()
        };
        if process.is_leaving() && !process.exits_on_request() && outside().is_none() {
            return OriginKind::Leaving;
        }
        if let Some(held) = self.held(group, rank, message) {
            return held;
        }
        if self.model.silent_since(process).is_some() {
            return OriginKind::Silent;
        }
        if let Some(inside) = self.stuck_inside(rank) {
            return OriginKind::Inside(inside.group, inside.seq);
        }
        let makes_group = || process.entered().any(|call| call.op.creates_group());
        if !group.members.contains_key(&rank) || makes_group() {
            return OriginKind::Making;
        }
        if !process.phases.is_empty() {
            return OriginKind::LongPhase;
        }
        match outside() {
            // A message without a partner is reported as such.
            Some(outside) if !outside.moves && !message => OriginKind::Stuck,
            Some(outside) if outside.what.long_work().is_some() => OriginKind::LongPhase,
            _ => OriginKind::Elsewhere,
        }
    }

    /// What the rank itself waits for, unless it is the call of this group in which others wait.
    fn held(&self, group: &Group, rank: u32, message: bool) -> Option<OriginKind> {
        let blocked = self.waits.blocked.get(&rank)?.first()?;
        let process = self.model.member(blocked.group, rank);
        if !process.is_some_and(|process| self.is_held(process)) {
            return None;
        }
        if blocked.message.is_some() {
            return Some(OriginKind::Unpartnered(blocked.group));
        }
        (message || blocked.group != group.id)
            .then_some(OriginKind::Blocked(blocked.group, blocked.seq))
    }

    /// Whether all threads of a process are blocked and, if there are several, no free rank can
    /// release them. Threads that have been silent for `idle_thread` do not count.
    pub(super) fn is_held(&self, process: &Process) -> bool {
        let blocked = process
            .rank
            .and_then(|rank| self.waits.blocked.get(&rank))
            .map_or(&[][..], Vec::as_slice);
        let is_stuck = process.threads.len() == 1
            || process.rank.is_some_and(|rank| self.waits.stuck.contains(&rank));
        self.stands_still(process, |thread| {
            is_stuck && blocked.iter().any(|it| it.thread == thread)
        })
    }

    /// Whether a process is blocked as a whole if some of its threads are. Any other thread may
    /// make the missing call, but not one that has been silent for `idle_thread`.
    fn stands_still(&self, process: &Process, stands: impl Fn(ThreadId) -> bool) -> bool {
        process.threads.iter().all(|(&id, thread)| stands(id) || self.is_idle(thread))
    }

    fn is_idle(&self, thread: &Thread) -> bool {
        thread.last_at.plus(self.model.timing.idle_thread) <= self.now
    }

    /// Whether a rank is blocked because its call met calls that do not match. A leaf, or a call
    /// that differs only in its data, may complete nevertheless: it counts as blocked once its
    /// thread has been silent for `idle_thread`.
    fn is_held_up(&self, group: &Group, join: &Join, process: &Process) -> bool {
        let known = process.rank.and_then(|rank| {
            let joined = join.calls.get(&rank)?;
            Some((rank, joined, process.threads.get(&joined.call.thread)?))
        });
        let Some((rank, joined, thread)) = known else { return false };
        let target = match &thread.doing {
            Doing::Nothing if joined.call.hidden && process.has_last_issued(&joined.call) => {
                Some(Target::Join(group.id, joined.call.seq))
            }
            _ => process.target_of(thread),
        };
        let at = match target {
            Some(Target::Join(its, at)) if its == group.id => at,
            _ => return false,
        };
        let behind = group.backend.is_on_stream && at > joined.call.seq;
        if at != joined.call.seq && !behind {
            return false;
        }
        let awaited = group.join(at).and_then(|join| join.calls.get(&rank)).unwrap_or(joined);
        let certain = group.holds_threads(awaited.call.op)
            && !joined.call.hidden
            && (waits::needs_unmatched(join, rank, joined)
                || behind && waits::needs_one_behind_unmatched(join, rank, awaited));
        let alone = || self.stands_still(process, |other| other == joined.call.thread);
        (certain || self.is_idle(thread))
            && (self.waits.stuck.contains(&rank) || self.waits.at_odds.contains(&rank) || alone())
    }

    /// The collective inside which a rank has waited for at least `interrupted_wait`.
    fn stuck_inside(&self, rank: u32) -> Option<&Inside> {
        let enough = self.model.timing.interrupted_wait;
        self.inside.iter().find(|inside| {
            inside.waiting.contains(&rank) && inside.since.plus(enough) <= self.until
        })
    }
}
