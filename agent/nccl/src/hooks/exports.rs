//! Functions exported under the names of NCCL's functions.
//!
//! Each hook describes the call and forwards it. Functions in which ranks cooperate are hooked.
//! Local queries (`ncclCommCount`, `ncclGetErrorString`, `ncclCommGetAsyncError`, which watchdogs
//! poll, …) go directly to NCCL, and so do functions that a newer NCCL adds.
#![expect(unsafe_code, reason = "exports functions to C and calls those of NCCL")]
#![expect(
    missing_docs,
    clippy::missing_safety_doc,
    reason = "what each function does, and what its caller must keep to, is in nccl.h"
)]

use std::ffi::{c_int, c_uint, c_void};
use std::mem;
use std::slice;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::Call;

use super::{calls, groups};
use crate::communicators::Communicator;
use crate::communicators::creation;
use crate::cuda::driver::{self, Capture};
use crate::nccl::Function;
use crate::nccl::abi::{
    AnyConfig, Comm, Configured, INTERNAL_ERROR, Status, Stream, UniqueId, dtype, reduce_op,
};
use crate::panic_guard::guarded;
use crate::recording::call_records::Work;
use crate::return_address::{export, returns_to};

/// Exports an NCCL function. `$body` gets the name of its `pnccl` alias and `$real`, which makes
/// the call.
macro_rules! hook {
    ($symbol:ident, $second:literal, ($($arg:ident: $type:ty),* $(,)?), |$name:ident, $real:ident| $body:expr) => {
        #[expect(non_snake_case, reason = "called as NCCL's function")]
        mod $symbol {
            use super::*;

            pub(super) unsafe extern "C" fn hook($($arg: $type),*) -> Status {
                static REAL: Function = Function::new($second);
                let address = REAL.address();
                if address.is_null() {
                    return INTERNAL_ERROR;
                }
                type Real = unsafe extern "C" fn($($type),*) -> Status;
                // SAFETY: the function of that name has this type in every NCCL that has it.
                let function = unsafe { mem::transmute::<*mut c_void, Real>(address) };
                // SAFETY: the caller vouches for the arguments; NCCL has the same requirements as
                // this function.
                let $real = || unsafe { function($($arg),*) };
                let $name = $second;
                $body
            }
        }
        export!($symbol, ($($arg: $type),*), $symbol::hook);
    };
}

/// Exports functions for which only the time a thread spends in them is recorded.
macro_rules! passed_on {
    ($($symbol:ident, $second:literal, $comm:ident, ($($arg:ident: $type:ty),* $(,)?);)*) => {
        $(hook!($symbol, $second, ($($arg: $type),*), |name, real| {
            calls::other(name, $comm, Op::Other, real)
        });)*
    };
}

// --- Collectives -------------------------------------------------------------------------------

/// Arguments of a collective.
struct Collective {
    op: Op,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    dtype: c_int,
    reduce_op: Option<c_int>,
    root: Option<c_int>,
    stream: Stream,
}

impl Collective {
    const fn new(
        op: Op,
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        dtype: c_int,
        stream: Stream,
    ) -> Self {
        Self { op, send, receive, count, dtype, reduce_op: None, root: None, stream }
    }

    fn on(self, communicator: &'static Communicator) -> Work {
        let mut call = Call::nccl(self.op, dtype(self.dtype), self.count)
            .in_place(self.is_in_place(communicator));
        if let Some(by) = self.reduce_op {
            call.reduce_op = reduce_op(by).number();
        }
        if let Some(root) = self.root {
            call = call.with_partner(root);
        }
        on_stream(call, self.stream, communicator)
    }

    /// In-place by NCCL's rules ("In-place Operations"): one buffer, or the rank's part of the
    /// buffer.
    fn is_in_place(&self, communicator: &Communicator) -> bool {
        let (send, receive) = (self.send.addr(), self.receive.addr());
        let size = dtype(self.dtype).size().unwrap_or(0) as usize;
        let piece = self.count.wrapping_mul(size).wrapping_mul(communicator.rank as usize);
        match self.op {
            Op::AllGather | Op::Gather => send == receive.wrapping_add(piece),
            Op::ReduceScatter | Op::Scatter => receive == send.wrapping_add(piece),
            _ => send == receive,
        }
    }
}

macro_rules! collective {
    ($($op:ident: $symbol:ident $second:literal, $configured:ident $configured_second:literal, [$($extra:ident),*];)*) => {
        $(
            hook!($symbol, $second, (
                send: *const c_void, receive: *mut c_void, count: usize, datatype: c_int,
                $($extra: c_int,)* comm: Comm, stream: Stream,
            ), |name, real| {
                let collective = Collective {
                    $($extra: Some($extra),)*
                    ..Collective::new(Op::$op, send, receive, count, datatype, stream)
                };
                calls::work(name, comm, |communicator| collective.on(communicator), real)
            });
            hook!($configured, $configured_second, (
                send: *const c_void, receive: *mut c_void, count: usize, datatype: c_int,
                $($extra: c_int,)* comm: Comm, stream: Stream, config: AnyConfig,
            ), |name, real| {
                let collective = Collective {
                    $($extra: Some($extra),)*
                    ..Collective::new(Op::$op, send, receive, count, datatype, stream)
                };
                calls::work(name, comm, |communicator| collective.on(communicator), real)
            });
        )*
    };
}

collective! {
    AllReduce: ncclAllReduce c"pncclAllReduce", ncclAllReduceConfig c"pncclAllReduceConfig", [reduce_op];
    Broadcast: ncclBroadcast c"pncclBroadcast", ncclBroadcastConfig c"pncclBroadcastConfig", [root];
    Reduce: ncclReduce c"pncclReduce", ncclReduceConfig c"pncclReduceConfig", [reduce_op, root];
    AllGather: ncclAllGather c"pncclAllGather", ncclAllGatherConfig c"pncclAllGatherConfig", [];
    ReduceScatter: ncclReduceScatter c"pncclReduceScatter", ncclReduceScatterConfig c"pncclReduceScatterConfig", [reduce_op];
    AllToAll: ncclAlltoAll c"pncclAlltoAll", ncclAlltoAllConfig c"pncclAlltoAllConfig", [];
    Gather: ncclGather c"pncclGather", ncclGatherConfig c"pncclGatherConfig", [root];
    Scatter: ncclScatter c"pncclScatter", ncclScatterConfig c"pncclScatterConfig", [root];
}

hook!(ncclBcast, c"pncclBcast", (
    buffer: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Comm, stream: Stream,
), |name, real| {
    let collective = Collective {
        root: Some(root),
        ..Collective::new(Op::Broadcast, buffer, buffer, count, datatype, stream)
    };
    calls::work(name, comm, |communicator| collective.on(communicator), real)
});

// --- Messages ----------------------------------------------------------------------------------

fn message(
    op: Op,
    count: usize,
    datatype: c_int,
    peer: c_int,
    stream: Stream,
    communicator: &Communicator,
) -> Work {
    let call = Call::nccl(op, dtype(datatype), count).with_partner(peer);
    on_stream(call, stream, communicator)
}

fn on_stream(call: Call, stream: Stream, communicator: &Communicator) -> Work {
    let capture = driver::capture(stream);
    let name = driver::name_of(stream, communicator.device);
    Work {
        call: call.on_stream(name, capture == Capture::Yes),
        handle: stream,
        enqueues: call.numel > 0 && capture == Capture::No,
        returns_to: returns_to(),
    }
}

hook!(ncclSend, c"pncclSend", (
    buffer: *const c_void, count: usize, datatype: c_int, peer: c_int, comm: Comm, stream: Stream,
), |name, real| {
    calls::work(name, comm, |it| message(Op::Send, count, datatype, peer, stream, it), real)
});

hook!(ncclRecv, c"pncclRecv", (
    buffer: *mut c_void, count: usize, datatype: c_int, peer: c_int, comm: Comm, stream: Stream,
), |name, real| {
    calls::work(name, comm, |it| message(Op::Recv, count, datatype, peer, stream, it), real)
});

// --- Groups ------------------------------------------------------------------------------------

hook!(ncclGroupStart, c"pncclGroupStart", (), |_name, real| groups::group_start(real));
hook!(ncclGroupEnd, c"pncclGroupEnd", (), |name, real| groups::group_end(name, false, real));
hook!(ncclGroupSimulateEnd, c"pncclGroupSimulateEnd", (info: *mut c_void), |name, real| {
    groups::group_end(name, true, real)
});

// --- Communicators -----------------------------------------------------------------------------

hook!(ncclCommInitRank, c"pncclCommInitRank", (
    comm: *mut Comm, ranks: c_int, id: UniqueId, rank: c_int,
), |name, real| {
    calls::create(|| creation::init_rank(name, comm, ranks, &id, rank, Configured::NOTHING), real)
});

hook!(ncclCommInitRankConfig, c"pncclCommInitRankConfig", (
    comm: *mut Comm, ranks: c_int, id: UniqueId, rank: c_int, config: AnyConfig,
), |name, real| {
    // SAFETY: the program passes a valid configuration, and its name is not used after this call.
    let configured = || unsafe { Configured::read(config) };
    calls::create(|| creation::init_rank(name, comm, ranks, &id, rank, configured()), real)
});

hook!(ncclCommInitRankScalable, c"pncclCommInitRankScalable", (
    comm: *mut Comm, ranks: c_int, rank: c_int, id_count: c_int, ids: *const UniqueId, config: AnyConfig,
), |name, real| {
    let begin = || {
        // SAFETY: as above; NCCL names the communicator by the first of its ids.
        let (first, configured) = unsafe { (ids.as_ref()?, Configured::read(config)) };
        (id_count > 0).then(|| creation::init_rank(name, comm, ranks, first, rank, configured))?
    };
    calls::create(begin, real)
});

hook!(ncclCommInitAll, c"pncclCommInitAll", (
    comms: *mut Comm, count: c_int, devices: *const c_int,
), |_name, real| calls::unrecorded(|| {
    guarded(creation::init_all);
    real()
}));

hook!(ncclCommSplit, c"pncclCommSplit", (
    comm: Comm, color: c_int, key: c_int, made: *mut Comm, config: AnyConfig,
), |name, real| {
    // SAFETY: as above.
    let configured = || unsafe { Configured::read(config) };
    calls::create(|| creation::split(name, comm, color, made, configured()), real)
});

hook!(ncclCommShrink, c"pncclCommShrink", (
    comm: Comm, excluded: *mut c_int, excluded_count: c_int, made: *mut Comm, config: AnyConfig, flags: c_int,
), |name, real| {
    let begin = || {
        let count = usize::try_from(excluded_count).ok().filter(|_| !excluded.is_null());
        // SAFETY: the program passes that many ranks; an empty list may be null.
        let excluded = count.map_or(&[][..], |count| unsafe { slice::from_raw_parts(excluded, count) });
        // SAFETY: as above.
        creation::shrink(name, comm, excluded, made, unsafe { Configured::read(config) })
    };
    calls::create(begin, real)
});

hook!(ncclCommGrow, c"pncclCommGrow", (
    comm: Comm, ranks: c_int, id: *const UniqueId, rank: c_int, made: *mut Comm, config: AnyConfig,
), |name, real| {
    let begin = || {
        // SAFETY: as above; the id may be null.
        let (id, configured) = unsafe { (id.as_ref(), Configured::read(config)) };
        creation::grow(name, comm, ranks, id, rank, made, configured)
    };
    calls::create(begin, real)
});

hook!(ncclCommFinalize, c"pncclCommFinalize", (comm: Comm), |name, real| {
    calls::other(name, comm, Op::DestroyProcessGroup, real)
});
hook!(ncclCommDestroy, c"pncclCommDestroy", (comm: Comm), |name, real| {
    calls::release(name, comm, real)
});
hook!(ncclCommAbort, c"pncclCommAbort", (comm: Comm), |name, real| {
    calls::release(name, comm, real)
});

// --- Functions that are only forwarded ----------------------------------------------------------

passed_on! {
    ncclCommRevoke, c"pncclCommRevoke", comm, (comm: Comm, flags: c_int);
    ncclCommSuspend, c"pncclCommSuspend", comm, (comm: Comm, flags: c_int);
    ncclCommResume, c"pncclCommResume", comm, (comm: Comm);
    ncclCommRegister, c"pncclCommRegister", comm, (
        comm: Comm, buffer: *mut c_void, size: usize, handle: *mut *mut c_void,
    );
    ncclCommDeregister, c"pncclCommDeregister", comm, (comm: Comm, handle: *mut c_void);
    ncclCommWindowRegister, c"pncclCommWindowRegister", comm, (
        comm: Comm, buffer: *mut c_void, size: usize, window: *mut *mut c_void, flags: c_int,
    );
    ncclCommWindowDeregister, c"pncclCommWindowDeregister", comm, (comm: Comm, window: *mut c_void);
    ncclDevCommCreate, c"pncclDevCommCreate", comm, (
        comm: Comm, requirements: *const c_void, made: *mut c_void,
    );
    ncclPutSignal, c"pncclPutSignal", comm, (
        buffer: *const c_void, count: usize, datatype: c_int, peer: c_int, window: *mut c_void,
        offset: usize, signal: c_int, context: c_int, flags: c_uint, comm: Comm, stream: Stream,
    );
    ncclSignal, c"pncclSignal", comm, (
        peer: c_int, signal: c_int, context: c_int, flags: c_uint, comm: Comm, stream: Stream,
    );
    ncclWaitSignal, c"pncclWaitSignal", comm, (
        count: c_int, signals: *mut c_void, comm: Comm, stream: Stream,
    );
}

// Not functions of a communicator.
hook!(ncclMemAlloc, c"pncclMemAlloc", (made: *mut *mut c_void, size: usize), |_name, real| {
    calls::unrecorded(real)
});
hook!(ncclMemFree, c"pncclMemFree", (memory: *mut c_void), |_name, real| calls::unrecorded(real));
