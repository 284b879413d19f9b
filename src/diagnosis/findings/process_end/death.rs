//! A process that was killed by a signal, aborted, or exited with an error status.

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Effect, Exit, Fact, Timestamp};

use crate::findings::draft::{Draft, KeyPlace, ProcessFact};
use crate::findings::stalls::message;
use crate::findings::view::last_call;
use crate::input::event::NodeFailure;
use crate::model::{Ending, Process, libc_signal};
use crate::situation::{OriginKind, Situation, Stall};
use crate::words::{self, Ranks};

/// Whether a process that aborted during interpreter exit, after its work, made the launcher kill
/// others. Such an abort is harmless otherwise.
fn ended_others(situation: &Situation<'_>, process: &Process) -> bool {
    let Some(end) = process.end.filter(|_| process.aborted_on_its_way_out()) else { return false };
    situation.model.processes.values().any(|other| {
        let signal = other.end.filter(|it| it.at >= end.at).and_then(|it| it.exit.signal);
        other.id != process.id
            && other.world == process.world
            && matches!(signal, Some(libc_signal::TERM | libc_signal::KILL))
            && other.uncaught().is_none()
    })
}

/// Whether the stall misses this process, not an earlier or later one of the same rank.
pub(crate) fn is_process(situation: &Situation<'_>, stall: &Stall, process: &Process) -> bool {
    let member = process.rank.and_then(|rank| situation.model.member(stall.group, rank));
    member.is_none_or(|member| member.id == process.id)
}

/// Whether ranks have waited for a process for the whole stall limit since it ended: no launcher ends them, and no
/// error of the transport does.
pub(crate) fn holds_up(situation: &Situation<'_>, stalls: &[&Stall], ended: Timestamp) -> bool {
    let waits_since = |stall: &Stall| stall.since.max(ended).plus(situation.config.stall_after);
    let is_waiting = |group, rank: &u32| situation.ending(group, *rank) == Some(Ending::None);
    stalls.iter().any(|stall| {
        stall.must_wait
            && !stall.failed
            && waits_since(stall) <= situation.until
            && stall.waiting.iter().any(|rank| is_waiting(stall.group, rank))
    })
}

/// The finding about a process that died; `None` if it did not.
pub(crate) fn draft(situation: &Situation<'_>, process: &Process) -> Option<Draft> {
    let has_died = matches!(situation.model.ending_of(process), Ending::Died(_));
    if !has_died && !ended_others(situation, process) {
        return None;
    }
    let (rank, end) = (process.rank?, process.end?);
    let exit = end.exit;
    let mut draft = Draft::new(&catalogue::DD201, KeyPlace::Process(rank, process.pid), end.at);
    draft.fact = Some(ProcessFact {
        rank,
        at: end.at,
        signal: exit.signal,
        from_communication: false,
        is_unexplained: process.is_from_text() && failed_node(process).is_none(),
    });
    draft.blame([rank], Confidence::Proved);
    describe_stalls(situation, process, rank, &mut draft);
    let how = how_it_ended(process, exit);
    let last = after_last_call(process);
    let waits = words::wait_for_it(&draft.victims);
    draft.summary = format!("rank {rank} {how}{last}{waits}");
    let unseen = failed_unseen(situation, process, &draft.victims);
    let is_inferred = !unseen.is_empty();
    if is_inferred {
        attribute_to_unseen(rank, unseen, &mut draft);
    }
    // A status that the program chose, such as that of a skipped test, is one event on all ranks.
    if let (None, Some(code)) = (exit.signal, exit.code)
        && draft.victims.is_empty()
    {
        draft.event = Some(format!("ended with status {code}"));
    }
    if let Some(failure) = failed_node(process) {
        // One event on all ranks of the node.
        draft.event = Some(how);
        draft.say(format!("{} reports the failure of node {}.", failure.by, failure.node));
        draft.advise(failure.next);
        return Some(draft);
    }
    let process_id = match process.pid {
        0 => String::new(),
        pid => format!("process {pid} of "),
    };
    let source =
        if process.is_from_text() { "The log states" } else { "The operating system reports" };
    draft.say(format!(
        "{source} that {process_id}rank {rank} {how}; no exception was recorded before it.",
    ));
    draft.why.extend(of_worker(process, rank));
    draft.advise(advice(process, rank, exit));
    // An unknown status, or an end inferred from that of another rank, is not proved.
    if is_inferred || exit.signal.is_none() && exit.code.is_none() {
        return Some(draft);
    }
    Some(draft.observed(vec![Fact::Ended {
        rank,
        pid: process.pid,
        code: exit.code.filter(|_| exit.signal.is_none()),
        signal: exit.signal,
    }]))
}

/// Adds the ranks that wait for this one, and their calls.
fn describe_stalls(situation: &Situation<'_>, process: &Process, rank: u32, draft: &mut Draft) {
    let stalls: Vec<&Stall> = situation
        .stalls_by_origin()
        .into_iter()
        .filter(|(origin, _)| origin.why == OriginKind::Died && origin.ranks.contains(&rank))
        .flat_map(|(_, stalls)| stalls)
        .filter(|stall| is_process(situation, stall, process))
        .collect();
    draft.victims = Stall::victims(&stalls);
    if process.end.is_some_and(|end| holds_up(situation, &stalls, end.at)) {
        draft.effect = Effect::Blocks;
    }
    match stalls.first() {
        Some(stall) => message::describe_stall(situation, stall, draft),
        None => draft.per_rank = vec![last_call(rank, process)],
    }
}

/// A sentence on what the engine calls the process of a rank.
pub(crate) fn of_worker(process: &Process, rank: u32) -> Option<String> {
    let name = process.worker.as_ref()?;
    Some(format!("The log calls the process of rank {rank} {name}."))
}

/// The failure of its node, if nothing else is known of the end of a process.
fn failed_node(process: &Process) -> Option<&NodeFailure> {
    let exit = process.end?.exit;
    let failure = process.node_failure.as_deref();
    failure.filter(|_| exit.signal.is_none() && exit.code.is_none())
}

/// "was killed by SIGKILL", "ended with status 3".
fn how_it_ended(process: &Process, exit: Exit) -> String {
    match (exit.signal, exit.code) {
        (Some(signal), _) if process.aborted_on_its_way_out() => {
            format!("was killed by {} while exiting", libc_signal::name(signal))
        }
        (None, None) if let Some(failure) = failed_node(process) => {
            format!("ended when node {} failed", failure.node)
        }
        (None, None) if process.is_attached() => "has ended: it has no process on its host".into(),
        _ => ended(exit),
    }
}

/// The same of a process of which the status alone is known.
pub(crate) fn ended(exit: Exit) -> String {
    match (exit.signal, exit.code) {
        (Some(signal), _) => format!("was killed by {}", libc_signal::name(signal)),
        (None, Some(code)) => format!("ended with status {code}"),
        (None, None) => "ended with an unknown status".into(),
    }
}

/// The last call of a process, for sentences about its end: " after all_reduce #23 at train.py:9".
pub(crate) fn after_last_call(process: &Process) -> String {
    match &process.last_call {
        Some(call) => {
            let is_inside = process.entered().any(|it| it.id == call.id);
            let relation = if is_inside { "in" } else { "after" };
            format!(" {relation} {}", words::call_at(call))
        }
        // Logs do not contain all calls.
        None if process.is_from_text() || process.is_attached() => String::new(),
        None => " before its first call".into(),
    }
}

/// Ranks of which no process was seen, if the launcher probably killed this process because one of
/// them failed before all ranks had joined.
fn failed_unseen(situation: &Situation<'_>, process: &Process, victims: &[u32]) -> Vec<u32> {
    let signal = process.end.and_then(|end| end.exit.signal);
    let asked = matches!(signal, Some(libc_signal::TERM | libc_signal::KILL));
    // Logs do not show who never joined.
    if !asked || !victims.is_empty() || process.is_from_text() {
        return Vec::new();
    }
    let mut unseen = situation.model.unseen();
    // Ranks whose processes were seen have a known end.
    unseen.retain(|&rank| situation.model.not_joined(rank).is_empty());
    unseen
}

/// Makes the unseen ranks the root cause, and the killed rank their victim.
fn attribute_to_unseen(rank: u32, unseen: Vec<u32>, draft: &mut Draft) {
    let event = "probably failed before joining: the launcher ended the other ranks";
    draft.summary = format!("{} {event}", Ranks(&unseen));
    draft.event = Some(event.into());
    draft.victims = vec![rank];
    draft.blame(unseen, Confidence::Suspected);
}

fn advice(process: &Process, rank: u32, exit: Exit) -> String {
    match exit.signal {
        Some(libc_signal::KILL) => {
            let host = match &*process.host {
                "" => String::new(),
                host => format!(" Host of the process: {host}."),
            };
            format!("{}{host}", words::AFTER_SIGKILL)
        }
        Some(libc_signal::TERM | libc_signal::INT | libc_signal::HUP | libc_signal::QUIT) => {
            "Find out what sent the signal: the launcher after another rank failed, a batch system, or a user.".into()
        }
        Some(_) if process.aborted_on_its_way_out() => {
            "Its program had already ended: something aborted while the interpreter shut down, such as a function registered with atexit, a destructor, or a thread that was still running. Run it with PYTHONFAULTHANDLER=1, which prints the stacks of that moment.".into()
        }
        Some(_) => words::AFTER_A_CRASH.into(),
        None if exit.code.is_none() => format!(
            "Find out how rank {rank} ended: the kernel's log (dmesg) and the state of its host may state it."
        ),
        None => format!("Check the output of rank {rank}: it exited with that status by itself."),
    }
}
