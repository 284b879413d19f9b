//! How the host lets the ranks run: processor time, time in the run queue, throttling, paging, what a
//! hypervisor takes, and what the kernel calls pressure.
//!
//! Looked at from outside once a second, and told where it has changed: whether a rank that comes late
//! computes for long or does not get to compute is in no record of its own.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1::{self, event::Kind};

use super::outbox::Outbox;
use super::rank::Rank;
use super::timing::Timing;

/// Thousandths of the time that are noticeable.
const STEP: u32 = 100;
/// The same of what is held against a time that is lost in a collective.
const SMALL_STEP: u32 = 50;
/// Most threads of a rank that are looked at.
const MOST_THREADS: usize = 256;
/// Pages a second that are noticeable.
const FAULTS_STEP: u32 = 50;
/// A sample that covers less than this part of the interval measures little.
const LEAST_PART: u32 = 5;

/// Looks at the ranks of a node.
#[derive(Debug)]
pub struct Scheduling {
    timing: Timing,
    known: HashMap<u64, Known>,
}

/// What is known of a process.
#[derive(Debug)]
struct Known {
    /// The latest look.
    last: (Instant, Counters),
    /// `cpu.stat` of its cgroup, where there is one.
    cgroup: Option<PathBuf>,
    /// Where its pressure stands: in its cgroup, or for its whole host.
    pressure: Pressure,
    /// What was told last, and when.
    told: Option<(Instant, v1::SchedulingSample)>,
}

/// What the kernel counts for a process; `None`: it does not, or not for us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    /// Of its main thread, in nanoseconds: it ran, and it waited for a processor.
    ran_and_queued: Option<(u64, u64)>,
    /// Microseconds that its cgroup was throttled.
    throttled: Option<u64>,
    /// Pages that were read from a disk for it.
    major_faults: Option<u64>,
    /// Nanoseconds that its threads waited for a processor, together.
    threads_queued: Option<u64>,
    /// What a hypervisor took of the time of all processors, and that time, in ticks.
    stolen: Option<(u64, u64)>,
    /// Microseconds in which something waited for a processor, for memory, for a disk.
    pressure: [Option<u64>; 3],
}

/// The files that tell how long something had to wait for a processor, for memory, for a disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pressure([PathBuf; 3]);

/// What one look has read already that is the same for other ranks.
#[derive(Debug, Default)]
struct Shared {
    /// Of the host; `None`: not read yet.
    stolen: Option<Option<(u64, u64)>>,
    pressure: HashMap<Pressure, [Option<u64>; 3]>,
}

impl Shared {
    fn stolen(&mut self) -> Option<(u64, u64)> {
        *self.stolen.get_or_insert_with(|| {
            let text = fs::read_to_string("/proc/stat").ok()?;
            stolen(&text)
        })
    }

    fn pressure(&mut self, files: &Pressure) -> [Option<u64>; 3] {
        if let Some(read) = self.pressure.get(files) {
            return *read;
        }
        let read = files.read();
        self.pressure.insert(files.clone(), read);
        read
    }
}

impl Scheduling {
    /// Has looked at nothing yet.
    #[must_use]
    pub fn new(timing: Timing) -> Self {
        Self {
            timing,
            known: HashMap::new(),
        }
    }

    /// Looks at all ranks that live, and tells what has changed.
    pub fn look(&mut self, ranks: &[Rank], now: Instant, out: &mut Outbox) {
        let living = ranks.iter().filter(|rank| !rank.has_ended());
        let living: Vec<(u64, u32)> = living
            .filter_map(|rank| Some((rank.process(), rank.watched()?.pid())))
            .collect();
        self.known
            .retain(|known, _| living.iter().any(|(process, _)| process == known));
        let mut shared = Shared::default();
        for (process, pid) in living {
            if let Some(sample) = self.measure(process, pid, now, &mut shared) {
                out.push(Kind::SchedulingSample(sample));
            }
        }
    }

    /// Tells again what was told last, to a coordinator that may not know it.
    pub fn repeat(&self, out: &mut Outbox) {
        let told = self.known.values().filter_map(|it| it.told.as_ref());
        let mut told: Vec<_> = told.map(|(_, sample)| sample).collect();
        told.sort_by_key(|sample| sample.process);
        for sample in told {
            out.push_live(Kind::SchedulingSample(sample.clone()));
        }
    }

    /// A sample that is worth telling.
    fn measure(
        &mut self,
        process: u64,
        pid: u32,
        now: Instant,
        shared: &mut Shared,
    ) -> Option<v1::SchedulingSample> {
        let Some(known) = self.known.get_mut(&process) else {
            let cgroup = cpu_stat(pid);
            let pressure = Pressure::of(cgroup.as_deref().and_then(Path::parent));
            let counters = Counters::of(pid, cgroup.as_deref(), &pressure, shared);
            self.known.insert(
                process,
                Known {
                    last: (now, counters),
                    cgroup,
                    pressure,
                    told: None,
                },
            );
            return None;
        };
        let elapsed = now.duration_since(known.last.0);
        if elapsed < self.timing.scheduling_interval / LEAST_PART {
            return None;
        }
        let counters = Counters::of(pid, known.cgroup.as_deref(), &known.pressure, shared);
        let before = std::mem::replace(&mut known.last, (now, counters)).1;
        let sample = v1::SchedulingSample {
            process,
            unix_ns: Timestamp::now().0,
            processors: processors(pid).unwrap_or_default(),
            ..counters.since(&before, elapsed)
        };
        let heartbeat = self.timing.scheduling_heartbeat;
        let is_news = known.told.as_ref().is_none_or(|(at, told)| {
            now.duration_since(*at) >= heartbeat || differs(told, &sample)
        });
        if !is_news {
            return None;
        }
        known.told = Some((now, sample.clone()));
        Some(sample)
    }
}

impl Counters {
    fn of(pid: u32, cpu_stat: Option<&Path>, pressure: &Pressure, shared: &mut Shared) -> Self {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
        Self {
            ran_and_queued: read(&format!("task/{pid}/schedstat")).and_then(|it| schedstat(&it)),
            throttled: cpu_stat
                .and_then(|file| fs::read_to_string(file).ok())
                .and_then(|text| throttled(&text)),
            major_faults: read("stat").and_then(|it| major_faults(&it)),
            threads_queued: threads_queued(pid),
            stolen: shared.stolen(),
            pressure: shared.pressure(pressure),
        }
    }

    /// Rates since an earlier look, so long ago.
    fn since(&self, before: &Self, elapsed: Duration) -> v1::SchedulingSample {
        let rate = |before: Option<u64>, now: Option<u64>, whole: u128| {
            let more = u128::from(now?.saturating_sub(before?));
            u32::try_from((more * 1000).checked_div(whole)?).ok()
        };
        let ran = |it: &Self| it.ran_and_queued.map(|(ran, _)| ran);
        let queued = |it: &Self| it.ran_and_queued.map(|(_, queued)| queued);
        let nanoseconds = elapsed.as_nanos();
        let stolen = self.stolen.zip(before.stolen).and_then(|(now, before)| {
            let all = now.1.saturating_sub(before.1);
            rate(Some(before.0), Some(now.0), all.into())
        });
        let [cpu, memory, io] =
            [0, 1, 2].map(|it| rate(before.pressure[it], self.pressure[it], elapsed.as_micros()));
        v1::SchedulingSample {
            ran_permille: rate(ran(before), ran(self), nanoseconds),
            queued_permille: rate(queued(before), queued(self), nanoseconds),
            throttled_permille: rate(before.throttled, self.throttled, elapsed.as_micros()),
            major_faults: rate(before.major_faults, self.major_faults, elapsed.as_millis()),
            threads_queued_permille: rate(before.threads_queued, self.threads_queued, nanoseconds),
            stolen_permille: stolen,
            cpu_pressure_permille: cpu,
            memory_pressure_permille: memory,
            io_pressure_permille: io,
            ..v1::SchedulingSample::default()
        }
    }
}

/// Whether somebody who knows the one would like to know the other.
fn differs(told: &v1::SchedulingSample, now: &v1::SchedulingSample) -> bool {
    let apart = |told: Option<u32>, now: Option<u32>, step: u32| {
        told.unwrap_or(0).abs_diff(now.unwrap_or(0)) >= step
    };
    apart(told.ran_permille, now.ran_permille, STEP)
        || apart(told.queued_permille, now.queued_permille, STEP)
        || apart(told.throttled_permille, now.throttled_permille, STEP)
        || apart(told.major_faults, now.major_faults, FAULTS_STEP)
        || apart(
            told.threads_queued_permille,
            now.threads_queued_permille,
            SMALL_STEP,
        )
        || apart(told.stolen_permille, now.stolen_permille, SMALL_STEP)
        || apart(told.cpu_pressure_permille, now.cpu_pressure_permille, STEP)
        || apart(
            told.memory_pressure_permille,
            now.memory_pressure_permille,
            STEP,
        )
        || apart(told.io_pressure_permille, now.io_pressure_permille, STEP)
        || told.processors != now.processors
}

/// `(ran, waited for a processor)` out of `/proc/PID/schedstat`, in nanoseconds.
fn schedstat(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Nanoseconds that the threads of a process waited for a processor, together. One that ended takes what it
/// waited with it: the sum may fall.
fn threads_queued(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let queued = threads.take(MOST_THREADS).flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        schedstat(&text).map(|(_, queued)| queued)
    });
    queued.reduce(|sum, queued| sum + queued)
}

/// `(what a hypervisor took, all time)` out of `/proc/stat`, in ticks of all processors.
fn stolen(text: &str) -> Option<(u64, u64)> {
    const STOLEN: usize = 7;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let times = line.split_ascii_whitespace().map(str::parse);
    let times: Vec<u64> = times.collect::<Result<_, _>>().ok()?;
    // What guests ran is part of what was used already.
    Some((*times.get(STOLEN)?, times.iter().take(STOLEN + 1).sum()))
}

impl Pressure {
    /// Of a cgroup (version 2), or of the whole host where that does not tell.
    fn of(cgroup: Option<&Path>) -> Self {
        let names = ["cpu", "memory", "io"];
        let own = cgroup.map(|folder| names.map(|name| folder.join(format!("{name}.pressure"))));
        let host = || names.map(|name| Path::new("/proc/pressure").join(name));
        Self(own.filter(|[cpu, ..]| cpu.exists()).unwrap_or_else(host))
    }

    fn read(&self) -> [Option<u64>; 3] {
        self.0
            .each_ref()
            .map(|file| fs::read_to_string(file).ok().and_then(|it| waited(&it)))
    }
}

/// Microseconds in which something waited, out of a file of pressure stall information.
fn waited(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("some "))?;
    let mut values = line.split_ascii_whitespace();
    values.find_map(|it| it.strip_prefix("total=")?.parse().ok())
}

/// Field 12 of `/proc/PID/stat`. The name before it may contain anything.
fn major_faults(text: &str) -> Option<u64> {
    let rest = &text[text.rfind(')')? + 1..];
    rest.split_ascii_whitespace().nth(12 - 3)?.parse().ok()
}

/// Microseconds out of the `cpu.stat` of a cgroup.
fn throttled(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix("throttled_usec "))?;
    value.trim().parse().ok()
}

/// The processors that a process may run on.
fn processors(pid: u32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}

/// `cpu.stat` of the process's cgroup (version 2), where that has a quota or may have one.
fn cpu_stat(pid: u32) -> Option<PathBuf> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let file = Path::new("/sys/fs/cgroup").join(path).join("cpu.stat");
    file.exists().then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_counters_are_parsed() {
        assert_eq!(schedstat("123 456 7\n"), Some((123, 456)));
        assert_eq!(schedstat("123"), None);
        let stat = "7 (a) R) (b) S 1 7 7 0 -1 4194560 5000 0 42 0 9 8 0 0 20 0 1 0 99";
        assert_eq!(major_faults(stat), Some(42));
        assert_eq!(major_faults("7 (cut"), None);
        let text = "usage_usec 5\nnr_throttled 2\nthrottled_usec 77\n";
        assert_eq!(throttled(text), Some(77));
        assert_eq!(throttled("usage_usec 5\n"), None);
        let text = "cpu  10 1 20 60 2 0 3 4 8 0\ncpu0 5 0 10 30 1 0 1 2 4 0\n";
        assert_eq!(stolen(text), Some((4, 100)));
        assert_eq!(stolen("cpu  10 1 20\n"), None);
        let text =
            "some avg10=98.14 avg60=1.00 avg300=0.50 total=352383817\nfull avg10=0.00 total=5\n";
        assert_eq!(waited(text), Some(352_383_817));
        assert_eq!(waited("full avg10=0.00 total=5\n"), None);
    }

    #[test]
    fn rates_refer_to_the_time_between_samples() {
        let before = Counters {
            ran_and_queued: Some((1_000_000_000, 0)),
            throttled: Some(0),
            major_faults: Some(10),
            threads_queued: Some(0),
            stolen: Some((10, 1000)),
            pressure: [Some(0), None, Some(7)],
        };
        let now = Counters {
            ran_and_queued: Some((1_600_000_000, 1_000_000_000)),
            throttled: Some(500_000),
            major_faults: None,
            threads_queued: Some(3_000_000_000),
            stolen: Some((60, 1200)),
            pressure: [Some(1_000_000), Some(5), Some(7)],
        };
        let sample = now.since(&before, Duration::from_secs(2));
        assert_eq!(sample.ran_permille, Some(300));
        assert_eq!(sample.queued_permille, Some(500));
        assert_eq!(sample.throttled_permille, Some(250));
        assert_eq!(sample.major_faults, None);
        assert_eq!(sample.threads_queued_permille, Some(1500));
        assert_eq!(sample.stolen_permille, Some(250));
        assert_eq!(sample.cpu_pressure_permille, Some(500));
        assert_eq!(sample.memory_pressure_permille, None);
        assert_eq!(sample.io_pressure_permille, Some(0));
    }

    #[test]
    fn busy_process_yields_a_sample() {
        let pid = std::process::id();
        let mut scheduling = Scheduling::new(Timing::default());
        let start = Instant::now();
        assert_eq!(
            scheduling.measure(1, pid, start, &mut Shared::default()),
            None,
            "it takes two looks"
        );
        while start.elapsed() < Duration::from_millis(300) {
            std::hint::black_box((0..1000_u64).sum::<u64>());
        }
        let mut shared = Shared::default();
        let sample = scheduling.measure(1, pid, Instant::now(), &mut shared);
        let sample = sample.unwrap();
        // The main thread of a test program waits for its tests.
        assert!(
            sample.ran_permille.is_some_and(|it| it <= 1000),
            "{sample:?}"
        );
        assert!(!sample.processors.is_empty(), "{sample:?}");
        assert!(
            !differs(&sample, &sample),
            "what is no news is not told again"
        );
    }

    #[test]
    fn shared_files_are_read_once_per_scan() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["cpu", "memory", "io"] {
            let file = folder.path().join(format!("{name}.pressure"));
            fs::write(file, "some avg10=0.00 total=5\n").unwrap();
        }
        let mut shared = Shared::default();
        let files = Pressure::of(Some(folder.path()));
        assert_eq!(shared.pressure(&files), [Some(5); 3]);
        let host = shared.stolen();
        assert!(host.is_some_and(|(stolen, all)| stolen <= all && all > 0));
        fs::remove_file(folder.path().join("io.pressure")).unwrap();
        assert_eq!(shared.pressure(&files), [Some(5); 3]);
        assert_eq!(shared.stolen(), host);
        // The next look reads anew, and other ranks have other files.
        let gone = Some(PathBuf::from("/nowhere"));
        assert_eq!(Shared::default().pressure(&files), [Some(5), Some(5), None]);
        let of_host = Pressure::of(gone.as_deref());
        assert_ne!(of_host, files);
        assert_eq!(
            shared.pressure(&of_host)[0].is_some(),
            of_host.read()[0].is_some()
        );
    }

    #[test]
    fn noticeable_changes_are_reported() {
        let told = v1::SchedulingSample {
            queued_permille: Some(100),
            processors: "0-3".into(),
            ..v1::SchedulingSample::default()
        };
        let queued = |queued| v1::SchedulingSample {
            queued_permille: Some(queued),
            ..told.clone()
        };
        assert!(!differs(&told, &queued(190)) && differs(&told, &queued(200)));
        let pinned = v1::SchedulingSample {
            processors: "2".into(),
            ..told.clone()
        };
        assert!(differs(&told, &pinned));
    }
}
