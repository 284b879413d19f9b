//! `libddp_doctor_nccl_soname.so`: records NCCL calls, under the soname of NCCL.
//!
//! If a program loads NCCL itself (`dlopen("libnccl.so.2")`) and looks functions up in that handle,
//! a preloaded library is bypassed. A library with the soname `libnccl.so.2` is not, since the
//! loader gives it to every caller that asks for the name. It must therefore export all functions
//! of NCCL: the hooks, and for all others a jump to the real function that leaves registers and
//! stack unchanged.
//!
//! Functions that are missing in `../functions.txt` do not exist for such a program.
#![expect(
    unsafe_code,
    reason = "exports functions under names of others, whose arguments it does not know"
)]
#![expect(non_snake_case, reason = "called as NCCL's functions")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use ddp_doctor_nccl::address_of;

// Another crate's exports are linked only if something of the crate is used.
pub use ddp_doctor_nccl::hooks;

/// Called if NCCL does not have a function.
extern "C" fn refuse() -> c_int {
    /// `ncclInternalError`
    const INTERNAL_ERROR: c_int = 3;
    INTERNAL_ERROR
}

/// Called instead of [`refuse`] if the function returns a text.
extern "C" fn say() -> *const c_char {
    c"there is no NCCL that has this function".as_ptr()
}

/// The function to call. A function of NCCL is remembered.
fn find(name: &'static CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    let found = address_of(name);
    if !found.is_null() {
        known.store(found, Ordering::Release);
        return found;
    }
    let says = [c"ncclGetErrorString", c"ncclGetLastError"]
        .iter()
        .any(|it| name.to_bytes().ends_with(it.to_bytes()));
    if says {
        say as extern "C" fn() -> *const c_char as *mut c_void
    } else {
        refuse as extern "C" fn() -> c_int as *mut c_void
    }
}

/// Exports functions that forward to the NCCL functions of the same names. None of them has
/// floating-point arguments: floating-point registers are not saved during the lookup.
macro_rules! forward {
    ($($name:ident)*) => {$(
        mod $name {
            use super::*;

            static REAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

            extern "C" fn look() -> *mut c_void {
                const NAME: &CStr = match CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
                find(NAME, &REAL)
            }

            #[cfg(target_arch = "x86_64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    "mov r11, [rip + {real}]",
                    "test r11, r11",
                    "jz 2f",
                    "jmp r11",
                    "2:",
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    // The seventh push aligns the stack to 16 bytes for the call.
                    "push rax",
                    "call {look}",
                    "mov r11, rax",
                    "pop rax",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "jmp r11",
                    real = sym REAL,
                    look = sym look,
                )
            }

            #[cfg(target_arch = "aarch64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    "adrp x16, {real}",
                    "ldr x16, [x16, :lo12:{real}]",
                    "cbz x16, 2f",
                    "br x16",
                    "2:",
                    "stp x29, x30, [sp, #-96]!",
                    "mov x29, sp",
                    "stp x0, x1, [sp, #16]",
                    "stp x2, x3, [sp, #32]",
                    "stp x4, x5, [sp, #48]",
                    "stp x6, x7, [sp, #64]",
                    "str x8, [sp, #80]",
                    "bl {look}",
                    "mov x16, x0",
                    "ldp x0, x1, [sp, #16]",
                    "ldp x2, x3, [sp, #32]",
                    "ldp x4, x5, [sp, #48]",
                    "ldp x6, x7, [sp, #64]",
                    "ldr x8, [sp, #80]",
                    "ldp x29, x30, [sp], #96",
                    "br x16",
                    real = sym REAL,
                    look = sym look,
                )
            }
        }
    )*};
}

// On other architectures this library has no functions; `ddp-doctor run` reports that.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
include!(concat!(env!("OUT_DIR"), "/forward.rs"));
