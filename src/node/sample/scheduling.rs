//! Scheduling of the ranks by their host: CPU time, run queue time, throttling, paging, time
//! stolen by a hypervisor, and the kernel's pressure stall information.
//!
//! Sampled from outside once a second and reported on change. The samples show whether a late rank
//! computes for long or does not get a processor; its own records contain neither.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ddp_doctor_host::proc;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1::{self, event::Kind};

use crate::follow::rank::Rank;
use crate::timing::Timing;
use crate::upload::outbox::Outbox;

/// Minimum reported change, in thousandths of the time.
const MIN_CHANGE: u32 = 100;
/// Minimum reported change of values that are compared with time lost in a collective, in
/// thousandths of the time.
const MIN_SMALL_CHANGE: u32 = 50;
/// Maximum number of threads of a rank that are read.
const MAX_THREADS: usize = 256;
/// Minimum reported change of major page faults, per second.
const MIN_FAULTS_CHANGE: u32 = 50;
/// Divisor of the interval that gives the minimum duration of a meaningful sample.
const MIN_INTERVAL_DIVISOR: u32 = 5;

/// Samples the scheduling of the ranks on a node.
#[derive(Debug)]
pub struct Scheduling {
    timing: Timing,
    known: HashMap<u64, Sampled>,
}

/// State of a sampled process.
#[derive(Debug)]
struct Sampled {
    /// Time and counters of the latest scan.
    last: (Instant, Counters),
    /// `cpu.stat` of its cgroup, if there is one.
    cgroup: Option<PathBuf>,
    /// Files with the pressure of its cgroup, or of its host.
    pressure: Pressure,
    /// Time and content of the last reported sample.
    reported: Option<(Instant, v1::SchedulingSample)>,
}

/// The kernel's counters of a process; `None` for a counter that is missing or unreadable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    /// Time that its main thread ran, and time that it waited for a processor, in ns.
    ran_and_queued: Option<(u64, u64)>,
    /// Time that its cgroup was throttled, in µs.
    throttled: Option<u64>,
    /// Number of major page faults.
    major_faults: Option<u64>,
    /// Time that its threads waited for a processor, in ns, summed over threads.
    threads_queued: Option<u64>,
    /// Time stolen by a hypervisor, and total time, of all processors, in ticks.
    stolen: Option<(u64, u64)>,
    /// Time in which some task waited for a processor, for memory, for I/O, in µs.
    pressure: [Option<u64>; 3],
}

/// The kernel's files with pressure stall information: processor, memory, I/O.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pressure([PathBuf; 3]);

/// Values that one scan reads once for all ranks.
#[derive(Debug, Default)]
struct Shared {
    /// Stolen and total time of the host; `None` until it is read.
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
    /// Creates a sampler without samples.
    #[must_use]
    pub fn new(timing: Timing) -> Self {
        Self { timing, known: HashMap::new() }
    }

    /// Samples all living ranks and reports changes.
    pub fn poll(&mut self, ranks: &[Rank], now: Instant, out: &mut Outbox) {
        let living: Vec<(u64, u32)> = ranks
            .iter()
            .filter(|rank| !rank.has_ended())
            .filter_map(|rank| Some((rank.process(), rank.watched()?.pid())))
            .collect();
        self.known.retain(|known, _| living.iter().any(|(process, _)| process == known));
        let mut shared = Shared::default();
        for (process, pid) in living {
            if let Some(sample) = self.measure(process, pid, now, &mut shared) {
                out.push(Kind::SchedulingSample(sample));
            }
        }
    }

    /// Repeats the last samples for a coordinator that may not have them.
    pub fn repeat(&self, is_meant: impl Fn(u64) -> bool, out: &mut Outbox) {
        let meant = self.known.iter().filter(|(process, _)| is_meant(**process));
        let mut reported: Vec<_> =
            meant.filter_map(|(_, it)| it.reported.as_ref()).map(|(_, sample)| sample).collect();
        reported.sort_by_key(|sample| sample.process);
        for sample in reported {
            out.push_live(Kind::SchedulingSample(sample.clone()));
        }
    }

    /// Samples a process; returns `None` if the values have not changed noticeably.
    fn measure(
        &mut self,
        process: u64,
        pid: u32,
        now: Instant,
        shared: &mut Shared,
    ) -> Option<v1::SchedulingSample> {
        let Some(known) = self.known.get_mut(&process) else {
            let cgroup = cpu_stat(pid);
            let pressure = Pressure::files(cgroup.as_deref().and_then(Path::parent));
            let counters = Counters::read(pid, cgroup.as_deref(), &pressure, shared);
            self.known.insert(
                process,
                Sampled { last: (now, counters), cgroup, pressure, reported: None },
            );
            return None;
        };
        let elapsed = now.duration_since(known.last.0);
        if elapsed < self.timing.scheduling_interval / MIN_INTERVAL_DIVISOR {
            return None;
        }
        let counters = Counters::read(pid, known.cgroup.as_deref(), &known.pressure, shared);
        let before = std::mem::replace(&mut known.last, (now, counters)).1;
        let sample = v1::SchedulingSample {
            process,
            unix_ns: Timestamp::now().0,
            processors: processors(pid).unwrap_or_default(),
            ..counters.since(&before, elapsed)
        };
        let heartbeat = self.timing.scheduling_heartbeat;
        let is_news = known.reported.as_ref().is_none_or(|(at, reported)| {
            now.duration_since(*at) >= heartbeat || differs(reported, &sample)
        });
        if !is_news {
            return None;
        }
        known.reported = Some((now, sample.clone()));
        Some(sample)
    }
}

impl Counters {
    fn read(pid: u32, cpu_stat: Option<&Path>, pressure: &Pressure, shared: &mut Shared) -> Self {
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

    /// Rates since earlier counters, which were read `elapsed` ago.
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

/// Whether a sample differs noticeably from the last reported one.
fn differs(reported: &v1::SchedulingSample, now: &v1::SchedulingSample) -> bool {
    let apart = |reported: Option<u32>, now: Option<u32>, step: u32| {
        reported.unwrap_or(0).abs_diff(now.unwrap_or(0)) >= step
    };
    apart(reported.ran_permille, now.ran_permille, MIN_CHANGE)
        || apart(reported.queued_permille, now.queued_permille, MIN_CHANGE)
        || apart(reported.throttled_permille, now.throttled_permille, MIN_CHANGE)
        || apart(reported.major_faults, now.major_faults, MIN_FAULTS_CHANGE)
        || apart(reported.threads_queued_permille, now.threads_queued_permille, MIN_SMALL_CHANGE)
        || apart(reported.stolen_permille, now.stolen_permille, MIN_SMALL_CHANGE)
        || apart(reported.cpu_pressure_permille, now.cpu_pressure_permille, MIN_CHANGE)
        || apart(reported.memory_pressure_permille, now.memory_pressure_permille, MIN_CHANGE)
        || apart(reported.io_pressure_permille, now.io_pressure_permille, MIN_CHANGE)
        || reported.processors != now.processors
}

/// `(ran, waited for a processor)` from `/proc/PID/schedstat`, in ns.
fn schedstat(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Time that the threads of a process waited for a processor, in ns, summed over threads. The sum
/// may fall, since it does not include threads that have ended.
fn threads_queued(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let queued = threads.take(MAX_THREADS).flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        schedstat(&text).map(|(_, queued)| queued)
    });
    queued.reduce(|sum, queued| sum + queued)
}

/// `(time stolen by a hypervisor, total time)` of all processors from `/proc/stat`, in ticks.
fn stolen(text: &str) -> Option<(u64, u64)> {
    const STOLEN: usize = 7;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> =
        line.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    // The columns after it, guest time, are already included in user time.
    Some((*times.get(STOLEN)?, times.iter().take(STOLEN + 1).sum()))
}

impl Pressure {
    /// The files of a cgroup (version 2), or those of the host if the cgroup has none.
    fn files(cgroup: Option<&Path>) -> Self {
        let names = ["cpu", "memory", "io"];
        let own = cgroup.map(|folder| names.map(|name| folder.join(format!("{name}.pressure"))));
        let host = || names.map(|name| Path::new("/proc/pressure").join(name));
        Self(own.filter(|[cpu, ..]| cpu.exists()).unwrap_or_else(host))
    }

    fn read(&self) -> [Option<u64>; 3] {
        self.0.each_ref().map(|file| fs::read_to_string(file).ok().and_then(|it| waited(&it)))
    }
}

/// Time in which some task waited, from a file with pressure stall information, in µs.
fn waited(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("some "))?;
    let mut values = line.split_ascii_whitespace();
    values.find_map(|it| it.strip_prefix("total=")?.parse().ok())
}

/// Field 12 of `/proc/PID/stat`. The command name before it may contain any character.
fn major_faults(text: &str) -> Option<u64> {
    let rest = &text[text.rfind(')')? + 1..];
    rest.split_ascii_whitespace().nth(12 - 3)?.parse().ok()
}

/// Throttled time from the `cpu.stat` of a cgroup, in µs.
fn throttled(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix("throttled_usec "))?;
    value.trim().parse().ok()
}

/// The processors that a process may run on, such as "0-3".
fn processors(pid: u32) -> Option<String> {
    let status = proc::read_lossy(format!("/proc/{pid}/status")).ok()?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}

/// `cpu.stat` of the process' cgroup (version 2), if it exists.
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
            "a sample needs two scans"
        );
        while start.elapsed() < Duration::from_millis(300) {
            std::hint::black_box((0..1000_u64).sum::<u64>());
        }
        let mut shared = Shared::default();
        let sample = scheduling.measure(1, pid, Instant::now(), &mut shared).unwrap();
        // The main thread of a test program mostly waits for its tests, so that only the range is
        // checked.
        assert!(sample.ran_permille.is_some_and(|it| it <= 1000), "{sample:?}");
        assert!(!sample.processors.is_empty(), "{sample:?}");
        assert!(!differs(&sample, &sample), "an unchanged sample is not reported again");
    }

    #[test]
    fn shared_files_are_read_once_per_scan() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["cpu", "memory", "io"] {
            let file = folder.path().join(format!("{name}.pressure"));
            fs::write(file, "some avg10=0.00 total=5\n").unwrap();
        }
        let mut shared = Shared::default();
        let files = Pressure::files(Some(folder.path()));
        assert_eq!(shared.pressure(&files), [Some(5); 3]);
        let host = shared.stolen();
        assert!(host.is_some_and(|(stolen, all)| stolen <= all && all > 0));
        fs::remove_file(folder.path().join("io.pressure")).unwrap();
        assert_eq!(shared.pressure(&files), [Some(5); 3]);
        assert_eq!(shared.stolen(), host);
        // The next scan reads again, and other ranks have other files.
        let gone = Some(PathBuf::from("/nowhere"));
        assert_eq!(Shared::default().pressure(&files), [Some(5), Some(5), None]);
        let of_host = Pressure::files(gone.as_deref());
        assert_ne!(of_host, files);
        assert_eq!(shared.pressure(&of_host)[0].is_some(), of_host.read()[0].is_some());
    }

    #[test]
    fn noticeable_changes_are_reported() {
        let reported = v1::SchedulingSample {
            queued_permille: Some(100),
            processors: "0-3".into(),
            ..v1::SchedulingSample::default()
        };
        let queued =
            |queued| v1::SchedulingSample { queued_permille: Some(queued), ..reported.clone() };
        assert!(!differs(&reported, &queued(190)) && differs(&reported, &queued(200)));
        let pinned = v1::SchedulingSample { processors: "2".into(), ..reported.clone() };
        assert!(differs(&reported, &pinned));
    }
}
