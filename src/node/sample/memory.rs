//! Memory samples of the ranks and of their host, taken from outside.
//!
//! The GPU memory of a rank is sampled inside the rank, by the agent.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ddp_doctor_diagnosis::event::OomKills;
use ddp_doctor_host::cgroup;
use ddp_doctor_host::cgroup::{MemoryGroup, Usage};
use ddp_doctor_host::proc;
use ddp_doctor_host::proc::Watched;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1::{self, event::Kind};
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

use crate::follow::rank::Rank;
use crate::timing::Timing;
use crate::upload::outbox::Outbox;

/// Maximum time between an out-of-memory kill and the detected end of its victim.
const KILL_WINDOW: Duration = Duration::from_secs(5);
/// Minimum reported change of a process' memory, in bytes.
const MIN_CHANGE: u64 = 4 << 20;
/// Divisor of a process' memory that gives its minimum reported change, if that is more than
/// [`MIN_CHANGE`].
const CHANGE_DIVISOR: u64 = 200;
/// Divisor of the host's memory, or of a limit, that gives its minimum reported change, if that is
/// more than [`MIN_CHANGE`].
const HOST_CHANGE_DIVISOR: u64 = 100;
/// Minimum reported change of CPU time, in thousandths of a processor.
const MIN_CPU_CHANGE: u32 = 250;

/// Samples the memory of the ranks on a node.
#[derive(Debug)]
pub struct Memory {
    timing: Timing,
    system: System,
    /// Living ranks, by their processes.
    known: HashMap<u64, Sampled>,
    /// Time and content of the last reported sample of each rank, those that have ended included.
    reported: HashMap<u64, (Instant, v1::MemorySample)>,
    /// Recent values of the host's count of out-of-memory kills.
    on_host: Counts,
}

/// Recent values of a count, oldest first.
#[derive(Debug, Default)]
struct Counts(VecDeque<(Instant, u64)>);

impl Counts {
    fn read(&mut self, now: Instant, count: Option<u64>) {
        let Some(count) = count else { return };
        // One value from before `KILL_WINDOW` stays, to compare with.
        while self.0.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= KILL_WINDOW) {
            self.0.pop_front();
        }
        self.0.push_back((now, count));
    }

    /// Increase since the oldest value.
    fn increase_to(&self, count: u64) -> Option<u64> {
        let (_, before) = self.0.front()?;
        Some(count.saturating_sub(*before))
    }
}

/// A control group of a process.
#[derive(Debug)]
struct OomKillCount {
    /// Contents of `/proc/PID/cgroup`.
    lines: String,
    /// The group in these lines.
    place: Option<MemoryGroup>,
    /// Recent values of its count of out-of-memory kills.
    kills: Counts,
}

impl OomKillCount {
    /// Recent increase of the count of kills.
    fn increase(&self) -> Option<u64> {
        self.kills.increase_to(self.place.as_ref()?.oom_kills()?)
    }
}

/// Values read from a control group.
#[derive(Clone, Copy, Debug)]
struct GroupSample {
    usage: Option<Usage>,
    kills: Option<u64>,
}

/// State of a sampled process.
#[derive(Debug)]
struct Sampled {
    at: Instant,
    cpu_ms: u64,
    /// Its control group and the previous one, since a process that is about to end is already
    /// moved to another group.
    groups: VecDeque<OomKillCount>,
}

impl Memory {
    /// Creates a sampler without samples.
    #[must_use]
    pub fn new(timing: Timing) -> Self {
        Self {
            timing,
            system: System::new(),
            known: HashMap::new(),
            reported: HashMap::new(),
            on_host: Counts::default(),
        }
    }

    /// Number of out-of-memory kills shortly before the end of a process that has just ended.
    #[must_use]
    pub fn oom_kills(&self, process: u64) -> OomKills {
        let Some(known) = self.known.get(&process) else {
            return OomKills::default();
        };
        if let Some(kills) = known.groups.iter().filter_map(OomKillCount::increase).max() {
            return OomKills { in_cgroup: Some(kills), on_host: None };
        }
        let on_host = cgroup::kills_on_host().and_then(|count| self.on_host.increase_to(count));
        OomKills { in_cgroup: None, on_host }
    }

    /// Samples all living ranks and reports changes.
    pub fn poll(&mut self, ranks: &[Rank], now: Instant, out: &mut Outbox) {
        let living: Vec<(u64, Pid)> = ranks
            .iter()
            .filter(|rank| !rank.has_ended())
            .filter_map(|rank| Some((rank.process(), rank.watched().map(Watched::pid)?)))
            .map(|(process, pid)| (process, Pid::from_u32(pid)))
            .collect();
        self.forget_all_but(&living);
        if living.is_empty() {
            return;
        }
        let pids: Vec<Pid> = living.iter().map(|(_, pid)| *pid).collect();
        let what = ProcessRefreshKind::nothing().with_memory().with_cpu().without_tasks();
        self.system.refresh_processes_specifics(ProcessesToUpdate::Some(&pids), true, what);
        self.system.refresh_memory();
        self.on_host.read(now, cgroup::kills_on_host());
        let mut used = HashMap::new();
        for (process, pid) in living {
            if let Some(sample) = self.measure(process, pid, now, &mut used) {
                out.push(Kind::MemorySample(sample));
            }
        }
    }

    /// Forgets what is needed to sample ranks that have ended.
    fn forget_all_but(&mut self, living: &[(u64, Pid)]) {
        self.known.retain(|known, _| living.iter().any(|(process, _)| process == known));
    }

    /// Repeats the last samples for a coordinator that may not have them.
    pub fn repeat(&self, out: &mut Outbox) {
        let mut samples: Vec<_> = self.reported.values().map(|(_, sample)| *sample).collect();
        samples.sort_by_key(|sample| sample.process);
        for sample in samples {
            out.push_live(Kind::MemorySample(sample));
        }
    }

    /// Samples a process; returns `None` if the values have not changed noticeably.
    fn measure(
        &mut self,
        process: u64,
        pid: Pid,
        now: Instant,
        groups: &mut HashMap<String, GroupSample>,
    ) -> Option<v1::MemorySample> {
        let measured = self.system.process(pid)?;
        if measured.virtual_memory() == 0 {
            // A zombie has no memory; the last sample before its end is kept.
            return None;
        }
        let cpu_ms = measured.accumulated_cpu_time();
        let known = self.known.entry(process).or_insert_with(|| Sampled {
            at: now,
            cpu_ms,
            groups: VecDeque::new(),
        });
        let pid = pid.as_u32();
        let lines = proc::cgroups(pid);
        if known.groups.front().is_none_or(|group| group.lines != lines) {
            known.groups.truncate(1);
            known.groups.push_front(OomKillCount {
                place: MemoryGroup::parse(&lines),
                lines: lines.clone(),
                kills: Counts::default(),
            });
        }
        let place = known.groups.front().and_then(|group| group.place.as_ref());
        // A group is read once per scan for all its ranks.
        let seen = *groups.entry(lines).or_insert_with(|| GroupSample {
            usage: place.and_then(MemoryGroup::tightest),
            kills: place.and_then(MemoryGroup::oom_kills),
        });
        if let Some(group) = known.groups.front_mut() {
            group.kills.read(now, seen.kills);
        }
        let shm = proc::shared_memory(pid);
        let elapsed_ms = now.duration_since(known.at).as_millis() as u64;
        let used_ms = cpu_ms.saturating_sub(known.cpu_ms);
        let cpu_permille =
            (used_ms * 1000).checked_div(elapsed_ms).and_then(|it| u32::try_from(it).ok());
        (known.at, known.cpu_ms) = (now, cpu_ms);
        let sample = v1::MemorySample {
            process,
            unix_ns: Timestamp::now().0,
            rss: Some(measured.memory()),
            rss_shared: proc::resident_shared(pid),
            host_available: Some(self.system.available_memory()),
            host_total: Some(self.system.total_memory()),
            cpu_permille,
            cgroup_used: seen.usage.map(|it| it.used),
            cgroup_limit: seen.usage.map(|it| it.limit),
            cgroup_held: seen.usage.and_then(|it| it.reclaims),
            cgroup_slowed: seen.usage.and_then(|it| it.throttled),
            shm_used: shm.map(|it| it.total.saturating_sub(it.free)),
            shm_total: shm.map(|it| it.total),
            virtual_used: Some(measured.virtual_memory()),
            virtual_limit: proc::address_space_limit(pid),
            ..v1::MemorySample::default()
        };
        let timing = &self.timing;
        let is_news = self.reported.get(&process).is_none_or(|(at, reported)| {
            let since = now.duration_since(*at);
            let is_held = limit_events(reported) != limit_events(&sample);
            since >= timing.memory_heartbeat
                || (is_held && since >= timing.memory_limit_interval)
                || differs(reported, &sample)
        });
        if !is_news {
            return None;
        }
        self.reported.insert(process, (now, sample));
        Some(sample)
    }
}

/// Numbers of times that the control group reached its limits.
fn limit_events(sample: &v1::MemorySample) -> (Option<u64>, Option<u64>) {
    (sample.cgroup_held, sample.cgroup_slowed)
}

/// Whether a sample differs noticeably from the last reported one.
fn differs(reported: &v1::MemorySample, now: &v1::MemorySample) -> bool {
    let apart = |reported: Option<u64>, now: Option<u64>, step: u64| {
        reported.unwrap_or(0).abs_diff(now.unwrap_or(0)) >= step
    };
    let step = MIN_CHANGE.max(reported.rss.unwrap_or(0) / CHANGE_DIVISOR);
    let host_step = MIN_CHANGE.max(now.host_total.unwrap_or(0) / HOST_CHANGE_DIVISOR);
    let cpu = reported.cpu_permille.zip(now.cpu_permille);
    let part = |of: Option<u64>| MIN_CHANGE.max(of.unwrap_or(0) / HOST_CHANGE_DIVISOR);
    // Every change of a limit is reported.
    let limits = |it: &v1::MemorySample| (it.cgroup_limit, it.shm_total, it.virtual_limit);
    apart(reported.rss, now.rss, step)
        || apart(reported.cgroup_used, now.cgroup_used, part(now.cgroup_limit))
        || apart(reported.shm_used, now.shm_used, part(now.shm_total))
        || (now.virtual_limit.is_some()
            && apart(reported.virtual_used, now.virtual_used, part(now.virtual_limit)))
        || limits(reported) != limits(now)
        || apart(reported.host_available, now.host_available, host_step)
        || cpu.is_none_or(|(reported, now)| reported.abs_diff(now) >= MIN_CPU_CHANGE)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::*;

    fn sample(rss: u64, available: u64, cpu: u32) -> v1::MemorySample {
        v1::MemorySample {
            rss: Some(rss),
            host_available: Some(available),
            host_total: Some(100 << 30),
            cpu_permille: Some(cpu),
            ..v1::MemorySample::default()
        }
    }

    #[test]
    fn noticeable_changes_are_reported() {
        let reported = sample(1 << 30, 50 << 30, 1000);
        for (now, expected) in [
            (sample(1 << 30, 50 << 30, 1100), false),
            (sample((1 << 30) + (5 << 20), 50 << 30, 1000), false),
            (sample((1 << 30) + (6 << 20), 50 << 30, 1000), true),
            (sample(1 << 30, (49 << 30) + 1, 1000), false),
            (sample(1 << 30, 49 << 30, 1000), true),
            (sample(1 << 30, 50 << 30, 0), true),
        ] {
            assert_eq!(differs(&reported, &now), expected, "{now:?}");
        }
    }

    /// The coordinator may attach after a rank has ended.
    #[test]
    fn last_sample_of_a_rank_that_has_ended_is_repeated() {
        let mut memory = Memory::new(Timing::default());
        let pid = Pid::from_u32(std::process::id());
        let what = ProcessRefreshKind::nothing().with_memory().with_cpu();
        let pids = [pid];
        memory.system.refresh_processes_specifics(ProcessesToUpdate::Some(&pids), true, what);
        let sample = memory.measure(1, pid, Instant::now(), &mut HashMap::new());
        memory.forget_all_but(&[]);

        let (live, mut received) = tokio::sync::mpsc::channel(1);
        let mut out = Outbox::new(None);
        out.connect(live);
        memory.repeat(&mut out);
        out.flush();
        let repeated = received.try_recv().map(|report| report.events).unwrap_or_default();
        let expected = sample.map(|it| v1::Event { kind: Some(Kind::MemorySample(it)) });
        assert_eq!(repeated, Vec::from_iter(expected));
        assert_eq!(repeated.len(), 1);
    }

    #[test]
    fn memory_and_cpu_time_of_a_process_are_measured() {
        let script = "text=$(head -c 67108864 /dev/zero | tr '\\0' a); while :; do :; done";
        let mut process = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let mut memory = Memory::new(Timing::default());
        let pid = Pid::from_u32(process.id());
        let mut sample = || {
            let what = ProcessRefreshKind::nothing().with_memory().with_cpu();
            let pids = [pid];
            let which = ProcessesToUpdate::Some(&pids);
            memory.system.refresh_processes_specifics(which, true, what);
            memory.system.refresh_memory();
            memory.measure(1, pid, Instant::now(), &mut HashMap::new())
        };
        let start = Instant::now();
        let (mut is_large, mut is_busy) = (false, false);
        while !(is_large && is_busy) {
            // A sample like the one before is left out.
            if let Some(found) = sample() {
                is_large |= found.rss.unwrap() > 40 << 20;
                is_busy |= found.cpu_permille.is_some_and(|it| it > 0);
                assert!(found.host_total >= found.host_available, "{found:?}");
                assert!(found.host_available > Some(1 << 20), "{found:?}");
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{is_large} {is_busy}");
            thread::sleep(Duration::from_millis(10));
        }
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
