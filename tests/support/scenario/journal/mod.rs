//! A scenario as the journals of its nodes.

use std::path::{Path, PathBuf};

use ddp_doctor::diagnosis::event::Event;
use ddp_doctor::diagnosis::model::STACK_LAYER;
use ddp_doctor::evidence::journal::Writer;
use ddp_doctor::postmortem;
use ddp_doctor_proto::report::{Report, Timestamp};
use ddp_doctor_proto::v1;
use v1::event::Kind;

use super::{START, Scenario, Script};
use messages::Encoder;

mod gpus;
mod messages;
mod process;
mod records;

impl Scenario {
    /// Writes a journal for each of `nodes` nodes; rank `r` runs on node `r % nodes`. The end of
    /// the job is recorded only if the scenario has it.
    pub(crate) fn journals(&self, dir: &Path, nodes: u32) -> Result<Vec<PathBuf>, String> {
        let script = Script::parse(self)?;
        (0..nodes)
            .map(|node| {
                let path = dir.join(format!("node-{node}.ddpj"));
                let mut writer = Writer::create(&path).map_err(|error| error.to_string())?;
                let mut encoder = Encoder::default();
                let mut write = |at: Timestamp, kinds: Vec<Kind>| {
                    let events = kinds.into_iter().map(|kind| v1::Event { kind: Some(kind) });
                    let report = v1::Report {
                        sent_unix_ns: at.0,
                        events: events.collect(),
                        ..v1::Report::default()
                    };
                    writer.append(&report).map_err(|error| error.to_string())
                };
                write(Timestamp(START), vec![self.hello(node)])?;
                for (at, rank, event) in &script.events {
                    // Every node reports the events of no rank; the first node reports the notes of no rank.
                    let is_note = matches!(event, Event::Note { .. });
                    let first = if is_note { Some(0) } else { None };
                    if (*rank).or(first).is_none_or(|rank| rank % nodes == node) {
                        write(*at, encoder.encode(event)?)?;
                    }
                }
                write(script.end, Vec::new())?;
                Ok(path)
            })
            .collect()
    }

    fn hello(&self, node: u32) -> Kind {
        Kind::Hello(v1::Hello {
            job: "scenario".into(),
            started_unix_ns: START,
            host: format!("node-{node}"),
            // No real boot has this id, so that the processes are not looked up on this machine.
            boot_id: format!("boot of node-{node}"),
            stall_after_s: self.stall_after.map_or(0, |seconds| seconds as u32),
            time_scale: self.time_scale,
            attached: self.layer == STACK_LAYER,
            ..v1::Hello::default()
        })
    }

    /// Whether its journals contain all events; those of the coordinator about nodes are in none.
    pub(crate) fn is_in_journals(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Fails if the journals of one or two nodes lead to another diagnosis than the live one.
    pub(super) fn check_journals(&self, live: &Report) -> Result<(), String> {
        if !self.is_in_journals() {
            return Ok(());
        }
        for nodes in [1, 2] {
            let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
            let journals = self.journals(dir.path(), nodes)?;
            let mut analysis = postmortem::analyze(&journals);
            if analysis.reports.len() != 1 || !analysis.remarks.is_empty() {
                return Err(format!("from {nodes} journals: {analysis:?}"));
            }
            let mut report = analysis.reports.remove(0);
            report.findings.retain(|finding| !reports_unobserved_end(finding));
            let (a, b) = (super::gist(live), super::gist(&report));
            if a != b {
                return Err(format!(
                    "from {nodes} journals it is another diagnosis:\n  live: {a:?}\n  so:   {b:?}"
                ));
            }
        }
        Ok(())
    }
}

/// Whether the finding reports that the end of ranks was not observed; most scenarios do not include
/// it.
fn reports_unobserved_end(finding: &ddp_doctor_proto::report::Finding) -> bool {
    finding.code == "DD901" && finding.summary.starts_with("it is unknown how")
}
