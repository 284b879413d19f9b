//! DD506 host-memory: memory of a host, control group or /dev/shm runs out, or has run out and the
//! kernel has killed a rank.

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

/// Maximum time between the ends of processes that may share one count of kills.
const MOMENTS: Duration = Duration::from_secs(10);

static ABOUT: About = About {
    code: &catalogue::DD506,
    order: order::MEMORY,
};

/// The same code as a forecast, which is a hint.
static FORECAST: About = About {
    code: &catalogue::DD506,
    order: order::HINT,
};

/// DD506: exhausted memory of a host.
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

/// The memory that runs out first, of a host whose ranks do not grow: something else fills it.
///
/// /dev/shm counts also while ranks grow, if they grow in their own memory, or by mapping files of
/// /dev/shm that fill it before they reach another limit.
fn forecast(situation: &Situation<'_>) -> Option<Draft> {
    let growers = &situation.growers;
    // One process per host suffices: all of them sample the same memory.
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
        "From step {} to step {} its use rose from {} to {} of {}.",
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
                "The ranks themselves do not grow: it is their children (data loader workers), files \
                 in /dev/shm, or other processes."
                    .into(),
            );
            draft.next.push(
                "Look for what else grows: `ps -e --sort=-rss -o pid,ppid,rss,args`, `ls -lS /dev/shm`."
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

/// Whether a forecast applies. It stays after a normal end; a failed process has its own finding.
fn ended_well_if_at_all(process: &Process) -> bool {
    matches!(process.ending(), Ending::None | Ending::InOrder)
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

/// Key of the finding that the kernel killed this process; `None` if it did not.
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
    // Ends of the other processes that these kills may have ended.
    let others = situation.model.processes.values();
    let others: Vec<Timestamp> = others
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
    Some(Kill {
        kills,
        in_cgroup,
        ranks,
    })
}

/// Kills that were counted around the end of a process which SIGKILL ended, and whether they were
/// counted in its control group.
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
        // A signal would let the judge attribute the end to the launcher.
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
        "Around its end the kernel's count of processes killed for want of memory {place} rose by {}.",
        kill.kills
    )];
    if kill.ranks > kill.kills {
        draft.why.push(format!(
            "{} ranks were killed at that time; which of them the kernel killed is unknown.",
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
    fn sigkill_with_a_counted_oom_kill_is_proved() {
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
    fn sigkill_without_an_oom_kill_is_a_death() {
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
    fn oom_kill_counted_on_the_host_is_supported() {
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
    fn other_signal_is_not_an_oom_kill() {
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
    fn rank_ended_after_the_oom_kill_is_a_cascade() {
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
    fn one_kill_of_two_ranks_is_not_proved() {
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
    fn filling_shared_memory_is_forecast() {
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
    fn forecast_stands_beside_ranks_of_varying_memory() {
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

    /// A scenario in which /dev/shm and the control group grow by 5 MiB a step; a step is an epoch.
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
    fn rank_that_maps_filling_shared_memory_is_the_root() {
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
    fn shared_memory_far_from_its_limit_is_memory_creep() {
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
    fn growing_rank_does_not_hide_filling_shared_memory() {
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
    fn mapping_rank_near_another_limit_is_an_oom_forecast() {
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
    fn growing_rank_of_unknown_sharing_is_an_oom_forecast() {
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
    fn throttling_of_the_control_group_is_reported() {
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
    fn forecast_stays_after_a_normal_end() {
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
    fn control_group_filled_by_other_processes_is_forecast() {
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
    fn growth_of_the_ranks_themselves_is_an_oom_forecast() {
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
    fn short_rise_of_host_memory_is_ignored() {
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
