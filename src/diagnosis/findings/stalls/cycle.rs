//! Shared by the findings about cycles of waits.

use std::collections::BTreeSet;

use ddp_doctor_proto::catalogue::{self, Code};
use ddp_doctor_proto::report::{Certificate, CertificateKind, Confidence, Fact, Timestamp, Where};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::stalls::message;
use crate::findings::view::{at_line, blocked_call, called_from, line_since};
use crate::guards;
use crate::input::provenance::Dumps;
use crate::model::{GroupId, Side};
use crate::situation::{OriginKind, Situation, Stall, StallOrigin};
use crate::source::cause::{self, CauseHypothesis};
use crate::waits::Blocked;
use crate::words::{self, Ranks};

/// In place of an index in `Waits::cycles`: the cycle is one of streams or devices.
pub(crate) const NOT_OF_THREADS: usize = usize::MAX;

/// Cycles that are the origin of a stall, with their index in
/// [`crate::waits::Waits::cycles`].
pub(crate) fn led_to<'s>(situation: &'s Situation<'_>) -> Vec<(usize, &'s [Blocked])> {
    let cycles = situation.waits.cycles.iter().enumerate();
    let led_to = cycles.filter(|(i, _)| {
        !situation.stalls_from(&StallOrigin::without_ranks(OriginKind::Cycle(*i))).is_empty()
    });
    led_to.map(|(i, cycle)| (i, &cycle[..])).collect()
}

/// Whether a stall of this cycle is overdue. Required if a wait of the cycle may still end.
pub(crate) fn is_overdue(situation: &Situation<'_>, index: usize) -> bool {
    let stalls = situation.stalls_from(&StallOrigin::without_ranks(OriginKind::Cycle(index)));
    stalls.into_iter().any(|stall| situation.is_overdue(stall))
}

/// Whether every rank is inside the call that it waits for, instead of waiting for it later.
pub(crate) fn are_in_their_calls(cycle: &[Blocked]) -> bool {
    cycle.iter().all(|wait| !wait.came_back)
}

/// Whether a rank waits in a rooted collective that need not wait. Such a cycle counts once it is
/// overdue.
pub(crate) fn may_end(cycle: &[Blocked]) -> bool {
    cycle.iter().any(Blocked::may_end)
}

/// Whether no wait of the cycle can end by itself. A send may, unless the backend's sends wait for
/// their receive: then the cycle counts once it is overdue.
pub(crate) fn is_believed(situation: &Situation<'_>, index: usize, cycle: &[Blocked]) -> bool {
    let is_closed = is_rendezvous(situation, cycle) && are_in_their_calls(cycle);
    is_closed && !may_end(cycle) || is_overdue(situation, index)
}

/// Whether no send of these waits ends before its receive was made.
pub(crate) fn is_rendezvous(situation: &Situation<'_>, waits: &[Blocked]) -> bool {
    let mut sends =
        waits.iter().filter(|wait| wait.message.as_ref().is_some_and(|it| it.side == Side::Send));
    sends.all(|wait| situation.model.group(wait.group).backend.sends_wait)
}

/// The groups in which ranks of a cycle wait.
pub(crate) fn groups(cycle: &[Blocked]) -> BTreeSet<GroupId> {
    cycle.iter().map(|wait| wait.group).collect()
}

/// A draft without sentences except that on its cause.
pub(crate) fn draft(
    situation: &Situation<'_>,
    index: usize,
    cycle: &[Blocked],
    code: &'static Code,
) -> Option<Draft> {
    let first = cycle.first()?;
    // A receive from any source waits for each of its possible senders.
    let senders = cycle.iter().filter(|wait| wait.needs_any()).flat_map(|wait| wait.needs.iter());
    let distinct: BTreeSet<u32> =
        cycle.iter().map(|wait| wait.rank).chain(senders.copied()).collect();
    let ranks: Vec<u32> = distinct.into_iter().collect();
    let closed = cycle.iter().map(|wait| wait.since).max()?;

    let mut draft = Draft::new(code, KeyPlace::Ranks(ranks.clone()), closed);
    draft.root = ranks;
    draft.set_victims(Stall::victims(
        &situation.stalls_from(&StallOrigin::without_ranks(OriginKind::Cycle(index))),
    ));
    draft.place = Some((first.group, first.seq));
    draft.op = Some(first.call.op);
    draft.blocked_at = cycle.iter().map(|wait| wait.since).min();
    let blocked = &situation.waits.blocked;
    let wait_of = |rank: &u32| {
        let own = cycle.iter().find(|wait| wait.rank == *rank);
        blocked_call(situation, own.or_else(|| blocked.get(rank)?.first())?)
    };
    draft.per_rank = draft.root.iter().filter_map(wait_of).collect();
    let (ranks, victims) = (&draft.root, &draft.victims);
    draft.explain(match cycle {
        _ if cycle.iter().any(|wait| wait.call.peer.is_some() || wait.message.is_some()) => {
            message::cause(situation, ranks, victims, closed)
        }
        [one, other] if meet_in_both_groups(situation, cycle) => {
            of_two(situation, one, other, closed)
        }
        _ => in_one_loop(situation, &cycle.iter().collect::<Vec<_>>())
            .unwrap_or_else(|| cause::read(situation, None, ranks, victims, closed)),
    });
    let mut draft = draft.proved_by(proof(situation, cycle));
    // The ranks of the cycle are its root cause.
    draft.root_confidence = draft.confidence;
    Some(draft)
}

/// Makes the smaller side the root cause of a cycle in which some ranks skipped a call that others made.
/// Whether the call is one too many, or one too few, does not show.
pub(crate) fn blame_minority(mut draft: Draft, dumps: &Dumps) -> Draft {
    let mut disagreements = dumps.disagreements.iter();
    let is_within = |ranks: &BTreeSet<u32>| draft.root.iter().all(|it| ranks.contains(it));
    let is_cycle = [catalogue::DD111.code, catalogue::DD112.code].contains(&draft.code.code);
    let found = disagreements.find(|it| is_cycle && is_within(&it.ranks));
    let Some(found) = found else { return draft };
    let minority = if let Some((minority, others)) = found.sides() {
        draft.say(format!(
            "{} agree on the order of these calls, and {} not.",
            words::begin(Ranks(&others)),
            Ranks(&minority).with("does", "do"),
        ));
        minority
    } else {
        // Of the ranks of the cycle, which are the fewest that wait for each other, those that disagree.
        let disagrees = |rank: &&u32| found.waiting.contains(rank) || found.missing.contains(rank);
        draft.root.iter().filter(disagrees).copied().collect()
    };
    draft.blame_instead(minority);
    draft
}

/// Makes the smaller side the root cause of a cycle of two waits in which more ranks wait: those that belong to both
/// groups show which order most of them follow.
pub(crate) fn blame_fewer(draft: &mut Draft, situation: &Situation<'_>, cycle: &[Blocked]) {
    let [one, other] = cycle else { return };
    let is_in = |rank: u32, wait: &Blocked| {
        let is_there = |it: &Blocked| (it.group, it.seq) == (wait.group, wait.seq);
        situation.waits.blocked.get(&rank).is_some_and(|waits| waits.iter().any(is_there))
    };
    let made = |rank: u32, wait: &Blocked| {
        let join = situation.join(wait.group, wait.seq)?;
        join.calls.get(&rank).map(|it| &it.call)
    };
    // A call that its rank does not wait for has no order.
    let has_no_order = |(rank, _): (&u32, _)| {
        let is_loose = |it: &Blocked| made(*rank, it).is_some_and(|it| it.is_async);
        [one, other].into_iter().any(|it| is_loose(it) && !is_in(*rank, it))
    };
    if situation.waits.blocked.iter().any(has_no_order) {
        return;
    }
    let side = |wait: &Blocked, across: &Blocked| -> Vec<u32> {
        let members = situation.model.group(across.group).members.keys().copied();
        let begins_here = |rank: &u32| {
            let call = made(*rank, wait).filter(|_| is_in(*rank, wait) || is_in(*rank, across));
            call.is_some_and(|it| made(*rank, across).is_none_or(|other| it.at < other.at))
        };
        members.filter(begins_here).collect()
    };
    let mut sides = [side(one, other), side(other, one)];
    sides.sort_by_key(Vec::len);
    let [fewer, more] = sides;
    if fewer.is_empty() || fewer.len() == more.len() {
        return;
    }
    draft.say(format!(
        "{} agree on the order of these calls, and {} not.",
        words::begin(Ranks(&more)),
        Ranks(&fewer).with("does", "do"),
    ));
    draft.blame_instead(fewer);
    draft.root_confidence = draft.root_confidence.min(Confidence::Supported);
}

/// The end of a summary: the calls in which the ranks wait, with their lines, and with their groups if there are several.
pub(crate) fn calls(situation: &Situation<'_>, cycle: &[Blocked]) -> String {
    let common = common_line(cycle);
    let has_groups = groups(cycle).len() > 1;
    let texts = cycle.iter().map(|wait| {
        let line = words::at(wait.call.place.as_deref().filter(|_| common.is_none()));
        let caller = caller_of(situation, wait, cycle);
        let of_group = if has_groups {
            words::of_group(&situation.model.group(wait.group).info)
        } else {
            String::new()
        };
        format!("rank {} in {}{of_group}{line}{caller}", wait.rank, words::call(&wait.call))
    });
    let calls = words::joined(texts, ", ");
    format!("{}: {calls}", words::at(common))
}

/// How a rank came to its call of a cycle, if it can come to that line in several ways, or another rank of the cycle has.
fn caller_of(situation: &Situation<'_>, wait: &Blocked, cycle: &[Blocked]) -> String {
    let at = |wait: &Blocked| {
        let process = situation.model.member(wait.group, wait.rank)?;
        Some((process, wait.call.place.clone()?))
    };
    let Some((process, place)) = at(wait) else { return String::new() };
    let other = cycle
        .iter()
        .filter_map(at)
        .find_map(|(other, there)| guards::caller_apart((process, &place), (other, &there)));
    called_from(&place, guards::telling_caller(process, &place).or(other).as_deref())
}

/// The line in which all ranks of the cycle wait.
pub(crate) fn common_line(cycle: &[Blocked]) -> Option<&Where> {
    let (first, rest) = cycle.split_first()?;
    let line = first.call.place.as_deref()?;
    let is_there =
        |wait: &Blocked| wait.call.place.as_deref().is_some_and(|it| it.is_same_line(line));
    rest.iter().all(is_there).then_some(line)
}

/// The wait of a cycle for a call that another rank of it has not made, and that rank.
pub(crate) fn not_made<'c>(
    situation: &Situation<'_>,
    cycle: &'c [Blocked],
) -> Option<(&'c Blocked, u32)> {
    let next = cycle.iter().cycle().skip(1).map(|next| next.rank);
    let mut waits = cycle.iter().zip(next);
    waits.find(|(wait, next)| {
        let join = situation.join(wait.group, wait.seq).filter(|_| wait.call.op.is_collective());
        join.is_some_and(|join| !join.calls.contains_key(next))
    })
}

/// The waits of the cycle in one sentence: "rank 0 waits in … for rank 1; rank 1 waits in …."
pub(crate) fn steps(situation: &Situation<'_>, cycle: &[Blocked]) -> String {
    let next = cycle.iter().cycle().skip(1);
    let steps = cycle.iter().zip(next).map(|(wait, next)| {
        let rank = wait.rank;
        let call = words::call(&wait.call);
        let info = &situation.model.group(wait.group).info;
        let of_group = words::of_group(info);
        let at = at_line(situation.model.member(wait.group, rank), &wait.call);
        if wait.needs_any() && wait.needs.len() > 1 {
            let senders = Ranks(&wait.needs);
            format!("rank {rank} waits in {call}{of_group}{at} for any of {senders}")
        } else if wait.message.is_some() && !wait.needs_any() {
            format!("rank {rank} waits in {call} in {}{at}", words::group(info))
        } else {
            format!("rank {rank} waits in {call}{of_group}{at} for rank {}", next.rank)
        }
    });
    words::begin(words::joined(steps, "; ")) + "."
}

/// The steps of a cycle, unless a sentence with its calls says as much: two ranks that wait for each other.
pub(crate) fn further_steps(situation: &Situation<'_>, cycle: &[Blocked]) -> Option<String> {
    let has_choice = cycle.iter().any(|wait| wait.needs_any() && wait.needs.len() > 1);
    (cycle.len() > 2 || has_choice).then(|| steps(situation, cycle))
}

/// A sentence on the victims that have no row.
pub(crate) fn other_victims(draft: &Draft) -> Option<String> {
    let has_row = |rank: &u32| draft.per_rank.iter().any(|it| it.rank == *rank);
    let others: Vec<u32> = draft.victims.iter().copied().filter(|it| !has_row(it)).collect();
    (!others.is_empty()).then(|| {
        let wait = words::begin(Ranks(&others).with("waits", "wait"));
        format!("{wait} for these ranks, directly or through others.")
    })
}

/// A sentence on the ranks that wait later than in the call itself, with their lines.
pub(crate) fn further_on(situation: &Situation<'_>, cycle: &[Blocked]) -> Option<String> {
    let mut waits: Vec<&Blocked> = cycle.iter().filter(|wait| wait.came_back).collect();
    waits.sort_by_key(|wait| wait.rank);
    let places: Vec<String> = waits
        .iter()
        .map(|wait| {
            let process = situation.model.member(wait.group, wait.rank);
            let line = process.and_then(|process| line_since(process, wait.since));
            format!("by rank {}{}", wait.rank, words::at(line))
        })
        .collect();
    (!places.is_empty()).then(|| {
        format!(
            "Calls on a device return before they are complete; they are awaited {}.",
            places.join(" and ")
        )
    })
}

/// The proof; `None` unless no wait of the cycle can end before the next one.
pub(crate) fn proof(situation: &Situation<'_>, cycle: &[Blocked]) -> Option<Certificate> {
    let must_block = cycle.iter().all(|wait| {
        wait.certain
            && wait.recorded
            && wait.only_thread
            && situation.model.has_all_records(wait.group, [wait.rank])
    });
    if !must_block || cycle.len() < 2 {
        return None;
    }
    let waits = cycle.iter().map(|wait| message::waits(situation, wait));
    let next = cycle.iter().cycle().skip(1);
    let never =
        cycle.iter().zip(next).map(|(wait, next)| message::never_came(situation, wait, next.rank));
    let facts: Vec<Fact> = waits.chain(never).collect();
    Some(Certificate { kind: CertificateKind::Cycle, facts })
}

/// Whether two ranks wait in collectives of two groups that both belong to. A rank that waits for its
/// device may have omitted a call before, so it does not count.
fn meet_in_both_groups(situation: &Situation<'_>, cycle: &[Blocked]) -> bool {
    let members = |wait: &Blocked| &situation.model.group(wait.group).info.key.members;
    let mut pairs = cycle.iter().zip(cycle.iter().rev());
    are_in_their_calls(cycle)
        && pairs.all(|(wait, other)| wait.message.is_none() && members(wait).contains(&other.rank))
}

/// Ranks that wait for each other in different groups at one line of a loop take the groups in different orders.
fn in_one_loop(situation: &Situation<'_>, cycle: &[&Blocked]) -> Option<CauseHypothesis> {
    let (first, rest) = cycle.split_first()?;
    let line = first.call.place.as_ref()?;
    let is_there =
        |wait: &&Blocked| wait.call.place.as_ref().is_some_and(|it| it.is_same_line(line));
    let groups: BTreeSet<GroupId> = cycle.iter().map(|wait| wait.group).collect();
    if groups.len() < 2 || !rest.iter().all(is_there) {
        return None;
    }
    cause::order_of_loop(situation.model.member(first.group, first.rank)?, line)
}

/// Why each of two ranks waits for the other in a group that both use. If one has come to its line less often, it has
/// left behind the line where the other waits. Otherwise one of them skipped a call or repeated one, or they make the
/// same two calls in different orders: that is only stated where they take them from one loop.
fn of_two(
    situation: &Situation<'_>,
    one: &Blocked,
    other: &Blocked,
    at: Timestamp,
) -> CauseHypothesis {
    let times = |wait: &Blocked| {
        let process = situation.model.member(wait.group, wait.rank);
        let place = wait.call.place.as_ref();
        process.zip(place).map_or(0, |(it, place)| it.places.calls(place))
    };
    let order = times(one).cmp(&times(other));
    let (ahead, behind) = if order.is_le() { (one, other) } else { (other, one) };
    let hypothesis = cause::read(situation, None, &[ahead.rank], &[behind.rank], at);
    if order.is_ne() || hypothesis.cause.confidence == Confidence::Supported {
        return hypothesis;
    }
    in_one_loop(situation, &[one, other]).unwrap_or(hypothesis)
}
