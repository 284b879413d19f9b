//! Whether the facts of a certificate are true.

use ddp_doctor_proto::report::{CallSignature, Fact};

use super::Truth;
use crate::oracle::machine::{Life, Made};
use crate::oracle::program::{Op, group_name};

impl Truth<'_> {
    pub(super) fn group(&self, name: &str) -> Option<u8> {
        (0..self.machine.program.groups.len() as u8).find(|&group| group_name(group) == name)
    }

    /// Rank and index of the call that a fact refers to.
    pub(super) fn call_of(&self, fact: &Fact) -> Option<(u32, u8)> {
        match fact {
            Fact::Issued { rank, group, seq, call, .. }
            | Fact::Waits { rank, group, seq, call, .. } => {
                let group = self.group(&group.name)?;
                let state = &self.execution.state;
                if matches!(call.op.as_str(), "send" | "recv") {
                    let (peer, tag) = (call.root?, call.tag);
                    let call = self
                        .messages(*rank, group, &call.op, peer, tag)
                        .find(|&c| u64::from(state.seq[usize::from(c)]) == *seq)?;
                    return Some((*rank, call));
                }
                let call = self.machine.call_at(state, group, *rank as u8, *seq as u8)?;
                Some((*rank, call))
            }
            _ => None,
        }
    }

    /// Indices of the sends or receives of a rank with a peer; `tag: None` matches every tag.
    fn messages<'s>(
        &'s self,
        rank: u32,
        group: u8,
        op: &'s str,
        peer: u32,
        tag: Option<i32>,
    ) -> impl Iterator<Item = u8> + 's {
        let calls = self.machine.calls.iter().enumerate();
        let like = move |made: &Made| {
            let call = &made.call;
            u32::from(made.rank) == rank
                && call.group == group
                && call.op.is_message()
                && (call.op == Op::Send) == (op == "send")
                && u32::from(call.root) == peer
                && tag.is_none_or(|tag| tag == i32::from(call.tag))
        };
        calls.filter(move |(_, made)| like(made)).map(|(c, _)| c as u8)
    }

    /// Whether a fact is true in the last state.
    pub(super) fn holds(&self, fact: &Fact) -> bool {
        let state = &self.execution.state;
        let life = |rank: u32| self.machine.life(state, rank as u8);
        match fact {
            Fact::Issued { call, .. } => {
                self.call_of(fact).is_some_and(|(_, made)| self.is_signature(made, call))
            }
            Fact::Waits { rank, call, .. } => self.call_of(fact).is_some_and(|(_, made)| {
                let waits = (0..self.machine.program.threads.len() as u8)
                    .any(|t| self.machine.awaited(state, t) == Some(made));
                let there = matches!(life(*rank), Life::Runs | Life::Died(_));
                waits && there && self.is_signature(made, call)
            }),
            Fact::NeverIssued { rank, group, last } => {
                self.group(&group.name).is_some_and(|group| {
                    u64::from(self.machine.issued(state, group, *rank as u8)) == *last
                })
            }
            Fact::Ended { rank, code, signal, .. } => match life(*rank) {
                Life::Exited => *code == Some(0) && signal.is_none(),
                Life::Died(_) => signal.is_some() || code.is_some_and(|code| code != 0),
                Life::Runs | Life::Stopped => false,
            },
            Fact::GroupDestroyed { rank, group } => self
                .group(&group.name)
                .is_some_and(|group| state.left[usize::from(group)] & 1 << rank != 0),
            Fact::Stopped { rank, .. } => life(*rank) == Life::Stopped,
            Fact::Raised { rank, .. } => matches!(life(*rank), Life::Died(_)),
            Fact::NeverPosted { rank, group, op, peer, tag, last } => {
                self.group(&group.name).is_some_and(|group| {
                    let made = self.messages(*rank, group, op, *peer, *tag);
                    let last_made = made.map(|c| state.seq[usize::from(c)]).max().unwrap_or(0);
                    u64::from(last_made) == *last
                })
            }
            Fact::Missing { .. }
            | Fact::Joins { .. }
            | Fact::Interface { .. }
            | Fact::OomKills { .. }
            | Fact::Setting { .. }
            | Fact::Creates { .. }
            | Fact::NeverCreated { .. }
            | Fact::Wraps { .. }
            | Fact::Holds { .. }
            | Fact::Sends { .. }
            | Fact::Expects { .. }
            | Fact::ClocksDiffer { .. } => false,
        }
    }

    fn is_signature(&self, made: u8, signature: &CallSignature) -> bool {
        let call = self.machine.calls[usize::from(made)].call;
        let words = call.to_string();
        let op = words.split([' ', '/']).next().unwrap_or_default();
        signature.op == op
            && signature.numel.is_none_or(|numel| numel == u64::from(call.numel))
            && signature.root.is_none_or(|root| root == u32::from(call.root))
    }
}
