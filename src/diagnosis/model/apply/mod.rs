//! Applies events to the model, by subject.

use ddp_doctor_proto::report::Timestamp;

use crate::evidence::event::{Event, ProcessId};
use crate::model::Model;
use crate::model::process::Process;

mod calls;
mod groups;
mod job;
mod processes;
mod training;

impl Model {
    /// Applies one event.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::JobStarted { .. }
            | Event::RankStarted(_)
            | Event::Note { .. }
            | Event::Clock { .. }
            | Event::Silent { .. }
            | Event::Interrupted { .. }
            | Event::EvidenceEnded { .. }
            | Event::JobEnded { .. } => self.apply_job(event),
            Event::ProcessJoined { .. }
            | Event::ProcessChanged { .. }
            | Event::Unwatched { .. }
            | Event::Exception { .. }
            | Event::ExitAnnounced { .. } => self.apply_processes(event),
            Event::Stacks { .. }
            | Event::RecordsLost { .. }
            | Event::Gap { .. }
            | Event::RecordsLeftOut { .. }
            | Event::Site { .. }
            | Event::Setting { .. }
            | Event::Memory { .. }
            | Event::Scheduled { .. } => self.apply_observations(event),
            Event::GroupJoined { .. }
            | Event::GroupDestroyed { .. }
            | Event::GroupTimeout { .. }
            | Event::Frontier { .. } => self.apply_groups(event),
            Event::Issued { .. }
            | Event::Returned { .. }
            | Event::WaitBegin { .. }
            | Event::WaitEnd { .. }
            | Event::Completed { .. }
            | Event::LowerCall { .. }
            | Event::Within { .. }
            | Event::Transfer { .. }
            | Event::Unawaited { .. } => self.apply_calls(event),
            Event::Step { .. }
            | Event::StepReached { .. }
            | Event::PhaseBegin { .. }
            | Event::PhaseEnd { .. }
            | Event::InputEnded { .. }
            | Event::Parameters { .. }
            | Event::Spent { .. } => self.apply_training(event),
        }
    }

    fn touch(&mut self, process: ProcessId, at: Timestamp, change: impl FnOnce(&mut Process)) {
        if let Some(process) = self.processes.get_mut(&process) {
            process.records += 1;
            process.last_at = at;
            change(process);
        }
    }
}
