//! What control groups say of memory: how much there may be, how much is in use, and how many
//! processes the kernel killed for want of it.
//!
//! In version 2 (`memory.max`, `memory.current`, `memory.events`) and version 1 (`memory.limit_in_bytes`,
//! `memory.usage_in_bytes`, `memory.failcnt`, `memory.oom_control`), see the kernel's `cgroup-v2.rst` and
//! `cgroup-v1/memory.rst`. That a group is held at its limit means little by itself: pages of files fill
//! it up to there, and are given back. The count of kills is of any killer, also the host's own, whose victim was in
//! the group; version 1 has it since Linux 4.13.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Where control groups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";
/// Groups around a group that are looked at, itself among them.
const DEEPEST: usize = 16;

/// The control group that counts the memory of a process, and those around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryGroup {
    /// The innermost first.
    dirs: Vec<PathBuf>,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// How full something is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// In use, what the kernel can take back left out.
    pub used: u64,
    /// What there may be.
    pub limit: u64,
    /// How often somebody in there came up against that, and memory had to be taken back first.
    pub held: Option<u64>,
    /// The same with the lower limit from which on they are slowed down; version 1 has none.
    pub slowed: Option<u64>,
}

impl MemoryGroup {
    /// The group that these lines of `/proc/PID/cgroup` name; `None`: no memory is counted there, or it is
    /// not to be seen from here.
    #[must_use]
    pub fn of(lines: &str) -> Option<Self> {
        Self::below(Path::new(MOUNT), lines)
    }

    fn below(mount: &Path, lines: &str) -> Option<Self> {
        let mut found = None;
        for line in lines.lines() {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            if controllers.split(',').any(|it| it == "memory") {
                // A hierarchy of version 1 that counts memory leaves nothing to one of version 2.
                found = Some((Version::One, mount.join("memory"), path));
                break;
            }
            if controllers.is_empty() {
                found = Some((Version::Two, mount.to_owned(), path));
            }
        }
        let (version, root, path) = found?;
        let path = Path::new(path.trim_start_matches('/'));
        let is_plain = path
            .components()
            .all(|it| matches!(it, Component::Normal(_)));
        // In a container the path may be the host's, while the mount begins at the container's own group.
        let own = Some(root.join(path)).filter(|own| is_plain && own.is_dir());
        let own = own.unwrap_or_else(|| root.clone());
        let dirs = own.ancestors().take_while(|dir| dir.starts_with(&root));
        let group = Self {
            dirs: dirs.take(DEEPEST).map(Path::to_owned).collect(),
            version,
        };
        group.used(group.dirs.first()?).map(|_| group.clone())
    }

    /// How many processes of the group the kernel has killed for want of memory.
    #[must_use]
    pub fn oom_kills(&self) -> Option<u64> {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.dirs.first()?.join(file)).ok()?;
        value(&text, "oom_kill")
    }

    /// Of the group and those around it that have a limit, the one with the least room.
    #[must_use]
    pub fn tightest(&self) -> Option<Usage> {
        let usages = self.dirs.iter().filter_map(|dir| {
            let limit = self.limit(dir)?;
            let used = self.used(dir)?;
            Some((dir, used, limit))
        });
        let (dir, used, limit) =
            usages.min_by_key(|(_, used, limit)| limit.saturating_sub(*used))?;
        let (held, slowed) = self.held(dir);
        Some(Usage {
            used,
            limit,
            held,
            slowed,
        })
    }

    /// How often somebody came up against the limits of this group, not of those within.
    fn held(&self, dir: &Path) -> (Option<u64>, Option<u64>) {
        match self.version {
            Version::One => (number(&dir.join("memory.failcnt")), None),
            Version::Two => {
                let local = fs::read_to_string(dir.join("memory.events.local"));
                // Before Linux 5.2 groups within were counted too.
                let text = local.or_else(|_| fs::read_to_string(dir.join("memory.events")));
                let text = text.unwrap_or_default();
                (value(&text, "max"), value(&text, "high"))
            }
        }
    }

    fn limit(&self, dir: &Path) -> Option<u64> {
        /// Version 1 writes a number that no machine has where there is no limit.
        const NONE: u64 = 1 << 60;
        let file = match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        number(&dir.join(file)).filter(|&limit| limit < NONE)
    }

    fn used(&self, dir: &Path) -> Option<u64> {
        let (file, inactive, active) = match self.version {
            Version::One => (
                "memory.usage_in_bytes",
                "total_inactive_file",
                "total_active_file",
            ),
            Version::Two => ("memory.current", "inactive_file", "active_file"),
        };
        let used = number(&dir.join(file))?;
        // Pages of files are given back before anything is killed.
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let files = [inactive, active].map(|name| value(&stat, name).unwrap_or(0));
        Some(used.saturating_sub(files.iter().sum()))
    }
}

/// How many processes the kernel has killed for want of memory on this host.
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
    fn version_two_is_read_with_the_groups_around() {
        let mount = tempfile::tempdir().unwrap();
        let pod = mount.path().join("pod");
        write(mount.path(), &[("cgroup.controllers", "memory")]);
        write(
            &pod,
            &[
                ("memory.max", "1000\n"),
                ("memory.current", "900\n"),
                (
                    "memory.stat",
                    "anon 500\ninactive_file 100\nactive_file 50\n",
                ),
            ],
        );
        write(
            &pod.join("box"),
            &[
                ("memory.max", "max\n"),
                ("memory.current", "800\n"),
                (
                    "memory.events",
                    "low 0\noom 3\noom_kill 2\noom_group_kill 0\n",
                ),
            ],
        );
        let group = MemoryGroup::below(mount.path(), "0::/pod/box\n").unwrap();
        assert_eq!(group.oom_kills(), Some(2));
        let tightest = group.tightest().unwrap();
        assert_eq!((tightest.used, tightest.limit), (750, 1000));
        assert_eq!((tightest.held, tightest.slowed), (None, None));
    }

    /// What Linux 6.1 writes for a group that has been held at `memory.max`, and at `memory.high` below it.
    const EVENTS: &str =
        "low 0\nhigh 4213\nmax 312\noom 3\noom_kill 2\noom_group_kill 0\nsock_throttled 0\n";

    #[test]
    fn how_often_a_group_was_held_is_counted_where_it_is_tight() {
        let mount = tempfile::tempdir().unwrap();
        let pod = mount.path().join("pod");
        write(
            &pod,
            &[
                ("memory.max", "1000\n"),
                ("memory.current", "990\n"),
                ("memory.events", EVENTS),
            ],
        );
        write(
            &pod.join("box"),
            &[
                ("memory.max", "5000\n"),
                ("memory.current", "980\n"),
                ("memory.events", "low 0\nhigh 0\nmax 7\noom 0\noom_kill 0\n"),
            ],
        );
        let held = || {
            let group = MemoryGroup::below(mount.path(), "0::/pod/box\n").unwrap();
            let tightest = group.tightest().unwrap();
            (tightest.limit, tightest.held, tightest.slowed)
        };
        assert_eq!(held(), (1000, Some(312), Some(4213)));
        // What groups within were held for is not this one's.
        let local = "low 0\nhigh 0\nmax 305\noom 3\noom_kill 0\noom_group_kill 0\n";
        write(&pod, &[("memory.events.local", local)]);
        assert_eq!(held(), (1000, Some(305), Some(0)));
    }

    #[test]
    fn version_one_is_read_beside_the_others() {
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
                (
                    "memory.stat",
                    "total_inactive_file 1000\ntotal_active_file 0\n",
                ),
                (
                    "memory.oom_control",
                    "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
                ),
            ],
        );
        let lines = "9:name=systemd:/\n4:cpu,memory:/job\n0::/\n";
        let group = MemoryGroup::below(mount.path(), lines).unwrap();
        assert_eq!(group.oom_kills(), Some(1));
        let expected = Usage {
            used: 2000,
            limit: 4096,
            held: Some(1897),
            slowed: None,
        };
        assert_eq!(group.tightest(), Some(expected));
    }

    #[test]
    fn a_path_of_the_host_leads_to_the_containers_own_group() {
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
    fn what_counts_no_memory_is_none() {
        let mount = tempfile::tempdir().unwrap();
        for lines in ["", "0::/\n", "nonsense", "1:cpu:/a\n", "::", "0::/a:b\n"] {
            assert_eq!(MemoryGroup::below(mount.path(), lines), None, "{lines:?}");
        }
        write(
            mount.path(),
            &[("memory.current", "x"), ("memory.max", "-1")],
        );
        assert_eq!(MemoryGroup::below(mount.path(), "0::/\n"), None);
    }
}
