//! DD116 stuck-inside for messages, which the engine reports for collectives alone.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Blame, CallState, Confidence, Finding, Group, Role, Timestamp};

use super::inside;
use super::play::Play;
use crate::diagnosis::findings::describe;
use crate::diagnosis::words;

/// A message that both ranks have made, and whose devices have completed everything before it.
pub(super) fn detect(play: &Play<'_>) -> Option<Finding> {
    let transfers = play.waits.transfers.iter();
    let (rank, at, peer, partner) = transfers.copied().find_map(|(rank, at)| {
        let placed = play.messages.placed(rank, at)?;
        let (peer, partner) = (placed.peer?, placed.partner?);
        let is_under_way = play.waits.transfers.iter().any(|(rank, _)| *rank == peer);
        is_under_way.then_some((rank, at, peer, partner))
    })?;
    let sides =
        [(rank, at), (peer, partner)].map(|(rank, at)| (rank, play.numbered_call(rank, at)));
    let [(_, own), (_, other)] = &sides;
    let info = own.group.as_ref()?;
    let mut per_rank: Vec<_> = sides
        .iter()
        .map(|(rank, call)| {
            let waited = Timestamp(play.end).since(call.at).as_millis();
            describe(*rank, CallState::Waiting, u64::try_from(waited).ok(), call)
        })
        .collect();
    per_rank.sort_by_key(|call| call.rank);
    let mut finding = Finding {
        code: catalogue::DD116.code.into(),
        name: catalogue::DD116.name.into(),
        severity: catalogue::DD116.severity,
        effect: catalogue::DD116.effect,
        confidence: Confidence::Suspected,
        role: Role::Initiating,
        summary: format!(
            "rank {rank} has made {}{}, and rank {peer} {}{}, and the message does not arrive",
            words::call(own),
            words::at(own.place.as_deref()),
            words::call(other),
            words::at(other.place.as_deref()),
        ),
        ranks: Blame {
            victims: per_rank.iter().map(|call| call.rank).collect(),
            ..Blame::default()
        },
        group: Some(Group {
            name: info.key.name.clone(),
            description: info.description.to_string(),
            layer: info.key.layer.to_string(),
            ranks: info.key.members.clone(),
        }),
        seq: Some(own.seq).filter(|&seq| seq > 0),
        op: Some(own.op.to_string()),
        per_rank,
        why: vec![
            "Both sides of the message are made, and all earlier calls of both ranks are complete: the \
             fault is below them, in the network, a device, or a kernel before the call on its stream."
                .into(),
        ],
        next: vec![
            "Check the connection between the two hosts, and their devices (dmesg | grep -i xid; \
             nvidia-smi -q)."
                .into(),
        ],
        blocked_at: Some(own.at.max(other.at)),
        detected_at: Timestamp(play.end),
        ..Finding::default()
    };
    let calls =
        [(rank, at), (peer, partner)].map(|(rank, at)| (rank, &play.calls[&rank].units[at]));
    inside::name_devices(&mut finding, play, &calls);
    Some(finding)
}
