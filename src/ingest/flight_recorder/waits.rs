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
        for (&rank, first) in &open.first {
            let is_counted = |call: &Call| match *call {
                Call::Message(rank, at) => messages.is_placed(rank, at),
                Call::Collective(..) => true,
            };
            let found = first.iter().filter(|(_, call)| leads_on(*call) || open.is_stuck(groups, *call));
            let found: Vec<_> = found.collect();
            if let Some((at, _)) = found.iter().find(|(_, call)| is_counted(call)) {
                waits.calls.insert(rank, *at);
            } else if !found.is_empty() {
                waits.unknown.insert(rank);
            } else if let Some(&own) = component.get(&Node::Rank(rank)) {
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
    /// The first collective and the first message of each rank, by index.
    first: BTreeMap<u32, Vec<(usize, Call)>>,
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
            let units = units.filter(|(_, it)| !it.is_complete && !is_on_host(&entry(it).group.backend));
            for (_, unit) in units.clone().filter(|(_, it)| !it.is_message) {
                let ranks = open.collectives.entry((unit.group, unit.seq)).or_default();
                ranks.insert(rank);
            }
            let collective = units.clone().find(|(_, it)| !it.is_message);
            let collective = collective.map(|(at, it)| (at, Call::Collective(it.group, it.seq)));
            // A send may complete before it is received.
            let messages = units.filter(|(_, it)| it.is_message);
            let message = messages.min_by_key(|(at, it)| (entry(it).op == Op::Send, *at));
            let message = message.map(|(at, _)| (at, Call::Message(rank, at)));
            let first: Vec<_> = collective.into_iter().chain(message).collect();
            if !first.is_empty() {
                open.first.insert(rank, first);
            }
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
        for (&rank, first) in &self.first {
            let own = first.iter().map(|(_, call)| (Node::Call(*call), true));
            graph.insert(Node::Rank(rank), own.collect());
            for &(at, call) in first {
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
        }
        graph
    }

    /// The members that have not made a collective; without any, those that have not completed it
    /// and are busy with another call.
    fn needs(&self, groups: &Groups, group: GroupAt, seq: u64) -> Vec<(Node, bool)> {
        let missing = missing(groups, group, seq);
        if !missing.is_empty() {
            return missing.into_iter().map(|rank| (Node::Rank(rank), true)).collect();
        }
        let call = Call::Collective(group, seq);
        let open = self.collectives.get(&(group, seq)).into_iter().flatten();
        let is_busy = |rank: &u32| {
            let mut first = self.first.get(rank).into_iter().flatten();
            first.any(|(_, it)| *it != call)
        };
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
            && members.all(|rank| {
                let first = self.first.get(rank);
                first.is_some_and(|first| first.len() == 1 && first[0].1 == call)
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
