//! DD204 stuck-outside, where stacks show that ranks wait, and not for whom: `Work.wait` of a message has no frame that
//! names its peer.
//!
//! If all ranks but one are inside calls, and that one is stuck, each chain of waits ends at it or is a circle.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Timestamp};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::stalls::idle::{advice, lead_with_failed_thread, waits_for, where_it_is};
use crate::findings::stalls::unexplained::unexplained;
use crate::findings::view::{last_call, waiting_until, with_place};
use crate::input::event::Call;
use crate::model::Process;
use crate::situation::Situation;
use crate::stacks::{self, Activity, Occupation};
use crate::words::{self, Ranks};

/// DD204: the only rank outside of calls, while the waits of all others are unexplained.
pub(crate) fn detect(situation: &Situation<'_>) -> Option<Draft> {
    let model = situation.model;
    if !situation.config.provenance.is_attached()
        || model.has_unseen()
        || !situation.stalls.is_empty()
    {
        return None;
    }
    let processes: Option<Vec<&Process>> =
        model.ranks.keys().map(|&rank| model.process_of(rank)).collect();
    let (inside, outside): (Vec<&Process>, Vec<&Process>) =
        processes?.into_iter().partition(|it| it.is_inside_a_call());
    let ([odd], false) = (&outside[..], inside.is_empty()) else { return None };
    let waits = inside
        .into_iter()
        .map(|it| Some((it, unexplained(situation, it)?)))
        .collect::<Option<Vec<(&Process, (&Call, Timestamp))>>>()?;
    let rank = odd.rank.filter(|_| !odd.has_ended())?;
    let still = stacks::activity(odd, &model.timing).filter(|it| !it.moves)?;
    let since = waits.iter().map(|(_, (call, _))| call.at).min()?;
    let confidence = confidence(situation, &still, since)?;

    let due = waits.iter().map(|(_, (_, due))| *due).max()?;
    let mut draft =
        Draft::new(&catalogue::DD204, KeyPlace::Ranks(vec![rank]), due.max(still.looks[1]));
    draft.confidence = confidence;
    draft.blame([rank], confidence);
    draft.set_victims(waits.iter().filter_map(|(process, _)| process.rank));
    draft.blocked_at = Some(since);
    draft.op = waits.first().map(|(_, (call, _))| call.op);
    draft.per_rank = waits
        .iter()
        .filter_map(|(process, (call, _))| Some(waiting_until(process.rank?, situation.now, call)))
        .chain([with_place(last_call(rank, odd), still.line)])
        .collect();
    draft.summary = format!(
        "rank {rank} is stuck outside any collective: it {}{}; {} inside calls, and no other rank is outside",
        waits_for(still.what),
        words::at(still.line),
        Ranks(&draft.victims).with("is", "are"),
    );
    draft.say(format!(
        "Stacks do not show what {} for. Rank {rank} is the only one that is not inside a call: unless the others \
         wait for each other in a cycle, they all wait for it, directly or indirectly. It is alive and does not move: two \
         dumps of its stacks, some time apart, show the same place and no CPU time used.",
        Ranks(&draft.victims).with("waits", "wait"),
    ));
    draft.say(where_it_is(model, odd, &still)?);
    draft.next = advice(still.what, odd);
    if still.what.is_of_threads() {
        lead_with_failed_thread(&mut draft, odd, &still);
    }
    Some(draft)
}

/// Confidence that the wait of this rank does not end by itself; `None`: it is expected to end.
fn confidence(
    situation: &Situation<'_>,
    still: &Activity<'_>,
    since: Timestamp,
) -> Option<Confidence> {
    use Occupation::{Blocked, Computing, Dormant, External, Listening, Shared};
    let timeouts = situation.model.groups().map(|group| group.timeout(&[]));
    let gives_up = since.plus(timeouts.min()?);
    match still.occupation {
        Computing | Listening => None,
        _ if still.waits_until.is_some_and(|end| end < gives_up) => None,
        External => Some(Confidence::Suspected),
        _ if still.what.long_work().is_some() => Some(Confidence::Suspected),
        // All others wait: none of them releases what it waits for.
        Blocked | Dormant | Shared => Some(Confidence::Supported),
    }
}
