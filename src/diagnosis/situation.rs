//! What is the matter, before it has a name: stalls, divergences, and what each of them comes from.
//!
//! The decision which finding a stall leads to is made here, in one place and for all findings: a
//! stall has one [`Origin`], and every detector speaks only of origins of its own kind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::ExceptionKind;
use ddp_doctor_proto::report::{Timestamp, Where};

use super::Config;
use super::align::{self, Mismatch};
use super::creations;
use super::event::ThreadId;
use super::guards::{self, Parting};
use super::model::{
    Doing, Ending, Exception, Group, GroupId, Join, JoinedCall, Lone, Model, Process, Side, Slip,
    Target, Wait, libc_signal,
};
use super::order::{self, Permutation};
use super::outside;
use super::waits::{Waits, lasts, partners};

mod inside;

/// A wait that ended without its peers: only believed after this long, since the evidence of other
/// processes may be that late.
const FAILED_FOR: Duration = Duration::from_millis(500);

/// Calls before a divergence at which ranks may have parted.
const PARTED_BEFORE: usize = 16;

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
    /// Groups in which ranks wait for members that have not come: the first such place for each of
    /// those, and the first point-to-point call of each rank that waits for a partner.
    pub stalls: Vec<Stall>,
    /// Groups in which calls met that cannot match: the first such place of each.
    pub divergences: Vec<Divergence>,
    /// Collectives that every member has entered and somebody waits for: the first of each group.
    pub inside: Vec<Inside>,
    /// Makers of groups who do not agree: the first such in each world.
    pub mismatches: Vec<creations::Mismatch<'a>>,
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
    /// When the first of those waits was given up because it lasted longer than the group allows.
    pub timed_out: Option<Timestamp>,
}

/// Ranks of a group wait for members that have not made their call.
#[derive(Clone, Debug)]
pub struct Stall {
    /// The group.
    pub group: GroupId,
    /// The sequence number at which they wait.
    pub seq: u64,
    /// The point-to-point call that a rank waits in, where it is one.
    pub message: Option<Lone>,
    /// Ranks that wait here, or further on in the group.
    pub waiting: Vec<u32>,
    /// The members they need that have not come.
    pub missing: Vec<Absent>,
    /// When the first of them began to wait.
    pub since: Timestamp,
    /// Somebody's wait ended all the same, or its process did.
    pub failed: bool,
    /// When the first of those waits had lasted longer than the group allows.
    pub timed_out: Option<Timestamp>,
    /// What it comes from.
    pub origin: Origin,
    /// The test on the rank that keeps those away who have not come, where the program's source shows
    /// one.
    pub parting: Option<Parting>,
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
    /// Ranks that wait for others on their way out of the program.
    Leaving(Vec<u32>),
    /// A send and a receive between two ranks, sender first, that wait with different tags.
    OtherTag(GroupId, u32, u32),
    /// A cycle of waits, by its index in [`Waits::cycles`].
    Cycle(usize),
    /// Ranks of which nothing is heard any more.
    Silent(Vec<u32>),
    /// A collective that every member has entered, and that does not complete.
    Inside(GroupId, u64),
    /// Ranks that have not made a group which others make, or do not come back from it.
    Making(Vec<u32>),
    /// Ranks in a phase that takes long.
    LongPhase(Vec<u32>),
    /// Ranks that live outside any collective and do not move.
    StandsStill(Vec<u32>),
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
    /// What it comes from: the mismatch itself, an exception that diverted a rank, or a call that
    /// ranks make on their way out.
    pub origin: Origin,
    /// What the mismatch is.
    pub nature: Nature,
}

/// What it is that met and cannot match.
#[derive(Clone, Debug)]
pub enum Nature {
    /// Different calls.
    Mismatch,
    /// The same calls in another order.
    Order(Permutation),
    /// A call that a test on the rank keeps from other ranks.
    Parted(Parting),
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
            .flat_map(|group| situation.stalls_of(group))
            .collect();
        let unpartnered = model.groups();
        stalls.extend(unpartnered.flat_map(|group| situation.unpartnered(group)));
        for i in 0..stalls.len() {
            stalls[i].origin = situation.origin(&stalls, i, &mut BTreeSet::new());
        }
        for stall in &mut stalls {
            let origin = stall.origin.clone();
            let astray = match &origin {
                Origin::Leaving(_) => true,
                Origin::Raised(ranks) => *ranks == stall.waiting,
                _ => false,
            };
            // A rank that waits for one which waits for it has itself to thank.
            stall
                .waiting
                .retain(|rank| astray || !origin.ranks().contains(rank));
        }
        for stall in &mut stalls {
            stall.parting = situation.parting_of(stall);
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

    /// The calls that were made where ranks wait.
    #[must_use]
    pub fn calls<'s>(&self, stall: &'s Stall) -> Vec<(u32, &'s JoinedCall)>
    where
        'a: 's,
    {
        match &stall.message {
            Some(lone) => vec![(lone.rank, &lone.joined)],
            None => {
                let group = self.model.group(stall.group);
                let join = group.join(stall.seq);
                let join = join.or_else(|| group.entered.get(&stall.seq));
                join.into_iter().flat_map(Join::all).collect()
            }
        }
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
        self.until < self.now && stall.since.plus(MORE_THAN_A_MOMENT) <= self.until
    }

    fn divergence(&self, group: &Group) -> Option<Divergence> {
        let seq = group.diverged?;
        let join = group.join(seq)?;
        let calls = join.calls.iter().map(|(&rank, joined)| (rank, joined));
        let (raised, leaving) = self.on_their_way_out(group.id, calls);
        let some = |ranks: &Vec<u32>| !ranks.is_empty() && ranks.len() < join.calls.len();
        let origin = if some(&raised) {
            Origin::Raised(raised)
        } else if some(&leaving) {
            Origin::Leaving(leaving)
        } else {
            Origin::Diverged(group.id, seq)
        };
        let nature = match order::permutation(group, seq) {
            Some(permutation) => Nature::Order(permutation),
            // Sizes and types are not a matter of who comes.
            None if join.mismatch != Some(Mismatch::Op) => Nature::Mismatch,
            None => self
                .parting(group, seq, join)
                .map_or(Nature::Mismatch, Nature::Parted),
        };
        Some(Divergence {
            group: group.id,
            seq,
            origin,
            nature,
        })
    }

    /// The ranks that made these calls because of an exception, and those that made them on their way
    /// out of the program.
    fn on_their_way_out<'b>(
        &self,
        group: GroupId,
        calls: impl Iterator<Item = (u32, &'b JoinedCall)>,
    ) -> (Vec<u32>, Vec<u32>) {
        let (mut raised, mut leaving) = (Vec::new(), Vec::new());
        for (rank, joined) in calls {
            let Some(process) = self.model.member(group, rank) else {
                continue;
            };
            if process.raised_before(&joined.call).is_some() {
                raised.push(rank);
            } else if process.is_leaving_at(&joined.call) {
                leaving.push(rank);
            }
        }
        (raised, leaving)
    }

    /// The test on the rank because of which calls met that cannot match: around one of them, or
    /// around a call before it that met another line, and since which no line has met its like.
    #[must_use]
    pub fn parting(&self, group: &Group, seq: u64, join: &Join) -> Option<Parting> {
        let sides = join.classes();
        let place_of = |rank: u32| join.calls.get(&rank).and_then(|it| it.call.place.clone());
        let here = self.part(group, seq, &sides, &place_of);
        let mut before = group.history.recent().take(PARTED_BEFORE);
        here.or_else(|| {
            let mut next = seq;
            before.find_map(|meeting| {
                let place_of = |rank: u32| {
                    let met = meeting.calls.iter().find(|met| met.rank == rank);
                    met.and_then(|met| met.place.clone())
                };
                let apart = next == meeting.seq + 1
                    && sides
                        .iter()
                        .skip(1)
                        .any(|side| place_of(side[0]) != place_of(sides[0][0]));
                // Once lines were together again, nothing before is of interest.
                next = if apart { meeting.seq } else { 0 };
                apart
                    .then(|| self.part(group, meeting.seq, &sides, &place_of))
                    .flatten()
            })
        })
    }

    /// The test on the rank that only one side's line stands under. Where each side has its own, every
    /// rank makes a call, and which one is the question.
    fn part(
        &self,
        group: &Group,
        seq: u64,
        sides: &[Vec<u32>],
        place_of: &dyn Fn(u32) -> Option<Arc<Where>>,
    ) -> Option<Parting> {
        let partings: Vec<Parting> = sides
            .iter()
            .filter_map(|side| {
                let place = place_of(*side.first()?)?;
                let others = sides.iter().filter(|it| *it != side);
                let others: Vec<u32> = others.flatten().copied().collect();
                guards::parted(self, (group.id, seq), &place, side, &others)
            })
            .collect();
        if partings.len() == sides.len() {
            return None;
        }
        partings
            .into_iter()
            .min_by_key(|parting| parting.inside.len())
    }

    fn parting_of(&self, stall: &Stall) -> Option<Parting> {
        let is_alive = matches!(stall.origin, Origin::Elsewhere(_) | Origin::StandsStill(_));
        if !is_alive || stall.message.is_some() {
            return None;
        }
        let join = self.join(stall.group, stall.seq)?;
        let absent: Vec<u32> = stall.missing.iter().map(|absent| absent.rank).collect();
        let here: Vec<u32> = join.calls.keys().copied().collect();
        let place = join.calls.values().next()?.call.place.clone()?;
        let together = join
            .calls
            .values()
            .all(|it| it.call.place.as_ref() == Some(&place));
        together
            .then(|| guards::parted(self, (stall.group, stall.seq), &place, &here, &absent))
            .flatten()
    }

    /// Ranks of the group that have paired calls which do not belong together since before this call.
    #[must_use]
    pub fn slip_before(&self, group: GroupId, seq: u64) -> Option<&'a Slip> {
        let slip = self.model.group(group).history.slip();
        slip.filter(|slip| slip.seq < seq)
    }

    /// The places of a group where ranks wait, each for members that nobody before waits for.
    fn stalls_of(&self, group: &Group) -> Vec<Stall> {
        let first = match self.model.not_made_by(group).is_empty() {
            true => group.first_open(),
            false => Some(0),
        };
        let Some(first) = first else {
            return Vec::new();
        };
        let mut found: Vec<Stall> = Vec::new();
        for (&seq, join) in group.joins.range(first..) {
            let missing = self.model.missing(group, seq);
            if missing.is_empty() {
                continue;
            }
            let mut waiters: Vec<(u32, &JoinedCall)> = Vec::new();
            let mut needed: BTreeSet<u32> = BTreeSet::new();
            for (&rank, joined) in &join.calls {
                let needs = joined.needs(rank, &missing);
                if needs.is_empty() || !joined.is_awaited() || !self.is_waiter(group, rank, joined)
                {
                    continue;
                }
                let waits = |rank: &u32| {
                    found.iter().any(|stall| stall.waiting.contains(rank))
                        && self
                            .model
                            .member(group.id, *rank)
                            .is_some_and(|it| self.is_held(it))
                };
                let open: Vec<u32> = needs.iter().copied().filter(|it| !waits(it)).collect();
                match found.iter_mut().find(|it| it.explains(&needs, &open)) {
                    Some(before) => before.waiting.push(rank),
                    None => {
                        waiters.push((rank, joined));
                        needed.extend(open);
                    }
                }
            }
            let Some(since) = waiters.iter().map(|(_, joined)| joined.call.at).min() else {
                continue;
            };
            let timed_out = waiters
                .iter()
                .filter_map(|(rank, joined)| self.timed_out_at(group, *rank, joined))
                .min();
            let stall = Stall {
                group: group.id,
                seq,
                message: None,
                waiting: waiters.iter().map(|(rank, _)| *rank).collect(),
                missing: needed
                    .into_iter()
                    .map(|rank| Absent {
                        rank,
                        why: self.absence(group, rank, false, timed_out),
                    })
                    .collect(),
                since,
                failed: waiters
                    .iter()
                    .any(|(rank, joined)| self.has_failed(group, *rank, joined)),
                timed_out,
                origin: Origin::Elsewhere(Vec::new()),
                parting: None,
            };
            if !self.is_deserted(group, &stall) {
                found.push(stall);
            }
        }
        for stall in &mut found {
            stall.waiting.sort_unstable();
            stall.waiting.dedup();
        }
        found
    }

    /// Whether nobody waits there any more: all have ended, for reasons of their own.
    fn is_deserted(&self, group: &Group, stall: &Stall) -> bool {
        let terminal = |absent: &Absent| {
            matches!(
                absent.why,
                Absence::Raised | Absence::Died | Absence::Stopped | Absence::Left
            )
        };
        let ended = |rank: &u32| {
            let process = self.model.member(group.id, *rank);
            process.is_some_and(|process| self.model.ending_of(process) != Ending::None)
                && !self.waits.in_cycle(*rank)
        };
        let gave_up = stall.failed || stall.timed_out.is_some();
        !gave_up && stall.waiting.iter().all(ended) && !stall.missing.iter().any(terminal)
    }

    /// Whether a rank waits, or did so until its end. One that ended in order had not to.
    fn is_waiter(&self, group: &Group, rank: u32, joined: &JoinedCall) -> bool {
        let process = self.model.member(group.id, rank);
        process.is_none_or(|process| self.model.ending_of(process) != Ending::InOrder)
            || self.has_failed(group, rank, joined)
    }

    /// Whether a rank's wait ended although those it needs have not come, or ended its process.
    fn has_failed(&self, group: &Group, rank: u32, joined: &JoinedCall) -> bool {
        let holds = group.holds_threads(joined.call.op);
        if holds && matches!(joined.wait, Wait::Over(at) if self.model.is_own_doing(at)) {
            return true;
        }
        let Some(process) = self.model.member(group.id, rank) else {
            return false;
        };
        match self.model.ending_of(process) {
            Ending::Raised(_) => {
                let out_of = |it: &Exception| it.kind == ExceptionKind::LeftCollective;
                is_last_call(process, joined) && (holds || process.exceptions.iter().any(out_of))
            }
            // A watchdog's last resort.
            Ending::Died(exit) => exit.signal == Some(libc_signal::ABRT),
            Ending::InOrder | Ending::None => false,
        }
    }

    /// Ranks that wait for the partner of a point-to-point call: the first such call of each.
    fn unpartnered(&self, group: &Group) -> Vec<Stall> {
        let mut found: BTreeMap<(u32, Side), Stall> = BTreeMap::new();
        for lone in group.traffic.awaited() {
            let Some(stall) = self.without_partner(group, lone) else {
                continue;
            };
            let Some(key) = stall.message.as_ref().map(|lone| (lone.rank, lone.side)) else {
                continue;
            };
            let earlier = found
                .get(&key)
                .is_none_or(|known| stall.since < known.since);
            if earlier {
                found.insert(key, stall);
            }
        }
        found.into_values().collect()
    }

    fn without_partner(&self, group: &Group, lone: Lone) -> Option<Stall> {
        let transport = group.traffic.transport;
        let process = self.model.member(group.id, lone.rank)?;
        let missing = partners(self.model, group.id, &lone)?;
        let receives = lone.side == Side::Receive;
        let since = match lone.joined.wait {
            Wait::Since(at) => at,
            Wait::NotSeen | Wait::Over(_) => lone.joined.call.at,
        };
        let mut failed = false;
        match lone.joined.wait {
            // A send may be done early, and a message that was missed may have come.
            Wait::Over(_) if !lone.sure || !(receives || transport.sends_wait) => return None,
            Wait::Over(at) => failed = transport.waits_complete && self.model.is_own_doing(at),
            Wait::Since(_) | Wait::NotSeen => {
                let at_once = lone.sure && (receives || transport.sends_wait);
                if !at_once && !lasts(&lone, since, self.now) {
                    return None;
                }
            }
        }
        if let Some(end) = process.end {
            let died = matches!(self.model.ending_of(process), Ending::Died(_));
            let in_cycle = self.waits.in_cycle(lone.rank);
            if died && !in_cycle && end.at.since(since) < self.config.stall_after {
                return None;
            }
            failed |= self.has_failed(group, lone.rank, &lone.joined);
            let ending = self.model.ending_of(process);
            // It did not wait, or ended for a reason of its own.
            if matches!(ending, Ending::InOrder | Ending::Raised(_)) && !failed && !in_cycle {
                return None;
            }
        }
        let timed_out = self.timed_out_at(group, lone.rank, &lone.joined);
        Some(Stall {
            group: group.id,
            seq: lone.joined.call.seq,
            waiting: vec![lone.rank],
            missing: missing
                .into_iter()
                .map(|rank| Absent {
                    rank,
                    why: self.absence(group, rank, true, timed_out),
                })
                .collect(),
            message: Some(lone),
            since,
            failed,
            timed_out,
            origin: Origin::Elsewhere(Vec::new()),
            parting: None,
        })
    }

    /// When a rank's wait was given up because it lasted longer than the group allows.
    fn timed_out_at(&self, group: &Group, rank: u32, joined: &JoinedCall) -> Option<Timestamp> {
        /// Timers are not exact.
        const ABOUT: Duration = Duration::from_millis(100);
        let process = self.model.member(group.id, rank)?;
        let over = match joined.wait {
            Wait::Over(at) if group.holds_threads(joined.call.op) => at,
            _ => process.end?.at,
        };
        let says_so = process.exceptions.iter().any(|exception| {
            let text = exception.text.to_ascii_lowercase();
            exception.at >= joined.call.at
                && (text.contains("timed out") || text.contains("timeout"))
        });
        let timeout = group.members.get(&rank)?.timeout;
        let lasted = over.since(joined.call.at).saturating_add(ABOUT);
        let was_too_long = says_so || timeout.is_some_and(|timeout| lasted >= timeout);
        (was_too_long && self.model.is_own_doing(over)).then_some(over)
    }

    /// Why a member has not come to a call, or to its side of a message. Where a wait for it was given up
    /// before it ended, its end is not why: the launcher ends whoever is left.
    fn absence(
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
            Ending::InOrder => return Absence::Left,
            Ending::Died(_) | Ending::None => {}
        }
        if group
            .members
            .get(&rank)
            .is_some_and(|member| member.destroyed.is_some())
        {
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
            Some(outside) if !outside.moves => Absence::StandsStill,
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
    fn is_held(&self, process: &Process) -> bool {
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
        let unmatched: Vec<u32> = join
            .calls
            .iter()
            .filter(|(_, other)| {
                let mismatch = align::compare(&joined.call, &other.call);
                matches!(
                    mismatch,
                    Some(Mismatch::Op | Mismatch::Size | Mismatch::Root)
                )
            })
            .map(|(&rank, _)| rank)
            .collect();
        let certain = group.holds_threads(awaited.call.op)
            && !joined.call.hidden
            && !joined.needs(rank, &unmatched).is_empty();
        (certain || thread.last_at.plus(MORE_THAN_A_MOMENT) <= self.now)
            && self.stands_still(process, |other| other == id)
    }

    /// Where a stall comes from: facts about a missing rank's process first, by their weight; then
    /// what it waits for itself.
    fn origin(&self, stalls: &[Stall], at: usize, seen: &mut BTreeSet<usize>) -> Origin {
        let stall = &stalls[at];
        if stall.takes_any() && stall.missing.iter().any(|absent| !absent.is_final()) {
            // Whoever can still come may be the one.
            let elsewhere = stall.missing.iter();
            let elsewhere: Vec<u32> = elsewhere
                .filter(|absent| absent.why == Absence::Elsewhere)
                .map(|absent| absent.rank)
                .collect();
            if !elsewhere.is_empty() {
                return Origin::Elsewhere(elsewhere);
            }
        }
        let with = |why: Absence| -> Vec<u32> {
            stall
                .missing
                .iter()
                .filter(|absent| absent.why == why)
                .map(|a| a.rank)
                .collect()
        };
        type Kind = (Absence, fn(Vec<u32>) -> Origin);
        let first = |kinds: &[Kind]| {
            kinds.iter().find_map(|(why, origin)| {
                let ranks = with(*why);
                (!ranks.is_empty()).then(|| origin(ranks))
            })
        };
        let ends = first(&[
            (Absence::Raised, Origin::Raised),
            (Absence::Died, Origin::Died),
            (Absence::Stopped, Origin::Stopped),
        ]);
        let unmatched = || self.other_tag(stall);
        if let Some(origin) = ends.or_else(|| self.exit_path(stall)).or_else(unmatched) {
            return origin;
        }
        let leaves = first(&[
            (Absence::Left, Origin::Left),
            (Absence::Leaving, Origin::Leaving),
        ]);
        if let Some(origin) = leaves.or_else(|| self.broken_by(stall)) {
            return origin;
        }
        seen.insert(at);
        let mut found: Option<Origin> = None;
        for absent in &stall.missing {
            let origin = match absent.why {
                Absence::Diverged(group, seq) => {
                    let divergence = self
                        .divergences
                        .iter()
                        .find(|d| d.group == group && d.seq == seq);
                    divergence.map_or(Origin::Diverged(group, seq), |d| d.origin.clone())
                }
                Absence::Inside(group, seq) => Origin::Inside(group, seq),
                Absence::Blocked(..) | Absence::Unpartnered(_) => {
                    let next = stalls.iter().position(|stall| match absent.why {
                        Absence::Unpartnered(group) => {
                            let waits = stall.message.as_ref().map(|lone| lone.rank);
                            stall.group == group && waits == Some(absent.rank)
                        }
                        Absence::Blocked(group, _) => {
                            stall.group == group
                                && stall.message.is_none()
                                && stall.waiting.contains(&absent.rank)
                        }
                        _ => false,
                    });
                    let Some(next) = next else { continue };
                    if seen.contains(&next) {
                        let Some(cycle) = self.cycle_with(absent.rank) else {
                            continue;
                        };
                        Origin::Cycle(cycle)
                    } else {
                        self.origin(stalls, next, seen)
                    }
                }
                _ => continue,
            };
            // What explains it leads, in the order of the kinds.
            if found
                .as_ref()
                .is_none_or(|found| origin.weight() < found.weight())
            {
                found = Some(origin);
            }
        }
        let led_here = |origin: &Origin| !matches!(origin, Origin::Elsewhere(_));
        if let Some(origin) = found.take_if(|origin| led_here(origin)) {
            return origin;
        }
        let silent = with(Absence::Silent);
        let all = |ranks: &[u32]| stall.missing.iter().all(|it| ranks.contains(&it.rank));
        if all(&silent) {
            return Origin::Silent(silent);
        }
        let kept = first(&[
            (Absence::Making, Origin::Making),
            (Absence::StandsStill, Origin::StandsStill),
            (Absence::LongPhase, Origin::LongPhase),
        ]);
        kept.or(found)
            .unwrap_or_else(|| Origin::Elsewhere(with(Absence::Elsewhere)))
    }

    /// The collective inside which a rank has waited for more than a moment.
    fn stuck_inside(&self, rank: u32) -> Option<&Inside> {
        self.inside.iter().find(|inside| {
            inside.waiting.contains(&rank) && inside.since.plus(MORE_THAN_A_MOMENT) <= self.until
        })
    }

    /// Whether it is the waiting ranks that went astray: they wait on their way out, of the program or
    /// of an exception, for ranks that have ended without such a call, or that go on without one for
    /// too long.
    fn exit_path(&self, stall: &Stall) -> Option<Origin> {
        if stall.message.is_some() {
            return None;
        }
        let join = self.join(stall.group, stall.seq)?;
        let ended = |absent: &Absent| {
            let process = self.model.member(stall.group, absent.rank);
            process.is_some_and(Process::ended_through_the_interpreter)
        };
        let gone = stall.missing.iter().all(ended);
        let elsewhere = |absent: &Absent| absent.why == Absence::Elsewhere;
        let goes_on = || stall.missing.iter().all(elsewhere) && self.is_overdue(stall);
        if !gone && !goes_on() {
            return None;
        }
        let waiting = join.calls.iter().filter(|(_, joined)| joined.is_awaited());
        let waiting: Vec<(u32, &JoinedCall)> = waiting.map(|(&rank, j)| (rank, j)).collect();
        // Where most ranks wait on their way out, it is the others that left something out.
        if waiting.len() > stall.missing.len() {
            return None;
        }
        let (raised, leaving) = self.on_their_way_out(stall.group, waiting.iter().copied());
        if raised.len() == waiting.len() {
            Some(Origin::Raised(raised))
        } else if leaving.len() == waiting.len() {
            Some(Origin::Leaving(leaving))
        } else {
            None
        }
    }

    /// Whether the partner that is missing has a call to this rank with another tag, and goes no further:
    /// because it left, waits in that very call, or waits for this rank.
    fn other_tag(&self, stall: &Stall) -> Option<Origin> {
        let lone = stall.message.as_ref().filter(|lone| lone.sure)?;
        let other = self.model.group(stall.group).traffic.other_tag(lone)?;
        let left = stall
            .missing
            .iter()
            .any(|absent| absent.why == Absence::Left);
        let waits_there = || {
            let waits = self.waits.blocked.get(&other.rank).into_iter().flatten();
            let mut calls = waits.filter_map(|wait| wait.message.as_ref());
            calls.any(|waiting| waiting.joined.call.id == other.joined.call.id)
        };
        let waits_for_this = || {
            let mut cycles = self.waits.cycles.iter();
            cycles.any(|cycle| {
                let has = |rank| cycle.iter().any(|wait| wait.rank == rank);
                has(lone.rank) && has(other.rank)
            })
        };
        let (sender, receiver) = match lone.side {
            Side::Send => (lone.rank, other.rank),
            Side::Receive => (other.rank, lone.rank),
        };
        (left || waits_there() || waits_for_this()).then_some(Origin::OtherTag(
            stall.group,
            sender,
            receiver,
        ))
    }

    /// Where a wait failed, the ranks that had made their call and whose end broke it: whoever is late
    /// did not.
    fn broken_by(&self, stall: &Stall) -> Option<Origin> {
        let (mut raised, mut died) = (Vec::new(), Vec::new());
        let group = self.model.group(stall.group);
        // One that lasted too long was broken by nobody.
        let broken = stall.failed && stall.timed_out.is_none();
        let join = group.join(stall.seq).filter(|_| broken)?;
        let failed_at = |(rank, joined): (&u32, &JoinedCall)| match joined.wait {
            Wait::Over(at) => Some(at),
            _ => Some(self.model.member(group.id, *rank)?.end?.at),
        };
        let failed = join.calls.iter().filter_map(failed_at).min()?;
        let missing: Vec<u32> = stall.missing.iter().map(|absent| absent.rank).collect();
        let came = group.members.keys().copied();
        for rank in came.filter(|rank| !missing.contains(rank)) {
            let Some(process) = self.model.member(group.id, rank) else {
                continue;
            };
            let seen = process
                .end
                .is_some_and(|end| end.at <= failed.plus(FAILED_FOR));
            match self.model.ending_of(process) {
                // Whoever waits there raised because of it.
                Ending::Raised(_) if !stall.waiting.contains(&rank) => raised.push(rank),
                // What a watchdog or a launcher does to a rank follows from a failure.
                Ending::Died(exit) if seen && !exit.signal.is_some_and(libc_signal::is_asked) => {
                    died.push(rank);
                }
                _ => {}
            }
        }
        match (raised.is_empty(), died.is_empty()) {
            (false, _) => Some(Origin::Raised(raised)),
            (true, false) => Some(Origin::Died(died)),
            (true, true) => None,
        }
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

impl Absent {
    /// Whether it cannot come any more.
    const fn is_final(&self) -> bool {
        use Absence::{Died, Left, Raised};
        matches!(self.why, Raised | Died | Left)
    }
}

impl Stall {
    /// Whether any one of the missing would do.
    #[must_use]
    pub fn takes_any(&self) -> bool {
        self.message
            .as_ref()
            .is_some_and(|lone| lone.peer.is_none())
    }

    /// Whether the ranks it comes from are missing right here, not behind other waits.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        match &self.origin {
            Origin::Raised(ranks) if *ranks == self.waiting => true,
            Origin::Raised(_) => self.misses(Absence::Raised),
            Origin::Died(_) => self.misses(Absence::Died),
            Origin::Stopped(_) => self.misses(Absence::Stopped),
            // A rank that left another group may well come here.
            Origin::Left(_) => self.misses(Absence::Left),
            Origin::Silent(_) => self.misses(Absence::Silent),
            Origin::Making(_) => self.misses(Absence::Making),
            Origin::LongPhase(_) => self.misses(Absence::LongPhase),
            Origin::StandsStill(_) => self.misses(Absence::StandsStill),
            Origin::Elsewhere(_) => self.misses(Absence::Elsewhere),
            // Those may also be the ones that wait where nobody comes.
            Origin::Leaving(ranks) => {
                let mut absent = self.missing.iter().map(|absent| &absent.rank);
                absent.any(|rank| ranks.contains(rank))
                    || self.waiting.iter().any(|rank| ranks.contains(rank))
            }
            Origin::OtherTag(group, sender, receiver) => {
                let message = self.message.as_ref();
                let between = |lone: &Lone| {
                    [*sender, *receiver].contains(&lone.rank)
                        && lone
                            .peer
                            .is_some_and(|peer| [*sender, *receiver].contains(&peer))
                };
                *group == self.group && message.is_some_and(between)
            }
            Origin::Diverged(..) | Origin::Cycle(_) | Origin::Inside(..) => false,
        }
    }
}

impl Stall {
    /// Whether a later wait in the group is no other: for members that wait here, or, of those that
    /// wait nowhere in the group (`open`), for such as are missing here.
    fn explains(&self, needs: &[u32], open: &[u32]) -> bool {
        if open.is_empty() {
            return needs.iter().any(|needed| self.waiting.contains(needed));
        }
        let is_missing = |needed: &u32| self.missing.iter().any(|absent| absent.rank == *needed);
        open.iter().all(is_missing)
    }

    fn misses(&self, why: Absence) -> bool {
        self.missing
            .iter()
            .any(|absent| absent.why == why && self.origin.ranks().contains(&absent.rank))
    }
}

impl Origin {
    /// Its place among origins that one stall may have.
    const fn weight(&self) -> u8 {
        match self {
            Self::Raised(_) => 0,
            Self::Died(_) => 1,
            Self::Stopped(_) => 2,
            Self::Left(_) => 3,
            Self::Diverged(..) => 4,
            Self::Leaving(_) => 5,
            Self::OtherTag(..) => 6,
            Self::Cycle(_) => 7,
            Self::Making(_) => 8,
            Self::LongPhase(_) => 9,
            Self::StandsStill(_) => 10,
            Self::Inside(..) => 11,
            Self::Silent(_) => 12,
            Self::Elsewhere(_) => 13,
        }
    }

    /// The ranks that it is about, where it is about ranks.
    #[must_use]
    pub fn ranks(&self) -> &[u32] {
        match self {
            Self::Raised(ranks)
            | Self::Died(ranks)
            | Self::Stopped(ranks)
            | Self::Left(ranks)
            | Self::Leaving(ranks)
            | Self::Silent(ranks)
            | Self::Making(ranks)
            | Self::LongPhase(ranks)
            | Self::StandsStill(ranks)
            | Self::Elsewhere(ranks) => ranks,
            Self::Diverged(..) | Self::OtherTag(..) | Self::Cycle(_) | Self::Inside(..) => &[],
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
