//! Closed cycles of waits whose ranks have made their calls in different orders.

use std::collections::{BTreeMap, BTreeSet};

use ddp_doctor_diagnosis::input::provenance::Disagreement;

use super::WaitGraph;
use super::graph::{Need, Vertex};

impl WaitGraph<'_> {
    /// Closed cycles of waits in which each rank is known to have made its calls in one order, and
    /// ranks lack calls that others made before.
    pub(super) fn contradictions(&self) -> Vec<Disagreement> {
        let mut by_cycle: BTreeMap<usize, Disagreement> = BTreeMap::new();
        let mut unclear: BTreeSet<usize> = BTreeSet::new();
        // Ranks with a call that may need any member of its group, by cycle.
        let mut vague: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
        for (&rank, first) in &self.incomplete.first {
            let Some(cycle) = self.cycle_of(rank) else {
                continue;
            };
            if !self.incomplete.calls[&rank].one_stream || self.incomplete.lost.contains(&rank) {
                unclear.insert(cycle);
            }
            let found = by_cycle.entry(cycle).or_default();
            found.ranks.insert(rank);
            for (at, call) in first {
                if !self.incomplete.is_known(rank, *at) {
                    vague.entry(cycle).or_default().insert(rank);
                }
                for edge in self.graph.get(&Vertex::Call(*call)).into_iter().flatten() {
                    match edge.need {
                        Need::Missing | Need::Unreceived => {
                            found.waiting.insert(rank);
                        }
                        Need::Unclear => {
                            unclear.insert(cycle);
                        }
                        Need::Behind => {}
                    }
                }
            }
        }
        for (from, edges) in &self.graph {
            let Some(found) = self.component.get(from).and_then(|own| by_cycle.get_mut(own)) else {
                continue;
            };
            for edge in edges {
                if let (Need::Missing | Need::Unreceived, Vertex::Rank(rank)) = (edge.need, edge.to)
                {
                    found.missing.insert(rank);
                }
            }
        }
        let found = by_cycle.into_iter().filter(|(cycle, it)| {
            // The engine does not follow the waits of these ranks. They may be accused alone.
            let are_odd = vague.get(cycle).is_none_or(|vague| {
                it.sides().is_some_and(|(odd, _)| vague.is_subset(&odd.into_iter().collect()))
            });
            are_odd && !unclear.contains(cycle) && !it.waiting.is_empty()
        });
        found.map(|(_, it)| it).collect()
    }
}
