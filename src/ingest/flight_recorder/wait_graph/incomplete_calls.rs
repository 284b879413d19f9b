//! Incomplete calls, and the ranks that each of them needs.

use std::collections::{BTreeMap, BTreeSet, btree_map};

use ddp_doctor_diagnosis::event;
use ddp_doctor_diagnosis::input::align;
use ddp_doctor_proto::Op;

use super::graph::{AwaitedCall, Edge, Graph, Members, Need, Vertex};
use crate::flight_recorder::calls::{Calls, GroupAt, Groups, Messages, Progress, Unit};
use crate::flight_recorder::dump::State;
use crate::flight_recorder::dumped_jobs::DumpedJob;

/// Incomplete calls.
pub(super) struct IncompleteCalls<'a> {
    pub(super) job: &'a DumpedJob,
    pub(super) groups: &'a Groups,
    pub(super) calls: &'a BTreeMap<u32, Calls<'a>>,
    pub(super) messages: &'a Messages,
    /// The first incomplete calls of each rank, by index: of all its calls, or of each stream. Calls
    /// that were launched together are first together.
    pub(super) first: BTreeMap<u32, Vec<(usize, AwaitedCall)>>,
    /// Ranks that have not completed each collective.
    collectives: BTreeMap<(GroupAt, u64), BTreeSet<u32>>,
    /// Collectives that ranks called with different contents.
    pub(super) disagreeing: BTreeSet<(GroupAt, u64)>,
    /// Incomplete calls, by rank and index, that have not started as far as recorded, while an earlier
    /// one of another stream is not complete. They may be queued behind it.
    pub(super) queued: BTreeSet<(u32, usize)>,
    /// Ranks whose first incomplete calls are unknown.
    pub(super) lost: BTreeSet<u32>,
    /// The dumps are whole rings. Otherwise they are of incomplete calls alone.
    pub(super) are_rings: bool,
}

impl<'a> IncompleteCalls<'a> {
    pub(super) fn new(
        job: &'a DumpedJob,
        groups: &'a Groups,
        calls: &'a BTreeMap<u32, Calls<'a>>,
        messages: &'a Messages,
    ) -> Self {
        let mut open = Self {
            job,
            groups,
            calls,
            messages,
            first: BTreeMap::new(),
            collectives: BTreeMap::new(),
            disagreeing: BTreeSet::new(),
            queued: BTreeSet::new(),
            lost: BTreeSet::new(),
            are_rings: calls.values().any(is_ring),
        };
        let mut contents: BTreeMap<(GroupAt, u64), event::Call> = BTreeMap::new();
        for (&rank, own) in calls {
            if open.has_lost_calls(rank, own) {
                open.lost.insert(rank);
                open.first.insert(rank, Vec::new());
            }
            // The launch of the first incomplete call on each stream.
            let mut streams: BTreeMap<Option<(GroupAt, Option<u32>)>, u32> = BTreeMap::new();
            let mut earliest = None;
            for (at, unit) in own.units.iter().enumerate() {
                if unit.is_complete {
                    continue;
                }
                let (_, launch) = *earliest.get_or_insert((at, unit.launch));
                let (call, peer) = if unit.is_message {
                    (AwaitedCall::Message(rank, at), open.peer(rank, unit))
                } else {
                    let place = (unit.group, unit.seq);
                    open.collectives.entry(place).or_default().insert(rank);
                    let entry = own.entry(unit);
                    let own = entry.content(&groups.all[unit.group].info);
                    match contents.entry(place) {
                        // Only counters show it.
                        _ if own.op == Op::Unspecified => {}
                        btree_map::Entry::Vacant(vacant) => {
                            vacant.insert(own);
                        }
                        btree_map::Entry::Occupied(first) => {
                            if align::compare(first.get(), &own).is_some() {
                                open.disagreeing.insert(place);
                            }
                        }
                    }
                    (AwaitedCall::Collective(unit.group, unit.seq), None)
                };
                let stream = (!own.one_stream).then_some((unit.group, peer));
                let is_earliest =
                    earliest == Some((at, unit.launch)) || launch != 0 && launch == unit.launch;
                let state = own.entry(unit).state;
                if !own.one_stream && !is_earliest && state != State::Started {
                    open.queued.insert((rank, at));
                }
                let is_first = match streams.get(&stream) {
                    None => true,
                    Some(&launch) => launch != 0 && launch == unit.launch,
                };
                streams.entry(stream).or_insert(unit.launch);
                if is_first && !open.lost.contains(&rank) {
                    open.first.entry(rank).or_default().push((at, call));
                }
            }
        }
        open
    }

    /// Whether incomplete calls of a rank have left its ring.
    fn has_lost_calls(&self, rank: u32, own: &Calls<'_>) -> bool {
        let dump = &self.job.ranks[&rank];
        let begins_open = own.units.first().is_some_and(|it| !it.is_complete);
        if self.are_rings && !dump.is_whole && !dump.shows_waits && begins_open {
            return true;
        }
        let has_lost = |group: GroupAt| {
            let of = &self.groups.all[group];
            // With messages in the group, its status counts whichever came last.
            let Some(progress) = of.progress.get(&rank).filter(|_| of.peers.is_empty()) else {
                return false;
            };
            let mut of_group = own.units.iter().filter(|it| it.group == group);
            let first = of_group.next();
            first.is_some_and(|it| !it.is_complete && it.seq > progress.completed + 1)
        };
        !dump.status.is_empty() && self.groups.of_rank(rank).iter().copied().any(has_lost)
    }

    /// The first call of a rank that disagrees with those of other ranks: it waits in that call.
    pub(super) fn disagreeing_of(&self, rank: u32) -> Option<usize> {
        let mut first = self.first.get(&rank).into_iter().flatten();
        let found = first.find(|(at, call)| {
            let is_queued = self.queued.contains(&(rank, *at));
            matches!(*call, AwaitedCall::Collective(group, seq)
                if !is_queued && self.disagreeing.contains(&(group, seq)))
        });
        found.map(|(at, _)| *at)
    }

    /// The first place of each group at which calls disagree.
    pub(super) fn first_disagreeing(&self) -> BTreeSet<(GroupAt, u64)> {
        let mut first: BTreeMap<GroupAt, u64> = BTreeMap::new();
        for &(group, seq) in &self.disagreeing {
            first.entry(group).or_insert(seq);
        }
        first.into_iter().collect()
    }

    /// The incomplete calls of a rank.
    pub(super) fn of_rank(&self, rank: u32) -> impl Iterator<Item = (usize, &Unit)> {
        let units = self.calls.get(&rank).map_or(&[][..], |own| &own.units);
        units.iter().enumerate().filter(|(_, it)| !it.is_complete)
    }

    /// Whether the operation of a call is known. Otherwise it may need any member of its group.
    pub(super) fn is_known(&self, rank: u32, at: usize) -> bool {
        let calls = &self.calls[&rank];
        calls.entry(&calls.units[at]).op != Op::Unspecified
    }

    fn peer(&self, rank: u32, unit: &Unit) -> Option<u32> {
        self.groups.all[unit.group].peer(self.calls[&rank].entry(unit))
    }

    pub(super) fn is_send(&self, rank: u32, at: usize) -> bool {
        let calls = &self.calls[&rank];
        calls.entry(&calls.units[at]).op == Op::Send
    }

    /// Ranks of which nothing is known.
    pub(super) fn unseen(&self) -> impl Iterator<Item = u32> {
        (0..self.groups.world_size).filter(|rank| self.is_unseen(*rank))
    }

    fn is_unseen(&self, rank: u32) -> bool {
        let dump = self.job.ranks.get(&rank);
        let is_lost = dump.is_none_or(|dump| dump.is_partial() && dump.status.is_empty());
        is_lost || self.is_ahead(rank)
    }

    /// Whether a rank has completed all of its calls, and another one not the last of these.
    fn is_ahead(&self, rank: u32) -> bool {
        let last = self.calls.get(&rank).and_then(|own| own.units.last());
        let is_open = |it: &Unit| self.collectives.contains_key(&(it.group, it.seq));
        !self.first.contains_key(&rank) && last.is_some_and(|it| !it.is_message && is_open(it))
    }

    pub(super) fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        let mut awaited: BTreeMap<GroupAt, BTreeSet<u64>> = BTreeMap::new();
        for (&rank, first) in &self.first {
            let edges =
                first.iter().map(|(_, call)| Edge { to: Vertex::Call(*call), need: Need::Behind });
            graph.insert(Vertex::Rank(rank), edges.collect());
            for &(at, call) in first {
                match call {
                    AwaitedCall::Collective(group, seq) => {
                        awaited.entry(group).or_default().insert(seq);
                    }
                    AwaitedCall::Message(..) => {
                        let need = self.need_of_message(rank, at);
                        graph.insert(Vertex::Call(call), need.into_iter().collect());
                    }
                }
            }
        }
        for (group, numbers) in awaited {
            self.add_needs_of_collectives(&mut graph, group, &numbers);
        }
        graph
    }

    /// Adds what collectives of a group need: the members that have not made them, and those that are busy with another
    /// call.
    fn add_needs_of_collectives(&self, graph: &mut Graph, group: GroupAt, numbers: &BTreeSet<u64>) {
        for &seq in numbers {
            let call = AwaitedCall::Collective(group, seq);
            let open = self.collectives.get(&(group, seq)).into_iter().flatten();
            let edges = open.filter_map(|&rank| {
                Some(Edge { to: Vertex::Rank(rank), need: self.need_of(rank, call)? })
            });
            graph.insert(Vertex::Call(call), edges.collect());
        }
        let of = &self.groups.all[group];
        // Ranks with the last collective that does not need them.
        let mut missing: Vec<(Option<u64>, u32)> = Vec::new();
        let mut unknown: Vec<(Option<u64>, u32)> = Vec::new();
        // Ranks with the last collective that needs them.
        let mut possible: Vec<(u64, u32)> = Vec::new();
        for &rank in &of.info.key.members {
            let Some(progress) = of.progress.get(&rank) else {
                unknown.push((None, rank));
                continue;
            };
            if self.is_unseen(rank) {
                unknown.push(((!progress.is_limit).then_some(progress.issued), rank));
                continue;
            }
            let last = self.last_made(rank, *progress);
            missing.push((last, rank));
            possible.extend(last.filter(|_| progress.is_limit).map(|last| (last, rank)));
        }
        missing.sort_unstable();
        unknown.sort_unstable();
        possible.sort_unstable_by(|a, b| b.cmp(a));
        let ascending = || numbers.iter().copied();
        let is_after = |last: Option<u64>, seq: u64| last < Some(seq);
        add_members(graph, (Members::Missing, group), ascending(), &missing, is_after);
        add_members(graph, (Members::Unknown, group), ascending(), &unknown, is_after);
        let descending = numbers.iter().rev().copied();
        let is_before = |last: u64, seq: u64| seq <= last;
        add_members(graph, (Members::Possible, group), descending, &possible, is_before);
    }

    /// The last collective of a group that a rank may have made. Those of an idle rank would be in its ring.
    fn last_made(&self, rank: u32, progress: Progress) -> Option<u64> {
        let has_none = progress.is_limit && self.are_rings && self.is_idle(rank);
        (!has_none).then_some(progress.issued)
    }

    /// Whether a rank has completed all of its calls.
    fn is_idle(&self, rank: u32) -> bool {
        self.calls.contains_key(&rank) && !self.first.contains_key(&rank) && !self.is_unseen(rank)
    }

    /// For each rank, its first incomplete call that lacks an idle rank.
    pub(super) fn late(&self) -> BTreeMap<u32, usize> {
        // The least that an idle rank has made in each group.
        let mut least: BTreeMap<GroupAt, Option<Option<u64>>> = BTreeMap::new();
        let least_made = |group: GroupAt| {
            let progress = self.groups.all[group].progress.iter();
            let idle = progress.filter(|(rank, _)| self.is_idle(**rank));
            idle.map(|(&rank, it)| self.last_made(rank, *it)).min()
        };
        let mut lacks = |rank: u32, at: usize, unit: &Unit| {
            if !unit.is_message {
                let least = least.entry(unit.group).or_insert_with(|| least_made(unit.group));
                return least.is_some_and(|last| last < Some(unit.seq));
            }
            let placed = self.messages.placed(rank, at);
            let peer = placed.filter(|it| it.partner.is_none()).and_then(|it| it.peer);
            peer.is_some_and(|peer| self.is_idle(peer)) && !self.is_send(rank, at)
        };
        let ranks = self.calls.keys().filter_map(|&rank| {
            let first = self.of_rank(rank).find(|(at, unit)| lacks(rank, *at, unit));
            first.map(|(at, _)| (rank, at))
        });
        ranks.collect()
    }

    /// The peer of a message, unless it is waiting for the same message.
    fn need_of_message(&self, rank: u32, at: usize) -> Option<Edge> {
        let peer = self.peer(rank, &self.calls[&rank].units[at])?;
        let partner = self.messages.placed(rank, at).map(|it| it.partner);
        let need = match partner {
            Some(None) if self.is_unseen(peer) => Need::Unclear,
            Some(None) if self.is_send(rank, at) => Need::Unreceived,
            Some(None) => Need::Missing,
            Some(Some(partner)) => self.need_of(peer, AwaitedCall::Message(peer, partner))?,
            // A message cannot be received for long and sent before, so that it is not sent yet.
            None if self.is_idle(peer) && !self.is_send(rank, at) => Need::Missing,
            None => Need::Unclear,
        };
        Some(Edge { to: Vertex::Rank(peer), need })
    }

    /// Why a call needs a rank that has made it; `None`: the device of the rank is in the call.
    fn need_of(&self, rank: u32, call: AwaitedCall) -> Option<Need> {
        let mut first = self.first.get(&rank).into_iter().flatten();
        match first.find(|(_, it)| *it == call) {
            None => Some(Need::Behind),
            Some((at, _)) => self.queued.contains(&(rank, *at)).then_some(Need::Unclear),
        }
    }
}

/// Adds the members that collectives of a group need for one reason. Each collective needs those of the one before, and
/// those that follow up to the first that it does not need.
fn add_members<T: Copy>(
    graph: &mut Graph,
    (members, group): (Members, GroupAt),
    numbers: impl Iterator<Item = u64>,
    ranks: &[(T, u32)],
    needs: impl Fn(T, u64) -> bool,
) {
    let need = members.need();
    let mut left = ranks.iter().peekable();
    let mut before = None;
    for seq in numbers {
        let mut edges = Vec::new();
        while let Some((_, rank)) = left.next_if(|(progress, _)| needs(*progress, seq)) {
            edges.push(Edge { to: Vertex::Rank(*rank), need });
        }
        if !edges.is_empty() {
            edges.extend(before.map(|to| Edge { to, need }));
            let own = Vertex::Members(members, group, seq);
            graph.insert(own, edges);
            before = Some(own);
        }
        let call = Vertex::Call(AwaitedCall::Collective(group, seq));
        graph.entry(call).or_default().extend(before.map(|to| Edge { to, need }));
    }
}

/// Whether a dump shows that it contains all of its ring: complete calls, or the end of a batch
/// without the batch.
fn is_ring(own: &Calls<'_>) -> bool {
    let first = own.entries.first();
    own.units.iter().any(|it| it.is_complete) || first.is_some_and(|it| it.ends_group)
}
