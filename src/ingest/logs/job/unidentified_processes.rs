//! Facts about processes whose rank the text does not state.

use std::collections::BTreeSet;
use std::sync::Arc;

use ddp_doctor_diagnosis::event::{Event, NodeFailure, NoteText, UnplacedFailure};
use ddp_doctor_diagnosis::input::{allocation, known_errors, transport};
use ddp_doctor_diagnosis::model::libc_signal::{ABRT, KILL};
use ddp_doctor_diagnosis::words;
use ddp_doctor_proto::report::{Exit, Timestamp, Where};
use ddp_doctor_proto::words::signal_name;

use super::losses::Loss;
use super::rank::went_on_after;
use super::{LoggedJob, MAX_NOTES, Topic, cancellation, joins};
use crate::logs::facts::{ExitStatus, Fact, Facts, GroupName, LineNumber, Statement, Subject};
use crate::logs::scan::{after, until};

/// Maximum number of quoted exceptions that are looked up.
const MAX_QUOTES: usize = 64;
/// What to do if a process has too little memory.
const LESS_MEMORY_OF_DEVICE: &str = "Reduce the memory use of the process, or give it more memory.";
/// What to do if a host has too little memory.
pub(super) const LESS_MEMORY: &str = "Run fewer or smaller processes on that host.";
/// Maximum number of ends that are kept.
const MAX_ENDS: usize = 256;

impl LoggedJob {
    /// Takes a fact about a process that the text does not identify.
    pub(super) fn add_unidentified(&mut self, fact: &Fact, at: Timestamp) {
        let who = &fact.who;
        match &fact.what {
            // These state the same as the line that the exception consists of.
            Statement::Raised { text, by_launcher, .. } if joins::is_about_a_wait(text) => {
                self.joins.are_launchers |= *by_launcher;
            }
            Statement::Raised { .. } => {
                if !self.keep_device_fault(fact, at) {
                    self.add_exception(fact, at);
                }
            }
            Statement::Ended(how) | Statement::Failed(how) => self.add_unidentified_end(who, *how),
            Statement::NodeFailed { by, next } => {
                let node = who.host.clone().unwrap_or_default();
                self.lost_node(NodeFailure { node, by, next }, at);
            }
            Statement::KilledForMemory { name, on } => self.killed_by_kernel(who, name, *on, at),
            Statement::Quoted { text } => self.quoted(text),
            Statement::LostStore { server } => self.joins.lost_store(None, server),
            Statement::Unresolved { host, reason } => {
                let worker = who.label.worker.map(|it| format!("a process of {}", it.name));
                self.note_unresolved(&worker.unwrap_or_else(|| self.name(who)), host, reason);
            }
            Statement::Network { on, text } => self.network_failed(None, on, text),
            Statement::Canceled { why, at: when } => {
                self.note(Topic::End, cancellation::note(why.as_deref(), when));
                let known = self.canceled.into_iter();
                self.canceled = known.chain([at]).min();
            }
            Statement::Interrupted { signal } => {
                let known = self.interrupted.into_iter();
                self.interrupted = known.chain([(at, *signal)]).min();
            }
            Statement::Stopped { signal } if *who == Subject::default() => {
                self.stopped = Some(*signal);
            }
            Statement::Restarted | Statement::Requeued => {
                self.restarted = self.restarted.max(Some(at));
            }
            Statement::Finished { of_job } => {
                self.finished = self.finished.max(Some(at));
                self.is_of_job |= of_job;
            }
            Statement::TimedOut { op, seq, .. } => {
                if self.timed_out.contains(&(*op, *seq)) {
                    return;
                }
                let text =
                    format!("{op} #{seq} timed out on a rank that the text does not identify");
                self.note(Topic::Waits, text);
            }
            what => self.joins.take(None, what, Timestamp::default()),
        }
    }

    /// Takes an exception of a process that the text does not identify.
    pub(super) fn add_exception(&mut self, fact: &Fact, at: Timestamp) {
        let who = &fact.who;
        let Statement::Raised { text, place, by_launcher, went_on, uncaught, is_last, .. } =
            &fact.what
        else {
            return;
        };
        let has_ended = (*uncaught || *is_last) && !*went_on && !*by_launcher;
        if has_ended && who.label.worker.is_some() && !transport::is_due_to_others(text) {
            let raised = Some((Arc::clone(text), place.clone().map(Arc::new)));
            return self.add_unplaced(who, raised, Exit::default(), at);
        }
        if !*went_on && is_named(who) && self.unidentified_raised.len() < MAX_ENDS {
            self.unidentified_raised.insert(self.name(who));
        }
        let mut topic = Topic::Exception;
        let text = if *by_launcher {
            return self.note_launcher_exception(who, text);
        } else if *went_on {
            went_on_after(&self.name(who), text, place.as_ref()).into()
        } else if transport::is_due_to_others(text) {
            let loss = Loss::parse(text);
            topic = loss.topic();
            loss.note(&self.name(who), 1, place.as_ref(), text)
        } else {
            let advice = allocation::failed(text)
                .map(|_| LESS_MEMORY_OF_DEVICE)
                .or_else(|| known_errors::advice(text));
            let what = raised(&self.name(who), text, place.as_ref()).into();
            NoteText { what, advice: advice.map(Arc::from) }
        };
        self.note(topic, text);
    }

    /// What the text calls a process, or the log that it wrote.
    fn name(&self, who: &Subject) -> String {
        let file = self.file.as_ref().filter(|_| *who == Subject::default());
        file.map_or_else(|| name(who), |file| format!("a process in {file}"))
    }

    /// Takes the exception that ended a worker, which its parent quotes: nothing caught it.
    fn quoted(&mut self, text: &str) {
        self.quotes += 1;
        if self.quotes > MAX_QUOTES {
            return;
        }
        let raised = self.ranks.values_mut().flat_map(|rank| &mut rank.raised);
        for raised in raised.filter(|it| it.text.contains(text)) {
            raised.uncaught = true;
        }
    }

    /// Takes the failure of a node.
    fn lost_node(&mut self, failure: NodeFailure, at: Timestamp) {
        let ranks = self.names.on_host(&failure.node);
        if ranks.is_empty() {
            let NodeFailure { node, by, next } = &failure;
            let text = format!("{by} reports the failure of node {node}");
            self.note(Topic::Platform, NoteText::new(text, *next));
        }
        let failure = Arc::new(failure);
        for rank in ranks {
            let known = self.ranks.entry(rank).or_default();
            known.ended.get_or_insert((at, ExitStatus::default()));
            known.node_failure.get_or_insert_with(|| Arc::clone(&failure));
        }
    }

    /// The failure that a fact states: of a rank, or of a process that is named otherwise.
    fn failure(&self, fact: &Fact) -> Option<(Result<u32, Subject>, LineNumber, ExitStatus)> {
        let (Statement::Ended(how) | Statement::EndedLater(how) | Statement::Failed(how)) =
            fact.what
        else {
            return None;
        };
        let rank = self.names.rank(&fact.who, Some(&fact.what));
        let is_failure = !how.is_requested() && how.code != Some(0);
        let who = rank.ok_or_else(|| fact.who.clone());
        let is_named = who.as_ref().map_or_else(is_named, |_| true);
        (is_failure && is_named).then_some((who, fact.line, how))
    }

    /// Takes the only exception of a log without a label as that of the only process that failed in the way
    /// in which such an exception ends one: C++ aborts, Python exits with status 1.
    pub(super) fn assign_exception(
        &mut self,
        unknown: &mut Vec<(&Fact, Timestamp)>,
        facts: &Facts,
    ) {
        let raised = unknown.iter().enumerate().filter_map(|(index, (fact, _))| {
            let is_unlabeled = fact.who == Subject::default();
            match fact.what {
                Statement::Raised { by_launcher: false, went_on: false, uncaught, .. }
                    if is_unlabeled =>
                {
                    Some((index, uncaught))
                }
                _ => None,
            }
        });
        let [(index, aborts)] = raised.collect::<Vec<_>>()[..] else {
            return;
        };
        let end = if aborts { ExitStatus::of_status(-ABRT) } else { ExitStatus::of_status(1) };
        let failures = facts.facts.iter().filter_map(|fact| self.failure(fact));
        let mut alike: Vec<_> = failures.filter(|(_, _, how)| *how == end).collect();
        // One process may be stated to have failed by several lines; the last one counts.
        alike.reverse();
        let mut seen = Vec::new();
        alike.retain(|(who, ..)| {
            let is_new = !seen.contains(who);
            seen.push(who.clone());
            is_new
        });
        let [(who, line, _)] = &alike[..] else {
            return;
        };
        let (fact, at) = unknown[index];
        let mut own = fact.clone();
        let Statement::Raised { text, place, uncaught, .. } = &mut own.what else { return };
        if fact.line.number >= line.number {
            return;
        }
        match who {
            Ok(rank) if self.ranks.get(rank).is_none_or(|it| it.raised.is_empty()) => {
                *uncaught = true;
                self.add_to_rank(*rank, GroupName::default(), &own, at);
            }
            Err(who) if !transport::is_due_to_others(text) => {
                let raised = Some((Arc::clone(text), place.clone().map(Arc::new)));
                self.add_unplaced(who, raised, Exit::default(), at);
            }
            _ => return,
        }
        unknown.remove(index);
    }

    /// Adds a note on a process that could not resolve the name of a host.
    pub(super) fn note_unresolved(&mut self, who: &str, host: &str, reason: &str) {
        let text = format!("{who} could not resolve the name {host} ({reason})");
        let advice =
            format!("Check the name, and how that process resolves names (getent hosts {host}).");
        self.note(Topic::Loss, NoteText::new(text, advice));
    }

    /// Adds to exceptions of ranks that they could not resolve the name of a host, or notes it.
    pub(super) fn add_unresolved_names(&mut self) {
        let mut notes = Vec::new();
        for (number, rank) in &mut self.ranks {
            let Some((host, reason)) = rank.unresolved.take() else { continue };
            let raised = rank
                .raised
                .iter_mut()
                .find(|it| transport::is_start(&it.text) && it.text.contains(&*host));
            if let Some(raised) = raised {
                raised.text = transport::unresolved(&raised.text, &host, &reason).into();
            } else {
                notes.push((*number, host, reason));
            }
        }
        for (number, host, reason) in notes {
            self.note_unresolved(&format!("rank {number}"), &host, &reason);
        }
    }

    /// Takes an exception of a launcher.
    pub(super) fn note_launcher_exception(&mut self, who: &Subject, text: &str) {
        let who = launcher(who, self.file.as_deref());
        if let Some((host, reason)) = unresolved(text) {
            return self.note_unresolved(&who, host, reason);
        }
        let is_loss = text.starts_with("Rendezvous") || transport::is_loss_of_peer(text);
        let topic = if is_loss { Topic::Loss } else { Topic::Exception };
        if text.starts_with("RendezvousTimeoutError") {
            if self.rendezvous_timeouts.len() < MAX_ENDS {
                self.rendezvous_timeouts.insert(who);
            }
            return;
        }
        let note = if text.starts_with("RendezvousConnectionError") {
            NoteText::new(
                format!("{who} raised {text}"),
                "Find out whether the host of --rdzv-endpoint runs, and check the network to it.",
            )
        } else if transport::is_loss_of_peer(text) {
            Loss::parse(text).note(&who, 1, None, text)
        } else {
            format!("{who} raised {text}").into()
        };
        self.note(topic, note);
    }

    /// Adds a note on the launchers that waited for others: what other launchers failed of precedes it.
    pub(super) fn note_rendezvous_timeouts(&mut self) {
        const ADVICE: &str = "Check that every node was started, and that all have the same --rdzv-endpoint, --rdzv-id and \
             --nnodes.";
        const MAX_NAMED: usize = 3;
        let waited = std::mem::take(&mut self.rendezvous_timeouts);
        if waited.is_empty() {
            return;
        }
        let names: Vec<String> = waited.iter().take(MAX_NAMED).cloned().collect();
        let named = names.join(" and ");
        let who = match waited.len().saturating_sub(MAX_NAMED) {
            0 => named,
            more => format!("{named} and {more} more"),
        };
        let text = format!(
            "{who} raised RendezvousTimeoutError: not all nodes of the launch arrived in time"
        );
        self.note(Topic::Loss, NoteText::new(text, ADVICE));
    }

    /// Takes the end of such a process. A crash is reported twice: by the process, and by its launcher,
    /// which names its host.
    fn add_unidentified_end(&mut self, who: &Subject, how: ExitStatus) {
        if how.for_memory && self.take_killed_rank(who.host.as_deref()) {
            return;
        }
        let known = self.ranks.values().filter_map(|rank| rank.ended);
        let mut ranks = self.ranks.values();
        let by_kernel = ranks.any(|rank| rank.killed_for_memory.is_some());
        let is_known = known.into_iter().any(|(_, it)| it.signal == how.signal);
        if is_known || by_kernel && how.is_requested() {
            return;
        }
        let same = |(other, it): &&mut (Subject, ExitStatus)| {
            let is_apart = other.host.is_some() && who.host.is_some() && other.host != who.host;
            other.label == who.label && it.signal == how.signal && !is_apart
        };
        let has_room = self.unidentified_ends.len() < MAX_ENDS;
        match self.unidentified_ends.iter_mut().find(same) {
            Some((other, _)) => other.host = other.host.take().or_else(|| who.host.clone()),
            None if has_room => self.unidentified_ends.push((who.clone(), how)),
            None => {}
        }
    }

    /// Where a batch system states that a task of a host ran out of memory, such as a launcher's, the only rank of that host
    /// that SIGKILL ended is the one that the kernel killed; `false`: there is none.
    fn take_killed_rank(&mut self, host: Option<&str>) -> bool {
        let on_host = host.map_or_else(BTreeSet::new, |host| self.names.on_host(host));
        let ends = self
            .ranks
            .iter_mut()
            .filter(|(rank, _)| on_host.contains(rank))
            .filter_map(|(_, rank)| rank.ended.as_mut());
        let mut killed: Vec<_> = ends.filter(|(_, how)| how.signal == Some(KILL)).collect();
        let [(_, only)] = &mut killed[..] else { return false };
        only.for_memory = true;
        true
    }

    /// Takes the failure of a worker.
    fn add_unplaced(
        &mut self,
        who: &Subject,
        raised: Option<(Arc<str>, Option<Arc<Where>>)>,
        exit: Exit,
        at: Timestamp,
    ) {
        let name = Arc::from(name(who));
        let same =
            |it: &UnplacedFailure| it.name == name && (it.raised.is_some() || raised.is_none());
        if self.unplaced.len() < MAX_NOTES && !self.unplaced.iter().any(same) {
            self.unplaced.push(UnplacedFailure { name, raised, exit, at });
        }
    }

    /// Adds the failures of workers whose rank is not known, or notes on them if the text states which rank
    /// failed.
    pub(in super::super) fn add_unplaced_failures(&mut self) {
        let mut ranks = self.ranks.values();
        let is_failure = |how: &ExitStatus| !how.is_requested() && how.code != Some(0);
        let has_failed = ranks.any(|rank| {
            let raised = rank.raised.iter().any(|it| it.uncaught || it.is_caught);
            raised || rank.ended.is_some_and(|(_, how)| is_failure(&how))
        });
        for failure in std::mem::take(&mut self.unplaced) {
            // What a process ends of after a watchdog gave up is a consequence.
            let is_later = failure.raised.is_none() && self.given_up.is_some();
            if !has_failed && !is_later && self.finished.is_none() {
                self.events.push((failure.at, Event::UnplacedFailure(Arc::new(failure))));
                continue;
            }
            let (topic, what) = match &failure.raised {
                Some((text, place)) => {
                    (Topic::Exception, format!("raised {text}{}", words::at(place.as_deref())))
                }
                None => {
                    let Exit { code, signal } = failure.exit;
                    (Topic::End, ended(ExitStatus { code, signal, for_memory: false }))
                }
            };
            self.note(topic, format!("{} {what}", failure.name));
        }
    }

    /// Takes the place at which such a process was according to its stacks.
    pub(super) fn note_unidentified_stacks(&mut self, who: &Subject, place: &str) {
        let text = format!("{} was {place} according to its stacks", name(who));
        self.note(Topic::Stacks, text);
    }

    /// Adds notes on the ends of such processes. Those that the launcher requested after another one had
    /// failed, or because the job was canceled, say nothing.
    pub(super) fn note_unidentified_ends(&mut self) {
        let mut ends = std::mem::take(&mut self.unidentified_ends);
        // A watchdog aborts its process after it has given up a call.
        let has_given_up = self.given_up.is_some()
            || self.joins.has_stuck()
            || self.notes.iter().any(|(topic, _)| *topic == Topic::Waits);
        ends.retain(|(_, how)| !has_given_up || how.signal != Some(ABRT));
        let is_explained =
            self.canceled.is_some() || ends.iter().any(|(_, how)| !how.is_requested());
        // One process that exited as an exception ends it, and one rank that raised one, are the same.
        let mut raised = self.ranks.values().flat_map(|it| it.raised.first());
        let has_raised = raised.next().is_some() && raised.next().is_none();
        let ends_so = |how: ExitStatus| how.code == Some(1) || how.signal == Some(ABRT);
        let exits = ends.iter().filter(|(_, how)| ends_so(*how));
        let is_one = has_raised && exits.count() == 1;
        // Ranks end when the world did not form in time.
        let has_no_world = self.joins.counted.is_some() || !self.joins.waiting.is_empty();
        for (who, how) in ends {
            // Its own exception states why it ended.
            let has_own = self.unidentified_raised.contains(&name(&who));
            let is_raised = (is_one || has_own) && ends_so(how);
            let is_of_start = has_no_world && ends_so(how);
            if is_raised || is_of_start || is_explained && how.is_requested() {
                continue;
            }
            if is_named(&who) && how.code != Some(0) && !how.is_terminated() && !how.for_memory {
                self.add_unplaced(&who, None, how.exit(), self.ends);
            } else {
                let advice = match how.signal {
                    _ if how.for_memory => Some(LESS_MEMORY),
                    Some(KILL) => Some(words::AFTER_SIGKILL),
                    Some(_) if !how.is_requested() => Some(words::AFTER_A_CRASH),
                    _ => None,
                };
                let what = format!("{} {}", name(&who), ended(how)).into();
                self.note(Topic::End, NoteText { what, advice: advice.map(Arc::from) });
            }
        }
    }

    /// Takes a fact about an attempt before the last one; `is_canceled`: it follows from a cancellation.
    pub(super) fn note_earlier_attempt(&mut self, fact: &Fact, is_canceled: bool) {
        let rank = self.names.rank(&fact.who, Some(&fact.what));
        let who = rank.map_or_else(|| name(&fact.who), |rank| format!("rank {rank}"));
        let what = match &fact.what {
            _ if is_canceled => return,
            Statement::Raised { text, place, uncaught: true, .. } => {
                raised(&who, text, place.as_ref())
            }
            Statement::Ended(how) | Statement::Failed(how) => format!("{who} {}", ended(*how)),
            Statement::KilledForMemory { .. } => {
                format!("the kernel killed {who} for lack of memory")
            }
            Statement::Canceled { why, at } => {
                let canceled = cancellation::words(why.as_deref(), at);
                self.note(Topic::Earlier, format!("{canceled}, and started it again"));
                return;
            }
            _ => return,
        };
        let text = format!("before the launcher restarted the ranks, {what}");
        self.note(Topic::Earlier, text);
    }
}

/// The host whose name could not be resolved, and why, as an exception of c10d states it.
fn unresolved(text: &str) -> Option<(&str, &str)> {
    const SERVER: &str = " to connect to any network address of (";
    const REASON: &str = " IPv4 network addresses cannot be retrieved (gai error: ";
    let host = until(after(text, SERVER)?, &[',']);
    let reason = until(after(text, REASON)?, &[')']);
    Some((host, reason.split_once(" - ").map_or(reason, |(_, words)| words)))
}

/// Whether the text names the process by more than its id.
const fn is_named(who: &Subject) -> bool {
    who.label.worker.is_some() || who.label.local.is_some() || who.label.task.is_some()
}

/// What the text calls a process that is a launcher.
fn launcher(who: &Subject, file: Option<&str>) -> String {
    let worker = who.label.worker.map(|it| format!("the launcher of {}", it.name));
    let in_file = || file.map(|file| format!("the launcher in {file}"));
    worker.or_else(in_file).unwrap_or_else(|| "a launcher".into())
}

/// What the text calls the process.
pub(super) fn name(who: &Subject) -> String {
    let host = who.host.as_ref().map_or_else(String::new, |host| format!(" on {host}"));
    if let Some(worker) = who.label.worker {
        let pid =
            worker.pid.or(who.pid).map_or_else(String::new, |pid| format!(" (process {pid})"));
        let address = worker.host.map_or(host, |it| format!(" on {it}"));
        return format!("worker {}{pid}{address}", worker.name);
    }
    match (who.label.task, who.label.local, who.pid) {
        (Some(task), ..) => format!("task {task}{host}"),
        (None, Some(local), Some(pid)) => format!("local rank {local} (process {pid})"),
        (None, Some(local), None) => format!("local rank {local}"),
        (None, None, Some(pid)) => format!("process {pid}{host}"),
        (None, None, None) if host.is_empty() => "a process that the text does not identify".into(),
        (None, None, None) => format!("a process{host}"),
    }
}

fn raised(who: &str, text: &str, place: Option<&Where>) -> String {
    format!("{who} raised {text}{}", words::at(place))
}

fn ended(how: ExitStatus) -> String {
    match (how.signal, how.code) {
        _ if how.for_memory => "was killed for lack of memory".into(),
        (Some(signal), _) => format!("was killed by {}", signal_name(signal)),
        (None, Some(code)) => format!("ended with status {code}"),
        (None, None) => "ended in an unknown way".into(),
    }
}
