//! The system calls that the standard library has no words for: signals, pidfds, `poll`.
//!
//! Everything unsafe of the program is in this file, behind functions that are safe to call.
#![expect(unsafe_code, reason = "system calls; each block says why it is sound")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use ddp_doctor_proto::report::Exit;

/// Signals that we hand on to the command when they were sent to us alone. What the terminal sends
/// to the whole process group reaches the command without us.
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

/// How signals stood before we touched them: the command gets them that way.
#[derive(Clone, Copy)]
pub struct Signals {
    mask: libc::sigset_t,
}

impl std::fmt::Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signals")
    }
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its number.
    pub signal: i32,
    /// A process sent it to us, not the kernel (the terminal) to the whole process group.
    pub by_process: bool,
}

impl Signals {
    /// Blocks the signals that are handed on. Call it while the process has one thread: the others
    /// inherit it.
    #[must_use]
    pub fn take_over() -> Self {
        // SAFETY: both pointers are to live values; zeros are a valid `sigset_t`.
        unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, &forwarded(), &raw mut mask);
            Self { mask }
        }
    }

    /// Has the command start with signals as they were before.
    pub fn restore_in(self, command: &mut Command) {
        let restore = move || {
            // SAFETY: the pointer is to a live copy of what the same call returned; the old mask is
            // not asked for.
            unsafe {
                let none = std::ptr::null_mut();
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.mask, none);
            }
            Ok(())
        };
        // SAFETY: the closure makes one async-signal-safe call, and neither allocates nor locks.
        unsafe { command.pre_exec(restore) };
    }
}

/// Waits for one of the signals that are handed on. They must be blocked in every thread.
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

/// Waits for SIGINT or SIGTERM, which must have been blocked by [`block_interrupts`].
pub fn wait_for_interrupt() {
    let mut signal = 0;
    // SAFETY: both pointers are to live values.
    unsafe { libc::sigwait(&set(&[libc::SIGINT, libc::SIGTERM]), &raw mut signal) };
}

/// Blocks SIGINT and SIGTERM in this thread and those it starts.
pub fn block_interrupts() {
    let interrupts = set(&[libc::SIGINT, libc::SIGTERM]);
    // SAFETY: the pointer is to a live set; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const interrupts, std::ptr::null_mut()) };
}

/// Sends whatever is written to standard error nowhere, and lets go of where it went.
pub fn close_standard_error() {
    if let Ok(nothing) = File::options().write(true).open("/dev/null") {
        // SAFETY: both descriptors are open; standard error is not owned by any value.
        unsafe { libc::dup2(nothing.as_raw_fd(), libc::STDERR_FILENO) };
    }
}

/// Stops this process as Ctrl-Z does, so that the shell says so; returns once it is continued.
///
/// The action of the signal is the one that we were started with, and that the command has too.
/// While it is let through to this thread it stops all of them, and nothing is there to be undone
/// but this thread's mask.
pub fn stop_self() {
    let stop = set(&[libc::SIGTSTP]);
    let none = std::ptr::null_mut();
    // SAFETY: `raise` takes no pointer; the other pointers are to a live set, the old masks are not
    // asked for.
    unsafe {
        libc::raise(libc::SIGTSTP);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const stop, none);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const stop, none);
    }
}

/// A process that is still the one it was when this was opened, whatever becomes of its number.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process that has this number now.
    ///
    /// # Errors
    ///
    /// When there is none, or the kernel has no pidfds (before 5.3).
    pub fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: the call takes two integers; what it returns, if not negative, is a descriptor
        // that nobody else owns.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(OwnedFd::from_raw_fd(fd as i32)))
        }
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// When it is gone, or not ours.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let null = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: a null siginfo is allowed: the signal is then as from `kill`.
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal,
                null,
                0,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// How it ended, once its parent has reaped it (Linux 6.15 and later).
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        let mut info = PidFdInfo {
            mask: INFO_EXIT,
            ..PidFdInfo::default()
        };
        // SAFETY: the request's number contains the size of the struct that the pointer is to, and
        // the kernel writes no more than that.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), GET_INFO as libc::Ioctl, &raw mut info) };
        (result == 0 && info.mask & INFO_EXIT != 0).then(|| exit_of(info.exit_code))
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        poll(&[self.0.as_fd()], Duration::ZERO).is_ok_and(|ready| ready[0])
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `struct pidfd_info` of linux/pidfd.h in its first published size.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PidFdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// `PIDFD_INFO_EXIT`.
const INFO_EXIT: u64 = 1 << 3;
/// `_IOWR(0xFF, 11, struct pidfd_info)`.
const GET_INFO: u64 = 3 << 30 | (size_of::<PidFdInfo>() as u64) << 16 | 0xff << 8 | 11;

/// A wait status in our terms.
#[must_use]
pub const fn exit_of(status: i32) -> Exit {
    let signal = status & 0x7f;
    if signal == 0 {
        Exit {
            code: Some((status >> 8) & 0xff),
            signal: None,
        }
    } else {
        Exit {
            code: None,
            signal: Some(signal),
        }
    }
}

/// Waits until a child has ended, without reaping it: its `/proc` entry stays. Says how it ended.
///
/// # Errors
///
/// When there is no such child.
pub fn wait_without_reaping(pid: u32) -> io::Result<Exit> {
    loop {
        // SAFETY: the pointer is to a live value for which zeros are valid; after success it is the
        // kind of information that has a status.
        let (result, info, status) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOWAIT;
            let result = libc::waitid(libc::P_PID, pid, &raw mut info, flags);
            (result, info, info.si_status())
        };
        if result == 0 {
            return Ok(if info.si_code == libc::CLD_EXITED {
                Exit {
                    code: Some(status),
                    signal: None,
                }
            } else {
                Exit {
                    code: None,
                    signal: Some(status),
                }
            });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Waits until one of the descriptors can be read, at most so long; says which.
///
/// # Errors
///
/// When the kernel has no memory for it.
pub fn poll(fds: &[BorrowedFd<'_>], timeout: Duration) -> io::Result<Vec<bool>> {
    let mut polled: Vec<libc::pollfd> = fds
        .iter()
        .map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let millis = timeout.as_millis().min(60_000) as i32;
    // SAFETY: pointer and length are those of a live vector; the descriptors are borrowed.
    let result = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis) };
    if result < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(polled
        .iter()
        .map(|fd| result > 0 && fd.revents != 0)
        .collect())
}

/// Room in the file system of a file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What this user may still take.
    pub free: u64,
    /// All there is.
    pub total: u64,
}

/// Room in the file system of a file.
///
/// # Errors
///
/// When the system does not say.
pub fn space(file: &File) -> io::Result<Space> {
    // SAFETY: the descriptor is open, the pointer is to a live value for which zeros are valid.
    unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        if libc::fstatvfs(file.as_raw_fd(), &raw mut stat) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Space {
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
        })
    }
}

/// The user we run as.
#[must_use]
pub fn user_id() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Descriptors that this process may have.
#[must_use]
pub fn descriptor_limit() -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a live value.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// This host's name.
#[must_use]
pub fn host_name() -> String {
    let mut buffer = [0_u8; 256];
    // SAFETY: pointer and length are those of a live buffer; the last byte stays zero.
    unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
    let end = buffer.iter().position(|&byte| byte == 0).unwrap_or(0);
    String::from_utf8_lossy(&buffer[..end]).into_owned()
}

/// Clock ticks per second, the unit of process start times.
#[must_use]
pub fn ticks_per_second() -> u64 {
    // SAFETY: the call takes an integer.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).unwrap_or(100).max(1)
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
