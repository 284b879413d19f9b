//! What became of the job as a whole: a request to end it, a restart that helped, errors of the network.

use ddp_doctor_proto::ProcessState;
use ddp_doctor_proto::report::{Exit, Timestamp};
use ddp_doctor_proto::words::signal_name;

use super::events::{Job, Topic};
use super::facts::ExitStatus;
use super::rank::Rank;
use crate::diagnosis::event::{Event, OomKills, ProcessId};
use crate::ingest::process;

impl Job {
    /// Adds the success that a launcher reports after it restarted the ranks: what failed belongs to an
    /// earlier attempt. Returns whether there is one.
    pub(super) fn add_recovery(&mut self) -> bool {
        let (Some(restarted), Some(finished)) = (self.restarted, self.finished) else {
            return false;
        };
        let ranks: Vec<u32> = self.ranks.keys().copied().collect();
        let is_last = finished >= self.ends && finished > restarted;
        // The ranks of another node may have failed while those of this one finished.
        let fails = |rank: &Rank| {
            let is_later = |at: Timestamp| at > restarted;
            let how = rank
                .ended
                .filter(|(at, how)| is_later(*at) && how.code != Some(0));
            how.is_some() || rank.waits.values().any(|it| is_later(it.at))
        };
        if ranks.is_empty() || !is_last || self.ranks.values().any(fails) {
            return false;
        }
        let ended = |process, exit, at| Event::ProcessChanged {
            process,
            state: ProcessState::Dead,
            exit,
            oom_kills: OomKills::default(),
            at,
        };
        let well = ExitStatus::of_status(0).exit();
        for rank in ranks {
            if self.ranks[&rank].ended.is_none() {
                let gone = ended(process(rank), Exit::default(), restarted);
                self.events.push((restarted, gone));
            }
            let next = ProcessId::of(1, rank + 1);
            self.join(next, Some(rank), 0, restarted, 1);
            self.events.push((finished, ended(next, well, finished)));
        }
        let done = Event::JobEnded {
            status: 0,
            at: finished,
        };
        self.events.push((finished, done));
        true
    }

    /// Adds a note on the errors of the network, of which there are many if there is one.
    pub(super) fn note_network(&mut self) {
        let mut reported = std::mem::take(&mut self.network).into_iter();
        let Some((rank, text)) = reported.next() else {
            return;
        };
        let others = match reported.len() {
            0 => String::new(),
            1 => "; one more such error follows".to_owned(),
            more => format!("; {more} more such errors follow"),
        };
        let by = rank.map_or_else(String::new, |rank| format!(" on rank {rank}"));
        self.note(Topic::Network, format!("NCCL reported{by}: {text}{others}"));
    }

    /// Adds the request of a person or a batch system to end the job.
    pub(super) fn add_interruption(&mut self) {
        let Some((at, signal)) = self.interrupted else {
            return;
        };
        self.events.push((at, Event::Interrupted { signal, at }));
        let signal = signal_name(signal);
        let text = format!("{signal} ended the job: the text does not say who sent it");
        self.note(Topic::End, text);
    }
}
