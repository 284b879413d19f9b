//! Applies events to the model, by subject.

use ddp_doctor_proto::report::Timestamp;

use crate::input::event::{Event, ProcessId};
use crate::model::Model;
use crate::model::process::Process;

mod calls;
mod groups;
mod job;
mod processes;
mod training;

impl Model {
    /// Applies one event. Each subject takes its own events and returns all others. `None` stands for
    /// an event that was taken, also if it changed nothing because its process or group is unknown.
    pub fn apply(&mut self, event: Event) {
        let left = self
            .apply_calls(event)
            .and_then(|event| self.apply_training(event))
            .and_then(|event| self.apply_groups(event))
            .and_then(|event| self.apply_observations(event))
            .and_then(|event| self.apply_processes(event))
            .and_then(|event| self.apply_job(event));
        debug_assert!(left.is_none(), "no subject takes {left:?}");
    }

    /// The process, after a record of it was counted.
    fn recorded(&mut self, process: ProcessId, at: Timestamp) -> Option<&mut Process> {
        let process = self.processes.get_mut(&process)?;
        process.count_record(at);
        Some(process)
    }
}
