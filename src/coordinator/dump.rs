//! A request for the current stacks of all ranks.

use std::collections::BTreeSet;

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::{ProcessState, v1};
use tokio::sync::oneshot;
use tokio::time::Instant;
use v1::dump_part::Part;

use crate::diagnosis::event::ProcessId;
use crate::diagnosis::model::Process;
use crate::diagnosis::{Engine, Event};
use crate::evidence::{decode, stacks};

/// A request that has not been answered yet.
#[derive(Debug)]
pub(super) struct Dump {
    /// Processes whose nodes received the request.
    pub(super) requested: BTreeSet<ProcessId>,
    /// Processes among them whose stacks have not arrived.
    pub(super) pending: BTreeSet<ProcessId>,
    /// When the answer is sent even if stacks are missing.
    pub(super) until: Instant,
    /// Channel for the answer.
    pub(super) answer: oneshot::Sender<Vec<v1::DumpPart>>,
}

impl Dump {
    /// Processes an event: no further stacks are expected of a process that sent them or has ended.
    pub(super) fn observe(&mut self, event: &Event) {
        match event {
            Event::Stacks { process, .. }
            | Event::ProcessChanged {
                process,
                state: ProcessState::Dead,
                ..
            } => {
                self.pending.remove(process);
            }
            _ => {}
        }
    }

    /// The answer: the head, then every rank that was ever seen.
    pub(super) fn parts(&self, engine: &Engine) -> Vec<v1::DumpPart> {
        let report = engine.report();
        let head = v1::DumpHead {
            unix_ns: Timestamp::now().0,
            job: Some(v1::Job::from(&report.job)),
            missing_ranks: report.evidence.missing_ranks,
        };
        let mut parts = vec![Part::Head(head)];
        for rank in &report.ranks {
            let process = engine.model().process_of(rank.rank);
            let stacks = process.map_or(Err("its process is unknown"), |it| self.stacks_of(it));
            parts.push(Part::Rank(v1::RankStacks {
                status: Some(v1::RankStatus::from(rank)),
                trouble: stacks.as_ref().err().copied().unwrap_or_default().into(),
                stacks: stacks.ok(),
            }));
        }
        let part = |part| v1::DumpPart { part: Some(part) };
        parts.into_iter().map(part).collect()
    }

    /// Stacks of a process taken since the request, or why there are none.
    fn stacks_of(&self, process: &Process) -> Result<v1::Stacks, &'static str> {
        if process.has_ended() {
            return Err("it has ended");
        }
        if !self.requested.contains(&process.id) {
            return Err("its node is not connected");
        }
        let latest = process.stacks.last();
        match latest.filter(|_| !self.pending.contains(&process.id)) {
            Some(latest) => Ok(stacks::encode(
                decode::node_and_process(process.id).1,
                latest,
            )),
            None => Err("its node has not answered in time"),
        }
    }
}
