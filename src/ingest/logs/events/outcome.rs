//! What became of the job as a whole: a request to end it, a restart that helped, errors of the network.

use std::collections::BTreeSet;
use std::sync::Arc;

use ddp_doctor_diagnosis::event::{Event, NoteText, OomKills, ProcessId};
use ddp_doctor_diagnosis::input::backends::NCCL;
use ddp_doctor_diagnosis::input::request;
use ddp_doctor_diagnosis::model::libc_signal::{HUP, TERM};
use ddp_doctor_proto::ProcessState;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::words::signal_name;

use crate::logs::facts::ExitStatus;
use crate::logs::job::{LoggedJob, NetworkError, Rank, Topic, on_place};
use crate::process;

impl LoggedJob {
    /// Whether the success that a launcher reports is that of the last attempt: what failed before it restarted the
    /// ranks belongs to an earlier one.
    pub(in super::super) fn has_succeeded(&self) -> bool {
        let Some(finished) = self.finished else {
            return false;
        };
        let begun = self.restarted.unwrap_or_default();
        let is_last = finished >= self.last_fact && finished > begun;
        // The ranks of another node may have failed while those of this one finished.
        let fails = |rank: &Rank| {
            let is_later = |at: Timestamp| at > begun;
            let how = rank.ended.filter(|(at, how)| is_later(*at) && how.code != Some(0));
            how.is_some() || rank.waits.values().any(|it| is_later(it.at))
        };
        is_last && !self.ranks.values().any(fails)
    }

    /// Adds that success. Returns whether there is one.
    pub(super) fn add_success(&mut self) -> bool {
        let Some(finished) = self.finished.filter(|_| self.has_succeeded()) else {
            return false;
        };
        let begun = self.restarted.unwrap_or_default();
        let well = ExitStatus::of_status(0).exit();
        for rank in self.ranks.keys().copied().collect::<Vec<_>>() {
            let mut last = process(rank);
            if self.restarted.is_some() {
                last = ProcessId::new(1, rank + 1);
                self.join(last, Some(rank), 0, begun, 1);
            }
            let ended = Event::ProcessChanged {
                process: last,
                state: ProcessState::Dead,
                exit: well,
                oom_kills: OomKills::default(),
                at: finished,
            };
            self.events.push((finished, ended));
        }
        // One for each host that the text names, or leaves unknown.
        let hosts: BTreeSet<Arc<str>> = self.ranks.keys().map(|&rank| self.host(rank)).collect();
        for _ in 0..hosts.len().max(1) {
            let done = Event::JobEnded { status: 0, reason: None, at: finished };
            self.events.push((finished, done));
        }
        true
    }

    /// Adds a note on the errors of the network, of which there are many if there is one.
    pub(in super::super) fn note_network(&mut self) {
        let mut reported = std::mem::take(&mut self.network).into_iter();
        let Some(NetworkError { rank, on, text }) = reported.next() else {
            return;
        };
        let others = match reported.len() {
            0 => String::new(),
            1 => "; one more such error follows".to_owned(),
            more => format!("; {more} more such errors follow"),
        };
        let by = on_place(rank.map_or_else(String::new, |rank| format!(" on rank {rank}")), &on);
        let text = format!("NCCL reported{by}: {text}{others}");
        let advice = format!(
            "Check the network between the hosts, and the interface that NCCL uses (NCCL_DEBUG=INFO, {}).",
            NCCL.network_variables()
        );
        self.note(Topic::Network, NoteText::new(text, advice));
    }

    /// The signal that raised all exceptions of ranks, and when it was received.
    fn interruption_raised(&self) -> Option<(Timestamp, i32)> {
        let raised = self.ranks.values().flat_map(|rank| &rank.raised);
        let signals = raised.map(|it| Some((it.at, request::signal_of(&it.text)?)));
        signals.collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// Adds the request of a person or a batch system to end the job.
    pub(super) fn add_interruption(&mut self) {
        if let Some(canceled) = self.canceled {
            // Its signal may be reported before the request.
            let ended = self.ranks.values().filter_map(|rank| rank.ended);
            let terminated = ended.filter(|(_, how)| how.is_terminated());
            let at = terminated.map(|(at, _)| at).chain([canceled]).min().unwrap_or(canceled);
            self.events.push((at, Event::Interrupted { signal: TERM, at }));
            return;
        }
        let Some((at, signal)) = self.interrupted.or_else(|| self.interruption_raised()) else {
            return;
        };
        self.events.push((at, Event::Interrupted { signal, at }));
        let advice = if signal == HUP {
            "A terminal sends SIGHUP when it is closed: start the job under tmux, nohup or setsid."
        } else {
            "Find out what sent the signal: a batch system, a scheduler, or a user."
        };
        let signal = signal_name(signal);
        let text = format!("{signal} ended the job: the text does not say what sent it");
        self.note(Topic::End, NoteText::new(text, advice));
    }
}
