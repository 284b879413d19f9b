//! What is the matter, before it has a name: stalls, divergences, and what each of them comes from.
//!
//! The decision which finding a stall leads to is made here, in one place and for all findings: a
//! stall has one [`Origin`], and every detector speaks only of origins of its own kind.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use super::Config;
use super::creations::{self, Mismatch};
use super::model::{Doing, Ending, Group, GroupId, Join, JoinedCall, Model, Process, Wait};
use super::waits::Waits;

mod inside;

/// A wait that ended without its peers: only believed after this long, since the evidence of other
/// processes may be that late.
const FAILED_FOR: Duration = Duration::from_millis(500);

/// A wait that somebody who looks at the job may have noticed.
const MORE_THAN_A_MOMENT: Duration = Duration::from_secs(3);

/// The model at one moment, and what can be seen in it.
pub struct Situation<'a> {
    /// What is known.
    pub model: &'a Model,
    /// The moment.
    pub now: Timestamp,
    /// Up to when waits count.
    pub until: Timestamp,
    /// Settings.
    pub config: &'a Config,
    /// Who waits for whom.
    pub waits: Waits,
    /// Groups in which ranks wait for members that have not come: the first such place of each.
    pub stalls: Vec<Stall>,
    /// Groups in which calls met that cannot match: the first such place of each.
    pub divergences: Vec<Divergence>,
    /// Collectives that every member has entered and somebody waits for: the first of each group.
    pub inside: Vec<Inside>,
    /// Makers of groups who do not agree: the first such in each world.
    pub mismatches: Vec<Mismatch<'a>>,
}

/// A collective that every member has entered, and that does not complete.
#[derive(Clone, Debug)]
pub struct Inside {
    /// The group.
    pub group: GroupId,
    /// The collective.
    pub seq: u64,
    /// Ranks that wait for it.
    pub waiting: Vec<u32>,
    /// When the last member had entered it, and the first of them waited.
    pub since: Timestamp,
    /// When it is a finding without a proof.
    pub overdue_at: Timestamp,
}

/// Ranks of a group wait for members that have not made their call.
#[derive(Clone, Debug)]
pub struct Stall {
    /// The group.
    pub group: GroupId,
    /// The sequence number at which they wait.
    pub seq: u64,
    /// Ranks that wait here, or further on in the group.
    pub waiting: Vec<u32>,
    /// The members they need that have not come.
    pub missing: Vec<Absent>,
    /// When the first of them began to wait.
    pub since: Timestamp,
    /// Somebody's wait ended all the same, or its process did.
    pub failed: bool,
    /// What it comes from.
    pub origin: Origin,
}

/// A member that has not come.
#[derive(Clone, Debug)]
pub struct Absent {
    /// Its rank.
    pub rank: u32,
    /// Why, as far as it can be told.
    pub why: Absence,
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
    /// It waits elsewhere.
    Blocked(GroupId, u64),
    /// It waits inside a collective that every member has entered.
    Inside(GroupId, u64),
    /// It is making a group, or has not made the one in which it is missed.
    Making,
    /// It lives and does something else.
    Elsewhere,
}

/// What a stall or a divergence comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Ranks that an exception ended or diverted.
    Raised(Vec<u32>),
    /// Ranks that died.
    Died(Vec<u32>),
    /// Ranks that are stopped.
    Stopped(Vec<u32>),
    /// Ranks that ended in order or left the group.
    Left(Vec<u32>),
    /// Calls that can never match.
    Diverged(GroupId, u64),
    /// A cycle of waits, by its index in [`Waits::cycles`].
    Cycle(usize),
    /// Ranks of which nothing is heard any more.
    Silent(Vec<u32>),
    /// A collective that every member has entered, and that does not complete.
    Inside(GroupId, u64),
    /// Ranks that have not made a group which others make, or do not come back from it.
    Making(Vec<u32>),
    /// Ranks that live and do something else.
    Elsewhere(Vec<u32>),
}

/// Calls that met and cannot match.
#[derive(Clone, Debug)]
pub struct Divergence {
    /// The group.
    pub group: GroupId,
    /// The sequence number.
    pub seq: u64,
    /// What it comes from: the mismatch itself, or an exception that diverted a rank.
    pub origin: Origin,
}

impl<'a> Situation<'a> {
    /// Looks at the model.
    #[must_use]
    pub fn of(model: &'a Model, config: &'a Config, now: Timestamp) -> Self {
        let mut situation = Self {
            model,
            now,
            until: model.own_doing_until(now),
            config,
            waits: Waits::of(model, now),
            stalls: Vec::new(),
            divergences: Vec::new(),
            inside: Vec::new(),
            mismatches: Vec::new(),
        };
        situation.inside = inside::all(&situation);

        situation.divergences = model
            .groups()
            .filter_map(|group| situation.divergence(group))
            .collect();
        let mut stalls: Vec<Stall> = model
            .groups()
            .filter_map(|group| situation.stall(group))
            .collect();
        for i in 0..stalls.len() {
            stalls[i].origin = situation.origin(&stalls, i, &mut BTreeSet::new());
        }
        situation.stalls = stalls;
        situation.mismatches = creations::mismatches(&situation);
        situation
    }

    /// The join of a group at a sequence number.
    #[must_use]
    pub fn join(&self, group: GroupId, seq: u64) -> Option<&'a Join> {
        self.model.group(group).join(seq)
    }

    /// Stalls by what they come from, the one nearest to the origin first.
    #[must_use]
    pub fn stalls_by_origin(&self) -> BTreeMap<&Origin, Vec<&Stall>> {
        let mut by_origin: BTreeMap<&Origin, Vec<&Stall>> = BTreeMap::new();
        for stall in &self.stalls {
            by_origin.entry(&stall.origin).or_default().push(stall);
        }
        for stalls in by_origin.values_mut() {
            stalls.sort_by_key(|stall| (!stall.is_direct(), stall.since));
        }
        by_origin
    }

    /// Whether a stall has lasted so long that it is a finding without a proof.
    ///
    /// That is: as long as the settings say, or three times as long as anybody waited at these lines
    /// before, whichever is more; at once where a wait has already ended in failure.
    #[must_use]
    pub fn is_overdue(&self, stall: &Stall) -> bool {
        self.overdue_at(stall) <= self.until
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
        let mut limit = self.config.stall_after;
        let join = self.join(stall.group, stall.seq);
        for (&rank, joined) in join.into_iter().flat_map(|join| &join.calls) {
            let process = self.model.member(stall.group, rank);
            let before = joined
                .call
                .place
                .as_ref()
                .and_then(|place| process?.waits.get(place));
            limit = limit.max(Duration::from_nanos(before.copied().unwrap_or(0)) * 3);
        }
        stall.since.plus(limit)
    }

    /// Whether somebody ended the job while ranks had waited here for more than a moment: most people
    /// who end a job end one that hangs, and want to know why.
    #[must_use]
    pub fn is_cut_short(&self, stall: &Stall) -> bool {
        self.until < self.now && stall.since.plus(MORE_THAN_A_MOMENT) <= self.until
    }

    fn divergence(&self, group: &Group) -> Option<Divergence> {
        let seq = group.diverged?;
        let join = group.join(seq)?;
        let diverted: Vec<u32> = join
            .calls
            .iter()
            .filter(|(rank, joined)| {
                self.model
                    .member(group.id, **rank)
                    .is_some_and(|process| process.in_flight_at(&joined.call).is_some())
            })
            .map(|(&rank, _)| rank)
            .collect();
        let everybody = diverted.len() == join.calls.len();
        let origin = if diverted.is_empty() || everybody {
            Origin::Diverged(group.id, seq)
        } else {
            Origin::Raised(diverted)
        };
        Some(Divergence {
            group: group.id,
            seq,
            origin,
        })
    }

    fn stall(&self, group: &Group) -> Option<Stall> {
        let first = match self.model.not_made_by(group).is_empty() {
            true => group.first_open()?,
            false => 0,
        };
        let mut found: Option<Stall> = None;
        for (&seq, join) in group.joins.range(first..) {
            let missing = self.model.missing(group, seq);
            if missing.is_empty() {
                continue;
            }
            let waiters: Vec<(u32, &JoinedCall, Vec<u32>)> = join
                .calls
                .iter()
                .filter(|(_, joined)| joined.is_awaited())
                .map(|(&rank, joined)| (rank, joined, joined.needs(rank, &missing)))
                .filter(|(_, _, needs)| !needs.is_empty())
                .collect();
            if waiters.is_empty() {
                continue;
            }
            let waiting = waiters.iter().map(|(rank, ..)| *rank);
            match &mut found {
                Some(stall) => stall.waiting.extend(waiting),
                None => {
                    let needed: BTreeSet<u32> = waiters
                        .iter()
                        .flat_map(|(_, _, needs)| needs.iter().copied())
                        .collect();
                    let own_doing = |at| self.model.is_own_doing(at);
                    let failed = |(rank, joined, _): &(u32, &JoinedCall, _)| {
                        let process = self.model.member(group.id, *rank);
                        matches!(joined.wait, Wait::Over(at) if own_doing(at))
                            || process
                                .and_then(|p| p.end)
                                .is_some_and(|end| own_doing(end.at))
                    };
                    found = Some(Stall {
                        group: group.id,
                        seq,
                        waiting: waiting.collect(),
                        missing: needed
                            .into_iter()
                            .map(|rank| Absent {
                                rank,
                                why: self.absence(group, rank),
                            })
                            .collect(),
                        since: waiters.iter().map(|(_, joined, _)| joined.call.at).min()?,
                        failed: waiters.iter().any(failed),
                        origin: Origin::Elsewhere(Vec::new()),
                    });
                }
            }
        }
        if let Some(stall) = &mut found {
            stall.waiting.sort_unstable();
            stall.waiting.dedup();
        }
        found
    }

    fn absence(&self, group: &Group, rank: u32) -> Absence {
        let Some(process) = self.model.member(group.id, rank) else {
            return Absence::Elsewhere;
        };
        if process.is_stopped() {
            return Absence::Stopped;
        }
        match self.model.ending_of(process) {
            Ending::Raised(_) => return Absence::Raised,
            Ending::Died(_) => return Absence::Died,
            Ending::InOrder => return Absence::Left,
            Ending::None => {}
        }
        if group
            .members
            .get(&rank)
            .is_some_and(|member| member.destroyed.is_some())
        {
            return Absence::Left;
        }
        let diverged = self.divergences.iter().find(|divergence| {
            let join = self.join(divergence.group, divergence.seq);
            let joined = join.and_then(|join| join.calls.get(&rank));
            joined.is_some_and(|joined| joined.is_awaited() && is_last_call(process, joined))
        });
        if let Some(divergence) = diverged {
            return Absence::Diverged(divergence.group, divergence.seq);
        }
        let blocked = self
            .waits
            .blocked
            .get(&rank)
            .and_then(|threads| threads.first());
        match blocked {
            Some(blocked) if blocked.group != group.id => {
                Absence::Blocked(blocked.group, blocked.seq)
            }
            _ if self.model.silent_since(process).is_some() => Absence::Silent,
            _ if let Some(inside) = self.stuck_inside(rank) => {
                Absence::Inside(inside.group, inside.seq)
            }
            _ if !group.members.contains_key(&rank) || is_making(process) => Absence::Making,
            _ => Absence::Elsewhere,
        }
    }

    /// Where a stall comes from: facts about a missing rank's process first, by their weight; then
    /// what it waits for itself.
    fn origin(&self, stalls: &[Stall], at: usize, seen: &mut BTreeSet<usize>) -> Origin {
        let stall = &stalls[at];
        let with = |why: Absence| -> Vec<u32> {
            stall
                .missing
                .iter()
                .filter(|absent| absent.why == why)
                .map(|a| a.rank)
                .collect()
        };
        for (why, origin) in [
            (Absence::Raised, Origin::Raised as fn(Vec<u32>) -> Origin),
            (Absence::Died, Origin::Died),
            (Absence::Stopped, Origin::Stopped),
            (Absence::Left, Origin::Left),
        ] {
            let ranks = with(why);
            if !ranks.is_empty() {
                return origin(ranks);
            }
        }
        seen.insert(at);
        for absent in &stall.missing {
            match absent.why {
                Absence::Diverged(group, seq) => {
                    let divergence = self
                        .divergences
                        .iter()
                        .find(|d| d.group == group && d.seq == seq);
                    return divergence.map_or(Origin::Diverged(group, seq), |d| d.origin.clone());
                }
                Absence::Inside(group, seq) => return Origin::Inside(group, seq),
                Absence::Blocked(group, _) => {
                    let next = stalls.iter().position(|stall| stall.group == group);
                    match next {
                        Some(next) if seen.contains(&next) => {
                            if let Some(cycle) = self.cycle_with(absent.rank) {
                                return Origin::Cycle(cycle);
                            }
                        }
                        Some(next) => return self.origin(stalls, next, seen),
                        None => {}
                    }
                }
                _ => {}
            }
        }
        let silent = with(Absence::Silent);
        if stall
            .missing
            .iter()
            .all(|absent| silent.contains(&absent.rank))
        {
            return Origin::Silent(silent);
        }
        let making = with(Absence::Making);
        if making.is_empty() {
            Origin::Elsewhere(with(Absence::Elsewhere))
        } else {
            Origin::Making(making)
        }
    }

    /// The collective inside which a rank has waited for more than a moment.
    fn stuck_inside(&self, rank: u32) -> Option<&Inside> {
        self.inside.iter().find(|inside| {
            inside.waiting.contains(&rank) && inside.since.plus(MORE_THAN_A_MOMENT) <= self.until
        })
    }

    /// The cycle a rank waits in, or waits for.
    fn cycle_with(&self, rank: u32) -> Option<usize> {
        let cycles = &self.waits.cycles;
        let direct = cycles
            .iter()
            .position(|cycle| cycle.iter().any(|wait| wait.rank == rank));
        direct.or_else(|| {
            let blocked = self.waits.blocked.get(&rank)?.first()?;
            cycles
                .iter()
                .position(|cycle| cycle.iter().any(|wait| blocked.needs.contains(&wait.rank)))
        })
    }
}

impl Stall {
    /// Whether the ranks it comes from are missing right here, not behind other waits.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        match &self.origin {
            Origin::Raised(ranks)
            | Origin::Died(ranks)
            | Origin::Stopped(ranks)
            | Origin::Left(ranks)
            | Origin::Silent(ranks)
            | Origin::Making(ranks)
            | Origin::Elsewhere(ranks) => self
                .missing
                .iter()
                .any(|absent| ranks.contains(&absent.rank)),
            Origin::Diverged(..) | Origin::Cycle(_) | Origin::Inside(..) => false,
        }
    }
}

/// Whether a thread of the process is making a group.
fn is_making(process: &Process) -> bool {
    process
        .threads
        .values()
        .any(|thread| matches!(&thread.doing, Doing::Call(call) if call.op.creates_group()))
}

/// Whether the process has made no call after this one.
fn is_last_call(process: &Process, joined: &JoinedCall) -> bool {
    process
        .last_call
        .as_ref()
        .is_some_and(|last| last.id == joined.call.id)
}
