//! DD506 host-memory: memory of a host, control group or /dev/shm runs out, or has run out and the
//! kernel has killed a rank.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Effect, Fact, Severity, Timestamp};

use crate::findings::draft::{Draft, KeyPlace, ProcessFact};
use crate::findings::memory::growers;
use crate::findings::process_end::death;
use crate::model::{Ending, Process, RoomKind, libc_signal};
use crate::situation::Situation;
use crate::trends::growth::{self, Filling, Grower, GrowsIn};
use crate::words::{self, Ranks};

/// Maximum time between the ends of processes that may share one count of kills.
const MOMENTS: Duration = Duration::from_secs(10);

/// DD506: the memory that will run out first, of a host whose ranks do not grow: something else
/// fills it.
pub(crate) fn forecast(situation: &Situation<'_>) -> Option<Draft> {
    let (process, Filling { room, growth, end, .. }) = first_to_run_out(situation)?;
    let beside = situation.model.processes.values().filter(|it| it.host == process.host);
    let ranks: BTreeSet<u32> = beside.filter_map(|other| other.rank).collect();
    let mut draft = Draft::new(&catalogue::DD506, KeyPlace::Job, growth.at);
    draft.victims = ranks.into_iter().collect();
    let what = match room.kind {
        RoomKind::Shm => format!("/dev/shm of host {}", process.host),
        RoomKind::Cgroup => format!("the control group of the ranks on host {}", process.host),
        RoomKind::Host | RoomKind::AddressSpace => format!("host {}", process.host),
    };
    draft.summary = format!(
        "{what} {}: it fills by {} with every step",
        growers::runs_out(situation, "memory", &end),
        words::bytes(growth.trend.slope as u64)
    );
    draft.say(format!(
        "From step {} to step {} its use rose from {} to {} of {}.",
        growth.steps.0,
        growth.steps.1,
        words::bytes(growth.bytes.0),
        words::bytes(growth.bytes.1),
        words::bytes(room.limit)
    ));
    if room.kind == RoomKind::Cgroup {
        draft.why.extend(growers::held(&process.memory));
    }
    let of_host = growers_of_host(situation, process);
    let mapping: Vec<&Grower<'_>> = of_host.filter(|it| it.place == GrowsIn::Shm).collect();
    describe_source(&mapping, &mut draft);
    Some(draft)
}

/// The memory that runs out first on hosts whose ranks do not grow, and one of the processes there.
///
/// /dev/shm counts also while ranks grow, if they grow in their own memory, or by mapping files of
/// /dev/shm that fill it before they reach another limit.
fn first_to_run_out<'a>(situation: &Situation<'a>) -> Option<(&'a Process, Filling)> {
    // One process per host suffices: all of them sample the same memory.
    let mut hosts: BTreeMap<&str, &Process> = BTreeMap::new();
    for process in situation.model.processes.values() {
        hosts.entry(&process.host).or_insert(process);
    }
    let timing = &situation.model.timing;
    let filling = hosts
        .into_values()
        .flat_map(|process| growth::filling(process, timing).map(move |filling| (process, filling)))
        .filter(|(process, filling)| {
            let is_shm = filling.room.kind == RoomKind::Shm;
            let is_no_matter = |it: &Grower<'_>| matches!(it.place, GrowsIn::Own | GrowsIn::Shm);
            growers_of_host(situation, process).all(|it| is_shm && is_no_matter(it))
        });
    filling.min_by(|(_, a), (_, b)| a.end.steps.total_cmp(&b.end.steps))
}

/// Ranks on the host of the process whose host memory grows.
fn growers_of_host<'a>(
    situation: &'a Situation<'_>,
    process: &'a Process,
) -> impl Iterator<Item = &'a Grower<'a>> {
    situation.growers.iter().filter(|it| it.device.is_none() && it.process.host == process.host)
}

/// Adds what fills the memory: ranks that map files of /dev/shm, or else something else.
fn describe_source(mapping: &[&Grower<'_>], draft: &mut Draft) {
    if mapping.is_empty() {
        draft.say(
            "The ranks themselves do not grow: their child processes (data-loader workers), files in \
             /dev/shm or other processes do.",
        );
        draft.advise(
            "Find what else grows: `ps -e --sort=-rss -o pid,ppid,rss,args`, `ls -lS /dev/shm`.",
        );
        return;
    }
    draft.root = mapping.iter().map(|grower| grower.rank).collect();
    draft.root.sort_unstable();
    draft.root_confidence = Confidence::Supported;
    draft.victims.retain(|rank| !draft.root.contains(rank));
    for grower in mapping {
        draft.say(growers::went(grower));
    }
    draft.why.extend(mapping.first().and_then(|it| growers::shared(it)));
    draft.advise(format!(
        "Find what {} mapped from step to step: tensors in shared memory \
         (`share_memory_`, what came through a queue of `torch.multiprocessing`), files of \
         /dev/shm (`ls -lS /dev/shm`).",
        Ranks(&draft.root).with("keeps", "keep"),
    ));
}

/// Evidence that the kernel killed a process because memory ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kill {
    /// Kills that were counted around the end of the process.
    kills: u64,
    /// They were counted in its control group, not on its host.
    in_cgroup: bool,
    /// Number of ranks, this one included, that these kills may have ended.
    ranks: u64,
}

fn kill(situation: &Situation<'_>, process: &Process) -> Option<Kill> {
    let (kills, in_cgroup) = counted(situation, process)?;
    let at = process.end?.at;
    // Ends of the other processes that these kills may have ended.
    let others: Vec<Timestamp> = situation
        .model
        .processes
        .values()
        .filter(|other| other.id != process.id && other.host == process.host)
        .filter(|other| counted(situation, other).is_some())
        .filter_map(|other| other.end.map(|end| end.at))
        .filter(|&end| end <= at && at.since(end) <= MOMENTS)
        .collect();
    // The kernel kills first, then a launcher ends the other ranks: earlier ends account for kills.
    let before = others.iter().filter(|&&end| end < at).count() as u64;
    if before >= kills {
        return None;
    }
    let ranks = 1 + others.len() as u64;
    Some(Kill { kills, in_cgroup, ranks })
}

/// Kills that were counted around the end of a process which SIGKILL ended, and whether they were
/// counted in its control group.
fn counted(situation: &Situation<'_>, process: &Process) -> Option<(u64, bool)> {
    let Ending::Died(exit) = situation.model.ending_of(process) else { return None };
    let kills = process.end?.oom_kills;
    let found = match kills.in_cgroup {
        Some(kills) => (kills, true),
        None => (kills.on_host?, false),
    };
    (exit.signal == Some(libc_signal::KILL) && found.0 > 0).then_some(found)
}

/// DD506: a rank that the kernel killed because memory ran out.
pub(crate) fn killed(situation: &Situation<'_>, process: &Process) -> Option<Draft> {
    let kill = kill(situation, process)?;
    let rank = process.rank?;
    let end = process.end?;
    let place = KeyPlace::Process(rank, process.pid);
    let mut draft = Draft::new(&catalogue::DD506, place, end.at);
    draft.root = vec![rank];
    draft.take_calls(death::draft(situation, process)?);
    draft.severity = Severity::Error;
    draft.effect = Effect::Crashes;
    draft.fact = Some(ProcessFact {
        rank,
        at: end.at,
        // A signal would let the judge attribute the end to the launcher.
        signal: None,
        from_communication: false,
        is_unexplained: false,
    });
    let is_sure = kill.in_cgroup && kill.ranks <= kill.kills;
    draft.root_confidence = match (is_sure, kill.ranks <= kill.kills) {
        (true, _) => Confidence::Proved,
        (false, true) => Confidence::Supported,
        (false, false) => Confidence::Suspected,
    };
    let last = death::after_last_call(process);
    let waits = words::wait_for_it(&draft.victims);
    draft.summary = if process.is_from_text() {
        // A launcher may have killed it: Ray does.
        format!("rank {rank} was killed for lack of memory{waits}")
    } else {
        format!("the kernel killed rank {rank} because memory ran out{last}{waits}")
    };
    draft.why = why_killed(process, kill);
    draft.advise(format!(
        "Find what rank {rank} holds in host memory, and reduce it. If it needs that much in every step, {}.",
        if kill.in_cgroup && process.memory.cgroup_limit.is_some() {
            "raise the limit of the control group"
        } else {
            "run fewer or smaller processes on that host"
        }
    ));
    if !is_sure {
        return Some(draft);
    }
    Some(draft.observed(vec![
        Fact::Ended { rank, pid: process.pid, code: None, signal: end.exit.signal },
        Fact::OomKills { rank, pid: process.pid, kills: kill.kills, killed_ranks: kill.ranks },
    ]))
}

/// The count of the kernel, and the memory that the process used.
fn why_killed(process: &Process, kill: Kill) -> Vec<String> {
    if process.is_from_text() {
        return vec!["The log states that it was killed for lack of memory.".into()];
    }
    let place = if kill.in_cgroup { "in its control group" } else { "on its host" };
    let mut why = vec![format!(
        "When it died, the kernel's count of out-of-memory kills {place} rose by {}.",
        kill.kills
    )];
    if kill.ranks > kill.kills {
        why.push(format!(
            "{} ranks were killed at that time; which of them the kernel killed is unknown.",
            kill.ranks
        ));
    }
    let memory = &process.memory;
    if let Some((rss, left)) = memory.rss.zip(growers::left(memory)) {
        let held = words::bytes(rss.latest);
        why.push(format!("It held {held} when that was last measured{left}."));
    }
    if kill.in_cgroup {
        why.extend(growers::held(memory));
    }
    why
}
