//! What a dump of PyTorch's Flight Recorder shows of the collectives on the device of a process.

use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

/// The collectives of a process over NCCL, and which of them its device has completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceCalls {
    /// Time of the request for the dump, which was written later.
    pub at: Timestamp,
    /// It records when a device begins a call; otherwise it is unknown whether incomplete calls have begun.
    pub records_starts: bool,
    /// Its groups.
    pub groups: Vec<DeviceGroup>,
}

/// The collectives of one process group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceGroup {
    /// Name of the group.
    pub name: Arc<str>,
    /// Sequence number of the first collective that the dump shows.
    pub first: u64,
    /// Sequence number of the last one.
    pub last: u64,
    /// Operation of the last one.
    pub last_op: Op,
    /// Time the latest complete one was found to be complete, if known.
    pub completed_at: Option<Timestamp>,
    /// Those that are not complete, ascending.
    pub incomplete: Vec<DeviceCall>,
}

/// A collective that a device has not completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCall {
    /// Sequence number in its group.
    pub seq: u64,
    /// Operation.
    pub op: Op,
    /// Its device has begun it.
    pub has_started: bool,
}
