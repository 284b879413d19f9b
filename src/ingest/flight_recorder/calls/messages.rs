//! Which messages of a dump are passed to the engine, and with which numbers.
//!
//! A dump numbers all messages of a rank in a group together, and begins somewhere: the engine
//! pairs the n-th send with the n-th receive between two ranks. Messages are countable if both
//! dumps are whole, or if the two ranks exchange messages with each other only: then their numbers
//! agree, and the counting begins at the first number that both know.

use std::collections::{BTreeMap, BTreeSet};

use ddp_doctor_diagnosis::event::Call;
use ddp_doctor_proto::Op;

use super::groups::{GroupAt, Groups};
use super::units::Calls;
use crate::flight_recorder::dumped_jobs::DumpedJob;

/// The messages of a job that can be counted.
#[derive(Debug, Default)]
pub(in super::super) struct Messages {
    /// Countable messages by rank and index of the call.
    placed: BTreeMap<(u32, usize), Placed>,
}

/// A message that can be counted.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Placed {
    /// `None`: a receive from any rank.
    pub(in super::super) peer: Option<u32>,
    /// Number among the messages from the sender to the receiver.
    seq: u64,
    /// Index of the peer's side; `None`: it has not made it.
    pub(in super::super) partner: Option<usize>,
}

/// Messages from one rank to another in one group: index and number of each, on both sides.
type Channel = [Vec<(usize, u64)>; 2];

impl Messages {
    pub(in super::super) fn new(
        job: &DumpedJob,
        groups: &Groups,
        calls: &BTreeMap<u32, Calls<'_>>,
    ) -> Self {
        let mut channels: BTreeMap<(GroupAt, u32, u32), Channel> = BTreeMap::new();
        let mut messages = Self::default();
        for (&rank, calls) in calls {
            let units = calls.units.iter().enumerate().filter(|(_, unit)| unit.is_message);
            for (at, unit) in units {
                let entry = calls.entry(unit);
                let Some(peer) = groups.all[unit.group].peer(entry) else {
                    // A receive from any rank.
                    messages.placed.insert((rank, at), Placed::default());
                    continue;
                };
                let (way, side) = match entry.op {
                    Op::Send => ((rank, peer), 0),
                    _ => ((peer, rank), 1),
                };
                let channel = channels.entry((unit.group, way.0, way.1)).or_default();
                channel[side].push((at, entry.seq));
            }
        }
        let whole: BTreeSet<u32> =
            job.ranks.iter().filter(|(_, dump)| dump.is_whole).map(|(&rank, _)| rank).collect();
        for ((group, sender, receiver), channel) in channels {
            let both = whole.contains(&sender) && whole.contains(&receiver);
            // Messages that could not be read are unknown.
            let is_read = |rank: &u32| job.ranks.get(rank).is_some_and(|it| !it.is_partial());
            let seen = is_read(&sender) && is_read(&receiver);
            let from = if both {
                None
            } else if seen && groups.all[group].is_pair(sender, receiver) {
                Some(first_common(&channel))
            } else {
                continue;
            };
            // Where complete calls are left out, a message that one side lacks may be complete there.
            let ends = [sender, receiver].map(|rank| job.ranks.get(&rank));
            let is_listed = ends.iter().flatten().all(|dump| dump.is_contiguous);
            let numbered = channel.map(|side| -> Vec<(usize, u64)> {
                let counted = side.into_iter().filter(|(_, seq)| from.is_none_or(|it| *seq >= it));
                let numbered = (1..).zip(counted);
                numbered
                    .map(|(nth, (at, seq))| (at, if from.is_some() { seq } else { nth }))
                    .collect()
            });
            let numbers = numbered.each_ref().map(|side| -> BTreeMap<u64, usize> {
                side.iter().map(|&(at, number)| (number, at)).collect()
            });
            let [sends, receives] = numbers;
            let sides = [(sender, receiver, receives), (receiver, sender, sends)];
            for ((rank, peer, others), side) in sides.into_iter().zip(numbered) {
                for (at, seq) in side {
                    let partner = others.get(&seq).copied();
                    if partner.is_some() || is_listed {
                        let placed = Placed { peer: Some(peer), seq, partner };
                        messages.placed.insert((rank, at), placed);
                    }
                }
            }
        }
        messages
    }

    /// Completes messages that their peers have completed: none is complete on one side alone.
    pub(in super::super) fn complete(&self, calls: &mut BTreeMap<u32, Calls<'_>>) {
        for (&(rank, at), placed) in &self.placed {
            let partner = placed.peer.zip(placed.partner);
            let of_peer = partner.and_then(|(peer, at)| calls.get(&peer)?.units.get(at));
            let is_complete = of_peer.is_some_and(|it| it.is_complete);
            let own = calls.get_mut(&rank).and_then(|it| it.units.get_mut(at));
            if let Some(own) = own.filter(|_| is_complete) {
                own.is_complete = true;
            }
        }
    }

    /// A message, if it can be counted.
    pub(in super::super) fn placed(&self, rank: u32, at: usize) -> Option<Placed> {
        self.placed.get(&(rank, at)).copied()
    }
}

impl Placed {
    /// The only message between two ranks that is passed to the engine.
    pub(in super::super) const fn only(peer: Option<u32>) -> Self {
        Self { peer, seq: 0, partner: None }
    }

    /// Sets peer and number of the call.
    pub(in super::super) const fn apply(self, call: &mut Call) {
        call.peer = self.peer;
        call.seq = self.seq;
    }
}

/// The number from which on both sides are known. A side without entries has completed none of
/// those that the other still shows.
fn first_common(channel: &Channel) -> u64 {
    let first = |side: &[(usize, u64)]| side.iter().map(|(_, seq)| *seq).min();
    let known = channel.iter().filter_map(|side| first(side));
    known.max().unwrap_or(0)
}
