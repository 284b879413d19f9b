//! The profiler plugin that NCCL loads (`NCCL_PROFILER_PLUGIN`), for programs whose calls bypass
//! the [`hooks`](crate::hooks): those that look NCCL's functions up at run time or link NCCL
//! statically.
//!
//! NCCL reports calls, the work into which it turns them when their group ends, and their kernels.
//! It does not report reduction operators, and reports a communicator only after all its ranks have
//! joined. A process has one profiler; another plugin that the user has configured is called from
//! here ([`user_plugin`]).
//!
//! ```text
//! version 4 (NCCL 2.27)    Group ─ Coll, P2p ─ KernelCh
//! from 5 on (2.28)         GroupApi ─ CollApi, P2pApi ─ Coll, P2p ─ KernelCh
//! ```
//!
//! Since version 5, a collective is recorded from its `CollApi`, as the program called it. The peer
//! of a message is known only from its `P2p`. With "kernels", proxies also report network transfers
//! (`ProxyOp ─ ProxyStep`, children of a `Coll` or a `P2p`, see [`network_transfers`]). Version 4 reports
//! only work, with sizes in bytes for operations that only move data.
#![expect(unsafe_code, reason = "is called by NCCL with what it points to")]

mod events;
mod groups;
mod layout;
mod network_transfers;
mod user_plugin;

use std::env;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::Call;

use self::events::Event;
use self::layout::{Coll, Descriptor, kind, state};
use self::user_plugin::Next;
use crate::communicators::creation::is_hooked;
use crate::communicators::occurrence_of;
use crate::communicators::{Communicator, Name};
use crate::cuda::driver;
use crate::nccl::seat;
use crate::panic_guard::guarded;
use crate::recording::black_box::BlackBox;
use crate::recording::call_records::{self, Work};
use crate::recording::own_box;

/// Events to request: calls by default; with "kernels" also their kernels and network transfers.
const SWITCH: &str = "DDP_DOCTOR_NCCL_PROFILER";
/// `ncclSuccess`, always returned: the plugin never fails the program.
const DONE: c_int = 0;

type Logger = *const c_void;
type Start = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int;
type Init4 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    Logger,
) -> c_int;
type Init5 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    Logger,
) -> c_int;

/// Structure exported under one name per interface version.
#[repr(C)]
pub(crate) struct Plugin<I> {
    name: *const c_char,
    init: I,
    start: Start,
    stop: unsafe extern "C" fn(*mut c_void) -> c_int,
    record: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int,
    finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: it consists of functions and of a text that is never written.
unsafe impl<I> Sync for Plugin<I> {}

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
    next: Option<Next>,
}

/// NCCL's description of a communicator.
struct Said {
    version: u32,
    hash: u64,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    log: Logger,
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
    let said = Said { version: VERSION, hash, name, nodes, ranks, rank, log };
    // SAFETY: NCCL passes valid locations for the mask and the context.
    unsafe { begin(context, mask, &said) }
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
    let said = Said { version: VERSION, hash, name, nodes, ranks, rank, log };
    // SAFETY: as above.
    unsafe { begin(context, mask, &said) }
}

/// # Safety
///
/// The pointers are valid for writes.
unsafe fn begin(context: *mut *mut c_void, mask: *mut c_int, said: &Said) -> c_int {
    let made = guarded(|| {
        let communicator = communicator(said);
        let next = Next::of(said);
        let asked = communicator.map_or(0, |_| asked(said.version));
        let asked = asked | next.as_ref().map_or(0, Next::mask);
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
fn communicator(said: &Said) -> Option<&'static Communicator> {
    if is_hooked() {
        return None;
    }
    let seat = seat(said.rank, said.ranks)?;
    let black_box = BlackBox::Own(own_box(Some(seat))?);
    let occurrence = occurrence_of(said.hash, seat.rank)?;
    let description = if said.name.is_null() {
        &[][..]
    } else {
        // SAFETY: NCCL's name of the communicator is NUL-terminated.
        unsafe { CStr::from_ptr(said.name) }.to_bytes()
    };
    let name = Name {
        hash: said.hash,
        occurrence,
        in_nccl: said.hash,
        // Unused: no communicator is derived from it here.
        magic: said.hash,
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
            kind::KERNEL_CHANNEL => kernel_part_ended(event),
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
            (kind::KERNEL_CHANNEL, state::KERNEL_CHANNEL_STOP) => kernel_part_ended(event),
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

/// Counts the end of a kernel part. It may be reported twice.
fn kernel_part_ended(event: &Event) {
    let parent = event.parent.swap(0, Ordering::AcqRel);
    let done = events::find(parent).and_then(Event::part_ended);
    if let Some(call) = done {
        groups::complete(call);
    }
}

impl Context {
    /// Begins an event and returns its number; `None`: neither plugin needs it.
    fn start(&self, descriptor: Descriptor) -> Option<usize> {
        let parent = descriptor.parent();
        let is_ours = self.communicator.is_some() && is_known(descriptor);
        let is_theirs = self.next.as_ref().is_some_and(|it| it.wants(descriptor));
        if !is_ours && !is_theirs {
            return None;
        }
        let (number, event) = events::begin(descriptor.kind(), parent)?;
        if let Some(communicator) = self.communicator.filter(|_| is_ours) {
            begun(communicator, descriptor, number, event);
        }
        if let Some(next) = self.next.as_ref().filter(|_| is_theirs) {
            next.start(descriptor, event);
        }
        Some(number)
    }
}

/// Whether this plugin uses the event.
fn is_known(descriptor: Descriptor) -> bool {
    let works = kind::GROUP | kind::COLL | kind::P2P | kind::KERNEL_CHANNEL;
    let calls = kind::GROUP_API | kind::COLL_API | kind::P2P_API;
    match descriptor.kind() {
        // A proxy's work for another process belongs to that process's calls.
        kind::PROXY_OP => network_transfers::is_on() && !descriptor.is_foreign(),
        kind::PROXY_STEP => {
            let of = events::find(descriptor.parent());
            network_transfers::is_on() && of.is_some_and(|it| it.kind() == kind::PROXY_OP)
        }
        kind => kind & (works | calls) != 0,
    }
}

fn begun(
    communicator: &'static Communicator,
    descriptor: Descriptor,
    number: usize,
    event: &'static Event,
) {
    let is_old = descriptor.version() < 5;
    match descriptor.kind() {
        kind::COLL_API => {
            let asked = descriptor.coll_api();
            let stream = driver::name_of(asked.stream, communicator.device);
            let call = Call::nccl(asked.op(), asked.dtype(), asked.count)
                .on_stream(stream, asked.is_captured());
            gather(communicator, rooted(call, asked.root), number);
        }
        kind::P2P_API => {
            let asked = descriptor.p2p_api();
            event.stream.store(asked.stream, Ordering::Relaxed);
            event.is_captured.store(asked.is_captured(), Ordering::Relaxed);
        }
        kind::COLL if is_old => {
            let made = descriptor.coll();
            event.expect(made.channels);
            let call = Call::nccl(made.op(), made.dtype(), made.count)
                .on_stream(own_stream(communicator), false);
            gather(communicator, rooted(call, made.root), number);
        }
        kind::COLL => expect(event, &descriptor.coll()),
        kind::PROXY_OP => {
            // The parent may be forgotten before the transfer is over.
            let part_of = events::find(descriptor.parent()).map_or(0, Event::call);
            event.recorded(part_of);
            network_transfers::begins(event, &descriptor.proxy_op());
        }
        kind::PROXY_STEP => network_transfers::step_begins(event, descriptor.step()),
        kind::P2P => {
            let made = descriptor.p2p();
            let asked = events::find(descriptor.parent());
            let asked = asked.filter(|it| it.kind() == kind::P2P_API);
            // Messages that implement a collective are not messages of the program.
            if !is_old && asked.is_none() {
                return;
            }
            let stream = asked.map(|it| it.stream.load(Ordering::Relaxed));
            let is_captured = asked.is_some_and(|it| it.is_captured.load(Ordering::Relaxed));
            let stream = stream.map_or_else(
                || own_stream(communicator),
                |stream| driver::name_of(stream, communicator.device),
            );
            let call = Call::nccl(made.op(), made.dtype(), made.count)
                .with_partner(made.peer)
                .on_stream(stream, is_captured);
            if is_old {
                gather(communicator, call, number);
                return;
            }
            event.expect(made.channels);
            let call = groups::message(communicator, &work(call, number));
            if let Some(done) = event.recorded(call) {
                groups::complete(done);
            }
        }
        _ => {}
    }
}

/// Expects the kernel of a collective that was recorded when it was called.
fn expect(event: &Event, made: &Coll) {
    event.expect(made.channels);
    let asked = events::find(event.parent.load(Ordering::Relaxed));
    let call = asked.filter(|it| it.kind() == kind::COLL_API).map_or(0, Event::call);
    if let Some(done) = event.recorded(call) {
        groups::complete(done);
    }
}

fn gather(communicator: &'static Communicator, call: Call, number: usize) {
    if call.op != Op::Other.number() && !call.is_dropped() {
        groups::gather(communicator, work(call, number));
    }
}

fn work(call: Call, number: usize) -> Work {
    Work {
        call,
        handle: ptr::without_provenance_mut(number),
        // NCCL reports completion.
        enqueues: false,
        // NCCL does not report return addresses.
        returns_to: 0,
    }
}

/// NCCL passes 0 if the operation has no root.
fn rooted(call: Call, root: c_int) -> Call {
    if Op::from_number(call.op).is_rooted() { call.with_partner(root) } else { call }
}

/// Stream id for work of version 4, whose stream is unknown: one per communicator, since the work
/// of one communicator is ordered and that of several is not.
fn own_stream(communicator: &Communicator) -> u64 {
    /// Set in no user-space address and in no result of [`driver::name_of`].
    const OF_COMMUNICATOR: u64 = 3 << 62;
    OF_COMMUNICATOR | u64::from(communicator.registered().unwrap_or(0))
}
