//! What a node observes of its network ports.

use std::sync::Arc;

use ddp_doctor_proto::PortKind;
use ddp_doctor_proto::report::Timestamp;

/// A port of a node, or all NVLinks of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortIdentity {
    /// Host name of the node.
    pub host: Arc<str>,
    /// "mlx5_0/1", "eth0", or the number of the GPU.
    pub name: Arc<str>,
    /// What it connects.
    pub kind: PortKind,
    /// UUID of the GPU whose NVLinks these are.
    pub gpu: Option<Arc<str>>,
}

/// The state of a port at one moment; what is not supported is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSample {
    /// Time of the measurement before: what has changed did so since.
    pub previous: Option<Timestamp>,
    /// Whether it can carry data.
    pub is_up: bool,
    /// Number of times that it went down.
    pub downs: Option<u64>,
    /// Packets that arrived damaged, or could not be sent.
    pub errors: Option<u64>,
    /// Packets that were repeated, or waited for in vain.
    pub retries: Option<u64>,
    /// Bytes that were sent and received.
    pub bytes: Option<u64>,
}
