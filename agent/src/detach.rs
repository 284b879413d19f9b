//! Starts a program that is not a child of this process.
//!
//! A child created with `fork` or `posix_spawn` would be visible: its end raises SIGCHLD, a `wait`
//! for any child returns it, and it has to be reaped. Instead, a first child that raises no signal
//! and is visible only to `wait` with `__WALL` or `__WCLONE` creates a second one and exits, so the
//! second is adopted by the system. Neither copies this process's memory, which may be large and
//! pinned, and no fork handlers run.
#![expect(unsafe_code, reason = "makes processes")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// Stack size of each of the two children, which only make a few system calls.
const STACK: usize = 32 << 10;
/// Number of descriptors closed one by one on kernels without `close_range` (before 5.9).
const DESCRIPTORS: c_int = 65_536;

/// Everything that the children need, prepared in advance because they must not allocate.
struct Task {
    program: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    inner_stack: *mut c_void,
    /// `errno` of the failed step, 0 on success; written by the children in the shared memory.
    error: c_int,
    /// Process id of the second child, written by it.
    pid: libc::pid_t,
}

/// Starts a program in its own session, in the root directory, with all signals blocked and with
/// this process's standard error. It inherits no other descriptors, so peers still see them close
/// when this process closes them.
///
/// Blocks the calling thread until the program is loaded, about a millisecond. Returns its process id.
pub(crate) fn start(
    program: &CStr,
    arguments: &[CString],
    environment: &[CString],
) -> io::Result<u32> {
    let arguments = pointers(arguments);
    let environment = pointers(environment);
    let mut stacks = vec![0_u128; 2 * STACK / size_of::<u128>()];
    let outer_stack = stacks.as_mut_ptr_range().end;
    // SAFETY: points into the middle of the vector.
    let inner_stack = unsafe { outer_stack.byte_sub(STACK) };
    let mut task = Task {
        program: program.as_ptr(),
        arguments: arguments.as_ptr(),
        environment: environment.as_ptr(),
        inner_stack: inner_stack.cast(),
        error: 0,
        pid: 0,
    };
    // SAFETY: the masks are live values. The children share this process's memory, and this thread
    // is suspended until both have exited or become the program (CLONE_VFORK), so everything `task`
    // refers to outlives them. They have stacks of their own, run no signal handlers and only make
    // system calls. `waitpid` waits for the child just created.
    unsafe {
        let mut every = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        libc::sigfillset(every.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, every.as_ptr(), before.as_mut_ptr());
        let child = libc::clone(
            outer,
            outer_stack.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK,
            (&raw mut task).cast(),
        );
        let error = io::Error::last_os_error();
        if child > 0 {
            while libc::waitpid(child, ptr::null_mut(), libc::__WALL) < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        if child < 0 {
            return Err(error);
        }
        match (&raw const task.error).read_volatile() {
            0 => Ok((&raw const task.pid).read_volatile().cast_unsigned()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// A null-terminated list of texts, as `execve` expects. Valid as long as `texts`.
fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    let texts = texts.iter().map(|text| text.as_ptr());
    texts.chain([ptr::null()]).collect()
}

/// The first child: creates the second.
extern "C" fn outer(task: *mut c_void) -> c_int {
    // SAFETY: `start` passes a live task that only the children access meanwhile; see there.
    unsafe {
        let task = task.cast::<Task>();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        if libc::clone(inner, (*task).inner_stack, flags, task.cast()) < 0 {
            (*task).error = *libc::__errno_location();
        }
    }
    0
}

/// The second child: becomes the program.
extern "C" fn inner(task: *mut c_void) -> c_int {
    // SAFETY: as above; the texts are NUL-terminated and the lists null-terminated.
    unsafe {
        let task = task.cast::<Task>();
        (*task).pid = libc::getpid();
        libc::setsid();
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        libc::dup2(nothing, 0);
        libc::dup2(nothing, 1);
        if libc::syscall(libc::SYS_close_range, 3, c_int::MAX, 0) != 0 {
            for fd in 3..DESCRIPTORS {
                libc::close(fd);
            }
        }
        libc::chdir(c"/".as_ptr());
        libc::execve((*task).program, (*task).arguments, (*task).environment);
        (*task).error = *libc::__errno_location();
    }
    127
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::*;

    fn c(text: &str) -> CString {
        CString::new(text).unwrap()
    }

    fn written(path: &Path) -> String {
        let started = Instant::now();
        while !path.exists() {
            assert!(started.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(5));
        }
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn program_is_detached_and_inherits_no_descriptors() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        // A descriptor without close-on-exec.
        let file = fs::File::open("/proc/self/status").unwrap();
        // SAFETY: the descriptor is open.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) };
        let script = "{ ls /proc/$$/fd; cut -d' ' -f4,6 /proc/$$/stat; echo $$ $PWD $X; } >$1.new; mv $1.new $1";
        let arguments = [c("sh"), c("-c"), c(script), c("sh"), c(out.to_str().unwrap())];
        let environment = [c("PATH=/usr/bin:/bin"), c("X=set")];
        let started = start(c"/bin/sh", &arguments, &environment).unwrap();
        let text = written(&out);
        let mut words = text.split_whitespace().rev();
        let mut word = || words.next().unwrap().to_owned();
        let (x, place, pid, session, parent) = (word(), word(), word(), word(), word());
        assert_eq!((x.as_str(), place.as_str()), ("set", "/"));
        assert_eq!(session, pid, "a session of its own");
        assert_eq!(pid, started.to_string());
        assert_ne!(parent, std::process::id().to_string());
        // The standard descriptors, and those from 10 on that the shell may use for redirections.
        let open: Vec<u32> = words.map(|it| it.parse().unwrap()).collect();
        assert!(open.iter().all(|it| *it < 3 || *it >= 10), "{text}");
    }

    #[test]
    fn start_leaves_no_child() {
        start(c"/bin/true", &[c("true")], &[]).unwrap();
        let status = ptr::null_mut();
        // Other threads have children of other tests.
        let flags = libc::WNOHANG | libc::__WNOTHREAD;
        // SAFETY: the status pointer may be null.
        let answer = unsafe { libc::waitpid(-1, status, flags) };
        let error = io::Error::last_os_error();
        assert_eq!(
            (answer, error.raw_os_error()),
            (-1, Some(libc::ECHILD)),
            "no child, living or dead"
        );
    }

    #[test]
    fn missing_program_is_an_error() {
        let error = start(c"/no/such/program", &[c("x")], &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(start(c"/", &[c("x")], &[]).is_err());
    }
}
