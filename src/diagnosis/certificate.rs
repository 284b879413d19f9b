//! Proofs, and the small independent program that accepts or rejects them.
//!
//! A finding is *proved* when it follows from recorded facts alone. Its certificate lists those
//! facts and nothing else, and [`check`] decides from the list whether they suffice: it knows neither
//! the engine's model nor how the certificate was made, so that an error there is caught here. The
//! engine lets no certificate out that the checker rejects.

use std::collections::BTreeSet;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::{CallSignature, Certificate, CertificateKind, Fact, GroupRef};
use ddp_doctor_proto::vocabulary::Direction;

mod creation;

/// Why a certificate proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// Not the facts that this kind of proof is made of.
    #[error("a certificate of kind {0} needs {1}")]
    WrongFacts(CertificateKind, &'static str),
    /// Facts are about different groups or sequence numbers.
    #[error("the facts are not about one call of one group")]
    NotOneJoin,
    /// A fact names a rank that is not a member of its group.
    #[error("rank {0} is not a member of the group")]
    NotAMember(u32),
    /// The calls could well be one collective.
    #[error("nothing in the calls contradicts each other")]
    CallsMatch,
    /// The waiting call does not need that rank.
    #[error("the call of rank {0} may complete without rank {1}")]
    NeedNot(u32, u32),
    /// The rank did make the call.
    #[error("rank {0} has made the call")]
    DidCome(u32),
    /// The rank might still make the call.
    #[error("nothing says that rank {0} can never come")]
    MayStillCome(u32),
    /// The waits do not close a circle.
    #[error("the waits do not close a cycle")]
    NotACycle,
    /// Making the group may be over before all its members make it.
    #[error("the group of rank {0} may be made without all its members")]
    MadeWithout(u32),
}

/// Accepts a proof, or says what is wrong with it.
///
/// # Errors
///
/// The reason why the listed facts do not prove what the certificate's kind says.
pub fn check(certificate: &Certificate) -> Result<(), Rejection> {
    let facts = &certificate.facts;
    match certificate.kind {
        CertificateKind::UnsatisfiableJoin => check_join(facts, certificate.kind, can_never_match),
        CertificateKind::Contradiction if matches!(facts[..], [Fact::Creates { .. }, ..]) => {
            creation::check_contradiction(facts)
        }
        CertificateKind::Contradiction => check_join(facts, certificate.kind, contradicts),
        CertificateKind::TerminalRank if matches!(facts[..], [Fact::Creates { .. }, ..]) => {
            creation::check_terminal_rank(facts)
        }
        CertificateKind::TerminalRank => check_terminal_rank(facts),
        CertificateKind::Cycle => check_cycle(facts),
        CertificateKind::Observation => check_observation(facts),
    }
}

/// At least two calls at one place of one group, of which every one disagrees with some other.
fn check_join(
    facts: &[Fact],
    kind: CertificateKind,
    disagree: fn(&CallSignature, &CallSignature) -> bool,
) -> Result<(), Rejection> {
    let mut calls: Vec<(u32, &CallSignature)> = Vec::new();
    let mut place: Option<(&GroupRef, u64)> = None;
    for fact in facts {
        let Fact::Issued {
            rank,
            group,
            seq,
            call,
            ..
        } = fact
        else {
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
    let everybody_disagrees = calls
        .iter()
        .all(|(_, a)| calls.iter().any(|(_, b)| disagree(a, b)));
    if everybody_disagrees {
        Ok(())
    } else {
        Err(Rejection::CallsMatch)
    }
}

/// Whether no transport can make one collective of two calls.
fn can_never_match(a: &CallSignature, b: &CallSignature) -> bool {
    let differ = |a: &Option<u32>, b: &Option<u32>| matches!((a, b), (Some(a), Some(b)) if a != b);
    if a.op != b.op {
        return Op::from_name(&a.op).is_some() && Op::from_name(&b.op).is_some();
    }
    let rooted = Op::from_name(&a.op).is_some_and(Op::is_rooted);
    matches!((a.numel, b.numel), (Some(a), Some(b)) if a != b)
        || (rooted && differ(&a.root, &b.root))
}

/// Whether two calls of one collective say things that must be equal and are not.
fn contradicts(a: &CallSignature, b: &CallSignature) -> bool {
    let differ =
        |a: &Option<String>, b: &Option<String>| matches!((a, b), (Some(a), Some(b)) if a != b);
    a.op == b.op && (differ(&a.dtype, &b.dtype) || differ(&a.reduce_op, &b.reduce_op))
}

/// A rank waits for another one that has not made the call and never will.
fn check_terminal_rank(facts: &[Fact]) -> Result<(), Rejection> {
    let wrong = Rejection::WrongFacts(
        CertificateKind::TerminalRank,
        "a call that waits, the rank that never made it, and that rank's end",
    );
    let [
        Fact::Issued {
            rank: waits,
            group,
            seq,
            call,
            ..
        },
        never,
        end,
    ] = facts
    else {
        return Err(wrong);
    };
    let Fact::NeverIssued {
        rank: gone,
        group: never_in,
        last,
    } = never
    else {
        return Err(wrong);
    };
    if never_in != group {
        return Err(Rejection::NotOneJoin);
    }
    member(group, *waits)?;
    member(group, *gone)?;
    if last >= seq {
        return Err(Rejection::DidCome(*gone));
    }
    if !must_wait_for(call, *waits, *gone) {
        return Err(Rejection::NeedNot(*waits, *gone));
    }
    match end {
        Fact::Ended { rank, .. } if rank == gone => Ok(()),
        Fact::GroupDestroyed {
            rank,
            group: destroyed,
        } if rank == gone && destroyed == group => Ok(()),
        _ => Err(Rejection::MayStillCome(*gone)),
    }
}

/// Waits in a circle: each thread is its process's only one that makes calls, and waits for a call
/// that the next rank has not made.
fn check_cycle(facts: &[Fact]) -> Result<(), Rejection> {
    let kind = CertificateKind::Cycle;
    let (waits, rest): (Vec<&Fact>, Vec<&Fact>) = facts
        .iter()
        .partition(|fact| matches!(fact, Fact::Waits { .. } | Fact::Creates { .. }));
    if waits.len() < 2 || waits.len() != rest.len() {
        return Err(Rejection::WrongFacts(
            kind,
            "two or more waits, each with who never came",
        ));
    }
    let ranks: BTreeSet<u32> = waits.iter().filter_map(|fact| rank_of(fact)).collect();
    if ranks.len() != waits.len() {
        return Err(Rejection::NotACycle);
    }
    for (i, (wait, never)) in waits.iter().zip(&rest).enumerate() {
        let next = rank_of(waits[(i + 1) % waits.len()]).ok_or(Rejection::NotACycle)?;
        if let Fact::NeverCreated { rank: gone, group } = never {
            if *gone != next {
                return Err(Rejection::NotACycle);
            }
            creation::check_wait(wait, group, next)?;
            continue;
        }
        let Fact::Waits {
            rank,
            group,
            seq,
            call,
            only_thread,
            ..
        } = wait
        else {
            return Err(Rejection::NotACycle);
        };
        let Fact::NeverIssued {
            rank: gone,
            group: never_in,
            last,
        } = never
        else {
            return Err(Rejection::WrongFacts(kind, "who never came"));
        };
        if never_in != group {
            return Err(Rejection::NotOneJoin);
        }
        if *gone != next {
            return Err(Rejection::NotACycle);
        }
        member(group, *rank)?;
        member(group, next)?;
        if last >= seq {
            return Err(Rejection::DidCome(next));
        }
        if !must_wait_for(call, *rank, next) {
            return Err(Rejection::NeedNot(*rank, next));
        }
        if !only_thread {
            return Err(Rejection::MayStillCome(*rank));
        }
    }
    Ok(())
}

/// One fact that says it all.
fn check_observation(facts: &[Fact]) -> Result<(), Rejection> {
    match facts {
        [Fact::Stopped { .. } | Fact::Raised { .. } | Fact::Missing { .. }] => Ok(()),
        [
            Fact::ClocksDiffer {
                ahead,
                behind,
                by_ms,
                uncertainty_ms,
            },
        ] if ahead != behind && by_ms > uncertainty_ms => Ok(()),
        [Fact::Ended { code, signal, .. }] if signal.is_some() || code.is_some_and(|c| c != 0) => {
            Ok(())
        }
        _ => Err(Rejection::WrongFacts(
            CertificateKind::Observation,
            "one end other than in order, stop, exception, gap or difference",
        )),
    }
}

/// Whether a rank's call cannot complete before another rank has made its own.
fn must_wait_for(call: &CallSignature, waits: u32, needed: u32) -> bool {
    let Some(op) = Op::from_name(&call.op) else {
        return false;
    };
    match op.direction() {
        Direction::Symmetric => waits != needed,
        Direction::FromRoot => call.root == Some(needed) && waits != needed,
        Direction::ToRoot => call.root == Some(waits) && waits != needed,
        Direction::PointToPoint | Direction::Unknown => false,
    }
}

fn member(group: &GroupRef, rank: u32) -> Result<(), Rejection> {
    if group.members.contains(&rank) {
        Ok(())
    } else {
        Err(Rejection::NotAMember(rank))
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

    fn group(members: &[u32]) -> GroupRef {
        GroupRef {
            layer: "c10d".into(),
            epoch: 0,
            name: "0".into(),
            ordinal: 0,
            members: members.into(),
        }
    }

    fn signature(op: &str) -> CallSignature {
        CallSignature {
            op: op.into(),
            numel: None,
            dtype: None,
            reduce_op: None,
            root: None,
        }
    }

    fn issued(rank: u32, seq: u64, call: CallSignature) -> Fact {
        Fact::Issued {
            rank,
            group: group(&[0, 1]),
            seq,
            call,
            step: 1,
        }
    }

    fn never(rank: u32, last: u64) -> Fact {
        Fact::NeverIssued {
            rank,
            group: group(&[0, 1]),
            last,
        }
    }

    fn checked(kind: CertificateKind, facts: Vec<Fact>) -> Result<(), Rejection> {
        check(&Certificate { kind, facts })
    }

    #[test]
    fn calls_that_can_never_match_are_accepted_and_others_not() {
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
        let sized = |numel| CallSignature {
            numel: Some(numel),
            ..reduce.clone()
        };
        assert_eq!(
            checked(kind, vec![issued(0, 5, sized(1)), issued(1, 5, sized(2))]),
            Ok(())
        );
        let rooted = |op, root| CallSignature {
            root: Some(root),
            ..signature(op)
        };
        let roots = vec![
            issued(0, 5, rooted("broadcast", 0)),
            issued(1, 5, rooted("broadcast", 1)),
        ];
        assert_eq!(checked(kind, roots), Ok(()));
        let rootless = vec![
            issued(0, 5, rooted("all_reduce", 0)),
            issued(1, 5, rooted("all_reduce", 1)),
        ];
        assert_eq!(checked(kind, rootless), Err(Rejection::CallsMatch));
        assert!(checked(kind, vec![issued(0, 5, reduce)]).is_err());
    }

    #[test]
    fn contradictions_are_within_one_op() {
        let kind = CertificateKind::Contradiction;
        let with = |op: &str| CallSignature {
            reduce_op: Some(op.into()),
            ..signature("all_reduce")
        };
        assert_eq!(
            checked(
                kind,
                vec![issued(0, 5, with("sum")), issued(1, 5, with("max"))]
            ),
            Ok(())
        );
        let one_unseen = vec![
            issued(0, 5, with("sum")),
            issued(1, 5, signature("all_reduce")),
        ];
        assert_eq!(checked(kind, one_unseen), Err(Rejection::CallsMatch));
    }

    #[test]
    fn a_terminal_rank_must_be_needed_absent_and_gone() {
        let kind = CertificateKind::TerminalRank;
        let ended = Fact::Ended {
            rank: 1,
            pid: 7,
            code: Some(0),
            signal: None,
        };
        let call = || issued(0, 5, signature("all_reduce"));
        assert_eq!(
            checked(kind, vec![call(), never(1, 4), ended.clone()]),
            Ok(())
        );
        let came = vec![call(), never(1, 5), ended.clone()];
        assert_eq!(checked(kind, came), Err(Rejection::DidCome(1)));
        let alive = vec![call(), never(1, 4), Fact::Stopped { rank: 1, pid: 7 }];
        assert_eq!(checked(kind, alive), Err(Rejection::MayStillCome(1)));
        let leaf = CallSignature {
            root: Some(1),
            ..signature("gather")
        };
        let early = vec![issued(0, 5, leaf), never(1, 4), ended];
        assert_eq!(checked(kind, early), Err(Rejection::NeedNot(0, 1)));
    }

    #[test]
    fn a_cycle_must_close_and_every_thread_be_the_only_one() {
        let wait = |rank, name: &str, only_thread| Fact::Waits {
            rank,
            thread: 1,
            group: GroupRef {
                name: name.into(),
                ..group(&[0, 1])
            },
            seq: 1,
            call: signature("all_reduce"),
            only_thread,
        };
        let never = |rank, name: &str, last| Fact::NeverIssued {
            rank,
            group: GroupRef {
                name: name.into(),
                ..group(&[0, 1])
            },
            last,
        };
        let cycle = |only, last| {
            vec![
                wait(0, "a", true),
                wait(1, "b", only),
                never(1, "a", last),
                never(0, "b", 0),
            ]
        };
        let kind = CertificateKind::Cycle;
        assert_eq!(checked(kind, cycle(true, 0)), Ok(()));
        assert_eq!(
            checked(kind, cycle(false, 0)),
            Err(Rejection::MayStillCome(1))
        );
        assert_eq!(checked(kind, cycle(true, 1)), Err(Rejection::DidCome(1)));
        let open = vec![
            wait(0, "a", true),
            wait(1, "b", true),
            never(1, "a", 0),
            never(1, "b", 0),
        ];
        assert_eq!(checked(kind, open), Err(Rejection::NotACycle));
        assert!(checked(kind, vec![wait(0, "a", true), never(0, "a", 0)]).is_err());
    }

    #[test]
    fn an_orderly_end_is_no_observation_of_a_fault() {
        let ended = |code, signal| {
            vec![Fact::Ended {
                rank: 1,
                pid: 7,
                code,
                signal,
            }]
        };
        assert_eq!(
            checked(CertificateKind::Observation, ended(None, Some(9))),
            Ok(())
        );
        assert_eq!(
            checked(CertificateKind::Observation, ended(Some(3), None)),
            Ok(())
        );
        assert!(checked(CertificateKind::Observation, ended(Some(0), None)).is_err());
        assert!(checked(CertificateKind::Observation, vec![]).is_err());
    }
}
