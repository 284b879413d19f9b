//! What the logs of a job state about each of its ranks.
//!
//! [`LoggedJob`] takes the facts of all logs: `process_names` finds the rank that a fact is about, and `clock` its time.
//! `rank`, `joins` and `stack_place` hold what is stated about a rank, and `unidentified_processes` takes the facts
//! about other processes. `losses` and `consequences` then separate failures from what they brought about.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::{Event, NoteText, Stacks, UnplacedFailure};
use ddp_doctor_diagnosis::words;
use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::{Timestamp, Where};

use super::facts::{ExitStatus, Fact, Facts, GroupName, KERNEL, Statement, Subject, WATCHDOG};
use super::lines::Label;
use super::{Log, scan};
use cancellation::Cancellation;
use clock::Clock;
use device_faults::DeviceFault;
use joins::Joins;
use kernel_kills::KernelKill;
use process_names::ProcessNames;
use rank::Raised;

mod cancellation;
mod clock;
mod consequences;
mod device_faults;
mod joins;
mod kernel_kills;
mod losses;
mod process_names;
mod rank;
mod stack_place;
mod unidentified_processes;

pub(super) use clock::{EARLIER, before};
pub(super) use joins::{Barrier, LAUNCH, Wait};
pub(super) use rank::{OfModel, Rank, SAME_MODEL, Waiting, went_on_after};
pub(super) use stack_place::{in_collective, place_of};

/// Maximum number of reports that are kept.
const MAX_REPORTS: usize = 64;
/// Maximum number of notes on one topic.
const MAX_NOTES: usize = 4;

/// What a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// Calls that ranks wait in, or where they stand.
    Waits,
    /// Ranks that wait for the world to form.
    Startup,
    Exception,
    /// Calls or models that differ between ranks.
    Difference,
    /// Lost connections, and rendezvous that failed.
    Loss,
    End,
    /// Failures of nodes and devices that the platform reports.
    Platform,
    /// An attempt that the launcher restarted.
    Earlier,
    Network,
    /// Statements of libraries and launchers.
    Reports,
    /// Stacks of a process that is not identified.
    Stacks,
}

impl Topic {
    /// Whether notes on it are about consequences, of which the platform may state the cause.
    pub(super) const fn is_of_consequences(self) -> bool {
        matches!(self, Self::Waits | Self::Startup | Self::Loss | Self::Network)
    }
}

/// An error of the network.
pub(super) struct NetworkError {
    pub(super) rank: Option<u32>,
    /// Host and device that reported it, if they are stated.
    pub(super) on: Arc<str>,
    pub(super) text: Arc<str>,
}

/// What a library or a launcher reported.
struct Report {
    text: String,
    /// What to do; empty: the text says little.
    next: &'static str,
    /// A watchdog of PyTorch did.
    is_of_watchdog: bool,
    topic: Topic,
}

/// Who reports failures of nodes and their devices.
const PLATFORMS: [&str; 4] = [KERNEL, "Kubernetes", "Ray", "Slurm"];

/// Adds host and device to " on rank 3": " on rank 3 (gpu-7, GPU 1)", " on gpu-7, GPU 1".
pub(super) fn on_place(on: String, place: &str) -> String {
    match (on.is_empty(), place.is_empty()) {
        (_, true) => on,
        (true, false) => format!(" on {place}"),
        (false, false) => format!("{on} ({place})"),
    }
}

/// Everything known of a job.
pub(super) struct LoggedJob {
    pub(super) names: ProcessNames,
    pub(super) ranks: BTreeMap<u32, Rank>,
    pub(super) joins: Joins,
    pub(super) notes: Vec<(Topic, NoteText)>,
    pub(super) events: Vec<(Timestamp, Event)>,
    /// When a watchdog first gave up a collective: what followed was its consequence.
    pub(super) given_up: Option<Timestamp>,
    /// When a launcher was first asked to end the job, and by which signal.
    pub(super) interrupted: Option<(Timestamp, i32)>,
    /// When the batch system canceled the job although no process had failed.
    pub(super) canceled: Option<Timestamp>,
    /// When a launcher last restarted the ranks, and when one reported that they ended well.
    pub(super) restarted: Option<Timestamp>,
    pub(super) finished: Option<Timestamp>,
    /// The success is that of all ranks.
    is_of_job: bool,
    /// Why processes ended that state no failure.
    cancellation: Option<Cancellation>,
    /// The signal by which the launcher ended all ranks that had not ended.
    stopped: Option<i32>,
    /// Time of the last fact that jobs which end well do not state.
    pub(super) last_fact: Timestamp,
    /// Ends of processes that the text does not identify.
    unidentified_ends: Vec<(Subject, ExitStatus)>,
    /// Names of such processes that raised an exception.
    unidentified_raised: BTreeSet<String>,
    /// Launchers that gave up waiting for those of other nodes.
    rendezvous_timeouts: BTreeSet<String>,
    /// Collectives that watchdogs of known ranks gave up.
    timed_out: HashSet<(Op, u64)>,
    /// Faults of devices whose ranks the text does not name.
    device_faults: Vec<DeviceFault>,
    /// Processes that the kernel killed, and that have no other name.
    kernel_kills: Vec<KernelKill>,
    /// Ids of processes of ranks that the kernel killed.
    killed_pids: BTreeSet<u32>,
    /// Ranks that had not reached a collective in which others waited.
    pub(super) absent: BTreeSet<u32>,
    /// Number of exceptions that parents quoted.
    quotes: usize,
    /// Errors of the network.
    pub(super) network: Vec<NetworkError>,
    /// Failures of workers that the text names, and whose rank it does not state.
    unplaced: Vec<UnplacedFailure>,
    /// What libraries and launchers reported.
    reports: Vec<Report>,
    /// Name of the log whose facts are being added, if there are several.
    file: Option<Arc<str>>,
    begins: Timestamp,
    pub(super) ends: Timestamp,
}

impl LoggedJob {
    pub(super) fn of_logs(logs: &[Log]) -> Self {
        let all: Vec<&Facts> = logs.iter().map(|log| &log.facts).collect();
        Self::new(&all, Clock::new(logs))
    }

    fn new(all: &[&Facts], clock: Clock) -> Self {
        let names = ProcessNames::new(all);
        let known = names.processes.keys();
        let mut job = Self {
            ranks: known.map(|&rank| (rank, Rank::default())).collect(),
            names,
            joins: Joins::default(),
            notes: Vec::new(),
            events: Vec::new(),
            given_up: None,
            interrupted: None,
            canceled: None,
            restarted: None,
            finished: None,
            is_of_job: false,
            cancellation: None,
            stopped: None,
            last_fact: Timestamp::default(),
            unidentified_ends: Vec::new(),
            unidentified_raised: BTreeSet::new(),
            rendezvous_timeouts: BTreeSet::new(),
            timed_out: HashSet::new(),
            device_faults: Vec::new(),
            kernel_kills: Vec::new(),
            killed_pids: BTreeSet::new(),
            absent: BTreeSet::new(),
            quotes: 0,
            network: Vec::new(),
            unplaced: Vec::new(),
            reports: Vec::new(),
            file: None,
            begins: clock.first,
            ends: clock.first,
        };
        let restarted = clock.last_restart(all);
        let whole = Timestamp(u64::MAX);
        job.cancellation = Cancellation::find(all, clock, restarted..whole);
        let earlier = Cancellation::find(all, clock, Timestamp::default()..restarted);
        for facts in all {
            job.file = (all.len() > 1).then(|| Arc::clone(&facts.file));
            job.add_log(facts, clock, restarted, earlier.as_ref());
            for (index, dumped) in facts.stacks.iter().enumerate() {
                let at = clock.time(dumped.at, facts.facts.len() + index);
                job.extend_to(at);
                if at < restarted {
                    continue;
                }
                let stacks = Arc::new(Stacks { at, ..dumped.stacks.clone() });
                let rank = job
                    .names
                    .rank(&dumped.who, None)
                    .or_else(|| job.only_one_ended_by(dumped.signal));
                let place = place_of(&stacks);
                let Some(rank) = rank else {
                    job.note_unidentified_stacks(&dumped.who, &place);
                    continue;
                };
                // The engine shows the line of a call.
                if dumped.signal.is_some() && place.starts_with("at ") {
                    let text = format!("rank {rank} was {place} when a signal ended it");
                    job.note(Topic::Stacks, text);
                }
                job.ranks.entry(rank).or_default().stacks.push(stacks);
            }
        }
        job.file = None;
        job.add_unresolved_names();
        job.assign_device_faults();
        job.note_rendezvous_timeouts();
        job.assign_kernel_kills();
        job.join_killed_loaders();
        job.note_unidentified_ends();
        for rank in job.joins.missing_at_barriers() {
            job.ranks.entry(rank).or_default();
        }
        for (&number, rank) in &mut job.ranks {
            rank.stacks.sort_by_key(|stacks| stacks.at);
            rank.stopped = rank.stopped.or(job.stopped);
            rank.complete_end(number);
            rank.mark_caught();
        }
        job.mark_last_exceptions_uncaught(all);
        if job.is_of_job && job.has_succeeded() {
            for rank in 0..job.names.world.unwrap_or_default() {
                job.ranks.entry(rank).or_default();
            }
        }
        job
    }

    /// Takes the facts of one log; those before `restarted` are of an earlier attempt, and `earlier` is its cancellation.
    fn add_log(
        &mut self,
        facts: &Facts,
        clock: Clock,
        restarted: Timestamp,
        earlier: Option<&Cancellation>,
    ) {
        let groups = groups_of(facts);
        let mut unknown = Vec::new();
        let mut has_failed = false;
        for (fact, at) in clock.times(facts) {
            self.extend_to(at);
            // What the kernel reports may concern another job, such as a fault of a device that no rank is known to use.
            let is_of_host = matches!(fact.what, Statement::Reported { by: KERNEL, .. })
                || fact.who.gpu.is_some() && self.names.rank(&fact.who, None).is_none();
            if !(fact.what.is_harmless() || is_of_host) {
                self.last_fact = self.last_fact.max(at);
            }
            if at < restarted {
                let is_canceled = earlier.is_some_and(|it| it.explains(fact, facts, at));
                self.note_earlier_attempt(fact, is_canceled);
                continue;
            }
            let is_canceled =
                self.cancellation.as_ref().is_some_and(|it| it.explains(fact, facts, at));
            // The batch system ends a step in which a task has failed.
            match &fact.what {
                Statement::Ended(how) | Statement::EndedLater(how) | Statement::Failed(how)
                    if is_canceled && !how.for_memory =>
                {
                    if let Some(rank) = self.names.rank(&fact.who, Some(&fact.what)) {
                        self.ranks.entry(rank).or_default().ended_later = Some(how.exit());
                    }
                    continue;
                }
                Statement::Ended(how) if !how.is_requested() => has_failed = true,
                Statement::Ended(how) if has_failed && fact.who.label.task.is_some() => {
                    if let Some(rank) = self.names.rank(&fact.who, Some(&fact.what)) {
                        self.ranks.entry(rank).or_default().stopped = how.signal;
                    }
                    continue;
                }
                Statement::NodeFailed { .. } => has_failed = true,
                Statement::Canceled { .. } if self.cancellation.is_none() => continue,
                _ => {}
            }
            if matches!(fact.what, Statement::Reported { .. }) {
                self.reported(fact);
                continue;
            }
            if !self.fact(fact, &groups, at) {
                unknown.push((fact, at));
            }
        }
        self.assign_exception(&mut unknown, facts);
        // Launchers name a rank after it printed its last line.
        for (fact, at) in unknown {
            self.add_unidentified(fact, at);
        }
    }

    /// Adds a note on what a library or a launcher reported.
    fn reported(&mut self, fact: &Fact) {
        let Statement::Reported { by, on: place, text, next } = &fact.what else { return };
        let rank = self.names.rank(&fact.who, None);
        if let Some(rank) = rank {
            self.ranks.entry(rank).or_default();
        }
        let worker = fact.who.label.worker.map(|it| format!(" on worker {}", it.name));
        let on = rank.map(|rank| format!(" on rank {rank}")).or(worker);
        let is_unplaced = on.is_none() && place.is_empty() && *by == KERNEL;
        let file = self.file.as_deref().filter(|_| is_unplaced);
        let on = match file.map(|file| (file, self.names.host_in(file))) {
            Some((_, Some(host))) => format!(" on {host}"),
            Some((file, None)) => format!(" in {file}"),
            None => on_place(on.unwrap_or_default(), place),
        };
        if self.reports.len() < MAX_REPORTS {
            let (is_of_watchdog, next) = (*by == WATCHDOG, *next);
            let is_of_platform = PLATFORMS.contains(by);
            let topic = if is_of_platform { Topic::Platform } else { Topic::Reports };
            let text = format!("{by} reported{on}: {text}");
            self.reports.push(Report { text, next, is_of_watchdog, topic });
        }
    }

    /// Adds notes on what libraries and launchers reported. What a watchdog reports of the timeout of another
    /// rank says nothing beside such a timeout.
    pub(super) fn note_reports(&mut self) {
        let (known, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.reports).into_iter().partition(|it| !it.next.is_empty());
        for Report { text, next, is_of_watchdog, topic } in known {
            if !is_of_watchdog || self.given_up.is_none() {
                self.note(topic, NoteText::new(text, next));
            }
        }
        // Warnings of unknown weight are also those of jobs that end well.
        let states = |rank: &Rank| {
            let fails =
                rank.ended.is_some() || !rank.raised.is_empty() || !rank.of_model.is_empty();
            fails || !rank.waits.is_empty() || rank.runs.is_some() || !rank.stacks.is_empty()
        };
        let is_known = !self.notes.is_empty() || self.ranks.values().any(states);
        if !is_known && self.finished.is_none() {
            let others =
                others.into_iter().filter(|it| !it.is_of_watchdog || self.given_up.is_none());
            for Report { text, .. } in others.collect::<Vec<_>>() {
                self.note(Topic::Reports, text);
            }
        }
    }

    /// Extends the period that the text covers to this time.
    fn extend_to(&mut self, at: Timestamp) {
        self.begins = self.begins.min(at);
        self.ends = self.ends.max(at);
    }

    /// Takes a fact; `false`: the text does not say which rank it is about.
    fn fact(&mut self, fact: &Fact, groups: &Groups, at: Timestamp) -> bool {
        let mut who = fact.who.clone();
        let stated = match fact.what {
            Statement::TimedOut { seq, .. } => Some(seq),
            Statement::Finishes { seq, .. } => Some(seq + 1),
            _ => None,
        };
        let seq = stated.filter(|_| !who.group.is_named());
        let group = seq.and_then(|seq| groups.get(&(who.label, who.rank, seq)));
        who.group = group.cloned().unwrap_or(who.group);
        if let Statement::Finishes { rank, .. } = fact.what {
            // The report counts ranks within the group.
            who.label.rank = None;
            who.rank = Some(rank);
        }
        let rank = self.names.rank(&who, Some(&fact.what));
        if let Some(rank) = rank {
            self.add_to_rank(rank, who.group, fact, at);
        }
        rank.is_some()
    }

    fn add_to_rank(&mut self, number: u32, group: GroupName, fact: &Fact, at: Timestamp) {
        let what = &fact.what;
        let rank = self.ranks.entry(number).or_default();
        match what {
            Statement::Named { .. }
            | Statement::Canceled { .. }
            | Statement::NodeFailed { .. }
            | Statement::Quoted { .. }
            | Statement::Reported { .. }
            | Statement::Interrupted { .. }
            | Statement::Restarted
            | Statement::Requeued
            | Statement::Finished { .. } => {}
            Statement::Finishes { seq, is_inside, .. } => {
                let joined = seq + u64::from(*is_inside);
                rank.progress.entry(group).or_insert((joined, *seq));
            }
            Statement::TimedOut { op, seq, waited_ms, .. } => {
                self.timed_out.insert((*op, *seq));
                let since = before(at, Duration::from_millis(*waited_ms));
                rank.wait(group, what, since, at);
                self.given_up = Some(self.given_up.map_or(at, |known| known.min(at)));
                self.extend_to(since);
            }
            Statement::CalledAt { place } => rank.called_at = Some(place.clone()),
            Statement::Progress { enqueued, completed, .. } => {
                let known = rank.progress.entry(group).or_default();
                *known = (known.0.max(*enqueued), known.1.max(*completed));
            }
            Statement::Runs { .. } => rank.run(what, at),
            Statement::Raised { .. } => self.raised(number, fact, at),
            Statement::Caught { text } => rank.caught(at, text),
            Statement::Ended(how) => {
                let known = rank.ended.get_or_insert((at, *how));
                known.1.for_memory |= how.for_memory;
            }
            Statement::EndedLater(how) => rank.ended_later = Some(how.exit()),
            Statement::Failed(how) => rank.failed = Some((at, *how)),
            Statement::Stopped { signal } => rank.stopped = Some(*signal),
            Statement::KilledForMemory { .. } => {
                rank.killed_for_memory = Some(at);
                self.killed_pids.extend(fact.who.pid);
            }
            Statement::CutOff { place } => self.cut_off(number, place.as_ref()),
            Statement::LostStore { server } => self.joins.lost_store(Some(number), server),
            Statement::Unresolved { host, reason } => {
                rank.unresolved = Some((Arc::clone(host), Arc::clone(reason)));
            }
            Statement::OfModel { fact, total, lines } => {
                rank.report(OfModel { at, fact: *fact, total: *total, lines: Arc::clone(lines) });
            }
            Statement::Uses { device } => rank.device = Some(Arc::clone(device)),
            Statement::WatchdogStuck { seconds } => self.joins.stuck(number, *seconds),
            Statement::Network { on, text } => self.network_failed(Some(number), on, text),
            Statement::Joined { key } => {
                let at = Some(at).filter(|_| fact.line.is_dated);
                self.joins.joined(number, *key, at);
            }
            Statement::Joins { .. }
            | Statement::Clients { .. }
            | Statement::MissesAddress { .. }
            | Statement::Misses { .. } => {
                self.joins.take(Some(number), what, at);
                let waited_ms = joins::waited_ms(what);
                self.extend_to(before(at, Duration::from_millis(waited_ms)));
            }
        }
    }

    fn network_failed(&mut self, rank: Option<u32>, on: &Arc<str>, text: &Arc<str>) {
        let (on, text) = (Arc::clone(on), Arc::clone(text));
        self.network.push(NetworkError { rank, on, text });
    }

    /// Takes an exception of a rank.
    fn raised(&mut self, number: u32, fact: &Fact, at: Timestamp) {
        let Statement::Raised { text, place, uncaught, went_on, is_last, is_logged, by_launcher } =
            &fact.what
        else {
            return;
        };
        let raised = Raised {
            at,
            text: Arc::clone(text),
            place: place.clone(),
            uncaught: *uncaught,
            is_last: *is_last,
            is_dated: fact.line.is_dated,
            is_logged: *is_logged,
            is_caught: false,
        };
        if fact.who.gpu.is_some() && self.has_error_of_device(number) {
            self.raised_by_device(number, fact);
        } else if *by_launcher {
            self.note_launcher_exception(&fact.who, text);
        } else if *went_on {
            let note = went_on_after(&format!("rank {number}"), text, place.as_ref());
            self.note(Topic::Exception, note);
            self.ranks.entry(number).or_default().handled(raised);
        } else {
            self.ranks.entry(number).or_default().raise(raised);
        }
    }

    /// Adds a note on a traceback of a rank with which the text ends.
    fn cut_off(&mut self, number: u32, place: Option<&Where>) {
        let at = words::at(place);
        let text =
            format!("rank {number} began a traceback{at}: the text ends before its exception");
        self.note(Topic::Exception, text);
    }

    /// The rank that was ended by this signal, if the text states that of one only.
    fn only_one_ended_by(&self, signal: Option<i32>) -> Option<u32> {
        let signal = signal?;
        let mut ended = self.ranks.iter().filter(|(_, rank)| {
            let how = rank.ended.map(|(_, how)| how.signal);
            how == Some(Some(signal))
        });
        let (only, _) = ended.next()?;
        ended.next().is_none().then_some(*only)
    }

    /// Adds a note. Returns whether it is new, and there are few on its topic.
    pub(super) fn note(&mut self, topic: Topic, text: impl Into<NoteText>) -> bool {
        /// Length at which a note is cut.
        const MAX: usize = 600;
        let NoteText { what, advice } = text.into();
        let note = (topic, NoteText { what: scan::cut(&what, MAX).into(), advice });
        let of_topic = self.notes.iter().filter(|(it, _)| *it == topic);
        let is_added = of_topic.count() < MAX_NOTES && !self.notes.contains(&note);
        if is_added {
            self.notes.push(note);
        }
        is_added
    }

    /// Time of the first fact.
    pub(super) const fn begins(&self) -> Timestamp {
        self.begins
    }
}

/// Groups of collectives that a watchdog gave up, by the process and the sequence number.
type Groups = BTreeMap<(Label, Option<u32>, u64), GroupName>;

/// The line about a timeout names no group; a later line of the same process does.
fn groups_of(facts: &Facts) -> Groups {
    let mut groups = Groups::new();
    for Fact { who, what, .. } in &facts.facts {
        let seq = match what {
            Statement::TimedOut { seq, .. } => Some(*seq),
            Statement::Progress { failed, .. } => *failed,
            _ => None,
        };
        if let Some(seq) = seq.filter(|_| who.group.is_named()) {
            // Some lines of the process do not repeat its rank.
            for rank in [who.rank, None] {
                let key = (who.label, rank, seq);
                groups.entry(key).or_insert_with(|| who.group.clone());
            }
        }
    }
    groups
}
