//! Certificates about calls that wait for a rank which never arrives: it ended, or waits in a
//! cycle.

use std::collections::BTreeSet;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::{CallSignature, CertificateKind, Fact, GroupRef};
use ddp_doctor_proto::vocabulary::Direction;

use crate::proof::{Rejection, are_members, creation, ensure, is_point_to_point};

/// A call that waits, the rank that never made it, and that rank's end.
pub(super) fn check_terminal_rank(facts: &[Fact]) -> Result<(), Rejection> {
    let [Fact::Issued { rank: waits, group, seq, call, .. }, never, end] = facts else {
        return Err(Rejection::WrongFacts(CertificateKind::TerminalRank));
    };
    let gone = never_came(*waits, group, *seq, call, never)?;
    match end {
        Fact::Ended { rank, .. } if *rank == gone => Ok(()),
        Fact::GroupDestroyed { rank, group: destroyed } if *rank == gone && destroyed == group => {
            Ok(())
        }
        _ => Err(Rejection::MayStillCome(gone)),
    }
}

/// A cycle of waits: each thread is the only one of its process that issues calls, and waits for a
/// call that the next rank has not made.
pub(super) fn check_cycle(facts: &[Fact]) -> Result<(), Rejection> {
    let (waits, rest): (Vec<&Fact>, Vec<&Fact>) =
        facts.iter().partition(|fact| matches!(fact, Fact::Waits { .. } | Fact::Creates { .. }));
    let is_complete = waits.len() > 1 && waits.len() == rest.len();
    ensure(is_complete, Rejection::WrongFacts(CertificateKind::Cycle))?;
    let ranks: BTreeSet<u32> = waits.iter().filter_map(|fact| rank_of(fact)).collect();
    ensure(ranks.len() == waits.len(), Rejection::NotACycle)?;
    for (i, (wait, never)) in waits.iter().zip(&rest).enumerate() {
        let next = rank_of(waits[(i + 1) % waits.len()]).ok_or(Rejection::NotACycle)?;
        if let Fact::NeverCreated { rank: gone, .. }
        | Fact::NeverIssued { rank: gone, .. }
        | Fact::NeverPosted { rank: gone, .. } = never
        {
            ensure(*gone == next, Rejection::NotACycle)?;
        }
        match (wait, never) {
            (_, Fact::NeverCreated { group, .. }) => creation::check_wait(wait, group, next)?,
            (Fact::Waits { rank, group, seq, call, only_thread, .. }, _) => {
                never_came(*rank, group, *seq, call, never)?;
                ensure(*only_thread, Rejection::MayStillCome(*rank))?;
            }
            _ => return Err(Rejection::NotACycle),
        }
    }
    Ok(())
}

/// The rank without which the call cannot complete and which has not arrived: a member for a
/// collective, the sender for a receive.
pub(super) fn never_came(
    waits: u32,
    group: &GroupRef,
    seq: u64,
    call: &CallSignature,
    never: &Fact,
) -> Result<u32, Rejection> {
    let (gone, never_in, last) = match never {
        Fact::NeverIssued { rank, group, last } if !is_point_to_point(call) => {
            (*rank, group, *last)
        }
        Fact::NeverPosted { rank, group, op, peer, tag, last }
            if *op == Op::Send.to_string() && *peer == waits && *tag == call.tag =>
        {
            (*rank, group, *last)
        }
        _ => return Err(Rejection::WrongFacts(CertificateKind::TerminalRank)),
    };
    ensure(never_in == group, Rejection::NotOneJoin)?;
    are_members(group, [waits, gone])?;
    ensure(last < seq, Rejection::DidCome(gone))?;
    ensure(must_wait_for(call, waits, gone), Rejection::NeedNot(waits, gone))?;
    Ok(gone)
}

/// Whether a rank's call cannot complete before another rank makes its own.
pub(super) fn must_wait_for(call: &CallSignature, waits: u32, needed: u32) -> bool {
    let Some(op) = Op::from_name(&call.op) else { return false };
    match op.direction() {
        Direction::Symmetric => waits != needed,
        Direction::FromRoot => call.root == Some(needed) && waits != needed,
        Direction::ToRoot => call.root == Some(waits) && waits != needed,
        // A send may complete early.
        Direction::PointToPoint => op == Op::Recv && call.root == Some(needed) && waits != needed,
        Direction::Unknown => false,
    }
}

const fn rank_of(fact: &Fact) -> Option<u32> {
    match fact {
        Fact::Waits { rank, .. } | Fact::Creates { rank, .. } => Some(*rank),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::testing::{
        checked, group, issued, message, never, never_posted, signature, waits,
    };

    #[test]
    fn terminal_rank_must_be_needed_absent_and_ended() {
        let kind = CertificateKind::TerminalRank;
        let ended = Fact::Ended { rank: 1, pid: 7, code: Some(0), signal: None };
        let call = || issued(0, 5, signature("all_reduce"));
        assert_eq!(checked(kind, vec![call(), never(1, 4), ended.clone()]), Ok(()));
        let arrived = vec![call(), never(1, 5), ended.clone()];
        assert_eq!(checked(kind, arrived), Err(Rejection::DidCome(1)));
        let alive = vec![call(), never(1, 4), Fact::Stopped { rank: 1, pid: 7 }];
        assert_eq!(checked(kind, alive), Err(Rejection::MayStillCome(1)));
        let leaf = CallSignature { root: Some(1), ..signature("gather") };
        let early = vec![issued(0, 5, leaf), never(1, 4), ended];
        assert_eq!(checked(kind, early), Err(Rejection::NeedNot(0, 1)));
    }

    #[test]
    fn cycle_must_close_and_have_single_threads() {
        let wait = |rank, name: &str, only_thread| Fact::Waits {
            rank,
            thread: 1,
            group: GroupRef { name: name.into(), ..group(&[0, 1]) },
            seq: 1,
            call: signature("all_reduce"),
            only_thread,
        };
        let never = |rank, name: &str, last| Fact::NeverIssued {
            rank,
            group: GroupRef { name: name.into(), ..group(&[0, 1]) },
            last,
        };
        let cycle = |only, last| {
            vec![wait(0, "a", true), wait(1, "b", only), never(1, "a", last), never(0, "b", 0)]
        };
        let kind = CertificateKind::Cycle;
        assert_eq!(checked(kind, cycle(true, 0)), Ok(()));
        assert_eq!(checked(kind, cycle(false, 0)), Err(Rejection::MayStillCome(1)));
        assert_eq!(checked(kind, cycle(true, 1)), Err(Rejection::DidCome(1)));
        let open = vec![wait(0, "a", true), wait(1, "b", true), never(1, "a", 0), never(1, "b", 0)];
        assert_eq!(checked(kind, open), Err(Rejection::NotACycle));
        assert!(checked(kind, vec![wait(0, "a", true), never(0, "a", 0)]).is_err());
    }

    #[test]
    fn cycle_of_receives_requires_that_nothing_was_sent() {
        let kind = CertificateKind::Cycle;
        let cycle = |first: &str, tag, last| {
            vec![
                waits(0, 1, message(first, 0, 0, 4), true),
                waits(1, 3, message("recv", 1, 0, 4), true),
                never_posted(1, "send", tag, 0),
                never_posted(0, "send", 0, last),
            ]
        };
        assert_eq!(checked(kind, cycle("recv", 0, 2)), Ok(()));
        assert_eq!(checked(kind, cycle("recv", 0, 3)), Err(Rejection::DidCome(0)));
        // A different tag proves nothing.
        assert!(checked(kind, cycle("recv", 7, 2)).is_err());
        // A send may complete early.
        assert_eq!(checked(kind, cycle("send", 0, 2)), Err(Rejection::NeedNot(0, 1)));
        // Collectives prove nothing about messages, nor the reverse.
        let mut mixed = cycle("recv", 0, 2);
        mixed[2] = never(1, 0);
        assert!(checked(kind, mixed).is_err());
        let across = vec![
            waits(0, 5, signature("all_reduce"), true),
            waits(1, 1, message("recv", 1, 0, 4), true),
            never(1, 4),
            never_posted(0, "send", 0, 0),
        ];
        assert_eq!(checked(kind, across.clone()), Ok(()));
        let mut threads = across;
        threads[1] = waits(1, 1, message("recv", 1, 0, 4), false);
        assert_eq!(checked(kind, threads), Err(Rejection::MayStillCome(1)));
    }

    #[test]
    fn message_never_arrives_from_a_rank_that_ended_before() {
        let kind = CertificateKind::TerminalRank;
        let ended = |rank| Fact::Ended { rank, pid: 7, code: Some(0), signal: None };
        let facts = |op: &str, last| {
            let call = message(op, 0, 2, 4);
            vec![issued(0, 3, call), never_posted(1, "send", 2, last), ended(1)]
        };
        assert_eq!(checked(kind, facts("recv", 2)), Ok(()));
        assert_eq!(checked(kind, facts("recv", 3)), Err(Rejection::DidCome(1)));
        assert!(checked(kind, facts("send", 2)).is_err());
        let mut alive = facts("recv", 2);
        alive[2] = ended(0);
        assert_eq!(checked(kind, alive), Err(Rejection::MayStillCome(1)));
    }
}
