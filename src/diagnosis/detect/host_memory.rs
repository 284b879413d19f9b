//! DD506 host-memory: the host, the control group or /dev/shm is about to run out, or the kernel killed
//! a rank for it.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{
    Certificate, CertificateKind, Confidence, Effect, Fact, Severity, Timestamp,
};

use super::{About, Detector, Draft, Key, KeyPlace, ProcessFact, order};
use super::{oom_forecast, rank_died};
use crate::diagnosis::growth::{self, Grower, GrowsIn};
use crate::diagnosis::model::{Ending, Process, RoomKind, libc_signal};
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words::{self, Ranks, number};

/// Ends that are so close belong to the same kills.
const MOMENTS: Duration = Duration::from_secs(10);

static ABOUT: About = About {
    code: &catalogue::DD506,
    order: order::MEMORY,
};

/// The same as a forecast, which is told only while nothing goes wrong.
static FORECAST: About = About {
    code: &catalogue::DD506,
    order: order::HINT,
};

/// DD506: memory of the host.
pub(super) struct HostMemory;

impl Detector for HostMemory {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let processes = situation.model.processes.values();
        let killed = processes.filter_map(|process| killed(situation, process));
        killed.chain(forecast(situation)).collect()
    }
}

/// What fills steadily though no rank of it grows: by whatever else takes of it. /dev/shm also where ranks
/// grow, if that is by what they map of it, and it ends first; or if it is known to be something else.
fn forecast(situation: &Situation<'_>) -> Option<Draft> {
    let growers = &situation.growers;
    // One of a host sees it for all.
    let mut hosts: BTreeMap<&str, &Process> = BTreeMap::new();
    for process in situation.model.processes.values() {
        if ended_well_if_at_all(process) {
            hosts.entry(&process.host).or_insert(process);
        }
    }
    let of_host = |process: &Process| {
        let of_host = growers
            .iter()
            .filter(|it| it.device.is_none() && it.process.host == process.host);
        of_host.collect::<Vec<&Grower<'_>>>()
    };
    let timing = &situation.model.timing;
    let filling = hosts
        .into_values()
        .flat_map(|process| growth::filling(process, timing).map(move |filling| (process, filling)))
        .filter(|(process, (room, ..))| {
            let is_shm = room.kind == RoomKind::Shm;
            let is_no_matter = |it: &Grower<'_>| matches!(it.place, GrowsIn::Own | GrowsIn::Shm);
            of_host(process)
                .into_iter()
                .all(|it| is_shm && is_no_matter(it))
        });
    let (process, (room, growth, end)) =
        filling.min_by(|(_, (.., a)), (_, (.., b))| a.steps.total_cmp(&b.steps))?;
    let ranks: Vec<u32> = situation
        .model
        .processes
        .values()
        .filter(|other| other.host == process.host && ended_well_if_at_all(other))
        .filter_map(|other| other.rank)
        .collect();
    let mut draft = Draft::new(&FORECAST, KeyPlace::Job, growth.at);
    draft.confidence = Confidence::Supported;
    draft.victims = ranks;
    draft.victims.sort_unstable();
    draft.victims.dedup();
    let what = match room.kind {
        RoomKind::Shm => format!("/dev/shm of host {}", process.host),
        RoomKind::Cgroup => format!("the control group of the ranks on host {}", process.host),
        RoomKind::Host | RoomKind::AddressSpace => format!("host {}", process.host),
    };
    draft.summary = format!(
        "{what} runs out of memory in about {}: it fills by {} with every step",
        oom_forecast::steps(&end),
        words::bytes(growth.trend.slope as u64)
    );
    draft.why = vec![format!(
        "From step {} to step {} it went from {} to {} of {}.",
        growth.steps.0,
        growth.steps.1,
        words::bytes(growth.bytes.0),
        words::bytes(growth.bytes.1),
        words::bytes(room.limit)
    )];
    if room.kind == RoomKind::Cgroup {
        draft.why.extend(oom_forecast::held(&process.memory));
    }
    let of_host = of_host(process).into_iter();
    let mapping: Vec<&Grower<'_>> = of_host.filter(|it| it.place == GrowsIn::Shm).collect();
    match &mapping[..] {
        [] => {
            draft.why.push(
                "The ranks themselves do not grow by it: it is their children (data loader workers), \
                 files in /dev/shm, or somebody else."
                    .into(),
            );
            draft.next.push(
                "Look for what grows beside the ranks: `ps -e --sort=-rss -o pid,ppid,rss,args`, `ls -lS \
                 /dev/shm`."
                    .into(),
            );
        }
        mapping => {
            draft.root = mapping.iter().map(|grower| grower.rank).collect();
            draft.root.sort_unstable();
            draft.root_confidence = Confidence::Supported;
            draft.victims.retain(|rank| !draft.root.contains(rank));
            for grower in mapping {
                draft.why.push(oom_forecast::went(grower));
            }
            draft
                .why
                .extend(mapping.first().and_then(|it| oom_forecast::shared(it)));
            draft.next.push(format!(
                "Look for what {} {} mapped from step to step: tensors in shared memory \
                 (`share_memory_`, what came through a queue of `torch.multiprocessing`), files of \
                 /dev/shm (`ls -lS /dev/shm`).",
                Ranks(&draft.root),
                number(&draft.root, "keeps", "keep"),
            ));
        }
    }
    Some(draft)
}

/// What was filling when a job was over would have gone on; of one that failed, its end is told.
fn ended_well_if_at_all(process: &Process) -> bool {
    matches!(process.ending(), Ending::None | Ending::InOrder)
}

/// How sure it is that the kernel killed a process for want of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kill {
    /// Kills that were counted in its last moments.
    kills: u64,
    /// They were counted in its control group, not on its host.
    in_cgroup: bool,
    /// Ranks that were killed in these moments, where it can have been any of them.
    ranks: u64,
}

/// Names the finding that the kernel killed this process, if it did.
pub(super) fn killed_by_the_kernel(situation: &Situation<'_>, process: &Process) -> Option<Key> {
    kill(situation, process)?;
    Some(Key {
        code: ABOUT.code.code,
        place: KeyPlace::Process(process.rank?, process.pid),
    })
}

fn kill(situation: &Situation<'_>, process: &Process) -> Option<Kill> {
    let (kills, in_cgroup) = counted(situation, process)?;
    let at = process.end?.at;
    // Others that it can have been, by when they ended.
    let others = situation.model.processes.values();
    let others: Vec<Timestamp> = others
        .filter(|other| other.id != process.id && other.host == process.host)
        .filter(|other| counted(situation, other).is_some())
        .filter_map(|other| other.end.map(|end| end.at))
        .filter(|&end| end <= at && at.since(end) <= MOMENTS)
        .collect();
    // The kernel kills first, and then a launcher ends the rest.
    let before = others.iter().filter(|&&end| end < at).count() as u64;
    if before >= kills {
        return None;
    }
    let ranks = 1 + others.len() as u64;
    Some(Kill {
        kills,
        in_cgroup,
        ranks,
    })
}

/// Kills that were counted in the last moments of a process that SIGKILL ended.
fn counted(situation: &Situation<'_>, process: &Process) -> Option<(u64, bool)> {
    let Ending::Died(exit) = situation.model.ending_of(process) else {
        return None;
    };
    let kills = process.end?.oom_kills;
    let found = match kills.in_cgroup {
        Some(kills) => (kills, true),
        None => (kills.on_host?, false),
    };
    (exit.signal == Some(libc_signal::KILL) && found.0 > 0).then_some(found)
}

fn killed(situation: &Situation<'_>, process: &Process) -> Option<Draft> {
    let kill = kill(situation, process)?;
    let rank = process.rank?;
    let end = process.end?;
    let died = rank_died::draft(situation, process)?;
    let mut draft = Draft {
        per_rank: died.per_rank,
        place: died.place,
        op: died.op,
        victims: died.victims,
        blocked_at: died.blocked_at,
        ..Draft::new(&ABOUT, KeyPlace::Process(rank, process.pid), end.at)
    };
    draft.severity = Severity::Error;
    draft.effect = Effect::Crashes;
    draft.fact = Some(ProcessFact {
        rank,
        at: end.at,
        // No launcher sent it.
        signal: None,
        from_communication: false,
    });
    draft.root = vec![rank];
    let is_sure = kill.in_cgroup && kill.ranks <= kill.kills;
    draft.root_confidence = match (is_sure, kill.ranks <= kill.kills) {
        (true, _) => Confidence::Proved,
        (false, true) => Confidence::Supported,
        (false, false) => Confidence::Suspected,
    };
    let last = process.last_call.as_ref().map_or_else(
        || "before its first call".to_owned(),
        |call| {
            let at = words::at(call.place.as_deref());
            format!("after {}{at}", words::call(call))
        },
    );
    let waits = match &draft.victims[..] {
        [] => String::new(),
        victims => format!(
            "; {} {} for it",
            Ranks(victims),
            number(victims, "waits", "wait")
        ),
    };
    draft.summary = format!("the kernel killed rank {rank} for want of memory {last}{waits}");
    let place = if kill.in_cgroup {
        "in its control group"
    } else {
        "on its host"
    };
    draft.why = vec![format!(
        "In its last moments the kernel's count of processes killed for want of memory {place} rose \
         by {}.",
        kill.kills
    )];
    if kill.ranks > kill.kills {
        draft.why.push(format!(
            "{} ranks were killed in these moments: which of them by the kernel is not known.",
            kill.ranks
        ));
    }
    let memory = &process.memory;
    let tightest = memory.rooms().into_iter().min_by_key(|room| room.left());
    if let Some((rss, room)) = memory.rss.zip(tightest) {
        draft.why.push(format!(
            "It held {} when that was last measured; {} had {} left of {}.",
            words::bytes(rss.latest),
            room.name(),
            words::bytes(room.left()),
            words::bytes(room.limit),
        ));
    }
    if kill.in_cgroup {
        draft.why.extend(oom_forecast::held(memory));
    }
    let limit = if kill.in_cgroup && memory.cgroup_limit.is_some() {
        "Raise the limit of the control group, or have"
    } else {
        "Run fewer or smaller processes on that host, or have"
    };
    draft.next = vec![format!(
        "{limit} rank {rank} need less of the host's memory."
    )];
    let facts = vec![
        Fact::Ended {
            rank,
            pid: process.pid,
            code: None,
            signal: end.exit.signal,
        },
        Fact::OomKills {
            rank,
            pid: process.pid,
            kills: kill.kills,
            killed_ranks: kill.ranks,
        },
    ];
    let proof = is_sure.then_some(Certificate {
        kind: CertificateKind::Observation,
        facts,
    });
    Some(draft.proved_by(proof))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{holds, shows};

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            r#"
            world = 3
            events = """
            1.0 * all_reduce f32[4096] sum @train.py:31
            1.1 * done
            2.0 1 memory rss=7680M host=20G/64G cgroup=8152M/8G
            2.0 0,2 all_reduce f32[4096] sum @train.py:31
            2.3 1 killed 9 oom=1
            """
            "#,
        );
    }

    #[test]
    fn a_count_that_rose_tells_it_from_another_sigkill() {
        holds(
            r#"
            world = 2
            verdict = "crash"
            events = """
            1.0 0 barrier @train.py:5
            2.0 1 killed 9 oom=1
            2.4 0 killed 15
            """
            [[expect]]
            code = "DD506"
            role = "initiating"
            severity = "error"
            effect = "crashes"
            confidence = "proved"
            certificate = "observation"
            root = [1]
            root-confidence = "proved"
            victims = [0]
            detected = 2.0
            [[expect]]
            code = "DD201"
            role = "cascade"
            caused-by = "DD506"
            "#,
        );
    }

    #[test]
    fn a_count_that_did_not_rise_leaves_it_a_death() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 barrier @train.py:5
            2.0 1 killed 9 oom=0 host-oom=3
            """
            [[expect]]
            code = "DD201"
            confidence = "proved"
            root = [1]
            "#,
        );
    }

    #[test]
    fn the_hosts_count_alone_is_no_proof() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 barrier @train.py:5
            2.0 1 killed 9 host-oom=1
            """
            [[expect]]
            code = "DD506"
            confidence = "supported"
            root = [1]
            "#,
        );
    }

    #[test]
    fn another_signal_is_none_of_the_kernels() {
        holds(
            r#"
            world = 2
            events = """
            1.0 0 barrier @train.py:5
            2.0 1 killed 11 oom=1
            """
            [[expect]]
            code = "DD201"
            root = [1]
            "#,
        );
    }

    #[test]
    fn whoever_is_ended_after_the_one_that_was_killed_is_a_victim() {
        holds(
            r#"
            world = 3
            hosts = { node = [0, 1, 2] }
            events = """
            1.0 0,2 barrier @train.py:5
            2.0 1 killed 9 oom=1
            2.4 0 killed 15
            5.0 2 killed 9 oom=1
            """
            [[expect]]
            code = "DD506"
            confidence = "proved"
            root = [1]
            [[expect]]
            code = "DD201"
            role = "cascade"
            "#,
        );
    }

    #[test]
    fn one_kill_of_two_that_ended_together_is_nobodys_for_sure() {
        holds(
            r#"
            world = 2
            hosts = { node = [0, 1] }
            events = """
            1.0 * barrier @train.py:5
            2.0 * killed 9 oom=1
            """
            [[expect]]
            code = "DD506"
            confidence = "supported"
            "#,
        );
    }

    #[test]
    fn shared_memory_that_fills_is_told_before_it_is_full() {
        holds(
            r#"
            world = 2
            hosts = { node = [0, 1] }
            events = """
            loop 1-40 from 1.0 every 3.0
            0.0 * step $
            0.5 * memory rss=500M host=20G/64G shm=100M+20M*$/1500M
            end
            """
            silent-until = 60
            [[expect]]
            code = "DD506"
            severity = "warning"
            effect = "none"
            root = []
            summary-has = "/dev/shm of host"
            "#,
        );
    }

    #[test]
    fn it_is_told_beside_a_rank_whose_own_memory_goes_up_and_down() {
        holds(
            r#"
            world = 2
            hosts = { node = [0, 1] }
            events = """
            loop 1-150 from 1.0 every 0.5
            0.0 * step $
            0.1 * memory rss=500M+50M*$%2 host=20G/64G shm=100M+5M*$/1000M
            end
            """
            silent-until = 60
            [[expect]]
            code = "DD506"
            root = []
            summary-has = "/dev/shm of host"
            "#,
        );
    }

    /// Rank 1 maps 5 MiB more of /dev/shm in every step, in epochs of one.
    fn mapped(rank_1: &str) -> String {
        format!(
            r#"
            world = 2
            hosts = {{ node = [0, 1] }}
            events = """
            loop 1-150 from 1.0 every 0.5
            0.0 * step $
            0.1 0 memory rss=500M shared=1M host=20G/64G cgroup=2G+5M*$/9G shm=100M+5M*$/1000M
            0.1 1 memory {rank_1} host=20G/64G cgroup=2G+5M*$/9G shm=100M+5M*$/1000M
            0.2 * input-ended
            end
            """
            silent-until = 60
            "#
        )
    }

    #[test]
    fn shared_memory_that_a_rank_maps_is_that_of_the_host() {
        holds(&format!(
            r#"{}
            [[expect]]
            code = "DD506"
            severity = "warning"
            root = [1]
            root-confidence = "supported"
            victims = [0]
            summary-has = "/dev/shm of host"
            why-has = "Nearly all of that is shared memory"
            "#,
            mapped("rss=500M+5M*$ shared=1M+5M*$")
        ));
    }

    #[test]
    fn shared_memory_whose_end_is_far_away_creeps() {
        let slow = mapped("rss=500M+5M*$ shared=1M+5M*$")
            .replace("/1000M", "/30G")
            .replace("/9G", "/90G");
        holds(&format!(
            r#"{slow}
            [[expect]]
            code = "DD503"
            root = [1]
            why-has = "Nearly all of that is shared memory"
            "#
        ));
    }

    #[test]
    fn a_rank_that_grows_by_itself_does_not_hide_shared_memory() {
        let grows = mapped("rss=500M+9M*$ shared=1M virtual=8G+9M*$/9800M");
        holds(&format!(
            r#"{}
            [[expect]]
            code = "DD506"
            root = []
            summary-has = "/dev/shm of host"
            [[expect]]
            code = "DD502"
            root = [1]
            summary-has = "rank 1 runs out of memory"
            "#,
            grows.replace("silent-until = 60", "")
        ));
    }

    #[test]
    fn shared_memory_that_another_limit_ends_is_the_ranks() {
        let tight = mapped("rss=500M+5M*$ shared=1M+5M*$").replace("5M*$/9G", "5M*$/2900M");
        holds(&format!(
            r#"{}
            [[expect]]
            code = "DD502"
            root = [1]
            why-has = "Nearly all of that is shared memory"
            "#,
            tight.replace("silent-until = 60", "")
        ));
    }

    #[test]
    fn where_nobody_knows_what_is_shared_a_rank_that_grows_is_the_one() {
        let unknown = mapped("rss=500M+5M*$ virtual=8G+5M*$/9100M");
        holds(&format!(
            r#"{}
            [[expect]]
            code = "DD502"
            root = [1]
            "#,
            unknown.replace("silent-until = 60", "")
        ));
    }

    #[test]
    fn a_killed_ranks_group_says_how_often_it_was_held() {
        holds(
            r#"
            world = 2
            verdict = "crash"
            events = """
            1.0 1 memory rss=7G host=20G/64G cgroup=7G/8G held=10
            2.0 0 barrier @train.py:5
            6.0 1 memory rss=7680M host=20G/64G cgroup=8152M/8G held=322
            7.0 1 killed 9 oom=1
            """
            [[expect]]
            code = "DD506"
            why-has = "In the last 5.0 s it was held at its limit 312 times"
            "#,
        );
    }

    #[test]
    fn what_was_filling_when_a_job_was_over_stays_told() {
        let fills_until = |end: &str| {
            format!(
                r#"
                world = 2
                hosts = {{ node = [0, 1] }}
                verdict = "{}"
                events = """
                loop 1-40 from 1.0 every 3.0
                0.0 * step $
                0.5 * memory rss=500M host=20G/64G shm=100M+20M*$/1500M
                end
                125.0 {end}
                """
                "#,
                if end.contains("killed") {
                    "crash"
                } else {
                    "healthy"
                }
            )
        };
        let told = "[[expect]]\ncode = \"DD506\"\nroot = []";
        holds(&format!("{}{told}", fills_until("* exits 0")));
        let died = "[[expect]]\ncode = \"DD201\"";
        holds(&format!("{}{died}", fills_until("* killed 11")));
    }

    #[test]
    fn a_control_group_that_fills_by_something_else_is_told() {
        holds(
            r#"
            world = 2
            hosts = { node = [0, 1] }
            events = """
            loop 1-40 from 1.0 every 3.0
            0.0 * step $
            0.5 * memory rss=500M host=20G/64G cgroup=1G+40M*$/4G
            end
            """
            [[expect]]
            code = "DD506"
            severity = "warning"
            "#,
        );
    }

    #[test]
    fn where_the_ranks_grow_it_is_theirs() {
        holds(
            r#"
            world = 2
            hosts = { node = [0, 1] }
            events = """
            loop 1-40 from 1.0 every 3.0
            0.0 * step $
            0.5 * memory rss=500M+40M*$ host=20G/64G cgroup=1G+80M*$/6G
            end
            """
            [[expect]]
            code = "DD502"
            root = [0, 1]
            "#,
        );
    }

    #[test]
    fn what_others_do_with_the_host_for_a_moment_is_none() {
        holds(
            r#"
            world = 2
            events = """
            loop 1-40 from 1.0 every 0.5
            0.0 * step $
            0.2 * memory rss=500M host=20G+400M*$/64G
            end
            """
            "#,
        );
    }
}
