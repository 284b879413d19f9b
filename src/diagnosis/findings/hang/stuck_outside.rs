//! DD204 stuck-outside: a live rank makes no progress outside of collectives.
//!
//! Two captures of its stacks, some time apart, show it idle at one line. Its frames show what it
//! waits for ([`crate::stacks`]).

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use crate::findings::draft::Draft;
use crate::findings::stalls::absent::Absent;
use crate::findings::stalls::idle::{advice, lead_with_failed_thread, waits_for, where_it_is};
use crate::guards::{self, HeldTwice};
use crate::model::Process;
use crate::situation::{LockHolder, OriginKind, Situation, Stall, StallOrigin};
use crate::source::cause::Mistake;
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
        absent.copula(),
        if still.len() > 1 { format!("{} ", Ranks(&[first.rank?])) } else { "it ".into() },
        waits_for(what),
        words::at(outside.line),
        absent.awaited(&draft),
    );
    draft.say(format!(
        "{} {} alive, not in a collective, and {} not move: two dumps of {} stacks, some time \
         apart, show the same place and no CPU time used.",
        absent.needs_all(situation),
        absent.are(),
        if absent.is_past { "did" } else { number(still, "does", "do") },
        number(still, "its", "their"),
    ));
    for (process, outside) in &stuck {
        draft.say(where_it_is(situation.model, process, outside)?);
    }
    draft.why.extend(condition(situation, &absent));
    if absent.may_end && !absent.is_past {
        draft.say(absent.gives_up(situation));
    }
    draft.next = advice(what, first);
    blame_holder(&mut draft, situation, &absent);
    if what.is_of_threads() {
        lead_with_held_lock(&mut draft, first);
        lead_with_failed_thread(&mut draft, first, outside);
    }
    Some(draft)
}

/// Leads with the lock that the rank waits for and holds itself, if the source shows that.
fn lead_with_held_lock(draft: &mut Draft, process: &Process) {
    let Some((rank, lock)) = process.rank.zip(guards::held_twice(process)) else { return };
    let HeldTwice { name, taken, ref held } = lock;
    let line = words::source_line(taken);
    let clause = format!(
        "rank {rank} acquires `{name}` at {line} although it has held it since {}",
        words::source_line(held)
    );
    draft.mistake = Some(Mistake::new(&[rank], clause));
    draft.say(format!(
        "The thread that waits for `{name}` is already inside a `with {name}` block ({}), which it cannot leave.",
        words::source_line(held),
    ));
    draft.next = vec![format!(
        "Release `{name}` before the call that leads to {line}, or make it a threading.RLock, which the thread that holds \
         it can acquire again."
    )];
}

/// The test on the rank that leads only these ranks to the lines where they are stuck.
fn condition(situation: &Situation<'_>, absent: &Absent<'_>) -> Option<String> {
    let stall = absent.stall;
    let process = *absent.processes.first()?;
    let (line, guard) = guards::led_to(situation.model, process, &absent.ranks, &stall.waiting)?;
    Some(guards::about(&line, guard) + ".")
}

/// Makes the rank that holds the file lock for which all of these ranks wait the root cause: it holds the lock while it
/// waits for them, or does something else.
fn blame_holder(draft: &mut Draft, situation: &Situation<'_>, absent: &Absent<'_>) -> Option<()> {
    let holders: Vec<LockHolder<'_>> = absent
        .processes
        .iter()
        .map(|it| situation.lock_holder(absent.stall, it))
        .collect::<Option<_>>()?;
    let (holder, others) = holders.split_first()?;
    let held_by = holder.process.rank?;
    if others.iter().any(|it| it.process.id != holder.process.id) {
        return None;
    }
    let is_same = holders.iter().all(|it| it.is_same);
    let mut threads = holder.process.threads.values();
    let inside = || threads.find_map(|it| it.inside(situation.now, &situation.model.timing));
    let waits = absent.stall.waiting.contains(&held_by);
    let mut calls = situation.calls(absent.stall).into_iter();
    let awaited = calls.find(|(rank, _)| waits && *rank == held_by).map(|(_, it)| &it.call);
    let meanwhile = match awaited.or_else(inside) {
        Some(call) => format!("waits in {}", words::call_at(call)),
        None => "does something else".to_owned(),
    };
    let waiters = Ranks(&absent.ranks);
    let (which, wait) = (&holder.lock, number(&absent.ranks, "waits", "wait"));
    if is_same {
        draft.summary = format!(
            "rank {held_by} holds a file lock that {waiters} {wait} for, and {meanwhile}: {which}"
        );
        draft.say(format!(
            "{} can continue only once rank {held_by} releases the lock.",
            words::begin(waiters)
        ));
    } else {
        draft.summary = format!(
            "rank {held_by} holds a file lock and {meanwhile}, while {waiters} {wait} for a file lock: {which}"
        );
        draft.say(format!(
            "If that is the lock that {waiters} {wait} for, none of them can continue."
        ));
    }
    draft.next = vec![
        "Release the file lock before the collective: move the call out of the block that holds the lock."
            .into(),
    ];
    let mut victims = std::mem::take(&mut draft.victims);
    victims.retain(|&rank| rank != held_by);
    victims.extend(&absent.ranks);
    victims.sort_unstable();
    victims.dedup();
    let confidence = if is_same { Confidence::Supported } else { Confidence::Suspected };
    draft.blame([held_by], confidence);
    draft.set_victims(victims);
    Some(())
}
