//! Messages that are given to NCCL together, and whose call does not come back.
//!
//! Two ranks that exchange messages for the first time are connected before their call comes back: for all
//! that the calls of a group (`ncclGroupStart`) want of each other, at a time. So a rank stands in the
//! call of a message that has met its partner, where the partner's rank wants more of it within the same
//! group than it has been given: both sides must ask for the same (NVIDIA/nccl#1279).

use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;

use super::super::event::{Call, ThreadId};
use super::super::model::{Doing, GroupId, JoinedCall, Lone, Model, Process, Side, Target};
use super::Blocked;

/// The wait of a thread that is inside the launch of messages, of which the one that it made last has met
/// its partner.
pub(super) fn blocked(
    model: &Model,
    process: &Process,
    doing: &Doing,
    rank: u32,
    now: Timestamp,
) -> Option<Blocked> {
    let Doing::Call(call) = doing else {
        return None;
    };
    if call.on_stream.is_none() || now.since(call.at) < model.timing.uncertain_wait {
        return None;
    }
    match alone(model, process, call) {
        Some((group, lone)) => wait_of(model, group, lone, rank),
        None => behind(model, process, call, rank, now),
    }
}

/// The wait for a partner that is in a launch of which not all messages have met theirs, where those of this
/// launch have.
pub(super) fn behind(
    model: &Model,
    process: &Process,
    call: &Arc<Call>,
    rank: u32,
    now: Timestamp,
) -> Option<Blocked> {
    let mut launched = launched_with(process, call);
    launched.find_map(|call| {
        let Some(Target::Message(group, _)) = process.target(call.id) else {
            return None;
        };
        let peer = call.peer.filter(|&peer| peer != rank)?;
        let partner = model.member(group, peer)?;
        let stands = |call: &Call| {
            now.since(call.at) >= model.timing.uncertain_wait
                && launched_with(partner, call).any(|it| it.peer == Some(rank))
                && alone(model, partner, call).is_some_and(|(_, lone)| lone.peer == Some(rank))
        };
        let mut threads = partner.threads.values();
        threads
            .any(|thread| matches!(&thread.doing, Doing::Call(call) if stands(call)))
            .then(|| wait_of(model, group, met(call, rank, peer), rank))?
    })
}

/// The calls that were given to NCCL with this one, itself among them.
fn launched_with<'p>(process: &'p Process, call: &'p Call) -> impl Iterator<Item = &'p Arc<Call>> {
    let of = call.on_stream.map_or(0, |on| on.launch);
    process.queued.iter().filter(move |other| {
        let launch = other.on_stream.map_or(0, |on| on.launch);
        other.id == call.id || (of != 0 && launch == of && other.thread == call.thread)
    })
}

/// The first message of a launch that has no partner.
fn alone(model: &Model, process: &Process, call: &Call) -> Option<(GroupId, Lone)> {
    launched_with(process, call).find_map(|call| match process.target(call.id)? {
        Target::Message(group, post) => Some((group, model.group(group).traffic.lone(&post)?)),
        Target::Join(..) => None,
    })
}

/// A message that has met its partner, as a wait shows it.
fn met(call: &Arc<Call>, rank: u32, peer: u32) -> Lone {
    Lone {
        side: match call.op {
            ddp_doctor_proto::Op::Send => Side::Send,
            _ => Side::Receive,
        },
        rank,
        peer: Some(peer),
        joined: JoinedCall::new(call),
        nth: call.seq,
        sure: false,
        sent: None,
    }
}

fn wait_of(model: &Model, group: GroupId, lone: Lone, rank: u32) -> Option<Blocked> {
    Some(Blocked {
        rank,
        thread: ThreadId::default(),
        group,
        seq: lone.joined.call.seq,
        call: Arc::clone(&lone.joined.call),
        since: lone.joined.call.at,
        until: None,
        needs: super::partners(model, group, &lone)?,
        message: Some(lone),
        certain: false,
        only_thread: false,
        recorded: false,
        came_back: false,
    })
}
