//! The events of a job for the engine, and the only evaluation of the engine.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::{
    Call, CallId, Event, OnStream, ProcessId, ThreadId, UNKNOWN_PROGRESS,
};
use ddp_doctor_diagnosis::input::provenance::Provenance;
use ddp_doctor_diagnosis::model::TEXT_LAYER;
use ddp_doctor_diagnosis::{Config, Engine};
use ddp_doctor_proto::report::{Exit, Timestamp};

use super::Replay;
use crate::flight_recorder::calls::{Placed, Progress};
use crate::flight_recorder::dump::Dump;
use crate::logs::{OfRanks, Statements};
use crate::{Observer, process};

/// Calls derived from counters have ids below this one.
const FIRST_RECORDED: u64 = 1 << 32;
/// Streams of calls that are derived from counters have numbers from here on.
const COUNTED: u64 = 1 << 32;

impl Replay<'_> {
    /// Plays the whole job. Returns the engine after its only evaluation.
    pub(in super::super) fn run(&self, observer: &mut dyn Observer) -> Engine {
        // Waits that are too short to be reported at any time.
        let never = Duration::from_nanos(u64::MAX);
        let mut engine = Engine::new(Config {
            stall_after: if self.wait_duration.is_recent() { never } else { self.stall_after },
            has_timed_out: true,
            provenance: Provenance::Dumps(Arc::new(self.provenance())),
            ..Config::default()
        });
        let mut events = Vec::new();
        let started = self.start();
        events.push(Event::JobStarted {
            job: self.job.name.clone(),
            attempt: 0,
            host: "".into(),
            at: started,
        });
        for (&rank, dump) in &self.job.ranks {
            self.join(rank, dump, started, &mut events);
        }
        feed(&mut engine, &mut events, observer);
        self.issue_all(&mut engine, observer);
        events.extend(self.waits.calls.iter().filter_map(|(&rank, &at)| self.wait(rank, at)));
        for (&rank, dump) in &self.job.ranks {
            self.progress(rank, dump, &mut events);
        }
        let stated = self.logs(started, &mut events);
        events.extend(self.missing_dumps(&stated));
        events.extend(self.left_out_groups());
        events.extend(self.no_calls());
        let end = Timestamp(self.end);
        let is_open = self.open_entries().next().is_some();
        let unwatched = |&rank| Event::Unwatched {
            process: process(rank),
            since: end,
            read_whole: true,
            exit: Exit::default(),
        };
        let ranks = self.job.ranks.keys().filter(|it| is_open && !stated.ended.contains(it));
        events.extend(ranks.map(unwatched));
        events.push(Event::EvidenceEnded { at: end });
        feed(&mut engine, &mut events, observer);
        engine.handle_timeout(end);
        let changed = engine.poll_change();
        observer.evaluated(&engine, end, changed);
        engine
    }

    /// Adds what logs of the job state about its ranks. Returns that, without the events.
    fn logs(&self, started: Timestamp, out: &mut Vec<Event>) -> OfRanks {
        if self.job.logs.is_empty() {
            return OfRanks::default();
        }
        let statements = Statements::new(&self.job.logs);
        let others: Vec<u32> =
            statements.ranks().filter(|it| !self.job.ranks.contains_key(it)).collect();
        let mut stated = statements.events(Timestamp(self.first_timeout));
        for rank in others {
            out.push(joined(rank, TEXT_LAYER, self.groups.world_size, started));
            let groups = self.groups.all.iter().zip(&self.first_open);
            for (group, first_open) in groups.filter(|it| it.0.info.key.members.contains(&rank)) {
                out.push(Event::GroupJoined {
                    process: process(rank),
                    group: Arc::clone(&group.info),
                });
                // How far a rank without a dump came is unknown. One that ended has made the calls that
                // its peers completed, and makes no further one.
                let progress = group.progress.values().map(Progress::known).max();
                let completed = first_open.as_ref().map(|(_, unit)| unit.seq - 1);
                let issued = if stated.is_gone(rank) {
                    completed.or(progress).unwrap_or(0)
                } else {
                    UNKNOWN_PROGRESS
                };
                out.push(Event::Frontier {
                    process: process(rank),
                    group: Arc::clone(&group.info),
                    issued,
                    p2p_issued: 0,
                });
            }
        }
        out.append(&mut stated.events);
        stated
    }

    fn start(&self) -> Timestamp {
        Timestamp(self.job.period().0)
    }

    fn join(&self, rank: u32, dump: &Dump, at: Timestamp, out: &mut Vec<Event>) {
        let process = process(rank);
        out.push(joined(rank, "c10d", self.groups.world_size, at));
        for &group in self.groups.of_rank(rank) {
            out.push(Event::GroupJoined {
                process,
                group: Arc::clone(&self.groups.all[group].info),
            });
        }
        let count = dump.lost();
        if count > 0 {
            out.push(Event::RecordsLost { process, count });
        }
        self.completed_before(rank, at, out);
    }

    /// Calls that are only known to be complete, from the counters of a rank, where other ranks
    /// have not completed theirs.
    fn completed_before(&self, rank: u32, at: Timestamp, out: &mut Vec<Event>) {
        let own = self.calls[&rank].units.iter();
        let recorded: HashSet<(usize, u64)> = own.map(|it| (it.group, it.seq)).collect();
        for &group in self.groups.of_rank(rank) {
            let Some((open, unit)) = &self.first_open[group] else {
                continue;
            };
            let progress = self.groups.all[group].progress.get(&rank);
            let completed = progress.is_some_and(|it| it.completed >= unit.seq);
            if !completed || recorded.contains(&(group, unit.seq)) {
                continue;
            }
            let mut call = self.call(*open, unit, CallId(group as u64 + 1));
            call.at = call.at.max(at);
            call.thread = ThreadId(0);
            (call.numel, call.whole) = (None, None);
            call.shape = None;
            call.place = None;
            call.on_stream =
                call.on_stream.map(|on| OnStream { stream: on.stream + COUNTED, ..on });
            issue(process(rank), call, true, false, out);
        }
    }

    /// Issues the calls of all ranks in the order of their times.
    fn issue_all(&self, engine: &mut Engine, observer: &mut dyn Observer) {
        let mut next: BinaryHeap<Reverse<(u64, u32, usize)>> = BinaryHeap::new();
        let time = |rank: u32, at: usize| {
            let calls = &self.calls[&rank];
            Some(calls.entry(calls.units.get(at)?).created)
        };
        for &rank in self.calls.keys() {
            next.extend(time(rank, 0).map(|at| Reverse((at, rank, 0))));
        }
        let mut events = Vec::new();
        while let Some(Reverse((now, rank, at))) = next.pop() {
            self.issue(rank, at, &mut events);
            self.show(rank, at, events.first(), observer);
            let calls = &self.calls[&rank];
            if calls.entry(&calls.units[at]).is_settled {
                events.clear();
            } else {
                feed(engine, &mut events, observer);
            }
            // The clock of a process may be set back.
            let later = time(rank, at + 1).map(|time| time.max(now));
            next.extend(later.map(|time| Reverse((time, rank, at + 1))));
        }
    }

    fn issue(&self, rank: u32, at: usize, out: &mut Vec<Event>) {
        let calls = &self.calls[&rank];
        let unit = &calls.units[at];
        let entry = calls.entry(unit);
        if !self.is_given(rank, at) {
            return;
        }
        let id = CallId(FIRST_RECORDED + at as u64);
        let mut call = self.call(rank, unit, id);
        if unit.is_message {
            let is_awaited = self.waits.calls.get(&rank) == Some(&at);
            // Nothing follows from a message without a partner that the rank does not wait for.
            let counts = |it: &Placed| match it.peer.zip(it.partner) {
                Some((peer, partner)) => is_awaited || self.is_given(peer, partner),
                None => unit.is_complete || is_awaited || it.peer.is_none(),
            };
            let placed = self.messages.placed(rank, at);
            let peer = self.groups.all[unit.group].peer(entry);
            let placed = placed.or_else(|| is_awaited.then(|| Placed::only(peer)));
            let Some(placed) = placed.filter(counts) else {
                return;
            };
            placed.apply(&mut call);
        }
        let on_host = entry.group.is_on_host;
        let is_last = calls.last_of_thread.get(&entry.thread) == Some(&at);
        // A thread of the host that has made no further call is in this one.
        let is_inside = on_host && !unit.is_complete && is_last;
        call.is_async = unit.is_complete && (on_host || unit.is_message);
        issue(process(rank), call, unit.is_complete, is_inside, out);
    }

    /// Whether the engine gets a call. Of a rank that waits for something else, its later calls would
    /// appear to be the first ones.
    fn is_given(&self, rank: u32, at: usize) -> bool {
        let unit = &self.calls[&rank].units[at];
        unit.is_complete || self.waits.may_be_first(rank, at) || self.waits.disagree(unit)
    }

    /// Shows an issued call with the times that the dump has of it.
    fn show(&self, rank: u32, at: usize, issued: Option<&Event>, observer: &mut dyn Observer) {
        let Some(issued) = issued else { return };
        let calls = &self.calls[&rank];
        let unit = &calls.units[at];
        if calls.entry(unit).is_counted() {
            return;
        }
        observer.event(issued);
        if unit.is_complete {
            let id = CallId(FIRST_RECORDED + at as u64);
            let entries = &calls.entries[unit.entries.clone()];
            let completed = entries
                .iter()
                .map(|entry| entry.completed)
                .max()
                .filter(|&it| it > 0)
                .map(Timestamp);
            observer.complete(process(rank), id, completed);
        }
    }

    /// The wait of a rank for one of its calls. Threads of the host wait inside their calls.
    fn wait(&self, rank: u32, at: usize) -> Option<Event> {
        let calls = &self.calls[&rank];
        let entry = calls.entry(&calls.units[at]);
        (!entry.group.is_on_host).then(|| Event::WaitBegin {
            process: process(rank),
            thread: ThreadId(entry.thread),
            call: Some(CallId(FIRST_RECORDED + at as u64)),
            place: None,
            at: Timestamp(entry.created),
        })
    }

    /// How far a rank got, from entries and counters.
    fn progress(&self, rank: u32, dump: &Dump, out: &mut Vec<Event>) {
        for &at in self.groups.of_rank(rank) {
            let group = &self.groups.all[at];
            let Some(progress) = group.progress.get(&rank) else {
                continue;
            };
            // Calls that could not be read are in its counters alone.
            let first = self.first_open[at].as_ref().map(|(_, unit)| unit.seq);
            let is_unread = dump.is_partial() && dump.status.is_empty();
            let issued = if is_unread || self.waits.hides_calls(rank) {
                UNKNOWN_PROGRESS
            } else if progress.is_limit && self.waits.shows_all_calls(rank) {
                first.map_or(UNKNOWN_PROGRESS, |seq| seq - 1)
            } else if progress.is_limit && !first.is_some_and(|seq| progress.lacks(seq)) {
                UNKNOWN_PROGRESS
            } else {
                match self.first_hidden(rank, at) {
                    None => progress.issued,
                    // The device of the rank has not reached it.
                    Some(seq) if self.waits.hides_later_calls(rank) => seq - 1,
                    Some(_) => UNKNOWN_PROGRESS,
                }
            };
            out.push(Event::Frontier {
                process: process(rank),
                group: Arc::clone(&group.info),
                issued,
                p2p_issued: 0,
            });
        }
    }

    /// The first collective of a group that a rank has made and the engine does not get.
    fn first_hidden(&self, rank: u32, group: usize) -> Option<u64> {
        let mut units = self.calls[&rank].units.iter().enumerate();
        let hidden = units.find(|(at, unit)| {
            !unit.is_message && unit.group == group && !self.is_given(rank, *at)
        });
        hidden.map(|(_, unit)| unit.seq)
    }
}

/// The event that the process of a rank is known from.
fn joined(rank: u32, layer: &str, world_size: u32, at: Timestamp) -> Event {
    Event::ProcessJoined {
        process: process(rank),
        rank: Some(rank),
        world_size: Some(world_size),
        host: "".into(),
        pid: 0,
        layer: layer.into(),
        world: "".into(),
        restarts: 0,
        at,
    }
}

fn feed(engine: &mut Engine, events: &mut Vec<Event>, observer: &mut dyn Observer) {
    for event in events.drain(..) {
        // Dumps have no times of returns and waits: the engine gets those of the calls.
        let is_of_call = matches!(
            event,
            Event::Issued { .. }
                | Event::Returned { .. }
                | Event::WaitBegin { .. }
                | Event::WaitEnd { .. }
                | Event::Completed { .. }
        );
        if !is_of_call {
            observer.event(&event);
        }
        engine.handle(event, Timestamp::default());
    }
}

/// The events of one call. Its completion is reported at once: later than that, nothing of the
/// process depends on it.
fn issue(process: ProcessId, call: Call, is_complete: bool, is_inside: bool, out: &mut Vec<Event>) {
    let (id, at, thread) = (call.id, call.at, call.thread);
    let followed = call.on_stream.is_some() && !call.is_async;
    out.push(Event::Issued { process, call: Arc::new(call) });
    if is_inside {
        return;
    }
    let is_waited = is_complete && followed;
    if is_waited {
        out.push(Event::WaitBegin { process, thread, call: Some(id), place: None, at });
        out.push(Event::WaitEnd { process, thread, call: Some(id), at });
    }
    out.push(Event::Returned { process, thread, call: id, followed, at });
    if is_waited {
        out.push(Event::Completed { process, call: id, at });
    }
}
