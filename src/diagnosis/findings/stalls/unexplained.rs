//! Waits that no stall explains.

use std::time::Duration;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use crate::input::backends::Completion;
use crate::input::event::Call;
use crate::model::{Doing, Process, Target};
use crate::situation::Situation;

/// The call for which a process has waited longer than the stall limit while no stall and no
/// collective that all have entered explains it, and when it reached the limit.
pub(crate) fn unexplained<'a>(
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
        let longest = call.place.as_ref().and_then(|place| process.places.longest_wait(place));
        let usual = Duration::from_nanos(longest.unwrap_or(0));
        let due = since.plus(situation.config.stall_after.max(usual * 3));
        (waits && due <= situation.until).then_some((&**call, due))
    })
}
