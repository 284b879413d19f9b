//! Memory layout of versions 4 to 7 of NCCL's profiler interface (NCCL 2.27 to 2.32), taken from
//! NCCL's debug information for 64-bit machines. The versions differ in their first and last
//! fields.
#![expect(unsafe_code, reason = "reads what NCCL describes an event by")]

use std::ffi::{CStr, c_char, c_int, c_void};

use ddp_doctor_proto::{DType, Op};

/// Kinds of events. Each is a bit of the mask with which a profiler selects events.
pub(super) mod kind {
    pub(in super::super) const GROUP: u64 = 1;
    pub(in super::super) const COLL: u64 = 2;
    pub(in super::super) const P2P: u64 = 4;
    pub(in super::super) const PROXY_OP: u64 = 8;
    pub(in super::super) const PROXY_STEP: u64 = 16;
    pub(in super::super) const KERNEL_CHANNEL: u64 = 64;
    pub(in super::super) const NET_PLUGIN: u64 = 128;
    /// An `ncclGroupStart` of the program, or the implicit group around a single call.
    pub(in super::super) const GROUP_API: u64 = 256;
    pub(in super::super) const COLL_API: u64 = 512;
    pub(in super::super) const P2P_API: u64 = 1024;
    pub(in super::super) const KERNEL_LAUNCH: u64 = 2048;
    pub(in super::super) const CE_COLL: u64 = 4096;
    pub(in super::super) const CE_SYNC: u64 = 8192;
    pub(in super::super) const CE_BATCH: u64 = 16384;
    pub(in super::super) const KERNEL_PHASE: u64 = 32768;
}

/// States of events.
pub(super) mod state {
    use std::ffi::c_int;

    /// A send step waits until the device has filled the buffer.
    pub(in super::super) const SEND_GPU_WAIT: c_int = 8;
    /// A send step waits until the network has sent the data.
    pub(in super::super) const SEND_WAIT: c_int = 9;
    /// A receive step waits for data from the network.
    pub(in super::super) const RECV_WAIT: c_int = 10;
    /// A receive step waits until the data is in device memory.
    pub(in super::super) const RECV_FLUSH_WAIT: c_int = 11;
    /// A receive step waits until the device has consumed the data.
    pub(in super::super) const RECV_GPU_WAIT: c_int = 12;
    /// A send step waits until the receiver is ready; since version 4.
    pub(in super::super) const SEND_PEER_WAIT: c_int = 20;
    /// A kernel's part on a channel has ended.
    pub(in super::super) const KERNEL_CHANNEL_STOP: c_int = 22;
    /// The outermost group begins to end: its calls are about to be made.
    pub(in super::super) const GROUP_END_API_START: c_int = 24;
}

pub(super) type Logger = *const c_void;
pub(super) type Start = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int;
pub(super) type Init4 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    Logger,
) -> c_int;
pub(super) type Init5 = unsafe extern "C" fn(
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
pub(super) struct Plugin<I> {
    pub(super) name: *const c_char,
    pub(super) init: I,
    pub(super) start: Start,
    pub(super) stop: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(super) record: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int,
    pub(super) finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: it consists of functions and of a text that is never written.
unsafe impl<I> Sync for Plugin<I> {}

/// NCCL's description of a communicator.
pub(super) struct InitArguments {
    pub(super) version: u32,
    pub(super) hash: u64,
    pub(super) name: *const c_char,
    pub(super) nodes: c_int,
    pub(super) ranks: c_int,
    pub(super) rank: c_int,
    pub(super) log: Logger,
}

/// Size of a descriptor in bytes.
pub(super) const fn size(version: u32) -> usize {
    match version {
        ..5 => 104,
        5 | 6 => 112,
        _ => 136,
    }
}

/// Size of the longest descriptor in bytes.
pub(super) const MAX_SIZE: usize = size(7);
/// Offset of the parent, in every version.
pub(super) const PARENT: usize = 8;
/// Offset of the fields that depend on the kind, in every version.
const BODY: usize = 24;
/// Offset of a second parent, an event of kind [`kind::GROUP`], since version 5.
pub(super) const GROUP_OF_COLL: usize = 104;
pub(super) const GROUP_OF_P2P: usize = 64;

/// `coll`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Coll {
    seq: u64,
    func: *const c_char,
    send: *const c_void,
    receive: *const c_void,
    /// In bytes for operations that only move data.
    pub(super) count: usize,
    pub(super) root: c_int,
    dtype: *const c_char,
    pub(super) channels: u8,
    warps: u8,
    algorithm: *const c_char,
    protocol: *const c_char,
}

/// `p2p`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct P2p {
    func: *const c_char,
    buffer: *const c_void,
    dtype: *const c_char,
    pub(super) count: usize,
    pub(super) peer: c_int,
    /// Not initialized by NCCL in version 4.
    pub(super) channels: u8,
}

/// `proxyOp`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ProxyOp {
    /// Process for which the proxy works.
    pub(super) pid: u32,
    pub(super) channel: u8,
    /// Rank of the peer in the communicator.
    pub(super) peer: c_int,
    pub(super) steps: c_int,
    pub(super) chunk: c_int,
    pub(super) is_send: c_int,
}

/// `collApi`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct CollApi {
    func: *const c_char,
    pub(super) count: usize,
    dtype: *const c_char,
    pub(super) root: c_int,
    pub(super) stream: *mut c_void,
    is_captured: u8,
}

/// `p2pApi`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct P2pApi {
    func: *const c_char,
    count: usize,
    dtype: *const c_char,
    pub(super) stream: *mut c_void,
    is_captured: u8,
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Coll, count) + BODY == 56 && offset_of!(Coll, root) + BODY == 64);
    assert!(offset_of!(Coll, dtype) + BODY == 72 && offset_of!(Coll, channels) + BODY == 80);
    assert!(size_of::<Coll>() + BODY == size(4));
    assert!(offset_of!(P2p, count) + BODY == 48 && offset_of!(P2p, peer) + BODY == 56);
    assert!(offset_of!(P2p, channels) + BODY == 60 && size_of::<P2p>() + BODY <= size(4));
    assert!(offset_of!(ProxyOp, channel) + BODY == 28 && offset_of!(ProxyOp, peer) + BODY == 32);
    assert!(offset_of!(ProxyOp, steps) + BODY == 36 && offset_of!(ProxyOp, is_send) + BODY == 44);
    assert!(offset_of!(CollApi, root) + BODY == 48 && offset_of!(CollApi, stream) + BODY == 56);
    assert!(offset_of!(CollApi, is_captured) + BODY == 64);
    assert!(
        offset_of!(P2pApi, stream) + BODY == 48 && offset_of!(P2pApi, is_captured) + BODY == 56
    );
    assert!(size_of::<CollApi>() + BODY <= size(5) && size_of::<P2pApi>() + BODY <= size(5));
};

/// NCCL's description of an event, valid during NCCL's call.
#[derive(Clone, Copy)]
pub(super) struct Descriptor {
    address: *const c_void,
    version: u32,
}

impl Descriptor {
    /// # Safety
    ///
    /// `address` points to a descriptor of this version, and is not used after the call it was
    /// passed to.
    pub(super) const unsafe fn new(address: *const c_void, version: u32) -> Self {
        Self { address, version }
    }

    pub(super) const fn version(self) -> u32 {
        self.version
    }

    /// The kind, a bit of [`kind`].
    pub(super) fn kind(self) -> u64 {
        if self.version < 5 {
            // SAFETY: every descriptor begins with its kind, one byte up to version 4.
            return u64::from(unsafe { self.address.cast::<u8>().read() });
        }
        // SAFETY: as above, eight bytes since version 5.
        unsafe { self.address.cast::<u64>().read() }
    }

    /// Handle of the parent event, as returned by [`start`](super). A proxy that works for another
    /// process passes a parent from that process.
    pub(super) fn parent(self) -> usize {
        // SAFETY: every descriptor has its parent at this offset.
        unsafe { self.address.byte_add(PARENT).cast::<usize>().read() }
    }

    /// Whether a proxy works for another process.
    pub(super) fn is_foreign(self) -> bool {
        let pid: u32 = self.body();
        pid != std::process::id()
    }

    pub(super) fn proxy_op(self) -> ProxyOp {
        self.body()
    }

    /// The number of a proxy's step.
    pub(super) fn step(self) -> c_int {
        self.body()
    }

    pub(super) fn coll(self) -> Coll {
        self.body()
    }

    pub(super) fn p2p(self) -> P2p {
        self.body()
    }

    pub(super) fn coll_api(self) -> CollApi {
        self.body()
    }

    pub(super) fn p2p_api(self) -> P2pApi {
        self.body()
    }

    fn body<T: Copy>(self) -> T {
        // SAFETY: the caller has checked the kind, whose fields are shorter than the descriptor
        // (asserted above) and consist of numbers and addresses, for which all bit patterns are
        // valid.
        unsafe { self.address.byte_add(BODY).cast::<T>().read() }
    }

    /// Copies the descriptor; a shorter version leaves the rest unchanged.
    pub(super) fn copy(self, to: &mut [u64; MAX_SIZE / 8]) {
        // SAFETY: the descriptor has that size, and no version is longer than `to`.
        unsafe {
            let to = to.as_mut_ptr().cast::<u8>();
            self.address.cast::<u8>().copy_to_nonoverlapping(to, size(self.version));
        }
    }
}

impl Coll {
    pub(super) fn op(&self) -> Op {
        op(self.func)
    }

    pub(super) fn dtype(&self) -> DType {
        dtype(self.dtype)
    }
}

impl P2p {
    pub(super) fn op(&self) -> Op {
        op(self.func)
    }

    pub(super) fn dtype(&self) -> DType {
        dtype(self.dtype)
    }
}

impl CollApi {
    pub(super) fn op(&self) -> Op {
        op(self.func)
    }

    pub(super) fn dtype(&self) -> DType {
        dtype(self.dtype)
    }

    pub(super) const fn is_captured(&self) -> bool {
        self.is_captured != 0
    }
}

impl P2pApi {
    pub(super) const fn is_captured(&self) -> bool {
        self.is_captured != 0
    }
}

/// A name from NCCL, valid during NCCL's call.
fn name<'n>(text: *const c_char) -> &'n [u8] {
    if text.is_null() {
        return b"";
    }
    // SAFETY: NCCL's names are NUL-terminated. The result is used within the call only.
    unsafe { CStr::from_ptr(text) }.to_bytes()
}

/// Converts NCCL's name of a function.
fn op(text: *const c_char) -> Op {
    match name(text) {
        b"AllReduce" => Op::AllReduce,
        b"Broadcast" => Op::Broadcast,
        b"Reduce" => Op::Reduce,
        b"AllGather" => Op::AllGather,
        b"ReduceScatter" => Op::ReduceScatter,
        b"AlltoAll" | b"AllToAll" => Op::AllToAll,
        b"Gather" => Op::Gather,
        b"Scatter" => Op::Scatter,
        b"Send" => Op::Send,
        b"Recv" => Op::Recv,
        _ => Op::Other,
    }
}

/// Converts NCCL's name of an element type.
fn dtype(text: *const c_char) -> DType {
    match name(text) {
        b"ncclInt8" => DType::Int8,
        b"ncclUint8" => DType::UInt8,
        b"ncclInt32" => DType::Int32,
        b"ncclUint32" => DType::UInt32,
        b"ncclInt64" => DType::Int64,
        b"ncclUint64" => DType::UInt64,
        b"ncclFloat16" => DType::Float16,
        b"ncclFloat32" => DType::Float32,
        b"ncclFloat64" => DType::Float64,
        b"ncclBfloat16" => DType::BFloat16,
        b"ncclFloat8e4m3" => DType::Float8E4M3,
        b"ncclFloat8e5m2" => DType::Float8E5M2,
        _ => DType::Other,
    }
}
