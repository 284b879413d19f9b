//! Matching of calls: what the peers of one collective must agree on.
//!
//! Calls of a group meet by sequence number. Whether two calls can be one collective is decided
//! here, by the rules of each operation. Unknown attributes match everything.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;

use ddp_doctor_proto::report::Confidence;
use ddp_doctor_proto::vocabulary::{Direction, NCCL_LAYER};
use ddp_doctor_proto::{DType, Op, ReduceOp};

use crate::input::backends::Backend;
use crate::input::event::Call;

/// The first disagreement of two calls, in the order in which findings are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mismatch {
    /// Different operations.
    Op,
    /// Different sizes that must be equal.
    Size,
    /// Splits of an `all_to_all` that do not match.
    Splits,
    /// Different dtypes.
    DType,
    /// Different reduction operators.
    ReduceOp,
    /// Different roots.
    Root,
}

/// The part of a call that its peers must agree on. Unknown attributes are `None` or unspecified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signature {
    op: Op,
    size: Option<u64>,
    dtype: DType,
    reduce_op: ReduceOp,
    /// As reported by the layer below.
    lower_reduce_op: Option<ReduceOp>,
    root: Option<u32>,
}

impl Signature {
    /// The signature of a call.
    pub fn from_call(call: &Call) -> Self {
        Self {
            op: call.op,
            size: size(call),
            dtype: call.dtype,
            reduce_op: call.reduce_op,
            lower_reduce_op: call.lower_reduce_op(),
            root: call.root,
        }
    }

    /// The first disagreement with the signature of another call.
    pub fn compare(&self, other: &Self) -> Option<Mismatch> {
        if self.op == Op::Unspecified || other.op == Op::Unspecified {
            return None;
        }
        let op = self.op;
        let counts = |mismatch: &Mismatch| match mismatch {
            Mismatch::Op | Mismatch::Size | Mismatch::Splits => true,
            Mismatch::DType => carries_data(op),
            Mismatch::ReduceOp => op.reduces(),
            Mismatch::Root => op.is_rooted(),
        };
        self.differences(other).into_iter().find(counts)
    }

    /// Whether a call with this signature and one with the other can never be one collective, whatever its
    /// transport makes of their contents.
    pub fn never_matches(&self, other: &Self) -> bool {
        let is_final = |it: &Mismatch| matches!(it, Mismatch::Op | Mismatch::Size | Mismatch::Root);
        self.compare(other).is_some() && self.differences(other).iter().any(is_final)
    }

    /// Adds what counts to a hash: signatures that agree give the same, unless an attribute is unknown.
    pub fn mix(&self, hash: u64) -> u64 {
        let op = self.op;
        let dtype = carries_data(op).then(|| self.dtype.number());
        let reduce_op = op.reduces().then(|| self.reduce_op.number());
        let root = self.root.filter(|_| op.is_rooted());
        let size = self.size.unwrap_or(u64::MAX);
        let root = root.map_or(u64::MAX, u64::from);
        let kinds = [op.number(), dtype.unwrap_or(0), reduce_op.unwrap_or(0)];
        mix(mix(mix_bytes(hash, &kinds), size), root)
    }

    /// All disagreements with the signature of another call.
    pub fn differences(&self, other: &Self) -> Vec<Mismatch> {
        let pairs = [
            (Mismatch::Op, differ(self.op.name(), other.op.name())),
            (Mismatch::Size, differ(self.size, other.size)),
            (Mismatch::DType, differ(self.dtype.name(), other.dtype.name())),
            (Mismatch::ReduceOp, self.reduces_otherwise(other)),
            (Mismatch::Root, differ(self.root, other.root)),
        ];
        let differing = pairs.into_iter().filter(|(_, differ)| *differ);
        differing.map(|(mismatch, _)| mismatch).collect()
    }

    /// Compares operators reported by one layer: layers may name the same reduction differently.
    fn reduces_otherwise(&self, other: &Self) -> bool {
        let lower_call = |it: &Self| it.lower_reduce_op.and_then(ReduceOp::name);
        match (self.reduce_op.name(), other.reduce_op.name()) {
            (Some(a), Some(b)) => a != b,
            _ => differ(lower_call(self), lower_call(other)),
        }
    }
}

/// All disagreements among these signatures.
pub fn all_differences<'a>(
    signatures: impl Iterator<Item = &'a Signature> + Clone,
) -> BTreeSet<Mismatch> {
    let all = || signatures.clone();
    let reduce_ops: HashSet<_> = all().map(|it| (it.reduce_op, it.lower_reduce_op)).collect();
    let reduce = |(reduce_op, lower_reduce_op)| Signature {
        op: Op::Unspecified,
        size: None,
        dtype: DType::Unspecified,
        reduce_op,
        lower_reduce_op,
        root: None,
    };
    let reduce_ops: Vec<Signature> = reduce_ops.into_iter().map(reduce).collect();
    let reduces_otherwise = |a: &Signature| reduce_ops.iter().any(|b| a.reduces_otherwise(b));
    let pairs = [
        (Mismatch::Op, are_different(all().map(|it| it.op.name()))),
        (Mismatch::Size, are_different(all().map(|it| it.size))),
        (Mismatch::DType, are_different(all().map(|it| it.dtype.name()))),
        (Mismatch::ReduceOp, reduce_ops.iter().any(reduces_otherwise)),
        (Mismatch::Root, are_different(all().map(|it| it.root))),
    ];
    pairs.into_iter().filter(|(_, differ)| *differ).map(|(mismatch, _)| mismatch).collect()
}

/// The first disagreement of two calls that met at one sequence number of a group.
pub fn compare(a: &Call, b: &Call) -> Option<Mismatch> {
    Signature::from_call(a).compare(&Signature::from_call(b))
}

/// The number of elements that must be equal on all ranks, if the operation has one.
///
/// Only element counts are compared, not shapes: `[2, 3]` and `[6]` reduce correctly. Splits of an
/// `all_to_all` may differ. An `all_gather` on NCCL may gather pieces of different sizes, to the same
/// whole.
pub fn size(call: &Call) -> Option<u64> {
    match call.op {
        Op::AllToAll => None,
        op if op.is_barrier() => None,
        // c10d turns an all_gather of unequal pieces into broadcasts, except on Gloo.
        Op::AllGather | Op::ReduceScatter if !is_even(call) => call.whole,
        // Only the first tensor of a call is recorded, so other sizes are unknown.
        op if op.is_coalesced() && call.tensors > 1 => None,
        _ => call.numel,
    }
}

/// Whether all pieces must have the same size: by the backend, and in direct calls of NCCL.
fn is_even(call: &Call) -> bool {
    call.group.as_ref().is_some_and(|group| {
        group.key.layer == NCCL_LAYER || Backend::of_group(&group.backend).has_equal_pieces
    })
}

/// Whether the dtype is meaningful: that of a barrier depends on its transport.
const fn carries_data(op: Op) -> bool {
    !op.is_barrier() && !matches!(op.direction(), Direction::Unknown)
}

/// The hash of nothing.
pub const EMPTY_HASH: u64 = 0xcbf2_9ce4_8422_2325;

/// Adds a number to a hash: FNV-1a with 64 bits
/// (<https://datatracker.ietf.org/doc/html/draft-eastlake-fnv-21>), whose result is the same in every
/// build of this program.
pub fn mix(hash: u64, number: u64) -> u64 {
    mix_bytes(hash, &number.to_le_bytes())
}

fn mix_bytes(hash: u64, bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(hash, step)
}

fn differ<T: PartialEq>(a: Option<T>, b: Option<T>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a != b)
}

/// Whether two of the known values differ.
fn are_different<T: PartialEq>(values: impl Iterator<Item = Option<T>>) -> bool {
    let mut known = values.flatten();
    let first = known.next();
    known.any(|value| first.as_ref() != Some(&value))
}

/// Maximum number of different signatures of one collective, or of different values of one parameter, that are compared
/// with every other one: a mistake makes few, and hostile evidence as many as ranks.
pub const MAX_SIGNATURES: usize = 256;

/// Groups ranks by agreeing calls, see [`classes`].
pub fn classes_of_calls<'a>(calls: impl Iterator<Item = (u32, &'a Call)>) -> Vec<Vec<u32>> {
    let signatures = calls.map(|(rank, call)| (rank, Signature::from_call(call)));
    classes(signatures, |it| *it, |a, b| a.compare(b).is_none())
}

/// Groups ranks by what agrees with the first of its class: largest class first, ties by lowest rank. What has equal keys
/// agrees, and beyond [`MAX_SIGNATURES`] classes nothing else does.
pub fn classes<T, K: Eq + Hash>(
    of_ranks: impl Iterator<Item = (u32, T)>,
    key: impl Fn(&T) -> K,
    mut agree: impl FnMut(&T, &T) -> bool,
) -> Vec<Vec<u32>> {
    let mut classes: Vec<(T, Vec<u32>)> = Vec::new();
    let mut known: HashMap<K, usize> = HashMap::new();
    for (rank, item) in of_ranks {
        let at = *known.entry(key(&item)).or_insert_with(|| {
            let mut compared = classes.iter().take(MAX_SIGNATURES);
            let found = compared.position(|(first, _)| agree(first, &item));
            found.unwrap_or(classes.len())
        });
        match classes.get_mut(at) {
            Some((_, ranks)) => ranks.push(rank),
            None => classes.push((item, vec![rank])),
        }
    }
    let mut classes: Vec<Vec<u32>> = classes.into_iter().map(|(_, ranks)| ranks).collect();
    classes.sort_by_key(|ranks| (Reverse(ranks.len()), ranks[0]));
    classes
}

/// Groups ranks by what is known of each: items with equal keys are a group, which has the first of them. Groups are in
/// the order of their first ranks.
pub fn by_key<T, K: Eq + Hash>(
    items: impl Iterator<Item = (u32, T)>,
    key: impl Fn(&T) -> K,
) -> Vec<(T, Vec<u32>)> {
    let mut groups: Vec<(T, Vec<u32>)> = Vec::new();
    let mut known: HashMap<K, usize> = HashMap::new();
    for (rank, item) in items {
        let at = *known.entry(key(&item)).or_insert(groups.len());
        match groups.get_mut(at) {
            Some((_, ranks)) => ranks.push(rank),
            None => groups.push((item, vec![rank])),
        }
    }
    groups
}

/// The ranks to blame for a disagreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OddOnes {
    /// The minority, or all ranks if no class outnumbers the others or all agree, ascending.
    pub ranks: Vec<u32>,
    /// A majority agrees; these ranks do not.
    pub is_minority: bool,
}

impl OddOnes {
    /// Confidence that these ranks are the root cause.
    pub const fn confidence(&self) -> Confidence {
        if self.is_minority { Confidence::Supported } else { Confidence::Suspected }
    }
}

/// The ranks in the minority: all but the class that outnumbers every other one and has at least
/// two ranks. Without such a class, or if all agree: all ranks.
pub fn odd_ones(classes: &[Vec<u32>]) -> OddOnes {
    let mut by_size: Vec<&Vec<u32>> = classes.iter().collect();
    by_size.sort_by_key(|ranks| Reverse(ranks.len()));
    let is_minority = match by_size[..] {
        [first, second, ..] => first.len() >= 2 && first.len() > second.len(),
        _ => false,
    };
    let odd = by_size.iter().skip(usize::from(is_minority));
    let mut ranks: Vec<u32> = odd.flat_map(|ranks| ranks.iter().copied()).collect();
    ranks.sort_unstable();
    OddOnes { ranks, is_minority }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::hash::Hasher;

    use ddp_doctor_proto::{DType, ReduceOp};

    use super::*;
    use crate::testing::{call, group};

    #[test]
    fn first_difference_names_the_mismatch() {
        let a = Call {
            numel: Some(8),
            dtype: DType::Float32,
            reduce_op: ReduceOp::Sum,
            ..call(Op::AllReduce)
        };
        let same = compare(&a, &a.clone());
        assert_eq!(same, None);
        let b = Call { numel: Some(9), ..call(Op::Broadcast) };
        assert_eq!(compare(&a, &b), Some(Mismatch::Op));
        let b = Call { numel: Some(9), dtype: DType::Int32, ..call(Op::AllReduce) };
        assert_eq!(compare(&a, &b), Some(Mismatch::Size));
        let b = Call {
            numel: Some(8),
            dtype: DType::Int32,
            reduce_op: ReduceOp::Max,
            ..call(Op::AllReduce)
        };
        assert_eq!(compare(&a, &b), Some(Mismatch::DType));
        let differences = Signature::from_call(&a).differences(&Signature::from_call(&b));
        assert_eq!(differences, [Mismatch::DType, Mismatch::ReduceOp]);
        let b = Call {
            numel: Some(8),
            dtype: DType::Float32,
            reduce_op: ReduceOp::Max,
            ..call(Op::AllReduce)
        };
        assert_eq!(compare(&a, &b), Some(Mismatch::ReduceOp));
        let (a, b) = (
            Call { root: Some(0), ..call(Op::Broadcast) },
            Call { root: Some(1), ..call(Op::Broadcast) },
        );
        assert_eq!(compare(&a, &b), Some(Mismatch::Root));
    }

    #[test]
    fn hashes_differ_as_signatures_do() {
        let hash = |call: Call| Signature::from_call(&call).mix(EMPTY_HASH);
        let sum =
            |dtype| Call { numel: Some(8), reduce_op: ReduceOp::Sum, dtype, ..call(Op::AllReduce) };
        let float = || sum(DType::Float32);
        let base = hash(float());
        assert_eq!(base, hash(Call { root: Some(1), ..float() }));
        for other in [
            sum(DType::Int32),
            Call { numel: Some(9), ..float() },
            Call { reduce_op: ReduceOp::Max, ..float() },
            Call { numel: Some(8), dtype: DType::Float32, ..call(Op::Broadcast) },
        ] {
            assert_ne!(base, hash(other));
        }
        let barrier = |dtype| hash(Call { dtype, ..call(Op::Barrier) });
        assert_eq!(barrier(DType::Int32), barrier(DType::Float32));
    }

    #[test]
    fn unknown_attributes_never_disagree() {
        let known = Call { numel: Some(8), reduce_op: ReduceOp::Sum, ..call(Op::AllReduce) };
        let hidden = call(Op::AllReduce);
        assert_eq!(compare(&known, &hidden), None);
        assert_eq!(compare(&known, &call(Op::Unspecified)), None);
    }

    #[test]
    fn legally_different_sizes_are_not_compared() {
        for (op, backend, legal) in [
            (Op::AllToAll, "gloo", true),
            (Op::AllGather, "nccl", true),
            (Op::AllGather, "gloo", false),
            (Op::Barrier, "gloo", true),
            (Op::Reduce, "nccl", false),
        ] {
            let group = Some(group("0", backend, &[0, 1]));
            let a = Call { group, numel: Some(1), ..call(op) };
            let b = Call { numel: Some(2), ..a.clone() };
            assert_eq!(compare(&a, &b).is_none(), legal, "{op} on {backend}");
        }
        let piece = |size, whole| Call {
            group: Some(group("0", "nccl", &[0, 1])),
            numel: Some(size),
            whole: Some(whole),
            ..call(Op::AllGather)
        };
        assert_eq!(compare(&piece(1, 3), &piece(2, 3)), None);
        let smaller = compare(&piece(1, 2), &piece(2, 4));
        assert_eq!(smaller, Some(Mismatch::Size), "the wholes differ");
    }

    #[test]
    fn calls_are_compared_with_a_limited_number_of_classes() {
        let of_size =
            |size: u64| Signature::from_call(&Call { numel: Some(size), ..call(Op::AllReduce) });
        let classes = |sizes: &mut dyn Iterator<Item = u64>| {
            let mut compared = 0;
            let calls = (0..).zip(sizes.map(of_size));
            let agree = |a: &Signature, b: &Signature| {
                compared += 1;
                a.compare(b).is_none()
            };
            let classes = classes(calls, |it| *it, agree);
            (classes, compared)
        };
        let (same, compared) = classes(&mut (0..4000).map(|_| 8));
        assert_eq!((same.len(), compared), (1, 0));
        let (different, compared) = classes(&mut (0..4000));
        assert_eq!(different.len(), 4000);
        assert!(compared <= 4000 * MAX_SIGNATURES, "{compared}");
        let (pairs, _) = classes(&mut (0..4000).map(|it| it % 2000));
        assert_eq!((pairs.len(), &pairs[1999]), (2000, &vec![1999, 3999]));
    }

    /// A key that counts how often it is compared.
    #[derive(Clone, Copy)]
    struct Key<'a>(u32, &'a Cell<u32>);

    impl PartialEq for Key<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.1.set(self.1.get() + 1);
            self.0 == other.0
        }
    }

    impl Eq for Key<'_> {}

    impl Hash for Key<'_> {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    #[test]
    fn items_are_grouped_with_few_comparisons() {
        let compared = Cell::new(0);
        let items = (0..4000).map(|rank| (rank, Key(rank % 2000, &compared)));
        let groups = by_key(items, |it| *it);
        assert_eq!((groups.len(), groups[7].0.0, &groups[7].1), (2000, 7, &vec![7, 2007]));
        assert!(compared.get() < 40_000, "{}", compared.get());
    }

    #[test]
    fn all_differences_are_those_of_any_pair() {
        let known = Call { numel: Some(8), ..call(Op::AllReduce) };
        let sum = |of: &Call| Call { reduce_op: ReduceOp::Sum, ..of.clone() };
        let calls = [
            sum(&known),
            Call { dtype: DType::Int32, ..known.clone() },
            sum(&Call { numel: Some(9), ..known.clone() }),
            Call { reduce_op: ReduceOp::Max, root: Some(1), ..known },
            Call { dtype: DType::Float32, ..call(Op::Broadcast) },
        ];
        let signatures: Vec<Signature> = calls.iter().map(Signature::from_call).collect();
        for from in 0..calls.len() {
            let some = &signatures[from..];
            let pairs = some.iter().flat_map(|a| some.iter().flat_map(|b| a.differences(b)));
            assert_eq!(all_differences(some.iter()), pairs.collect());
        }
    }

    #[test]
    fn sides_of_equal_size_are_a_tie() {
        let odd = |classes: &[Vec<u32>]| {
            let odd = odd_ones(classes);
            (odd.ranks, odd.is_minority)
        };
        assert_eq!(odd(&[vec![0], vec![1]]), (vec![0, 1], false));
        assert_eq!(odd(&[vec![0, 1], vec![2, 3]]), (vec![0, 1, 2, 3], false));
        assert_eq!(odd(&[vec![0, 2], vec![1]]), (vec![1], true));
        assert_eq!(odd(&[vec![1], vec![0, 2]]), (vec![1], true));
        assert_eq!(odd(&[vec![0, 1, 2]]), (vec![0, 1, 2], false));
    }
}
