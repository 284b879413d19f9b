//! Certificates about calls that met at one place and do not match.

use std::collections::BTreeSet;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::{
    CallSignature, CertificateKind, Fact, GroupRef, ModelFact, SplitFact,
};

use crate::proof::{Rejection, are_members, differ, ensure, is_point_to_point};

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
            return Err(Rejection::WrongFacts(kind));
        };
        let is_here = *place.get_or_insert((group, *seq)) == (group, *seq);
        ensure(is_here, Rejection::NotOneJoin)?;
        are_members(group, [*rank])?;
        calls.push((*rank, call));
    }
    let ranks: BTreeSet<u32> = calls.iter().map(|(rank, _)| *rank).collect();
    ensure(ranks.len() > 1 && ranks.len() == calls.len(), Rejection::WrongFacts(kind))?;
    let everybody_disagrees = calls.iter().all(|(_, a)| calls.iter().any(|(_, b)| disagree(a, b)));
    ensure(everybody_disagrees, Rejection::CallsMatch)
}

/// A rank sends another number of elements to a peer in an `all_to_all` than the peer expects.
pub(super) fn check_splits(sent: &SplitFact, expected: &SplitFact) -> Result<(), Rejection> {
    are_members(&sent.group, [sent.rank, expected.rank])?;
    let is_one_call = (&sent.group, sent.seq) == (&expected.group, expected.seq);
    let are_peers = (sent.peer, sent.rank) == (expected.rank, expected.peer);
    ensure(is_one_call && are_peers, Rejection::NotOneJoin)?;
    ensure(sent.numel != expected.numel, Rejection::CallsMatch)
}

/// Whether no transport can make one collective of two calls.
pub(super) fn can_never_match(a: &CallSignature, b: &CallSignature) -> bool {
    let (Some(op), Some(other)) = (Op::from_name(&a.op), Op::from_name(&b.op)) else {
        return false;
    };
    // Point-to-point calls have sequence numbers of their own.
    if op.is_point_to_point() || other.is_point_to_point() {
        return false;
    }
    op != other || differ(a.numel, b.numel) || (op.is_rooted() && differ(a.root, b.root))
}

/// Whether two calls of one collective differ in the dtype or the reduction operator.
pub(super) fn contradicts(a: &CallSignature, b: &CallSignature) -> bool {
    a.op == b.op
        && !is_point_to_point(a)
        && (differ(a.dtype.as_ref(), b.dtype.as_ref())
            || differ(a.reduce_op.as_ref(), b.reduce_op.as_ref()))
}

/// Two ranks' replicas of a model that differ in the number of parameters, or in the dtype or shape
/// of one.
pub(super) fn check_models(a: &ModelFact, b: &ModelFact) -> Result<(), Rejection> {
    are_members(&a.group, [a.rank, b.rank])?;
    let is_one_model = (&a.group, a.model, a.index) == (&b.group, b.model, b.index);
    ensure(is_one_model && a.rank != b.rank, Rejection::NotOneJoin)?;
    // Each parameter of a replica is described.
    let is_whole = |it: &ModelFact| it.parameter.is_some() == (it.index < it.total);
    let wrong = Rejection::WrongFacts(CertificateKind::Contradiction);
    ensure(is_whole(a) && is_whole(b), wrong)?;
    ensure(a.total != b.total || a.parameter != b.parameter, Rejection::CallsMatch)
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
        let split = |rank, seq, peer, numel| SplitFact { rank, group: group(), seq, peer, numel };
        let sends = |seq, numel| Fact::Sends(split(0, seq, 1, numel));
        let expects = |peer, numel| Fact::Expects(split(1, 3, peer, numel));
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
