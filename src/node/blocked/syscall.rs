//! The system call that a thread is in.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ddp_doctor_host::{proc, sys};

use crate::stack_reader::memory::{Memory, Pages, ProcessMemory};

/// Maximum number of descriptors that are read of a call of `poll`.
const MAX_DESCRIPTORS: u64 = 16;
/// Maximum length of a path, in bytes.
const MAX_PATH: usize = 4096;

const NANOSECOND: Duration = Duration::from_nanos(1);
const MICROSECOND: Duration = Duration::from_micros(1);

/// A system call with its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Syscall {
    number: i64,
    arguments: [u64; 6],
    pid: u32,
}

/// What a system call waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Argument {
    /// A descriptor, and what is done with it.
    Descriptor(&'static str, u32),
    /// One of several descriptors; and whether the call has a timeout.
    Descriptors(Vec<u32>, bool),
    /// A path, and what is done with it.
    Path(&'static str, String),
    /// A lock of the file of a descriptor.
    Lock(u32),
    /// The exit of a child; `None`: of any.
    Child(Option<u32>),
    /// Time: until the end of this sleep at the latest; `None`: it has no end, or this is unknown.
    Sleep(Option<Duration>),
    /// Another thread, or the end of its timeout: in this time at the latest.
    Thread(Duration),
}

impl Syscall {
    /// The call that a sleeping thread is in; `None` if it runs, or this may not be read.
    pub(super) fn read(pid: u32, tid: u32) -> Option<Self> {
        Self::parse(pid, &fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?)
    }

    fn parse(pid: u32, text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let number = words.next()?.parse().ok().filter(|&it: &i64| it >= 0)?;
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        Some(Self { number, arguments, pid })
    }

    /// Address of the futex that it waits for.
    pub(super) const fn futex(&self) -> Option<u64> {
        let [address, ..] = self.arguments;
        if self.number == libc::SYS_futex { Some(address) } else { None }
    }

    /// What it waits for; `None`: this is unknown.
    pub(super) fn argument(&self, memory: &impl Memory) -> Option<Argument> {
        let [first, second, third, fourth, fifth, _] = self.arguments;
        let descriptor = first as u32;
        let path = |verb, address| Some(Argument::Path(verb, path_at(memory, address)?));
        match self.number {
            libc::SYS_read
            | libc::SYS_pread64
            | libc::SYS_readv
            | libc::SYS_preadv
            | libc::SYS_getdents64 => Some(Argument::Descriptor("read of", descriptor)),
            libc::SYS_recvfrom | libc::SYS_recvmsg => {
                Some(Argument::Descriptor("read of", descriptor))
            }
            libc::SYS_write
            | libc::SYS_pwrite64
            | libc::SYS_writev
            | libc::SYS_sendto
            | libc::SYS_sendmsg => Some(Argument::Descriptor("write to", descriptor)),
            libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_ftruncate | libc::SYS_close => {
                Some(Argument::Descriptor("flush of", descriptor))
            }
            libc::SYS_connect => Some(Argument::Descriptor("connection of", descriptor)),
            libc::SYS_accept | libc::SYS_accept4 => {
                Some(Argument::Descriptor("connection to", descriptor))
            }
            libc::SYS_fstat => Some(Argument::Descriptor("status of", descriptor)),
            libc::SYS_openat => path("open of", second),
            libc::SYS_newfstatat | libc::SYS_statx | libc::SYS_faccessat => {
                path("status of", second)
            }
            libc::SYS_unlinkat | libc::SYS_mkdirat | libc::SYS_renameat | libc::SYS_renameat2 => {
                path("change of", second)
            }
            libc::SYS_readlinkat => path("read of", second),
            libc::SYS_flock => Some(Argument::Lock(descriptor)),
            libc::SYS_fcntl => {
                let waits = [libc::F_SETLKW, libc::F_OFD_SETLKW].contains(&(second as i32));
                waits.then_some(Argument::Lock(descriptor))
            }
            libc::SYS_wait4 => {
                let child = first as i32;
                Some(Argument::Child(u32::try_from(child).ok().filter(|&it| it > 0)))
            }
            libc::SYS_waitid => Some(Argument::Child((first == 1).then_some(second as u32))),
            libc::SYS_nanosleep => Some(Argument::Sleep(time_at(memory, first, NANOSECOND))),
            libc::SYS_clock_nanosleep => {
                let time = time_at(memory, third, NANOSECOND);
                let is_deadline = second as i32 & libc::TIMER_ABSTIME != 0;
                let left = |time| if is_deadline { self.until(first, time) } else { Some(time) };
                Some(Argument::Sleep(time.and_then(left)))
            }
            libc::SYS_futex => self.timeout_of_futex(memory).map(Argument::Thread),
            libc::SYS_ppoll => descriptors(memory, first, second, third != 0),
            libc::SYS_epoll_pwait => Some(self.watched(descriptor, fourth)),
            // `select` without descriptors is a sleep.
            libc::SYS_pselect6 if [second, third, fourth] == [0; 3] => {
                Some(Argument::Sleep(time_at(memory, fifth, NANOSECOND)))
            }
            _ => self.older_argument(memory),
        }
    }

    /// Time until a wait for a futex times out at the latest; `None`: it has no timeout (futex(2)).
    fn timeout_of_futex(&self, memory: &impl Memory) -> Option<Duration> {
        let [_, operation, _, timeout, ..] = self.arguments;
        let operation = operation as i32;
        let time = || time_at(memory, timeout, NANOSECOND);
        match operation & libc::FUTEX_CMD_MASK {
            libc::FUTEX_WAIT => time(),
            libc::FUTEX_WAIT_BITSET => {
                let is_real = operation & libc::FUTEX_CLOCK_REALTIME != 0;
                let clock = if is_real { libc::CLOCK_REALTIME } else { libc::CLOCK_MONOTONIC };
                self.until(clock as u64, time()?)
            }
            _ => None,
        }
    }

    /// Time until a clock of the process shows `time`. Other clocks, and those of another time namespace, are unknown.
    fn until(&self, clock: u64, time: Duration) -> Option<Duration> {
        let now = match clock as i32 {
            libc::CLOCK_MONOTONIC if proc::shares_time(self.pid) => {
                Duration::from_nanos(sys::monotonic_ns())
            }
            libc::CLOCK_REALTIME => SystemTime::now().duration_since(UNIX_EPOCH).ok()?,
            _ => return None,
        };
        Some(time.saturating_sub(now))
    }

    /// A wait for the descriptors that an epoll descriptor watches.
    fn watched(&self, epoll: u32, milliseconds: u64) -> Argument {
        Argument::Descriptors(watched(self.pid, epoll), is_timeout(milliseconds))
    }

    /// Calls that only older architectures have.
    #[cfg(target_arch = "x86_64")]
    fn older_argument(&self, memory: &impl Memory) -> Option<Argument> {
        let [first, second, third, fourth, fifth, _] = self.arguments;
        let path = |verb| Some(Argument::Path(verb, path_at(memory, first)?));
        match self.number {
            libc::SYS_open | libc::SYS_creat => path("open of"),
            libc::SYS_stat | libc::SYS_lstat | libc::SYS_access => path("status of"),
            libc::SYS_unlink | libc::SYS_mkdir | libc::SYS_rename | libc::SYS_rmdir => {
                path("change of")
            }
            libc::SYS_readlink => path("read of"),
            libc::SYS_poll => descriptors(memory, first, second, is_timeout(third)),
            libc::SYS_epoll_wait => Some(self.watched(first as u32, fourth)),
            libc::SYS_select if [second, third, fourth] == [0; 3] => {
                Some(Argument::Sleep(time_at(memory, fifth, MICROSECOND)))
            }
            _ => None,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn older_argument(&self, _memory: &impl Memory) -> Option<Argument> {
        None
    }
}

/// Whether a number of milliseconds limits a call; negative ones do not.
const fn is_timeout(milliseconds: u64) -> bool {
    milliseconds as i32 >= 0
}

/// Nanoseconds until the sleep of a process's main thread ends at the latest; `None`: it is in none, or this is unknown.
#[must_use]
pub fn end_of_sleep(pid: u32) -> Option<u64> {
    let memory = ProcessMemory::open(pid).ok()?;
    match Syscall::read(pid, pid)?.argument(&memory)? {
        Argument::Sleep(left) => left.map(nanoseconds),
        _ => None,
    }
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The time at an address: seconds, and parts of a second of this length, as in `timespec` and `timeval`. `None`:
/// there is none, so that a wait has no end, or it cannot be read.
fn time_at(memory: &impl Memory, address: u64, part: Duration) -> Option<Duration> {
    if address == 0 {
        return None;
    }
    let mut pages = Pages::new(memory);
    let seconds = pages.u64(address).ok()?;
    let parts = u32::try_from(pages.u64(address.checked_add(8)?).ok()?).ok()?;
    Duration::from_secs(seconds).checked_add(part.checked_mul(parts)?)
}

/// The descriptors of a call of `poll`.
fn descriptors(memory: &impl Memory, start: u64, count: u64, ends: bool) -> Option<Argument> {
    let mut pages = Pages::new(memory);
    let bytes = pages.vec(start, 8 * count.min(MAX_DESCRIPTORS) as usize).ok()?;
    let fds = bytes.chunks_exact(8).filter_map(|entry| {
        let fd = i32::from_le_bytes(*entry.first_chunk()?);
        u32::try_from(fd).ok()
    });
    Some(Argument::Descriptors(fds.collect(), ends))
}

/// The descriptors that an epoll descriptor watches.
fn watched(pid: u32, epoll: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{epoll}")).unwrap_or_default();
    let watched = text
        .lines()
        .filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok());
    watched.take(MAX_DESCRIPTORS as usize).collect()
}

fn path_at(memory: &impl Memory, start: u64) -> Option<String> {
    let mut pages = Pages::new(memory);
    let mut bytes = Vec::new();
    while bytes.len() < MAX_PATH {
        let mut byte = [0];
        pages.bytes(start.checked_add(bytes.len() as u64)?, &mut byte).ok()?;
        if byte == [0] {
            break;
        }
        bytes.extend(byte);
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Text(&'static [u8]);

    impl Memory for Text {
        fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
            let page = (address / 4096) == 1;
            if page {
                buffer.fill(0);
                buffer[..self.0.len()].copy_from_slice(self.0);
            }
            page
        }
    }

    fn argument(memory: &Text, text: &str) -> Option<Argument> {
        Syscall::parse(7, text)?.argument(memory)
    }

    #[test]
    fn arguments_of_system_calls_are_named() {
        let memory = Text(b"/data/shard-17.tar\0");
        let call = |number: i64, arguments: &str| {
            format!("{number} {arguments} 0x0 0x0 0x0 0x7ffc 0x7f19")
        };
        let read = argument(&memory, &call(libc::SYS_read, "0x5 0x1000 0x10"));
        assert_eq!(read, Some(Argument::Descriptor("read of", 5)));
        let open = argument(&memory, &call(libc::SYS_openat, "0xffffff9c 0x1000 0x0"));
        assert_eq!(open, Some(Argument::Path("open of", "/data/shard-17.tar".into())));
        let lock = argument(&memory, &call(libc::SYS_flock, "0x3 0x2 0x0"));
        assert_eq!(lock, Some(Argument::Lock(3)));
        let child = argument(&memory, &call(libc::SYS_wait4, "0x2a 0x0 0x0"));
        assert_eq!(child, Some(Argument::Child(Some(42))));
        let any = argument(&memory, &call(libc::SYS_wait4, "0xffffffff 0x0 0x0"));
        assert_eq!(any, Some(Argument::Child(None)));
        let futex = argument(&memory, &call(libc::SYS_futex, "0x1000 0x0 0x0"));
        assert_eq!(futex, None);
    }

    #[test]
    fn ends_of_sleeps_and_timeouts_are_read() {
        // 50 s and 7 parts of a second.
        const TIME: &[u8] = &[50, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        let call = |number: i64, arguments: &str| {
            let text = format!("{number} {arguments} 0x7ffc 0x7f19");
            Syscall::parse(std::process::id(), &text).unwrap().argument(&Text(TIME))
        };
        let nanoseconds = Duration::new(50, 7);
        let sleep = |left| Some(Argument::Sleep(left));
        let found = call(libc::SYS_nanosleep, "0x1000 0x0 0x0 0x0 0x0 0x0");
        assert_eq!(found, sleep(Some(nanoseconds)));
        let found = call(libc::SYS_clock_nanosleep, "0x1 0x0 0x1000 0x0 0x0 0x0");
        assert_eq!(found, sleep(Some(nanoseconds)));
        // The host was started more than 50 s ago, or its clock is past that time.
        let found = call(libc::SYS_clock_nanosleep, "0x0 0x1 0x1000 0x0 0x0 0x0");
        assert_eq!(found, sleep(Some(Duration::ZERO)), "a deadline of the past");
        let found = call(libc::SYS_clock_nanosleep, "0x2 0x1 0x1000 0x0 0x0 0x0");
        assert_eq!(found, sleep(None), "another clock");
        let found = call(libc::SYS_pselect6, "0x0 0x0 0x0 0x0 0x1000 0x0");
        assert_eq!(found, sleep(Some(nanoseconds)));
        let found = call(libc::SYS_pselect6, "0x0 0x0 0x0 0x0 0x0 0x0");
        assert_eq!(found, sleep(None), "no timeout");
        let found = call(libc::SYS_nanosleep, "0x9000 0x0 0x0 0x0 0x0 0x0");
        assert_eq!(found, sleep(None), "unreadable");
        // FUTEX_WAIT | FUTEX_PRIVATE_FLAG, and FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME.
        let found = call(libc::SYS_futex, "0x2000 0x80 0x0 0x1000 0x0 0x0");
        assert_eq!(found, Some(Argument::Thread(nanoseconds)));
        let found = call(libc::SYS_futex, "0x2000 0x189 0x0 0x1000 0x0 0xffffffff");
        assert_eq!(found, Some(Argument::Thread(Duration::ZERO)));
        assert_eq!(call(libc::SYS_futex, "0x2000 0x189 0x0 0x0 0x0 0xffffffff"), None);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn select_counts_microseconds() {
        let text = format!("{} 0x0 0x0 0x0 0x0 0x1000 0x0 0x7ffc 0x7f19", libc::SYS_select);
        let time = Text(&[50, 0, 0, 0, 0, 0, 0, 0, 7]);
        let left = Duration::from_micros(50_000_007);
        assert_eq!(argument(&time, &text), Some(Argument::Sleep(Some(left))));
    }

    #[test]
    fn running_thread_is_in_no_call() {
        for text in ["running", "-1 0x7ffc 0x7f19", ""] {
            assert_eq!(Syscall::parse(7, text), None, "{text}");
        }
    }

    #[test]
    fn descriptors_of_poll_are_read() {
        let memory = Text(&[6, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255, 1, 0, 0, 0]);
        let read = descriptors(&memory, 0x1000, 2, is_timeout(u64::MAX));
        assert_eq!(read, Some(Argument::Descriptors(vec![6], false)));
        assert!(is_timeout(0) && is_timeout(100) && !is_timeout(u64::from(u32::MAX)));
    }
}
