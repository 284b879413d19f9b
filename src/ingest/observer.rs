//! Whoever follows the evidence on its way to an engine.

use ddp_doctor_diagnosis::event::{CallId, ProcessId};
use ddp_doctor_diagnosis::{Engine, Event};
use ddp_doctor_proto::report::Timestamp;

/// Number of the process of a rank, in evidence that contains one process of each rank.
pub(crate) const fn process(rank: u32) -> ProcessId {
    ProcessId::new(0, rank + 1)
}

/// Observes a job while its evidence is passed to an engine.
pub trait Observer {
    /// An event is about to be passed to the engine.
    fn event(&mut self, _event: &Event) {}

    /// A call is complete, at this time if the evidence has it. The times at which it returned and was
    /// waited for are unknown.
    fn complete(&mut self, _process: ProcessId, _call: CallId, _at: Option<Timestamp>) {}

    /// Whether calls are shown that the diagnosis does not need.
    fn shows_all_calls(&self) -> bool {
        true
    }

    /// The engine was evaluated at `now`. `changed`: its findings or rank states are others.
    fn evaluated(&mut self, engine: &Engine, now: Timestamp, changed: bool);
}
