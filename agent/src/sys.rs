//! Safe wrappers of system calls.
#![expect(unsafe_code, reason = "every function here is a call into libc")]

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Nanoseconds on the monotonic clock, which all records use. Read through the vDSO, without a
/// system call.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec.cast_unsigned())
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec.cast_unsigned())
}

/// Effective user id of this process.
pub(crate) fn effective_uid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

pub(crate) fn effective_gid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::getegid() }
}

/// Thread id of the calling thread.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    let id = unsafe { libc::syscall(libc::SYS_gettid) }; // glibc has had a function for it only since 2.30
    u32::try_from(id).unwrap_or(0)
}

/// Whether this process may have a thread with this id. Only "no such thread" counts as proof.
pub(crate) fn thread_lives(tid: u32) -> bool {
    let Ok(tid) = i32::try_from(tid) else {
        return false;
    };
    // SAFETY: takes only numbers; signal 0 is not delivered.
    let answer = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, 0) };
    answer == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Name of the calling thread and its length.
pub(crate) fn thread_name() -> ([u8; 16], usize) {
    let mut name = [0_u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes, the size of `name`.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let length = name.iter().position(|&byte| byte == 0).unwrap_or(16);
    (name, length)
}

/// Lets a process, and those that it started, read the memory of this one where Yama restricts that. Has no effect
/// elsewhere.
pub(crate) fn admit_reader(pid: u32) {
    // SAFETY: PR_SET_PTRACER takes only numbers. An error means that there is nothing to admit.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(pid), 0, 0, 0) };
}

/// Bytes available to unprivileged users in the file system of this file or directory.
pub(crate) fn free_bytes(file: impl AsFd) -> io::Result<u64> {
    let mut answer = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the descriptor is open; `answer` is valid for the write.
    let status = unsafe { libc::fstatvfs(file.as_fd().as_raw_fd(), answer.as_mut_ptr()) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeros are a valid `statvfs`, and the call succeeded.
    let answer = unsafe { answer.assume_init() };
    Ok(answer.f_bavail.saturating_mul(answer.f_frsize))
}

/// Allocates the file's blocks, so that later writes through a map cannot raise SIGBUS because the
/// file system is full.
pub(crate) fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    // Exceeding RLIMIT_FSIZE raises SIGXFSZ, which kills the process by default.
    if bytes > file_size_limit() {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let bytes = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    for _ in 0..16 {
        // SAFETY: takes only numbers.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes) } {
            0 => return Ok(()),
            libc::EINTR => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
    Err(io::ErrorKind::Interrupted.into())
}

/// Sets the length of a file; what it gains takes no space before it is used.
pub(crate) fn set_length(file: &File, bytes: u64) -> io::Result<()> {
    // As in `reserve`.
    if bytes > file_size_limit() {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    file.set_len(bytes)
}

/// Locks a file exclusively or shared until it is closed. Returns whether it got the lock; does not
/// block.
pub(crate) fn lock(file: &File, exclusive: bool) -> io::Result<bool> {
    let kind = if exclusive { libc::LOCK_EX } else { libc::LOCK_SH };
    // SAFETY: takes only numbers.
    if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        error => Err(error),
    }
}

/// Whether an already loaded library has these functions; `None`: it is not loaded. Loads nothing.
#[cfg(feature = "cuda")]
pub(crate) fn has_functions(library: &CStr, names: &[&CStr]) -> Option<bool> {
    // SAFETY: the name is NUL-terminated. Nothing is loaded, so no code of the library runs.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: `handle` is a library handle, the names are NUL-terminated.
    let has = |name: &&CStr| unsafe { !libc::dlsym(handle, name.as_ptr()).is_null() };
    let has_all = names.iter().all(has);
    // SAFETY: releases the reference that `dlopen` took.
    unsafe { libc::dlclose(handle) };
    Some(has_all)
}

/// Runs `start` with signals blocked, so that threads it starts receive none.
#[cfg(feature = "cuda")]
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut every = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: the masks are live values, and the first call initializes what the second one reads.
    unsafe {
        libc::sigfillset(every.as_mut_ptr());
        // Raised by faults of the thread itself, see `blackbox/faults.rs`.
        libc::sigdelset(every.as_mut_ptr(), libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, every.as_ptr(), before.as_mut_ptr());
    }
    let started = start();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    started
}

/// File of the program or library that contains this code; `None`: unknown to the loader.
pub(crate) fn own_file() -> Option<PathBuf> {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    let here = own_file as *const () as *const libc::c_void;
    // SAFETY: the address is that of a function in this code; `found` is valid for the write.
    if unsafe { libc::dladdr(here, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: all zeros are a valid `Dl_info`, and the call succeeded.
    let name = unsafe { found.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: the loader's name of an object is NUL-terminated and lives as long as the object,
    // which contains this code.
    let name = unsafe { CStr::from_ptr(name) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// Maximum size of a file that this process may write, in bytes.
fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for the write.
    match unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } {
        0 => limit.rlim_cur,
        _ => u64::MAX,
    }
}

/// Registers `handler` to run in every forked child before `fork` returns there.
pub(crate) fn after_fork_in_child(handler: extern "C" fn()) -> io::Result<()> {
    // SAFETY: `handler` is a plain function that lives as long as this code; libc removes it when
    // the shared object that contains it is unloaded.
    match unsafe { libc::pthread_atfork(None, None, Some(handler)) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
