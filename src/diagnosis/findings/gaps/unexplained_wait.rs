//! DD901 evidence-incomplete: a wait beyond the stall limit for which the evidence names no missing rank.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Timestamp};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::view::last_call;
use crate::input::backends::Completion;
use crate::input::event::Call;
use crate::model::{Doing, Process, Target};
use crate::situation::Situation;
use crate::words::{self, Ranks};

/// DD901: ranks that wait for longer than the stall limit although no stall explains it. Without
/// another finding, the job cannot be judged.
pub(crate) fn detect(situation: &Situation<'_>) -> Option<Draft> {
    // Ranks that were never seen are reported as such.
    if situation.model.has_unseen() {
        return None;
    }
    let processes = situation.model.processes.values();
    let waits: Vec<(&Process, (&Call, Timestamp))> =
        processes.filter_map(|process| Some((process, unexplained(situation, process)?))).collect();
    let (_, (call, _)) = *waits.first()?;
    let mut ranks: Vec<u32> = waits.iter().filter_map(|(process, _)| process.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let due = waits.iter().map(|(_, (_, due))| *due).min()?;
    let mut draft = Draft::new(&catalogue::DD901, KeyPlace::Ranks(ranks.clone()), due);
    draft.summary = format!(
        "{} in {} for longer than the stall limit, and the evidence does not show for what",
        Ranks(&ranks).with("waits", "wait"),
        words::call_at(call),
    );
    draft.say(
        "No member of the group is known to be missing from the call, so the other ranks may not be \
         captured, or may count as another job.",
    );
    draft.advise("Find out what all ranks do now: ddp-doctor dump.");
    draft.blame(ranks, Confidence::Suspected);
    draft.per_rank =
        waits.iter().filter_map(|(process, _)| Some(last_call(process.rank?, process))).collect();
    draft.confidence = Confidence::Supported;
    Some(draft)
}

/// The call for which a process has waited longer than the stall limit while no stall and no
/// collective that all have entered explains it, and when it reached the limit.
fn unexplained<'a>(
    situation: &Situation<'a>,
    process: &'a Process,
) -> Option<(&'a Call, Timestamp)> {
    let rank = process.rank.filter(|_| !process.has_ended() && !process.is_from_text())?;
    let stalled = situation.stalls.iter().flat_map(|stall| &stall.waiting);
    let inside = situation.inside.iter().flat_map(|inside| &inside.waiting);
    // A rank that exits has findings of its own.
    if process.unwatched.is_some() || process.leaving.is_some() {
        return None;
    }
    if stalled.chain(inside).any(|&it| it == rank) {
        return None;
    }
    let mut threads = process.threads.values();
    threads.find_map(|thread| {
        let (target, call, since) = match &thread.doing {
            Doing::Call(call) => (process.target(call.id), call, call.at),
            Doing::Wait(target, since, _) => (*target, thread.last_call.as_ref()?, *since),
            Doing::Nothing => return None,
        };
        // Joining the world, and creating a group, have findings of their own.
        let waits_for_peers =
            |group| situation.model.group(group).backend.completion != Completion::AtOnce;
        let is_collective = matches!(
            target,
            Some(Target::Join(group, seq)) if seq > 0 && waits_for_peers(group)
        );
        // A stack that is inside a call may not show of which group.
        let waits = is_collective || process.is_attached() && call.op != Op::InitProcessGroup;
        let usual = call.place.as_ref().and_then(|place| process.places.longest_wait(place));
        let usual = std::time::Duration::from_nanos(usual.unwrap_or(0));
        let due = since.plus(situation.config.stall_after.max(usual * 3));
        (waits && due <= situation.until).then_some((&**call, due))
    })
}
