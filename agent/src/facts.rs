//! Identity of this process, from the operating system and the environment.

use std::env;
use std::fs;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::blackbox::{JOB, Options};

/// Disables capture if set to "0".
const SWITCH: &str = "DDP_DOCTOR";
/// The 0-based start count of the job, from the process that started it or from the batch system.
const STARTS: [&str; 2] = ["DDP_DOCTOR_ATTEMPT", "SLURM_RESTART_COUNT"];
/// Number of restarts of the ranks by a launcher within one start of the job.
const RESTARTS: &str = "TORCHELASTIC_RESTART_COUNT";

/// Whether capture is disabled (`DDP_DOCTOR=0`).
#[must_use]
pub fn is_disabled() -> bool {
    env::var_os(SWITCH).is_some_and(|value| value == "0")
}

/// Options with job, attempt and world from the environment, as set by `ddp-doctor run` or a
/// launcher.
#[must_use]
pub fn options_from_env(layer: &str) -> Options {
    let variable = |name: &str| env::var(name).ok();
    let jobs = [JOB, "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"];
    let job = first(variable, &jobs).or_else(pmix_namespace);
    Options {
        layer: layer.to_owned(),
        job: job.unwrap_or_else(|| "default".to_owned()),
        attempt: attempt(variable),
        world: world(),
        ..Options::default()
    }
}

/// The first of these variables that has a value.
fn first(variable: impl Fn(&str) -> Option<String>, names: &[&str]) -> Option<String> {
    let mut values = names.iter().filter_map(|name| variable(name));
    values.find(|value| !value.is_empty() && value != "none")
}

/// The 0-based number of this start of the ranks: starts of the job, and restarts within one of them.
fn attempt(variable: impl Fn(&str) -> Option<String>) -> u32 {
    let count = |names: &[&str]| first(&variable, names)?.parse::<u32>().ok();
    let (starts, restarts) = (count(&STARTS), count(&[RESTARTS]));
    starts.unwrap_or(0).saturating_add(restarts.unwrap_or(0))
}

/// Distinguishes this launch from concurrent ones on the same machine: `MASTER_PORT` and the
/// launcher's id of the launch (under MPI the PMIx namespace), equal on all its ranks. `MASTER_ADDR`
/// is not used, since ranks may know the master by different names. Empty: unknown.
fn world() -> String {
    let of = |name| env::var(name).unwrap_or_default();
    let run_id = of("TORCHELASTIC_RUN_ID");
    let launch = if run_id.is_empty() { pmix_namespace().unwrap_or_default() } else { run_id };
    match (of("MASTER_PORT"), launch) {
        (port, launch) if port.is_empty() && launch.is_empty() => String::new(),
        (port, launch) => format!("{port}/{launch}"),
    }
}

/// The PMIx namespace that the launcher gave this process. MPI libraries that start without a launcher
/// set the variable as well, to another value in each process: it counts only if it was set at exec.
fn pmix_namespace() -> Option<String> {
    namespace_in(&fs::read("/proc/self/environ").ok()?)
}

/// The PMIx namespace in an environment of zero-separated variables.
fn namespace_in(environment: &[u8]) -> Option<String> {
    let mut variables = environment.split(|&byte| byte == 0);
    let bytes = variables.find_map(|variable| variable.strip_prefix(b"PMIX_NAMESPACE="))?;
    let value = String::from_utf8(bytes.to_vec()).ok()?;
    (!value.is_empty()).then_some(value)
}

/// Start time of a process in clock ticks since boot, which distinguishes reused pids; `None`: no
/// such process, or it is hidden. It is the same in every time namespace.
#[must_use]
pub fn start_ticks_of(pid: u32) -> Option<u64> {
    start_ticks(&fs::read(format!("/proc/{pid}/stat")).ok()?).map(host_ticks)
}

/// Converts a start time that this process reads in `/proc` to the initial time namespace
/// (time_namespaces(7)).
#[must_use]
pub fn host_ticks(ticks: u64) -> u64 {
    const UNKNOWN: i64 = i64::MIN;
    // A `OnceLock` would stay locked in a child that is forked meanwhile.
    static OFFSET: AtomicI64 = AtomicI64::new(UNKNOWN);
    let mut offset = OFFSET.load(Ordering::Relaxed);
    if offset == UNKNOWN {
        offset = own_boottime_offset();
        OFFSET.store(offset, Ordering::Relaxed);
    }
    ticks.saturating_add_signed(offset.saturating_neg())
}

/// The offset of the boot-time clock of this process, in clock ticks.
fn own_boottime_offset() -> i64 {
    let namespace = |name| fs::read_link(format!("/proc/self/ns/{name}")).ok();
    // The offsets are those of children. They apply to this process if it is in their namespace.
    if namespace("time") != namespace("time_for_children") {
        return 0;
    }
    // Kernels without time namespaces (before 5.6) have no such file, and no offset.
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    boottime_offset(&offsets)
}

/// The offset of the boot-time clock in `/proc/PID/timens_offsets`, in clock ticks.
fn boottime_offset(offsets: &str) -> i64 {
    /// Clock ticks in a second (`USER_HZ`).
    const HZ: i64 = 100;
    let line = offsets.lines().find_map(|line| line.strip_prefix("boottime"));
    let mut numbers = line.unwrap_or_default().split_ascii_whitespace();
    let mut number = || numbers.next()?.parse::<i64>().ok();
    let (seconds, nanoseconds) = (number().unwrap_or(0), number().unwrap_or(0));
    seconds.saturating_mul(HZ) + nanoseconds / (1_000_000_000 / HZ)
}

/// Facts about this process for the header of its black box.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) start_ticks: u64,
    pub(crate) parent: u32,
    /// The boot id as two little-endian words.
    pub(crate) boot_id: (u64, u64),
    pub(crate) host: String,
}

impl Process {
    pub(crate) fn this() -> Self {
        let stat = fs::read("/proc/self/stat").unwrap_or_default();
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self {
            pid: std::process::id(),
            parent: std::os::unix::process::parent_id(),
            start_ticks: start_ticks(&stat).map_or(0, host_ticks),
            boot_id: parse_boot_id(&boot_id),
            host: host.trim_end().to_owned(),
        }
    }
}

/// Field 22 of `/proc/PID/stat`. The second field is a name in parentheses that may itself contain
/// spaces and parentheses.
fn start_ticks(stat: &[u8]) -> Option<u64> {
    let end_of_name = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end_of_name + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

/// The 16 bytes of a UUID as two words; zeros if invalid.
fn parse_boot_id(text: &str) -> (u64, u64) {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let half = |range| {
        digits
            .get(range)
            .and_then(|half| u64::from_str_radix(half, 16).ok())
            // The first digits are the first bytes.
            .map_or(0, u64::swap_bytes)
    };
    (half(0..16), half(16..32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_counts_only_if_it_was_set_at_exec() {
        assert_eq!(namespace_in(b"A=1\0PMIX_NAMESPACE=prterun-7\0"), Some("prterun-7".into()));
        assert_eq!(namespace_in(b"A=1\0PMIX_NAMESPACE=\0"), None);
        assert_eq!(namespace_in(b"NOT_PMIX_NAMESPACE=7\0"), None);
    }

    #[test]
    fn process_name_cannot_forge_the_start_time() {
        let stat = b"7 (a) R 1 (b)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(start_ticks(stat), Some(4711));
        assert_eq!(start_ticks(b""), None);
        assert_eq!(start_ticks(b"7 (a) S 1"), None);
        assert!(Process::this().start_ticks > 0);
    }

    #[test]
    fn attempt_adds_restarts_of_the_ranks_to_starts_of_the_job() {
        let of = |set: &[(&str, &str)]| {
            let value = |name: &str| {
                let mut set = set.iter();
                set.find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            attempt(value)
        };
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[("SLURM_RESTART_COUNT", "2")]), 2);
        assert_eq!(of(&[("TORCHELASTIC_RESTART_COUNT", "3")]), 3);
        let both = ("SLURM_RESTART_COUNT", "2");
        // The process that started the job knows best how often it was started.
        assert_eq!(of(&[("DDP_DOCTOR_ATTEMPT", "1"), both]), 1);
        assert_eq!(of(&[("DDP_DOCTOR_ATTEMPT", ""), both]), 2);
        let restarted = ("TORCHELASTIC_RESTART_COUNT", "4");
        assert_eq!(of(&[("DDP_DOCTOR_ATTEMPT", "1"), both, restarted]), 5);
        assert_eq!(of(&[("SLURM_RESTART_COUNT", "-1"), restarted]), 4);
        assert_eq!(of(&[("SLURM_RESTART_COUNT", "4294967295"), restarted]), u32::MAX);
    }

    #[test]
    fn offset_of_a_time_namespace_is_in_ticks() {
        assert_eq!(boottime_offset("monotonic  5 0\nboottime  100 500000000\n"), 10_050);
        assert_eq!(boottime_offset("monotonic  0 0\nboottime  -7 0\n"), -700);
        assert_eq!(boottime_offset(""), 0);
    }

    #[test]
    fn boot_id_keeps_its_byte_order() {
        let (low, high) = parse_boot_id("00112233-4455-6677-8899-aabbccddeeff\n");
        assert_eq!(low.to_le_bytes(), [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77]);
        assert_eq!(high.to_le_bytes(), [0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]);
        assert_eq!(parse_boot_id("x"), (0, 0));
    }
}
