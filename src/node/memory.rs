//! The memory of the ranks and of their host, looked at from outside.
//!
//! What a rank takes on a GPU is known in the rank; see the agent.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1::{self, event::Kind};
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

use super::outbox::Outbox;
use super::proc::Watched;
use super::rank::Rank;

/// How often it is measured.
pub const EVERY: Duration = Duration::from_secs(1);
/// It is told after so long even where nothing changed.
const AT_LEAST: Duration = Duration::from_secs(60);
/// What a process has more or less is noticeable from that many bytes on, …
const STEP: u64 = 4 << 20;
/// … or that share of what it has, whichever is more.
const SHARE: u64 = 50;
/// So is that share of the host's memory, …
const HOST_SHARE: u64 = 100;
/// … and so many thousandths of a processor.
const CPU_STEP: u32 = 250;

/// Measures.
#[derive(Debug)]
pub struct Memory {
    system: System,
    known: HashMap<u64, Known>,
}

/// What was measured of a process.
#[derive(Debug)]
struct Known {
    at: Instant,
    cpu_ms: u64,
    /// What was told last, and when.
    told: Option<(Instant, v1::MemorySample)>,
}

impl Memory {
    /// Has measured nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            system: System::new(),
            known: HashMap::new(),
        }
    }

    /// Measures all ranks that live, and tells what has changed.
    pub fn look(&mut self, ranks: &[Rank], now: Instant, out: &mut Outbox) {
        let living: Vec<(u64, Pid)> = ranks
            .iter()
            .filter(|rank| !rank.has_ended())
            .filter_map(|rank| Some((rank.process(), rank.watched().map(Watched::pid)?)))
            .map(|(process, pid)| (process, Pid::from_u32(pid)))
            .collect();
        self.known
            .retain(|known, _| living.iter().any(|(process, _)| process == known));
        if living.is_empty() {
            return;
        }
        let pids: Vec<Pid> = living.iter().map(|(_, pid)| *pid).collect();
        let what = ProcessRefreshKind::nothing()
            .with_memory()
            .with_cpu()
            .without_tasks();
        self.system
            .refresh_processes_specifics(ProcessesToUpdate::Some(&pids), true, what);
        self.system.refresh_memory();
        for (process, pid) in living {
            if let Some(sample) = self.measure(process, pid, now) {
                out.push(Kind::MemorySample(sample));
            }
        }
    }

    /// Tells again what was told last, to a coordinator that may not know it.
    pub fn repeat(&self, out: &mut Outbox) {
        let mut told: Vec<_> = self
            .known
            .values()
            .filter_map(|it| it.told.as_ref())
            .collect();
        told.sort_by_key(|(_, sample)| sample.process);
        for (_, sample) in told {
            out.push_live(Kind::MemorySample(*sample));
        }
    }

    /// A sample that is worth telling.
    fn measure(&mut self, process: u64, pid: Pid, now: Instant) -> Option<v1::MemorySample> {
        let measured = self.system.process(pid)?;
        let cpu_ms = measured.accumulated_cpu_time();
        let known = self.known.entry(process).or_insert(Known {
            at: now,
            cpu_ms,
            told: None,
        });
        let elapsed_ms = now.duration_since(known.at).as_millis() as u64;
        let used_ms = cpu_ms.saturating_sub(known.cpu_ms);
        let cpu_permille = (used_ms * 1000)
            .checked_div(elapsed_ms)
            .and_then(|it| u32::try_from(it).ok());
        (known.at, known.cpu_ms) = (now, cpu_ms);
        let sample = v1::MemorySample {
            process,
            unix_ns: Timestamp::now().0,
            rss: Some(measured.memory()),
            host_available: Some(self.system.available_memory()),
            host_total: Some(self.system.total_memory()),
            cpu_permille,
            ..v1::MemorySample::default()
        };
        let is_news = known
            .told
            .as_ref()
            .is_none_or(|(at, told)| now.duration_since(*at) >= AT_LEAST || differs(told, &sample));
        if !is_news {
            return None;
        }
        known.told = Some((now, sample));
        Some(sample)
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether somebody who knows the one would like to know the other.
fn differs(told: &v1::MemorySample, now: &v1::MemorySample) -> bool {
    let apart = |told: Option<u64>, now: Option<u64>, step: u64| {
        told.unwrap_or(0).abs_diff(now.unwrap_or(0)) >= step
    };
    let step = STEP.max(told.rss.unwrap_or(0) / SHARE);
    let host_step = STEP.max(now.host_total.unwrap_or(0) / HOST_SHARE);
    let cpu = told.cpu_permille.zip(now.cpu_permille);
    apart(told.rss, now.rss, step)
        || apart(told.host_available, now.host_available, host_step)
        || cpu.is_none_or(|(told, now)| told.abs_diff(now) >= CPU_STEP)
}

#[cfg(test)]
mod tests {
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
    fn what_is_noticeable_is_told() {
        let told = sample(1 << 30, 50 << 30, 1000);
        for (now, expected) in [
            (sample(1 << 30, 50 << 30, 1100), false),
            (sample((1 << 30) + (20 << 20), 50 << 30, 1000), false),
            (sample((1 << 30) + (30 << 20), 50 << 30, 1000), true),
            (sample(1 << 30, (49 << 30) + 1, 1000), false),
            (sample(1 << 30, 49 << 30, 1000), true),
            (sample(1 << 30, 50 << 30, 0), true),
        ] {
            assert_eq!(differs(&told, &now), expected, "{now:?}");
        }
    }

    #[test]
    fn this_process_has_memory_and_uses_the_processor() {
        let mut memory = Memory::new();
        let pid = Pid::from_u32(std::process::id());
        let look = |memory: &mut Memory, now| {
            let what = ProcessRefreshKind::nothing().with_memory().with_cpu();
            let pids = [pid];
            let which = ProcessesToUpdate::Some(&pids);
            memory.system.refresh_processes_specifics(which, true, what);
            memory.system.refresh_memory();
            memory.measure(1, pid, now)
        };
        let start = Instant::now();
        let first = look(&mut memory, start).unwrap();
        assert!(first.rss.unwrap() > 1 << 20, "{first:?}");
        assert!(first.host_total >= first.host_available && first.host_available > Some(1 << 20));
        // What it takes of memory shows.
        let block = vec![1_u8; 64 << 20];
        let mut rounds = 0;
        while rounds == 0 || start.elapsed() < Duration::from_millis(300) {
            std::hint::black_box(block.iter().map(|&it| u64::from(it)).sum::<u64>());
            rounds += 1;
        }
        let second = look(&mut memory, Instant::now()).unwrap();
        assert!(second.rss.unwrap() > first.rss.unwrap() + (40 << 20));
        assert!(second.cpu_permille.unwrap() > 0, "{second:?}");
    }
}
