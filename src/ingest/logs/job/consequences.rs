//! Failures that others brought about: after a timeout of a watchdog, an exception of another rank, or the loss of a
//! peer.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::Event;
use ddp_doctor_diagnosis::input::transport;
use ddp_doctor_diagnosis::model::libc_signal::{ABRT, TERM};
use ddp_doctor_diagnosis::words::{self, Ranks};
use ddp_doctor_proto::ExceptionKind;
use ddp_doctor_proto::report::Timestamp;

use super::losses::{self, Loss, Lost};
use super::rank::{Raised, Rank, went_on_after};
use super::{LoggedJob, Topic, joins};
use crate::logs::facts::{ExitStatus, Facts, GroupName};
use crate::process;

/// Maximum time by which the loss of a peer may be observed before the failure of that peer.
const ECHO: Duration = Duration::from_secs(2);
/// Maximum time from the exception of a rank to the call in which the others wait for it: about a step.
const STEP: Duration = Duration::from_secs(60);

impl LoggedJob {
    /// Takes the exceptions with which the output of ranks ends as those that ended them, if no other failure is
    /// known and others stopped as well: they lost a peer or the store, or write to the same log and state no later
    /// progress.
    /// Before PyTorch 2.3, nothing marks exceptions that are not caught.
    pub(super) fn mark_last_exceptions_uncaught(&mut self, all: &[&Facts]) {
        let is_loss = |number: u32, it: &Raised| {
            transport::is_due_to_others(&it.text) || it.is_of_others(number)
        };
        let fails = |(number, rank): (&u32, &Rank)| {
            let is_uncaught = rank.raised.iter().any(|it| it.uncaught && !is_loss(*number, it));
            is_uncaught || rank.ended.is_some() || !rank.waits.is_empty()
        };
        let lost =
            |(number, rank): (&u32, &Rank)| rank.raised.iter().any(|it| is_loss(*number, it));
        let is_shared = all.len() == 1 && self.ranks.len() > 1;
        let stopped = is_shared || self.ranks.iter().any(lost) || self.joins.has_lost_store();
        let has_progressed = all.iter().any(|it| it.has_progressed);
        let is_finished = has_progressed || self.finished.is_some();
        if !stopped || is_finished || self.ranks.iter().any(fails) {
            return;
        }
        for it in self.ranks.values_mut().flat_map(|rank| &mut rank.raised) {
            it.uncaught |= it.is_last;
        }
    }

    /// Takes the exception that the only rank which waits for nothing logged right before the others began to wait as
    /// the one that ended its work: whatever it printed afterwards, it makes no further call.
    fn take_logged_exception(&mut self, given_up: Timestamp) {
        let may_be_world = |group: &GroupName| group.is_world() || !group.is_named();
        let wait = |rank: &Rank| {
            let waits = rank.waits.iter().filter(|(group, _)| may_be_world(group));
            waits.map(|(_, it)| it.since).min()
        };
        let Some(first) = self.ranks.values().filter_map(wait).min() else { return };
        let (waiting, mut others): (Vec<_>, Vec<_>) =
            self.ranks.iter_mut().partition(|(_, rank)| wait(rank).is_some());
        let ([_, _, ..], [(number, only)]) = (&waiting[..], &mut others[..]) else { return };
        let number = **number;
        let is_cause = |it: &Raised| {
            it.at < given_up && it.at.plus(STEP) >= first && !transport::is_due_to_others(&it.text)
        };
        let is_open = only.raised.is_empty() && only.ended.is_none();
        let Some(raised) = only.handled.pop_if(|it| is_open && is_cause(it)) else { return };
        let note = went_on_after(&format!("rank {number}"), &raised.text, raised.place.as_ref());
        only.raised.push(Raised { uncaught: true, ..raised });
        self.notes
            .retain(|(topic, text)| *topic != Topic::Exception || !text.what.starts_with(&note));
    }

    /// Drops ends and exceptions that a watchdog's timeout brought about; `has_dumps`: dumps show who waited.
    pub(in super::super) fn drop_consequences(&mut self, has_dumps: bool) {
        let Some(given_up) = self.given_up else {
            return;
        };
        self.take_logged_exception(given_up);
        // Before PyTorch 2.3 nothing marks exceptions that are not caught.
        let may_be_world = |group: &GroupName| group.is_world() || !group.is_named();
        let waits = |rank: &&mut Rank| rank.waits.keys().any(may_be_world);
        let (waiting, mut others): (Vec<_>, Vec<_>) = self.ranks.values_mut().partition(waits);
        if let ([_, ..], [only]) = (&waiting[..], &mut others[..]) {
            for it in &mut only.raised {
                it.uncaught |= it.is_last;
            }
        }
        let mut notes = Vec::new();
        for (number, rank) in &mut self.ranks {
            let waited = !rank.waits.is_empty();
            rank.raised.retain(|it| {
                let is_consequence = it.is_dated || waited || is_about_communication(&it.text);
                let is_kept = it.at < given_up || !is_consequence;
                let is_shown = waited || has_dumps && transport::is_due_to_others(&it.text);
                if !is_kept && !is_shown {
                    let at = words::at(it.place.as_ref());
                    let text = &it.text;
                    notes.push(format!(
                        "rank {number} raised {text}{at} after a collective had timed out"
                    ));
                }
                is_kept
            });
            // Watchdogs abort. A rank that crashed or was killed for lack of memory, and gave up nothing, is the one
            // that others waited for, whenever its launcher noticed that.
            let is_later = |(at, how): &mut (Timestamp, ExitStatus)| {
                *at >= given_up && (waited || !(how.is_crash() || how.for_memory))
            };
            if let Some((_, how)) = rank.ended.take_if(is_later) {
                rank.ended_later = Some(how.exit());
            }
        }
        for note in notes {
            self.note(Topic::Exception, note);
        }
    }

    /// Drops aborts of ranks that stated no error of their own, if another rank had raised one: PyTorch's
    /// watchdogs abort their processes once a rank has failed.
    pub(in super::super) fn drop_aborts(&mut self) {
        let raised = self
            .ranks
            .values()
            .flat_map(|rank| &rank.raised)
            .filter(|it| it.uncaught && !transport::is_due_to_others(&it.text));
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

    /// Dates the failure of a node by the first loss of a peer: Slurm and others notice it later.
    fn date_lost_nodes(&mut self) {
        let raised = self.ranks.values().flat_map(|rank| &rank.raised);
        let lost = raised.filter(|it| transport::is_loss_of_peer(&it.text));
        let Some(first) = lost.map(|it| it.at).min() else { return };
        let on_lost_node = self.ranks.values_mut().filter(|rank| rank.node_failure.is_some());
        for (at, _) in on_lost_node.filter_map(|rank| rank.ended.as_mut()) {
            *at = (*at).min(first);
        }
    }

    /// Turns errors about other processes into notes, and those about waits in which no rank is `named` as
    /// missing and about calls that do not `differ` as far as it is known, if no other failure is known that may
    /// be their cause: the ranks that report them failed because of another one, which the text does not name.
    pub(in super::super) fn note_losses(&mut self, named: bool, differ: bool) {
        self.date_lost_nodes();
        let victims = self.victims_of_unknown_ranks(named, differ);
        self.drop_ends_after_losses(&victims);
        let mut lost = Lost::new();
        for number in victims {
            let rank = self.ranks.entry(number).or_default();
            for raised in std::mem::take(&mut rank.raised) {
                let at = words::at(raised.place.as_ref());
                let same = lost
                    .entry((Loss::parse(&raised.text), at))
                    .or_insert_with(|| (Vec::new(), raised.clone()));
                if same.0.last() != Some(&number) {
                    same.0.push(number);
                }
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
        if let Some(note) = losses::at_different_lines(&lost, self.names.world) {
            self.note(Topic::Loss, note);
            lost.retain(|(loss, _), _| !loss.ends_a_wait());
        }
        for ((loss, _), (ranks, raised)) in lost {
            let (who, place) = (Ranks(&ranks).to_string(), raised.place.as_ref());
            let note = loss.note(&who, ranks.len(), place, &raised.text);
            self.note(loss.topic(), note);
        }
    }

    /// Drops the ends by SIGTERM that follow the losses which these ranks report: a launcher ends the other ranks of a job
    /// in which one failed.
    fn drop_ends_after_losses(&mut self, victims: &[u32]) {
        let losses = victims.iter().filter_map(|number| self.ranks.get(number));
        let first = losses.flat_map(|rank| rank.raised.iter().map(|it| it.at)).min();
        let Some(first) = first else { return };
        for rank in self.ranks.values_mut() {
            let is_asked =
                |(at, how): &mut (Timestamp, ExitStatus)| how.signal == Some(TERM) && *at >= first;
            if let Some((_, how)) = rank.ended.take_if(is_asked) {
                rank.ended_later = Some(how.exit());
            }
        }
    }

    /// Ranks that report such errors alone, before any other failure. An error of the network is one between ranks.
    fn victims_of_unknown_ranks(&self, named: bool, differ: bool) -> Vec<u32> {
        let is_loss = |number: u32, raised: &Raised| match Loss::parse(&raised.text) {
            Loss::Difference => !differ,
            Loss::Models => true,
            Loss::Failure => raised.is_of_others(number),
            _ if joins::is_about_a_wait(&raised.text) => !named,
            _ => transport::is_due_to_others(&raised.text),
        };
        let is_victim = |(number, rank): &(&u32, &Rank)| {
            let mut raised = rank.raised.iter();
            !rank.raised.is_empty() && raised.all(|it| is_loss(**number, it))
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
}

/// Whether an exception is about the communication with other ranks.
fn is_about_communication(text: &str) -> bool {
    text.contains("Dist") || transport::is_from_transport(text) || joins::is_about_a_wait(text)
}
