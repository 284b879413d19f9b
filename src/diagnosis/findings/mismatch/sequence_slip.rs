//! DD110 sequence-slip: calls of different steps match, and the job continues with wrong results.

use ddp_doctor_proto::GuardForm;
use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CallState, CauseKind};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::view::describe;
use crate::guards;
use crate::input::align::{OddOnes, odd_ones};
use crate::model::{By, Group, Slip};
use crate::situation::Situation;
use crate::source::cause::{self, CauseHypothesis, Mistake};
use crate::words::{self, Ranks};

/// DD110: ranks that are permanently apart by steps or calls.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let groups = situation.model.groups();
    groups.filter_map(|group| Some(draft(situation, group, group.history.slip()?))).collect()
}

fn draft(situation: &Situation<'_>, group: &Group, slip: &Slip) -> Draft {
    let mut draft = Draft::new(&catalogue::DD110, KeyPlace::Join(group.id, slip.seq), slip.at);
    let everybody: Vec<u32> = slip.calls.iter().map(|(rank, _)| *rank).collect();
    // A rank that omitted the calls of a step is the root cause, even if it is in the majority.
    let skipped: Vec<u32> = slip.skipped.keys().copied().collect();
    draft.blame_odd(if !skipped.is_empty() && skipped.len() < everybody.len() {
        OddOnes { ranks: skipped.clone(), is_minority: true }
    } else {
        odd_ones(&slip.classes())
    });
    draft.set_victims(everybody.iter().copied());
    draft.place = Some((group.id, slip.seq));
    draft.op = slip.calls.first().map(|(_, call)| call.op);
    draft.per_rank = slip
        .calls
        .iter()
        .map(|(rank, call)| {
            let call = slip.later.get(rank).unwrap_or(call);
            describe(*rank, CallState::Returned, None, call)
        })
        .collect();

    draft.summary = summary(slip, group, &everybody, &draft.victims);
    draft.say(distance(slip, &everybody));
    draft.why.extend(first_calls(slip));
    draft.why.extend(slip.later.iter().map(|(rank, call)| {
        format!(
            "After that, rank {rank} skipped the calls of one step: {} is its first shifted call.",
            words::call_at(call)
        )
    }));
    draft.advise(
        "Continue from a checkpoint that was written before that step: the gradients averaged since then \
         belong to different steps.",
    );
    let hypothesis = hypothesis(situation, group, slip, &skipped);
    draft.explain(hypothesis);
    draft
}

fn summary(slip: &Slip, group: &Group, everybody: &[u32], victims: &[u32]) -> String {
    let call = first_call(slip);
    let named = words::group(&group.info);
    match slip.skipped.iter().next() {
        Some((rank, turn)) if slip.skipped.len() == 1 => format!(
            "rank {rank} made no calls in its step {turn}; from {call} of {named} on, each of its steps is \
             paired with an earlier one of {}",
            Ranks(victims)
        ),
        Some(_) if slip.skipped.len() < slip.calls.len() => {
            let skipped: Vec<u32> = slip.skipped.keys().copied().collect();
            format!(
                "{} each made no calls in a step ({}); from {call} of {named} on, steps that do not belong \
                 together are paired",
                Ranks(&skipped),
                each_step(slip)
            )
        }
        _ => format!(
            "from {call} of {named} on, calls of {} that do not belong together are paired",
            Ranks(everybody)
        ),
    }
}

/// Name of the first shifted call.
fn first_call(slip: &Slip) -> String {
    let call = slip.calls.first().map(|(_, call)| words::call(call));
    call.unwrap_or_default()
}

/// "all_reduce #23 is the first that is shifted: rank 0 made it at train.py:9 in its step 4, …";
/// `None` for too many ranks.
fn first_calls(slip: &Slip) -> Option<String> {
    let lines = slip.calls.iter().map(|(rank, call)| {
        let at = words::at(call.place.as_deref());
        match call.step {
            0 => format!("rank {rank} made it{at}"),
            step => format!("rank {rank} made it{at} in its step {step}"),
        }
    });
    (lines.len() <= 8).then(|| {
        let lines = words::joined(lines, ", ");
        format!("{} is the first mismatched pair: {lines}.", first_call(slip))
    })
}

/// "rank 1 of its step 3, rank 2 of its step 9"
fn each_step(slip: &Slip) -> String {
    let steps = slip.skipped.iter();
    words::joined(steps.map(|(rank, turn)| format!("rank {rank} of its step {turn}")), ", ")
}

/// A sentence on how far the ranks are apart.
fn distance(slip: &Slip, everybody: &[u32]) -> String {
    let mut apart: Vec<u64> = slip
        .shifted
        .values()
        .map(|by| match by {
            By::Turns(by) | By::Calls(by) => by.unsigned_abs(),
        })
        .collect();
    apart.sort_unstable();
    apart.dedup();
    let steps = slip.shifted.values().any(|by| matches!(by, By::Turns(_)));
    let unit = if steps { "step" } else { "call" };
    let what = match apart[..] {
        [1] => format!("one {unit}"),
        [by] => format!("{by} {unit}s"),
        _ => format!("some {unit}s"),
    };
    let since = if slip.skipped.len() > 1 && slip.skipped.len() < everybody.len() {
        let ranks: Vec<u32> = slip.skipped.keys().copied().collect();
        format!("since then each of {} has been ahead by the step that it skipped", Ranks(&ranks))
    } else {
        format!("since then they have stayed {what} apart")
    };
    format!(
        "{} were in the same step before; {since}. Operations and sizes match, so these calls do not \
         fail, but they do not belong together.",
        words::begin(Ranks(everybody))
    )
}

/// The hypothesis why a rank omitted its calls.
fn hypothesis(
    situation: &Situation<'_>,
    group: &Group,
    slip: &Slip,
    skipped: &[u32],
) -> CauseHypothesis {
    let at = slip.calls.iter().map(|(_, call)| call.at).max().unwrap_or_default();
    let skipped = skipped
        .first()
        .copied()
        .and_then(|rank| Some((rank, situation.model.member(group.id, rank)?)));
    let Some((rank, process)) = skipped else { return CauseHypothesis::unknown() };
    if let Some(exception) = cause::swallowed(process, at) {
        let because = format!(
            "Rank {rank} raised {}{} before it, and continued.",
            words::short(&exception.text),
            words::at(exception.place.as_deref())
        );
        let mistake = Mistake::went_on(rank, exception);
        return cause::supported(CauseKind::SwallowedException, Some(because))
            .with_mistake(mistake);
    }
    let call = slip.calls.iter().find(|(other, _)| *other == rank);
    let place = call.and_then(|(_, call)| call.place.as_ref());
    let skips = place.and_then(|place| {
        let mut guards = guards::around(process, place);
        guards.find(|(_, guard)| guard.form == GuardForm::Skips)
    });
    let mistake = slip.skipped.get(&rank).filter(|_| slip.skipped.len() == 1).map(|&turn| {
        let Mistake { ranks, clause } = Mistake::skipped(rank, turn, skips.as_ref());
        let clause = clause + "; since then each of its steps is paired with an earlier one";
        Mistake { ranks, clause }
    });
    // What else can leave out the calls of a step: an exception before them.
    let catches = place.and_then(|place| {
        let mut guards = guards::around(process, place);
        guards.find(|(_, guard)| guard.form == GuardForm::Catches)
    });
    let because = skips.or(catches).map(|(line, guard)| {
        let about = guards::about(&line, guard);
        if guard.form == GuardForm::Catches {
            return format!("{about}: an exception before that line skips the calls of a step.");
        }
        if slip.skipped.len() == 1 {
            return format!("{about}, on rank {rank} alone.");
        }
        let skipped = slip.skipped.iter();
        let steps = skipped.map(|(rank, turn)| format!("on rank {rank} in its step {turn}"));
        format!("{about}: {}, each time on that rank alone.", words::joined(steps, ", "))
    });
    CauseHypothesis { mistake, ..cause::supported(CauseKind::SkippedIteration, because) }
}
