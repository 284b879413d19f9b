//! System calls that the standard library lacks: signals, `poll`, limits, interfaces.
//!
//! All unsafe code of the program is in this file and in `processes.rs`, behind safe functions: the calls that rustix
//! does not have.
#![expect(unsafe_code, reason = "system calls; each block states why it is sound")]

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::Exit;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Rlimit, getrlimit, setrlimit};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Maximum time of one wait for descriptors.
const MAX_POLL: Duration = Duration::from_secs(60);
/// The character of Ctrl-C.
const INTERRUPT: u8 = 3;
/// Signals that are forwarded to the command if they were sent to this process only. A signal from
/// the terminal goes to the whole process group and reaches the command anyway.
const FORWARDED: [i32; 9] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTSTP,
    libc::SIGCONT,
    libc::SIGWINCH,
];

/// Whether [`ignore_file_size_signal`] replaced the default action of SIGXFSZ.
static IGNORES_FILE_SIZE_SIGNAL: AtomicBool = AtomicBool::new(false);

/// Makes a write beyond the maximum size of a file (`ulimit -f`) an error instead of the end of this
/// process.
pub fn ignore_file_size_signal() {
    // SAFETY: the call takes integers.
    let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if before == libc::SIG_DFL {
        IGNORES_FILE_SIZE_SIGNAL.store(true, Ordering::Relaxed);
    }
}

/// Returns memory that the allocator keeps for later to the kernel.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes an integer.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The signal mask before this process changed it, which the command gets.
#[derive(Clone, Copy)]
pub struct Signals {
    mask: libc::sigset_t,
}

impl std::fmt::Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signals")
    }
}

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Signal number.
    pub signal: i32,
    /// Whether a process sent it, as opposed to the kernel (the terminal).
    pub by_process: bool,
}

impl Signals {
    /// Blocks the forwarded signals. It must be called while the process has one thread, since
    /// later threads inherit the mask.
    #[must_use]
    pub fn take_over() -> Self {
        // SAFETY: both pointers are to live values; zeros are a valid `sigset_t`.
        unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, &forwarded(), &raw mut mask);
            Self { mask }
        }
    }

    /// Makes the command start with the previous mask, and the previous action of SIGXFSZ.
    pub fn restore_in(self, command: &mut Command) {
        let restore = move || {
            // SAFETY: the pointer is to a live copy of a mask from the same call; the pointer for
            // the old mask may be null.
            unsafe {
                let none = std::ptr::null_mut();
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, none);
                if IGNORES_FILE_SIZE_SIGNAL.load(Ordering::Relaxed) {
                    libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
                }
            }
            Ok(())
        };
        // SAFETY: the closure makes async-signal-safe calls only, and neither allocates nor locks.
        unsafe { command.pre_exec(restore) };
    }
}

/// Waits for one of the forwarded signals, which must be blocked in every thread.
#[must_use]
pub fn wait_for_signal() -> Option<Arrived> {
    // SAFETY: both pointers are to live values; zeros are a valid `siginfo_t`.
    let (signal, info) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        (libc::sigwaitinfo(&forwarded(), &raw mut info), info)
    };
    (signal > 0).then_some(Arrived {
        signal,
        by_process: info.si_code <= 0, // SI_USER, SI_QUEUE, SI_TKILL; the kernel's are positive
    })
}

/// Runs a function in a thread; `None` if it takes longer than `limit`, as on a network mount that does
/// not answer. It then continues in the background.
///
/// If it ends in time, so has the thread: [`Signals::take_over`] can still be called.
pub fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    within_unless_busy(limit, limit, work)
}

/// As [`within`], with the limit `busy` for a function that uses a processor or waits for one for at least half of the
/// time: on a busy host it is slow, and not blocked.
pub fn within_unless_busy<T: Send + 'static>(
    limit: Duration,
    busy: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    /// Time between two looks at a thread that is late.
    const POLL: Duration = Duration::from_millis(50);
    let (sender, receiver) = channel();
    let (start, started) = channel();
    let work = move || {
        // Signals are handled by the threads that expect them.
        let _mask = Signals::take_over();
        // The receiver waits for it.
        start.send(std::fs::read_link("/proc/thread-self")).ok();
        // A late result has no receiver.
        drop(sender.send(work()));
    };
    let begun = Instant::now();
    let thread = thread::Builder::new().name("ddp-files".into()).spawn(work).ok()?;
    let mut result = receiver.recv_timeout(limit);
    let mut path = None;
    while result.is_err() && begun.elapsed() < busy {
        path = path.or_else(|| started.try_recv().ok());
        // A thread that has not begun waits for a processor.
        let is_busy = path.as_ref().is_none_or(|path| {
            let ran = path.as_ref().ok().and_then(|path| scheduled(&Path::new("/proc").join(path)));
            ran.is_some_and(|it| it * 2 >= begun.elapsed())
        });
        if !is_busy {
            break;
        }
        result = receiver.recv_timeout(POLL);
    }
    let result = result.ok()?;
    thread.join().ok()?;
    Some(result)
}

/// Time for which a thread has run or waited for a processor.
fn scheduled(directory: &Path) -> Option<Duration> {
    let text = std::fs::read_to_string(directory.join("schedstat")).ok()?;
    let mut numbers = text.split_whitespace().map_while(|it| it.parse::<u64>().ok());
    Some(Duration::from_nanos(numbers.next()?.saturating_add(numbers.next()?)))
}

/// Waits for SIGINT or SIGTERM, which must have been blocked by [`block_interrupts`].
pub fn wait_for_interrupt() {
    let mut signal = 0;
    // SAFETY: both pointers are to live values.
    unsafe { libc::sigwait(&set(&[libc::SIGINT, libc::SIGTERM]), &raw mut signal) };
}

/// Blocks SIGINT and SIGTERM in this thread and those it starts.
pub fn block_interrupts() {
    let interrupts = set(&[libc::SIGINT, libc::SIGTERM]);
    // SAFETY: the pointer is to a live set; the pointer for the old mask may be null.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const interrupts, std::ptr::null_mut()) };
}

/// Redirects standard error to `/dev/null` and closes its previous file.
pub fn close_standard_error() {
    if let Ok(nothing) = File::options().write(true).open("/dev/null") {
        rustix::stdio::dup2_stderr(nothing).ok();
    }
}

/// Stops this process like Ctrl-Z, so that the shell reports it; returns once it is continued.
///
/// The action of SIGTSTP is the one that this process was started with. Unblocking the signal in
/// this thread stops all threads; only the mask of this thread has to be restored.
pub fn stop_self() {
    let stop = set(&[libc::SIGTSTP]);
    let none = std::ptr::null_mut();
    // SAFETY: `raise` takes no pointer; the other pointers are to a live set, and those for the old
    // masks may be null.
    unsafe {
        libc::raise(libc::SIGTSTP);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const stop, none);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const stop, none);
    }
}

/// Converts a wait status.
#[must_use]
pub const fn exit_of(status: i32) -> Exit {
    let signal = status & 0x7f;
    if signal == 0 {
        Exit { code: Some((status >> 8) & 0xff), signal: None }
    } else {
        Exit { code: None, signal: Some(signal) }
    }
}

/// Waits until at least one of the descriptors is readable, or until the timeout; returns which are
/// readable.
///
/// # Errors
///
/// If the system call fails, for example because memory is exhausted.
pub fn poll(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(timeout.min(MAX_POLL)).map_err(io::Error::other)?;
    let ready = match rustix::event::poll(&mut polled, Some(&timeout)) {
        Err(Errno::INTR) => 0,
        result => result?,
    };
    Ok(polled.iter().map(|fd| ready > 0 && !fd.revents().is_empty()).collect())
}

/// Space in a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Free space for this user.
    pub free: u64,
    /// Total space.
    pub total: u64,
}

/// Space in the file system of a file.
///
/// # Errors
///
/// If the system call fails.
pub fn space(file: &File) -> io::Result<Space> {
    let stat = rustix::fs::fstatvfs(file)?;
    Ok(Space {
        free: stat.f_bavail.saturating_mul(stat.f_frsize),
        total: stat.f_blocks.saturating_mul(stat.f_frsize),
    })
}

/// Whether the mounts of a process are of this user namespace, in which only root can make them.
#[must_use]
pub fn has_trusted_mounts(pid: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    /// `NS_GET_USERNS` of linux/nsfs.h.
    const OWNER: u32 = 0xb701;
    let Ok(mounts) = File::open(format!("/proc/{pid}/ns/mnt")) else { return false };
    // SAFETY: the call takes no argument.
    let owner = unsafe { libc::ioctl(mounts.as_raw_fd(), OWNER as libc::Ioctl) };
    if owner < 0 {
        return false;
    }
    // SAFETY: the call succeeded, and nothing else knows the descriptor.
    let owner = File::from(unsafe { OwnedFd::from_raw_fd(owner) });
    let identity = |it: std::fs::Metadata| (it.dev(), it.ino());
    let own = std::fs::metadata("/proc/self/ns/user").map(identity);
    owner.metadata().map(identity).is_ok_and(|owner| own.is_ok_and(|own| own == owner))
}

/// Effective user id of this process.
#[must_use]
pub fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Maximum number of file descriptors of this process.
#[must_use]
pub fn descriptor_limit() -> usize {
    let (soft, _) = limit(Resource::Descriptors);
    usize::try_from(soft).unwrap_or(usize::MAX)
}

/// Open descriptors without a use, which are closed when the process needs others at its end.
#[derive(Debug)]
pub struct Reserve(#[expect(dead_code, reason = "closed on drop")] Vec<OwnedFd>);

impl Reserve {
    /// Opens up to `count` descriptors.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let open = || File::open("/dev/null").ok().map(OwnedFd::from);
        Self(std::iter::from_fn(open).take(count).collect())
    }
}

/// A limit of this process before it was changed.
#[derive(Clone, Copy, Debug)]
pub struct FormerLimit {
    resource: Resource,
    soft: u64,
    hard: u64,
}

impl FormerLimit {
    /// Makes the command start with this limit.
    pub fn restore_in(self, command: &mut Command) {
        let restore = move || {
            set_limit(self.resource, self.soft, self.hard);
            Ok(())
        };
        // SAFETY: the closure makes one async-signal-safe call, and neither allocates nor locks.
        unsafe { command.pre_exec(restore) };
    }
}

/// Raises the limit of open descriptors to the most that is permitted.
pub fn raise_descriptor_limit() -> FormerLimit {
    let (soft, hard) = limit(Resource::Descriptors);
    set_limit(Resource::Descriptors, hard, hard);
    FormerLimit { resource: Resource::Descriptors, soft, hard }
}

/// Prevents core files of this process, which would contain its secrets.
pub fn forbid_core_files() -> FormerLimit {
    let (soft, hard) = limit(Resource::CoreFiles);
    // With 0, the kernel would still start a program that collects them (core(5)); one byte is too little for a file.
    set_limit(Resource::CoreFiles, hard.min(1), hard);
    FormerLimit { resource: Resource::CoreFiles, soft, hard }
}

/// The time of the monotonic clock, in nanoseconds, as in records.
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

/// Processor time that this process has used.
#[must_use]
pub fn processor_time() -> Duration {
    Duration::from_nanos(clock_ns(ClockId::ProcessCPUTime))
}

/// Makes the current thread run on this processor only.
///
/// # Errors
///
/// If this process may not use it.
pub fn use_processor(processor: u32) -> io::Result<()> {
    let processor = processor as usize;
    if processor >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}

fn clock_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The limit remains as it is on failure.
fn set_limit(resource: Resource, soft: u64, hard: u64) {
    let limited = |limit: u64| (limit != u64::MAX).then_some(limit);
    let limit = Rlimit { current: limited(soft), maximum: limited(hard) };
    setrlimit(resource.number(), limit).ok();
}

/// A resource that the system limits per process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Open file descriptors.
    Descriptors,
    /// Memory that is locked, in bytes.
    LockedMemory,
    /// Core files, in bytes.
    CoreFiles,
}

impl Resource {
    const fn number(self) -> rustix::process::Resource {
        match self {
            Self::Descriptors => rustix::process::Resource::Nofile,
            Self::LockedMemory => rustix::process::Resource::Memlock,
            Self::CoreFiles => rustix::process::Resource::Core,
        }
    }
}

/// The soft and the hard limit of this process; `u64::MAX`: unlimited.
#[must_use]
pub fn limit(resource: Resource) -> (u64, u64) {
    let limit = getrlimit(resource.number());
    (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX))
}

/// One address of a network interface, or an interface without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// Name of the interface.
    pub name: String,
    /// `IFF_UP`, `IFF_RUNNING`, `IFF_LOOPBACK` and others.
    pub flags: u32,
    /// An IPv4 or IPv6 address.
    pub address: Option<IpAddr>,
}

/// The network interfaces of this host with their addresses, in the order in which NCCL and Gloo see
/// them.
///
/// # Errors
///
/// If the system call fails.
pub fn interfaces() -> io::Result<Vec<InterfaceAddress>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the pointer is to a live value, which the call makes a list.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: a pointer of the list is null or to an entry that lives until `freeifaddrs`.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: every entry has a name that ends with a zero.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: an address is null or as long as its family requires; it need not be aligned.
        let address = unsafe { address_at(entry.ifa_addr) };
        found.push(InterfaceAddress {
            name: name.to_string_lossy().into_owned(),
            flags: entry.ifa_flags,
            address,
        });
        next = entry.ifa_next;
    }
    // SAFETY: the list is from `getifaddrs`, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// # Safety
///
/// The pointer is null, or to an address that is as long as its family requires.
unsafe fn address_at(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees it; the family is part of every address.
    let family = unsafe { (&raw const (*address).sa_family).read_unaligned() };
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the caller guarantees the length for this family.
            let it = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(it.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as before.
            let it = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(it.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// Name of this host.
#[must_use]
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Clock ticks per second, the unit of process start times.
#[must_use]
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

fn forwarded() -> libc::sigset_t {
    set(&FORWARDED)
}

fn set(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: the pointer is to a live value, which `sigemptyset` makes a set.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Asks the user on the terminal, without showing the answer; `None`: there is no terminal, or the
/// answer is empty or was interrupted.
///
/// # Errors
///
/// If the terminal fails.
pub fn ask_secret(prompt: &str) -> io::Result<Option<String>> {
    let Ok(mut terminal) = OpenOptions::new().read(true).write(true).open("/dev/tty") else {
        return Ok(None);
    };
    let settings = tcgetattr(&terminal)?;
    let mut silent = settings.clone();
    // Ctrl-C must not leave a terminal without echo behind: it ends the line instead.
    silent.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
    silent.local_modes.insert(LocalModes::ICANON);
    silent.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT;
    tcsetattr(&terminal, OptionalActions::Flush, &silent)?;
    let mut line = [0; 4096];
    let read = terminal.write_all(prompt.as_bytes()).and_then(|()| terminal.read(&mut line));
    tcsetattr(&terminal, OptionalActions::Flush, &settings).ok();
    terminal.write_all(b"\n")?;
    let line = line.get(..read?).unwrap_or_default();
    if line.contains(&INTERRUPT) {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(line);
    let answer = text.trim();
    Ok((!answer.is_empty()).then(|| answer.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_work_gets_more_time_than_blocked_work() {
        let brief = Duration::from_millis(50);
        let long = Duration::from_secs(60);
        let spin = || {
            let until = Instant::now() + Duration::from_millis(300);
            while Instant::now() < until {}
        };
        assert_eq!(within_unless_busy(brief, long, spin), Some(()));
        assert_eq!(within(brief, spin), None);
        let begun = Instant::now();
        let sleep = || thread::sleep(Duration::from_secs(300));
        assert_eq!(within_unless_busy(brief, long, sleep), None);
        assert!(begun.elapsed() < long);
    }
}
