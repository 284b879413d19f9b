//! Proofs, and the small independent program that accepts or rejects them.
//!
//! A finding is *proved* when it follows from recorded facts alone. Its certificate lists those
//! facts and nothing else, and [`check`] decides from the list whether they suffice: it knows neither
//! the engine's model nor how the certificate was made, so that an error there is caught here. The
//! engine lets no certificate out that the checker rejects.

use std::collections::BTreeSet;

use ddp_doctor_proto::report::{CallSignature, Certificate, CertificateKind, Fact, GroupRef};
use ddp_doctor_proto::vocabulary::Direction;
use ddp_doctor_proto::{DType, Op};

mod creation;
mod startup;

pub(super) use startup::never_meet;

/// What the kernel ends a process with that nobody else may keep.
const SIGKILL: i32 = 9;

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
    /// The processes may well be of different worlds.
    #[error("nothing says that the processes belong to one world")]
    NotOneWorld,
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
        CertificateKind::Contradiction if matches!(facts[..], [.., Fact::Setting { .. }]) => {
            startup::check_settings(facts)
        }
        CertificateKind::Contradiction if matches!(facts[..], [Fact::Joins { .. }, ..]) => {
            startup::check_contradiction(facts)
        }
        CertificateKind::Contradiction => check_contradiction(facts),
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
    // Point-to-point calls have numbers of their own.
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

/// Whether two calls of one collective say things that must be equal and are not.
fn contradicts(a: &CallSignature, b: &CallSignature) -> bool {
    let differ =
        |a: &Option<String>, b: &Option<String>| matches!((a, b), (Some(a), Some(b)) if a != b);
    a.op == b.op
        && !is_point_to_point(a)
        && (differ(&a.dtype, &b.dtype) || differ(&a.reduce_op, &b.reduce_op))
}

/// Two facts that must agree do not: about calls of one collective, about a send and the receive that
/// belongs to it, or about one that waits for the other.
fn check_contradiction(facts: &[Fact]) -> Result<(), Rejection> {
    match facts {
        [Fact::Issued { call, .. }, Fact::Issued { .. }] if is_point_to_point(call) => {
            check_sizes(facts)
        }
        [Fact::Waits { .. }, Fact::Waits { .. }, ..] => check_tags(facts),
        [Fact::Wraps { .. }, ..] => check_models(facts),
        _ => check_join(facts, CertificateKind::Contradiction, contradicts),
    }
}

/// Two ranks' copies of one model that differ in the number of parameters, or in the type or the shape
/// of one.
fn check_models(facts: &[Fact]) -> Result<(), Rejection> {
    let [
        Fact::Wraps {
            rank: a,
            group,
            model,
            total,
            index,
            parameter,
        },
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
    if total != other_total || parameter != other {
        Ok(())
    } else {
        Err(Rejection::CallsMatch)
    }
}

/// The n-th send from one rank to another and the n-th receive, with the same tag where tags count,
/// whose sizes do not fit. Where tags count (Gloo), a message may be smaller than its receive.
fn check_sizes(facts: &[Fact]) -> Result<(), Rejection> {
    let wrong = Rejection::WrongFacts(CertificateKind::Contradiction, "a send and its receive");
    let [
        Fact::Issued {
            rank: from,
            group,
            seq,
            call: send,
            ..
        },
        Fact::Issued {
            rank: to,
            group: other_group,
            seq: other_seq,
            call: receive,
            ..
        },
    ] = facts
    else {
        return Err(wrong);
    };
    if send.op != Op::Send.to_string() || receive.op != Op::Recv.to_string() {
        return Err(wrong);
    }
    member(group, *from)?;
    member(group, *to)?;
    let meet = group == other_group
        && seq == other_seq
        && *seq > 0
        && send.tag == receive.tag
        && send.root == Some(*to)
        && receive.root == Some(*from);
    if !meet {
        return Err(Rejection::NotOneJoin);
    }
    let size = |call: &CallSignature| {
        let dtype = DType::from_name(call.dtype.as_deref()?)?;
        call.numel?.checked_mul(dtype.size()?)
    };
    let (sent, room) = (size(send), size(receive));
    let elements = send
        .numel
        .zip(receive.numel)
        .filter(|_| send.dtype == receive.dtype);
    match sent.zip(room).or(elements) {
        Some((sent, room)) if sent > room || (sent < room && send.tag.is_none()) => Ok(()),
        _ => Err(Rejection::CallsMatch),
    }
}

/// A receive and a send that wait for each other, with different tags. Tags tell messages apart where
/// a send waits for its receive.
fn check_tags(facts: &[Fact]) -> Result<(), Rejection> {
    let wrong = || {
        Rejection::WrongFacts(
            CertificateKind::Contradiction,
            "a receive that waits, a send that waits, and that neither has its partner",
        )
    };
    let [
        Fact::Waits {
            rank: to,
            group,
            seq,
            call: receive,
            only_thread,
            ..
        },
        Fact::Waits {
            rank: from,
            group: send_group,
            seq: send_seq,
            call: send,
            only_thread: send_only_thread,
            ..
        },
        never_sent,
        never_received,
    ] = facts
    else {
        return Err(wrong());
    };
    if send_group != group {
        return Err(Rejection::NotOneJoin);
    }
    if never_came(*to, group, *seq, receive, never_sent)? != *from {
        return Err(wrong());
    }
    let Fact::NeverPosted {
        rank,
        group: never_in,
        op,
        peer,
        tag,
        last,
    } = never_received
    else {
        return Err(wrong());
    };
    let answers = send.op == Op::Send.to_string()
        && send.root == Some(*to)
        && *op == Op::Recv.to_string()
        && (rank, never_in, *peer, *tag) == (to, group, *from, send.tag);
    if !answers {
        return Err(wrong());
    }
    if last >= send_seq {
        return Err(Rejection::DidCome(*to));
    }
    if !matches!((send.tag, receive.tag), (Some(a), Some(b)) if a != b) {
        return Err(Rejection::CallsMatch);
    }
    for (only, rank) in [(only_thread, to), (send_only_thread, from)] {
        if !only {
            return Err(Rejection::MayStillCome(*rank));
        }
    }
    Ok(())
}

/// A rank waits for another one that has not made the call and never will.
fn check_terminal_rank(facts: &[Fact]) -> Result<(), Rejection> {
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
        return Err(Rejection::WrongFacts(
            CertificateKind::TerminalRank,
            "a call that waits, the rank that never made it, and that rank's end",
        ));
    };
    let gone = never_came(*waits, group, *seq, call, never)?;
    match end {
        Fact::Ended { rank, .. } if *rank == gone => Ok(()),
        Fact::GroupDestroyed {
            rank,
            group: destroyed,
        } if *rank == gone && destroyed == group => Ok(()),
        _ => Err(Rejection::MayStillCome(gone)),
    }
}

/// Waits in a circle: each thread is its process's only one that makes calls, and waits for a call
/// that the next rank has not made.
fn check_cycle(facts: &[Fact]) -> Result<(), Rejection> {
    let (waits, rest): (Vec<&Fact>, Vec<&Fact>) = facts
        .iter()
        .partition(|fact| matches!(fact, Fact::Waits { .. } | Fact::Creates { .. }));
    if waits.len() < 2 || waits.len() != rest.len() {
        return Err(Rejection::WrongFacts(
            CertificateKind::Cycle,
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
        if let Fact::NeverIssued { rank: gone, .. } | Fact::NeverPosted { rank: gone, .. } = never
            && *gone != next
        {
            return Err(Rejection::NotACycle);
        }
        never_came(*rank, group, *seq, call, never)?;
        if !only_thread {
            return Err(Rejection::MayStillCome(*rank));
        }
    }
    Ok(())
}

/// Who has not come to a call that cannot complete without: a member of the group to a collective, the
/// sender to a receive.
fn never_came(
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
        Fact::NeverPosted {
            rank,
            group,
            op,
            peer,
            tag,
            last,
        } if *op == Op::Send.to_string() && *peer == waits && *tag == call.tag => {
            (*rank, group, *last)
        }
        _ => {
            return Err(Rejection::WrongFacts(
                CertificateKind::TerminalRank,
                "who never came to that very call",
            ));
        }
    };
    if never_in != group {
        return Err(Rejection::NotOneJoin);
    }
    member(group, waits)?;
    member(group, gone)?;
    if last >= seq {
        return Err(Rejection::DidCome(gone));
    }
    if must_wait_for(call, waits, gone) {
        Ok(gone)
    } else {
        Err(Rejection::NeedNot(waits, gone))
    }
}

/// One fact that says it all.
fn check_observation(facts: &[Fact]) -> Result<(), Rejection> {
    match facts {
        [Fact::Stopped { .. } | Fact::Raised { .. } | Fact::Missing { .. }] => Ok(()),
        [
            Fact::Interface {
                variable,
                value,
                seen,
                ..
            },
        ] if startup::is_unusable(variable, value, seen) => Ok(()),
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
        [
            Fact::Ended {
                rank: ended,
                pid,
                signal: Some(SIGKILL),
                ..
            },
            Fact::OomKills {
                rank,
                pid: its,
                kills,
                killed_ranks,
            },
        ] if (ended, pid) == (rank, its) && (1..=*kills).contains(killed_ranks) => Ok(()),
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
        // A sender may be done early.
        Direction::PointToPoint => op == Op::Recv && call.root == Some(needed) && waits != needed,
        Direction::Unknown => false,
    }
}

fn is_point_to_point(call: &CallSignature) -> bool {
    Op::from_name(&call.op).is_some_and(Op::is_point_to_point)
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
            tag: None,
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

    /// A send or receive of rank `rank`, whose peer is the other of two.
    fn message(op: &str, rank: u32, tag: i32, numel: u64) -> CallSignature {
        CallSignature {
            numel: Some(numel),
            dtype: Some("float32".into()),
            root: Some(1 - rank),
            tag: Some(tag),
            ..signature(op)
        }
    }

    fn never_posted(rank: u32, op: &str, tag: i32, last: u64) -> Fact {
        Fact::NeverPosted {
            rank,
            group: group(&[0, 1]),
            op: op.into(),
            peer: 1 - rank,
            tag: Some(tag),
            last,
        }
    }

    fn waits(rank: u32, seq: u64, call: CallSignature, only_thread: bool) -> Fact {
        Fact::Waits {
            rank,
            thread: 1,
            group: group(&[0, 1]),
            seq,
            call,
            only_thread,
        }
    }

    #[test]
    fn a_cycle_of_receives_needs_that_nothing_was_sent() {
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
        assert_eq!(
            checked(kind, cycle("recv", 0, 3)),
            Err(Rejection::DidCome(0))
        );
        // Nothing was sent with another tag: that says nothing.
        assert!(checked(kind, cycle("recv", 7, 2)).is_err());
        // A send may be done early.
        assert_eq!(
            checked(kind, cycle("send", 0, 2)),
            Err(Rejection::NeedNot(0, 1))
        );
        // What a rank did among its collectives says nothing about a message, nor the reverse.
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
    fn a_message_never_comes_from_a_rank_that_ended_before_it_sent_it() {
        let kind = CertificateKind::TerminalRank;
        let ended = |rank| Fact::Ended {
            rank,
            pid: 7,
            code: Some(0),
            signal: None,
        };
        let facts = |op: &str, last| {
            let call = message(op, 0, 2, 4);
            vec![
                issued(0, 3, call),
                never_posted(1, "send", 2, last),
                ended(1),
            ]
        };
        assert_eq!(checked(kind, facts("recv", 2)), Ok(()));
        assert_eq!(checked(kind, facts("recv", 3)), Err(Rejection::DidCome(1)));
        assert!(checked(kind, facts("send", 2)).is_err());
        let mut alive = facts("recv", 2);
        alive[2] = ended(0);
        assert_eq!(checked(kind, alive), Err(Rejection::MayStillCome(1)));
    }

    #[test]
    fn a_send_and_its_receive_must_have_sizes_that_fit() {
        let kind = CertificateKind::Contradiction;
        let facts = |sent, room| {
            vec![
                issued(0, 2, message("send", 0, 1, sent)),
                issued(1, 2, message("recv", 1, 1, room)),
            ]
        };
        assert_eq!(checked(kind, facts(8, 4)), Ok(()));
        assert_eq!(checked(kind, facts(4, 4)), Err(Rejection::CallsMatch));
        assert_eq!(checked(kind, facts(4, 8)), Err(Rejection::CallsMatch));
        let mut without_tags = facts(4, 8);
        for fact in &mut without_tags {
            if let Fact::Issued { call, .. } = fact {
                call.tag = None;
            }
        }
        assert_eq!(checked(kind, without_tags), Ok(()));
        let apart = vec![
            issued(0, 2, message("send", 0, 1, 8)),
            issued(1, 3, message("recv", 1, 1, 4)),
        ];
        assert_eq!(checked(kind, apart), Err(Rejection::NotOneJoin));
        let both_send = vec![
            issued(0, 2, message("send", 0, 1, 8)),
            issued(1, 2, message("send", 1, 1, 4)),
        ];
        assert!(checked(kind, both_send.clone()).is_err());
        // Nor are they calls of one collective.
        assert!(checked(CertificateKind::UnsatisfiableJoin, both_send).is_err());
        assert!(checked(CertificateKind::UnsatisfiableJoin, facts(8, 4)).is_err());
    }

    #[test]
    fn tags_contradict_each_other_where_both_sides_wait() {
        let kind = CertificateKind::Contradiction;
        let facts = |sent, wanted| {
            vec![
                waits(1, 1, message("recv", 1, wanted, 4), true),
                waits(0, 1, message("send", 0, sent, 4), true),
                never_posted(0, "send", wanted, 0),
                never_posted(1, "recv", sent, 0),
            ]
        };
        assert_eq!(checked(kind, facts(1, 2)), Ok(()));
        assert_eq!(checked(kind, facts(2, 2)), Err(Rejection::CallsMatch));
        let mut came = facts(1, 2);
        came[3] = never_posted(1, "recv", 1, 1);
        assert_eq!(checked(kind, came), Err(Rejection::DidCome(1)));
        let mut came = facts(1, 2);
        came[2] = never_posted(0, "send", 2, 1);
        assert_eq!(checked(kind, came), Err(Rejection::DidCome(0)));
        let mut goes_on = facts(1, 2);
        goes_on[1] = waits(0, 1, message("send", 0, 1, 4), false);
        assert_eq!(checked(kind, goes_on), Err(Rejection::MayStillCome(0)));
        let mut only_issued = facts(1, 2);
        only_issued[1] = issued(0, 1, message("send", 0, 1, 4));
        assert!(checked(kind, only_issued).is_err());
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
