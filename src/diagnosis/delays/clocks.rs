//! Offsets between the clocks of ranks.

use std::time::Duration;

use crate::model::Model;

/// How far the clocks of ranks may be apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks<'a> {
    model: &'a Model,
    /// Maximum offset between the clocks of two hosts.
    uncertainty: Duration,
}

impl<'a> Clocks<'a> {
    pub(super) fn new(model: &'a Model) -> Self {
        Self { model, uncertainty: model.clock_uncertainty() }
    }

    /// Maximum offset between the clocks of two ranks.
    pub(super) fn apart(&self, one: u32, other: u32) -> Duration {
        let host = |rank: u32| self.model.process_of(rank).map(|process| &process.host);
        let is_local = self.uncertainty.is_zero() || one == other || host(one) == host(other);
        if is_local { Duration::ZERO } else { self.uncertainty }
    }
}
