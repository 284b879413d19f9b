//! What is known of the ranks of a job as events for the engine.
//!
//! [`evidence`] adds them by subject: `startup`, `collectives`, `endings`, `models`, and the `outcome` of the job.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::{Event, GroupInfo, NoteText, ProcessId, Unstated};
use ddp_doctor_diagnosis::model::TEXT_LAYER;
use ddp_doctor_diagnosis::words::Ranks;
use ddp_doctor_proto::NoteKind;
use ddp_doctor_proto::report::Timestamp;

use super::Log;
use super::folders::launch_of;
use super::job::{EARLIER, LoggedJob, Topic, before};
use crate::process;

mod collectives;
mod endings;
mod models;
mod outcome;
mod places;
mod startup;

/// What the logs of a job state, for the engine.
#[derive(Debug)]
pub struct Evidence {
    /// The events, in order.
    pub events: Vec<Event>,
    /// When the text ends.
    pub ends: Timestamp,
    /// The shortest wait that the text itself calls too long.
    pub timeout: Option<Duration>,
}

/// Turns the facts of all logs of one job into events.
#[must_use]
pub fn evidence(logs: &[Log]) -> Evidence {
    let mut job = LoggedJob::of_logs(logs);
    job.drop_consequences(false);
    job.drop_aborts();
    job.open(logs);
    let is_named = startup::add_joins(&mut job);
    let differ = collectives::add_compared_calls(&mut job);
    job.note_losses(is_named, differ);
    startup::add_devices(&mut job);
    job.name_reductions();
    collectives::add_calls(&mut job);
    collectives::add_last_calls(&mut job);
    job.add_statements();
    job.add_ends();
    job.add_unplaced_failures();
    job.add_models();
    job.add_interruption();
    job.note_network();
    job.note_reports();
    job.close()
}

impl LoggedJob {
    /// The processes of all ranks.
    fn open(&mut self, logs: &[Log]) {
        let begins = before(self.begins(), EARLIER);
        // Several files are those of their folder, which may be the current one; torchrun has one for each launch.
        let path = logs.first().and_then(|log| std::path::absolute(&log.path).ok());
        let name = path
            .as_deref()
            .and_then(|path| match (launch_of(path), logs) {
                (Some(launch), _) => launch.file_name().map(OsStr::to_owned),
                (None, [_]) => path.file_stem().map(OsStr::to_owned),
                (None, _) => Some(path.parent()?.file_name()?.to_owned()),
            })
            .map_or_else(|| "job".into(), |it| it.to_string_lossy().into_owned());
        let mut hosts: Vec<Arc<str>> = self.ranks.keys().map(|&rank| self.host(rank)).collect();
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.is_empty() {
            hosts.push(Arc::default());
        }
        for host in hosts {
            let started = Event::JobStarted { job: name.clone(), attempt: 0, host, at: begins };
            self.events.push((begins, started));
        }
        let mut ranks: Vec<Option<u32>> = self.ranks.keys().map(|&rank| Some(rank)).collect();
        if ranks.is_empty() {
            // Some process wrote the text.
            ranks.push(None);
        }
        for rank in ranks {
            let known = rank.and_then(|rank| self.names.processes.get(&rank));
            let pid = known.and_then(|it| it.1).unwrap_or(0);
            self.join(process(rank.unwrap_or(0)), rank, pid, begins, 0);
            if let Some(name) = rank.and_then(|rank| self.names.worker_of(rank)) {
                let named = Event::WorkerNamed { process: process(rank.unwrap_or(0)), name };
                self.events.push((begins, named));
            }
        }
    }

    fn join(
        &mut self,
        process: ProcessId,
        rank: Option<u32>,
        pid: u32,
        at: Timestamp,
        restarts: u32,
    ) {
        let joined = Event::ProcessJoined {
            process,
            rank,
            world_size: self.names.world,
            host: rank.map(|rank| self.host(rank)).unwrap_or_default(),
            pid,
            layer: TEXT_LAYER.into(),
            world: Arc::default(),
            restarts,
            at,
        };
        self.events.push((at, joined));
    }

    fn host(&self, rank: u32) -> Arc<str> {
        let known = self.names.processes.get(&rank);
        known.and_then(|it| it.0.clone()).unwrap_or_default()
    }

    /// The group of all ranks, as far as the text names them.
    fn world(&self, name: &str, backend: &str) -> Arc<GroupInfo> {
        let highest = self.ranks.keys().next_back().map_or(0, |rank| rank + 1);
        let members = (0..self.names.world.unwrap_or(highest)).collect();
        Arc::new(GroupInfo {
            unstated: Unstated { members: self.names.world.is_none(), ..Unstated::default() },
            ..GroupInfo::c10d(name, "default_pg", backend, members)
        })
    }

    /// The events in order, and the end of the text.
    fn close(mut self) -> Evidence {
        let has_succeeded = self.add_success();
        let mut notes = std::mem::take(&mut self.notes);
        // Ranks are lost by a difference.
        notes.sort_by_key(|it| it.0 != Topic::Difference);
        if notes.iter().any(|it| it.0 == Topic::Platform) {
            notes.sort_by_key(|it| it.0.is_of_consequences());
        }
        let notes = notes.into_iter().map(|(_, text)| text);
        for text in notes.chain(self.joins.notes()) {
            self.events.push((self.begins(), note(text, self.begins())));
        }
        self.events.sort_by_key(|(at, _)| *at);
        let mut events: Vec<Event> = self.events.into_iter().map(|(_, event)| event).collect();
        for (&rank, known) in &self.ranks {
            if known.ended.is_none() && !has_succeeded {
                let waits = known.waits.values().chain(&known.runs);
                let given_up =
                    waits.map(|waiting| waiting.at).chain(self.joins.gave_up(rank)).max();
                events.push(Event::Unwatched {
                    process: process(rank),
                    since: given_up.unwrap_or(self.ends),
                    read_whole: true,
                    exit: known.ended_later.unwrap_or_default(),
                });
            }
        }
        if !has_succeeded {
            events.push(Event::EvidenceEnded { at: self.ends });
        }
        let waits = self
            .ranks
            .values()
            .flat_map(|rank| rank.waits.values())
            .map(|it| it.at.since(it.since));
        Evidence { events, ends: self.ends, timeout: waits.chain(self.joins.timeouts()).min() }
    }
}

/// A note on the job as a whole.
pub(super) fn note(text: NoteText, at: Timestamp) -> Event {
    Event::Note { process: None, kind: NoteKind::Unreadable, rank: None, pid: None, text, at }
}

/// A group without a name. Two groups of the same members are different ones if the text states the numbers
/// of the calls of one alone.
fn unnamed_group(backend: &str, members: Vec<u32>, is_numbered: bool) -> GroupInfo {
    let mut group = GroupInfo::c10d("", "", backend, members);
    group.key.ordinal = u32::from(!is_numbered);
    group.unstated = Unstated { name: true, numbers: !is_numbered, members: true };
    group
}

/// "ranks 0–3" and "was" or "were".
fn were(ranks: &[u32]) -> String {
    let verb = if ranks.len() == 1 { "was" } else { "were" };
    format!("{} {verb}", Ranks(ranks))
}
