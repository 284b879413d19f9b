//! Which ranks wait for their devices: what a dump does not record, and other ranks' dumps show.
//!
//! A rank whose first incomplete call lacks a member waits for that member, sooner or later. A rank
//! whose first incomplete call has all of its members waits for those that are busy with another call.
//! A chain of such waits ends at the rank that caused them. A wait of the second kind that leads back
//! to its rank may be none: that rank may have stopped making calls. If this is true of several ranks,
//! none of them is accused.

use std::collections::{BTreeMap, BTreeSet};

use ddp_doctor_proto::Op;

use super::groups::{GroupAt, Groups};
use super::jobs::Job;
use super::messages::Messages;
use super::units::{Calls, Unit, is_on_host};

/// The waits of ranks for their devices.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Index of the call that each rank waits for.
    pub(super) calls: BTreeMap<u32, usize>,
    /// Ranks that may wait for calls which the engine does not get: how far they would have come is
    /// unknown.
    pub(super) unknown: BTreeSet<u32>,
}

/// A call that ranks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    Collective(GroupAt, u64),
    /// A message: its rank and the index of its call.
    Message(u32, usize),
}

/// A node of the graph of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Rank(u32),
    Call(Call),
}

/// Edges by node; `true`: the target is missing, `false`: it may be busy.
type Graph = BTreeMap<Node, Vec<(Node, bool)>>;

impl Waits {
    pub(super) fn of(
        job: &Job,
        groups: &Groups,
        calls: &BTreeMap<u32, Calls>,
        messages: &Messages,
    ) -> Self {
        let open = Open::of(job, calls);
        let graph = open.graph(job, groups, calls, messages);
        let component = components(&graph);
        let leads_on = |call: Call| {
            let own = Node::Call(call);
            let mut edges = graph.get(&own).into_iter().flatten();
            edges.any(|(to, is_missing)| *is_missing || component.get(to) != component.get(&own))
        };
        let mut waits = Self::default();
        // Ranks whose waits may all lead back to them, by component.
        let mut circular: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (&rank, &(at, call)) in &open.first {
            let is_counted = match call {
                Call::Message(rank, at) => messages.is_placed(rank, at),
                Call::Collective(..) => true,
            };
            let lacks_a_member = graph
                .get(&Node::Call(call))
                .into_iter()
                .flatten()
                .any(|it| it.1);
            let is_awaited = open.is_awaited(rank, groups);
            if lacks_a_member && is_counted {
                waits.calls.insert(rank, at);
            } else if is_awaited && (leads_on(call) || open.is_stuck(groups, call)) {
                waits.unknown.insert(rank);
            } else if let Some(&own) = component.get(&Node::Rank(rank)).filter(|_| is_awaited) {
                circular.entry(own).or_default().push(rank);
            }
        }
        let ambiguous = circular.into_values().filter(|ranks| ranks.len() > 1);
        waits.unknown.extend(ambiguous.flatten());
        waits
    }
}

/// Incomplete calls on devices.
struct Open {
    /// Index of the first collective of each rank; without one, of its first message.
    first: BTreeMap<u32, (usize, Call)>,
    /// Ranks that have not completed each collective.
    collectives: BTreeMap<(GroupAt, u64), BTreeSet<u32>>,
}

impl Open {
    fn of(job: &Job, calls: &BTreeMap<u32, Calls>) -> Self {
        let mut open = Self {
            first: BTreeMap::new(),
            collectives: BTreeMap::new(),
        };
        for (&rank, calls) in calls {
            let entries = &job.ranks[&rank].entries;
            let entry = |unit: &Unit| &entries[unit.entries.start];
            let units = calls.units.iter().enumerate();
            let units =
                units.filter(|(_, it)| !it.is_complete && !is_on_host(&entry(it).group.backend));
            for (_, unit) in units.clone().filter(|(_, it)| !it.is_message) {
                let ranks = open.collectives.entry((unit.group, unit.seq)).or_default();
                ranks.insert(rank);
            }
            let collective = units.clone().find(|(_, it)| !it.is_message);
            let collective = collective.map(|(at, it)| (at, Call::Collective(it.group, it.seq)));
            // Messages may be complete although the dump does not say so, sends above all.
            let messages = units.filter(|(_, it)| it.is_message);
            let message = messages.min_by_key(|(at, it)| (entry(it).op == Op::Send, *at));
            let message = message.map(|(at, _)| (at, Call::Message(rank, at)));
            open.first
                .extend(collective.or(message).map(|first| (rank, first)));
        }
        open
    }

    fn graph(
        &self,
        job: &Job,
        groups: &Groups,
        calls: &BTreeMap<u32, Calls>,
        messages: &Messages,
    ) -> Graph {
        let mut graph = Graph::new();
        for (&rank, &(at, call)) in &self.first {
            graph.insert(Node::Rank(rank), vec![(Node::Call(call), true)]);
            let edges = || match call {
                Call::Collective(group, seq) => self.needs(groups, group, seq),
                Call::Message(..) => {
                    let unit = &calls[&rank].units[at];
                    let entry = &job.ranks[&rank].entries[unit.entries.start];
                    let is_missing = entry.op != Op::Send && messages.is_lone(rank, at);
                    let peer = groups.all[unit.group].peer(entry);
                    let edge = peer.map(|peer| (Node::Rank(peer), is_missing));
                    edge.into_iter().collect()
                }
            };
            graph.entry(Node::Call(call)).or_insert_with(edges);
        }
        graph
    }

    /// The members that have not made a collective; without any, those that have not completed it
    /// and are busy with another call.
    fn needs(&self, groups: &Groups, group: GroupAt, seq: u64) -> Vec<(Node, bool)> {
        let missing = missing(groups, group, seq);
        if !missing.is_empty() {
            return missing
                .into_iter()
                .map(|rank| (Node::Rank(rank), true))
                .collect();
        }
        let call = Call::Collective(group, seq);
        let open = self.collectives.get(&(group, seq)).into_iter().flatten();
        let is_busy = |rank: &u32| self.first.get(rank).is_some_and(|(_, it)| *it != call);
        let busy = open.copied().filter(is_busy);
        busy.map(|rank| (Node::Rank(rank), false)).collect()
    }

    /// Whether all members are in a collective, and it is the first incomplete call of all of them.
    fn is_stuck(&self, groups: &Groups, call: Call) -> bool {
        let Call::Collective(group, seq) = call else {
            return false;
        };
        let mut members = groups.all[group].info.key.members.iter();
        missing(groups, group, seq).is_empty()
            && members.all(|rank| self.first.get(rank).is_some_and(|(_, it)| *it == call))
    }

    /// Whether a collective that is not complete lacks the rank.
    fn is_awaited(&self, rank: u32, groups: &Groups) -> bool {
        let mut of_rank = groups.of_rank(rank).iter();
        of_rank.any(|&group| {
            let progress = groups.all[group].progress.get(&rank);
            let next = progress.map_or(0, |it| it.issued) + 1;
            let mut later = self.collectives.range((group, next)..=(group, u64::MAX));
            later.next().is_some()
        })
    }
}

/// Members that have not made a collective.
fn missing(groups: &Groups, group: GroupAt, seq: u64) -> Vec<u32> {
    let of = &groups.all[group];
    let members = of.info.key.members.iter().copied();
    let is_missing = |rank: &u32| of.progress.get(rank).is_none_or(|it| it.issued < seq);
    members.filter(is_missing).collect()
}

/// The strongly connected component of each node, by two searches (Kosaraju).
fn components(graph: &Graph) -> BTreeMap<Node, usize> {
    let mut backwards: BTreeMap<Node, Vec<Node>> = BTreeMap::new();
    for (&from, edges) in graph {
        backwards.entry(from).or_default();
        for &(to, _) in edges {
            backwards.entry(to).or_default().push(from);
        }
    }
    let edges = |node: Node| graph.get(&node).map_or(&[][..], Vec::as_slice);
    let mut order: Vec<Node> = Vec::new();
    let mut seen: BTreeSet<Node> = BTreeSet::new();
    for &start in backwards.keys() {
        if !seen.insert(start) {
            continue;
        }
        // Nodes with the number of their edges that were followed.
        let mut path = vec![(start, 0)];
        while let Some((node, followed)) = path.last_mut() {
            if let Some(&(next, _)) = edges(*node).get(*followed) {
                *followed += 1;
                if seen.insert(next) {
                    path.push((next, 0));
                }
            } else {
                order.push(*node);
                path.pop();
            }
        }
    }
    let mut component: BTreeMap<Node, usize> = BTreeMap::new();
    for (number, &start) in order.iter().rev().enumerate() {
        let mut open = vec![start];
        while let Some(node) = open.pop() {
            if component.contains_key(&node) {
                continue;
            }
            component.insert(node, number);
            open.extend(backwards.get(&node).into_iter().flatten());
        }
    }
    component
}
