//! Recorded calls of a group.
//!
//! NCCL makes the calls of a group when the outermost group of a thread ends, in an order of its
//! own. They are recorded at that point, in an order that is the same on all ranks that make the
//! same calls.

use std::cell::RefCell;
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{self as of, NcclType, ReduceOp as Reduction, result};
use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::{Call, on_stream};

use super::{Comm, NcclCall, NcclError};
use crate::blackbox::Writer;
use crate::current::is_current;

/// Number of the next launch.
static LAUNCHES: AtomicU32 = AtomicU32::new(1);

/// Open groups of this thread.
struct Open {
    depth: u32,
    calls: Vec<(&'static Writer, Call)>,
}

thread_local! {
    static OPEN: RefCell<Open> = const {
        RefCell::new(Open {
            depth: 0,
            calls: Vec::new(),
        })
    };
}

/// Wraps [`cudarc::nccl::Group`]. The calls are recorded when the outermost group ends.
#[must_use = "the group ends when this is dropped"]
pub struct Group<'g> {
    /// `None`: the group has ended.
    group: Option<of::Group<'g>>,
    comm: &'g Comm,
}

impl<'g> Group<'g> {
    pub(super) fn begin(comm: &'g Comm, group: of::Group<'g>) -> Self {
        OPEN.with_borrow_mut(|open| open.depth += 1);
        Self { group: Some(group), comm }
    }

    /// The communicator.
    #[must_use]
    pub fn comm(&self) -> &'g Comm {
        self.comm
    }

    /// Ends the group. Dropping it does the same, but ignores errors.
    pub fn end(mut self) -> Result<(), NcclError> {
        self.finish()
    }

    /// See [`cudarc::nccl::Group::send`].
    #[track_caller]
    pub fn send<'s: 'g, T: NcclType>(
        &mut self,
        data: CudaView<'s, T>,
        peer: i32,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclSend", Op::Send, data.len()).with(peer);
        self.call(call, |group| group.send(data, peer))
    }

    /// See [`cudarc::nccl::Group::recv`].
    #[track_caller]
    pub fn recv<'r: 'g, T: NcclType>(
        &mut self,
        buff: CudaViewMut<'r, T>,
        peer: i32,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclRecv", Op::Recv, buff.len()).with(peer);
        self.call(call, |group| group.recv(buff, peer))
    }

    /// See [`cudarc::nccl::Group::broadcast`].
    #[track_caller]
    pub fn broadcast<'s: 'g, 'r: 'g, T: NcclType>(
        &mut self,
        sendbuff: Option<CudaView<'s, T>>,
        recvbuff: CudaViewMut<'r, T>,
        root: i32,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclBroadcast", Op::Broadcast, recvbuff.len()).with(root);
        self.call(call, |group| group.broadcast(sendbuff, recvbuff, root))
    }

    /// See [`cudarc::nccl::Group::broadcast_in_place`].
    #[track_caller]
    pub fn broadcast_in_place<'r: 'g, T: NcclType>(
        &mut self,
        recvbuff: CudaViewMut<'r, T>,
        root: i32,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclBroadcast", Op::Broadcast, recvbuff.len())
            .with(root)
            .in_place();
        self.call(call, |group| group.broadcast_in_place(recvbuff, root))
    }

    /// See [`cudarc::nccl::Group::all_gather`].
    #[track_caller]
    pub fn all_gather<'s: 'g, 'r: 'g, T: NcclType>(
        &mut self,
        sendbuff: CudaView<'s, T>,
        recvbuff: CudaViewMut<'r, T>,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclAllGather", Op::AllGather, sendbuff.len());
        self.call(call, |group| group.all_gather(sendbuff, recvbuff))
    }

    /// See [`cudarc::nccl::Group::all_reduce`].
    #[track_caller]
    pub fn all_reduce<'s: 'g, 'r: 'g, T: NcclType>(
        &mut self,
        sendbuff: CudaView<'s, T>,
        recvbuff: CudaViewMut<'r, T>,
        reduce_op: &Reduction,
    ) -> Result<(), NcclError> {
        let call =
            NcclCall::new::<T>("ncclAllReduce", Op::AllReduce, sendbuff.len()).reducing(reduce_op);
        self.call(call, |group| group.all_reduce(sendbuff, recvbuff, reduce_op))
    }

    /// See [`cudarc::nccl::Group::all_reduce_in_place`].
    #[track_caller]
    pub fn all_reduce_in_place<'r: 'g, T: NcclType>(
        &mut self,
        buff: CudaViewMut<'r, T>,
        reduce_op: &Reduction,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclAllReduce", Op::AllReduce, buff.len())
            .reducing(reduce_op)
            .in_place();
        self.call(call, |group| group.all_reduce_in_place(buff, reduce_op))
    }

    /// See [`cudarc::nccl::Group::reduce`].
    #[track_caller]
    pub fn reduce<'s: 'g, 'r: 'g, T: NcclType>(
        &mut self,
        sendbuff: CudaView<'s, T>,
        recvbuff: Option<CudaViewMut<'r, T>>,
        reduce_op: &Reduction,
        root: i32,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclReduce", Op::Reduce, sendbuff.len())
            .reducing(reduce_op)
            .with(root);
        self.call(call, |group| group.reduce(sendbuff, recvbuff, reduce_op, root))
    }

    /// See [`cudarc::nccl::Group::reduce_in_place`].
    #[track_caller]
    pub fn reduce_in_place<'r: 'g, T: NcclType>(
        &mut self,
        recvbuff: CudaViewMut<'r, T>,
        reduce_op: &Reduction,
        root: i32,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclReduce", Op::Reduce, recvbuff.len())
            .reducing(reduce_op)
            .with(root)
            .in_place();
        self.call(call, |group| group.reduce_in_place(recvbuff, reduce_op, root))
    }

    /// See [`cudarc::nccl::Group::reduce_scatter`].
    #[track_caller]
    pub fn reduce_scatter<'s: 'g, 'r: 'g, T: NcclType>(
        &mut self,
        sendbuff: CudaView<'s, T>,
        recvbuff: CudaViewMut<'r, T>,
        reduce_op: &Reduction,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclReduceScatter", Op::ReduceScatter, recvbuff.len())
            .reducing(reduce_op);
        self.call(call, |group| group.reduce_scatter(sendbuff, recvbuff, reduce_op))
    }

    fn call<T>(
        &mut self,
        call: NcclCall,
        make: impl FnOnce(&mut of::Group<'g>) -> Result<T, result::NcclError>,
    ) -> Result<(), NcclError> {
        let described = self.comm.described(call);
        // Present until `end` or `drop` takes it.
        if let Some(group) = &mut self.group {
            make(group).map_err(|error| NcclError::from_result(call.function, &error))?;
        }
        OPEN.with_borrow_mut(|open| open.calls.extend(described));
        Ok(())
    }

    fn finish(&mut self) -> Result<(), NcclError> {
        let Some(group) = self.group.take() else {
            return Ok(());
        };
        let calls = OPEN.with_borrow_mut(|open| {
            open.depth = open.depth.saturating_sub(1);
            let is_outermost = open.depth == 0;
            is_outermost.then(|| mem::take(&mut open.calls))
        });
        let issued = issue(calls.unwrap_or_default());
        // cudarc panics in `drop` if NCCL fails to end the group.
        let ended = catch_unwind(AssertUnwindSafe(|| drop(group)));
        for (writer, call) in issued {
            if is_current(writer) {
                writer.returned(call);
            }
        }
        ended.map_err(|payload| {
            // Dropping the payload might panic again.
            mem::forget(payload);
            NcclError::Refused("ncclGroupEnd")
        })
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        // Call `end` to see errors.
        self.finish().ok();
    }
}

impl fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("comm", self.comm).finish_non_exhaustive()
    }
}

/// Records the calls of a group that is about to end.
fn issue(mut calls: Vec<(&'static Writer, Call)>) -> Vec<(&'static Writer, u64)> {
    let launch = LAUNCHES.fetch_add(1, Ordering::Relaxed).max(1);
    // The sort is stable: messages between two ranks are matched in their order.
    calls.sort_by_key(|(_, call)| (call.group, call.launch_key()));
    let here = calls.into_iter().filter(|(writer, _)| is_current(writer));
    let issued = here.map(|(writer, mut call)| {
        call.dims[on_stream::LAUNCH] = launch;
        (writer, writer.issued(&call))
    });
    issued.collect()
}
