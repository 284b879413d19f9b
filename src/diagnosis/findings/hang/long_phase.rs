//! DD206 long-phase: ranks wait for long work, which may take longer than the group's timeout.
//!
//! The work is a phase that the program marked, or one that stacks show (a checkpoint, a
//! compilation, …). It is healthy if it ends before the waiting calls time out. A marked phase is
//! reported once three quarters of the timeout have passed, or at the stall limit if a phase as
//! long as the longest one before would exceed the timeout. Unmarked work is reported at the stall
//! limit.

use std::fmt::{self, Display};
use std::time::Duration;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Timestamp};

use crate::findings::draft::Draft;
use crate::findings::hang::absent::Absent;
use crate::findings::view::last_call_of;
use crate::model::{Group, Process};
use crate::situation::{Origin, Situation, Stall};
use crate::stacks;
use crate::timing::Timing;
use crate::words::{self, Ranks, number};

/// PyTorch's default timeout of a group (`torch.distributed.constants`).
const DEFAULT: Duration = Duration::from_secs(30 * 60);
/// PyTorch's default timeout of a group on NCCL.
const DEFAULT_NCCL: Duration = Duration::from_secs(10 * 60);

/// DD206: waits for long work that may exceed the group's timeout.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let by_origin = situation.stalls_by_origin();
    by_origin
        .iter()
        .filter_map(|(origin, stalls)| match origin {
            Origin::LongPhase(ranks) => draft(situation, ranks, stalls),
            _ => None,
        })
        .collect()
}

/// Timeout of a group's calls.
struct Timeout {
    length: Duration,
    /// It was not recorded: the default of the backend.
    assumed: bool,
}

impl Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&words::seconds(self.length))?;
        if self.assumed {
            f.write_str(" (the default of its backend)")?;
        }
        Ok(())
    }
}

/// Work that a rank does while others wait for it.
struct Work {
    /// "phase \"checkpoint\"", "a compilation".
    name: String,
    /// Start of a marked phase.
    since: Option<Timestamp>,
    /// Expected end of a marked phase: it takes as long as the longest earlier one of its name.
    ends: Option<Timestamp>,
    /// The program marked it.
    marked: bool,
}

fn draft(situation: &Situation<'_>, busy: &[u32], stalls: &[&Stall]) -> Option<Draft> {
    let stall = *stalls.first()?;
    let absent = Absent::of(situation, busy, stall)?;
    let process = *absent.processes.first()?;
    let work = work_of(process, &situation.model.timing)?;
    let timeout = timeout(situation.model.group(stall.group), &stall.waiting);
    let strikes = stall.since.plus(timeout.length);

    // The phase exceeds the timeout if it takes as long as its longest predecessor.
    let too_long = work.ends.is_some_and(|ends| ends > strikes);
    let speaks_at = if stall.timed_out.is_some() || too_long || !work.marked {
        situation.overdue_at(stall)
    } else if stall.failed {
        return None;
    } else {
        let most = stall.since.plus(timeout.length / 4 * 3);
        most.max(stall.since.plus(situation.config.stall_after))
    };
    if speaks_at > situation.until {
        return None;
    }

    let mut draft = absent.draft(situation, &catalogue::DD206, stalls, speaks_at);
    draft.root_confidence = absent.confidence();
    if stall.timed_out.is_none() && !too_long {
        draft.confidence = Confidence::Suspected;
    }
    // A report must not change with time alone: it states times of day, not durations until now.
    let strike = if stall.timed_out.is_some() {
        format!("gave up after {timeout}")
    } else if strikes > situation.until {
        format!("gives up at {}", words::clock(strikes))
    } else {
        format!("should have given up at {}", words::clock(strikes))
    };
    draft.summary = format!(
        "{} {} in {}; {}, which {strike}",
        Ranks(busy),
        absent.be(),
        work.name,
        absent.awaited(&draft.victims),
    );
    draft.why = vec![format!(
        "{} Its calls may take {timeout}, and {} {} waited since {}.",
        absent.needs_all(situation),
        Ranks(&draft.victims),
        number(&draft.victims, "has", "have"),
        words::clock(stall.since),
    )];
    draft.why.extend(work.since.map(|since| began(process, since)));
    draft.why.push(format!("Rank {}: {}.", process.rank?, last_call_of(situation.model, process)));
    draft.next = vec![format!(
        "Make no other rank wait for it: do it before the ranks first meet, or on every rank, or \
             in the background. If all must wait, give the group a longer timeout: {}.",
        if stall.group == situation.model.groups().next()?.id {
            "init_process_group(timeout=…)"
        } else {
            "new_group(timeout=…)"
        }
    )];
    Some(draft)
}

/// When the marked phase of a process began, and how long the longest earlier one took.
fn began(process: &Process, since: Timestamp) -> String {
    let phase = process.phases.first();
    let longest = phase.and_then(|phase| process.phase_lengths.get(&phase.name));
    let longest = longest.map(|longest| {
        format!("; the longest of that name before it took {}", words::seconds(*longest))
    });
    format!("The phase began at {}{}.", words::clock(since), longest.unwrap_or_default())
}

/// The marked phase of a process, or the long work that its stacks show.
fn work_of(process: &Process, timing: &Timing) -> Option<Work> {
    if let Some(phase) = process.phases.first() {
        let longest = process.phase_lengths.get(&phase.name);
        return Some(Work {
            name: format!("phase {:?}", phase.name),
            since: Some(phase.since),
            ends: longest.map(|longest| phase.since.plus(*longest)),
            marked: true,
        });
    }
    let outside = stacks::of(process, timing)?;
    Some(Work {
        name: outside.what.long_work()?.to_owned(),
        since: None,
        ends: None,
        marked: false,
    })
}

/// The shortest timeout among the waiting ranks, or the default of the backend.
fn timeout(group: &Group, waiting: &[u32]) -> Timeout {
    let configured = waiting.iter().filter_map(|rank| group.members.get(rank)?.timeout).min();
    let default = if group.info.backend.contains("nccl") { DEFAULT_NCCL } else { DEFAULT };
    Timeout { length: configured.unwrap_or(default), assumed: configured.is_none() }
}
