//! Offsets between the clocks of ranks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::model::Model;

/// How far the clocks of ranks may be apart.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// Maximum offset between the clocks of two hosts.
    uncertainty: Duration,
    /// Hosts by rank, if there are several.
    hosts: BTreeMap<u32, Arc<str>>,
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
        let host = |&rank: &u32| Some((rank, Arc::clone(&model.process_of(rank)?.host)));
        let hosts = model.ranks.keys().filter_map(host).collect();
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
