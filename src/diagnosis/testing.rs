//! Calls and groups for unit tests of the engine.

use std::sync::Arc;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;

use crate::input::event::{Call, CallId, GroupInfo, ThreadId};

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
