//! Where a program calls from: the address that a call returns to.
//!
//! It stands on the stack only until the function that is called makes room there for its own. So what is
//! exported is a few instructions that note it and go on to the function proper, with registers and stack
//! as they were. Which line it is of is looked up outside, by who reads the black box.

use std::cell::Cell;

thread_local! {
    static RETURNS_TO: Cell<usize> = const { Cell::new(0) };
}

/// The address that this thread's last call of an exported function returns to; 0: not known. Calls that
/// NCCL makes of itself count too: what is asked for is the program's as long as NCCL has not been called.
pub(crate) fn returns_to() -> usize {
    RETURNS_TO.try_with(Cell::get).unwrap_or(0)
}

/// Called by what is exported, before anything else.
#[cfg(target_arch = "x86_64")]
pub(crate) extern "C" fn note(address: usize) {
    // At the end of a thread there is nowhere to put it.
    RETURNS_TO.try_with(|it| it.set(address)).unwrap_or(());
}

/// Exports a function under its name that notes where it was called from and goes on to another one.
///
/// Registers of arguments are saved around the note; the stack, where further arguments and those that are
/// passed by value stand, is as it was when the other function begins.
#[cfg(target_arch = "x86_64")]
macro_rules! export {
    ($symbol:ident, ($($arg:ident: $type:ty),*), $to:path) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $symbol($($arg: $type),*) -> crate::abi::Status {
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "mov rdi, [rsp + 48]",
                // The stack is aligned where a function is called, by its convention.
                "sub rsp, 8",
                "call {note}",
                "add rsp, 8",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp {to}",
                note = sym crate::caller::note,
                to = sym $to,
            )
        }
    };
}

/// Elsewhere it is not known where a call comes from.
#[cfg(not(target_arch = "x86_64"))]
macro_rules! export {
    ($symbol:ident, ($($arg:ident: $type:ty),*), $to:path) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol($($arg: $type),*) -> crate::abi::Status {
            // SAFETY: the caller vouches for what it passes, to the one as to the other.
            unsafe { $to($($arg),*) }
        }
    };
}

pub(crate) use export;
