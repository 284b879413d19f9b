//! Times of facts in lines that have none.

use ddp_doctor_proto::report::Timestamp;

use super::facts::{Fact, Facts, Statement};

/// The time of the fact with this index.
///
/// A line without a time was written between the one with a time before it and the next one. Failures are
/// read as early as that. What another rank may have brought about, a wait that was given up or the loss
/// of a peer, is read as late as that: in the failure report of the rank, if there is one.
pub(super) fn of_fact(facts: &Facts, index: usize) -> Timestamp {
    let fact = &facts.facts[index];
    let may_be_later = match &fact.what {
        Statement::TimedOut { .. } => true,
        Statement::Raised { text, .. } => is_loss_of_peer(text),
        _ => false,
    };
    if fact.line.is_dated || !may_be_later {
        return fact.at;
    }
    let later = facts.facts[index..].iter().filter(|it| it.at > fact.at);
    let rank = fact.who.label.rank.or(fact.who.rank);
    let is_own = |it: &&Fact| {
        let is_end = matches!(it.what, Statement::Ended(_) | Statement::EndedLater(_));
        is_end && rank.is_some() && it.who.rank == rank
    };
    let own = later.clone().find(is_own);
    let next = own.or_else(|| later.min_by_key(|it| it.at));
    next.map_or(facts.last.max(fact.at), |it| it.at)
}

/// Whether an exception states that another process closed or never opened its connection.
pub(super) fn is_loss_of_peer(text: &str) -> bool {
    let is_lost = [
        "onnection closed by peer",
        "onnection reset by peer",
        "onnection refused",
        "roken pipe",
        "remote process exited",
        "client socket has timed out",
    ]
    .iter()
    .any(|it| text.contains(it));
    is_lost && !text.contains("NET/IB")
}
