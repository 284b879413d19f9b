//! DD116 stuck-inside for messages, in dumps: a message that both ranks have made does not arrive.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CallState, Confidence};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::stalls::dumped;
use crate::findings::view::describe;
use crate::situation::Situation;
use crate::words;

/// DD116: a message whose sides were both issued, and whose devices have completed everything before it.
pub(crate) fn detect(situation: &Situation<'_>) -> Option<Draft> {
    let message = situation.config.provenance.dumps()?.stuck_message.as_ref()?;
    // A rank without a dump, or with calls that are not known, may be what they wait for.
    let model = situation.model;
    let is_lossy = model.processes.values().any(|process| process.lost > 0);
    if is_lossy || !model.notes.is_empty() || model.has_unseen() {
        return None;
    }
    let [(rank, own), (peer, other)] = &message.sides;
    let info = own.group.as_ref()?;
    let group = model.groups().find(|group| group.info.key == info.key)?;
    let place = KeyPlace::Channel(group.id, Some(*rank), Some(*peer));
    let mut draft = Draft::new(&catalogue::DD116, place, situation.now);
    draft.confidence = Confidence::Suspected;
    draft.place = Some((group.id, own.seq));
    draft.op = Some(own.op);
    let rows = message.sides.iter().map(|(rank, call)| {
        let waited = situation.now.since(call.at).as_millis();
        describe(*rank, CallState::Waiting, u64::try_from(waited).ok(), call)
    });
    draft.per_rank = rows.collect();
    draft.per_rank.sort_by_key(|call| call.rank);
    draft.set_victims([*rank, *peer]);
    draft.blocked_at = Some(own.at.max(other.at));
    draft.summary = format!(
        "rank {rank} has made {}{}, and rank {peer} {}{}, and the message does not arrive",
        words::call(own),
        words::at(own.place.as_deref()),
        words::call(other),
        words::at(other.place.as_deref()),
    );
    draft.say(
        "Both calls of the message were made, and all earlier calls of both ranks are complete: the fault \
         is below \
         them, in the network, a device, or a kernel before the call on its stream.",
    );
    draft.advise(
        "Check the connection between the two hosts, and their devices (dmesg | grep -i xid; nvidia-smi -q).",
    );
    dumped::name_devices(&mut draft, &message.not_started);
    Some(draft)
}
