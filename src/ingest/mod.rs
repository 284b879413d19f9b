//! Evidence that other tools left behind, as events for the engine.

use ddp_doctor_proto::report::Timestamp;

use crate::diagnosis::{Engine, Event};

pub mod flight_recorder;
pub mod logs;
pub mod stack_text;

/// Observes a job while its evidence is passed to an engine.
pub(crate) trait Observer {
    /// An event is about to be passed to the engine.
    fn event(&mut self, _event: &Event) {}

    /// The engine was evaluated at `now`. `changed`: its findings or rank states are others.
    fn evaluated(&mut self, engine: &Engine, now: Timestamp, changed: bool);
}
