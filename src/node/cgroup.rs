//! What control groups say of memory: how much there may be, how much is in use, and how many
//! processes the kernel killed for want of it.
//!
//! In version 2 (`memory.max`, `memory.current`, `memory.events`) and version 1 (`memory.limit_in_bytes`,
//! `memory.usage_in_bytes`, `memory.oom_control`), see the kernel's `cgroup-v2.rst` and
//! `cgroup-v1/memory.rst`. The count of kills is of any killer, also the host's own, whose victim was in
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
            Some(Usage { used, limit })
        });
        usages.min_by_key(|usage| usage.limit.saturating_sub(usage.used))
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
        let (used, limit) = (750, 1000);
        assert_eq!(group.tightest(), Some(Usage { used, limit }));
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
        let (used, limit) = (2000, 4096);
        assert_eq!(group.tightest(), Some(Usage { used, limit }));
    }

    #[test]
    fn a_path_of_the_host_leads_to_the_containers_own_group() {
        let mount = tempfile::tempdir().unwrap();
        let files = [("memory.max", "10"), ("memory.current", "1")];
        write(mount.path(), &files);
        for path in ["/docker/abc", "/../elsewhere", "/"] {
            let group = MemoryGroup::below(mount.path(), &format!("0::{path}\n")).unwrap();
            assert_eq!(group.dirs, [mount.path().to_owned()], "{path}");
            assert_eq!(group.tightest(), Some(Usage { used: 1, limit: 10 }));
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
