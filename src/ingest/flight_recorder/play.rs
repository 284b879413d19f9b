//! Passes the calls of a job to the engine.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::report::{Exit, Timestamp};
use ddp_doctor_proto::{DType, NoteKind, Op};

use super::dump::{Dump, Entry};
use super::groups::Groups;
use super::jobs::Job;
use super::messages::Messages;
use super::units::{Calls, Unit, is_on_host};
use super::waits::Waits;
use crate::diagnosis::event::{Call, CallId, Event, OnStream, ProcessId, ThreadId};
use crate::diagnosis::timing::Timing;
use crate::diagnosis::{Config, Engine};
use crate::ingest::logs::{OfRanks, Statements};
use crate::ingest::{Observer, process};

/// Number of calls of a rank that may have made any number of them.
const UNKNOWN: u64 = u64::MAX >> 1;
/// Calls derived from counters have ids below this one.
const FIRST_RECORDED: u64 = 1 << 32;

/// A job as the engine sees it.
pub(super) struct Play<'a> {
    pub(super) job: &'a Job,
    pub(super) groups: Groups,
    pub(super) calls: BTreeMap<u32, Calls>,
    messages: Messages,
    waits: Waits,
    /// For each group, the first collective that a rank has not completed, with that rank.
    first_open: Vec<Option<(u32, Unit)>>,
    /// For coalesced groups, the entry that differs between ranks, by group and number.
    shown: BTreeMap<(usize, u64), usize>,
    /// When the dumps were written, in nanoseconds since the Unix epoch.
    pub(super) end: u64,
    /// When the first wait reached its timeout.
    first_timeout: u64,
    stall_after: Duration,
}

impl<'a> Play<'a> {
    pub(super) fn of(job: &'a Job, groups: Groups) -> Self {
        let calls = job.ranks.iter();
        let calls: BTreeMap<u32, Calls> = calls
            .map(|(&rank, dump)| (rank, Calls::of(rank, dump, &groups)))
            .collect();
        let messages = Messages::of(job, &groups, &calls);
        let waits = Waits::of(job, &groups, &calls, &messages);
        let mut play = Self {
            job,
            groups,
            calls,
            messages,
            waits,
            first_open: Vec::new(),
            shown: BTreeMap::new(),
            end: 0,
            first_timeout: 0,
            stall_after: Timing::default().default_stall_after,
        };
        play.first_open = play.find_first_open();
        play.shown = play.representatives();
        play.set_end();
        play
    }

    /// Dumps are written when a wait reaches its timeout, and do not contain the time. It is that
    /// of the first call whose timeout is over, and not before the latest call.
    fn set_end(&mut self) {
        let latest = self.job.period().1;
        let open = self.open_entries().filter(|entry| entry.created > 0);
        let timeout = |entry: &Entry| entry.timeout_ms.map(Duration::from_millis);
        let first = open.min_by_key(|entry| entry.created.saturating_add(nanos(timeout(entry))));
        let Some(first) = first else {
            self.end = latest;
            self.first_timeout = latest;
            return;
        };
        let timeout = timeout(first).unwrap_or(self.stall_after);
        self.stall_after = self.stall_after.min(timeout);
        let waited = first.created.saturating_add(nanos(Some(timeout)));
        self.first_timeout = waited;
        let last_open = self.open_entries().map(|entry| entry.created).max();
        // Every open call is reportable at the end.
        let last = last_open
            .unwrap_or(0)
            .saturating_add(nanos(Some(self.stall_after)));
        self.end = latest.max(waited).max(last);
    }

    /// Entries that are not complete.
    pub(super) fn open_entries(&self) -> impl Iterator<Item = &'a Entry> {
        let open = self.calls.iter().flat_map(|(rank, calls)| {
            let entries = &self.job.ranks[rank].entries;
            let open = calls.units.iter().filter(|unit| !unit.is_complete);
            open.map(|unit| &entries[unit.entries.start])
        });
        open.collect::<Vec<_>>().into_iter()
    }

    /// Plays the whole job. Returns the engine after its only evaluation.
    pub(super) fn run(&self, observer: &mut dyn Observer) -> Engine {
        let mut engine = Engine::new(Config {
            stall_after: self.stall_after,
            has_timed_out: true,
            ..Config::default()
        });
        let mut events = Vec::new();
        let started = self.start();
        events.push(Event::JobStarted {
            job: self.name(),
            attempt: 0,
            host: "".into(),
            at: started,
        });
        for (&rank, dump) in &self.job.ranks {
            self.join(rank, dump, started, &mut events);
        }
        feed(&mut engine, &mut events, observer);
        self.issue_all(&mut engine, observer);
        events.extend(
            self.waits
                .calls
                .iter()
                .map(|(&rank, &at)| self.wait(rank, at)),
        );
        for (&rank, dump) in &self.job.ranks {
            self.progress(rank, dump, &mut events);
        }
        let stated = self.logs(started, &mut events);
        events.extend(self.missing_dumps(&stated));
        events.extend(self.left_out_groups());
        let end = Timestamp(self.end);
        let is_open = self.open_entries().next().is_some();
        let unwatched = |&rank| Event::Unwatched {
            process: process(rank),
            since: end,
            read_whole: true,
            exit: Exit::default(),
        };
        let ranks = self
            .job
            .ranks
            .keys()
            .filter(|it| is_open && !stated.ended.contains(it));
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
        let statements = Statements::of(&self.job.logs);
        let others = statements.ranks();
        let others: Vec<u32> = others
            .filter(|it| !self.job.ranks.contains_key(it))
            .collect();
        let mut stated = statements.events(Timestamp(self.first_timeout));
        for rank in others {
            out.push(joined(rank, self.groups.world_size, started));
            let groups = self.groups.all.iter();
            for group in groups.filter(|it| it.info.key.members.contains(&rank)) {
                out.push(Event::GroupJoined {
                    process: process(rank),
                    group: Arc::clone(&group.info),
                });
                // How far a rank without a dump came is unknown. One that ended makes no further call.
                if !stated.is_gone(rank) {
                    out.push(Event::Frontier {
                        process: process(rank),
                        group: Arc::clone(&group.info),
                        issued: UNKNOWN,
                        p2p_issued: 0,
                    });
                }
            }
        }
        out.append(&mut stated.events);
        stated
    }

    /// Name of the folder of the dumps.
    fn name(&self) -> String {
        let folder = std::path::absolute(&self.job.folder).unwrap_or_default();
        let name = folder.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    fn start(&self) -> Timestamp {
        Timestamp(self.job.period().0)
    }

    fn join(&self, rank: u32, dump: &Dump, at: Timestamp, out: &mut Vec<Event>) {
        let process = process(rank);
        out.push(joined(rank, self.groups.world_size, at));
        for &group in self.groups.of_rank(rank) {
            out.push(Event::GroupJoined {
                process,
                group: Arc::clone(&self.groups.all[group].info),
            });
        }
        if dump.cut.is_some() {
            out.push(Event::RecordsLost { process, count: 1 });
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
            call.on_stream = call.on_stream.map(|on| OnStream {
                stream: on.stream + COUNTED,
                ..on
            });
            issue(process(rank), call, true, false, out);
        }
    }

    fn find_first_open(&self) -> Vec<Option<(u32, Unit)>> {
        let mut first: Vec<Option<(u32, Unit)>> = vec![None; self.groups.all.len()];
        for (&rank, calls) in &self.calls {
            let collectives = calls.units.iter().filter(|unit| !unit.is_message);
            for unit in collectives.filter(|unit| !unit.is_complete) {
                let known = &mut first[unit.group];
                if known.as_ref().is_none_or(|(_, known)| unit.seq < known.seq) {
                    *known = Some((rank, unit.clone()));
                }
            }
        }
        first
    }

    /// Issues the calls of all ranks in the order of their times.
    fn issue_all(&self, engine: &mut Engine, observer: &mut dyn Observer) {
        let mut next: BinaryHeap<Reverse<(u64, u32, usize)>> = BinaryHeap::new();
        let time = |rank: u32, at: usize| {
            let unit = self.calls[&rank].units.get(at)?;
            Some(self.job.ranks[&rank].entries[unit.entries.start].created)
        };
        for &rank in self.calls.keys() {
            next.extend(time(rank, 0).map(|at| Reverse((at, rank, 0))));
        }
        let mut events = Vec::new();
        while let Some(Reverse((now, rank, at))) = next.pop() {
            self.issue(rank, at, &mut events);
            self.show(rank, at, events.first(), observer);
            feed(engine, &mut events, observer);
            // The clock of a process may be set back.
            let later = time(rank, at + 1).map(|time| time.max(now));
            next.extend(later.map(|time| Reverse((time, rank, at + 1))));
        }
    }

    fn issue(&self, rank: u32, at: usize, out: &mut Vec<Event>) {
        let calls = &self.calls[&rank];
        let unit = &calls.units[at];
        let entries = &self.job.ranks[&rank].entries;
        let entry = &entries[unit.entries.start];
        let id = CallId(FIRST_RECORDED + at as u64);
        let mut call = self.call(rank, unit, id);
        if unit.is_message && !self.messages.place(rank, at, &mut call) {
            return;
        }
        let on_host = is_on_host(&entry.group.backend);
        let is_last = calls.last_of_thread.get(&entry.thread) == Some(&at);
        // A thread of the host that has made no further call is in this one.
        let is_inside = on_host && !unit.is_complete && is_last;
        call.is_async = unit.is_complete && (on_host || unit.is_message);
        issue(process(rank), call, unit.is_complete, is_inside, out);
    }

    /// Shows an issued call with the times that the dump has of it.
    fn show(&self, rank: u32, at: usize, issued: Option<&Event>, observer: &mut dyn Observer) {
        let Some(issued) = issued else { return };
        observer.event(issued);
        let unit = &self.calls[&rank].units[at];
        if unit.is_complete {
            let id = CallId(FIRST_RECORDED + at as u64);
            let entries = &self.job.ranks[&rank].entries[unit.entries.clone()];
            let completed = entries.iter().map(|entry| entry.completed).max();
            let completed = completed.filter(|&it| it > 0).map(Timestamp);
            observer.complete(process(rank), id, completed);
        }
    }

    /// The wait of a rank for the device of one of its calls.
    fn wait(&self, rank: u32, at: usize) -> Event {
        let unit = &self.calls[&rank].units[at];
        let entry = &self.job.ranks[&rank].entries[unit.entries.start];
        Event::WaitBegin {
            process: process(rank),
            thread: ThreadId(entry.thread),
            call: Some(CallId(FIRST_RECORDED + at as u64)),
            place: None,
            at: Timestamp(entry.created),
        }
    }

    /// A call, without what dumps do not contain.
    fn call(&self, rank: u32, unit: &Unit, id: CallId) -> Call {
        let dump = &self.job.ranks[&rank];
        let group = &self.groups.all[unit.group];
        let shown = self
            .shown
            .get(&(unit.group, unit.seq))
            .copied()
            .unwrap_or(0);
        let at = unit.entries.start + shown.min(unit.entries.len() - 1);
        let entry = &dump.entries[at];
        let stream = if self.calls[&rank].one_stream {
            1
        } else {
            unit.group as u64 + 2
        };
        Call {
            group: Some(Arc::clone(&group.info)),
            seq: unit.seq,
            dtype: entry.dtype,
            numel: entry.numel,
            whole: entry.pieces.map(|(whole, _)| whole),
            shape: entry.shape.as_ref().map(|it| it.to_vec()),
            tensors: entry.tensors,
            on_stream: (!is_on_host(&entry.group.backend)).then_some(OnStream {
                stream,
                launch: unit.launch,
            }),
            place: entry.place.clone(),
            ..Call::new(
                id,
                Timestamp(entry.created),
                ThreadId(entry.thread),
                entry.op,
            )
        }
    }

    /// How far a rank got, from entries and counters.
    fn progress(&self, rank: u32, dump: &Dump, out: &mut Vec<Event>) {
        for &at in self.groups.of_rank(rank) {
            let group = &self.groups.all[at];
            let Some(progress) = group.progress.get(&rank) else {
                continue;
            };
            // The last calls of a dump that was cut off are in its counters alone.
            let issued = match dump.cut {
                Some(_) if dump.status.is_empty() => UNKNOWN,
                _ if self.waits.unknown.contains(&rank) => UNKNOWN,
                _ => progress.issued,
            };
            out.push(Event::Frontier {
                process: process(rank),
                group: Arc::clone(&group.info),
                issued,
                p2p_issued: 0,
            });
        }
    }

    /// Notes on ranks without a dump that others may be waiting for, or whose dump is unreadable.
    /// `stated`: what logs state about ranks.
    fn missing_dumps(&self, stated: &OfRanks) -> Vec<Event> {
        /// Maximum number of ranks that are listed one by one.
        const LISTED: usize = 64;
        let mut texts: BTreeMap<u32, String> = BTreeMap::new();
        let unreadable = self.job.unreadable.iter();
        texts.extend(unreadable.map(|(&rank, text)| (rank, text.clone())));
        let mut awaited: BTreeSet<u32> = BTreeSet::new();
        for (at, call) in self.waits_for_missing() {
            let members = self.groups.all[at].info.key.members.iter();
            for &rank in members.filter(|rank| !self.job.ranks.contains_key(rank)) {
                let text = texts
                    .entry(rank)
                    .or_insert_with(|| "it left no dump".into());
                if awaited.insert(rank) {
                    text.push_str(&call);
                }
            }
        }
        let is_missing = |rank: u32| {
            rank < self.groups.world_size
                && !self.job.ranks.contains_key(&rank)
                && !stated.is_gone(rank)
        };
        texts.retain(|&rank, _| is_missing(rank));
        let notes = texts
            .into_iter()
            .take(LISTED)
            .map(|(rank, text)| Event::Note {
                process: None,
                kind: NoteKind::Unreadable,
                rank: Some(rank),
                pid: None,
                text: text.into(),
                at: Timestamp(self.end),
            });
        notes.collect()
    }

    /// A note on groups whose calls are left out.
    fn left_out_groups(&self) -> Option<Event> {
        let count = self.groups.left_out();
        (count > 0).then(|| Event::Note {
            process: None,
            kind: NoteKind::Unreadable,
            rank: None,
            pid: None,
            text: format!(
                "the calls of {count} process groups are left out: together the groups have too many members"
            )
            .into(),
            at: Timestamp(self.end),
        })
    }

    /// Groups whose ranks with a dump have all made a call that is not complete, with a sentence on
    /// the call: of the groups of each rank without a dump, the one with the earliest call.
    fn waits_for_missing(&self) -> Vec<(usize, String)> {
        let mut found: Vec<(Call, usize)> = Vec::new();
        for (at, group) in self.groups.all.iter().enumerate() {
            let Some((rank, unit)) = &self.first_open[at] else {
                continue;
            };
            let is_incomplete = group.progress.len() < group.info.key.members.len();
            let all = group.progress.values().all(|it| it.issued >= unit.seq);
            if is_incomplete && all {
                found.push((self.call(*rank, unit, CallId(0)), at));
            }
        }
        found.sort_by_key(|(call, _)| call.at);
        let mut listed: BTreeSet<u32> = BTreeSet::new();
        found.retain(|(_, at)| {
            let members = self.groups.all[*at].info.key.members.iter();
            let missing = members.filter(|rank| !self.job.ranks.contains_key(rank));
            let new: Vec<u32> = missing
                .copied()
                .filter(|rank| !listed.contains(rank))
                .collect();
            listed.extend(&new);
            !new.is_empty()
        });
        let sentence = |(call, at): (Call, usize)| {
            let group = &self.groups.all[at].info;
            let text = format!(
                "; {} #{} of {} is not complete, and all of its ranks with a dump have made that call",
                call.op, call.seq, group.description,
            );
            (at, text)
        };
        found.into_iter().map(sentence).collect()
    }

    /// For each coalesced group of collectives, the first entry that differs between ranks.
    fn representatives(&self) -> BTreeMap<(usize, u64), usize> {
        let signatures = |rank: u32, unit: &Unit| -> Vec<Signature> {
            let entries = &self.job.ranks[&rank].entries[unit.entries.clone()];
            let signature = |it: &Entry| (it.op, it.numel, it.dtype);
            entries.iter().map(signature).collect()
        };
        let mut first: BTreeMap<(usize, u64), Vec<Signature>> = BTreeMap::new();
        let mut shown = BTreeMap::new();
        for (&rank, calls) in &self.calls {
            let several = calls.units.iter().filter(|unit| unit.entries.len() > 1);
            for unit in several.filter(|unit| !unit.is_message) {
                let own = signatures(rank, unit);
                let known = first
                    .entry((unit.group, unit.seq))
                    .or_insert_with(|| own.clone());
                let pairs = own.iter().zip(known.iter());
                let differs = pairs.enumerate().find(|(_, (a, b))| a != b);
                if let Some((at, _)) = differs {
                    let at_first = shown.entry((unit.group, unit.seq)).or_insert(at);
                    *at_first = at.min(*at_first);
                }
            }
        }
        shown
    }
}

/// What the entries of a coalesced group must agree on.
type Signature = (Op, Option<u64>, DType);

/// Streams of calls that are derived from counters have numbers from here on.
const COUNTED: u64 = 1 << 32;

/// The event that the process of a rank is known from.
fn joined(rank: u32, world_size: u32, at: Timestamp) -> Event {
    Event::ProcessJoined {
        process: process(rank),
        rank: Some(rank),
        world_size: Some(world_size),
        host: "".into(),
        pid: 0,
        layer: "c10d".into(),
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

fn nanos(duration: Option<Duration>) -> u64 {
    duration.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX))
}

/// The events of one call. Its completion is reported at once: later than that, nothing of the
/// process depends on it.
fn issue(process: ProcessId, call: Call, is_complete: bool, is_inside: bool, out: &mut Vec<Event>) {
    let (id, at, thread) = (call.id, call.at, call.thread);
    let followed = call.on_stream.is_some() && !call.is_async;
    out.push(Event::Issued {
        process,
        call: Arc::new(call),
    });
    if is_inside {
        return;
    }
    let is_waited = is_complete && followed;
    if is_waited {
        out.push(Event::WaitBegin {
            process,
            thread,
            call: Some(id),
            place: None,
            at,
        });
        out.push(Event::WaitEnd {
            process,
            thread,
            call: Some(id),
            at,
        });
    }
    out.push(Event::Returned {
        process,
        thread,
        call: id,
        followed,
        at,
    });
    if is_waited {
        out.push(Event::Completed {
            process,
            call: id,
            at,
        });
    }
}
