//! Facts for tests of the checkers, in a default group of two ranks.

use ddp_doctor_proto::report::{CallSignature, Certificate, CertificateKind, Fact, GroupRef};

use crate::proof::{Rejection, check};

pub(super) fn group(members: &[u32]) -> GroupRef {
    GroupRef {
        layer: "c10d".into(),
        epoch: 0,
        name: "0".into(),
        ordinal: 0,
        members: members.into(),
    }
}

pub(super) fn signature(op: &str) -> CallSignature {
    CallSignature {
        op: op.into(),
        numel: None,
        dtype: None,
        reduce_op: None,
        root: None,
        tag: None,
    }
}

pub(super) fn issued(rank: u32, seq: u64, call: CallSignature) -> Fact {
    Fact::Issued { rank, group: group(&[0, 1]), seq, call, step: 1 }
}

pub(super) fn never(rank: u32, last: u64) -> Fact {
    Fact::NeverIssued { rank, group: group(&[0, 1]), last }
}

pub(super) fn checked(kind: CertificateKind, facts: Vec<Fact>) -> Result<(), Rejection> {
    check(&Certificate { kind, facts })
}

/// A send or receive of rank `rank`; the other rank is its peer.
pub(super) fn message(op: &str, rank: u32, tag: i32, numel: u64) -> CallSignature {
    CallSignature {
        numel: Some(numel),
        dtype: Some("float32".into()),
        root: Some(1 - rank),
        tag: Some(tag),
        ..signature(op)
    }
}

pub(super) fn never_posted(rank: u32, op: &str, tag: i32, last: u64) -> Fact {
    Fact::NeverPosted {
        rank,
        group: group(&[0, 1]),
        op: op.into(),
        peer: 1 - rank,
        tag: Some(tag),
        last,
    }
}

pub(super) fn waits(rank: u32, seq: u64, call: CallSignature, only_thread: bool) -> Fact {
    Fact::Waits { rank, thread: 1, group: group(&[0, 1]), seq, call, only_thread }
}
