//! Detects calls that cannot match because they were made in a different order.

use std::sync::Arc;

use ddp_doctor_proto::report::Where;

use crate::input::align::{Mismatch, compare};
use crate::input::event::{Call, ThreadId};
use crate::model::history::WINDOW;
use crate::model::{Group, Join, MAX_JOINS_AFTER};

/// Maximum number of calls that change places.
const MAX_LENGTH: u64 = MAX_JOINS_AFTER;

/// The same calls, made in different orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permutation {
    /// Number of calls that change places, from the divergence on.
    pub length: u64,
    /// All of these calls were recorded on both sides; otherwise the lines met in the crossed order
    /// earlier.
    pub seen: bool,
}

/// The permutation that makes all calls from this place on match, if there is one.
///
/// Both orders must be recorded: as calls or, if the calls block, by the same lines in crossed
/// order earlier. Only calls of one step count: across steps, calls may as well have been left out. A
/// thread of a rank may be a step behind another one.
///
/// DDP's calls on a device are issued by a thread of autograd, for which the thread that called backward waits:
/// they belong to the step of the others. `acts` says whether a thread of a rank is one of the program.
pub fn permutation(
    group: &Group,
    seq: u64,
    acts: &dyn Fn(u32, ThreadId) -> bool,
) -> Option<Permutation> {
    let join = group.join(seq)?;
    let classes = join.classes();
    let [first, rest @ ..] = &classes[..] else { return None };
    let reference = *first.first()?;
    let others: Vec<u32> = rest.iter().filter_map(|class| class.first().copied()).collect();
    (2..=MAX_LENGTH)
        .find(|&length| {
            others.iter().all(|&other| is_permuted(group, (seq, length), [reference, other], acts))
                // Calls that were left out would shift everything that follows.
                && group.join(seq + length).is_none_or(|join| join.mismatch.is_none())
        })
        .map(|length| Permutation { length, seen: true })
        .or_else(|| {
            others
                .iter()
                .all(|&other| crossed_before(group, join, reference, other))
                .then_some(Permutation { length: 2, seen: false })
        })
}

/// Whether two ranks made the same calls at these places in a different order, each thread within
/// one step.
fn is_permuted(
    group: &Group,
    (seq, length): (u64, u64),
    [a, b]: [u32; 2],
    acts: &dyn Fn(u32, ThreadId) -> bool,
) -> bool {
    let calls = |rank: u32| -> Option<Vec<&Call>> {
        let calls = (seq..seq + length)
            .map(|seq| Some(&*group.join(seq)?.calls.get(&rank)?.call))
            .collect::<Option<Vec<&Call>>>()?;
        let one_step = calls.iter().all(|call| {
            let is_one = |other: &Call| {
                let threads = [call.thread, other.thread];
                threads[0] == threads[1] || threads.iter().any(|it| !acts(rank, *it))
            };
            calls.iter().filter(|other| is_one(other)).all(|other| other.step == call.step)
        });
        // Without step marks, recurring calls may as well have been left out.
        let distinct = |(i, call): (usize, &&Call)| {
            calls[..i].iter().all(|other| compare(other, call).is_some())
        };
        let tell = calls[0].step > 0 || calls.iter().enumerate().all(distinct);
        (one_step && tell).then_some(calls)
    };
    let (Some(a_calls), Some(b_calls)) = (calls(a), calls(b)) else { return false };
    // The first calls must differ: otherwise a shorter range would do.
    if compare(a_calls[0], b_calls[0]).is_none() {
        return false;
    }
    let mut left: Vec<usize> = (0..b_calls.len()).collect();
    let mut shifts = Vec::with_capacity(a_calls.len());
    for (at, call) in a_calls.iter().enumerate() {
        let is_equal = |&other: &usize| compare(call, b_calls[other]).is_none();
        let Some(found) = left.iter().position(is_equal) else { return false };
        shifts.push(left.remove(found) as i64 - at as i64);
    }
    // All but one call moved by one place, and the ranks have made different numbers of calls: one
    // call of a round of a loop may be missing, or there may be one more.
    let moved = |by: i64| shifts.iter().filter(|&&it| it == by).count() + 1 == shifts.len();
    let has_made_as_many = made(group, seq, a).is_some_and(|it| made(group, seq, b) == Some(it));
    let is_round = |rank: u32, calls: &[&Call]| recurs(group, seq, rank, calls[0]);
    a_calls[0].step > 0
        || !(moved(1) || moved(-1))
        || has_made_as_many
        || !(is_round(a, &a_calls) && is_round(b, &b_calls))
}

/// The last call of a rank, if it is known. Only so many calls after the divergence are kept.
fn made(group: &Group, seq: u64, rank: u32) -> Option<u64> {
    let member = group.members.get(&rank)?;
    if !member.is_unknown() {
        return Some(member.issued);
    }
    let mut kept = group.joins.iter().rev();
    let last = kept.find(|(_, join)| join.calls.contains_key(&rank));
    last.map(|(last, _)| *last).filter(|&last| last < seq + MAX_JOINS_AFTER)
}

/// Whether a rank made such a call in the group before, so that it may be the call of another round
/// of a loop. Without its line, or without the earlier calls, that is assumed.
fn recurs(group: &Group, seq: u64, rank: u32, call: &Call) -> bool {
    let earlier = group.history.recent().filter(|meeting| meeting.seq < seq);
    let lines: Vec<Option<&Arc<Where>>> = earlier.map(|meeting| meeting.place_of(rank)).collect();
    let is_complete = lines.len() as u64 >= (seq - 1).min(WINDOW as u64);
    let is_such = |line: &Option<&Arc<Where>>| match (line, &call.place) {
        (Some(line), Some(own)) => line.is_same_line(own),
        _ => true,
    };
    !is_complete || lines.iter().any(is_such)
}

/// Whether the two lines that meet here met crosswise in two consecutive calls before.
fn crossed_before(group: &Group, join: &Join, a: u32, b: u32) -> bool {
    let place = |rank: u32| join.calls.get(&rank).and_then(|it| it.call.place.as_ref());
    let (first, second) = (place(a), place(b));
    if first.is_none() || second.is_none() || first == second {
        return false;
    }
    let earlier = group.history.recent().skip(1);
    let mut pairs = earlier.zip(group.history.recent());
    pairs.any(|(earlier, later)| {
        earlier.seq + 1 == later.seq
            && (earlier.place_of(a), earlier.place_of(b)) == (first, second)
            && (later.place_of(a), later.place_of(b)) == (second, first)
    })
}

/// Whether the job continues despite the mismatch, with wrong numbers.
pub const fn runs_on(mismatch: Mismatch) -> bool {
    matches!(mismatch, Mismatch::DType | Mismatch::ReduceOp)
}
