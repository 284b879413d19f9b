//! DD115 unawaited-work: an asynchronous collective is never waited for, or two threads of a rank
//! race on one group.
//!
//! Reported only while nothing is blocked. A program may be correct without a wait, so the evidence
//! must leave no other way: several `Work` objects of one line were freed without a wait, a query
//! of their state or use of their future, no `Work` of that line was ever waited for, and the
//! backend does not order work by itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CallState, Confidence, RankCall, Where};
use ddp_doctor_proto::vocabulary::Direction;

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::mismatch::divergence::OWN_GROUPS;
use crate::findings::view::no_call;
use crate::input::backends::{Backend, Completion};
use crate::input::event::ThreadId;
use crate::model::{Crossing, Group, Process, Unawaited};
use crate::situation::Situation;
use crate::source::cause;
use crate::words::{self, Ranks};

/// Minimum number of such calls at one line.
const SEVERAL: usize = 3;

/// DD115: results that are used before they are complete, or go to another thread.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let mut lines: BTreeMap<&Arc<Where>, Vec<(u32, &Process, &Unawaited)>> = BTreeMap::new();
    for process in situation.model.processes.values() {
        let Some(rank) = process.rank else { continue };
        for (place, unawaited) in &process.unawaited {
            if unawaited.at.len() >= SEVERAL && is_lost_without(unawaited) {
                lines.entry(place).or_default().push((rank, process, unawaited));
            }
        }
    }
    let unawaited =
        lines.into_iter().filter_map(|(place, ranks)| never_waited(situation, place, &ranks));
    let races = situation.model.groups().filter_map(|group| race(situation, group));
    unawaited.chain(races).collect()
}

/// Whether every rank that makes such a call gets a result that is complete only after a wait. On a
/// device, a later call or a synchronization of the stream may wait for it instead.
fn is_lost_without(unawaited: &Unawaited) -> bool {
    Backend::of_group(&unawaited.group.backend).completion == Completion::AtWait
        && unawaited.op.direction() == Direction::Symmetric
        && !unawaited.op.is_barrier()
}

fn never_waited(
    situation: &Situation<'_>,
    place: &Where,
    ranks: &[(u32, &Process, &Unawaited)],
) -> Option<Draft> {
    let (_, _, first) = ranks.first()?;
    let evidence = ranks.iter().filter_map(|(_, _, it)| it.at.get(SEVERAL - 1));
    let mut draft = Draft::new(&catalogue::DD115, KeyPlace::Line(place.clone()), *evidence.min()?);
    draft.op = Some(first.op);
    // A rank may have had several processes.
    let mut rows = BTreeMap::new();
    for (rank, process, it) in ranks {
        rows.entry(*rank).or_insert_with(|| made(*rank, process, Some(it.op), place));
    }
    draft.root = rows.keys().copied().collect();
    draft.root_confidence = Confidence::Supported;
    draft.per_rank = rows.into_values().collect();
    let mut groups = situation.model.groups();
    let group = groups.find(|group| group.info.key == first.group.key);
    draft.place = group.map(|group| (group.id, 0));
    draft.cause = Some(cause::most_likely(situation, &draft.root, &[], draft.evidence_at));
    draft.summary = format!(
        "asynchronous {} at {} is never waited for: {} made such calls without a wait",
        first.op,
        words::line(place),
        Ranks(&draft.root).with("has", "have"),
    );
    let most = ranks.iter().map(|(.., it)| it.count).max()?;
    draft.say(format!(
        "With async_op=True the call returns at once, and its result is complete only after \
         wait(). At least {most} Works of that line were freed without a wait, a query of their state, or a \
         use of their future."
    ));
    draft.advise(
        "Keep what the call returns, and call wait() on it before the tensor is used or changed; or \
         leave out async_op=True.",
    );
    Some(draft)
}

/// A finding if the calls of two threads match in both orders, depending on which one is first.
fn race(situation: &Situation<'_>, group: &Group) -> Option<Draft> {
    let crossings: Vec<&Crossing> = group.crossings.iter().collect();
    let threads = threads_of(&crossings);
    let (one, other, [a, b]) = crossings.iter().enumerate().find_map(|(i, one)| {
        crossings[i + 1..].iter().find_map(|other| {
            let ranks = swapped(one, other, &threads)?;
            Some((*one, *other, ranks))
        })
    })?;
    let process = |rank| situation.model.member(group.id, rank);
    let (x, y) = (&one.calls.get(&a)?.0, &one.calls.get(&b)?.0);
    let at = one.at.max(other.at);
    let mut draft = Draft::new(&catalogue::DD115, KeyPlace::Join(group.id, 0), at);
    draft.place = Some((group.id, one.seq));
    draft.root = one.calls.keys().copied().collect();
    draft.per_rank = one
        .calls
        .iter()
        .filter_map(|(&rank, (place, _))| Some(made(rank, process(rank)?, None, place)))
        .collect();
    draft.summary = format!(
        "two threads of each rank race on {}: the calls at {} and {} match in varying order",
        words::group(&group.info),
        words::line(x),
        words::line(y),
    );
    draft.say(format!(
        "In call #{}, rank {a} was at {} and rank {b} at {}; in call #{}, it was the other way around. Calls \
         of one group match in the order in which they are made, and each line runs in its own thread \
         on these ranks: results go to the wrong thread.",
        one.seq,
        words::line(x),
        words::line(y),
        other.seq,
    ));
    draft.advise(OWN_GROUPS);
    Some(draft)
}

/// The thread that makes the calls of a rank at a line; `None`: several threads.
type ThreadsOf<'a> = BTreeMap<(u32, &'a Where), Option<ThreadId>>;

fn threads_of<'a>(crossings: &[&'a Crossing]) -> ThreadsOf<'a> {
    let mut threads = ThreadsOf::new();
    for crossing in crossings {
        for (&rank, (place, thread)) in &crossing.calls {
            let known = threads.entry((rank, &**place)).or_insert(Some(*thread));
            if *known != Some(*thread) {
                *known = None;
            }
        }
    }
    threads
}

/// Two ranks whose lines matched in both orders, if each line has its own thread on both ranks.
fn swapped(one: &Crossing, other: &Crossing, threads: &ThreadsOf<'_>) -> Option<[u32; 2]> {
    let own = |rank: u32, x: &Where, y: &Where| {
        let of = |place| threads.get(&(rank, place)).copied().flatten();
        matches!((of(x), of(y)), (Some(x), Some(y)) if x != y)
    };
    for (&a, (x, _)) in &one.calls {
        for (&b, (y, _)) in one.calls.range(a + 1..) {
            let (Some((then_a, _)), Some((then_b, _))) = (other.calls.get(&a), other.calls.get(&b))
            else {
                continue;
            };
            if x != y && then_a == y && then_b == x && own(a, x, y) && own(b, x, y) {
                return Some([a, b]);
            }
        }
    }
    None
}

fn made(rank: u32, process: &Process, op: Option<Op>, place: &Where) -> RankCall {
    let last = process.last_call.as_ref();
    RankCall {
        state: CallState::Issued,
        op: op.and_then(Op::name).map(str::to_owned),
        peer: last.and_then(|call| call.peer),
        tag: last.and_then(|call| call.tag),
        place: Some(place.clone()),
        ..no_call(rank)
    }
}
