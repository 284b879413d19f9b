//! Recorded calls on a communicator.

use std::panic::Location;
use std::sync::Arc;

use cudarc::driver::sys::CUstreamCaptureStatus;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use cudarc::nccl::{self as of, Id, NcclType, ReduceOp as Reduction, result};
use ddp_doctor_proto::Op;
use ddp_doctor_proto::blackbox::Call;

use super::group::Group;
use super::{NcclCall, NcclError, is_available, record_rejection};
use crate::blackbox::{Creation, Seat, Writer};
use crate::current::is_current;
use crate::{current, identity};

/// Wraps [`cudarc::nccl::Comm`] and records its calls if there is a black box. Like the original,
/// it is aborted when it is dropped; synchronize the stream first.
#[derive(Debug)]
pub struct Comm {
    comm: of::Comm,
    /// The box in which it is registered, and its group number there.
    known: Option<(&'static Writer, u32)>,
}

impl Comm {
    /// See [`cudarc::nccl::Comm::from_rank`]. Blocks until all ranks take part.
    #[track_caller]
    pub fn from_rank(
        stream: Arc<CudaStream>,
        rank: usize,
        world_size: usize,
        id: Id,
    ) -> Result<Self, NcclError> {
        is_available()?;
        let place = Location::caller();
        let seat = seat(rank, world_size).ok_or(NcclError::NoSuchRank)?;
        let name = identity::name(identity::of_unique_id(&bytes(&id)), 0);
        let making = current().map(|writer| {
            let call = writer.creating(&Creation {
                op: Op::NewGroup,
                name: name.as_bytes(),
                description: b"",
                backend: b"nccl",
                takes_all: true,
                epoch: 0,
                members: &[],
                seat: Some(seat),
                site: writer.rust_site(place),
            });
            (writer, call)
        });
        let made = of::Comm::from_rank(stream, rank, world_size, id)
            .map_err(|error| NcclError::from_result("ncclCommInitRank", &error));
        if let Some((writer, call)) = making {
            record_rejection(writer, &made, place);
            writer.returned(call);
        }
        let comm = made?;
        let known = making.and_then(|(writer, _)| {
            let group = writer.communicator(name.as_bytes(), b"", b"nccl", seat.rank, seat.size);
            (group != 0).then_some((writer, group))
        });
        Ok(Self { comm, known })
    }

    /// The wrapped communicator. Calls made directly on it are not recorded.
    #[must_use]
    pub fn inner(&self) -> &of::Comm {
        &self.comm
    }

    /// Rank of this process in the communicator.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// Number of ranks.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.comm.world_size()
    }

    /// The communicator's stream.
    #[must_use]
    pub fn stream(&self) -> Arc<CudaStream> {
        self.comm.stream()
    }

    /// See [`cudarc::nccl::Comm::send`].
    #[track_caller]
    pub fn send<S: DevicePtr<T>, T: NcclType>(&self, data: &S, peer: i32) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclSend", Op::Send, data.len()).with(peer);
        self.call(call, |comm| comm.send(data, peer))
    }

    /// See [`cudarc::nccl::Comm::recv`].
    #[track_caller]
    pub fn recv<R: DevicePtrMut<T>, T: NcclType>(
        &self,
        buff: &mut R,
        peer: i32,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclRecv", Op::Recv, buff.len()).with(peer);
        self.call(call, |comm| comm.recv(buff, peer))
    }

    /// See [`cudarc::nccl::Comm::broadcast`].
    #[track_caller]
    pub fn broadcast<S: DevicePtr<T>, R: DevicePtrMut<T>, T: NcclType>(
        &self,
        sendbuff: Option<&S>,
        recvbuff: &mut R,
        root: i32,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclBroadcast", Op::Broadcast, recvbuff.len()).with(root);
        self.call(call, |comm| comm.broadcast(sendbuff, recvbuff, root))
    }

    /// See [`cudarc::nccl::Comm::broadcast_in_place`].
    #[track_caller]
    pub fn broadcast_in_place<R: DevicePtrMut<T>, T: NcclType>(
        &self,
        recvbuff: &mut R,
        root: i32,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclBroadcast", Op::Broadcast, recvbuff.len())
            .with(root)
            .in_place();
        self.call(call, |comm| comm.broadcast_in_place(recvbuff, root))
    }

    /// See [`cudarc::nccl::Comm::all_gather`].
    #[track_caller]
    pub fn all_gather<S: DevicePtr<T>, R: DevicePtrMut<T>, T: NcclType>(
        &self,
        sendbuff: &S,
        recvbuff: &mut R,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclAllGather", Op::AllGather, sendbuff.len());
        self.call(call, |comm| comm.all_gather(sendbuff, recvbuff))
    }

    /// See [`cudarc::nccl::Comm::all_reduce`].
    #[track_caller]
    pub fn all_reduce<S: DevicePtr<T>, R: DevicePtrMut<T>, T: NcclType>(
        &self,
        sendbuff: &S,
        recvbuff: &mut R,
        reduce_op: &Reduction,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclAllReduce", Op::AllReduce, sendbuff.len());
        self.call(call.reducing(reduce_op), |comm| comm.all_reduce(sendbuff, recvbuff, reduce_op))
    }

    /// See [`cudarc::nccl::Comm::all_reduce_in_place`].
    #[track_caller]
    pub fn all_reduce_in_place<R: DevicePtrMut<T>, T: NcclType>(
        &self,
        buff: &mut R,
        reduce_op: &Reduction,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclAllReduce", Op::AllReduce, buff.len())
            .reducing(reduce_op)
            .in_place();
        self.call(call, |comm| comm.all_reduce_in_place(buff, reduce_op))
    }

    /// See [`cudarc::nccl::Comm::reduce`].
    #[track_caller]
    pub fn reduce<S: DevicePtr<T>, R: DevicePtrMut<T>, T: NcclType>(
        &self,
        sendbuff: &S,
        recvbuff: Option<&mut R>,
        reduce_op: &Reduction,
        root: i32,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclReduce", Op::Reduce, sendbuff.len())
            .reducing(reduce_op)
            .with(root);
        self.call(call, |comm| comm.reduce(sendbuff, recvbuff, reduce_op, root))
    }

    /// See [`cudarc::nccl::Comm::reduce_in_place`].
    #[track_caller]
    pub fn reduce_in_place<R: DevicePtrMut<T>, T: NcclType>(
        &self,
        recvbuff: &mut R,
        reduce_op: &Reduction,
        root: i32,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclReduce", Op::Reduce, recvbuff.len())
            .reducing(reduce_op)
            .with(root)
            .in_place();
        self.call(call, |comm| comm.reduce_in_place(recvbuff, reduce_op, root))
    }

    /// See [`cudarc::nccl::Comm::reduce_scatter`].
    #[track_caller]
    pub fn reduce_scatter<S: DevicePtr<T>, R: DevicePtrMut<T>, T: NcclType>(
        &self,
        sendbuff: &S,
        recvbuff: &mut R,
        reduce_op: &Reduction,
    ) -> Result<(), NcclError> {
        let call = NcclCall::new::<T>("ncclReduceScatter", Op::ReduceScatter, recvbuff.len());
        self.call(call.reducing(reduce_op), |comm| {
            comm.reduce_scatter(sendbuff, recvbuff, reduce_op)
        })
    }

    /// See [`cudarc::nccl::Comm::group`]. Begins a group; its calls are made and recorded when the
    /// outermost group of this thread ends.
    #[must_use = "the group ends when this is dropped"]
    pub fn group(&self) -> Group<'_> {
        Group::begin(self, self.comm.group())
    }

    /// The box and the group number, while that box is open.
    fn known(&self) -> Option<(&'static Writer, u32)> {
        self.known.filter(|(writer, _)| is_current(writer))
    }

    fn call<T>(
        &self,
        call: NcclCall,
        make: impl FnOnce(&of::Comm) -> Result<T, result::NcclError>,
    ) -> Result<(), NcclError> {
        let issued =
            self.described(call).map(|(writer, described)| (writer, writer.issued(&described)));
        let made = make(&self.comm).map_err(|error| NcclError::from_result(call.function, &error));
        if let Some((writer, id)) = issued {
            record_rejection(writer, &made, call.place);
            writer.returned(id);
        }
        made.map(drop)
    }

    /// The call with its group, site and stream; `None`: it is not recorded, because there is no
    /// box or NCCL ignores it.
    pub(super) fn described(&self, made: NcclCall) -> Option<(&'static Writer, Call)> {
        let (writer, group) = self.known().filter(|_| !made.call.is_dropped())?;
        let call = Call {
            group,
            site: writer.rust_site(made.place),
            ..made.call.on_stream(self.stream_name(), self.is_captured())
        };
        Some((writer, call))
    }

    fn is_captured(&self) -> bool {
        let status = self.comm.stream().capture_status();
        !matches!(status, Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE) | Err(_))
    }

    /// Identifies the stream within the process.
    fn stream_name(&self) -> u64 {
        /// Set in no user-space address.
        const OF_DEVICE: u64 = 1 << 63;
        match self.comm.stream().cu_stream().addr() {
            // The default stream, one per device.
            0 => OF_DEVICE | (self.comm.ordinal() as u64 & 0x7fff) << 48,
            address => address as u64,
        }
    }
}

fn seat(rank: usize, size: usize) -> Option<Seat> {
    let (rank, size) = (u32::try_from(rank).ok()?, u32::try_from(size).ok()?);
    (rank < size && i32::try_from(size).is_ok()).then_some(Seat { rank, size })
}

fn bytes(id: &Id) -> [u8; 128] {
    let chars = id.internal();
    std::array::from_fn(|i| chars.get(i).map_or(0, |it| it.to_ne_bytes()[0]))
}
