//! Facts of all logs of a job as events for the engine.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::{NoteKind, Op};

use super::facts::{ExitStatus, Fact, Facts, GroupName, LineNumber, Statement, Subject};
use super::names::Names;
use super::rank::{OfModel, Raised, Rank, went_on_after};
use super::times::Clock;
use super::{EARLIER, Log, before, groups, launch_of, start};
use crate::diagnosis::event::{Event, GroupInfo, ProcessId, Stacks};
use crate::diagnosis::evidence::transport;
use crate::diagnosis::model::TEXT_LAYER;
use crate::diagnosis::words::{self, Ranks};
use crate::ingest::process;

/// Why Slurm cancels a step of which it lost a node.
const NODE_FAILURE: &str = "NODE FAILURE";
/// Maximum number of notes on one topic.
const MAX_NOTES: usize = 4;

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

/// What a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// Calls that ranks wait in, or where they stand.
    Waits,
    /// Ranks that wait for the world to form.
    Startup,
    Exception,
    End,
    /// An attempt that the launcher restarted.
    Earlier,
    Network,
    /// Stacks of a process that is not identified.
    Stacks,
}

/// Everything known of a job.
pub(super) struct Job {
    pub(super) names: Names,
    pub(super) ranks: BTreeMap<u32, Rank>,
    pub(super) joins: start::Joins,
    pub(super) notes: Vec<(Topic, String)>,
    pub(super) events: Vec<(Timestamp, Event)>,
    /// When a watchdog first gave up a collective: what followed was its consequence.
    pub(super) given_up: Option<Timestamp>,
    /// When a launcher was first asked to end the job, and by which signal.
    pub(super) interrupted: Option<(Timestamp, i32)>,
    /// When the batch system cancelled the job although no process had failed.
    pub(super) cancelled: Option<Timestamp>,
    /// When a launcher last restarted the ranks, and when one reported that they ended well.
    pub(super) restarted: Option<Timestamp>,
    pub(super) finished: Option<Timestamp>,
    /// Time of the last fact that does more than name a rank.
    pub(super) said: Timestamp,
    /// Ends of processes that the text does not identify.
    pub(super) unknown_ends: Vec<(Subject, ExitStatus)>,
    /// Collectives that watchdogs of known ranks gave up.
    pub(super) timed_out: HashSet<(Op, u64)>,
    /// Number of exceptions that parents quoted.
    pub(super) quotes: usize,
    /// Errors of the network, with the ranks that reported them.
    pub(super) network: Vec<(Option<u32>, Arc<str>)>,
    begins: Timestamp,
    pub(super) ends: Timestamp,
}

/// Turns the facts of all logs of one job into events.
#[must_use]
pub fn evidence(logs: &[Log]) -> Evidence {
    let mut job = Job::of_logs(logs);
    job.take_back_consequences();
    job.take_back_aborts();
    job.open(logs);
    let is_named = start::joins(&mut job);
    let differ = groups::compared(&mut job);
    job.take_back_losses(is_named, differ);
    start::devices(&mut job);
    job.name_reductions();
    groups::calls(&mut job);
    groups::last_calls(&mut job);
    job.add_ends();
    job.add_models();
    job.add_interruption();
    job.note_network();
    job.close()
}

impl Job {
    pub(super) fn of_logs(logs: &[Log]) -> Self {
        let all: Vec<&Facts> = logs.iter().map(|log| &log.facts).collect();
        Self::of(&all, Clock::of(logs))
    }

    fn of(all: &[&Facts], clock: Clock) -> Self {
        let names = Names::of(all);
        let known = names.processes.keys();
        let mut job = Self {
            ranks: known.map(|&rank| (rank, Rank::default())).collect(),
            names,
            joins: start::Joins::default(),
            notes: Vec::new(),
            events: Vec::new(),
            given_up: None,
            interrupted: None,
            cancelled: None,
            restarted: None,
            finished: None,
            said: Timestamp::default(),
            unknown_ends: Vec::new(),
            timed_out: HashSet::new(),
            quotes: 0,
            network: Vec::new(),
            begins: clock.first,
            ends: clock.first,
        };
        let restarted = clock.restart_before_a_failure(all);
        for facts in all {
            job.of_log(facts, clock, restarted);
            for (index, dumped) in facts.stacks.iter().enumerate() {
                let at = clock.time(dumped.at, facts.facts.len() + index);
                job.extend_to(at);
                if at < restarted {
                    continue;
                }
                let stacks = Arc::new(Stacks { at, ..dumped.stacks.clone() });
                let rank = job.names.rank(&dumped.who, None);
                let rank = rank.or_else(|| job.only_one_ended_by(dumped.signal));
                let place = groups::place_of(&stacks);
                let Some(rank) = rank else {
                    job.of_unknown_stacks(&dumped.who, &place);
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
        job.note_unknown_ends();
        for rank in job.joins.missing_at_barriers() {
            job.ranks.entry(rank).or_default();
        }
        for (&number, rank) in &mut job.ranks {
            rank.stacks.sort_by_key(|stacks| stacks.at);
            rank.complete_end(number);
        }
        job.take_last_exceptions(all);
        job
    }

    /// Takes the facts of one log; those before `restarted` are of an earlier attempt.
    fn of_log(&mut self, facts: &Facts, clock: Clock, restarted: Timestamp) {
        let groups = groups_of(facts);
        let mut unknown = Vec::new();
        let mut has_failed = false;
        for (fact, at) in clock.times(facts) {
            self.extend_to(at);
            if !matches!(fact.what, Statement::Named { .. }) {
                self.said = self.said.max(at);
            }
            if at < restarted {
                self.of_earlier_attempt(fact);
                continue;
            }
            // The batch system ends a step in which a task has failed.
            match &fact.what {
                Statement::Ended(how) if !how.is_requested() => has_failed = true,
                Statement::Ended(how) if has_failed && fact.who.label.task.is_some() => {
                    if let Some(rank) = self.names.rank(&fact.who, Some(&fact.what)) {
                        self.ranks.entry(rank).or_default().stopped = how.signal;
                    }
                    continue;
                }
                Statement::NodeFailed => has_failed = true,
                Statement::Cancelled { why, .. }
                    if has_failed && why.as_ref().is_none_or(|it| &**it == NODE_FAILURE) =>
                {
                    continue;
                }
                _ => {}
            }
            if !self.fact(fact, &groups, at) {
                unknown.push((fact, at));
            }
        }
        let failed = facts.facts.iter().filter_map(|fact| self.failed(fact));
        let failed: BTreeMap<u32, (LineNumber, ExitStatus)> = failed.collect();
        self.adopt(&mut unknown, &failed);
        // Launchers name a rank after it printed its last line.
        for (fact, at) in unknown {
            self.of_unknown(fact, at);
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
        let seq = match fact.what {
            Statement::TimedOut { seq, .. } => Some(seq),
            Statement::Finishes { seq, .. } => Some(seq + 1),
            _ => None,
        };
        let seq = seq.filter(|_| !who.group.is_named());
        let group = seq.and_then(|seq| groups.get(&(who.label, who.rank, seq)));
        who.group = group.cloned().unwrap_or(who.group);
        if let Statement::Finishes { rank, .. } = fact.what {
            // The report counts ranks within the group.
            who.label.rank = None;
            who.rank = Some(rank);
        }
        let rank = self.names.rank(&who, Some(&fact.what));
        if let Some(rank) = rank {
            self.of_rank(rank, who.group, fact, at);
        }
        rank.is_some()
    }

    pub(super) fn of_rank(&mut self, number: u32, group: GroupName, fact: &Fact, at: Timestamp) {
        let what = &fact.what;
        let rank = self.ranks.entry(number).or_default();
        match what {
            Statement::Named { .. }
            | Statement::Cancelled { .. }
            | Statement::NodeFailed
            | Statement::Quoted { .. }
            | Statement::Interrupted { .. }
            | Statement::Restarted
            | Statement::Finished => {}
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
            Statement::Ended(how) => {
                let known = rank.ended.get_or_insert((at, *how));
                known.1.for_memory |= how.for_memory;
            }
            Statement::EndedLater(how) => rank.ended_later = Some(how.exit()),
            Statement::Failed(how) => rank.failed = Some((at, *how)),
            Statement::Stopped { signal } => rank.stopped = Some(*signal),
            Statement::KilledForMemory => rank.killed_for_memory = Some(at),
            Statement::CutOff { place } => self.cut_off(number, place.as_ref()),
            Statement::LostStore { server } => self.joins.lost_store(Some(number), server),
            Statement::OfModel { fact, total, lines } => {
                rank.report(OfModel { at, fact: *fact, total: *total, lines: Arc::clone(lines) });
            }
            Statement::Uses { device } => rank.device = Some(Arc::clone(device)),
            Statement::WatchdogStuck { seconds } => self.joins.stuck(number, *seconds),
            Statement::Network { text } => self.network.push((Some(number), Arc::clone(text))),
            Statement::Joined { key } => {
                let at = Some(at).filter(|_| fact.line.is_dated);
                self.joins.joined(number, *key, at);
            }
            Statement::Joins { .. }
            | Statement::Clients { .. }
            | Statement::MissesAddress { .. }
            | Statement::MissesAtBarrier { .. } => {
                self.joins.take(Some(number), what, at);
                let waited_ms = start::waited_ms(what);
                self.extend_to(before(at, Duration::from_millis(waited_ms)));
            }
        }
    }

    /// Takes an exception of a rank.
    fn raised(&mut self, number: u32, fact: &Fact, at: Timestamp) {
        let Statement::Raised { text, place, uncaught, went_on, is_last, by_launcher } = &fact.what
        else {
            return;
        };
        if *by_launcher {
            self.of_launcher(text);
        } else if *went_on {
            let note = went_on_after(&format!("rank {number}"), text, place.as_ref());
            self.note(Topic::Exception, note);
        } else {
            self.ranks.entry(number).or_default().raise(Raised {
                at,
                text: Arc::clone(text),
                place: place.clone(),
                uncaught: *uncaught,
                is_last: *is_last,
                is_dated: fact.line.is_dated,
            });
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

    /// Adds a note; its second line states what to do. Returns whether it is new, and there are few on its
    /// topic.
    pub(super) fn note(&mut self, topic: Topic, text: String) -> bool {
        /// Length at which a note is cut.
        const MAX: usize = 600;
        let (what, advice) = text.split_at(text.find('\n').unwrap_or(text.len()));
        let note = (topic, super::scan::cut(what, MAX).to_owned() + advice);
        let of_topic = self.notes.iter().filter(|(it, _)| *it == topic);
        let is_added = of_topic.count() < MAX_NOTES && !self.notes.contains(&note);
        if is_added {
            self.notes.push(note);
        }
        is_added
    }

    /// Drops ends and exceptions that a watchdog's timeout brought about.
    pub(super) fn take_back_consequences(&mut self) {
        let Some(given_up) = self.given_up else {
            return;
        };
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
                if !is_kept && !waited {
                    let at = words::at(it.place.as_ref());
                    let text = &it.text;
                    notes.push(format!(
                        "rank {number} raised {text}{at} after a watchdog had given up"
                    ));
                }
                is_kept
            });
            if let Some((_, how)) = rank.ended.take_if(|(at, _)| *at >= given_up) {
                rank.ended_later = Some(how.exit());
            }
        }
        for note in notes {
            self.note(Topic::Exception, note);
        }
    }

    /// The processes of all ranks.
    fn open(&mut self, logs: &[Log]) {
        let begins = before(self.begins, EARLIER);
        // Several files are those of their folder, which may be the current one; torchrun has one for each launch.
        let path = logs.first().and_then(|log| std::path::absolute(&log.path).ok());
        let name = path.as_deref().and_then(|path| match (launch_of(path), logs) {
            (Some(launch), _) => launch.file_name().map(OsStr::to_owned),
            (None, [_]) => path.file_stem().map(OsStr::to_owned),
            (None, _) => Some(path.parent()?.file_name()?.to_owned()),
        });
        let name = name.map_or_else(|| "job".into(), |it| it.to_string_lossy().into_owned());
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
        }
    }

    pub(super) fn join(
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

    pub(super) const fn begins(&self) -> Timestamp {
        self.begins
    }

    fn host(&self, rank: u32) -> Arc<str> {
        let known = self.names.processes.get(&rank);
        known.and_then(|it| it.0.clone()).unwrap_or_default()
    }

    /// The group of all ranks, as far as the text names them.
    pub(super) fn world(&self, name: &str, backend: &str) -> Arc<GroupInfo> {
        let highest = self.ranks.keys().next_back().map_or(0, |rank| rank + 1);
        let members = (0..self.names.world.unwrap_or(highest)).collect();
        group(name, "default_pg", backend, members)
    }

    /// The events in order, and the end of the text.
    fn close(mut self) -> Evidence {
        let has_succeeded = self.add_success();
        let notes = std::mem::take(&mut self.notes);
        let notes = notes.into_iter().map(|(_, text)| text);
        for text in notes.chain(self.joins.notes()) {
            self.events.push((self.begins, note(text, self.begins)));
        }
        self.events.sort_by_key(|(at, _)| *at);
        let mut events: Vec<Event> = self.events.into_iter().map(|(_, event)| event).collect();
        for (&rank, known) in &self.ranks {
            if known.ended.is_none() && !has_succeeded {
                let waits = known.waits.values().chain(&known.runs);
                let given_up = waits.map(|waiting| waiting.at);
                let given_up = given_up.chain(self.joins.gave_up(rank)).max();
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
        let waits = self.ranks.values().flat_map(|rank| rank.waits.values());
        let waits = waits.map(|it| it.at.since(it.since));
        Evidence { events, ends: self.ends, timeout: waits.chain(self.joins.timeouts()).min() }
    }
}

/// A note on the job as a whole.
pub(super) fn note(text: String, at: Timestamp) -> Event {
    Event::Note {
        process: None,
        kind: NoteKind::Unreadable,
        rank: None,
        pid: None,
        text: text.into(),
        at,
    }
}

/// Groups of collectives that a watchdog gave up, by the process and the sequence number.
type Groups = BTreeMap<(super::label::Label, Option<u32>, u64), GroupName>;

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

pub(super) fn group(
    name: &str,
    description: &str,
    backend: &str,
    members: Vec<u32>,
) -> Arc<GroupInfo> {
    Arc::new(GroupInfo::c10d(name, description, backend, members))
}

/// Whether an exception is about the communication with other ranks.
fn is_about_communication(text: &str) -> bool {
    text.contains("Dist") || transport::is_from_transport(text) || start::is_about_a_wait(text)
}

/// "ranks 0–3" and "was" or "were".
pub(super) fn were(ranks: &[u32]) -> String {
    let verb = if ranks.len() == 1 { "was" } else { "were" };
    format!("{} {verb}", Ranks(ranks))
}
