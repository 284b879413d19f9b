//! Other processes: descriptors of them, signals, and how children of this process end.
#![expect(unsafe_code, reason = "system calls; each block states why it is sound")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ddp_doctor_proto::report::Exit;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, WaitIdStatus, WaitOptions, waitid};

use crate::sys::{exit_of, poll};

/// Held while a child is reaped and while one is signaled by its pid.
static REAPING: Mutex<()> = Mutex::new(());
/// Whether this process is the subreaper of the processes below it.
static IS_SUBREAPER: AtomicBool = AtomicBool::new(false);

/// A pidfd: refers to the same process even after its pid is reused.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process that has this pid now.
    ///
    /// # Errors
    ///
    /// If there is none, or the system has no pidfds, see [`pidfds`].
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self(rustix::process::pidfd_open(as_pid(pid)?, PidfdFlags::empty())?))
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    ///
    /// If it is gone, or this process may not signal it.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        let null = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: a null siginfo is allowed, and means the same as with `kill`.
        let result = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, null, 0)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// How it ended, after its parent has reaped it (Linux 6.15 and later).
    #[must_use]
    pub fn exit(&self) -> Option<Exit> {
        let mut info = PidFdInfo { mask: INFO_EXIT, ..PidFdInfo::default() };
        // SAFETY: the request number contains the size of the struct behind the pointer, and the
        // kernel writes no more than that.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), GET_INFO as libc::Ioctl, &raw mut info) };
        (result == 0 && info.mask & INFO_EXIT != 0).then(|| exit_of(info.exit_code))
    }

    /// Whether the process has ended.
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

/// Checks that this process can open and use pidfds. Kernels before 5.3 cannot, and some sandboxes
/// do not allow it.
///
/// # Errors
///
/// If it cannot.
pub fn pidfds() -> io::Result<()> {
    PidFd::open(std::process::id())?.signal(0)
}

/// Makes this process the parent of every process below it whose own parent exits: all of them stay
/// below it, and keep their pids until this process reaps them.
///
/// # Errors
///
/// If the kernel does not support it (before 3.4).
pub fn become_subreaper() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    IS_SUBREAPER.store(true, Ordering::Relaxed);
    Ok(())
}

/// Whether [`become_subreaper`] succeeded.
#[must_use]
pub fn is_subreaper() -> bool {
    IS_SUBREAPER.load(Ordering::Relaxed)
}

/// Sends a signal to a child of this process.
///
/// The pid cannot be that of another process: it is in use until this process reaps the child, which
/// happens only in [`reap_child`], under the same lock.
///
/// # Errors
///
/// If it is not a child of this process, or was reaped.
pub fn signal_child(pid: u32, signal: i32) -> io::Result<()> {
    let _guard = REAPING.lock().unwrap_or_else(PoisonError::into_inner);
    wait_for_child(pid, WaitIdOptions::NOHANG)?;
    // SAFETY: the call takes integers; the pid is positive.
    match unsafe { libc::kill(pid.cast_signed(), signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reaps a child that has ended; does nothing if it has not.
pub fn reap_child(pid: u32) {
    let _guard = REAPING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Ok(pid) = as_pid(pid) {
        rustix::process::waitpid(Some(pid), WaitOptions::NOHANG).ok();
    }
}

/// Whether this is a child that is alive.
#[must_use]
pub fn is_living_child(pid: u32) -> bool {
    wait_for_child(pid, WaitIdOptions::NOHANG).is_ok_and(|exit| exit.is_none())
}

/// Waits until a child has ended, without reaping it, so that its `/proc` entry stays; returns how
/// it ended.
///
/// # Errors
///
/// If there is no such child.
pub fn wait_without_reaping(pid: u32) -> io::Result<Exit> {
    wait_for_child(pid, WaitIdOptions::empty()).map(Option::unwrap_or_default)
}

/// How a child ended, which stays unreaped; with `NOHANG`, `None`: it is alive.
fn wait_for_child(pid: u32, how: WaitIdOptions) -> io::Result<Option<Exit>> {
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | how;
    loop {
        match waitid(WaitId::Pid(as_pid(pid)?), how) {
            Err(Errno::INTR) => {}
            result => {
                let exit = |it: WaitIdStatus| Exit {
                    code: it.exit_status(),
                    signal: it.terminating_signal(),
                };
                return Ok(result?.map(exit));
            }
        }
    }
}

fn as_pid(pid: u32) -> io::Result<Pid> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn child_is_signaled_by_pid_until_it_is_reaped() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        assert!(is_living_child(pid));
        reap_child(pid);
        signal_child(pid, libc::SIGKILL).unwrap();
        let killed = Exit { code: None, signal: Some(libc::SIGKILL) };
        assert_eq!(wait_without_reaping(pid).unwrap(), killed);
        assert!(!is_living_child(pid));
        signal_child(pid, libc::SIGKILL).unwrap();
        reap_child(pid);
        assert!(signal_child(pid, libc::SIGKILL).is_err(), "the pid may be another process");
        assert!(child.wait().is_err());
    }

    #[test]
    fn only_children_are_signaled_by_pid() {
        assert!(signal_child(std::process::id(), 0).is_err());
        assert!(signal_child(1, 0).is_err());
        assert!(!is_living_child(1));
    }

    #[test]
    fn pidfds_are_available() {
        pidfds().unwrap();
    }
}
