//! DD111 group-order-deadlock: a cycle of waits across process groups.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{CallState, CauseKind, Confidence};

use crate::findings::draft::{Draft, Key, KeyPlace};
use crate::findings::stalls::{cycle, dumped};
use crate::findings::view::describe;
use crate::situation::creations;
use crate::situation::{Omission, Situation};
use crate::source::cause::{self, Mistake};
use crate::waits::{Blocked, streams};
use crate::words::{self, Ranks};

/// DD111: cycles of waits that lead through several groups.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let threads: Vec<Draft> = cycle::led_to(situation)
        .into_iter()
        .filter(|(_, cycle)| {
            cycle.iter().all(|wait| wait.message.is_none())
                && creations::making(situation.model, cycle).is_none()
        })
        .filter(|(i, cycle)| {
            let is_closed = cycle::are_in_their_calls(cycle) && !cycle::may_end(cycle);
            is_closed || cycle::is_overdue(situation, *i)
        })
        .filter_map(|(i, cycle)| draft(situation, i, cycle))
        .collect();
    // Where the threads of these ranks are blocked, their devices wait for the same calls.
    let is_known =
        |it: &Draft| threads.iter().any(|of| of.root.iter().any(|rank| it.root.contains(rank)));
    let devices = on_devices(situation).filter(|it| !is_known(it));
    let drafts = threads.into_iter().chain(on_streams(situation)).chain(devices);
    let Some(dumps) = situation.config.provenance.dumps() else { return drafts.collect() };
    let drafts = drafts.map(|draft| dumped::created_differently(situation, draft, dumps));
    drafts.map(|draft| cycle::blame_minority(draft, dumps)).collect()
}

/// Cycles among the streams of devices. Their ranks need not have a blocked thread.
fn on_streams(situation: &Situation<'_>) -> Vec<Draft> {
    let cycles = streams::cycles(situation.model);
    let drafts = cycles.iter().filter_map(|cycle| {
        let mut draft = cycle::draft(situation, cycle::NOT_OF_THREADS, cycle, &catalogue::DD111)?;
        draft.confidence = Confidence::Supported;
        draft.root_confidence = Confidence::Supported;
        draft.summary = format!(
            "{} use {} communicators in different orders: their streams wait for each other{}",
            Ranks(&draft.root),
            cycle::groups(cycle).len(),
            cycle::calls(situation, cycle),
        );
        // Every rank has made these calls: nothing else than their order is wrong.
        draft.mistake = None;
        draft.attribute(cause::supported(CauseKind::SwappedCalls, None));
        draft.why = vec![cycle::steps(situation, cycle)];
        draft.say(
            "Every rank has made all of these calls. But a call on a stream begins only once those \
             before it are complete, and these cannot complete before the others have begun.",
        );
        draft.next = vec!["Use the communicators in the same order on every rank.".into()];
        Some(draft)
    });
    drafts.collect()
}

/// A cycle among devices, according to the order of c10d's calls.
fn on_devices(situation: &Situation<'_>) -> Option<Draft> {
    let found = situation.device_cycle.as_ref().filter(|it| !it.has_message())?;
    // A call that was left out is reported as such.
    if situation.omissions.iter().any(|it| it.cycle.is_none()) {
        return None;
    }
    let cycle = &found.waits[..];
    let mut draft = cycle::draft(situation, cycle::NOT_OF_THREADS, cycle, &catalogue::DD111)?;
    draft.evidence_at = found.evidence_at;
    draft.victims.clone_from(&found.victims);
    draft.root_confidence = Confidence::Supported;
    let rows = cycle.iter().map(|wait| {
        let waited = situation.until.since(wait.since).as_millis() as u64;
        describe(wait.rank, CallState::Issued, Some(waited), &wait.call)
    });
    draft.per_rank = rows.collect();
    let left_out = cycle::not_made(situation, cycle);
    let (ranks, groups) = (Ranks(&draft.root), cycle::groups(cycle).len());
    draft.summary = match left_out {
        Some((wait, rank)) => format!(
            "The devices of {ranks} wait for each other in {groups} process groups, and rank {rank} has not made {} of {}",
            words::call(&wait.call),
            words::group(&situation.model.group(wait.group).info),
        ),
        None => format!(
            "{ranks} use {groups} process groups in different orders: their devices wait for each other{}",
            cycle::calls(situation, cycle)
        ),
    };
    if let Some((wait, rank)) = left_out {
        draft.why.clear();
        let place = Some((wait.group, wait.seq));
        draft.next.clear();
        draft.explain(cause::read(situation, place, &[rank], &[wait.rank], situation.now));
    }
    // Every rank has made these calls: a test around one of them does not keep a rank away.
    let is_swapped = draft.cause.is_some_and(|it| it.kind == CauseKind::SwappedCalls);
    if left_out.is_none() && !is_swapped {
        draft.why.clear();
        draft.next.clear();
        draft.suspect = None;
        draft.explain(cause::suspected(CauseKind::SwappedCalls, None));
    }
    draft.say(cycle::steps(situation, cycle));
    draft.say(if left_out.is_some() {
        "These calls return at once, and the ranks have run ahead. But a device begins a call only once those \
         before it on the same stream are complete."
    } else {
        "Every rank has made all of these calls. But a device begins a call only once those before it \
         on the same stream are complete, and these cannot complete before the others have begun."
    });
    if let Some(at) = found.dumped_at {
        draft.say(format!(
            "According to PyTorch's Flight Recorder (queried at {}), each of these calls is the first that its device has \
             not completed.",
            words::clock(at)
        ));
    }
    advise_order(&mut draft);
    Some(draft)
}

/// Advises where to look, unless the cause has advice.
fn advise_order(draft: &mut Draft) {
    if draft.next.is_empty() {
        draft.advise(
            "Compare the order in which these ranks use the groups before and at these lines: it must be the same on all \
             members, and each call of a group must be made by all of them.",
        );
    }
}

fn draft(situation: &Situation<'_>, index: usize, waits: &[Blocked]) -> Option<Draft> {
    let groups = cycle::groups(waits).len();
    if groups < 2 {
        return None;
    }
    let mut draft = cycle::draft(situation, index, waits, &catalogue::DD111)?;
    let mut omissions = situation.omissions.iter();
    let omission = omissions.find(|it| it.cycle == Some(index));
    let in_their_calls = cycle::are_in_their_calls(waits);
    let swapped = draft.cause.map(|it| it.kind) == Some(CauseKind::SwappedCalls);
    let ranks = Ranks(&draft.root);
    match cycle::common_line(waits) {
        Some(line) if swapped && omission.is_none() => {
            let line = words::at(Some(line));
            draft.summary = format!(
                "{ranks} use {groups} process groups in different orders and wait for each other{line}"
            );
            draft.say(cycle::steps(situation, waits));
        }
        _ => {
            draft.summary =
                format!("{ranks} wait for each other{}", cycle::calls(situation, waits));
            draft.why.extend(cycle::further_steps(situation, waits));
        }
    }
    if omission.is_none()
        && let Some(threads) = of_another_thread(situation, waits)
    {
        threads.explain(situation, &mut draft);
        return Some(draft);
    }
    draft.say(if in_their_calls {
        "None of these calls can complete before the other rank makes its own, and no rank can make \
         it before its current call completes."
    } else {
        "None of these calls can complete before the other rank makes its own."
    });
    draft.why.extend(cycle::further_on(situation, waits));
    draft.why.extend(cycle::other_victims(&draft));
    if let Some(omission) = omission {
        follow(&mut draft, omission);
        return Some(draft);
    }
    cycle::blame_fewer(&mut draft, situation, waits);
    advise_order(&mut draft);
    Some(draft)
}

/// A call of a cycle that the other rank makes in a different thread from the one that waits.
struct OfAnotherThread<'c> {
    wait: &'c Blocked,
    /// The rank that has not made it, and how many calls of the group it has made.
    rank: u32,
    made: u64,
}

/// The wait of a cycle for a call that another thread of the next rank makes, according to its calls in that group.
fn of_another_thread<'c>(
    situation: &Situation<'_>,
    waits: &'c [Blocked],
) -> Option<OfAnotherThread<'c>> {
    let next = waits.iter().cycle().skip(1);
    let found = waits.iter().zip(next).find_map(|(wait, next)| {
        let group = situation.model.group(wait.group);
        let member = group.members.get(&next.rank)?;
        let is_of_another = member.thread().is_some_and(|it| it != next.thread);
        let is_behind = member.issued > 0 && member.issued < wait.seq;
        // A backward acts for the thread that runs it.
        (is_of_another && is_behind && !wait.call.hidden).then_some(OfAnotherThread {
            wait,
            rank: next.rank,
            made: member.issued,
        })
    });
    found.filter(|_| cycle::are_in_their_calls(waits))
}

impl OfAnotherThread<'_> {
    fn explain(&self, situation: &Situation<'_>, draft: &mut Draft) {
        let Self { wait, rank, made } = self;
        let info = &situation.model.group(wait.group).info;
        let (group, call) = (words::group(info), words::call_at(&wait.call));
        let plural = if *made == 1 { "" } else { "s" };
        let clause = format!(
            "rank {rank} made {made} call{plural} of {group} in a separate thread, and rank {} waits for another one: {call}",
            wait.rank,
        );
        draft.say(format!(
            "Rank {rank} makes its calls of {group} in a different thread from the one that waits: that thread has made {made} \
             so far.",
        ));
        draft.mistake = Some(Mistake::new(&[], clause));
        draft.suspect = None;
        draft.next = vec![format!(
            "Make the same number of calls of {group} in these threads on every rank: compare what determines that number (the \
             length of a loop, a condition), and whether the thread of rank {rank} has ended.",
        )];
    }
}

/// Makes the cycle a consequence of the call that explains it.
fn follow(draft: &mut Draft, omission: &Omission) {
    let code = match omission.left_out {
        Some(_) => &catalogue::DD101,
        None => &catalogue::DD117,
    };
    draft.follows =
        Some(Key { code: code.code, place: KeyPlace::Join(omission.group, omission.seq) });
    draft.cause = None;
    draft.mistake = None;
    draft.next.clear();
}
