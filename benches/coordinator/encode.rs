//! Events as messages of a node, by the encoder of the tests.

use std::collections::BTreeSet;

use ddp_doctor::diagnosis::event::{Event, ProcessId};
use ddp_doctor_proto::v1::event::Kind;

#[path = "../../tests/support/scenario/journal/gpus.rs"]
mod gpus;
#[path = "../../tests/support/scenario/journal/messages.rs"]
mod messages;
#[path = "../../tests/support/scenario/journal/process.rs"]
mod process;
#[path = "../../tests/support/scenario/journal/records.rs"]
mod records;

/// The processes of a node, as it describes them to a coordinator.
#[derive(Default)]
pub(crate) struct Encoder {
    messages: messages::Encoder,
    /// Processes whose memory was reported. It varies by less than a mebibyte from then on, which a node
    /// does not report.
    measured: BTreeSet<ProcessId>,
}

impl Encoder {
    /// The messages that lead to an event of the job, whose time begins at `began` in Unix ns.
    pub(crate) fn encode(&mut self, event: &Event, began: u64) -> Vec<Kind> {
        if let Event::Memory { process, .. } = event
            && !self.measured.insert(*process)
        {
            return Vec::new();
        }
        let mut kinds = self.messages.encode(event).unwrap();
        for kind in &mut kinds {
            match kind {
                // Times of records are relative to it.
                Kind::ProcessJoined(joined) => joined.anchor_unix_ns += began,
                Kind::SchedulingSample(sample) => sample.unix_ns += began,
                Kind::MemorySample(sample) => sample.unix_ns += began,
                _ => {}
            }
        }
        kinds
    }
}
