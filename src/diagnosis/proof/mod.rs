//! Certificates of proved findings, and their checker.
//!
//! A finding is *proved* if it follows from recorded facts alone. Its certificate lists exactly
//! those facts, and [`check`] decides from them whether they suffice. The checker knows neither the
//! model nor how the certificate was made, so it catches errors there. The engine emits no
//! certificate that it rejects.

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::{CallSignature, Certificate, CertificateKind, Fact, GroupRef};

mod absence;
mod creation;
mod join;
mod message;
mod replicas;
mod startup;
#[cfg(test)]
mod testing;

pub(super) use startup::never_meet;

/// Signal by which the kernel ends a process when memory runs out.
const SIGKILL: i32 = 9;

/// Why a certificate is not a proof.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The facts are not those of this kind of certificate.
    #[error("these facts are not those of a certificate of kind {0}")]
    WrongFacts(CertificateKind),
    /// The facts concern different groups or sequence numbers.
    #[error("the facts are not about one call of one group")]
    NotOneJoin,
    /// A fact names a rank that is not a member of its group.
    #[error("rank {0} is not a member of the group")]
    NotAMember(u32),
    /// The calls can be one collective.
    #[error("nothing in the calls contradicts each other")]
    CallsMatch,
    /// The call of the first rank may complete without the second.
    #[error("the call of rank {0} may complete without rank {1}")]
    NeedNot(u32, u32),
    /// The rank made the call.
    #[error("rank {0} has made the call")]
    DidCome(u32),
    /// The rank may still make the call.
    #[error("nothing says that rank {0} can never come")]
    MayStillCome(u32),
    /// The waits do not form a cycle.
    #[error("the waits do not close a cycle")]
    NotACycle,
    /// The processes may belong to different worlds.
    #[error("nothing says that the processes belong to one world")]
    NotOneWorld,
    /// The group of the rank may be created without all of its members.
    #[error("the group of rank {0} may be made without all its members")]
    MadeWithout(u32),
}

/// Checks that the facts of a certificate prove what its kind claims. The functions of this module state what
/// facts each kind needs.
///
/// # Errors
///
/// The first reason why they do not.
pub fn check(certificate: &Certificate) -> Result<(), Rejection> {
    use CertificateKind::{Contradiction, Cycle, Observation, TerminalRank, UnsatisfiableJoin};
    let (kind, facts) = (certificate.kind, &certificate.facts[..]);
    match (kind, facts) {
        (UnsatisfiableJoin, [Fact::Sends(sent), Fact::Expects(expected)]) => {
            join::check_splits(sent, expected)
        }
        (UnsatisfiableJoin, _) => join::check(facts, kind, join::can_never_match),
        (
            Contradiction,
            [Fact::Creates { rank, group, .. }, Fact::Creates { rank: other, group: others, .. }],
        ) => creation::check_contradiction((*rank, group), (*other, others)),
        (Contradiction, [Fact::Joins(a), Fact::Joins(b)]) => startup::check_contradiction(a, b),
        (Contradiction, [Fact::Joins(a), Fact::Joins(b), Fact::Setting(x), Fact::Setting(y)]) => {
            startup::check_settings((a, x), (b, y))
        }
        (Contradiction, [Fact::Issued { call, .. }, Fact::Issued { .. }])
            if is_point_to_point(call) =>
        {
            message::check_sizes(facts)
        }
        (Contradiction, [Fact::Waits { .. }, Fact::Waits { .. }, ..]) => message::check_tags(facts),
        (Contradiction, [Fact::Wraps(a), Fact::Wraps(b)]) => join::check_models(a, b),
        (Contradiction, [Fact::Holds(a), Fact::Holds(b)]) => replicas::check(a, b),
        (Contradiction, _) => join::check(facts, kind, join::contradicts),
        (
            TerminalRank,
            [
                making @ Fact::Creates { .. },
                Fact::NeverCreated { rank, group },
                Fact::Ended { rank: ended, .. },
            ],
        ) => creation::check_terminal_rank(making, (*rank, group), *ended),
        (TerminalRank, _) => absence::check_terminal_rank(facts),
        (Cycle, _) => absence::check_cycle(facts),
        (Observation, _) => check_observation(facts),
    }
}

/// Facts that are a finding by themselves: one end other than in order, stop, exception, gap or
/// difference.
fn check_observation(facts: &[Fact]) -> Result<(), Rejection> {
    match facts {
        [Fact::Stopped { .. } | Fact::Raised { .. } | Fact::Missing { .. }] => Ok(()),
        [Fact::Interface { variable, value, seen, .. }]
            if startup::is_unusable(variable, value, seen) =>
        {
            Ok(())
        }
        [Fact::ClocksDiffer { ahead, behind, by_ms, uncertainty_ms }]
            if ahead != behind && by_ms > uncertainty_ms =>
        {
            Ok(())
        }
        [Fact::Ended { code, signal, .. }] if signal.is_some() || code.is_some_and(|c| c != 0) => {
            Ok(())
        }
        [
            Fact::Ended { rank: ended, pid, signal: Some(SIGKILL), .. },
            Fact::OomKills { rank, pid: its, kills, killed_ranks },
        ] if (ended, pid) == (rank, its) && (1..=*kills).contains(killed_ranks) => Ok(()),
        _ => Err(Rejection::WrongFacts(CertificateKind::Observation)),
    }
}

fn is_point_to_point(call: &CallSignature) -> bool {
    Op::from_name(&call.op).is_some_and(Op::is_point_to_point)
}

/// Whether both are known and not equal.
fn differ<T: PartialEq>(a: Option<T>, b: Option<T>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a != b)
}

/// Rejects a certificate unless this holds.
fn ensure(holds: bool, otherwise: Rejection) -> Result<(), Rejection> {
    if holds { Ok(()) } else { Err(otherwise) }
}

/// Rejects ranks that do not belong to the group.
fn are_members<const N: usize>(group: &GroupRef, ranks: [u32; N]) -> Result<(), Rejection> {
    let stranger = ranks.into_iter().find(|rank| !group.members.contains(rank));
    stranger.map_or(Ok(()), |rank| Err(Rejection::NotAMember(rank)))
}

#[cfg(test)]
mod tests {
    use super::testing::checked;
    use super::*;

    #[test]
    fn orderly_exit_is_no_observation_of_a_fault() {
        let ended = |code, signal| vec![Fact::Ended { rank: 1, pid: 7, code, signal }];
        assert_eq!(checked(CertificateKind::Observation, ended(None, Some(9))), Ok(()));
        assert_eq!(checked(CertificateKind::Observation, ended(Some(3), None)), Ok(()));
        assert!(checked(CertificateKind::Observation, ended(Some(0), None)).is_err());
        assert!(checked(CertificateKind::Observation, vec![]).is_err());
    }
}
