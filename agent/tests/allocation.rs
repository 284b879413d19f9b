//! The hot path does not allocate.
#![expect(unsafe_code, reason = "counts what an allocator is asked")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ddp_doctor_agent::{Agent, DType, Op, ReduceOp};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|it| it.set(it.get() + 1));
        // SAFETY: the caller meets the requirements of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller meets the requirements of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn recording_does_not_allocate() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::builder().directory(directory.path()).start().unwrap();
    let members: Vec<u32> = (0..16_384).collect();
    let world = agent.group("world", "", "nccl", &members);
    let work = || {
        let before = ALLOCATIONS.with(Cell::get);
        for i in 0..20_000 {
            agent.step();
            let call = agent
                .call(&world, Op::AllReduce)
                .dtype(DType::Float32)
                .shape(&[3, 4, 5])
                .reduce_op(ReduceOp::Sum)
                .issue();
            let id = call.id();
            drop(call);
            drop(agent.wait(id));
            agent.completed(id);
            drop(agent.call(&world, Op::Send).peer(i % 16_384).issue());
            drop(agent.phase("checkpoint"));
        }
        ALLOCATIONS.with(Cell::get) - before
    };
    // Includes the first record of a thread and of a source line.
    assert_eq!(work(), 0);
    let in_thread = std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    assert_eq!(in_thread, 0);
}
