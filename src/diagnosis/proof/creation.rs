//! Certificates about the creation of groups.

use ddp_doctor_proto::report::{CertificateKind, Fact, GroupRef};

use crate::proof::absence::must_wait_for;
use crate::proof::{Rejection, are_members};

/// Two ranks that met to create a group: one requested the other as a member, the other requested
/// different members.
pub(super) fn check_contradiction(facts: &[Fact]) -> Result<(), Rejection> {
    let [
        Fact::Creates { rank: maker, group: wanted, .. },
        Fact::Creates { rank: absent, group: other, .. },
    ] = facts
    else {
        let needs = "two ranks that make a group";
        return Err(Rejection::WrongFacts(CertificateKind::Contradiction, needs));
    };
    let meet = |group: &GroupRef| (group.layer.clone(), group.epoch, group.name.clone());
    if maker == absent || meet(wanted) != meet(other) {
        return Err(Rejection::NotOneJoin);
    }
    are_members(wanted, [*maker, *absent])?;
    if wanted.members == other.members {
        return Err(Rejection::CallsMatch);
    }
    Ok(())
}

/// A rank creates a group with a rank that has not begun to, and never will.
pub(super) fn check_terminal_rank(facts: &[Fact]) -> Result<(), Rejection> {
    let [making, Fact::NeverCreated { rank: gone, group }, Fact::Ended { rank: ended, .. }] = facts
    else {
        let needs = "a rank that makes a group, the rank that never did, and that rank's end";
        return Err(Rejection::WrongFacts(CertificateKind::TerminalRank, needs));
    };
    check_need(making, group, *gone)?;
    if ended == gone { Ok(()) } else { Err(Rejection::MayStillCome(*gone)) }
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
            if group != never {
                return Err(Rejection::NotOneJoin);
            }
            are_members(group, [*rank, needed])?;
            if !must_wait_for(call, *rank, needed) {
                return Err(Rejection::NeedNot(*rank, needed));
            }
            only_thread
        }
        _ => return Err(Rejection::NotACycle),
    };
    if *only_thread { Ok(()) } else { Err(Rejection::MayStillCome(needed)) }
}

/// Whether the creation of this group cannot end before that rank begins it.
pub(super) fn check_need(making: &Fact, never: &GroupRef, needed: u32) -> Result<(), Rejection> {
    let Fact::Creates { rank, group, takes_all, .. } = making else {
        return Err(Rejection::MayStillCome(needed));
    };
    if group != never {
        return Err(Rejection::NotOneJoin);
    }
    are_members(group, [*rank, needed])?;
    if *rank == needed {
        return Err(Rejection::NeedNot(*rank, needed));
    }
    if !takes_all {
        return Err(Rejection::MadeWithout(*rank));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::report::Certificate;

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
