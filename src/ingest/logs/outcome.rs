//! What became of the job as a whole: a request to end it, a restart that helped, errors of the network.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::words::signal_name;
use ddp_doctor_proto::{ExceptionKind, ProcessState};

use super::events::{Job, Topic};
use super::facts::ExitStatus;
use super::rank::{CHECKPOINT, MISMATCH, Raised, Rank};
use super::scan::after;
use super::start;
use crate::diagnosis::event::{Event, OomKills, ProcessId};
use crate::diagnosis::evidence::{request, transport};
use crate::diagnosis::model::libc_signal::{ABRT, HUP, TERM};
use crate::diagnosis::words::{self, Ranks};
use crate::ingest::process;

/// Maximum time by which the loss of a peer may be observed before the failure of that peer.
const ECHO: Duration = Duration::from_secs(2);

/// What PyTorch and Gloo report if the calls of two ranks are not alike.
const DIFFERENCES: [&str; 2] = [MISMATCH, "op.preamble.length <= op.nbytes"];
/// What DDP reports if a parameter has another shape on another rank.
const OTHER_SHAPE: &str = "appears not to match sizes of the same param";

/// How an exception concerns other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loss {
    Connection,
    /// A connection that was never made.
    Start,
    Wait,
    /// Their calls are not alike.
    Difference,
    /// Their models are not alike.
    Models,
    /// They failed to write or read their part of a checkpoint.
    Failure,
}

impl Loss {
    pub(super) fn of(text: &str) -> Self {
        match text {
            _ if DIFFERENCES.iter().any(|it| text.contains(it)) => Self::Difference,
            _ if text.contains(OTHER_SHAPE) => Self::Models,
            _ if text.contains(CHECKPOINT) => Self::Failure,
            _ if transport::is_start(text) => Self::Start,
            _ if transport::is_loss_of_peer(text) => Self::Connection,
            _ => Self::Wait,
        }
    }

    /// What one rank did, what several did, and what to do next.
    const fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Connection => (
                "lost its connection to another process",
                "lost their connections to another process",
                "Find out how that process ended: add its log.",
            ),
            Self::Start => (
                "could not connect to another process",
                "could not connect to other processes",
                "Check that this process runs, that no firewall is between them, and the network interface \
                 (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME).",
            ),
            Self::Wait => (
                "stopped waiting for other ranks",
                "stopped waiting for other ranks",
                "Find out where the others were: add their logs.",
            ),
            Self::Difference => (
                "made a call that differs from that of another rank",
                "made calls that differ from those of other ranks",
                "Let all ranks make the same call.",
            ),
            Self::Models => (
                "found that its model differs from that of another rank",
                "found that their models differ from those of other ranks",
                "Build the same model on all ranks: the same parameters, in the same order.",
            ),
            Self::Failure => (
                "reports that other ranks failed",
                "report that other ranks failed",
                "Find out why these failed: add their logs.",
            ),
        }
    }

    /// What `who`, so `many` ranks, state by an exception with this text.
    pub(super) fn note(self, who: &str, many: usize, place: Option<&Where>, text: &str) -> String {
        let (one, several, next) = self.words();
        let what = if many == 1 { one } else { several };
        // PyTorch states the difference behind both calls.
        let text = after(text, " between collectives on ranks. ").unwrap_or(text);
        let text = after(text, "Collectives differ in ").unwrap_or(text);
        let (at, text) = (words::at(place), text.trim_end_matches('.'));
        format!("{who} {what}{at}: {text}\n{next}")
    }
}

impl Job {
    /// Adds the success that a launcher reports: what failed before it restarted the ranks belongs to an
    /// earlier attempt. Returns whether there is one.
    pub(super) fn add_success(&mut self) -> bool {
        let Some(finished) = self.finished else {
            return false;
        };
        let begun = self.restarted.unwrap_or_default();
        let is_last = finished >= self.said && finished > begun;
        // The ranks of another node may have failed while those of this one finished.
        let fails = |rank: &Rank| {
            let is_later = |at: Timestamp| at > begun;
            let how = rank.ended.filter(|(at, how)| is_later(*at) && how.code != Some(0));
            how.is_some() || rank.waits.values().any(|it| is_later(it.at))
        };
        if !is_last || self.ranks.values().any(fails) {
            return false;
        }
        let well = ExitStatus::of_status(0).exit();
        for rank in self.ranks.keys().copied().collect::<Vec<_>>() {
            let mut last = process(rank);
            if self.restarted.is_some() {
                last = ProcessId::of(1, rank + 1);
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
        let done = Event::JobEnded { status: 0, at: finished };
        self.events.push((finished, done));
        true
    }

    /// Drops aborts of ranks that stated no error of their own, if another rank had raised one: PyTorch's
    /// watchdogs abort their processes once a rank has failed.
    pub(super) fn take_back_aborts(&mut self) {
        let raised = self.ranks.values().flat_map(|rank| &rank.raised);
        let raised = raised.filter(|it| it.uncaught && !transport::is_due_to_others(&it.text));
        let Some(first) = raised.map(|it| it.at).min() else {
            return;
        };
        for rank in self.ranks.values_mut() {
            let states_none = rank.raised.is_empty() && rank.stacks.is_empty();
            let is_later = |(at, how): &mut (Timestamp, ExitStatus)| {
                states_none && how.signal == Some(ABRT) && *at >= first
            };
            if let Some((_, how)) = rank.ended.take_if(is_later) {
                rank.ended_later = Some(how.exit());
            }
        }
    }

    /// Turns errors about other processes into notes, and those about waits in which no rank is `named` as
    /// missing and about calls that do not `differ` as far as it is known, if no other failure is known that may
    /// be their cause: the ranks that report them failed because of another one, which the text does not name.
    pub(super) fn take_back_losses(&mut self, named: bool, differ: bool) {
        let victims = self.victims_of_unknown_ranks(named, differ);
        let mut lost: BTreeMap<(Loss, String), (Vec<u32>, Raised)> = BTreeMap::new();
        for number in victims {
            let rank = self.ranks.entry(number).or_default();
            for raised in std::mem::take(&mut rank.raised) {
                let at = words::at(raised.place.as_ref());
                let same = lost
                    .entry((Loss::of(&raised.text), at))
                    .or_insert_with(|| (Vec::new(), raised.clone()));
                same.0.push(number);
                let left = Event::Exception {
                    process: process(number),
                    kind: ExceptionKind::LeftCollective,
                    text: raised.text,
                    place: raised.place.map(Arc::new),
                    at: raised.at,
                };
                self.events.push((raised.at, left));
                let ended = rank.ended.take().map(|(_, how)| how.exit());
                rank.ended_later = ended.or(rank.ended_later);
            }
        }
        for ((loss, _), (ranks, raised)) in lost {
            let (who, place) = (Ranks(&ranks).to_string(), raised.place.as_ref());
            let note = loss.note(&who, ranks.len(), place, &raised.text);
            self.note(Topic::Exception, note);
        }
    }

    /// Ranks that report such errors alone, before any other failure. Errors of the network are failures.
    fn victims_of_unknown_ranks(&self, named: bool, differ: bool) -> Vec<u32> {
        let is_loss = |number: u32, raised: &Raised| match Loss::of(&raised.text) {
            Loss::Difference => !differ,
            Loss::Models => true,
            Loss::Failure => raised.is_of_others(number),
            _ if start::is_about_a_wait(&raised.text) => !named,
            _ => transport::is_due_to_others(&raised.text),
        };
        let is_victim = |(number, rank): &(&u32, &Rank)| {
            let reports_network = self.network.iter().any(|(by, _)| *by == Some(**number));
            let mut raised = rank.raised.iter();
            !rank.raised.is_empty() && raised.all(|it| is_loss(**number, it)) && !reports_network
        };
        let (mut victims, others): (Vec<_>, Vec<_>) = self.ranks.iter().partition(is_victim);
        if others.iter().any(|(_, rank)| !rank.waits.is_empty()) {
            return Vec::new();
        }
        let failures = others.iter().flat_map(|(_, rank)| {
            let ended = rank.ended.filter(|(_, how)| how.signal != Some(TERM));
            let raised = rank.raised.iter().map(|it| it.at);
            raised.chain(ended.map(|(at, _)| at))
        });
        let first = failures.min();
        let is_early = |raised: &Raised| first.is_none_or(|first| raised.at.plus(ECHO) < first);
        victims.retain(|(_, rank)| rank.raised.iter().all(is_early));
        victims.into_iter().map(|(&number, _)| number).collect()
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
        let text = format!(
            "NCCL reported{by}: {text}{others}\nCheck the network between the hosts, and the interface that NCCL uses \
             (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME, NCCL_IB_HCA)."
        );
        self.note(Topic::Network, text);
    }

    /// The signal that raised all exceptions of ranks, and when it was received.
    fn interruption_raised(&self) -> Option<(Timestamp, i32)> {
        let raised = self.ranks.values().flat_map(|rank| &rank.raised);
        let signals = raised.map(|it| Some((it.at, request::signal_of(&it.text)?)));
        signals.collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// Adds the request of a person or a batch system to end the job.
    pub(super) fn add_interruption(&mut self) {
        if let Some(cancelled) = self.cancelled {
            // Its signal may be reported before the request.
            let ended = self.ranks.values().filter_map(|rank| rank.ended);
            let terminated = ended.filter(|(_, how)| how.is_terminated());
            let at = terminated.map(|(at, _)| at).chain([cancelled]).min();
            let at = at.unwrap_or(cancelled);
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
            "Find out who sent the signal: a batch system, a scheduler, a person."
        };
        let signal = signal_name(signal);
        let text = format!("{signal} ended the job: the text does not say who sent it\n{advice}");
        self.note(Topic::End, text);
    }
}
