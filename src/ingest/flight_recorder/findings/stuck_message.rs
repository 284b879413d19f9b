//! DD116 stuck-inside for messages, which the engine reports for collectives alone.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Blame, CallState, Confidence, Finding, Group, Role, Timestamp};

use super::stuck_collective;
use crate::diagnosis::findings::describe;
use crate::diagnosis::words;
use crate::ingest::flight_recorder::replay::Replay;

/// A message that both ranks have made, and whose devices have completed everything before it.
pub(super) fn detect(replay: &Replay<'_>) -> Option<Finding> {
    let transfers = replay.waits.transfers.iter();
    let (rank, at, peer, partner) = transfers.copied().find_map(|(rank, at)| {
        let placed = replay.messages.placed(rank, at)?;
        let (peer, partner) = (placed.peer?, placed.partner?);
        let is_under_way = replay.waits.transfers.iter().any(|(rank, _)| *rank == peer);
        is_under_way.then_some((rank, at, peer, partner))
    })?;
    let sides =
        [(rank, at), (peer, partner)].map(|(rank, at)| (rank, replay.numbered_call(rank, at)));
    let [(_, own), (_, other)] = &sides;
    let info = own.group.as_ref()?;
    let mut per_rank: Vec<_> = sides
        .iter()
        .map(|(rank, call)| {
            let waited = Timestamp(replay.end).since(call.at).as_millis();
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
        detected_at: Timestamp(replay.end),
        ..Finding::default()
    };
    let calls =
        [(rank, at), (peer, partner)].map(|(rank, at)| (rank, &replay.calls[&rank].units[at]));
    stuck_collective::name_devices(&mut finding, replay, &calls);
    Some(finding)
}
