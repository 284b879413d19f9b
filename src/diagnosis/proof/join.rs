//! Certificates about calls that met at one place and do not match.

use std::collections::BTreeSet;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::{CallSignature, CertificateKind, Fact, GroupRef};

use crate::proof::{Rejection, is_point_to_point, member};

/// At least two calls at one place of one group, each of which disagrees with another one.
pub(super) fn check(
    facts: &[Fact],
    kind: CertificateKind,
    disagree: fn(&CallSignature, &CallSignature) -> bool,
) -> Result<(), Rejection> {
    let mut calls: Vec<(u32, &CallSignature)> = Vec::new();
    let mut place: Option<(&GroupRef, u64)> = None;
    for fact in facts {
        let Fact::Issued { rank, group, seq, call, .. } = fact else {
            return Err(Rejection::WrongFacts(kind, "calls that were issued"));
        };
        if *place.get_or_insert((group, *seq)) != (group, *seq) {
            return Err(Rejection::NotOneJoin);
        }
        member(group, *rank)?;
        calls.push((*rank, call));
    }
    let ranks: BTreeSet<u32> = calls.iter().map(|(rank, _)| *rank).collect();
    if ranks.len() < 2 || ranks.len() < calls.len() {
        return Err(Rejection::WrongFacts(kind, "calls of two or more ranks"));
    }
    let everybody_disagrees = calls.iter().all(|(_, a)| calls.iter().any(|(_, b)| disagree(a, b)));
    if everybody_disagrees { Ok(()) } else { Err(Rejection::CallsMatch) }
}

/// A rank sends another number of elements to a peer in an `all_to_all` than the peer expects.
pub(super) fn check_splits(facts: &[Fact]) -> Result<(), Rejection> {
    let [
        Fact::Sends { rank: sender, group, seq, peer: to, numel: sent },
        Fact::Expects {
            rank: receiver,
            group: other_group,
            seq: other_seq,
            peer: from,
            numel: expected,
        },
    ] = facts
    else {
        let both = "what a rank sends to a peer, and what the peer expects from it";
        return Err(Rejection::WrongFacts(CertificateKind::UnsatisfiableJoin, both));
    };
    member(group, *sender)?;
    member(group, *receiver)?;
    if (group, seq, to, sender) != (other_group, other_seq, receiver, from) {
        return Err(Rejection::NotOneJoin);
    }
    if sent == expected {
        return Err(Rejection::CallsMatch);
    }
    Ok(())
}

/// Whether no transport can make one collective of two calls.
pub(super) fn can_never_match(a: &CallSignature, b: &CallSignature) -> bool {
    let differ = |a: &Option<u32>, b: &Option<u32>| matches!((a, b), (Some(a), Some(b)) if a != b);
    // Point-to-point calls have sequence numbers of their own.
    let known =
        |call: &CallSignature| Op::from_name(&call.op).is_some_and(|op| !op.is_point_to_point());
    if !known(a) || !known(b) {
        return false;
    }
    if a.op != b.op {
        return true;
    }
    let rooted = Op::from_name(&a.op).is_some_and(Op::is_rooted);
    matches!((a.numel, b.numel), (Some(a), Some(b)) if a != b)
        || (rooted && differ(&a.root, &b.root))
}

/// Whether two calls of one collective differ in the dtype or the reduction operator.
pub(super) fn contradicts(a: &CallSignature, b: &CallSignature) -> bool {
    let differ =
        |a: &Option<String>, b: &Option<String>| matches!((a, b), (Some(a), Some(b)) if a != b);
    a.op == b.op
        && !is_point_to_point(a)
        && (differ(&a.dtype, &b.dtype) || differ(&a.reduce_op, &b.reduce_op))
}

/// Two ranks' replicas of a model that differ in the number of parameters, or in the dtype or shape
/// of one.
pub(super) fn check_models(facts: &[Fact]) -> Result<(), Rejection> {
    let [
        Fact::Wraps { rank: a, group, model, total, index, parameter },
        Fact::Wraps {
            rank: b,
            group: other_group,
            model: other_model,
            total: other_total,
            index: other_index,
            parameter: other,
        },
    ] = facts
    else {
        let two = "two ranks' copies of a model";
        return Err(Rejection::WrongFacts(CertificateKind::Contradiction, two));
    };
    member(group, *a)?;
    member(group, *b)?;
    if (group, model, index) != (other_group, other_model, other_index) || a == b {
        return Err(Rejection::NotOneJoin);
    }
    let is_in = |total: &u64, parameter: &Option<String>| parameter.is_some() == (index < total);
    if !is_in(total, parameter) || !is_in(other_total, other) {
        let whole = "copies that say of each parameter what it is";
        return Err(Rejection::WrongFacts(CertificateKind::Contradiction, whole));
    }
    if total != other_total || parameter != other { Ok(()) } else { Err(Rejection::CallsMatch) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::testing::{checked, issued, signature};

    #[test]
    fn only_calls_that_can_never_match_are_accepted() {
        let kind = CertificateKind::UnsatisfiableJoin;
        let (reduce, barrier) = (signature("all_reduce"), signature("barrier"));
        let good = vec![issued(0, 5, reduce.clone()), issued(1, 5, barrier.clone())];
        assert_eq!(checked(kind, good), Ok(()));
        let same = vec![issued(0, 5, reduce.clone()), issued(1, 5, reduce.clone())];
        assert_eq!(checked(kind, same), Err(Rejection::CallsMatch));
        let elsewhere = vec![issued(0, 5, reduce.clone()), issued(1, 6, barrier.clone())];
        assert_eq!(checked(kind, elsewhere), Err(Rejection::NotOneJoin));
        let stranger = vec![issued(0, 5, reduce.clone()), issued(2, 5, barrier)];
        assert_eq!(checked(kind, stranger), Err(Rejection::NotAMember(2)));
        let sized = |numel| CallSignature { numel: Some(numel), ..reduce.clone() };
        assert_eq!(checked(kind, vec![issued(0, 5, sized(1)), issued(1, 5, sized(2))]), Ok(()));
        let rooted = |op, root| CallSignature { root: Some(root), ..signature(op) };
        let roots =
            vec![issued(0, 5, rooted("broadcast", 0)), issued(1, 5, rooted("broadcast", 1))];
        assert_eq!(checked(kind, roots), Ok(()));
        let rootless =
            vec![issued(0, 5, rooted("all_reduce", 0)), issued(1, 5, rooted("all_reduce", 1))];
        assert_eq!(checked(kind, rootless), Err(Rejection::CallsMatch));
        assert!(checked(kind, vec![issued(0, 5, reduce)]).is_err());
    }

    #[test]
    fn splits_of_two_ranks_must_differ_in_one_call() {
        let kind = CertificateKind::UnsatisfiableJoin;
        let group = || crate::proof::testing::group(&[0, 1]);
        let sends = |seq, numel| Fact::Sends { rank: 0, group: group(), seq, peer: 1, numel };
        let expects = |peer, numel| Fact::Expects { rank: 1, group: group(), seq: 3, peer, numel };
        assert_eq!(checked(kind, vec![sends(3, 4), expects(0, 5)]), Ok(()));
        let fits = checked(kind, vec![sends(3, 4), expects(0, 4)]);
        assert_eq!(fits, Err(Rejection::CallsMatch));
        let later = checked(kind, vec![sends(4, 4), expects(0, 5)]);
        assert_eq!(later, Err(Rejection::NotOneJoin));
        let from_another = checked(kind, vec![sends(3, 4), expects(1, 5)]);
        assert_eq!(from_another, Err(Rejection::NotOneJoin));
        assert!(checked(kind, vec![sends(3, 4)]).is_err());
    }

    #[test]
    fn contradiction_needs_calls_of_one_op() {
        let kind = CertificateKind::Contradiction;
        let with =
            |op: &str| CallSignature { reduce_op: Some(op.into()), ..signature("all_reduce") };
        assert_eq!(
            checked(kind, vec![issued(0, 5, with("sum")), issued(1, 5, with("max"))]),
            Ok(())
        );
        let one_unseen = vec![issued(0, 5, with("sum")), issued(1, 5, signature("all_reduce"))];
        assert_eq!(checked(kind, one_unseen), Err(Rejection::CallsMatch));
    }
}
