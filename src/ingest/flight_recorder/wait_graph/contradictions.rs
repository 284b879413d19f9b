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
                    match (edge.need, edge.to) {
                        (Need::Missing | Need::Unreceived, Vertex::Rank(other)) => {
                            found.waiting.insert(rank);
                            found.missing.insert(other);
                        }
                        (Need::Unclear, _) => {
                            unclear.insert(cycle);
                        }
                        _ => {}
                    }
                }
            }
        }
        let found = by_cycle.into_iter().filter(|(cycle, it)| {
            let mut vague = vague.get(cycle).into_iter().flatten();
            // The engine does not follow the waits of these ranks. They may be accused alone.
            let are_odd = vague.all(|rank| it.sides().is_some_and(|(odd, _)| odd.contains(rank)));
            are_odd && !unclear.contains(cycle) && !it.waiting.is_empty()
        });
        found.map(|(_, it)| it).collect()
    }
}
