//! DD101 missing-rank, for a rank that skipped a call and waits in the next one.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use crate::findings::draft::Draft;
use crate::findings::stalls::message;
use crate::situation::{LeftOut, Omission, OriginKind, Situation, Stall, StallOrigin};
use crate::source::cause;
use crate::words::{self, Ranks};

/// DD101: ranks that skipped a call, and now wait for those that wait in it.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let omissions = situation.omissions.iter();
    omissions.filter_map(|it| draft(situation, it, it.left_out.as_ref()?)).collect()
}

fn draft(situation: &Situation<'_>, omission: &Omission, left_out: &LeftOut) -> Option<Draft> {
    let rank = left_out.rank;
    let here = |stall: &&Stall| (stall.group, stall.seq) == (omission.group, omission.seq);
    let stall = situation.stalls.iter().find(|it| here(it) && it.message.is_none())?;
    let join = situation.join(omission.group, omission.seq)?;
    let call = &join.calls.values().next()?.call;
    let (next_group, next_seq) = left_out.waits_in;
    let collective = situation.model.group(next_group).open_or_entered(next_seq)?;
    let next = &collective.calls.get(&rank)?.call;
    let of_cycle =
        |index| situation.stalls_from(&StallOrigin::without_ranks(OriginKind::Cycle(index)));
    let mut behind: Vec<&Stall> = omission.cycle.map(of_cycle).unwrap_or_default();
    behind.extend(situation.stalls.iter().filter(here));
    let mut draft = message::draft(situation, &catalogue::DD101, stall, call, omission.closed);
    draft.blame([rank], Confidence::Supported);
    let on_devices = situation
        .device_cycle
        .iter()
        .filter(|_| omission.cycle.is_none())
        .flat_map(|it| it.victims.iter().copied());
    draft.set_victims(Stall::victims(&behind).into_iter().chain(on_devices));
    let named = |group| words::group(&situation.model.group(group).info);
    draft.summary = format!(
        "rank {rank} skipped {} of {}{} and waits in {}{}; {} for it",
        words::call(call),
        named(omission.group),
        words::at(Some(&left_out.line)),
        words::call(next),
        words::at(Some(&left_out.next)),
        Ranks(&stall.waiting).with("waits", "wait"),
    );
    draft.say(format!(
        "In every earlier recorded round, rank {rank} made its call at {} before the one at {}, as {} \
         did. In this round, only rank {rank} reached the second line \
         without the first.",
        words::line(&left_out.line),
        words::line(&left_out.next),
        Ranks(&stall.waiting),
    ));
    draft.say(format!(
        "{} of {} cannot complete without the ranks that wait for rank {rank}, so both wait for \
         each other.",
        words::call(next),
        named(left_out.waits_in.0),
    ));
    draft.advise(format!(
        "Make the call at {} on rank {rank} in every round in which the other ranks make it.",
        words::line(&left_out.line)
    ));
    let hypothesis = cause::read(situation, draft.place, &[rank], &draft.victims, situation.now);
    draft.explain(hypothesis);
    Some(draft)
}
