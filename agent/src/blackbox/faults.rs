//! Keeps a process alive when a file that it maps is truncated.
//!
//! Access to a page beyond the end of a mapped file raises SIGBUS, which kills the process. Without
//! this module, write access to a black box would be enough to kill its rank and every reader of
//! the box. The handler replaces the missing page with an anonymous page of zeros and marks the map
//! as damaged. All other SIGBUS signals go to the previous handler.
//!
//! The faulting instruction itself raises the signal, so no other thread is interrupted. A thread
//! that blocks SIGBUS is not protected: the kernel kills the process.
#![expect(unsafe_code, reason = "handles a signal, and maps pages in its handler")]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::thread;

/// Maximum number of maps of a process at a time. A follower has one per black box.
const MAX_MAPS: usize = 8192;

/// A map of a file.
struct Mapped {
    /// Address of the first byte; 0: free entry; [`TAKEN`]: entry being filled.
    start: AtomicUsize,
    /// Address after the last byte.
    end: AtomicUsize,
    is_damaged: AtomicBool,
}

/// Above every address, so that an entry being filled contains no address.
const TAKEN: usize = usize::MAX;

static MAPS: [Mapped; MAX_MAPS] = [const {
    Mapped {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        is_damaged: AtomicBool::new(false),
    }
}; MAX_MAPS];

/// Number of entries of [`MAPS`] that were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);
static PAGE: AtomicUsize = AtomicUsize::new(0);
static HANDLER: AtomicU8 = AtomicU8::new(NOT_INSTALLED);
static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::zeroed()));

/// States of [`HANDLER`].
const NOT_INSTALLED: u8 = 0;
const INSTALLING: u8 = 1;
const INSTALLED: u8 = 2;

/// The previous action of SIGBUS. Written once, before the handler can run.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: it is written by the thread that set `INSTALLING`, before the handler that reads it is installed.
unsafe impl Sync for Previous {}

/// Protection of a map against truncation of its file, while this value exists.
#[derive(Debug)]
pub(super) struct Protected(usize);

impl Protected {
    /// Protects the map of a file. `None`: there are too many maps.
    pub(super) fn new(start: usize, bytes: usize) -> Option<Self> {
        ensure_handler();
        let index = MAPS.iter().position(|map| {
            map.start.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })?;
        let map = &MAPS[index];
        map.is_damaged.store(false, Ordering::Relaxed);
        map.end.store(start + bytes, Ordering::Relaxed);
        map.start.store(start, Ordering::Release);
        USED.fetch_max(index + 1, Ordering::Release);
        Some(Self(index))
    }

    /// Whether a missing page was accessed.
    pub(super) fn is_damaged(&self) -> bool {
        MAPS[self.0].is_damaged.load(Ordering::Relaxed)
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        let map = &MAPS[self.0];
        map.start.store(TAKEN, Ordering::Relaxed);
        map.end.store(0, Ordering::Relaxed);
        map.start.store(0, Ordering::Release);
    }
}

/// Allows the installation of the handler in a forked child, whose parent may have had a thread in
/// the middle of it. Called in the child.
pub(crate) fn reset_after_fork() {
    if HANDLER.load(Ordering::Relaxed) == INSTALLING {
        HANDLER.store(NOT_INSTALLED, Ordering::Release);
    }
}

/// Installs the handler, or waits until another thread has. Unlike `Once`, it can be reset after a
/// fork.
fn ensure_handler() {
    loop {
        let state = HANDLER.compare_exchange(
            NOT_INSTALLED,
            INSTALLING,
            Ordering::Acquire,
            Ordering::Acquire,
        );
        match state {
            Ok(_) => {
                install();
                HANDLER.store(INSTALLED, Ordering::Release);
                return;
            }
            Err(INSTALLED) => return,
            Err(_) => thread::yield_now(),
        }
    }
}

fn install() {
    // SAFETY: `sysconf` takes a number. The pointers given to `sigaction` are to live values;
    // nothing else accesses `PREVIOUS` yet; the handler makes only async-signal-safe calls.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE);
        PAGE.store(usize::try_from(page).unwrap_or(4096), Ordering::Relaxed);
        let mut present: libc::sigaction = MaybeUninit::zeroed().assume_init();
        if libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut present) != 0
            || present.sa_sigaction == handle as *const () as usize
        {
            return; // installed before the fork that created this process
        }
        (*PREVIOUS.0.get()).write(present);
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
    }
}

/// Runs in the thread that accessed the page. The instruction is retried afterwards.
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`. `errno` is restored before the handler
    // returns.
    unsafe {
        let errno = *libc::__errno_location();
        let is_missing_page = (*info).si_code == libc::BUS_ADRERR;
        let is_replaced = is_missing_page && replace((*info).si_addr() as usize);
        if !is_replaced {
            pass_on(signal, info, context);
        }
        *libc::__errno_location() = errno;
    }
}

/// Replaces a missing page of a protected map with a page of zeros. Returns whether it succeeded.
fn replace(address: usize) -> bool {
    let used = USED.load(Ordering::Acquire).min(MAX_MAPS);
    let mut maps = MAPS[..used].iter();
    let Some(map) = maps.find(|map| {
        let (start, end) = (map.start.load(Ordering::Acquire), map.end.load(Ordering::Relaxed));
        start <= address && address < end
    }) else {
        return false;
    };
    map.is_damaged.store(true, Ordering::Relaxed);
    let page = PAGE.load(Ordering::Relaxed);
    let start = address & !(page - 1);
    // SAFETY: replaces one page of a map of this module, whose content is gone, by zeros: valid
    // words, which code in this folder accesses as atomic words.
    let replaced = unsafe {
        libc::mmap(
            start as *mut c_void,
            page,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    replaced != libc::MAP_FAILED
}

/// Does what would have happened without this handler.
///
/// # Safety
///
/// `info` and `context` are the ones that the kernel passed.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: `PREVIOUS` was written before this handler was installed. A handler in it has the
    // signature that its flags state.
    unsafe {
        let previous = (*PREVIOUS.0.get()).assume_init_ref();
        let was_sent = (*info).si_code <= 0;
        match previous.sa_sigaction {
            libc::SIG_IGN if was_sent => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const action, ptr::null_mut());
                // Retrying the instruction raises the fault again; a signal that was sent must be
                // sent again.
                if was_sent {
                    libc::raise(signal);
                }
            }
            handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
                std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
            }
            handler => {
                std::mem::transmute::<usize, unsafe extern "C" fn(c_int)>(handler)(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_installation_is_repeated_after_a_fork() {
        ensure_handler();
        // What a child has if another thread of its parent was installing the handler.
        HANDLER.store(INSTALLING, Ordering::Release);
        reset_after_fork();
        ensure_handler();
        assert_eq!(HANDLER.load(Ordering::Acquire), INSTALLED);
        // SAFETY: nothing writes it any more.
        let previous = unsafe { (*PREVIOUS.0.get()).assume_init_ref() };
        assert_ne!(previous.sa_sigaction, handle as *const () as usize);
    }
}
