//! Offsets between the clocks of ranks.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::Model;

/// How far the clocks of ranks may be apart.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// Maximum offset between the clocks of two hosts.
    uncertainty: Duration,
    /// Number of the host by rank, if there are several.
    hosts: BTreeMap<u32, u32>,
    /// Number of changes of the ranks of processes that are included.
    changes: u64,
}

impl Clocks {
    pub(super) fn of(model: &Model) -> Self {
        let mut clocks = Self::default();
        clocks.update(model);
        clocks
    }

    /// Returns whether anything has changed.
    pub(super) fn update(&mut self, model: &Model) -> bool {
        let uncertainty = model.clock_uncertainty();
        let changed = self.uncertainty != uncertainty;
        self.uncertainty = uncertainty;
        if uncertainty.is_zero() || self.changes == model.rank_changes {
            return changed;
        }
        self.changes = model.rank_changes;
        let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
        let processes = model.ranks.keys();
        let processes = processes.filter_map(|&rank| Some((rank, model.process_of(rank)?)));
        let hosts = processes.map(|(rank, process)| {
            let next = numbers.len() as u32;
            (rank, *numbers.entry(&process.host).or_insert(next))
        });
        let hosts = hosts.collect();
        let moved = self.hosts != hosts;
        self.hosts = hosts;
        changed || moved
    }

    /// Maximum offset between the clocks of two ranks.
    pub(super) fn apart(&self, one: u32, other: u32) -> Duration {
        let is_local = self.uncertainty.is_zero()
            || one == other
            || self.hosts.get(&one) == self.hosts.get(&other);
        if is_local { Duration::ZERO } else { self.uncertainty }
    }
}
