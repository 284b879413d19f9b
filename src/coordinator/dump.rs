//! A request for the current stacks of all ranks.

use std::collections::BTreeSet;

use ddp_doctor_diagnosis::event::{ProcessId, Stacks};
use ddp_doctor_diagnosis::model::Process;
use ddp_doctor_diagnosis::{Engine, Event};
use ddp_doctor_proto::ProcessState;
use ddp_doctor_proto::dump::Dump;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_report::dump::{of_job, of_rank};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A request that has not been answered yet.
#[derive(Debug)]
pub(super) struct DumpRequest {
    /// Processes whose nodes received the request.
    pub(super) requested: BTreeSet<ProcessId>,
    /// Processes among them whose stacks have not arrived.
    pub(super) pending: BTreeSet<ProcessId>,
    /// When the answer is sent even if stacks are missing.
    pub(super) until: Instant,
    /// Channel for the answer.
    pub(super) answer: oneshot::Sender<Dump>,
}

impl DumpRequest {
    /// Processes an event: no further stacks are expected of a process that sent them or has ended.
    pub(super) fn observe(&mut self, event: &Event) {
        match event {
            Event::Stacks { process, .. }
            | Event::ProcessChanged { process, state: ProcessState::Dead, .. } => {
                self.pending.remove(process);
            }
            _ => {}
        }
    }

    /// The answer: every rank that was ever seen.
    pub(super) fn contents(&self, engine: &Engine) -> Dump {
        let report = engine.report();
        let processes = report.ranks.iter().map(|rank| {
            let process = engine.model().process_of(rank.rank);
            let stacks = process.map_or(Err("its process is unknown"), |it| self.stacks_of(it));
            of_rank(rank, stacks)
        });
        Dump {
            processes: processes.collect(),
            ..of_job(Some(report.job), Timestamp::now(), report.evidence.missing_ranks)
        }
    }

    /// Stacks of a process taken since the request, or why there are none.
    fn stacks_of<'a>(&self, process: &'a Process) -> Result<&'a Stacks, &'static str> {
        if process.has_ended() {
            return Err("it has ended");
        }
        if !self.requested.contains(&process.id) {
            return Err("its node is not connected");
        }
        let latest = process.stacks.last();
        latest
            .filter(|_| !self.pending.contains(&process.id))
            .map(|stacks| &**stacks)
            .ok_or("its node has not answered in time")
    }
}
