//! The proof that a rank for which others wait never makes its call.

use ddp_doctor_proto::report::{Certificate, CertificateKind, Fact};

use crate::findings::facts::{creates, issued};
use crate::findings::stalls::message;
use crate::input::event::Call;
use crate::model::Side;
use crate::situation::{Situation, Stall};

/// The proof that a call waits for a rank that has ended or destroyed the group.
pub(crate) fn never_comes(
    situation: &Situation<'_>,
    stall: &Stall,
    (waiter, call): (u32, &Call),
    gone: u32,
) -> Option<Certificate> {
    let process = situation.model.member(stall.group, gone)?;
    if process.lost > 0 || process.ended_by_its_own_word() {
        return None;
    }
    let (waits, never) = match &stall.message {
        // This kind of group is created without waiting for all its members.
        None if stall.seq == 0 && !call.takes_all => return None,
        None => (
            creates(waiter, call, false).or_else(|| issued(waiter, call, call.seq))?,
            message::never_issued(situation, stall.group, gone),
        ),
        // A send may complete early, and a receive from any source has other possible senders.
        Some(unmatched)
            if unmatched.side == Side::Send || unmatched.peer.is_none() || !unmatched.sure =>
        {
            return None;
        }
        Some(unmatched) => (
            issued(waiter, call, unmatched.nth)?,
            message::never_posted(situation, stall.group, unmatched, gone),
        ),
    };
    let end = match process.end {
        Some(end) => Fact::Ended {
            rank: gone,
            pid: process.pid,
            code: end.exit.code,
            signal: end.exit.signal,
        },
        None => Fact::GroupDestroyed {
            rank: gone,
            group: situation.model.group(stall.group).info.key.clone(),
        },
    };
    Some(Certificate { kind: CertificateKind::TerminalRank, facts: vec![waits, never, end] })
}
