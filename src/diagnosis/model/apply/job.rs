//! Events about the job and its nodes.

use ddp_doctor_proto::report::Timestamp;

use crate::input::event::Event;
use crate::model::{Clock, Doing, Model, Note, Process, Thread, is_before_request, libc_signal};

/// Maximum number of processes kept that have not joined a process group.
const MAX_STARTED: usize = 65_536;
/// Maximum number of gaps in the evidence that are kept.
const MAX_NOTES: usize = 1024;
/// Maximum number of failures of processes without a rank that are kept.
const MAX_UNPLACED: usize = 64;

impl Model {
    /// Takes an event about the job or a node; returns any other one.
    pub(super) fn apply_job(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::JobStarted { job, attempt, host, at } => {
                self.job = job;
                self.attempt = attempt;
                self.hosts.insert(host);
                self.started = Some(self.started.map_or(at, |known| known.min(at)));
            }
            Event::RankStarted(started) => {
                let key = (started.node, started.pid, started.start_ticks);
                let known = self.started_ranks.contains_key(&key);
                if known || self.started_ranks.len() < MAX_STARTED {
                    self.started_ranks.insert(key, *started);
                }
            }
            Event::Note { process, kind, rank, pid, text, at } => {
                let process = process.and_then(|id| self.processes.get(&id));
                self.note(Note {
                    kind,
                    rank: rank.or_else(|| process.and_then(|process| process.rank)),
                    pid: pid.or_else(|| process.map(|process| process.pid)),
                    text,
                    at,
                });
            }
            Event::Clock { host, ahead_ns, uncertainty_ns, at } => {
                self.clocks.insert(host, Clock { ahead_ns, uncertainty_ns, at });
            }
            Event::GpuSampled { gpu, sample, at } => {
                self.ports.sampled_gpu(&gpu, &sample, at);
                self.gpus.sampled(&gpu, sample, at);
            }
            Event::PortSampled { port, sample, at } => self.ports.sampled(port, sample, at),
            Event::GpuFailed { gpu, kind, at } => self.gpus.failed(&gpu, kind, at),
            Event::Silent { node, since, at: _ } => {
                self.silent.remove(&node);
                self.silent.extend(since.map(|since| (node, since)));
            }
            Event::UnplacedFailure(failure) => {
                if self.unplaced.len() < MAX_UNPLACED {
                    self.unplaced.push(failure);
                }
            }
            Event::Interrupted { signal: _, at } => {
                self.asked_to_end(self.interrupted.map_or(at, |known| known.min(at)));
            }
            Event::EvidenceEnded { at } => self.evidence_ended = Some(at),
            Event::JobEnded { status, reason, at } => {
                self.nodes_ended += 1;
                self.kill_reason = self.kill_reason.take().or(reason);
                self.has_failed |= status != 0;
                if self.nodes_ended >= self.hosts.len() {
                    self.ended = Some(at);
                }
            }
            other => return Some(other),
        }
        None
    }

    /// Takes the first interrupt of a rank for a request to end the whole job if a launcher ended another rank after it,
    /// or if a rank had waited for a noticeable time: a launcher passes Ctrl-C on to all ranks, and those inside calls do
    /// not react to it. Otherwise one rank was interrupted alone.
    pub(crate) fn recognize_interrupt(&mut self) {
        let Some(at) = self.first_interrupt.filter(|_| self.interrupted.is_none()) else { return };
        let noticeable = self.timing.interrupted_wait;
        let has_waited = |thread: &Thread| match &thread.doing {
            Doing::Call(call) => call.at.plus(noticeable) <= at,
            Doing::Wait(_, since, _) => since.plus(noticeable) <= at,
            Doing::Nothing => false,
        };
        let is_killed_since = |process: &Process| {
            let end = process.end.filter(|end| end.at >= at);
            matches!(end.and_then(|it| it.exit.signal), Some(libc_signal::TERM | libc_signal::KILL))
        };
        let is_noticed =
            |it: &Process| is_killed_since(it) || it.threads.values().any(|it| has_waited(it));
        if self.processes.values().any(is_noticed) {
            self.asked_to_end(at);
        }
    }

    /// The whole job was asked to end: that ranks destroy their groups then is not their fault.
    fn asked_to_end(&mut self, at: Timestamp) {
        self.interrupted = Some(at);
        self.processes.values_mut().for_each(|process| process.asked_to_end = Some(at));
        let members = self.groups.iter_mut().flat_map(|group| group.members.values_mut());
        for member in members {
            member.destroyed = member.destroyed.filter(|&it| is_before_request(it, at));
        }
    }

    /// Keeps a note, once.
    fn note(&mut self, note: Note) {
        // Notes about no particular process are distinguished by their text.
        let is_about_process = note.pid.is_some() || note.rank.is_some();
        let is_same = |other: &Note| {
            (other.kind, other.pid, other.rank) == (note.kind, note.pid, note.rank)
                && (is_about_process || other.text == note.text)
        };
        if !self.notes.iter().any(is_same) && self.notes.len() < MAX_NOTES {
            self.notes.push(note);
        }
    }
}
