//! The origin of a stall.

use std::collections::{HashMap, HashSet};

use ddp_doctor_proto::report::Timestamp;

use crate::model::{Ending, GroupId, JoinedCall, Process, Side, Wait, libc_signal};
use crate::situation::moment::FAILED_FOR;
use crate::situation::open_calls::OpenCalls;
use crate::situation::origin_kind::{OriginKind, StallOrigin};
use crate::situation::stall::{Absent, Stall};
use crate::waits::numbers::{self, LocalNumbers};
use crate::waits::{Blocked, device};

impl OpenCalls<'_> {
    /// The origins of stalls: the state of the missing ranks' processes first, by precedence; then what those ranks wait
    /// for themselves. Each is determined once, after those that it leads to: evidence can be a chain of all ranks.
    pub(super) fn origins(&self, stalls: &[Stall]) -> Vec<StallOrigin> {
        let leads = Leads::new(stalls);
        let numbers = numbers::local_numbers(self.model);
        let mut known: Vec<Option<StallOrigin>> = stalls
            .iter()
            .map(|stall| {
                let by_numbers = || of_numbers(stall, &numbers);
                self.origin_of_processes(stall).or_else(by_numbers)
            })
            .collect();
        let (order, has_circles) = leads.in_order(stalls, &known);
        // In a circle, the first one is determined before what it leads to is known.
        let again = if has_circles { &order[..] } else { &[] };
        for &at in order.iter().chain(again) {
            known[at] = Some(self.origin_behind(stalls, &leads, at, &known));
        }
        known.into_iter().flatten().collect()
    }

    /// The origin of a stall that the processes of its ranks show.
    fn origin_of_processes(&self, stall: &Stall) -> Option<StallOrigin> {
        if let Some(origin) = any_elsewhere(stall) {
            return Some(origin);
        }
        let echoes = self.echoes(stall);
        let with = |why| missing(stall, why, &echoes);
        first([OriginKind::Raised, OriginKind::Died, OriginKind::Stopped].map(with))
            .or_else(|| self.exit_path(stall))
            .or_else(|| self.other_tag(stall))
            .or_else(|| first([OriginKind::Left, OriginKind::Leaving].map(with)))
            .or_else(|| self.broken_by(stall))
    }

    /// The origin of a stall that the waits of its missing ranks lead to, if anything more is known of them than that they
    /// are elsewhere.
    fn origin_behind(
        &self,
        stalls: &[Stall],
        leads: &Leads,
        at: usize,
        known: &[Option<StallOrigin>],
    ) -> StallOrigin {
        let stall = &stalls[at];
        match self.origin_of_waits(leads, stall, known) {
            Some(origin) if origin.why != OriginKind::Elsewhere => origin,
            behind => self.origin_outside_calls(leads, stall, behind),
        }
    }

    /// The origin of what the missing ranks wait for: among several, the one with precedence.
    fn origin_of_waits(
        &self,
        leads: &Leads,
        stall: &Stall,
        known: &[Option<StallOrigin>],
    ) -> Option<StallOrigin> {
        let origins = stall.missing.iter().filter_map(|absent| match absent.why {
            OriginKind::Diverged(group, seq) => {
                let divergence = self.divergences.iter().find(|d| d.group == group && d.seq == seq);
                Some(
                    divergence.map_or(StallOrigin::without_ranks(absent.why), |d| d.origin.clone()),
                )
            }
            OriginKind::Inside(..) => Some(StallOrigin::without_ranks(absent.why)),
            OriginKind::Blocked(..) | OriginKind::Unpartnered(_) => {
                self.origin_of_blocked(leads, absent, known)
            }
            _ => None,
        });
        origins.min_by_key(StallOrigin::precedence)
    }

    /// The origin of the stall in which a missing rank waits, or the cycle that it is in.
    fn origin_of_blocked(
        &self,
        leads: &Leads,
        absent: &Absent,
        known: &[Option<StallOrigin>],
    ) -> Option<StallOrigin> {
        let cycle = match leads.next(absent) {
            Some(next) if let Some(origin) = &known[next] => return Some(origin.clone()),
            // It leads back to this stall.
            Some(_) => self.cycle_with(absent.rank),
            // Its own message met its partner, and yet it is blocked in the call.
            None => self.cycle_of(absent.rank),
        };
        cycle.map(|at| StallOrigin::without_ranks(OriginKind::Cycle(at)))
    }

    /// The origin of a stall whose missing ranks neither ended nor explain it by waits of their own;
    /// `behind`: the ranks that those waits lead to.
    fn origin_outside_calls(
        &self,
        leads: &Leads,
        stall: &Stall,
        behind: Option<StallOrigin>,
    ) -> StallOrigin {
        let echoes = self.echoes(stall);
        let with = |why| missing(stall, why, &echoes);
        let silent = with(OriginKind::Silent);
        if stall.missing.iter().all(|it| silent.ranks.contains(&it.rank)) {
            return silent;
        }
        let still = with(OriginKind::Stuck).ranks;
        if still.iter().any(|rank| leads.leave_messages.contains(rank)) {
            return StallOrigin { why: OriginKind::Elsewhere, ranks: still };
        }
        // A rank that waits for its device waits for other ranks, if something is known of those.
        let for_others = |rank: &u32| {
            let process = self.model.member(stall.group, *rank);
            let waits = |it| device::is_waited_for(it, &self.model.timing);
            behind.is_some() && process.is_some_and(waits)
        };
        let still = StallOrigin {
            why: OriginKind::Stuck,
            ranks: still.into_iter().filter(|it| !for_others(it)).collect(),
        };
        let idle = with(OriginKind::Idle);
        let kept = first([with(OriginKind::Making), still, with(OriginKind::LongPhase), idle]);
        kept.or(behind).unwrap_or_else(|| with(OriginKind::Elsewhere))
    }

    /// Missing ranks that the transport ended after another missing rank had ended by itself, or
    /// had left.
    fn echoes(&self, stall: &Stall) -> Vec<u32> {
        let group = self.model.group(stall.group);
        let member = |absent: &Absent| self.model.member(stall.group, absent.rank);
        let error_of = |absent: &Absent| {
            let raised = absent.why == OriginKind::Raised;
            member(absent).filter(|_| raised)?.transport_error()
        };
        let ended_before = |absent: &Absent, at: Timestamp| match absent.why {
            OriginKind::Left => self.has_left_before(group, absent.rank, at),
            OriginKind::Died => member(absent).is_some_and(|process| {
                let end = process.end.filter(|end| end.at <= at.plus(FAILED_FOR));
                end.is_some_and(|end| !end.exit.signal.is_some_and(libc_signal::is_asked))
            }),
            _ => false,
        };
        let is_echo = |absent: &&Absent| {
            let others = || stall.missing.iter().filter(|other| other.rank != absent.rank);
            error_of(absent)
                .is_some_and(|error| others().any(|other| ended_before(other, error.at)))
        };
        stall.missing.iter().filter(is_echo).map(|absent| absent.rank).collect()
    }

    /// Whether the waiting ranks left the common path: they wait while exiting, or while handling
    /// an exception, for ranks that exited without such a call, or that have been elsewhere for too
    /// long.
    fn exit_path(&self, stall: &Stall) -> Option<StallOrigin> {
        if stall.message.is_some() {
            return None;
        }
        let join = self.join(stall.group, stall.seq)?;
        let ended = |absent: &Absent| {
            let process = self.model.member(stall.group, absent.rank);
            process.is_some_and(Process::ended_through_the_interpreter)
        };
        let gone = stall.missing.iter().all(ended);
        let elsewhere = |absent: &Absent| absent.why == OriginKind::Elsewhere;
        let goes_on = || stall.missing.iter().all(elsewhere) && self.exceeds_limit(stall);
        if !gone && !goes_on() {
            return None;
        }
        let group = self.model.group(stall.group);
        let waiting: Vec<(u32, &JoinedCall)> =
            join.by_rank().filter(|(rank, it)| self.is_awaited(group, *rank, it)).collect();
        // If most ranks wait while exiting, the others have left out something.
        if waiting.len() > stall.missing.len() {
            return None;
        }
        let (raised, leaving) = self.on_their_way_out(stall.group, waiting.iter().copied());
        if raised.len() == waiting.len() {
            Some(StallOrigin { why: OriginKind::Raised, ranks: raised })
        } else if leaving.len() == waiting.len() {
            Some(StallOrigin { why: OriginKind::Leaving, ranks: leaving })
        } else {
            None
        }
    }

    /// Whether the missing partner has an open call to this rank with another tag and cannot
    /// continue: it left, waits in that very call, or is in a cycle with this rank.
    fn other_tag(&self, stall: &Stall) -> Option<StallOrigin> {
        let unmatched = stall.message.as_ref().filter(|unmatched| unmatched.sure)?;
        let other = self.model.group(stall.group).traffic.other_tag(unmatched)?;
        let left = stall.missing.iter().any(|absent| absent.why == OriginKind::Left);
        let waits_for_this = || {
            let mut cycles = self.waits.cycles.iter();
            cycles.any(|cycle| {
                let has = |rank| cycle.iter().any(|wait| wait.rank == rank);
                has(unmatched.rank) && has(other.rank) && !cycle.iter().any(Blocked::may_end)
            })
        };
        if !(left || self.waits.has(&other) || waits_for_this()) {
            return None;
        }
        let (sender, receiver) = match unmatched.side {
            Side::Send => (unmatched.rank, other.rank),
            Side::Receive => (other.rank, unmatched.rank),
        };
        Some(StallOrigin::without_ranks(OriginKind::OtherTag(stall.group, sender, receiver)))
    }

    /// For a failed wait, the ranks that had made their call and whose end broke it, rather than
    /// ranks that are late.
    fn broken_by(&self, stall: &Stall) -> Option<StallOrigin> {
        let (mut raised, mut died) = (Vec::new(), Vec::new());
        let group = self.model.group(stall.group);
        // A wait that timed out was not broken by any rank.
        let broken = stall.failed && stall.timed_out.is_none();
        let join = group.join(stall.seq).filter(|_| broken)?;
        let failed_at = |(rank, joined): (u32, &JoinedCall)| match joined.wait {
            Wait::Over(at) => Some(at),
            _ => Some(self.model.member(group.id, rank)?.end?.at),
        };
        let failed = join.by_rank().filter_map(failed_at).min()?;
        let missing: Vec<u32> = stall.missing.iter().map(|absent| absent.rank).collect();
        let arrived = group.members.keys().copied();
        for rank in arrived.filter(|rank| !missing.contains(rank)) {
            let Some(process) = self.model.member(group.id, rank) else { continue };
            let seen = process.end.is_some_and(|end| end.at <= failed.plus(FAILED_FOR));
            match self.model.ending_of(process) {
                // Waiting ranks raised because of the failure.
                Ending::Raised(_) if !stall.waiting.contains(&rank) => raised.push(rank),
                // A signal from a watchdog or a launcher is a reaction to a failure.
                Ending::Died(exit) if seen && !exit.signal.is_some_and(libc_signal::is_asked) => {
                    died.push(rank);
                }
                _ => {}
            }
        }
        let raised = StallOrigin { why: OriginKind::Raised, ranks: raised };
        first([raised, StallOrigin { why: OriginKind::Died, ranks: died }])
    }

    /// The cycle in which a rank waits.
    pub(crate) fn cycle_of(&self, rank: u32) -> Option<usize> {
        let mut cycles = self.waits.cycles.iter();
        cycles.position(|cycle| cycle.iter().any(|wait| wait.rank == rank))
    }

    /// The cycle in which a rank waits, or for which it waits.
    fn cycle_with(&self, rank: u32) -> Option<usize> {
        self.cycle_of(rank).or_else(|| {
            let needs = &self.waits.blocked.get(&rank)?.first()?.needs;
            let mut cycles = self.waits.cycles.iter();
            cycles.position(|cycle| cycle.iter().any(|wait| needs.contains(&wait.rank)))
        })
    }
}

/// Where the missing ranks of stalls wait.
#[derive(Debug, Default)]
struct Leads {
    /// The stall of a collective in which a rank of a group waits.
    waiting: HashMap<(GroupId, u32), usize>,
    /// The stall of a message that a rank of a group waits for.
    of_messages: HashMap<(GroupId, u32), usize>,
    /// Ranks that are elsewhere while a message of theirs is missing.
    leave_messages: HashSet<u32>,
}

impl Leads {
    fn new(stalls: &[Stall]) -> Self {
        let mut leads = Self::default();
        for (at, stall) in stalls.iter().enumerate() {
            let Some(unmatched) = &stall.message else {
                for &rank in &stall.waiting {
                    leads.waiting.entry((stall.group, rank)).or_insert(at);
                }
                continue;
            };
            leads.of_messages.entry((stall.group, unmatched.rank)).or_insert(at);
            let elsewhere = stall.missing.iter().filter(|it| it.why == OriginKind::Elsewhere);
            leads.leave_messages.extend(elsewhere.map(|it| it.rank));
        }
        leads
    }

    /// The stall in which a missing rank waits.
    fn next(&self, absent: &Absent) -> Option<usize> {
        match absent.why {
            OriginKind::Unpartnered(group) => self.of_messages.get(&(group, absent.rank)),
            OriginKind::Blocked(group, _) => self.waiting.get(&(group, absent.rank)),
            _ => None,
        }
        .copied()
    }

    /// The stalls without a known origin, each behind those that it leads to, and whether some lead back to themselves. A
    /// depth-first search.
    fn in_order(&self, stalls: &[Stall], known: &[Option<StallOrigin>]) -> (Vec<usize>, bool) {
        let mut is_seen: Vec<bool> = known.iter().map(Option::is_some).collect();
        let mut is_done = is_seen.clone();
        let mut has_circles = false;
        let mut order = Vec::new();
        for start in 0..stalls.len() {
            if std::mem::replace(&mut is_seen[start], true) {
                continue;
            }
            // Each stall with the number of its missing ranks that were looked at.
            let mut path = vec![(start, 0)];
            while let Some((at, looked)) = path.last_mut() {
                let Some(absent) = stalls[*at].missing.get(*looked) else {
                    order.push(*at);
                    is_done[*at] = true;
                    path.pop();
                    continue;
                };
                *looked += 1;
                let Some(next) = self.next(absent) else { continue };
                has_circles |= is_seen[next] && !is_done[next];
                if !std::mem::replace(&mut is_seen[next], true) {
                    path.push((next, 0));
                }
            }
        }
        (order, has_circles)
    }
}

/// The rank that waits for a message used numbers within a group as ranks.
fn of_numbers(stall: &Stall, numbers: &[LocalNumbers]) -> Option<StallOrigin> {
    let unmatched = stall.message.as_ref()?;
    let mut numbers = numbers.iter().filter(|it| it.messages == stall.group);
    let found = numbers.find(|it| it.ranks.contains(&unmatched.rank))?;
    let why = OriginKind::LocalNumbers(found.messages, found.numbers);
    Some(StallOrigin { why, ranks: found.ranks.clone() })
}

/// The missing ranks that are elsewhere, if any rank can release the wait: each of them may be the
/// one that does.
fn any_elsewhere(stall: &Stall) -> Option<StallOrigin> {
    stall.takes_any().then(|| first([missing(stall, OriginKind::Elsewhere, &[])])).flatten()
}

/// The ranks missing for this reason, except for the echoes.
fn missing(stall: &Stall, why: OriginKind, echoes: &[u32]) -> StallOrigin {
    let of_kind = stall.missing.iter().filter(|absent| absent.why == why);
    let ranks = of_kind.map(|absent| absent.rank);
    StallOrigin { why, ranks: ranks.filter(|rank| !echoes.contains(rank)).collect() }
}

/// The first of these origins that names ranks.
fn first<const N: usize>(origins: [StallOrigin; N]) -> Option<StallOrigin> {
    origins.into_iter().find(|it| !it.ranks.is_empty())
}
