//! Which calls belong together: what peers of one collective must agree on.
//!
//! Calls of one group meet by sequence number. Whether two that met can be one collective is decided
//! here, by the rules of each operation. What was not seen never disagrees.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::vocabulary::Direction;

use super::event::Call;

/// The first thing, in the order in which findings are named, that two calls disagree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mismatch {
    /// Different collectives.
    Op,
    /// Sizes that must agree do not.
    Size,
    /// Element types differ.
    DType,
    /// Reduction operators differ.
    ReduceOp,
    /// Roots differ.
    Root,
}

/// Compares two calls that met at one sequence number of a group.
#[must_use]
pub fn compare(a: &Call, b: &Call) -> Option<Mismatch> {
    if a.op == Op::Unspecified || b.op == Op::Unspecified {
        return None;
    }
    if a.op != b.op {
        return Some(Mismatch::Op);
    }
    if differ(size(a), size(b)) {
        return Some(Mismatch::Size);
    }
    if differ(a.dtype.name(), b.dtype.name()) && carries_data(a.op) {
        return Some(Mismatch::DType);
    }
    if reduce_ops_differ(a, b) && a.op.reduces() {
        return Some(Mismatch::ReduceOp);
    }
    if differ(a.root, b.root) && a.op.is_rooted() {
        return Some(Mismatch::Root);
    }
    None
}

/// By the word of a layer that saw both: what one layer calls the operator says nothing about what another
/// one does.
fn reduce_ops_differ(a: &Call, b: &Call) -> bool {
    let beneath = |call: &Call| call.reduce_op_beneath().and_then(|it| it.name());
    match (a.reduce_op.name(), b.reduce_op.name()) {
        (Some(a), Some(b)) => a != b,
        _ => differ(beneath(a), beneath(b)),
    }
}

/// Everything two calls disagree on, not only the first.
#[must_use]
pub fn differences(a: &Call, b: &Call) -> Vec<Mismatch> {
    let mut found = Vec::new();
    if differ(a.op.name(), b.op.name()) {
        found.push(Mismatch::Op);
    }
    if differ(size(a), size(b)) {
        found.push(Mismatch::Size);
    }
    if differ(a.dtype.name(), b.dtype.name()) {
        found.push(Mismatch::DType);
    }
    if reduce_ops_differ(a, b) {
        found.push(Mismatch::ReduceOp);
    }
    if differ(a.root, b.root) {
        found.push(Mismatch::Root);
    }
    found
}

/// The number of elements that must be equal on all ranks, for ops that have one.
///
/// Only the element count is compared, not the shape: a reduction of `[2, 3]` meets one of `[6]`
/// without harm. Splits of an `all_to_all` differ legally, and an `all_gather` of NCCL may gather
/// pieces of different sizes.
#[must_use]
pub fn size(call: &Call) -> Option<u64> {
    let uneven_is_legal = match call.op {
        Op::AllToAll | Op::Barrier => true,
        // c10d turns an all_gather of unequal pieces into broadcasts where the backend is not Gloo.
        Op::AllGather | Op::ReduceScatter => !is_even(call),
        _ => false,
    };
    // A call of several tensors is described by its first one alone: sizes of the rest are unknown.
    let one_tensor = call.tensors <= 1 || !is_coalesced(call.op);
    if uneven_is_legal || !one_tensor {
        None
    } else {
        call.numel
    }
}

/// Whether pieces must have one size: on Gloo, and where NCCL itself is called.
fn is_even(call: &Call) -> bool {
    call.group
        .as_ref()
        .is_some_and(|group| &*group.backend == "gloo" || group.key.layer == "nccl")
}

const fn is_coalesced(op: Op) -> bool {
    matches!(
        op,
        Op::AllReduceCoalesced | Op::AllGatherCoalesced | Op::ReduceScatterCoalesced
    )
}

/// Whether element types mean anything for the op: a barrier's are an accident of its transport.
const fn carries_data(op: Op) -> bool {
    !matches!(op, Op::Barrier) && !matches!(op.direction(), Direction::Unknown)
}

fn differ<T: PartialEq>(a: Option<T>, b: Option<T>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a != b)
}

/// Splits ranks into those that agree with each other, largest class first, ties by lowest rank.
#[must_use]
pub fn classes<'a>(calls: impl Iterator<Item = (u32, &'a Call)>) -> Vec<Vec<u32>> {
    let mut classes: Vec<(&Call, Vec<u32>)> = Vec::new();
    for (rank, call) in calls {
        match classes
            .iter_mut()
            .find(|(head, _)| compare(head, call).is_none())
        {
            Some((_, ranks)) => ranks.push(rank),
            None => classes.push((call, vec![rank])),
        }
    }
    let mut classes: Vec<Vec<u32>> = classes.into_iter().map(|(_, ranks)| ranks).collect();
    classes.sort_by_key(|ranks| (std::cmp::Reverse(ranks.len()), ranks[0]));
    classes
}

/// The ranks on the odd side: all but the one class that outnumbers every other and has at least
/// two ranks. Without such a class it is one word against the other, and all of them disagree.
#[must_use]
pub fn odd_ones(classes: &[Vec<u32>]) -> OddOnes {
    let (first, rest) = match classes {
        [] => return OddOnes::None,
        [_] => return OddOnes::None,
        [first, rest @ ..] => (first, rest),
    };
    if first.len() >= 2 && first.len() > rest[0].len() {
        let mut odd: Vec<u32> = rest.concat();
        odd.sort_unstable();
        return OddOnes::Outnumbered(odd);
    }
    let mut all = classes.concat();
    all.sort_unstable();
    OddOnes::Tie(all)
}

/// Who stands apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OddOnes {
    /// Everybody agrees.
    None,
    /// A majority agrees; these do not.
    Outnumbered(Vec<u32>),
    /// No side outnumbers the others.
    Tie(Vec<u32>),
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::{DType, ReduceOp};

    use super::*;
    use crate::diagnosis::testing::call;

    #[test]
    fn the_first_difference_names_the_mismatch() {
        let a = call(Op::AllReduce)
            .numel(8)
            .dtype(DType::Float32)
            .reduce_op(ReduceOp::Sum)
            .build();
        let same = compare(&a, &a.clone());
        assert_eq!(same, None);
        let b = call(Op::Broadcast).numel(9).build();
        assert_eq!(compare(&a, &b), Some(Mismatch::Op));
        let b = call(Op::AllReduce).numel(9).dtype(DType::Int32).build();
        assert_eq!(compare(&a, &b), Some(Mismatch::Size));
        let b = call(Op::AllReduce)
            .numel(8)
            .dtype(DType::Int32)
            .reduce_op(ReduceOp::Max)
            .build();
        assert_eq!(compare(&a, &b), Some(Mismatch::DType));
        assert_eq!(differences(&a, &b), [Mismatch::DType, Mismatch::ReduceOp]);
        let b = call(Op::AllReduce)
            .numel(8)
            .dtype(DType::Float32)
            .reduce_op(ReduceOp::Max)
            .build();
        assert_eq!(compare(&a, &b), Some(Mismatch::ReduceOp));
        let (a, b) = (
            call(Op::Broadcast).root(0).build(),
            call(Op::Broadcast).root(1).build(),
        );
        assert_eq!(compare(&a, &b), Some(Mismatch::Root));
    }

    #[test]
    fn what_was_not_seen_never_disagrees() {
        let known = call(Op::AllReduce)
            .numel(8)
            .reduce_op(ReduceOp::Sum)
            .build();
        let hidden = call(Op::AllReduce).build();
        assert_eq!(compare(&known, &hidden), None);
        assert_eq!(compare(&known, &call(Op::Unspecified).build()), None);
    }

    #[test]
    fn sizes_that_may_differ_are_not_compared() {
        for (op, backend, legal) in [
            (Op::AllToAll, "gloo", true),
            (Op::AllGather, "nccl", true),
            (Op::AllGather, "gloo", false),
            (Op::Barrier, "gloo", true),
            (Op::Reduce, "nccl", false),
        ] {
            let a = call(op).backend(backend).numel(1).build();
            let b = call(op).backend(backend).numel(2).build();
            assert_eq!(compare(&a, &b).is_none(), legal, "{op} on {backend}");
        }
    }

    #[test]
    fn two_sides_of_equal_size_are_a_tie() {
        assert_eq!(odd_ones(&[vec![0], vec![1]]), OddOnes::Tie(vec![0, 1]));
        assert_eq!(
            odd_ones(&[vec![0, 1], vec![2, 3]]),
            OddOnes::Tie(vec![0, 1, 2, 3])
        );
        assert_eq!(
            odd_ones(&[vec![0, 2], vec![1]]),
            OddOnes::Outnumbered(vec![1])
        );
        assert_eq!(odd_ones(&[vec![0, 1, 2]]), OddOnes::None);
    }
}
