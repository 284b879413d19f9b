//! System calls that resolve a name in an open directory.
#![expect(unsafe_code, reason = "every function here is a call into libc")]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Maximum length of the target of a link, as in the kernel.
const MAX_TARGET: usize = 4096;

/// Opens what a name refers to. With `None`, the name is resolved as the process resolves paths.
pub(super) fn open(
    dir: Option<BorrowedFd<'_>>,
    name: &CStr,
    flags: i32,
    mode: libc::mode_t,
) -> io::Result<OwnedFd> {
    let dir = dir.map_or(libc::AT_FDCWD, |it| it.as_raw_fd());
    loop {
        // SAFETY: the name is NUL-terminated.
        let fd = unsafe { libc::openat(dir, name.as_ptr(), flags | libc::O_CLOEXEC, mode) };
        if fd >= 0 {
            // SAFETY: the call succeeded, and nothing else knows the descriptor.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Type, owner and mode of what is open.
pub(super) fn status(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    let mut found = MaybeUninit::zeroed();
    // SAFETY: `found` is valid for the write.
    succeed(unsafe { libc::fstat(fd.as_raw_fd(), found.as_mut_ptr()) })?;
    // SAFETY: all zeros are a valid `stat`, and the call succeeded.
    Ok(unsafe { found.assume_init() })
}

/// Type, owner and mode of an entry, which is not followed if it is a link.
pub(super) fn status_of(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<libc::stat> {
    let mut found = MaybeUninit::zeroed();
    // SAFETY: the name is NUL-terminated; `found` is valid for the write.
    succeed(unsafe {
        libc::fstatat(dir.as_raw_fd(), name.as_ptr(), found.as_mut_ptr(), libc::AT_SYMLINK_NOFOLLOW)
    })?;
    // SAFETY: all zeros are a valid `stat`, and the call succeeded.
    Ok(unsafe { found.assume_init() })
}

/// Whether what is open is in `/proc`, whose links only the kernel makes.
pub(super) fn is_in_proc(fd: BorrowedFd<'_>) -> bool {
    let mut found = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `found` is valid for the write.
    let answer = unsafe { libc::fstatfs(fd.as_raw_fd(), found.as_mut_ptr()) };
    // SAFETY: all zeros are a valid `statfs`.
    let found = unsafe { found.assume_init() };
    // The C libraries disagree about the sign of both.
    answer == 0 && i128::from(found.f_type) == i128::from(libc::PROC_SUPER_MAGIC)
}

/// The id of the mount that is open, without a request to its file system. `None`: kernels before 5.8 do not state it.
pub(super) fn mount_id(fd: BorrowedFd<'_>) -> Option<u64> {
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY: the name is NUL-terminated; `found` is valid for the write. glibc has the function since 2.28 only.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_statx,
            fd.as_raw_fd(),
            c"".as_ptr(),
            flags,
            libc::STATX_MNT_ID,
            found.as_mut_ptr(),
        )
    };
    // SAFETY: all zeros are a valid `statx`.
    let found = unsafe { found.assume_init() };
    (answer == 0 && found.stx_mask & libc::STATX_MNT_ID != 0).then_some(found.stx_mnt_id)
}

/// Creates a directory that only this user may enter.
pub(super) fn make_dir(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: the name is NUL-terminated.
    succeed(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), 0o700) })
}

/// Gives an entry another name in the same directory.
pub(super) fn rename(dir: BorrowedFd<'_>, from: &CStr, to: &CStr) -> io::Result<()> {
    let dir = dir.as_raw_fd();
    // SAFETY: the names are NUL-terminated.
    succeed(unsafe { libc::renameat(dir, from.as_ptr(), dir, to.as_ptr()) })
}

/// Removes an entry that is not a directory.
pub(super) fn remove(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: the name is NUL-terminated.
    succeed(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), 0) })
}

/// The target of a link that is open.
pub(super) fn target(link: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut target = vec![0_u8; MAX_TARGET];
    // SAFETY: the name is NUL-terminated; at most the length of `target` is written to it.
    let length = unsafe {
        libc::readlinkat(link.as_raw_fd(), c"".as_ptr(), target.as_mut_ptr().cast(), target.len())
    };
    let Ok(length) = usize::try_from(length) else {
        return Err(io::Error::last_os_error());
    };
    target.truncate(length);
    Ok(target)
}

fn succeed(answer: i32) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
