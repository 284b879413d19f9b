//! Calls and groups for unit tests of the engine.

use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use crate::evidence::event::{Call, CallId, Event, GroupInfo, ProcessId, ThreadId};

/// A call of the default group of two ranks, of which only the operation is known.
pub(crate) fn call(op: Op) -> Call {
    Call {
        group: Some(group("0", "gloo", &[0, 1])),
        seq: 1,
        ..Call::new(CallId(1), Timestamp(0), ThreadId(1), op)
    }
}

pub(crate) fn group(name: &str, backend: &str, members: &[u32]) -> Arc<GroupInfo> {
    Arc::new(GroupInfo::c10d(name, "", backend, members.into()))
}

/// A process of the only world joins as this rank of two.
pub(crate) fn joined(rank: u32, at: Timestamp) -> Event {
    Event::ProcessJoined {
        process: ProcessId(u64::from(rank) + 1),
        rank: Some(rank),
        world_size: Some(2),
        host: "node".into(),
        pid: rank + 1,
        layer: "c10d".into(),
        world: "".into(),
        restarts: 0,
        at,
    }
}
