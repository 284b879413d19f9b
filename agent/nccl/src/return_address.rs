//! Finds out where a program calls NCCL: the return address of a call.
//!
//! The return address is at a known place of the stack only before the called function sets up its
//! frame. Each exported function is therefore a few instructions that store the return address and
//! jump to the actual function with unchanged registers and stack. The source line of the address
//! is resolved outside, by the reader of the black box.

use std::cell::Cell;

thread_local! {
    static RETURNS_TO: Cell<usize> = const { Cell::new(0) };
}

/// Return address of this thread's last call of an exported function; 0: unknown. Calls that NCCL
/// makes to itself overwrite it, so it must be read before NCCL is called.
pub(crate) fn returns_to() -> usize {
    RETURNS_TO.try_with(Cell::get).unwrap_or(0)
}

/// Stores the return address. Called first by every exported function.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) extern "C" fn note(address: usize) {
    // Thread-local storage may already be destroyed when a thread ends.
    RETURNS_TO.try_with(|it| it.set(address)).unwrap_or(());
}

/// Exports a function under its name, which stores its return address and jumps to another
/// function.
///
/// Argument registers are saved around the call of [`note`]. The stack, which holds further
/// arguments and those passed by value, is unchanged when the other function begins.
#[cfg(target_arch = "x86_64")]
macro_rules! export {
    ($symbol:ident, ($($arg:ident: $type:ty),*), $to:path) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $symbol($($arg: $type),*) -> crate::nccl::abi::Status {
            core::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "mov rdi, [rsp + 48]",
                // Aligns the stack to 16 bytes, as the calling convention requires.
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
                note = sym crate::return_address::note,
                to = sym $to,
            )
        }
    };
}

/// As on x86-64. Arguments are in registers x0 to x7 and on the stack, which the frame of the call of [`note`] leaves
/// unchanged; x30 is the return address.
#[cfg(target_arch = "aarch64")]
macro_rules! export {
    ($symbol:ident, ($($arg:ident: $type:ty),*), $to:path) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $symbol($($arg: $type),*) -> crate::nccl::abi::Status {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "mov x0, x30",
                "bl {note}",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                "b {to}",
                note = sym crate::return_address::note,
                to = sym $to,
            )
        }
    };
}

/// Other architectures: the return address is unknown.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
macro_rules! export {
    ($symbol:ident, ($($arg:ident: $type:ty),*), $to:path) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol($($arg: $type),*) -> crate::nccl::abi::Status {
            // SAFETY: the caller vouches for the arguments; both functions have the same
            // requirements.
            unsafe { $to($($arg),*) }
        }
    };
}

pub(crate) use export;
