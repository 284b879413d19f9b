//! DD206 long-phase: ranks wait for long work, which may take longer than the group's timeout.
//!
//! The work is a phase that the program marked, or one that stacks show (a checkpoint, a
//! compilation, …). It is healthy if it ends before the waiting calls time out. A marked phase is
//! reported once three quarters of the timeout have passed, or at the stall limit if a phase as
//! long as the longest one before would exceed the timeout. Unmarked work is reported at the stall
//! limit, as is a wait that is known to end in time, such as a sleep. Once a watchdog has aborted
//! the waiting calls, the job cannot go on.

use std::time::Duration;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Effect, Severity, Timestamp};

use crate::findings::draft::Draft;
use crate::findings::stalls::absent::Absent;
use crate::findings::stalls::idle;
use crate::findings::stalls::timeout::limit;
use crate::findings::view::last_call_of;
use crate::situation::{OriginKind, Situation, Stall, StallOrigin};
use crate::stacks;
use crate::words::{self, Ranks};

/// DD206: waits for long work that may exceed the group's timeout.
pub(crate) fn draft(
    situation: &Situation<'_>,
    from: &StallOrigin,
    stalls: &[&Stall],
) -> Option<Draft> {
    let StallOrigin { why: OriginKind::LongPhase, ranks: busy } = from else { return None };
    let stall = *stalls.first()?;
    let absent = Absent::new(situation, busy, stall)?;
    let process = *absent.processes.first()?;
    let marked = process.phases.first();
    let outside = stacks::activity(process, &situation.model.timing);
    let wait =
        outside.as_ref().filter(|_| marked.is_none()).and_then(|it| Some((it, it.waits_until?)));
    let does = match (marked, wait) {
        (Some(phase), _) => format!("{} in phase {:?}", absent.copula(), phase.name),
        (None, Some((outside, end))) => format!(
            "{}{} until {}",
            idle::wait_of(outside.what, busy, absent.is_past),
            words::at(outside.line),
            words::clock(end)
        ),
        (None, None) => format!("{} in {}", absent.copula(), outside.as_ref()?.what.long_work()?),
    };
    let longest = marked.and_then(|phase| process.phase_lengths.get(&phase.name));
    let group = situation.model.group(stall.group);
    let (length, timeout) = limit(group, &stall.waiting);
    let strikes = stall.since.plus(length);

    // The phase exceeds the timeout if it takes as long as its longest predecessor.
    let ends = marked.zip(longest).map(|(phase, longest)| phase.since.plus(*longest));
    let too_long = ends.is_some_and(|ends| ends > strikes);
    let speaks_at = if stall.timed_out.is_some() || too_long || marked.is_none() {
        situation.overdue_at(stall)
    } else if stall.failed {
        return None;
    } else {
        let most = stall.since.plus(length / 4 * 3);
        most.max(stall.since.plus(situation.config.stall_after))
    };
    if speaks_at > situation.until {
        return None;
    }

    let mut draft = absent.draft(situation, &catalogue::DD206, stalls, speaks_at);
    if stall.timed_out.is_none() && !too_long {
        draft.confidence = Confidence::Suspected;
    }
    let is_aborted = is_aborted(situation, stall, strikes);
    if is_aborted {
        draft.severity = Severity::Error;
        draft.effect = Effect::Blocks;
        draft.confidence = Confidence::Supported;
        draft.root_confidence = Confidence::Supported;
    }
    // A report must not change with time alone: it states times of day, not durations until now.
    let strike = if stall.timed_out.is_some() {
        format!("gave up after {timeout}")
    } else if strikes > situation.until {
        format!("gives up at {}", words::clock(strikes))
    } else if is_aborted {
        format!("timed out at {}", words::clock(strikes))
    } else {
        format!("should have given up at {}", words::clock(strikes))
    };
    draft.summary = format!("{} {does}; {}, which {strike}", Ranks(busy), absent.awaited(&draft));
    draft.say(format!(
        "{} Its timeout is {timeout}, and {} waited since {}.",
        absent.needs_all(situation),
        Ranks(&draft.victims).with("has", "have"),
        words::clock(stall.since),
    ));
    if is_aborted {
        draft.say(format!(
            "At the timeout, the watchdog of {} aborts the call: the job cannot continue even after the work ends.",
            words::group(&group.info)
        ));
    }
    draft.why.extend(marked.map(|phase| {
        let longest = longest
            .map(|longest| {
                format!(
                    "; the longest earlier phase of that name took {}",
                    words::seconds(*longest)
                )
            })
            .unwrap_or_default();
        format!("The phase began at {}{longest}.", words::clock(phase.since))
    }));
    draft.say(format!("Rank {}: {}.", process.rank?, last_call_of(situation.model, process)));
    if wait.is_some() {
        draft.say(
            "That wait ends before the call times out: the rank is not stuck if it then continues.",
        );
        draft.advise(
            "If the wait is intended, no change is needed. Otherwise wait on every rank at the same point, or do not wait \
             between collectives: the other ranks are idle until it ends.",
        );
        return Some(draft);
    }
    draft.advise(format!(
        "Do not make other ranks wait for it: do it on every rank, or in the background. If all must wait, give the group a \
         timeout that is longer than the work: {}.",
        if stall.group == situation.model.groups().next()?.id {
            "init_process_group(timeout=…)"
        } else {
            "new_group(timeout=…)"
        }
    ));
    Some(draft)
}

/// Whether a watchdog has aborted the calls of the stall, whose timeout passed at `strikes`.
fn is_aborted(situation: &Situation<'_>, stall: &Stall, strikes: Timestamp) -> bool {
    /// A watchdog looks at the calls several times a second.
    const SLACK: Duration = Duration::from_secs(2);
    let group = situation.model.group(stall.group);
    let mut waiting = situation.model.members(stall.group, &stall.waiting);
    group.backend.has_watchdog
        && strikes.plus(SLACK) <= situation.until
        && waiting.all(|(_, process)| process.lost == 0 && process.has_watchdog())
}
