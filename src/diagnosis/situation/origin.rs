//! Where a stall comes from.

use std::collections::BTreeSet;

use ddp_doctor_proto::report::Timestamp;

use super::absence::{Absence, Absent};
use super::{FAILED_FOR, Situation, Stall};
use crate::diagnosis::contract;
use crate::diagnosis::device;
use crate::diagnosis::model::{Ending, GroupId, JoinedCall, Process, Side, Wait, libc_signal};

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
    /// A cycle of waits, by its index in [`crate::diagnosis::waits::Waits::cycles`].
    Cycle(usize),
    /// Ranks of which nothing is heard any more.
    Silent(Vec<u32>),
    /// DDP's contract was broken, by its index in [`Situation::breaches`].
    Breach(usize),
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
            // It is found once everything else is known.
            Self::Breach(_) => 0,
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
            Self::Diverged(..)
            | Self::OtherTag(..)
            | Self::Cycle(_)
            | Self::Breach(_)
            | Self::Inside(..) => &[],
        }
    }
}

impl Situation<'_> {
    /// What comes from a breach of DDP's contract comes from nothing else.
    pub(super) fn trace_back_to_breaches(&mut self) {
        let breach_of = |group: GroupId, origin: &Origin, since: Timestamp| {
            let mut breaches = self.breaches.iter();
            let found = breaches.position(|it| contract::explains(it, group, origin, since));
            found.map(Origin::Breach)
        };
        for stall in &mut self.stalls {
            if let Some(breach) = breach_of(stall.group, &stall.origin, stall.since) {
                stall.origin = breach;
            }
        }
        for divergence in &mut self.divergences {
            let join = self.model.group(divergence.group).join(divergence.seq);
            let Some(met) = join.and_then(|join| join.mismatched_at) else {
                continue;
            };
            if let Some(breach) = breach_of(divergence.group, &divergence.origin, met) {
                divergence.origin = breach;
            }
        }
    }

    /// Where a stall comes from: facts about a missing rank's process first, by their weight; then
    /// what it waits for itself.
    pub(super) fn origin(&self, stalls: &[Stall], at: usize, seen: &mut BTreeSet<usize>) -> Origin {
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
                    let cycle = match next {
                        Some(next) if !seen.contains(&next) => None,
                        Some(_) => self.cycle_with(absent.rank),
                        // Its own message has met its partner, and it stands in the call all the same.
                        None => self.cycle_of(absent.rank),
                    };
                    match (cycle, next) {
                        (Some(cycle), _) => Origin::Cycle(cycle),
                        (None, Some(next)) if !seen.contains(&next) => {
                            self.origin(stalls, next, seen)
                        }
                        (None, _) => continue,
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
        let still = with(Absence::StandsStill);
        let leaves_message = |other: &Stall| {
            let misses =
                |absent: &Absent| absent.why == Absence::Elsewhere && still.contains(&absent.rank);
            other.message.is_some() && other.missing.iter().any(misses)
        };
        if stalls.iter().any(leaves_message) {
            return Origin::Elsewhere(still);
        }
        // Who waits for its device waits for others, where anything is known of these.
        let for_others = |rank: &u32| {
            let process = self.model.member(stall.group, *rank);
            let waits = |it| device::is_waited_for(it, &self.model.timing);
            found.is_some() && process.is_some_and(waits)
        };
        let still: Vec<u32> = still.into_iter().filter(|it| !for_others(it)).collect();
        let kept = first(&[(Absence::Making, Origin::Making)])
            .or_else(|| (!still.is_empty()).then_some(Origin::StandsStill(still)))
            .or_else(|| first(&[(Absence::LongPhase, Origin::LongPhase)]));
        kept.or(found)
            .unwrap_or_else(|| Origin::Elsewhere(with(Absence::Elsewhere)))
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
        let group = self.model.group(stall.group);
        let calls = join.calls.iter().map(|(&rank, joined)| (rank, joined));
        let waiting: Vec<(u32, &JoinedCall)> = calls
            .filter(|(rank, it)| self.is_awaited(group, *rank, it))
            .collect();
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

    /// The cycle a rank waits in.
    fn cycle_of(&self, rank: u32) -> Option<usize> {
        let mut cycles = self.waits.cycles.iter();
        cycles.position(|cycle| cycle.iter().any(|wait| wait.rank == rank))
    }

    /// The cycle a rank waits in, or waits for.
    fn cycle_with(&self, rank: u32) -> Option<usize> {
        let cycles = &self.waits.cycles;
        self.cycle_of(rank).or_else(|| {
            let blocked = self.waits.blocked.get(&rank)?.first()?;
            cycles
                .iter()
                .position(|cycle| cycle.iter().any(|wait| blocked.needs.contains(&wait.rank)))
        })
    }
}
