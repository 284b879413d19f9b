//! DD204 stuck-outside: a live rank makes no progress outside of collectives.
//!
//! Two captures of its stacks, some time apart, show it idle at one line. Its frames show what it
//! waits for ([`crate::stacks`]).

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use crate::findings::draft::Draft;
use crate::findings::stalls::absent::Absent;
use crate::findings::stalls::idle::{advice, blame_failed_thread, waits_for, where_it_is};
use crate::model::Process;
use crate::situation::{OriginKind, Situation, Stall, StallOrigin};
use crate::stacks::{self, Activity};
use crate::words::{self, Ranks, number};

/// DD204: ranks without progress that others wait for.
pub(crate) fn draft(
    situation: &Situation<'_>,
    from: &StallOrigin,
    stalls: &[&Stall],
) -> Option<Draft> {
    let StallOrigin { why: OriginKind::Stuck, ranks: still } = from else { return None };
    let absent = Absent::of_overdue(situation, still, stalls.iter().copied())?;
    let stuck: Vec<(&Process, Activity<'_>)> = absent
        .processes
        .iter()
        .filter_map(|process| Some((*process, stacks::activity(process, &situation.model.timing)?)))
        .collect();
    let (first, outside) = stuck.first()?;
    let what = outside.what;
    let seen_at = stuck.iter().map(|(_, outside)| outside.looks[1]).max()?;
    let evidence_at = situation.overdue_at(absent.stall).max(seen_at);

    let mut draft = absent.draft(situation, &catalogue::DD204, stalls, evidence_at);
    // Such work may legitimately take long.
    if stuck.iter().any(|(_, outside)| outside.what.long_work().is_some()) {
        draft.confidence = Confidence::Suspected;
    }
    draft.summary = format!(
        "{} {} stuck outside any collective: {}{}{}; {}",
        Ranks(still),
        absent.be(),
        if still.len() > 1 { format!("{} ", Ranks(&[first.rank?])) } else { "it ".into() },
        waits_for(what),
        words::at(outside.line),
        absent.awaited(&draft),
    );
    draft.say(format!(
        "{} {} alive, not in a collective, and {} not move: two dumps of {} stacks, some time \
         apart, show the same place and no processor time used.",
        absent.needs_all(situation),
        absent.are(),
        number(still, "does", "do"),
        number(still, "its", "their"),
    ));
    for (process, outside) in &stuck {
        draft.say(where_it_is(situation.model, process, outside)?);
    }
    if absent.may_end && !absent.is_past {
        draft.say(absent.gives_up(situation));
    }
    draft.next = advice(what, first);
    blame_holder(&mut draft, situation, first);
    if what.is_of_threads() {
        blame_failed_thread(&mut draft, first);
    }
    Some(draft)
}

/// Makes the rank that holds the file lock for which a rank waits the root cause: it holds the lock while it waits
/// for that rank, or does something else.
fn blame_holder(draft: &mut Draft, situation: &Situation<'_>, waiter: &Process) -> Option<()> {
    let on = stacks::blocked_on(situation.model, waiter).filter(|it| it.kind == "file-lock")?;
    let holder = situation.model.process_of(on.rank?).filter(|it| it.id != waiter.id)?;
    let (held_by, waits) = (holder.rank?, waiter.rank?);
    let mut inside = holder.threads.values();
    let call = inside.find_map(|it| it.inside(situation.now, &situation.model.timing));
    let meanwhile = match call {
        Some(call) => format!("waits in {}", words::call_at(call)),
        None => "does something else".to_owned(),
    };
    draft.summary = format!(
        "rank {held_by} holds a file lock for which rank {waits} waits, and {meanwhile}: {}",
        on.what
    );
    draft.say(format!("Rank {waits} can only go on once rank {held_by} releases the lock."));
    draft.next = vec![
        "Release file locks before a collective, or take them on every rank in the same order."
            .into(),
    ];
    let mut victims = std::mem::take(&mut draft.victims);
    victims.retain(|&rank| rank != held_by);
    victims.push(waits);
    victims.sort_unstable();
    victims.dedup();
    draft.blame([held_by], Confidence::Supported);
    draft.set_victims(victims);
    Some(())
}
