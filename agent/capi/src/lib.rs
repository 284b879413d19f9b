//! `libddp_doctor.so`: the agent for programs in C, C++ and other languages that can call C.
//!
//! The interface is documented in `include/ddp_doctor.h`. No function unwinds into its caller.
#![expect(unsafe_code, reason = "exports functions to C, which pass pointers")]
#![expect(
    missing_docs,
    clippy::missing_safety_doc,
    reason = "what each function does, and what its caller must keep to, is in the header"
)]

mod abi;
mod ptr;
mod shared;

use std::ffi::{CStr, OsStr, c_char};
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ddp_doctor_agent::blackbox::{Creation, Forward, Options, Parameters, Place, Writer};
use ddp_doctor_agent::{Opened, close, current, is_disabled, open, options_from_env};
use ddp_doctor_proto::blackbox::{Call, flags};
use ddp_doctor_proto::{DType, ExceptionKind, NoteKind, Op, ParameterFact, Spending};

use abi::{ABI_VERSION, Status};
pub use abi::{CCreation, CMemorySample, COptions, CParameters, Identity, Text};
use ptr::BadPointer;

/// Runs `work`; returns the default if it panics.
#[inline]
fn guarded<T: Default>(work: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(value) => value,
        Err(payload) => {
            // Dropping the payload might panic again.
            mem::forget(payload);
            T::default()
        }
    }
}

/// Runs `work` on the open box. Returns the default if no box is open or an argument is invalid.
#[inline]
fn with_box<T: Default>(work: impl FnOnce(&'static Writer) -> Result<T, BadPointer>) -> T {
    guarded(|| current().and_then(|writer| work(writer).ok()).unwrap_or_default())
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_abi_version() -> u32 {
    ABI_VERSION
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_open(layer: Text, identity: *const Identity) -> i32 {
    opened(|| {
        // SAFETY: the caller vouches for both pointers.
        let (layer, identity) = unsafe { (ptr::bytes(layer)?, ptr::value(identity)?) };
        let mut options = options_from_env(&String::from_utf8_lossy(layer));
        (options.rank, options.world_size, options.local_rank) = identity.known();
        Ok((Place::from_env(&options.job, &options.world), options))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_open_with(options: *const COptions) -> i32 {
    opened(|| {
        // SAFETY: the caller vouches for the options and for what they lead to.
        let (given, layer, job, directory) = unsafe {
            let given = ptr::sized(options, COptions::default())?;
            (given, ptr::bytes(given.layer)?, ptr::bytes(given.job)?, ptr::bytes(given.directory)?)
        };
        let layer = if layer.is_empty() { b"c" } else { layer };
        let mut options = options_from_env(&String::from_utf8_lossy(layer));
        (options.rank, options.world_size, options.local_rank) = given.identity.known();
        if let Some(attempt) = given.attempt_plus_1.checked_sub(1) {
            options.attempt = attempt;
        }
        if !job.is_empty() {
            options.job = String::from_utf8_lossy(job).into_owned();
        }
        let place = if directory.is_empty() {
            Place::from_env(&options.job, &options.world)
        } else {
            Place::within(OsStr::from_bytes(directory))
        };
        Ok((place, options))
    })
}

/// Opens a box with the place and options from `describe`, unless capture is disabled.
fn opened(describe: impl FnOnce() -> Result<(Place, Options), BadPointer>) -> i32 {
    guarded(|| {
        if is_disabled() {
            return Some(Status::Disabled);
        }
        let Ok((place, options)) = describe() else {
            return Some(Status::BadArgument);
        };
        Some(match open(&place, &options) {
            Ok(Opened::Now) => Status::Ok,
            Ok(Opened::Already) => Status::AlreadyOpen,
            Err(_) => Status::NoRoom,
        })
    })
    .unwrap_or(Status::NoRoom) as i32
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_set_identity(identity: *const Identity) {
    with_box(|writer| {
        // SAFETY: the caller vouches for the pointer.
        let (rank, world_size, local_rank) = unsafe { ptr::value(identity) }?.known();
        writer.set_identity(rank, world_size, local_rank);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_is_open() -> i32 {
    with_box(|_| Ok(1))
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_close() {
    guarded(close);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_string(text: Text) -> u32 {
    // SAFETY: the caller vouches for the text.
    with_box(|writer| Ok(writer.string(unsafe { ptr::bytes(text) }?)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_site(file: Text, function: Text, line: u32) -> u32 {
    // SAFETY: the caller vouches for both texts.
    unsafe { ddp_doctor_site_from(file, function, line, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_site_from(
    file: Text,
    function: Text,
    line: u32,
    caller: u32,
) -> u32 {
    with_box(|writer| {
        // SAFETY: the caller vouches for both texts.
        let (file, function) = unsafe { (ptr::bytes(file)?, ptr::bytes(function)?) };
        Ok(writer.site_from(file, function, line, caller))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_library_site(
    file: Text,
    function: Text,
    line: u32,
    caller: u32,
) -> u32 {
    with_box(|writer| {
        // SAFETY: the caller vouches for both texts.
        let (file, function) = unsafe { (ptr::bytes(file)?, ptr::bytes(function)?) };
        Ok(writer.library_site(file, function, line, caller))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_here(
    file: *const c_char,
    function: *const c_char,
    line: u32,
) -> u32 {
    with_box(|writer| {
        if file.is_null() {
            return Ok(0);
        }
        Ok(writer.c_site(file.addr(), line, || {
            // SAFETY: the caller vouches for both names.
            let (file, function) = unsafe { (ptr::name(file), ptr::name(function)) };
            writer.site(file, function, line)
        }))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_group(
    name: Text,
    description: Text,
    backend: Text,
    epoch: u32,
    members: *const u32,
    member_count: usize,
) -> u32 {
    with_box(|writer| {
        // SAFETY: the caller vouches for the texts and for the members.
        let (name, description, backend, members) = unsafe {
            (
                ptr::bytes(name)?,
                ptr::bytes(description)?,
                ptr::bytes(backend)?,
                ptr::values(members, member_count)?,
            )
        };
        Ok(writer.group(name, description, backend, epoch, members))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_creating(group: *const CCreation) -> u64 {
    with_box(|writer| {
        // SAFETY: the caller vouches for the pointer, and for what it points to.
        let group = unsafe { ptr::value(group) }?;
        // SAFETY: the caller vouches for the texts and for the members.
        let (name, description, backend, members) = unsafe {
            (
                ptr::bytes(group.name)?,
                ptr::bytes(group.description)?,
                ptr::bytes(group.backend)?,
                ptr::values(group.members, group.member_count)?,
            )
        };
        let op = u8::try_from(group.op).map_or(Op::Unspecified, Op::from_number);
        Ok(writer.creating(&Creation {
            op: if op.creates_group() { op } else { Op::NewGroup },
            name,
            description,
            backend,
            takes_all: group.takes_all == 1,
            epoch: group.epoch,
            members,
            seat: None,
            site: group.site,
        }))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_group_timeout(group: u32, milliseconds: u64) {
    with_box(|writer| {
        writer.group_timeout(group, milliseconds);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_group_destroyed(group: u32) {
    with_box(|writer| {
        writer.group_destroyed(group);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_issued(call: *const Call) -> u64 {
    with_box(|writer| {
        // SAFETY: the caller vouches for the pointer.
        let call = unsafe { ptr::value(call) }?;
        Ok(writer.issued(&abi::passed(call, call.group, call.site)))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_issued_at(call: *const Call, group: u32, site: u32) -> u64 {
    with_box(|writer| {
        // SAFETY: the caller vouches for the pointer.
        let call = unsafe { ptr::value(call) }?;
        Ok(writer.issued(&abi::passed(call, group, site)))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_splits(
    call: u64,
    output: i32,
    sizes: *const i64,
    count: usize,
) {
    with_box(|writer| {
        // SAFETY: the caller vouches for the sizes.
        let sizes = unsafe { ptr::values(sizes, count) }?;
        // Clamped: oversized sizes stay large, negative ones become 0.
        let clamped = sizes.iter().map(|&size| u32::try_from(size.max(0)).unwrap_or(u32::MAX));
        writer.splits(call, output != 0, clamped);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_returned(call: u64) {
    with_box(|writer| {
        writer.returned(call);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_wait_begin(call: u64, site: u32) {
    with_box(|writer| {
        writer.wait_begin(call, site);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_wait_end(call: u64) {
    with_box(|writer| {
        writer.wait_end(call);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_completed(call: u64) {
    with_box(|writer| {
        writer.completed(call);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_unawaited(call: u64, site: u32) {
    with_box(|writer| {
        writer.unawaited(call, site);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_step() -> u32 {
    with_box(|writer| Ok(writer.step()))
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_forward(site: u32, batches: i64, flags: u32) -> u32 {
    with_box(|writer| {
        Ok(writer.forward(Forward {
            site,
            batches: u64::try_from(batches).ok(),
            repeated: flags & u32::from(flags::REPEATED) != 0,
            unsynchronized: flags & u32::from(flags::UNSYNCHRONISED) != 0,
            updated: (flags & u32::from(flags::SEES_UPDATES) != 0)
                .then_some(flags & u32::from(flags::UPDATED) != 0),
        }))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_phase_begin(name: u32) {
    with_box(|writer| {
        writer.phase_begin(name);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_phase_end(name: u32) {
    with_box(|writer| {
        writer.phase_end(name);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_exception(kind: i32, text: Text, site: u32) {
    with_box(|writer| {
        let kind =
            u8::try_from(kind).map_or(ExceptionKind::Unspecified, ExceptionKind::from_number);
        // SAFETY: the caller vouches for the text.
        writer.exception(kind, unsafe { ptr::bytes(text) }?, site);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_input_ended(site: u32) {
    with_box(|writer| {
        writer.input_ended(site);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_last_input(batches: u64, site: u32) {
    with_box(|writer| {
        writer.last_input(batches, site);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn ddp_doctor_spent(on: i32, nanoseconds: u64, site: u32) {
    with_box(|writer| {
        let on = u8::try_from(on).map_or(Spending::Unspecified, Spending::from_number);
        writer.spent(on, nanoseconds, site);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_setting(name: Text, value: Text) {
    with_box(|writer| {
        // SAFETY: the caller vouches for both texts.
        let (name, value) = unsafe { (ptr::bytes(name)?, ptr::bytes(value)?) };
        writer.setting(name, value);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_parameters(list: *const CParameters) {
    with_box(|writer| {
        // SAFETY: the caller vouches for the list.
        let list = unsafe { ptr::sized(list, CParameters::default()) }?;
        // SAFETY: the caller vouches for the list's text.
        let lines = unsafe { ptr::bytes(list.lines) }?;
        let fact = u8::try_from(list.fact);
        let dtype = u8::try_from(list.dtype);
        let count = list.values.len().min(list.value_count as usize);
        writer.parameters(&Parameters {
            fact: fact.map_or(ParameterFact::Unspecified, ParameterFact::from_number),
            group: list.group,
            model: list.model,
            total: list.total,
            first: list.first,
            lines,
            site: list.site,
            dtype: dtype.map_or(DType::Unspecified, DType::from_number),
            values: &list.values[..count],
        });
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_memory(sample: *const CMemorySample) {
    with_box(|writer| {
        // SAFETY: the caller vouches for the sample.
        let sample = unsafe { ptr::sized(sample, CMemorySample::default()) }?;
        writer.memory(&sample.known());
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_exit(code: i32, how: Text) {
    // SAFETY: the caller vouches for the text.
    unsafe { ddp_doctor_exit_at(code, how, 0) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_exit_at(code: i32, how: Text, site: u32) {
    with_box(|writer| {
        // SAFETY: the caller vouches for the text.
        writer.exit(code, unsafe { ptr::bytes(how) }?, site);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ddp_doctor_note(kind: i32, text: Text) {
    with_box(|writer| {
        let kind = u8::try_from(kind).map_or(NoteKind::Unspecified, NoteKind::from_number);
        // SAFETY: the caller vouches for the text.
        writer.note(kind, unsafe { ptr::bytes(text) }?);
        Ok(())
    });
}
