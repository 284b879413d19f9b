//! `libddp_doctor_nccl_soname.so`: the library that sees calls of NCCL, under the name of NCCL.
//!
//! A program that loads NCCL itself (`dlopen("libnccl.so.2")`) and asks that handle for its functions does
//! not come to a library that is merely loaded before it. It does where that library is called
//! `libnccl.so.2`: the loader gives it to all who ask for that name. So it must have whatever NCCL has. The
//! hooks are those of the other library; everything else goes to the real one as it comes, by a jump that
//! leaves registers and stack as they are.
//!
//! What `../functions.txt` does not know is not here, and so nowhere for such a program.
#![expect(
    unsafe_code,
    reason = "exports functions under names of others, whose arguments it does not know"
)]
#![expect(non_snake_case, reason = "called as NCCL's functions")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use ddp_doctor_nccl::address_of;

// What another crate exports is exported here only if something of it is used.
pub use ddp_doctor_nccl::hooks;

/// What is called where NCCL has no such function.
extern "C" fn refuse() -> c_int {
    /// `ncclInternalError`
    const INTERNAL_ERROR: c_int = 3;
    INTERNAL_ERROR
}

/// … and it is asked for a text.
extern "C" fn say() -> *const c_char {
    c"there is no NCCL that has this function".as_ptr()
}

/// The function that is to be called, which is remembered where there is one.
fn find(name: &'static CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    let found = address_of(name);
    if !found.is_null() {
        known.store(found, Ordering::Release);
        return found;
    }
    let says = [c"ncclGetErrorString", c"ncclGetLastError"];
    let says = says
        .iter()
        .any(|it| name.to_bytes().ends_with(it.to_bytes()));
    match says {
        true => say as extern "C" fn() -> *const c_char as *mut c_void,
        false => refuse as extern "C" fn() -> c_int as *mut c_void,
    }
}

/// Exports functions that go to NCCL's of the same name. No argument of theirs is a floating number:
/// registers for those are not saved where the function is looked up.
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
                    // With seven of them the stack is aligned where a function is called.
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
        }
    )*};
}

// Elsewhere there is no such library (`ddp-doctor run` says so).
#[cfg(target_arch = "x86_64")]
include!(concat!(env!("OUT_DIR"), "/forward.rs"));
