//! Memory limits, usage and out-of-memory kills of control groups.
//!
//! Version 2 (`memory.max`, `memory.current`, `memory.events`) and version 1
//! (`memory.limit_in_bytes`, `memory.usage_in_bytes`, `memory.failcnt`, `memory.oom_control`); see
//! the kernel's `cgroup-v2.rst` and `cgroup-v1/memory.rst`. A group at its limit is not necessarily
//! short of memory: the page cache grows to the limit and is reclaimed. The count of kills includes
//! kills by the host whose victim was in the group; version 1 has this count since Linux 4.13.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Mount point of control groups.
const MOUNT: &str = "/sys/fs/cgroup";
/// Maximum number of enclosing groups that are read, including the group itself.
const MAX_GROUPS: usize = 16;

/// The control group that accounts for the memory of a process, with its enclosing groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryGroup {
    /// Directories of the groups, the innermost first.
    dirs: Vec<PathBuf>,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Memory usage of a control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in use, without reclaimable file pages.
    pub used: u64,
    /// Limit in bytes.
    pub limit: u64,
    /// Number of allocations that reached the limit and had to reclaim memory first.
    pub reclaims: Option<u64>,
    /// Number of times that processes were throttled at `memory.high`; `None` for version 1.
    pub throttled: Option<u64>,
}

impl MemoryGroup {
    /// The group in these lines of `/proc/PID/cgroup`; `None` if no memory is accounted there, or
    /// the group is not visible from here.
    #[must_use]
    pub fn parse(lines: &str) -> Option<Self> {
        Self::below(Path::new(MOUNT), lines)
    }

    fn below(mount: &Path, lines: &str) -> Option<Self> {
        let mut found = None;
        for line in lines.lines() {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            if controllers.split(',').any(|it| it == "memory") {
                // The memory controller is in only one hierarchy, here one of version 1.
                found = Some((Version::One, mount.join("memory"), path));
                break;
            }
            if controllers.is_empty() {
                found = Some((Version::Two, mount.to_owned(), path));
            }
        }
        let (version, root, path) = found?;
        let path = Path::new(path.trim_start_matches('/'));
        let is_plain = path.components().all(|it| matches!(it, Component::Normal(_)));
        // In a container the path may be the host's, while the mount starts at the container's
        // group.
        let own = Some(root.join(path))
            .filter(|own| is_plain && own.is_dir())
            .unwrap_or_else(|| root.clone());
        let dirs = own.ancestors().take_while(|dir| dir.starts_with(&root));
        let group = Self { dirs: dirs.take(MAX_GROUPS).map(Path::to_owned).collect(), version };
        group.used(group.dirs.first()?).map(|_| group.clone())
    }

    /// Number of processes in the group that the kernel killed because memory ran out.
    #[must_use]
    pub fn oom_kills(&self) -> Option<u64> {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.dirs.first()?.join(file)).ok()?;
        value(&text, "oom_kill")
    }

    /// Usage of the group, or enclosing group, that has the least memory left below its limit.
    #[must_use]
    pub fn tightest(&self) -> Option<Usage> {
        let usages = self.dirs.iter().filter_map(|dir| {
            let limit = self.limit(dir)?;
            let used = self.used(dir)?;
            Some((dir, used, limit))
        });
        let (dir, used, limit) =
            usages.min_by_key(|(_, used, limit)| limit.saturating_sub(*used))?;
        let (reclaims, throttled) = self.reclaims(dir);
        Some(Usage { used, limit, reclaims, throttled })
    }

    /// Number of times that the limits of this group, not of groups within, were reached.
    fn reclaims(&self, dir: &Path) -> (Option<u64>, Option<u64>) {
        match self.version {
            Version::One => (number(&dir.join("memory.failcnt")), None),
            Version::Two => {
                let local = fs::read_to_string(dir.join("memory.events.local"));
                // Before Linux 5.2 there is only the count that includes groups within.
                let text = local
                    .or_else(|_| fs::read_to_string(dir.join("memory.events")))
                    .unwrap_or_default();
                (value(&text, "max"), value(&text, "high"))
            }
        }
    }

    fn limit(&self, dir: &Path) -> Option<u64> {
        /// Version 1 shows a number above this for "no limit".
        const NONE: u64 = 1 << 60;
        let file = match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        number(&dir.join(file)).filter(|&limit| limit < NONE)
    }

    fn used(&self, dir: &Path) -> Option<u64> {
        let (file, inactive, active) = match self.version {
            Version::One => ("memory.usage_in_bytes", "total_inactive_file", "total_active_file"),
            Version::Two => ("memory.current", "inactive_file", "active_file"),
        };
        let used = number(&dir.join(file))?;
        // The kernel reclaims file pages before it kills a process.
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let files = [inactive, active].map(|name| value(&stat, name).unwrap_or(0));
        Some(used.saturating_sub(files.iter().sum()))
    }
}

/// Number of processors that the groups in these lines of `/proc/PID/cgroup` may use; `None`: all.
#[must_use]
pub fn processors(lines: &str) -> Option<f64> {
    processors_below(Path::new(MOUNT), lines)
}

fn processors_below(mount: &Path, lines: &str) -> Option<f64> {
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_first_version = controllers.split(',').any(|it| it == "cpu");
        if !controllers.is_empty() && !is_first_version {
            return None;
        }
        // A container may have its own group at the mount.
        let root = mount.join(controllers);
        let path = Path::new(path.trim_start_matches('/'));
        let is_plain = path.components().all(|it| matches!(it, Component::Normal(_)));
        let own = Some(root.join(path))
            .filter(|own| is_plain && own.is_dir())
            .unwrap_or_else(|| root.clone());
        let dirs = own.ancestors().take_while(|dir| dir.starts_with(&root)).take(MAX_GROUPS);
        let quota = |dir: &Path| {
            let (quota, period) = if is_first_version {
                (number(&dir.join("cpu.cfs_quota_us"))?, number(&dir.join("cpu.cfs_period_us"))?)
            } else {
                let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
                let (quota, period) = text.trim().split_once(' ')?;
                (quota.parse().ok()?, period.parse().ok()?)
            };
            (period > 0).then_some(quota as f64 / period as f64)
        };
        dirs.filter_map(quota).reduce(f64::min)
    };
    lines.lines().filter_map(of_line).reduce(f64::min)
}

/// Number of processes on this host that the kernel killed because memory ran out.
#[must_use]
pub fn kills_on_host() -> Option<u64> {
    value(&fs::read_to_string("/proc/vmstat").ok()?, "oom_kill")
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The number in the line "NAME NUMBER".
fn value(text: &str, name: &str) -> Option<u64> {
    let mut values = text.lines().filter_map(|line| line.split_once(' '));
    let (_, value) = values.find(|(it, _)| *it == name)?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn version_2_limits_of_outer_groups_apply() {
        let mount = tempfile::tempdir().unwrap();
        let pod = mount.path().join("pod");
        write(mount.path(), &[("cgroup.controllers", "memory")]);
        write(
            &pod,
            &[
                ("memory.max", "1000\n"),
                ("memory.current", "900\n"),
                ("memory.stat", "anon 500\ninactive_file 100\nactive_file 50\n"),
            ],
        );
        write(
            &pod.join("box"),
            &[
                ("memory.max", "max\n"),
                ("memory.current", "800\n"),
                ("memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"),
            ],
        );
        let group = MemoryGroup::below(mount.path(), "0::/pod/box\n").unwrap();
        assert_eq!(group.oom_kills(), Some(2));
        let tightest = group.tightest().unwrap();
        assert_eq!((tightest.used, tightest.limit), (750, 1000));
        assert_eq!((tightest.reclaims, tightest.throttled), (None, None));
    }

    #[test]
    fn smallest_processor_quota_of_the_groups_counts() {
        let mount = tempfile::tempdir().unwrap();
        write(&mount.path().join("pod/box"), &[("cpu.max", "max 100000\n")]);
        write(&mount.path().join("pod"), &[("cpu.max", "250000 100000\n")]);
        write(
            &mount.path().join("cpu,cpuacct/job"),
            &[("cpu.cfs_quota_us", "150000\n"), ("cpu.cfs_period_us", "100000\n")],
        );
        let of = |lines: &str| processors_below(mount.path(), lines);
        assert_eq!(of("0::/pod/box\n"), Some(2.5));
        assert_eq!(of("4:cpu,cpuacct:/job\n2:memory:/job\n"), Some(1.5));
        // "-1" stands for no limit.
        write(&mount.path().join("cpu,cpuacct/job"), &[("cpu.cfs_quota_us", "-1\n")]);
        assert_eq!(of("4:cpu,cpuacct:/job\n"), None);
        assert_eq!(of("0::/other\n"), None);
    }

    /// Contents on Linux 6.1 for a group that reached `memory.high` and `memory.max`.
    const EVENTS: &str =
        "low 0\nhigh 4213\nmax 312\noom 3\noom_kill 2\noom_group_kill 0\nsock_throttled 0\n";

    #[test]
    fn limit_events_are_those_of_the_tightest_group() {
        let mount = tempfile::tempdir().unwrap();
        let pod = mount.path().join("pod");
        write(
            &pod,
            &[("memory.max", "1000\n"), ("memory.current", "990\n"), ("memory.events", EVENTS)],
        );
        write(
            &pod.join("box"),
            &[
                ("memory.max", "5000\n"),
                ("memory.current", "980\n"),
                ("memory.events", "low 0\nhigh 0\nmax 7\noom 0\noom_kill 0\n"),
            ],
        );
        let reclaims = || {
            let group = MemoryGroup::below(mount.path(), "0::/pod/box\n").unwrap();
            let tightest = group.tightest().unwrap();
            (tightest.limit, tightest.reclaims, tightest.throttled)
        };
        assert_eq!(reclaims(), (1000, Some(312), Some(4213)));
        // `memory.events.local` leaves out the events of groups within.
        let local = "low 0\nhigh 0\nmax 305\noom 3\noom_kill 0\noom_group_kill 0\n";
        write(&pod, &[("memory.events.local", local)]);
        assert_eq!(reclaims(), (1000, Some(305), Some(0)));
    }

    #[test]
    fn version_1_memory_hierarchy_is_preferred() {
        let mount = tempfile::tempdir().unwrap();
        let job = mount.path().join("memory/job");
        write(
            &mount.path().join("memory"),
            &[
                ("memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory.usage_in_bytes", "5000\n"),
            ],
        );
        write(
            &job,
            &[
                ("memory.limit_in_bytes", "4096\n"),
                ("memory.usage_in_bytes", "3000\n"),
                ("memory.failcnt", "1897\n"),
                ("memory.stat", "total_inactive_file 1000\ntotal_active_file 0\n"),
                ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
            ],
        );
        let lines = "9:name=systemd:/\n4:cpu,memory:/job\n0::/\n";
        let group = MemoryGroup::below(mount.path(), lines).unwrap();
        assert_eq!(group.oom_kills(), Some(1));
        let expected = Usage { used: 2000, limit: 4096, reclaims: Some(1897), throttled: None };
        assert_eq!(group.tightest(), Some(expected));
    }

    #[test]
    fn host_path_resolves_to_the_container_group() {
        let mount = tempfile::tempdir().unwrap();
        let files = [("memory.max", "10"), ("memory.current", "1")];
        write(mount.path(), &files);
        for path in ["/docker/abc", "/../elsewhere", "/"] {
            let group = MemoryGroup::below(mount.path(), &format!("0::{path}\n")).unwrap();
            assert_eq!(group.dirs, [mount.path().to_owned()], "{path}");
            let tightest = group.tightest().unwrap();
            assert_eq!((tightest.used, tightest.limit), (1, 10));
        }
    }

    #[test]
    fn missing_memory_controller_yields_none() {
        let mount = tempfile::tempdir().unwrap();
        for lines in ["", "0::/\n", "nonsense", "1:cpu:/a\n", "::", "0::/a:b\n"] {
            assert_eq!(MemoryGroup::below(mount.path(), lines), None, "{lines:?}");
        }
        write(mount.path(), &[("memory.current", "x"), ("memory.max", "-1")]);
        assert_eq!(MemoryGroup::below(mount.path(), "0::/\n"), None);
    }
}
