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
//! Waits that lead in a circle contradict each other: a rank made a call without an earlier one of the
//! ranks that wait for it. The smaller side is accused; if both are of one size, both are.
//!
//! `incomplete_calls` finds what each call needs, `graph` the cycles of waits, and `contradictions` the
//! ranks that disagree in a cycle.

use std::collections::{BTreeMap, BTreeSet};

use ddp_doctor_diagnosis::input::provenance::Disagreement;

use super::calls::{Calls, GroupAt, Groups, Messages, Unit};
use crate::flight_recorder::dumped_jobs::DumpedJob;
use graph::{AwaitedCall, Graph, Need, Vertex, closed, components};
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
    /// For each rank, its first incomplete call that lacks an idle rank.
    late: BTreeMap<u32, usize>,
}

impl<'a> WaitGraph<'a> {
    fn new(incomplete: IncompleteCalls<'a>) -> Self {
        let graph = incomplete.graph();
        let component = components(&graph);
        Self {
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
        let unknown = self.unknown(&contradicting);
        let mut waits = Waits {
            are_rings: self.incomplete.are_rings,
            disagreeing: self.incomplete.first_disagreeing(),
            queued: self.incomplete.queued.clone(),
            transfers: self.transfers(),
            ..Waits::default()
        };
        for (&rank, first) in &self.incomplete.first {
            let lacking = first.iter().filter(|(_, call)| self.lacks(*call, &unknown));
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
        let is_message = |vertex: &Vertex| matches!(vertex, Vertex::Call(AwaitedCall::Message(..)));
        let mut messages = self.graph.keys().filter(|it| is_message(it));
        let is_followed = |cycle| !messages.any(|it| self.component.get(it) == Some(&cycle));
        if self.cycle_of(rank).is_some_and(is_followed) {
            self.incomplete.of_rank(rank).map(|(at, _)| at).collect()
        } else {
            let is_given = |&(at, unit): &(usize, &Unit)| {
                first.iter().any(|it| it.0 == at) || self.follows(first, unit)
            };
            let open = self.incomplete.of_rank(rank).filter(is_given);
            open.map(|(at, _)| at).collect()
        }
    }

    /// Whether a collective is later in its group than one of these calls, and that one disagrees
    /// with the call of another rank.
    fn follows(&self, first: &[(usize, AwaitedCall)], unit: &Unit) -> bool {
        let earlier = (unit.group, 0)..(unit.group, unit.seq);
        let mut disagreeing = self.incomplete.disagreeing.range(earlier);
        let is_first = |call: AwaitedCall| first.iter().any(|it| it.1 == call);
        !unit.is_message
            && disagreeing.any(|&(group, seq)| is_first(AwaitedCall::Collective(group, seq)))
    }

    /// Whether a call lacks a rank of which something is known.
    fn lacks(&self, call: AwaitedCall, unknown: &BTreeSet<u32>) -> bool {
        let own = Vertex::Call(call);
        let mut edges = self.graph.get(&own).into_iter().flatten();
        edges.any(|edge| {
            let Vertex::Rank(rank) = edge.to else {
                return false;
            };
            let is_behind = match edge.need {
                Need::Missing => true,
                Need::Unreceived => self.component.get(&edge.to) != self.component.get(&own),
                Need::Behind | Need::Unclear => false,
            };
            is_behind && !unknown.contains(&rank)
        })
    }

    /// Whether a rank waits for a rank of which something is known.
    fn is_led_on(&self, rank: u32, unknown: &BTreeSet<u32>) -> bool {
        let mut first = self.incomplete.first.get(&rank).into_iter().flatten();
        self.late.contains_key(&rank)
            || self.incomplete.disagreeing_of(rank).is_some()
            || first.any(|(_, call)| self.lacks(*call, unknown))
    }

    /// The closed cycle of waits that a rank is in.
    fn cycle_of(&self, rank: u32) -> Option<usize> {
        let own = self.component.get(&Vertex::Rank(rank)).copied();
        own.filter(|own| self.closed.contains(own))
    }

    /// Ranks whose progress is unknown, apart from those that contradict each other.
    fn unknown(&self, contradicting: &BTreeSet<u32>) -> BTreeSet<u32> {
        let mut unknown: BTreeSet<u32> = self.incomplete.unseen().collect();
        loop {
            let ranks = self.incomplete.first.keys().copied();
            let new: Vec<u32> = ranks
                .filter(|rank| {
                    let is_known = unknown.contains(rank) || contradicting.contains(rank);
                    !is_known && !self.is_led_on(*rank, &unknown)
                })
                .collect();
            if new.is_empty() {
                return unknown;
            }
            unknown.extend(new);
        }
    }
}
