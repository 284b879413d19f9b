//! Which ranks wait for their devices: what a dump does not record, and other ranks' dumps show.
//!
//! A rank waits if one of its first incomplete calls needs a rank that has not made it, that is busy
//! with an earlier call, or of which nothing is known. A rank that waits is not a culprit: that is at
//! the end of the chain of waits. The engine follows waits for ranks that have not made a call. What
//! it does not get is unknown to it, and so is the progress of ranks whose waits lead only there.
//!
//! A rank that has completed all of its calls waits for no device. Any call that it has not made is
//! one that others will wait for, whatever they wait for first.
//!
//! Of a rank that has completed all of its calls, although another rank has not completed the last of
//! these, it is unknown why it made no further one.
//!
//! Waits that lead in a cycle contradict each other: a rank made a call without an earlier one of the
//! ranks that wait for it. The smaller side is accused; if both are of one size, both are.
//!
//! `incomplete_calls` finds what each call needs, `graph` the cycles of waits, and `contradictions` the
//! ranks that disagree in a cycle.

use std::collections::{BTreeMap, BTreeSet};

use ddp_doctor_diagnosis::input::provenance::Disagreement;

use super::calls::{Calls, GroupAt, Groups, Messages, Unit};
use crate::flight_recorder::dumped_jobs::DumpedJob;
use graph::{AwaitedCall, Edge, Graph, Need, Vertex, closed, components};
use incomplete_calls::IncompleteCalls;

mod contradictions;
mod graph;
mod incomplete_calls;

/// The waits of ranks for their devices.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Index of the call that each rank waits for.
    pub(super) calls: BTreeMap<u32, usize>,
    /// Ranks that wait for something that the engine does not get, and ranks of which nothing is
    /// known: how far they would have come is unknown. With the indexes of their first incomplete
    /// calls.
    unknown: BTreeMap<u32, Vec<usize>>,
    /// Ranks whose call in `calls` is not known to be a first one.
    late: BTreeSet<u32>,
    /// First incomplete calls of ranks whose later ones their devices have not reached.
    first: BTreeMap<u32, Vec<usize>>,
    /// In each group, the first incomplete collective that ranks called with different contents.
    disagreeing: BTreeSet<(GroupAt, u64)>,
    /// Incomplete calls, by rank and index, that may be queued behind others.
    queued: BTreeSet<(u32, usize)>,
    /// Ranks whose calls contradict each other in their order.
    pub(super) contradictions: Vec<Disagreement>,
    /// Messages, by rank and index of the call, that the devices of both ranks are in.
    pub(super) transfers: Vec<(u32, usize)>,
    /// The dumps are whole rings. Otherwise they are of incomplete calls alone.
    are_rings: bool,
}

impl Waits {
    /// Whether a rank waits for nothing, and its ring would contain the calls that others wait for.
    pub(super) fn shows_all_calls(&self, rank: u32) -> bool {
        self.are_rings && !self.calls.contains_key(&rank)
    }

    /// Whether the engine does not get all incomplete calls of a rank.
    pub(super) fn hides_calls(&self, rank: u32) -> bool {
        self.unknown.contains_key(&rank) || self.late.contains(&rank)
    }

    /// Whether calls of this place disagree. They can never match, whatever the ranks wait for.
    pub(super) fn disagree(&self, unit: &Unit) -> bool {
        !unit.is_message && self.disagreeing.contains(&(unit.group, unit.seq))
    }

    /// Whether an incomplete call is one that its rank may wait for, as far as that is known.
    pub(super) fn may_be_first(&self, rank: u32, at: usize) -> bool {
        if self.queued.contains(&(rank, at)) {
            return self.calls.get(&rank) == Some(&at);
        }
        if self.late.contains(&rank) {
            return self.calls.get(&rank) == Some(&at);
        }
        let first = self.unknown.get(&rank).or(self.first.get(&rank));
        first.is_none_or(|first| first.contains(&at))
    }

    /// Whether all calls of a rank that the engine does not get are later than those that it gets.
    pub(super) fn hides_later_calls(&self, rank: u32) -> bool {
        self.first.contains_key(&rank)
    }

    pub(super) fn new(
        job: &DumpedJob,
        groups: &Groups,
        calls: &BTreeMap<u32, Calls<'_>>,
        messages: &Messages,
    ) -> Self {
        WaitGraph::new(IncompleteCalls::new(job, groups, calls, messages)).waits()
    }
}

/// The graph of waits, and what follows from it.
struct WaitGraph<'a> {
    incomplete: IncompleteCalls<'a>,
    graph: Graph,
    component: BTreeMap<Vertex, usize>,
    closed: BTreeSet<usize>,
    /// Components with messages.
    with_messages: BTreeSet<usize>,
    /// For each rank, its first incomplete call that lacks an idle rank.
    late: BTreeMap<u32, usize>,
}

impl<'a> WaitGraph<'a> {
    fn new(incomplete: IncompleteCalls<'a>) -> Self {
        let graph = incomplete.graph();
        let component = components(&graph);
        let is_message = |vertex: &Vertex| matches!(vertex, Vertex::Call(AwaitedCall::Message(..)));
        let with_messages = component.iter().filter(|(vertex, _)| is_message(vertex));
        Self {
            with_messages: with_messages.map(|(_, own)| *own).collect(),
            closed: closed(&graph, &component),
            late: incomplete.late(),
            incomplete,
            graph,
            component,
        }
    }

    fn waits(&self) -> Waits {
        let contradictions = self.contradictions();
        let contradicting: BTreeSet<u32> =
            contradictions.iter().flat_map(|it| &it.ranks).copied().collect();
        let unclear = self.unclear(&contradicting);
        let ranks = unclear.iter().filter_map(|it| match it {
            Vertex::Rank(rank) => Some(*rank),
            Vertex::Call(_) | Vertex::Members(..) => None,
        });
        let unknown: BTreeSet<u32> = ranks.collect();
        let mut waits = Waits {
            are_rings: self.incomplete.are_rings,
            disagreeing: self.incomplete.first_disagreeing(),
            queued: self.incomplete.queued.clone(),
            transfers: self.transfers(),
            ..Waits::default()
        };
        for (&rank, first) in &self.incomplete.first {
            let lacking = first.iter().filter(|(_, call)| !unclear.contains(&Vertex::Call(*call)));
            let receives = |it: &&(usize, AwaitedCall)| !self.incomplete.is_send(rank, it.0);
            let first_lacking = lacking.clone().find(receives).or(lacking.clone().next());
            if let Some(at) = self.incomplete.disagreeing_of(rank) {
                waits.calls.insert(rank, at);
                waits.first.insert(rank, self.given(rank, first));
            } else if unknown.contains(&rank) {
                waits.unknown.insert(rank, self.given(rank, first));
            } else if contradicting.contains(&rank) {
                waits.calls.extend(self.awaited(rank, first).map(|at| (rank, at)));
                let first = first.iter().map(|(at, _)| *at);
                waits.first.insert(rank, first.collect());
            } else if let Some((at, _)) = first_lacking {
                waits.calls.insert(rank, *at);
            } else if let Some(at) = self.late.get(&rank) {
                waits.calls.insert(rank, *at);
                waits.late.insert(rank);
            }
        }
        for rank in unknown {
            waits.unknown.entry(rank).or_default();
        }
        waits.contradictions = contradictions;
        waits
    }

    /// A message of each rank whose device waits for nothing but messages that both ranks are in.
    fn transfers(&self) -> Vec<(u32, usize)> {
        let is_under_way = |call: &AwaitedCall| {
            let is_known = |rank, at| {
                self.incomplete.messages.placed(rank, at).is_some_and(|it| it.partner.is_some())
            };
            matches!(*call, AwaitedCall::Message(rank, at) if is_known(rank, at))
                && self.graph.get(&Vertex::Call(*call)).is_some_and(Vec::is_empty)
        };
        let of_rank = |(&rank, first): (&u32, &Vec<(usize, AwaitedCall)>)| {
            let mut running =
                first.iter().filter(|it| !self.incomplete.queued.contains(&(rank, it.0)));
            let (at, _) = *running.clone().next()?;
            running.all(|(_, call)| is_under_way(call)).then_some((rank, at))
        };
        self.incomplete.first.iter().filter_map(of_rank).collect()
    }

    /// Of the first calls of a rank in a cycle of waits, the one that keeps it there: one that others
    /// have not made, or else one that others are not in yet.
    fn awaited(&self, rank: u32, first: &[(usize, AwaitedCall)]) -> Option<usize> {
        let edges = |call: AwaitedCall| self.graph.get(&Vertex::Call(call)).into_iter().flatten();
        let need = |call: AwaitedCall| edges(call).map(|it| it.need).min();
        let waiting = first.iter().filter(|(_, call)| need(*call).is_some());
        let call =
            waiting.min_by_key(|(at, call)| (need(*call), self.incomplete.is_send(rank, *at)));
        call.map(|(at, _)| *at)
    }

    /// The incomplete calls of a rank of unknown progress that the engine gets: the first ones, and
    /// those after a first one that disagrees with that of another rank, which show the order of
    /// calls. All, if streams wait for each other in collectives, which the engine follows.
    fn given(&self, rank: u32, first: &[(usize, AwaitedCall)]) -> Vec<usize> {
        let is_followed = |cycle: usize| !self.with_messages.contains(&cycle);
        let open = self.incomplete.of_rank(rank);
        if self.cycle_of(rank).is_some_and(is_followed) {
            return open.map(|(at, _)| at).collect();
        }
        // The first call in each group that disagrees with that of another rank.
        let mut disagreeing: BTreeMap<GroupAt, u64> = BTreeMap::new();
        for (_, call) in first {
            if let AwaitedCall::Collective(group, seq) = *call
                && self.incomplete.disagreeing.contains(&(group, seq))
            {
                let least = disagreeing.entry(group).or_insert(seq);
                *least = seq.min(*least);
            }
        }
        let is_given = |&(at, unit): &(usize, &Unit)| {
            let is_later = || disagreeing.get(&unit.group).is_some_and(|seq| *seq < unit.seq);
            first.binary_search_by_key(&at, |it| it.0).is_ok() || !unit.is_message && is_later()
        };
        open.filter(is_given).map(|(at, _)| at).collect()
    }

    /// The closed cycle of waits that a rank is in.
    fn cycle_of(&self, rank: u32) -> Option<usize> {
        let own = self.component.get(&Vertex::Rank(rank)).copied();
        own.filter(|own| self.closed.contains(own))
    }

    /// Ranks whose progress is unknown, apart from those that contradict each other, and calls that lack only such ranks.
    fn unclear(&self, contradicting: &BTreeSet<u32>) -> BTreeSet<Vertex> {
        // Number of edges of each vertex that lead on to others than these.
        let mut leading: BTreeMap<Vertex, usize> = BTreeMap::new();
        let mut backwards: BTreeMap<Vertex, Vec<Vertex>> = BTreeMap::new();
        for (&from, edges) in &self.graph {
            let edges = edges.iter().filter(|edge| self.leads_on(from, edge));
            leading.insert(from, edges.clone().count());
            for edge in edges {
                backwards.entry(edge.to).or_default().push(from);
            }
        }
        let is_known = |vertex: Vertex| {
            let Vertex::Rank(rank) = vertex else {
                return false;
            };
            contradicting.contains(&rank)
                || self.late.contains_key(&rank)
                || self.incomplete.disagreeing_of(rank).is_some()
        };
        let ends = leading.iter().filter(|(vertex, count)| **count == 0 && !is_known(**vertex));
        let mut open: Vec<Vertex> = ends.map(|(vertex, _)| *vertex).collect();
        open.extend(self.incomplete.unseen().map(Vertex::Rank));
        let mut unclear: BTreeSet<Vertex> = BTreeSet::new();
        while let Some(vertex) = open.pop() {
            if !unclear.insert(vertex) {
                continue;
            }
            for from in backwards.get(&vertex).into_iter().flatten() {
                if let Some(count) = leading.get_mut(from) {
                    *count -= 1;
                    if *count == 0 && !is_known(*from) {
                        open.push(*from);
                    }
                }
            }
        }
        unclear
    }

    /// Whether an edge leads to a call, or from one to ranks that it lacks.
    fn leads_on(&self, from: Vertex, edge: &Edge) -> bool {
        match edge.need {
            Need::Missing => true,
            Need::Unreceived => self.component.get(&edge.to) != self.component.get(&from),
            Need::Behind => matches!(edge.to, Vertex::Call(_)),
            Need::Unclear => false,
        }
    }
}
