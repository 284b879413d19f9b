//! Why a member has not come.

use ddp_doctor_proto::report::Timestamp;

use super::{Inside, MORE_THAN_A_MOMENT, Situation, is_last_call};

use crate::diagnosis::event::ThreadId;
use crate::diagnosis::model::{Doing, Ending, Group, GroupId, Join, Process, Target};
use crate::diagnosis::{outside, waits};

/// A member that has not come.
#[derive(Clone, Debug)]
pub struct Absent {
    /// Its rank.
    pub rank: u32,
    /// Why, as far as it can be told.
    pub why: Absence,
}

impl Absent {
    /// Whether it cannot come any more.
    pub(super) const fn is_final(&self) -> bool {
        use Absence::{Died, Left, Raised};
        matches!(self.why, Raised | Died | Left)
    }
}

/// Why a member has not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Absence {
    /// An exception ended it.
    Raised,
    /// It died.
    Died,
    /// It is stopped.
    Stopped,
    /// It ended in order, or destroyed the group.
    Left,
    /// Nothing is heard of it any more: it may have come.
    Silent,
    /// It waits for a call that can never match.
    Diverged(GroupId, u64),
    /// It is on its way out of the program, and waits there.
    Leaving,
    /// It waits elsewhere.
    Blocked(GroupId, u64),
    /// It waits inside a collective that every member has entered.
    Inside(GroupId, u64),
    /// It is making a group, or has not made the one in which it is missed.
    Making,
    /// It waits for the partner of a point-to-point call.
    Unpartnered(GroupId),
    /// It is in a phase that takes long: one that the program marked, or work that is known to.
    LongPhase,
    /// It lives and does not move.
    StandsStill,
    /// It lives and does something else.
    Elsewhere,
}

/// What may be hoped for from a member that has not come, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hopelessness {
    /// It cannot come.
    Gone,
    /// It is held up itself.
    Held,
    /// It may come.
    MayCome,
}

impl Absence {
    pub(super) const fn hopelessness(self) -> Hopelessness {
        match self {
            Self::Raised | Self::Died | Self::Stopped | Self::Left => Hopelessness::Gone,
            Self::Diverged(..)
            | Self::Leaving
            | Self::Blocked(..)
            | Self::Inside(..)
            | Self::Making
            | Self::Unpartnered(_) => Hopelessness::Held,
            Self::Silent | Self::LongPhase | Self::StandsStill | Self::Elsewhere => {
                Hopelessness::MayCome
            }
        }
    }
}

impl Situation<'_> {
    /// Why a member has not come to a call, or to its side of a message. Where a wait for it was given up
    /// before it ended, its end is not why: the launcher ends whoever is left.
    pub(super) fn absence(
        &self,
        group: &Group,
        rank: u32,
        message: bool,
        given_up: Option<Timestamp>,
    ) -> Absence {
        let Some(process) = self.model.member(group.id, rank) else {
            return Absence::Elsewhere;
        };
        if process.is_stopped() {
            return Absence::Stopped;
        }
        let ended_later = process
            .end
            .is_some_and(|end| given_up.is_some_and(|given_up| given_up < end.at));
        match self.model.ending_of(process) {
            // Who waits in a circle ends because of it.
            Ending::Raised(_) | Ending::Died(_) if self.waits.in_cycle(rank) => {
                return self
                    .held(group, rank, message)
                    .unwrap_or(Absence::Elsewhere);
            }
            Ending::Raised(_) => return Absence::Raised,
            Ending::Died(_) if !ended_later => return Absence::Died,
            // What a partner was at when nobody waited for it any more, it was at before.
            Ending::InOrder | Ending::Died(_) if message && ended_later => {
                return self
                    .held(group, rank, message)
                    .unwrap_or(Absence::Elsewhere);
            }
            Ending::InOrder => return Absence::Left,
            Ending::Died(_) | Ending::None => {}
        }
        if group.is_destroyed_by(rank) {
            return Absence::Left;
        }
        let diverged = self.divergences.iter().find(|divergence| {
            let group = self.model.group(divergence.group);
            let mut joins = group.joins.range(divergence.seq..);
            joins.any(|(_, join)| join.mismatch.is_some() && self.is_held_up(group, join, process))
        });
        if let Some(divergence) = diverged {
            return Absence::Diverged(divergence.group, divergence.seq);
        }
        let outside = || {
            let nothing = !process.is_inside_a_call();
            nothing.then(|| outside::of(process)).flatten()
        };
        if process.is_leaving() && outside().is_none() {
            return Absence::Leaving;
        }
        if let Some(held) = self.held(group, rank, message) {
            return held;
        }
        if self.model.silent_since(process).is_some() {
            return Absence::Silent;
        }
        if let Some(inside) = self.stuck_inside(rank) {
            return Absence::Inside(inside.group, inside.seq);
        }
        if !group.members.contains_key(&rank) || is_making(process) {
            return Absence::Making;
        }
        if !process.phases.is_empty() {
            return Absence::LongPhase;
        }
        match outside() {
            // Where a message lacks its partner, that is what is told of it.
            Some(outside) if !outside.moves && !message => Absence::StandsStill,
            Some(outside) if outside.what.long_work().is_some() => Absence::LongPhase,
            _ => Absence::Elsewhere,
        }
    }

    /// What a rank waits in itself, where that is not the call of this group that others wait in.
    fn held(&self, group: &Group, rank: u32, message: bool) -> Option<Absence> {
        let blocked = self.waits.blocked.get(&rank)?.first()?;
        let process = self.model.member(blocked.group, rank);
        if !process.is_some_and(|process| self.is_held(process)) {
            return None;
        }
        if blocked.message.is_some() {
            return Some(Absence::Unpartnered(blocked.group));
        }
        (message || blocked.group != group.id)
            .then_some(Absence::Blocked(blocked.group, blocked.seq))
    }

    /// Whether all threads of a process wait for others, and none of several may be released by ranks that
    /// are free: one that stood for more than a moment will hardly.
    pub(super) fn is_held(&self, process: &Process) -> bool {
        let blocked = process.rank.and_then(|rank| self.waits.blocked.get(&rank));
        let blocked = blocked.map_or(&[][..], Vec::as_slice);
        let is_stuck = process.threads.len() == 1
            || process
                .rank
                .is_some_and(|rank| self.waits.stuck.contains(&rank));
        self.stands_still(process, |thread| {
            is_stuck && blocked.iter().any(|it| it.thread == thread)
        })
    }

    /// Whether a process of which some threads stand still does so as a whole: any other thread may
    /// make the missing call, but one that was silent for more than a moment will hardly.
    fn stands_still(&self, process: &Process, stands: impl Fn(ThreadId) -> bool) -> bool {
        process
            .threads
            .iter()
            .all(|(&id, thread)| stands(id) || thread.last_at.plus(MORE_THAN_A_MOMENT) <= self.now)
    }

    /// Whether a rank stands still because its call met others that do not match. A leaf, or one whose
    /// call differs only in what it says of the data, may be done all the same: it is taken to stand
    /// still once it has for more than a moment.
    fn is_held_up(&self, group: &Group, join: &Join, process: &Process) -> bool {
        let Some(rank) = process.rank else {
            return false;
        };
        let Some(joined) = join.calls.get(&rank) else {
            return false;
        };
        let id = joined.call.thread;
        let Some(thread) = process.threads.get(&id) else {
            return false;
        };
        let target = match &thread.doing {
            Doing::Call(call) => process.target(call.id),
            Doing::Wait(target, ..) => *target,
            Doing::Nothing if joined.call.hidden && is_last_call(process, joined) => {
                Some(Target::Join(group.id, joined.call.seq))
            }
            Doing::Nothing => None,
        };
        let Some(Target::Join(its, at)) = target else {
            return false;
        };
        let behind = group.is_stream() && at > joined.call.seq;
        if its != group.id || !(at == joined.call.seq || behind) {
            return false;
        }
        let awaited = group.join(at).and_then(|join| join.calls.get(&rank));
        let awaited = awaited.unwrap_or(joined);
        let unmatched = waits::unmatched(join, joined);
        let certain = group.holds_threads(awaited.call.op)
            && !joined.call.hidden
            && !joined.needs(rank, &unmatched).is_empty();
        let alone = || self.stands_still(process, |other| other == id);
        (certain || thread.last_at.plus(MORE_THAN_A_MOMENT) <= self.now)
            && (self.waits.stuck.contains(&rank) || self.waits.at_odds.contains(&rank) || alone())
    }

    /// The collective inside which a rank has waited for more than a moment.
    fn stuck_inside(&self, rank: u32) -> Option<&Inside> {
        self.inside.iter().find(|inside| {
            inside.waiting.contains(&rank) && inside.since.plus(MORE_THAN_A_MOMENT) <= self.until
        })
    }
}

/// Whether a thread of the process is making a group.
fn is_making(process: &Process) -> bool {
    process
        .threads
        .values()
        .any(|thread| matches!(&thread.doing, Doing::Call(call) if call.op.creates_group()))
}
