//! The exported functions, under both of their names: those of NCCL 2.27, and the two-sided calls
//! of 2.28 and 2.29.
#![expect(unsafe_code, reason = "exports functions by their C names")]

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::process;

use crate::bootstrap::UniqueId;
use crate::calls::{self, CallArguments, What};
use crate::comm::{COMMS, Comm};
use crate::handles::Handles;
use crate::lifecycle::{self, Config};
use crate::pointers::{Buffer, In, Out};
use crate::{Result, Status, driver, fault, group, refuse};

/// Reported version: 2.29.7, as in PyTorch 2.12.
const VERSION: c_int = 22_907;

type Handle = usize;

/// Handles of registrations.
static REGISTERED: Handles<()> = Handles::new(0x5600_0000_0000);

/// Declares functions under the names `ncclX` and `pncclX`.
macro_rules! exports {
    ($(fn $name:ident = $profiled:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $profiled($($argument: $type),*) -> c_int {
            let run = move || -> Result<()> { $body };
            match run() {
                Ok(()) => 0,
                Err(Status(number)) => number,
            }
        }

        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> c_int {
            $profiled($($argument),*)
        }
    )*};
}

exports! {
    fn ncclGetVersion = pncclGetVersion(version: Out<c_int>) {
        version.put(VERSION)
    }

    fn ncclGetUniqueId = pncclGetUniqueId(id: Out<UniqueId>) {
        fault::meet("GetUniqueId", 0)?;
        id.put(UniqueId::new().or_else(|e| refuse(Status::SYSTEM_ERROR, e.to_string()))?)
    }

    // --- Communicators

    fn ncclCommInitRank = pncclCommInitRank(
        comm: Out<Handle>, ranks: c_int, id: UniqueId, rank: c_int,
    ) {
        lifecycle::init("CommInitRank", &comm, ranks, id, rank, &In::none())
    }

    fn ncclCommInitRankConfig = pncclCommInitRankConfig(
        comm: Out<Handle>, ranks: c_int, id: UniqueId, rank: c_int, config: In<Config>,
    ) {
        lifecycle::init("CommInitRankConfig", &comm, ranks, id, rank, &config)
    }

    fn ncclCommInitRankScalable = pncclCommInitRankScalable(
        comm: Out<Handle>, ranks: c_int, rank: c_int, count: c_int, ids: In<UniqueId>,
        config: In<Config>,
    ) {
        match ids.get() {
            // The other ids only speed up the bootstrap.
            Some(id) if count > 0 => {
                lifecycle::init("CommInitRankScalable", &comm, ranks, id, rank, &config)
            }
            _ => refuse(Status::INVALID_ARGUMENT, "improper usage of ncclCommInitRankScalable".into()),
        }
    }

    fn ncclCommInitAll = pncclCommInitAll(comms: Out<Handle>, count: c_int, devices: In<c_int>) {
        lifecycle::init_all(&comms, count, &devices, || {
            // By its public name, as in NCCL, so that an interposed library sees the call.
            let mut id = MaybeUninit::uninit();
            match ncclGetUniqueId(Out::to(&mut id)) {
                // SAFETY: the call succeeded, so that the id was written.
                0 => Ok(unsafe { id.assume_init() }),
                error => Err(Status(error)),
            }
        })
    }

    fn ncclCommSplit = pncclCommSplit(
        comm: Handle, color: c_int, key: c_int, child: Out<Handle>, config: In<Config>,
    ) {
        lifecycle::split(comm, color, key, &child, &config)
    }

    fn ncclCommShrink = pncclCommShrink(
        comm: Handle, excluded: In<c_int>, count: c_int, child: Out<Handle>, config: In<Config>,
        flags: c_int,
    ) {
        let excluded = excluded.values(usize::try_from(count).unwrap_or(0));
        lifecycle::shrink(comm, &excluded, &child, &config, flags)
    }

    fn ncclCommGetUniqueId = pncclCommGetUniqueId(comm: Handle, id: Out<UniqueId>) {
        id.put(lifecycle::growth_id(comm)?)
    }

    fn ncclCommGrow = pncclCommGrow(
        comm: Handle, ranks: c_int, id: In<UniqueId>, rank: c_int, child: Out<Handle>,
        config: In<Config>,
    ) {
        lifecycle::grow(comm, ranks, &id, rank, &child, &config)
    }

    fn ncclCommFinalize = pncclCommFinalize(comm: Handle) {
        lifecycle::finalize(comm)
    }

    fn ncclCommDestroy = pncclCommDestroy(comm: Handle) {
        lifecycle::destroy(comm)
    }

    fn ncclCommAbort = pncclCommAbort(comm: Handle) {
        lifecycle::abort(comm)
    }

    fn ncclCommGetAsyncError = pncclCommGetAsyncError(comm: Handle, error: Out<c_int>) {
        let comm = Comm::find(comm, "CommGetAsyncError")?;
        error.put(comm.error().map_or(0, |Status(number)| number))
    }

    fn ncclCommCount = pncclCommCount(comm: Handle, count: Out<c_int>) {
        let comm = Comm::find(comm, "CommCount")?;
        count.put(c_int::try_from(comm.ranks).unwrap_or(c_int::MAX))
    }

    fn ncclCommCuDevice = pncclCommCuDevice(comm: Handle, device: Out<c_int>) {
        device.put(Comm::find(comm, "CommCuDevice")?.device)
    }

    fn ncclCommUserRank = pncclCommUserRank(comm: Handle, rank: Out<c_int>) {
        let comm = Comm::find(comm, "CommUserRank")?;
        rank.put(c_int::try_from(comm.rank).unwrap_or(c_int::MAX))
    }

    fn ncclCommMemStats = pncclCommMemStats(comm: Handle, what: c_int, value: Out<u64>) {
        let Some(comm) = COMMS.get(comm) else {
            // NCCL would read freed memory; aborting makes the mistake visible.
            process::abort()
        };
        if let Some(error) = comm.error() {
            return Err(error);
        }
        let all = comm.memory.bytes();
        match what {
            // Memory that can be suspended, and whether it is.
            0 | 1 => value.put(0),
            2 | 3 => value.put(all),
            _ => refuse(Status::INVALID_ARGUMENT, format!("no such statistic: {what}")),
        }
    }

    // --- Collectives

    fn ncclAllReduce = pncclAllReduce(
        input: Buffer, output: Buffer, count: usize, dtype: c_int, by: c_int, comm: Handle,
        stream: Handle,
    ) {
        let function = "AllReduce";
        let asked = CallArguments { function, input, output, count, dtype, comm, stream };
        calls::collective(What::AllReduce { by }, &asked)
    }

    fn ncclBroadcast = pncclBroadcast(
        input: Buffer, output: Buffer, count: usize, dtype: c_int, root: c_int, comm: Handle,
        stream: Handle,
    ) {
        let function = "Broadcast";
        let asked = CallArguments { function, input, output, count, dtype, comm, stream };
        calls::collective(What::Broadcast { root }, &asked)
    }

    fn ncclBcast = pncclBcast(
        buffer: Buffer, count: usize, dtype: c_int, root: c_int, comm: Handle, stream: Handle,
    ) {
        // By its public name, as in NCCL, so that an interposed library sees both calls.
        match ncclBroadcast(buffer, buffer, count, dtype, root, comm, stream) {
            0 => Ok(()),
            error => Err(Status(error)),
        }
    }

    fn ncclReduce = pncclReduce(
        input: Buffer, output: Buffer, count: usize, dtype: c_int, by: c_int, root: c_int,
        comm: Handle, stream: Handle,
    ) {
        let function = "Reduce";
        let asked = CallArguments { function, input, output, count, dtype, comm, stream };
        calls::collective(What::Reduce { by, root }, &asked)
    }

    fn ncclAllGather = pncclAllGather(
        input: Buffer, output: Buffer, count: usize, dtype: c_int, comm: Handle, stream: Handle,
    ) {
        let function = "AllGather";
        let asked = CallArguments { function, input, output, count, dtype, comm, stream };
        calls::collective(What::AllGather, &asked)
    }

    fn ncclReduceScatter = pncclReduceScatter(
        input: Buffer, output: Buffer, count: usize, dtype: c_int, by: c_int, comm: Handle,
        stream: Handle,
    ) {
        let function = "ReduceScatter";
        let asked = CallArguments { function, input, output, count, dtype, comm, stream };
        calls::collective(What::ReduceScatter { by }, &asked)
    }

    fn ncclAlltoAll = pncclAlltoAll(
        input: Buffer, output: Buffer, count: usize, dtype: c_int, comm: Handle, stream: Handle,
    ) {
        let function = "AlltoAll";
        let asked = CallArguments { function, input, output, count, dtype, comm, stream };
        calls::collective(What::AllToAll, &asked)
    }

    fn ncclGather = pncclGather(
        input: Buffer, output: Buffer, count: usize, dtype: c_int, root: c_int, comm: Handle,
        stream: Handle,
    ) {
        let function = "Gather";
        let asked = CallArguments { function, input, output, count, dtype, comm, stream };
        calls::collective(What::Gather { root }, &asked)
    }

    fn ncclScatter = pncclScatter(
        input: Buffer, output: Buffer, count: usize, dtype: c_int, root: c_int, comm: Handle,
        stream: Handle,
    ) {
        let function = "Scatter";
        let asked = CallArguments { function, input, output, count, dtype, comm, stream };
        calls::collective(What::Scatter { root }, &asked)
    }

    fn ncclRedOpCreatePreMulSum = pncclRedOpCreatePreMulSum(
        op: Out<c_int>, scalar: Buffer, dtype: c_int, residence: c_int, comm: Handle,
    ) {
        op.put(calls::define(scalar, dtype, residence == 1, comm)?)
    }

    fn ncclRedOpDestroy = pncclRedOpDestroy(op: c_int, comm: Handle) {
        calls::undefine(op, comm)
    }

    // --- Messages and groups

    fn ncclSend = pncclSend(
        input: Buffer, count: usize, dtype: c_int, peer: c_int, comm: Handle, stream: Handle,
    ) {
        let function = "Send";
        let asked = CallArguments { function, input, output: input, count, dtype, comm, stream };
        calls::transfer(true, peer, &asked)
    }

    fn ncclRecv = pncclRecv(
        output: Buffer, count: usize, dtype: c_int, peer: c_int, comm: Handle, stream: Handle,
    ) {
        let function = "Recv";
        let asked = CallArguments { function, input: output, output, count, dtype, comm, stream };
        calls::transfer(false, peer, &asked)
    }

    fn ncclGroupStart = pncclGroupStart() {
        group::start();
        Ok(())
    }

    fn ncclGroupEnd = pncclGroupEnd() {
        group::end()
    }

    // No estimate is written.
    fn ncclGroupSimulateEnd = pncclGroupSimulateEnd(_info: *mut c_void) {
        group::simulate_end()
    }

    // --- Memory

    fn ncclMemAlloc = pncclMemAlloc(address: Out<*mut c_void>, bytes: usize) {
        address.put(driver::allocate(bytes)?)
    }

    fn ncclMemFree = pncclMemFree(address: Handle) {
        driver::free(address)
    }

    fn ncclCommRegister = pncclCommRegister(
        comm: Handle, _buffer: Buffer, _bytes: usize, handle: Out<Handle>,
    ) {
        Comm::find(comm, "CommRegister")?;
        handle.put(REGISTERED.insert(()))
    }

    fn ncclCommDeregister = pncclCommDeregister(comm: Handle, handle: Handle) {
        Comm::find(comm, "CommDeregister")?;
        forget(handle)
    }

    fn ncclCommWindowRegister = pncclCommWindowRegister(
        comm: Handle, _buffer: Buffer, _bytes: usize, window: Out<Handle>, _flags: c_int,
    ) {
        lifecycle::register_window(comm, || window.put(REGISTERED.insert(())))
    }

    fn ncclCommWindowDeregister = pncclCommWindowDeregister(comm: Handle, window: Handle) {
        Comm::find(comm, "CommWindowDeregister")?;
        forget(window)
    }
}

fn forget(handle: Handle) -> Result<()> {
    match REGISTERED.remove(handle) {
        Some(()) => Ok(()),
        None => refuse(Status::INVALID_ARGUMENT, "nothing is registered there".into()),
    }
}

// --- Functions that return no `ncclResult_t` -----------------------------------------------------

#[unsafe(no_mangle)]
extern "C" fn pncclGetErrorString(result: c_int) -> *const c_char {
    let text = match result {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(result: c_int) -> *const c_char {
    pncclGetErrorString(result)
}

#[unsafe(no_mangle)]
extern "C" fn pncclGetLastError(_comm: Handle) -> *const c_char {
    crate::last_error()
}

#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(comm: Handle) -> *const c_char {
    pncclGetLastError(comm)
}

#[unsafe(no_mangle)]
extern "C" fn pncclResetDebugInit() {}

#[unsafe(no_mangle)]
extern "C" fn ncclResetDebugInit() {
    pncclResetDebugInit();
}
