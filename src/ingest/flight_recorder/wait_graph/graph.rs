//! The graph of waits of ranks and calls.

use std::collections::{BTreeMap, BTreeSet};

use crate::flight_recorder::calls::GroupAt;

/// A call that ranks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AwaitedCall {
    Collective(GroupAt, u64),
    /// A message: its rank and the index of its call.
    Message(u32, usize),
}

/// A vertex of the graph of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Vertex {
    Rank(u32),
    Call(AwaitedCall),
    /// Members of a group that a collective with this number needs for one reason. Members that another such collective
    /// needs too are behind the vertex of that one: the number of edges is not the product of calls and members.
    Members(Members, GroupAt, u64),
}

/// Why a collective needs members of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Members {
    /// They have not made it.
    Missing,
    /// They are not known to have come that far.
    Unknown,
    /// They may have come that far.
    Possible,
}

impl Members {
    pub(super) const fn need(self) -> Need {
        match self {
            Self::Missing => Need::Missing,
            Self::Unknown | Self::Possible => Need::Unclear,
        }
    }
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
    pub(super) to: Vertex,
    pub(super) need: Need,
}

/// Edges by vertex: from a rank to its first incomplete calls, from a call to the ranks it needs, also through
/// [`Vertex::Members`].
pub(super) type Graph = BTreeMap<Vertex, Vec<Edge>>;

/// Components of the graph with cycles that no wait leaves.
pub(super) fn closed(graph: &Graph, component: &BTreeMap<Vertex, usize>) -> BTreeSet<usize> {
    let of = |vertex: &Vertex| component.get(vertex).copied();
    let waiting = graph.iter().filter(|(_, edges)| !edges.is_empty());
    let mut closed: BTreeSet<usize> = waiting.filter_map(|(from, _)| of(from)).collect();
    for (from, edges) in graph {
        if edges.iter().any(|edge| of(&edge.to) != of(from)) {
            of(from).map(|own| closed.remove(&own));
        }
    }
    closed
}

/// The strongly connected component of each vertex, by two searches (Kosaraju).
pub(super) fn components(graph: &Graph) -> BTreeMap<Vertex, usize> {
    let mut backwards: BTreeMap<Vertex, Vec<Vertex>> = BTreeMap::new();
    for (&from, edges) in graph {
        backwards.entry(from).or_default();
        for edge in edges {
            backwards.entry(edge.to).or_default().push(from);
        }
    }
    let edges = |vertex: Vertex| graph.get(&vertex).map_or(&[][..], Vec::as_slice);
    let mut order: Vec<Vertex> = Vec::new();
    let mut seen: BTreeSet<Vertex> = BTreeSet::new();
    for &start in backwards.keys() {
        if !seen.insert(start) {
            continue;
        }
        // Vertices with the number of their edges that were followed.
        let mut path = vec![(start, 0)];
        while let Some((vertex, followed)) = path.last_mut() {
            if let Some(next) = edges(*vertex).get(*followed).map(|edge| edge.to) {
                *followed += 1;
                if seen.insert(next) {
                    path.push((next, 0));
                }
            } else {
                order.push(*vertex);
                path.pop();
            }
        }
    }
    let mut component: BTreeMap<Vertex, usize> = BTreeMap::new();
    for (number, &start) in order.iter().rev().enumerate() {
        let mut open = vec![start];
        while let Some(vertex) = open.pop() {
            if component.contains_key(&vertex) {
                continue;
            }
            component.insert(vertex, number);
            open.extend(backwards.get(&vertex).into_iter().flatten());
        }
    }
    component
}
