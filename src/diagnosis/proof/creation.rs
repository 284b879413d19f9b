//! Certificates about the creation of groups.

use ddp_doctor_proto::report::{Fact, GroupRef};

use crate::proof::absence::must_wait_for;
use crate::proof::{Rejection, are_members, ensure};

/// Two ranks that met to create a group: one requested the other as a member, the other requested
/// different members.
pub(super) fn check_contradiction(
    (maker, wanted): (u32, &GroupRef),
    (absent, other): (u32, &GroupRef),
) -> Result<(), Rejection> {
    let meet = |group: &GroupRef| (group.layer.clone(), group.epoch, group.name.clone());
    ensure(maker != absent && meet(wanted) == meet(other), Rejection::NotOneJoin)?;
    are_members(wanted, [maker, absent])?;
    ensure(wanted.members != other.members, Rejection::CallsMatch)
}

/// A rank creates a group with a rank that has not begun to, and has ended.
pub(super) fn check_terminal_rank(
    making: &Fact,
    (gone, never): (u32, &GroupRef),
    ended: u32,
) -> Result<(), Rejection> {
    check_need(making, never, gone)?;
    ensure(ended == gone, Rejection::MayStillCome(gone))
}

/// Whether the only thread of a process waits for a rank that has not begun to create the group: in
/// its own creation of the group, or in a call that needs that rank.
pub(super) fn check_wait(wait: &Fact, never: &GroupRef, needed: u32) -> Result<(), Rejection> {
    let only_thread = match wait {
        Fact::Creates { only_thread, .. } => {
            check_need(wait, never, needed)?;
            only_thread
        }
        Fact::Waits { rank, group, call, only_thread, .. } => {
            ensure(group == never, Rejection::NotOneJoin)?;
            are_members(group, [*rank, needed])?;
            ensure(must_wait_for(call, *rank, needed), Rejection::NeedNot(*rank, needed))?;
            only_thread
        }
        _ => return Err(Rejection::NotACycle),
    };
    ensure(*only_thread, Rejection::MayStillCome(needed))
}

/// Whether the creation of this group cannot end before that rank begins it.
fn check_need(making: &Fact, never: &GroupRef, needed: u32) -> Result<(), Rejection> {
    let Fact::Creates { rank, group, takes_all, .. } = making else {
        return Err(Rejection::MayStillCome(needed));
    };
    ensure(group == never, Rejection::NotOneJoin)?;
    are_members(group, [*rank, needed])?;
    ensure(*rank != needed, Rejection::NeedNot(*rank, needed))?;
    ensure(*takes_all, Rejection::MadeWithout(*rank))
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::report::{Certificate, CertificateKind};

    use super::*;
    use crate::proof::check;

    fn group(name: &str, members: &[u32]) -> GroupRef {
        GroupRef {
            layer: "c10d".into(),
            epoch: 0,
            name: name.into(),
            ordinal: 0,
            members: members.into(),
        }
    }

    fn creates(rank: u32, group: GroupRef) -> Fact {
        Fact::Creates { rank, thread: 1, group, takes_all: true, only_thread: true }
    }

    fn checked(kind: CertificateKind, facts: Vec<Fact>) -> Result<(), Rejection> {
        check(&Certificate { kind, facts })
    }

    #[test]
    fn creators_contradict_only_if_one_needs_the_other() {
        let kind = CertificateKind::Contradiction;
        let facts =
            |a: &[u32], b: &[u32]| vec![creates(0, group("1", a)), creates(2, group("1", b))];
        assert_eq!(checked(kind, facts(&[0, 1, 2], &[0, 1])), Ok(()));
        assert_eq!(checked(kind, facts(&[0, 1, 2], &[0, 1, 2])), Err(Rejection::CallsMatch));
        assert_eq!(checked(kind, facts(&[0, 1], &[2, 3])), Err(Rejection::NotAMember(2)));
        assert_eq!(checked(kind, facts(&[1, 2], &[0, 1])), Err(Rejection::NotAMember(0)));
        let apart = vec![creates(0, group("1", &[0, 2])), creates(2, group("2", &[0, 1]))];
        assert_eq!(checked(kind, apart), Err(Rejection::NotOneJoin));
        let alone = vec![creates(0, group("1", &[0, 2]))];
        assert!(checked(kind, alone).is_err());
    }

    #[test]
    fn group_is_never_created_without_an_ended_member() {
        let kind = CertificateKind::TerminalRank;
        let never = |rank| Fact::NeverCreated { rank, group: group("1", &[0, 1]) };
        let ended = |rank| Fact::Ended { rank, pid: 7, code: Some(0), signal: None };
        let making = || creates(0, group("1", &[0, 1]));
        assert_eq!(checked(kind, vec![making(), never(1), ended(1)]), Ok(()));
        assert_eq!(
            checked(kind, vec![making(), never(1), ended(0)]),
            Err(Rejection::MayStillCome(1))
        );
        assert_eq!(
            checked(kind, vec![making(), never(2), ended(2)]),
            Err(Rejection::NotAMember(2))
        );
        let other = creates(0, group("2", &[0, 1]));
        assert_eq!(checked(kind, vec![other, never(1), ended(1)]), Err(Rejection::NotOneJoin));
        let lazy = Fact::Creates {
            rank: 0,
            thread: 1,
            group: group("1", &[0, 1]),
            takes_all: false,
            only_thread: true,
        };
        assert_eq!(checked(kind, vec![lazy, never(1), ended(1)]), Err(Rejection::MadeWithout(0)));
    }

    #[test]
    fn cycle_may_include_the_creation_of_a_group() {
        let kind = CertificateKind::Cycle;
        let world = || group("0", &[0, 1]);
        let waits = Fact::Waits {
            rank: 1,
            thread: 1,
            group: world(),
            seq: 3,
            call: ddp_doctor_proto::report::CallSignature {
                op: "barrier".into(),
                numel: None,
                dtype: None,
                reduce_op: None,
                root: None,
                tag: None,
            },
            only_thread: true,
        };
        let never_issued = Fact::NeverIssued { rank: 0, group: world(), last: 2 };
        let never_created = |group| Fact::NeverCreated { rank: 1, group };
        let cycle = |made: GroupRef, missed: GroupRef| {
            vec![creates(0, made), waits.clone(), never_created(missed), never_issued.clone()]
        };
        let pair = || group("1", &[0, 1]);
        assert_eq!(checked(kind, cycle(pair(), pair())), Ok(()));
        assert_eq!(checked(kind, cycle(pair(), group("2", &[0, 1]))), Err(Rejection::NotOneJoin));
        assert_eq!(
            checked(kind, cycle(group("1", &[0]), group("1", &[0]))),
            Err(Rejection::NotAMember(1))
        );
    }
}
