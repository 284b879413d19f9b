//! The holder of a mutex of the C library.

use super::Waiter;
use super::syscall::Syscall;
use crate::stack_reader::memory::{Memory, Pages};

/// Functions of the C library that wait for a mutex.
const FUNCTIONS: [&str; 2] = ["pthread_mutex_lock", "lll_lock_wait"];
/// Offset of the owner's thread id in glibc's `pthread_mutex_t`, which begins with the futex.
const OWNER: u64 = 8;

/// Thread id, in the pid namespace of the process, of the thread that holds the mutex for which a thread waits.
#[must_use]
pub fn owner<M: Memory>(waiter: Waiter<'_>, memory: &M) -> Option<u32> {
    let mut native = waiter.native.iter();
    native.find(|frame| FUNCTIONS.iter().any(|name| frame.function.contains(name)))?;
    let futex = Syscall::read(waiter.pid, waiter.tid)?.futex()?;
    let mut pages = Pages::new(memory);
    // Zero: it was released meanwhile.
    let number = |pages: &mut Pages<'_, M>, at: u64| pages.u32(at).ok().filter(|it| *it != 0);
    number(&mut pages, futex)?;
    number(&mut pages, futex.checked_add(OWNER)?)
}
