//! The graph of waits of ranks and calls.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::groups::GroupAt;

/// Ranks of which some wait in calls that the others left out.
#[derive(Debug, Default)]
pub(super) struct Contradiction {
    /// All ranks that wait for each other.
    pub(super) ranks: BTreeSet<u32>,
    /// Ranks that wait in a call that another one has not made.
    pub(super) waiting: BTreeSet<u32>,
    /// Ranks that have not made such a call.
    pub(super) missing: BTreeSet<u32>,
}

impl Contradiction {
    /// The smaller side and the larger one; `None` if they are of one size or have a rank in common.
    pub(super) fn sides(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        let list = |ranks: &BTreeSet<u32>| ranks.iter().copied().collect::<Vec<u32>>();
        let (waiting, missing) = (list(&self.waiting), list(&self.missing));
        let are_apart = self.waiting.is_disjoint(&self.missing);
        match waiting.len().cmp(&missing.len()) {
            Ordering::Less if are_apart => Some((waiting, missing)),
            Ordering::Greater if are_apart => Some((missing, waiting)),
            _ => None,
        }
    }
}

/// A call that ranks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Call {
    Collective(GroupAt, u64),
    /// A message: its rank and the index of its call.
    Message(u32, usize),
}

/// A node of the graph of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    Rank(u32),
    Call(Call),
}

/// Why a call needs a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// The rank has not made the call.
    Missing,
    /// The rank has not received a message. Its sender may go on nevertheless.
    Unreceived,
    /// The rank has made the call, and is busy with an earlier one.
    Behind,
    /// The progress of the rank is unknown.
    Unclear,
}

/// An edge of the graph of waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) to: Node,
    pub(super) need: Need,
}

/// Edges by node: from a rank to its first incomplete calls, from a call to the ranks it needs.
pub(super) type Graph = BTreeMap<Node, Vec<Edge>>;

/// Components of the graph with cycles that no wait leaves.
pub(super) fn closed(graph: &Graph, component: &BTreeMap<Node, usize>) -> BTreeSet<usize> {
    let of = |node: &Node| component.get(node).copied();
    let waiting = graph.iter().filter(|(_, edges)| !edges.is_empty());
    let mut closed: BTreeSet<usize> = waiting.filter_map(|(from, _)| of(from)).collect();
    for (from, edges) in graph {
        if edges.iter().any(|edge| of(&edge.to) != of(from)) {
            of(from).map(|own| closed.remove(&own));
        }
    }
    closed
}

/// The strongly connected component of each node, by two searches (Kosaraju).
pub(super) fn components(graph: &Graph) -> BTreeMap<Node, usize> {
    let mut backwards: BTreeMap<Node, Vec<Node>> = BTreeMap::new();
    for (&from, edges) in graph {
        backwards.entry(from).or_default();
        for edge in edges {
            backwards.entry(edge.to).or_default().push(from);
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
            if let Some(next) = edges(*node).get(*followed).map(|edge| edge.to) {
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
