//! The engine: evidence in, findings out.

use std::time::Duration;

use ddp_doctor_proto::report::{Report, Timestamp};

pub mod event;

pub use event::Event;

/// What the engine is set up with.
#[derive(Clone, Debug)]
pub struct Config {
    /// A wait that nothing proves hopeless becomes a finding after this long.
    pub stall_after: Duration,
}

/// The state machine.
#[derive(Debug)]
pub struct Engine {
    _config: Config,
}

impl Engine {
    /// An engine that knows nothing yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { _config: config }
    }

    /// Takes one event. Cheap: nothing is concluded before [`Engine::poll_change`].
    pub fn handle(&mut self, _event: Event, _now: Timestamp) {}

    /// Time has passed.
    pub fn handle_timeout(&mut self, _now: Timestamp) {}

    /// When to call [`Engine::handle_timeout`] if no event comes before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        None
    }

    /// Concludes what can be concluded. Whether findings, verdict or the set of ranks changed since
    /// it was last asked; call it after a batch of events.
    pub fn poll_change(&mut self) -> bool {
        false
    }

    /// Everything known now: the report.
    #[must_use]
    pub fn report(&self, _now: Timestamp) -> Report {
        unimplemented!()
    }
}
