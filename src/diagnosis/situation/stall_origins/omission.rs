//! Cycles of waits that one call explains: a call that one rank left out, or made alone.
//!
//! In a cycle of two ranks and two groups, each rank is in a call that the other has not made. The
//! waits alone do not show whether the ranks use the groups in different orders, or whether one of
//! them skipped a call. Two things do: a condition on the rank that guards exactly one of the two
//! lines, and the order in which both ranks have passed these lines before.

use std::collections::VecDeque;
use std::sync::Arc;

use ddp_doctor_proto::report::{Timestamp, Where};

use crate::model::GroupId;
use crate::situation::open_calls::OpenCalls;
use crate::situation::origin_kind::{OriginKind, StallOrigin};
use crate::situation::stall::{Absent, Stall};
use crate::waits::Blocked;

/// Number of rounds in which both ranks must have passed the lines in the same order.
const ROUNDS: usize = 3;

/// The call that explains a cycle.
#[derive(Clone, Debug)]
pub struct Omission {
    /// Index of the cycle in [`crate::waits::Waits::cycles`]; `None`: it is that of the devices.
    pub cycle: Option<usize>,
    /// The group in which a rank waits for the other one, and the sequence number of the call.
    pub group: GroupId,
    /// See `group`.
    pub seq: u64,
    /// When the cycle was closed.
    pub closed: Timestamp,
    /// The call that was left out; `None`: the source shows a condition on the rank.
    pub left_out: Option<LeftOut>,
}

/// A call that a rank made in every earlier round and left out in the latest.
#[derive(Clone, Debug)]
pub struct LeftOut {
    /// The rank.
    pub rank: u32,
    /// The line of that call.
    pub line: Arc<Where>,
    /// The line of the call that follows it, in which the rank waits now.
    pub next: Arc<Where>,
    /// The group of that next call, and its sequence number.
    pub waits_in: (GroupId, u64),
}

/// The omissions of a calls. The stalls that they cause get them as their origin.
pub(super) fn find(calls: &OpenCalls<'_>, stalls: &mut [Stall]) -> Vec<Omission> {
    let mut found = Vec::new();
    for (index, cycle) in calls.waits.cycles.iter().enumerate() {
        let [one, other] = &cycle[..] else { continue };
        let may_end = one.may_end() || other.may_end();
        if may_end || !is_across_two_groups(calls, one, other) {
            continue;
        }
        let at = |wait: &Blocked| {
            let origin = StallOrigin::without_ranks(OriginKind::Cycle(index));
            stalls.iter().position(|it| {
                (it.group, it.seq) == (wait.group, wait.seq)
                    && it.message.is_none()
                    && it.origin == origin
            })
        };
        let (Some(first), Some(second)) = (at(one), at(other)) else { continue };
        let lacks = |waiting: &Blocked, at: usize, absent: &Blocked| {
            // If the call lacks several ranks, it stays incomplete when one of them makes it.
            let misses_one = stalls[at].missing.len() == 1;
            let left_out = left_out(calls, waiting, absent, false).filter(|_| misses_one);
            left_out.map(|it| (at, Some(it)))
        };
        let parted = |at: usize| calls.parting_at(&stalls[at]).is_some();
        let explained = match (parted(first), parted(second)) {
            (true, false) => Some((first, None)),
            (false, true) => Some((second, None)),
            (true, true) => None,
            (false, false) => lacks(one, first, other).or_else(|| lacks(other, second, one)),
        };
        let Some((at, left_out)) = explained else { continue };
        let stall = &mut stalls[at];
        let missing = stall.missing.iter().map(|absent| absent.rank).collect();
        stall.origin = StallOrigin { why: OriginKind::Elsewhere, ranks: missing };
        found.push(Omission {
            cycle: Some(index),
            group: stall.group,
            seq: stall.seq,
            closed: one.since.max(other.since),
            left_out,
        });
    }
    found.extend(between_devices(calls, stalls));
    found
}

/// The omission that explains the cycle of devices: the host of the rank that skipped a call has run ahead to
/// the next one.
fn between_devices(calls: &OpenCalls<'_>, stalls: &mut [Stall]) -> Option<Omission> {
    let cycle = calls.device_cycle.as_ref()?;
    let [one, other] = &cycle.waits[..] else { return None };
    if !is_across_two_groups(calls, one, other) {
        return None;
    }
    let (at, left_out) =
        [(one, other), (other, one)].into_iter().find_map(|(waiting, absent)| {
            let is_for_absent = |it: &Stall| {
                (it.group, it.seq) == (waiting.group, waiting.seq)
                    && it.message.is_none()
                    && matches!(it.missing[..], [Absent { rank, .. }] if rank == absent.rank)
            };
            let at = stalls.iter().position(is_for_absent)?;
            Some((at, left_out(calls, waiting, absent, true)?))
        })?;
    let stall = &mut stalls[at];
    stall.origin = StallOrigin { why: OriginKind::Elsewhere, ranks: vec![left_out.rank] };
    let (group, seq) = (stall.group, stall.seq);
    let (closed, left_out) = (cycle.evidence_at, Some(left_out));
    Some(Omission { cycle: None, group, seq, closed, left_out })
}

/// Whether two ranks wait for each other in collectives of two groups that both belong to.
fn is_across_two_groups(calls: &OpenCalls<'_>, one: &Blocked, other: &Blocked) -> bool {
    let is_for = |it: &Blocked, rank: u32| {
        let is_collective = it.message.is_none() && !it.came_back && it.seq > 0;
        is_collective && calls.model.group(it.group).info.key.members.contains(&rank)
    };
    one.group != other.group && is_for(one, other.rank) && is_for(other, one.rank)
}

/// The call of `waiting` that the other rank left out: both have made it before the one that
/// `absent` waits in, in every round before the latest. On a device (`runs_ahead`), the host of the waiting rank may
/// have made the next call as well.
fn left_out(
    calls: &OpenCalls<'_>,
    waiting: &Blocked,
    absent: &Blocked,
    runs_ahead: bool,
) -> Option<LeftOut> {
    let line = waiting.call.place.as_ref()?;
    let next = absent.call.place.as_ref()?;
    if line == next {
        return None;
    }
    let rounds = |of: &Blocked| {
        let process = calls.model.member(of.group, of.rank)?;
        let known = process.lost == 0 && process.threads.len() == 1;
        let (first, second) = ((waiting.group, line), (absent.group, next));
        known.then(|| passed(&process.recent_lines, first, second))
    };
    let regular = [true, false].repeat(ROUNDS);
    let ends_with =
        |mut turns: Vec<bool>, last: bool| turns.pop() == Some(last) && turns.ends_with(&regular);
    let mut of_waiting = rounds(waiting)?;
    of_waiting.pop_if(|last| runs_ahead && !*last);
    (ends_with(of_waiting, true) && ends_with(rounds(absent)?, false)).then(|| LeftOut {
        rank: absent.rank,
        line: Arc::clone(line),
        next: Arc::clone(next),
        waits_in: (absent.group, absent.seq),
    })
}

/// Which of two lines a process passed, oldest first; true: the first line. Consecutive calls at the
/// first line count once: a backward pass sends several buckets.
fn passed(
    lines: &VecDeque<(GroupId, Arc<Where>)>,
    first: (GroupId, &Arc<Where>),
    second: (GroupId, &Arc<Where>),
) -> Vec<bool> {
    let mut turns: Vec<bool> = Vec::new();
    for (group, line) in lines {
        let place = (*group, line);
        if place == first && turns.last() != Some(&true) {
            turns.push(true);
        } else if place == second {
            turns.push(false);
        }
    }
    turns
}
