//! Certificates of replicas that differ.

use ddp_doctor_proto::DType;
use ddp_doctor_proto::report::{ReplicaFact, Timestamp};

use super::{Rejection, are_members, ensure};
use crate::model::{ReplicaValues, is_apart};

/// Two ranks that hold different values of a parameter at the same point of the program.
pub(super) fn check(a: &ReplicaFact, b: &ReplicaFact) -> Result<(), Rejection> {
    are_members(&a.group, [a.rank, b.rank])?;
    let point = |it: &ReplicaFact| (it.seq, it.model, it.rounds, it.index);
    let is_one_point = a.group == b.group && point(a) == point(b) && a.dtype == b.dtype;
    ensure(is_one_point && a.rank != b.rank, Rejection::NotOneJoin)?;
    // Before the first averaged gradients, replicas need not be equal.
    let differ = read(a).zip(read(b)).is_some_and(|(one, other)| is_apart(&one, &other));
    ensure(a.rounds > 0 && differ, Rejection::CallsMatch)
}

fn read(held: &ReplicaFact) -> Option<ReplicaValues> {
    let elements: Option<Vec<f64>> = held.values.iter().map(|it| it.parse().ok()).collect();
    Some(ReplicaValues {
        dtype: DType::from_name(&held.dtype)?,
        elements: elements?,
        place: None,
        at: Timestamp(0),
    })
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::report::{CertificateKind, Fact};

    use super::*;
    use crate::proof::testing::{checked, group};

    #[test]
    fn values_must_differ_at_one_point() {
        let kind = CertificateKind::Contradiction;
        let holds = |rank, seq, rounds, value: &str| {
            Fact::Holds(ReplicaFact {
                rank,
                group: group(&[0, 1]),
                seq,
                model: 1,
                rounds,
                index: 3,
                dtype: "float32".into(),
                values: vec!["1".into(), value.into()],
            })
        };
        let facts = |other| checked(kind, vec![holds(0, 9, 2, "0.5"), other]);
        assert_eq!(facts(holds(1, 9, 2, "0.25")), Ok(()));
        assert_eq!(facts(holds(1, 9, 2, "NaN")), Ok(()));
        assert_eq!(facts(holds(1, 9, 2, "0.50001")), Err(Rejection::CallsMatch));
        assert_eq!(facts(holds(1, 9, 2, "x")), Err(Rejection::CallsMatch));
        assert_eq!(facts(holds(1, 8, 2, "0.25")), Err(Rejection::NotOneJoin));
        assert_eq!(facts(holds(1, 9, 3, "0.25")), Err(Rejection::NotOneJoin));
        assert_eq!(facts(holds(0, 9, 2, "0.25")), Err(Rejection::NotOneJoin));
        assert_eq!(facts(holds(2, 9, 2, "0.25")), Err(Rejection::NotAMember(2)));
        let at_start = vec![holds(0, 9, 0, "0.5"), holds(1, 9, 0, "0.25")];
        assert_eq!(checked(kind, at_start), Err(Rejection::CallsMatch));
    }
}
