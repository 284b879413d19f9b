//! DD203 rank-stopped: ranks wait for a process that is stopped by a signal, a debugger or a frozen
//! container.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Fact, Severity, Timestamp};

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::stalls::message;
use crate::situation::{Inside, OriginKind, Situation, Stall, StallOrigin};
use crate::words::{self, Ranks};

/// DD203: stopped processes that others wait for.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let mut drafts = situation.by_origin(|origin, stalls| match origin {
        StallOrigin { why: OriginKind::Stopped, .. } => {
            draft(situation, stalls, Timestamp::default())
        }
        _ => None,
    });
    for inside in &situation.inside {
        let (stall, due) = stopped_inside(situation, inside);
        let known = drafts.iter().any(|draft| draft.root == stall.origin.ranks);
        if !known && due <= situation.now {
            drafts.extend(draft(situation, &[&stall], due));
        }
    }
    drafts
}

/// The stall that the stopped members of a collective cause which all ranks have entered, and the
/// time from which it counts: the collective may complete if they had done their part before.
fn stopped_inside(situation: &Situation<'_>, inside: &Inside) -> (Stall, Timestamp) {
    let model = situation.model;
    let members = model.group(inside.group).members.keys();
    let stopped: Vec<(u32, Timestamp)> = model
        .members(inside.group, members)
        .filter(|(_, process)| process.is_stopped())
        .map(|(rank, process)| (rank, process.state_at))
        .collect();
    let last = stopped.iter().map(|(_, at)| *at).max().unwrap_or_default();
    let stall = Stall {
        group: inside.group,
        seq: inside.seq,
        waiting: inside.waiting.clone(),
        must_wait: true,
        since: inside.since,
        origin: StallOrigin {
            why: OriginKind::Stopped,
            ranks: stopped.into_iter().map(|(rank, _)| rank).collect(),
        },
        ..Stall::default()
    };
    let grace = model.timing.stopped_member_grace;
    (stall, last.max(inside.since).plus(grace))
}

/// The finding about stalls with the same stopped ranks as their origin.
fn draft(situation: &Situation<'_>, stalls: &[&Stall], due: Timestamp) -> Option<Draft> {
    let stall = *stalls.first()?;
    let stopped = &stall.origin.ranks[..];
    let first = *stopped.first()?;
    let process = situation.model.member(stall.group, first)?;
    // A process that is stopped and continued repeatedly is DD603, unless this stop lasts.
    let goes_on_at = |rank: &u32| {
        let process = situation.model.member(stall.group, *rank)?;
        process.pace.goes_on_at()
    };
    if stopped.iter().all(|rank| goes_on_at(rank).is_some_and(|at| at > situation.now)) {
        return None;
    }
    let mut living =
        situation.model.processes.values().filter(|process| !process.has_ended()).peekable();
    let all_stopped = living.peek().is_some() && living.all(|process| process.is_stopped());

    let mut draft = Draft::new(
        &catalogue::DD203,
        KeyPlace::Ranks(stopped.to_vec()),
        process.state_at.max(stall.since).max(due),
    );
    if all_stopped {
        // All ranks are stopped, most likely on purpose.
        draft.severity = Severity::Note;
    }
    draft.blame(stopped, Confidence::Proved);
    draft.set_victims(Stall::victims(stalls));
    let calls = situation.calls(stall);
    let (_, waiting) = calls.first()?;
    message::describe_stall(situation, stall, &mut draft);
    draft.summary = format!(
        "{} stopped; {} in {}",
        Ranks(stopped).with("is", "are"),
        draft.waits_for_root(),
        words::call(&waiting.call),
    );
    draft.say(format!(
        "The operating system reports process {} of rank {first} as stopped: by a signal (SIGSTOP, SIGTSTP), a debugger or a frozen container. It cannot make its next call.",
        process.pid
    ));
    draft.advise(format!(
        "Resume it: kill -CONT {}, or detach the debugger, or thaw the container. Host: {}.",
        process.pid, process.host
    ));
    Some(draft.observed(vec![Fact::Stopped { rank: first, pid: process.pid }]))
}
