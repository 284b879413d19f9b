//! Builders for unit tests of the engine.

use std::sync::Arc;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{DType, Op, ReduceOp};

use crate::evidence::event::{Call, CallId, GroupInfo, ThreadId};

pub(crate) struct CallBuilder(Call);

/// A call of the default group of two ranks, of which only the operation is known.
pub(crate) fn call(op: Op) -> CallBuilder {
    CallBuilder(Call {
        group: Some(group("0", "gloo", &[0, 1])),
        seq: 1,
        ..Call::new(CallId(1), Timestamp(0), ThreadId(1), op)
    })
}

pub(crate) fn group(name: &str, backend: &str, members: &[u32]) -> Arc<GroupInfo> {
    Arc::new(GroupInfo::c10d(name, "", backend, members.into()))
}

impl CallBuilder {
    pub(crate) fn numel(mut self, numel: u64) -> Self {
        self.0.numel = Some(numel);
        self
    }

    pub(crate) fn whole(mut self, numel: u64) -> Self {
        self.0.whole = Some(numel);
        self
    }

    pub(crate) fn dtype(mut self, dtype: DType) -> Self {
        self.0.dtype = dtype;
        self
    }

    pub(crate) fn reduce_op(mut self, reduce_op: ReduceOp) -> Self {
        self.0.reduce_op = reduce_op;
        self
    }

    pub(crate) fn root(mut self, root: u32) -> Self {
        self.0.root = Some(root);
        self
    }

    pub(crate) fn backend(mut self, backend: &str) -> Self {
        self.0.group = Some(group("0", backend, &[0, 1]));
        self
    }

    pub(crate) fn build(self) -> Call {
        self.0
    }
}
