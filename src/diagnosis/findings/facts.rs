//! Facts about calls, for certificates.

use ddp_doctor_proto::report::{CallSignature, Fact, SplitFact};

use crate::input::align;
use crate::input::backends::{Backend, Matching};
use crate::input::event::Call;
use crate::input::splits::Misfit;
use crate::model::{Exception, Join};

/// Signature of a call, for a certificate.
pub(crate) fn signature(call: &Call) -> CallSignature {
    CallSignature {
        op: call.op.to_string(),
        numel: align::size(call),
        dtype: call.dtype.name().map(str::to_owned),
        reduce_op: call.known_reduce_op().name().map(str::to_owned),
        root: call.root.or(call.peer),
        tag: call.tag.filter(|_| {
            let group = call.group.as_ref();
            group.is_some_and(|group| Backend::of_group(&group.backend).matching == Matching::ByTag)
        }),
    }
}

/// The fact that a rank began to create a group; `None` if the call creates none.
pub(crate) fn creates(rank: u32, call: &Call, only_thread: bool) -> Option<Fact> {
    let group = call.group.as_ref().filter(|_| call.op.creates_group())?;
    Some(Fact::Creates {
        rank,
        thread: call.thread.0,
        group: group.key.clone(),
        takes_all: call.takes_all,
        only_thread,
    })
}

/// The fact that a rank issued a call, with its number in the group or on its channel.
pub(crate) fn issued(rank: u32, call: &Call, seq: u64) -> Option<Fact> {
    Some(Fact::Issued {
        rank,
        group: call.group.as_ref()?.key.clone(),
        seq,
        call: signature(call),
        step: call.step,
    })
}

/// The fact that an exception was seen on a rank.
pub(crate) fn raised(rank: u32, exception: &Exception) -> Fact {
    let (text, seen) = (exception.text.to_string(), exception.kind.to_string());
    Fact::Raised { rank, text, seen }
}

/// The facts that a rank sends another number of elements to a peer than the peer expects.
pub(crate) fn split_facts(join: &Join, misfit: &Misfit) -> Option<Vec<Fact>> {
    let split = |rank: u32, peer: u32, numel: u32| {
        let call = &join.calls.get(&rank)?.call;
        let group = call.group.as_ref()?.key.clone();
        Some(SplitFact { rank, group, seq: call.seq, peer, numel })
    };
    let Misfit { sender, receiver, sends, expects } = *misfit;
    Some(vec![
        Fact::Sends(split(sender, receiver, sends)?),
        Fact::Expects(split(receiver, sender, expects)?),
    ])
}
