//! Messages that are launched together on NCCL, and whose call does not return.
//!
//! Two ranks that exchange messages for the first time are connected before their call returns, for
//! all messages of an `ncclGroupStart` group at once. So a rank can be blocked in the call of a
//! message that met its partner, if the partner's rank has more messages for it in the same group
//! than the rank issued: both sides must issue the same (NVIDIA/nccl#1279).

use std::sync::Arc;

use crate::input::event::Call;
use crate::model::{Doing, GroupId, JoinedCall, Model, Process, Side, Target, UnmatchedMessage};
use crate::waits::{Blocked, ProcessAt};

impl ProcessAt<'_> {
    /// The wait of a thread inside a launch of messages, whose latest message may have met its partner.
    pub(super) fn blocked_in_launch(&self, doing: &Doing) -> Option<Blocked> {
        let Self { model, now, process, .. } = *self;
        let Doing::Call(call) = doing else { return None };
        if call.on_stream.is_none() || now.since(call.at) < model.timing.uncertain_wait {
            return None;
        }
        match alone(model, process, call) {
            Some((group, unmatched)) => Blocked::for_partner(model, group, unmatched),
            None => self.behind_partner(call),
        }
    }

    /// The wait for a partner whose launch has a message without a partner, if all messages of this
    /// launch met theirs.
    pub(super) fn behind_partner(&self, call: &Arc<Call>) -> Option<Blocked> {
        let Self { model, now, process, rank } = *self;
        let mut launched = launched_with(process, call);
        launched.find_map(|call| {
            let Some(Target::Message(group, _)) = process.target(call.id) else { return None };
            let peer = call.peer.filter(|&peer| peer != rank)?;
            let partner = model.member(group, peer)?;
            let is_alone = |call: &Call| {
                now.since(call.at) >= model.timing.uncertain_wait
                    && launched_with(partner, call).any(|it| it.peer == Some(rank))
                    && alone(model, partner, call)
                        .is_some_and(|(_, unmatched)| unmatched.peer == Some(rank))
            };
            let stands = partner.entered().any(|call| is_alone(call));
            stands.then(|| Blocked::for_partner(model, group, partnered(call, rank, peer)))?
        })
    }
}

/// The calls launched together with this one, including itself.
fn launched_with<'p>(process: &'p Process, call: &'p Call) -> impl Iterator<Item = &'p Arc<Call>> {
    let of = call.on_stream.map_or(0, |on| on.launch);
    process.queued.iter().filter(move |other| {
        let launch = other.on_stream.map_or(0, |on| on.launch);
        other.id == call.id || (of != 0 && launch == of && other.thread == call.thread)
    })
}

/// The first message of a launch that has no partner.
fn alone(model: &Model, process: &Process, call: &Call) -> Option<(GroupId, UnmatchedMessage)> {
    launched_with(process, call).find_map(|call| match process.target(call.id)? {
        Target::Message(group, post) => Some((group, model.group(group).traffic.unmatched(&post)?)),
        Target::Join(..) => None,
    })
}

/// A message that met its partner, in the form of [`Blocked::message`].
fn partnered(call: &Arc<Call>, rank: u32, peer: u32) -> UnmatchedMessage {
    UnmatchedMessage {
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
