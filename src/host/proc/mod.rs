//! Information about processes from `/proc`.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{DirEntryExt, FileExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use ddp_doctor_proto::ProcessState;
use ddp_doctor_proto::report::Exit;

use crate::processes::PidFd;
use crate::sys;

mod secrets;

pub use secrets::without_secrets;

/// Maximum length of the list of mappings that is read. That of a rank has less than 1 MiB.
const MAX_MAPS: u64 = 16 << 20;

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// State letter.
    pub letter: u8,
    /// Process id of the parent.
    pub parent: u32,
    /// Start time in clock ticks since boot, which distinguishes processes with the same pid. It is the
    /// same in every time namespace.
    pub start_ticks: u64,
    /// Wait status of a zombie; 0 if this process may not read it.
    pub exit_code: i32,
}

impl Stat {
    /// Reads the fields of a process.
    ///
    /// # Errors
    ///
    /// If there is no such process.
    pub fn read(pid: u32) -> io::Result<Self> {
        parse(&fs::read(format!("/proc/{pid}/stat"))?).ok_or_else(unreadable)
    }

    /// The process state for the letter.
    #[must_use]
    pub const fn state(&self) -> ProcessState {
        match self.letter {
            b'R' => ProcessState::Running,
            b'S' | b'I' => ProcessState::Sleeping,
            b'D' => ProcessState::DiskSleep,
            b'T' | b't' => ProcessState::Stopped,
            b'Z' => ProcessState::Zombie,
            b'X' | b'x' => ProcessState::Dead,
            _ => ProcessState::Unspecified,
        }
    }
}

/// The living ancestors of a process, the nearest first.
pub fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    // Limited below, since a reused pid could make the chain a cycle.
    let parent = |pid: &u32| Stat::read(*pid).ok().map(|stat| stat.parent);
    std::iter::successors(parent(&pid), parent).take_while(|&pid| pid > 0).take(64)
}

/// A watched process: its state and its exit status.
#[derive(Debug)]
pub struct Watched {
    pid: u32,
    start_ticks: u64,
    /// Kept open, so that another read costs one system call.
    stat: File,
    fd: Option<PidFd>,
    /// `cgroup.events` of its cgroup, if that can be frozen.
    cgroup: Option<PathBuf>,
}

impl Watched {
    /// Watches the process with this pid and start time; `None` if it is gone. The pid may be that
    /// of a pid namespace below this one, such as that of a container started by the command: another user's process
    /// can have that number here, so those of this user come first.
    ///
    /// # Errors
    ///
    /// If this process lacks descriptors or memory: the other one may be alive.
    pub fn new(pid: u32, start_ticks: u64) -> io::Result<Option<Self>> {
        let here = Self::open(pid, start_ticks)?;
        if here.as_ref().is_some_and(|it| owner(it.pid) == Some(sys::user_id())) {
            return Ok(here);
        }
        match in_namespaces_below(pid, start_ticks)?[..] {
            [] => Ok(here),
            [ours] => Self::open(ours, start_ticks),
            _ => Ok(None),
        }
    }

    fn open(pid: u32, start_ticks: u64) -> io::Result<Option<Self>> {
        // The descriptor comes first: later reads are of the same process, or fail.
        let fd = if_possible(PidFd::open(pid))?;
        let Some(stat) = if_possible(File::open(format!("/proc/{pid}/stat")))? else {
            return Ok(None);
        };
        let watched = Self { pid, start_ticks, stat, fd, cgroup: cgroup_events(pid) };
        Ok(watched.stat().map(|_| watched))
    }

    /// Its pid in this pid namespace.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Its start time in clock ticks since boot.
    #[must_use]
    pub const fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// A descriptor that is readable once the process has ended; `None` on kernels without pidfds.
    #[must_use]
    pub const fn fd(&self) -> Option<&PidFd> {
        self.fd.as_ref()
    }

    /// `cgroup.events` of its cgroup, if that can be frozen.
    #[must_use]
    pub fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_deref()
    }

    /// Reads its current fields; `None` once it is gone.
    #[must_use]
    pub fn stat(&self) -> Option<Stat> {
        let mut buffer = [0; 1024];
        let length = self.stat.read_at(&mut buffer, 0).ok()?;
        parse(&buffer[..length]).filter(|stat| stat.start_ticks == self.start_ticks)
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match &self.fd {
            Some(fd) => fd.has_ended(),
            None => self.stat().is_none_or(|stat| stat.state() == ProcessState::Zombie),
        }
    }

    /// Its exit status, as far as it is known: from the zombie, or from the kernel after it was
    /// reaped.
    #[must_use]
    pub fn exit(&self) -> Exit {
        if let Some(stat) = self.stat().filter(|stat| stat.state() == ProcessState::Zombie) {
            // A status that may not be read shows as 0; newer kernels provide it below.
            if stat.exit_code != 0 || may_inspect(self.pid) {
                return sys::exit_of(stat.exit_code);
            }
        }
        self.fd.as_ref().and_then(PidFd::exit).unwrap_or_default()
    }
}

/// Whether the cgroup with this `cgroup.events` is frozen.
#[must_use]
pub fn is_frozen(cgroup_events: &Path) -> bool {
    fs::read_to_string(cgroup_events).is_ok_and(|text| text.lines().any(|line| line == "frozen 1"))
}

/// Whether a process with this pid and start time is alive; also true if that is unknown for lack of
/// descriptors.
#[must_use]
pub fn is_alive(pid: u32, start_ticks: u64) -> bool {
    if_possible(Stat::read(pid)).map_or(true, |stat| {
        stat.is_some_and(|stat| {
            stat.start_ticks == start_ticks
                && !matches!(stat.state(), ProcessState::Zombie | ProcessState::Dead)
        })
    })
}

/// A value that exists or not: the error is returned only if this process lacks descriptors or memory,
/// which says nothing about the other one.
fn if_possible<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    let is_lack = |error: &io::Error| {
        matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
    };
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_lack(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Id of the current boot of this host; empty if it cannot be read.
#[must_use]
pub fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Name of the namespace in which this process and those that it sees have their pids; empty if it cannot be read.
#[must_use]
pub fn pid_namespace() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.to_string_lossy().into_owned()
}

/// Whether the monotonic clock of a process is that of this one: they have one time namespace.
#[must_use]
pub fn shares_time(pid: u32) -> bool {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/time"));
    // Kernels before 5.6 have none.
    match (of("self"), of(&pid.to_string())) {
        (Ok(own), Ok(other)) => own == other,
        (Err(own), Err(_)) => own.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// Pids of all current processes.
///
/// # Errors
///
/// If `/proc` cannot be read.
pub fn pids() -> io::Result<Vec<u32>> {
    Ok(all_with_inodes()?.into_iter().map(|(pid, _)| pid).collect())
}

/// Pids of all processes, with the inode of their directory in `/proc`: another process with the same pid has another
/// inode, and the same process can get another one, too.
///
/// # Errors
///
/// Like [`pids`].
pub fn all_with_inodes() -> io::Result<Vec<(u32, u64)>> {
    let entries = fs::read_dir("/proc")?.flatten();
    let process = |entry: fs::DirEntry| {
        let inode = entry.ino();
        Some((entry.file_name().to_str()?.parse().ok()?, inode))
    };
    Ok(entries.filter_map(process).collect())
}

/// Pids of the children of a process.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let mut children = pids().unwrap_or_default();
    children.retain(|&it| Stat::read(it).is_ok_and(|stat| stat.parent == pid));
    children
}

/// Arguments of a process, without secrets and credentials; empty if they cannot be read.
#[must_use]
pub fn arguments(pid: u32) -> Vec<String> {
    without_secrets(zero_separated(pid, "cmdline"))
}

/// Name of the program that a process executes, of which the kernel keeps 15 bytes.
#[must_use]
pub fn name(pid: u32) -> Option<String> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

/// Path of the program that a process executes, without links.
#[must_use]
pub fn program(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Environment of a process at its start; empty if it cannot be read.
#[must_use]
pub fn environment(pid: u32) -> Vec<String> {
    zero_separated(pid, "environ")
}

/// Whether a process maps a library whose file name has one of these prefixes.
#[must_use]
pub fn maps_library(pid: u32, prefixes: &[&str]) -> bool {
    File::open(format!("/proc/{pid}/maps"))
        .is_ok_and(|maps| names_library(BufReader::new(maps), prefixes))
}

/// Whether a library is among the first mappings. Another user can have mapped any number of files, with long names:
/// one line at a time is kept, and [`MAX_MAPS`] bytes are read.
fn names_library(maps: impl BufRead, prefixes: &[&str]) -> bool {
    maps.take(MAX_MAPS).split(b'\n').map_while(Result::ok).any(|line| {
        let file = line.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        prefixes.iter().any(|prefix| file.starts_with(prefix.as_bytes()))
    })
}

/// Contents of `/proc/PID/cgroup`.
#[must_use]
pub fn cgroups(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default()
}

/// Limit of the address space of a process (`ulimit -v`), in bytes; `None` without a limit.
#[must_use]
pub fn address_space_limit(pid: u32) -> Option<u64> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let mut lines = limits.lines();
    let soft = lines.find_map(|line| line.strip_prefix("Max address space"))?;
    soft.split_whitespace().next()?.parse().ok()
}

/// Free and total space in the `/dev/shm` of a process, which differs between containers.
#[must_use]
pub fn shared_memory(pid: u32) -> Option<sys::Space> {
    // The process may have made anything of it, such as a FIFO, whose opening blocks, or a link to a device.
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let place = File::options()
        .read(true)
        .custom_flags(flags)
        .open(format!("/proc/{pid}/root/dev/shm"))
        .ok()?;
    sys::space(&place).ok()
}

/// Shared memory in the resident set of a process, in bytes.
#[must_use]
pub fn resident_shared(pid: u32) -> Option<u64> {
    shared_of(&read_lossy(format!("/proc/{pid}/status")).ok()?)
}

fn shared_of(status: &str) -> Option<u64> {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix("RssShmem:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Maximum number of bytes read of a command line or an environment.
const MAX_BLOCK: u64 = 1 << 20;

fn zero_separated(pid: u32, file: &str) -> Vec<String> {
    let mut bytes = Vec::new();
    let read = File::open(format!("/proc/{pid}/{file}"))
        .and_then(|file| file.take(MAX_BLOCK).read_to_end(&mut bytes));
    if read.is_err() {
        return Vec::new();
    }
    let pieces = bytes.split(|&byte| byte == 0).filter(|piece| !piece.is_empty());
    pieces.map(|piece| String::from_utf8_lossy(piece).into_owned()).collect()
}

/// Whether a process belongs to the user of this one.
#[must_use]
pub fn is_own(pid: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    // Of root as well, if the kernel protects it (proc(5)), whatever its user.
    let shown = fs::metadata(format!("/proc/{pid}")).ok().map(|it| it.uid());
    let own = Some(sys::user_id());
    shown == own && owner(pid) == own
}

/// A file of `/proc` with names that other users choose, such as those of processes and mounts, which may be of any bytes.
///
/// # Errors
///
/// If it cannot be read.
pub fn read_lossy(file: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(file)?).into_owned())
}

/// The user that started a process. `None`: it has ended.
#[must_use]
pub fn owner(pid: u32) -> Option<u32> {
    let status = read_lossy(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().next()?.parse().ok()
}

/// Whether this process may read what the kernel shows only to the owner of a process.
fn may_inspect(pid: u32) -> bool {
    sys::user_id() == 0 || is_own(pid)
}

fn cgroup_events(pid: u32) -> Option<PathBuf> {
    let groups = cgroups(pid);
    let path = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::/"))?);
    // In a namespace of cgroups, a group above its root begins with `..`.
    if !path.components().all(|it| matches!(it, Component::Normal(_))) {
        return None;
    }
    let events = Path::new("/sys/fs/cgroup").join(path).join("cgroup.events");
    events.exists().then_some(events)
}

/// Pids in this namespace of the processes of this user that have this pid in a namespace below and started at this
/// time. Containers can start at one tick; other users can start processes with any pid in namespaces of their own.
fn in_namespaces_below(pid: u32, start_ticks: u64) -> io::Result<Vec<u32>> {
    let pid = pid.to_string();
    let mut processes = if_possible(pids())?.unwrap_or_default();
    processes.retain(|ours| {
        let is_it = || {
            let status = read_lossy(format!("/proc/{ours}/status")).ok()?;
            let numbers: Vec<&str> = status
                .lines()
                .find_map(|line| line.strip_prefix("NSpid:"))?
                .split_whitespace()
                .collect();
            Some(numbers.len() > 1 && numbers.last() == Some(&pid.as_str()))
        };
        let is_of_start = Stat::read(*ours).is_ok_and(|stat| stat.start_ticks == start_ticks);
        is_of_start && is_it() == Some(true) && owner(*ours) == Some(sys::user_id())
    });
    Ok(processes)
}

/// Parses `/proc/PID/stat`. The command name is in parentheses and may contain any character, so
/// that fields are counted from the last closing parenthesis.
fn parse(bytes: &[u8]) -> Option<Stat> {
    let text = String::from_utf8_lossy(bytes);
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
    // `fields[0]` is field 3 of proc(5).
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Stat {
        letter: *field(3)?.as_bytes().first()?,
        parent: field(4)?.parse().ok()?,
        start_ticks: ddp_doctor_agent::host_ticks(field(22)?.parse().ok()?),
        exit_code: field(52)?.parse().ok()?,
    })
}

fn unreadable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "unexpected format of a file in /proc")
}

#[cfg(test)]
mod tests;
