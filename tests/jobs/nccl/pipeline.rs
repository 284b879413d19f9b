/*
 * /// truth
 * nproc = 3
 * launcher = "doubles"
 * environment = { PATIENCE_MS = "8000" }
 * layers = ["nccl"]
 * quick = ["faulty", "healthy"]
 * [faulty]
 * code = "DD113"
 * verdict = "hang"
 * root_confidence = "suspected"
 * hang = true
 * ranks = { root = [1, 2], victims = [] }
 * [healthy]
 * ///
 * A pipeline in Rust: every stage takes the activations of the one before and hands its own on. The last
 * stage expects the last batch to be as small as it is there; the stage before sends a full one.
 */
#![expect(unsafe_code, reason = "calls NCCL and the CUDA driver")]

use std::ffi::{c_int, c_void};
use std::{env, fs, ptr, thread, time::Duration};

/// Floats of a full batch.
const BATCH: usize = 64;
const FLOAT32: c_int = 7;

#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

type Handle = *mut c_void;

#[link(name = "libcuda.so.1", kind = "dylib", modifiers = "+verbatim")]
unsafe extern "C" {
    fn cuInit(flags: u32) -> c_int;
    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) -> c_int;
    fn cuCtxSetCurrent(context: Handle) -> c_int;
    fn cuStreamCreate(stream: *mut Handle, flags: u32) -> c_int;
    fn cuStreamSynchronize(stream: Handle) -> c_int;
    fn cuMemAlloc_v2(address: *mut Handle, bytes: usize) -> c_int;
}

#[link(name = "libnccl.so.2", kind = "dylib", modifiers = "+verbatim")]
unsafe extern "C" {
    fn ncclGetUniqueId(id: *mut UniqueId) -> c_int;
    fn ncclCommInitRank(comm: *mut Handle, ranks: c_int, id: UniqueId, rank: c_int) -> c_int;
    fn ncclSend(
        data: Handle,
        n: usize,
        kind: c_int,
        peer: c_int,
        comm: Handle,
        stream: Handle,
    ) -> c_int;
    fn ncclRecv(
        data: Handle,
        n: usize,
        kind: c_int,
        peer: c_int,
        comm: Handle,
        stream: Handle,
    ) -> c_int;
    fn ncclCommDestroy(comm: Handle) -> c_int;
}

fn number(name: &str) -> c_int {
    env::var(name).unwrap().parse().unwrap()
}

/// The unique id, which rank 0 makes.
fn meet(rank: c_int) -> UniqueId {
    let path = format!("{}/world", env::var("JOB_DIR").unwrap());
    let mut id = UniqueId([0; 128]);
    if rank == 0 {
        // SAFETY: the pointer is to a live value.
        assert_eq!(unsafe { ncclGetUniqueId(&raw mut id) }, 0);
        fs::write(format!("{path}.new"), id.0).unwrap();
        fs::rename(format!("{path}.new"), path).unwrap();
        return id;
    }
    loop {
        if let Ok(bytes) = fs::read(&path) {
            id.0.copy_from_slice(&bytes);
            return id;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn main() {
    let (rank, world) = (number("RANK"), number("WORLD_SIZE"));
    let (mut context, mut stream, mut activations, mut comm) = (
        ptr::null_mut(),
        ptr::null_mut(),
        ptr::null_mut(),
        ptr::null_mut(),
    );
    // SAFETY: the pointers are to live values, and what is got from a call is handed to the next.
    unsafe {
        assert_eq!(cuInit(0), 0);
        assert_eq!(
            cuDevicePrimaryCtxRetain(&raw mut context, number("LOCAL_RANK")),
            0
        );
        assert_eq!(cuCtxSetCurrent(context), 0);
        assert_eq!(cuStreamCreate(&raw mut stream, 0), 0);
        assert_eq!(
            cuMemAlloc_v2(&raw mut activations, BATCH * size_of::<f32>()),
            0
        );
        assert_eq!(ncclCommInitRank(&raw mut comm, world, meet(rank), rank), 0);
    }
    for step in 1..=6 {
        let received = if step == 6 { BATCH / 2 } else { BATCH };
        let is_wrong = cfg!(faulty) && step == 6 && rank == 1;
        let sent = if is_wrong { BATCH } else { received };
        // SAFETY: the memory is as long as a full batch, and outlives the calls.
        unsafe {
            if rank > 0 {
                assert_eq!(
                    ncclRecv(activations, received, FLOAT32, rank - 1, comm, stream),
                    0
                );
            }
            if rank + 1 < world {
                assert_eq!(
                    ncclSend(activations, sent, FLOAT32, rank + 1, comm, stream),
                    0
                );
            }
            assert_eq!(cuStreamSynchronize(stream), 0);
        }
    }
    // SAFETY: it was made above, and is not used any more.
    assert_eq!(unsafe { ncclCommDestroy(comm) }, 0);
}
