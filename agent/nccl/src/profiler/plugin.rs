//! The plugin: the functions that NCCL calls.
#![expect(unsafe_code, reason = "is called by NCCL with what it points to")]

use std::env;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use super::layout::{Descriptor, Init4, Init5, InitArguments, Logger, Plugin, kind, state};
use super::user_plugin::UserPlugin;
use super::{calls, events, groups, network_transfers, user_plugin};
use crate::communicators::creation::is_hooked;
use crate::communicators::{Communicator, Name, occurrence_of};
use crate::nccl::seat;
use crate::panic_guard::guarded;
use crate::recording::black_box::BlackBox;
use crate::recording::{call_records, own_box};

/// Events to request: calls by default; with "kernels" also their kernels and network transfers.
const SWITCH: &str = "DDP_DOCTOR_NCCL_PROFILER";
/// `ncclSuccess`, always returned: the plugin never fails the program.
const DONE: c_int = 0;

const NAME: *const c_char = c"ddp-doctor".as_ptr();

macro_rules! export {
    ($($symbol:ident: $type:ty, $init:ident, $start:ident, $version:literal;)*) => {
        $(
            #[unsafe(no_mangle)]
            static $symbol: Plugin<$type> = Plugin {
                name: NAME,
                init: $init::<$version>,
                start: $start::<$version>,
                stop,
                record,
                finalize,
            };
        )*
    };
}

export! {
    ncclProfiler_v4: Init4, init_4, start, 4;
    ncclProfiler_v5: Init5, init_5, start, 5;
    ncclProfiler_v6: Init5, init_5, start, 6;
    ncclProfiler_v7: Init5, init_5, start, 7;
}

/// Context of a communicator, returned by NCCL with its events. Never freed.
struct Context {
    /// `None`: its calls are not recorded by the profiler.
    communicator: Option<&'static Communicator>,
    next: Option<UserPlugin>,
}

unsafe extern "C" fn init_4<const VERSION: u32>(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    hash: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    log: Logger,
) -> c_int {
    let arguments = InitArguments { version: VERSION, hash, name, nodes, ranks, rank, log };
    // SAFETY: NCCL passes valid locations for the mask and the context.
    unsafe { begin(context, mask, &arguments) }
}

unsafe extern "C" fn init_5<const VERSION: u32>(
    context: *mut *mut c_void,
    hash: u64,
    mask: *mut c_int,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    log: Logger,
) -> c_int {
    let arguments = InitArguments { version: VERSION, hash, name, nodes, ranks, rank, log };
    // SAFETY: as above.
    unsafe { begin(context, mask, &arguments) }
}

/// # Safety
///
/// The pointers are valid for writes.
unsafe fn begin(context: *mut *mut c_void, mask: *mut c_int, arguments: &InitArguments) -> c_int {
    let made = guarded(|| {
        let communicator = communicator(arguments);
        let next = UserPlugin::load(arguments);
        let asked = communicator.map_or(0, |_| asked(arguments.version))
            | next.as_ref().map_or(0, UserPlugin::mask);
        let context = Context { communicator, next };
        Some((Box::into_raw(Box::new(context)), asked))
    });
    let (made, asked) = made.unwrap_or((ptr::null_mut(), 0));
    // SAFETY: the caller vouches for both pointers.
    unsafe {
        context.write(made.cast());
        mask.write(asked as c_int);
    }
    DONE
}

/// Registers the communicator in the box; `None`: its calls are not recorded here, for example
/// because the hooks record them.
fn communicator(arguments: &InitArguments) -> Option<&'static Communicator> {
    if is_hooked() {
        return None;
    }
    let seat = seat(arguments.rank, arguments.ranks)?;
    let black_box = BlackBox::Own(own_box(Some(seat))?);
    let occurrence = occurrence_of(arguments.hash, seat.rank)?;
    let description = if arguments.name.is_null() {
        &[][..]
    } else {
        // SAFETY: NCCL's name of the communicator is NUL-terminated.
        unsafe { CStr::from_ptr(arguments.name) }.to_bytes()
    };
    let name = Name {
        hash: arguments.hash,
        occurrence,
        in_nccl: arguments.hash,
        // Unused: no communicator is derived from it here.
        magic: arguments.hash,
    };
    let mut made = Communicator::new(black_box, name, description);
    (made.rank, made.size) = (seat.rank, seat.size);
    (made.group(black_box) != 0).then(|| &*Box::leak(Box::new(made)))
}

/// The events that this plugin needs.
fn asked(version: u32) -> u64 {
    let calls = if version < 5 {
        kind::GROUP | kind::COLL | kind::P2P
    } else {
        kind::GROUP_API | kind::COLL_API | kind::P2P_API | kind::P2P
    };
    match env::var_os(SWITCH) {
        Some(value) if value == "kernels" => {
            network_transfers::watch();
            let kernels = kind::COLL | kind::KERNEL_CHANNEL;
            calls | kernels | kind::PROXY_OP | kind::PROXY_STEP
        }
        _ => calls,
    }
}

unsafe extern "C" fn start<const VERSION: u32>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descriptor: *const c_void,
) -> c_int {
    // SAFETY: the context from `begin`, or null; it is never freed.
    let context = unsafe { context.cast::<Context>().as_ref() };
    let number = guarded(|| {
        // SAFETY: NCCL passes a descriptor of that version, valid during this call.
        let descriptor = unsafe { Descriptor::new(descriptor, VERSION) };
        context.map_or(0, |context| context.start(descriptor).unwrap_or(0))
    });
    // SAFETY: NCCL passes a valid location. 0: NCCL does not report child events either.
    unsafe { handle.write(ptr::without_provenance_mut(number)) };
    DONE
}

unsafe extern "C" fn stop(handle: *mut c_void) -> c_int {
    let number = handle.addr();
    guarded(|| {
        let Some(event) = events::find(number) else {
            return;
        };
        match event.kind() {
            // In version 4 the calls of a group are recorded at its end, when all of its work is
            // known.
            kind::GROUP | kind::GROUP_API => {
                groups::begin();
                groups::end();
            }
            kind::KERNEL_CHANNEL => calls::kernel_part_ended(event),
            kind::PROXY_STEP => network_transfers::step_ends(event),
            _ => {}
        }
        user_plugin::stop(event);
        event.end(number);
    });
    DONE
}

unsafe extern "C" fn record(handle: *mut c_void, state: c_int, arguments: *mut c_void) -> c_int {
    guarded(|| {
        let Some(event) = events::find(handle.addr()) else {
            return;
        };
        match (event.kind(), state) {
            (kind::GROUP_API, state::GROUP_END_API_START) => groups::begin(),
            (kind::KERNEL_CHANNEL, state::KERNEL_CHANNEL_STOP) => calls::kernel_part_ended(event),
            (kind::PROXY_OP | kind::PROXY_STEP, state) => network_transfers::comes_to(event, state),
            _ => {}
        }
        user_plugin::record(event, state, arguments);
    });
    DONE
}

unsafe extern "C" fn finalize(context: *mut c_void) -> c_int {
    // SAFETY: as in `start`.
    let context = unsafe { context.cast::<Context>().as_ref() };
    guarded(|| {
        let Some(context) = context else { return };
        if let Some((black_box, communicator)) = call_records::with_box(context.communicator)
            && let Some(group) = communicator.registered()
        {
            black_box.destroyed(group);
        }
        if let Some(next) = &context.next {
            next.finalize();
        }
    });
    DONE
}

impl Context {
    /// Begins an event and returns its number; `None`: neither plugin needs it.
    fn start(&self, descriptor: Descriptor) -> Option<usize> {
        let parent = descriptor.parent();
        let is_ours = self.communicator.is_some() && calls::is_used(descriptor);
        let is_theirs = self.next.as_ref().is_some_and(|it| it.wants(descriptor));
        if !is_ours && !is_theirs {
            return None;
        }
        let (number, event) = events::begin(descriptor.kind(), parent)?;
        if let Some(communicator) = self.communicator.filter(|_| is_ours) {
            calls::begin(communicator, descriptor, number, event);
        }
        if let Some(next) = self.next.as_ref().filter(|_| is_theirs) {
            next.start(descriptor, event);
        }
        Some(number)
    }
}
