//! Certificates about a send and a receive that do not match.

use ddp_doctor_proto::report::{CallSignature, CertificateKind, Fact};
use ddp_doctor_proto::{DType, Op};

use crate::proof::absence::never_came;
use crate::proof::{Rejection, are_members, differ, ensure};

/// The n-th send and the n-th receive between two ranks, with the same tag if tags are used, whose
/// sizes do not fit. With tags (Gloo), a message may be smaller than its receive.
pub(super) fn check_sizes(facts: &[Fact]) -> Result<(), Rejection> {
    let wrong = Rejection::WrongFacts(CertificateKind::Contradiction);
    let [
        Fact::Issued { rank: from, group, seq, call: send, .. },
        Fact::Issued { rank: to, group: other_group, seq: other_seq, call: receive, .. },
    ] = facts
    else {
        return Err(wrong);
    };
    ensure(send.op == Op::Send.to_string() && receive.op == Op::Recv.to_string(), wrong)?;
    are_members(group, [*from, *to])?;
    let meet = group == other_group
        && seq == other_seq
        && *seq > 0
        && send.tag == receive.tag
        && send.root == Some(*to)
        && receive.root == Some(*from);
    ensure(meet, Rejection::NotOneJoin)?;
    let size = |call: &CallSignature| {
        let dtype = DType::from_name(call.dtype.as_deref()?)?;
        call.numel?.checked_mul(dtype.size()?)
    };
    let (sent, room) = (size(send), size(receive));
    let elements = send.numel.zip(receive.numel).filter(|_| send.dtype == receive.dtype);
    match sent.zip(room).or(elements) {
        Some((sent, room)) if sent > room || (sent < room && send.tag.is_none()) => Ok(()),
        _ => Err(Rejection::CallsMatch),
    }
}

/// A receive and a send that wait for each other with different tags, and that neither has its partner.
/// Tags distinguish messages on backends where a send waits for its receive.
pub(super) fn check_tags(facts: &[Fact]) -> Result<(), Rejection> {
    let wrong = || Rejection::WrongFacts(CertificateKind::Contradiction);
    let [
        Fact::Waits { rank: to, group, seq, call: receive, only_thread, .. },
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
    ensure(send_group == group, Rejection::NotOneJoin)?;
    ensure(never_came(*to, group, *seq, receive, never_sent)? == *from, wrong())?;
    let Fact::NeverPosted { rank, group: never_in, op, peer, tag, last } = never_received else {
        return Err(wrong());
    };
    let answers = send.op == Op::Send.to_string()
        && send.root == Some(*to)
        && *op == Op::Recv.to_string()
        && (rank, never_in, *peer, *tag) == (to, group, *from, send.tag);
    ensure(answers, wrong())?;
    ensure(last < send_seq, Rejection::DidCome(*to))?;
    ensure(differ(send.tag, receive.tag), Rejection::CallsMatch)?;
    ensure(*only_thread, Rejection::MayStillCome(*to))?;
    ensure(*send_only_thread, Rejection::MayStillCome(*from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::testing::{checked, issued, message, never_posted, waits};

    #[test]
    fn size_contradiction_needs_sizes_that_do_not_fit() {
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
        let apart =
            vec![issued(0, 2, message("send", 0, 1, 8)), issued(1, 3, message("recv", 1, 1, 4))];
        assert_eq!(checked(kind, apart), Err(Rejection::NotOneJoin));
        let both_send =
            vec![issued(0, 2, message("send", 0, 1, 8)), issued(1, 2, message("send", 1, 1, 4))];
        assert!(checked(kind, both_send.clone()).is_err());
        // They are not calls of one collective either.
        assert!(checked(CertificateKind::UnsatisfiableJoin, both_send).is_err());
        assert!(checked(CertificateKind::UnsatisfiableJoin, facts(8, 4)).is_err());
    }

    #[test]
    fn tags_contradict_only_if_both_sides_wait() {
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
        let mut arrived = facts(1, 2);
        arrived[3] = never_posted(1, "recv", 1, 1);
        assert_eq!(checked(kind, arrived), Err(Rejection::DidCome(1)));
        let mut arrived = facts(1, 2);
        arrived[2] = never_posted(0, "send", 2, 1);
        assert_eq!(checked(kind, arrived), Err(Rejection::DidCome(0)));
        let mut goes_on = facts(1, 2);
        goes_on[1] = waits(0, 1, message("send", 0, 1, 4), false);
        assert_eq!(checked(kind, goes_on), Err(Rejection::MayStillCome(0)));
        let mut only_issued = facts(1, 2);
        only_issued[1] = issued(0, 1, message("send", 0, 1, 4));
        assert!(checked(kind, only_issued).is_err());
    }
}
