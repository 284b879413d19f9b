//! Passes the evidence of one job to the engine: first the journals, in the order of their reports;
//! then what the black boxes contain beyond them; then what is known of the ends of processes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::OomKills;
use ddp_doctor_diagnosis::{Config, Engine, Event};
use ddp_doctor_evidence::blackbox;
use ddp_doctor_evidence::decode::{Decoder, JOB_TABLES, KnownProcess, Memory};
use ddp_doctor_evidence::journal::SegmentReader;
use ddp_doctor_evidence::settings;
use ddp_doctor_host::proc;
use ddp_doctor_host::proc::Watched;
use ddp_doctor_ingest::{Observer, logs};
use ddp_doctor_proto::report::{Exit, Timestamp};
use ddp_doctor_proto::{NoteKind, ProcessState, v1};
use v1::event::Kind;

use super::Remark;
use super::jobs::{Node, RecordedJob};
use super::pieces::BoxFile;

/// Minimum interval of engine evaluations while a journal is played: that of a live node.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time between reports in which evaluations are due also where they have become rare.
const GAP: Duration = Duration::from_secs(5);
/// While nothing happens, the interval of evaluations grows to the elapsed time divided by this.
const PATIENCE: u32 = 64;
/// Cost of evaluations ([`Engine::cost`]) in such times after which they become rare: a small journal can have many long
/// gaps. That of a small job counts as `MIN_COST`.
const MAX_GAPS: u64 = 1 << 22;
const MIN_COST: u64 = 32;
/// Cost of evaluations after which one takes place for half as many reports as before, again and again: a small journal
/// can have many reports of many ranks.
const STEP: u64 = 1 << 24;
/// Maximum time between the announcement of an exit and the end of the process.
const TEARDOWN: Duration = Duration::from_secs(10);
/// Number of messages of a box decoded at a time.
const AT_ONCE: usize = 4096;

/// Plays the evidence of a job to its end. Returns the engine in its final state.
pub(super) fn play(
    job: RecordedJob,
    remarks: &mut Vec<Remark>,
    observer: &mut dyn Observer,
) -> Engine {
    // Black boxes without a journal have no settings.
    let hellos = job.nodes.iter().map(|node| &node.hello);
    let hello = hellos.max_by_key(|it| (it.stall_after_s, it.time_scale.is_some()));
    let config = hello.map(settings::config).unwrap_or_default();
    if !job.logs.is_empty() {
        return play_logs(&job, config, observer);
    }
    let mut stage = Stage::new(config, Timestamp::default(), observer);
    let tables = Arc::new(Memory::new(JOB_TABLES));
    let nodes: Vec<(u32, Node)> = (0..).zip(job.nodes).collect();
    let mut parts: Vec<Part> =
        nodes.into_iter().map(|(number, node)| Part::new(number, node, &tables, remarks)).collect();

    // Play the journals of all nodes, in the order in which their reports were sent.
    let sent = |part: &Part| part.next.as_ref().map(|report| report.sent_unix_ns);
    let mut queue: BinaryHeap<Reverse<(u64, usize)>> =
        (0..).zip(&parts).filter_map(|(at, part)| Some(Reverse((sent(part)?, at)))).collect();
    let mut gaps = parts.iter().filter(|part| part.is_in_gap).count();
    while let Some(Reverse((_, at))) = queue.pop() {
        let part = &mut parts[at];
        gaps -= usize::from(part.is_in_gap);
        part.play_report(&mut stage, remarks);
        gaps += usize::from(part.is_in_gap);
        stage.is_blind = gaps > 0;
        queue.extend(sent(part).map(|sent| Reverse((sent, at))));
    }
    for part in &mut parts {
        part.play_boxes(&mut stage, remarks);
    }
    conclude(parts, &mut stage, remarks);
    stage.engine
}

/// The engine after what was read of the ranks of a running job, in one round on each of its nodes.
#[must_use]
pub fn engine_of_rounds(rounds: &[&[v1::Report]]) -> Engine {
    let hellos = rounds.iter().filter_map(|round| hello_of(round));
    let hello = hellos.max_by_key(|it| it.stall_after_s);
    let mut unobserved = Unobserved;
    let mut stage = Stage::new(
        hello.map(settings::config).unwrap_or_default(),
        Timestamp::default(),
        &mut unobserved,
    );
    let mut reports: Vec<(usize, &v1::Report)> = (0..)
        .zip(rounds)
        .flat_map(|(node, round)| round.iter().map(move |report| (node, report)))
        .collect();
    reports.sort_by_key(|(_, report)| report.sent_unix_ns);
    let tables = Arc::new(Memory::new(JOB_TABLES));
    let mut decoders: Vec<Decoder> =
        (0..).zip(rounds).map(|(node, _)| Decoder::within(node, Arc::clone(&tables))).collect();
    for (node, report) in reports {
        stage.go_to(Timestamp(report.sent_unix_ns));
        decoders[node].decode(report.clone(), &mut stage.events);
        stage.feed();
    }
    stage.engine.handle_timeout(stage.now);
    stage.look();
    stage.engine
}

fn hello_of(round: &[v1::Report]) -> Option<&v1::Hello> {
    round.iter().flat_map(|it| &it.events).find_map(|event| match &event.kind {
        Some(Kind::Hello(hello)) => Some(hello),
        _ => None,
    })
}

/// An observer that ignores everything.
pub(super) struct Unobserved;

impl Observer for Unobserved {
    fn shows_all_calls(&self) -> bool {
        false
    }

    fn evaluated(&mut self, _: &Engine, _: Timestamp, _: bool) {}
}

/// Plays logs: their events at once, and the end of the text.
fn play_logs(job: &RecordedJob, mut config: Config, observer: &mut dyn Observer) -> Engine {
    let evidence = logs::evidence(&job.logs);
    // What the text itself gave up has waited long enough.
    let given_up = evidence.timeout.unwrap_or(config.stall_after);
    config.stall_after = config.stall_after.min(given_up);
    let mut stage = Stage::new(config, evidence.ends, observer);
    stage.events = evidence.events;
    stage.feed();
    stage.engine.handle_timeout(stage.now);
    stage.look();
    stage.engine
}

/// The engine and its time.
struct Stage<'a> {
    engine: Engine,
    /// Events between decoder and engine; empty between reports.
    events: Vec<Event>,
    /// Time of the latest evaluation.
    looked: Timestamp,
    now: Timestamp,
    /// Current time of this machine.
    wall: Timestamp,
    /// Whether the next report of a journal follows events that were dropped. Until then nothing is
    /// evaluated: what the ranks of that node do is unknown.
    is_blind: bool,
    /// Cost of all evaluations, and of those while nothing happened.
    spent: u64,
    spent_in_gaps: u64,
    /// Number of reports since the latest evaluation.
    reports: u64,
    observer: &'a mut dyn Observer,
}

impl<'a> Stage<'a> {
    /// The stage of a job without events.
    fn new(config: Config, now: Timestamp, observer: &'a mut dyn Observer) -> Self {
        Self {
            engine: Engine::new(config),
            events: Vec::new(),
            looked: Timestamp::default(),
            now,
            wall: Timestamp::now(),
            is_blind: false,
            spent: 0,
            spent_in_gaps: 0,
            reports: 0,
            observer,
        }
    }

    /// Passes decoded events to the engine. Returns whether they include the end of the job.
    fn feed(&mut self) -> bool {
        let mut ended = false;
        for event in self.events.drain(..) {
            ended |= matches!(event, Event::JobEnded { .. });
            self.observer.event(&event);
            self.engine.handle(event, self.now);
        }
        ended
    }

    /// Advances the time to `at`. The engine is evaluated when a live one would have been, so that
    /// its findings get the same times.
    fn go_to(&mut self, at: Timestamp) {
        let at = at.max(self.now);
        let begins = self.now == Timestamp::default();
        self.reports += 1;
        let is_rare = self.reports >> (self.spent / STEP).min(63) == 0;
        let is_gap = at.since(self.looked) >= GAP && self.spent_in_gaps < MAX_GAPS;
        if self.is_blind {
            self.looked = at;
        } else if !begins && (!is_rare || is_gap) && at.since(self.looked) >= LOOK_EVERY {
            self.look();
            self.spent_in_gaps += if is_rare { self.engine.cost() } else { 0 };
            let from = self.now;
            while let Some(due) = self.engine.poll_timeout().filter(|&due| due < at) {
                self.spent_in_gaps += self.engine.cost().max(MIN_COST);
                let patience = if self.spent_in_gaps < MAX_GAPS { PATIENCE } else { 1 };
                let rest = due.since(from) / patience;
                self.now = due.max(self.now.plus(rest)).min(at);
                self.engine.handle_timeout(self.now);
                self.look();
                if self.now >= at {
                    break;
                }
            }
        }
        self.now = at;
    }

    fn look(&mut self) {
        let changed = self.engine.poll_change();
        self.looked = self.now;
        self.spent += self.engine.cost();
        self.reports = 0;
        self.observer.evaluated(&self.engine, self.now, changed);
    }
}

/// The evidence of one node during playback.
struct Part {
    node: Node,
    decoder: Decoder,
    reader: Option<SegmentReader>,
    next: Option<v1::Report>,
    /// Whether `next` follows events that were dropped.
    is_in_gap: bool,
    /// Number of unreadable parts of the journal that were reported.
    reported: usize,
    /// Until when the node was followed; `None`: it was not.
    watched: Option<Timestamp>,
    /// Whether the journal contains the end of the job.
    ended: bool,
    /// Numbers of the processes whose boxes were read to the end.
    read_whole: Vec<u64>,
}

impl Part {
    fn new(number: u32, node: Node, tables: &Arc<Memory>, remarks: &mut Vec<Remark>) -> Self {
        let mut part = Self {
            decoder: Decoder::within(number, Arc::clone(tables)),
            reader: None,
            next: None,
            is_in_gap: false,
            reported: 0,
            watched: None,
            ended: false,
            read_whole: Vec::new(),
            node,
        };
        if let Some(journal) = &part.node.journal {
            match SegmentReader::open(journal.paths()) {
                Ok(reader) => part.reader = Some(reader),
                Err(error) => {
                    let path = journal.path.clone();
                    remarks.push(Remark { path, text: error.to_string() });
                }
            }
        }
        part.read_next(remarks);
        part
    }

    fn path(&self) -> Option<PathBuf> {
        Some(self.node.journal.as_ref()?.path.clone())
    }

    /// Whether the run of the journal is still active.
    fn goes_on(&self) -> bool {
        let journal = self.node.journal.as_ref();
        !self.ended && journal.is_some_and(|journal| journal.goes_on)
    }

    /// Whether the state of its processes can be read on this machine.
    fn is_here(&self) -> bool {
        self.node.hello.boot_id == proc::boot_id()
    }

    fn read_next(&mut self, remarks: &mut Vec<Remark>) {
        let Some(reader) = &mut self.reader else {
            return;
        };
        self.is_in_gap = reader.is_before_gap();
        let read = reader.read();
        let skipped = reader.skipped().iter().skip(self.reported);
        let mut trouble: Vec<(PathBuf, String)> =
            skipped.map(|(path, skipped)| (path.clone(), skipped.to_string())).collect();
        self.reported += trouble.len();
        self.next = read.unwrap_or_else(|error| {
            trouble.extend(self.node.journal.iter().map(|it| (it.path.clone(), error.to_string())));
            None
        });
        // A journal that is being written may end in an incomplete frame.
        if self.goes_on() {
            return;
        }
        for (path, text) in trouble {
            self.node.gaps.push(text.clone());
            remarks.push(Remark { path, text });
        }
    }

    fn play_report(&mut self, stage: &mut Stage<'_>, remarks: &mut Vec<Remark>) {
        let Some(report) = self.next.take() else {
            return;
        };
        let sent = Timestamp(report.sent_unix_ns);
        stage.go_to(sent);
        self.watched = self.watched.max(Some(sent));
        self.decoder.decode(report, &mut stage.events);
        self.ended |= stage.feed();
        self.read_next(remarks);
    }

    /// Plays the records of black boxes that are not in the journal: all if there is no journal,
    /// none if the journal contains the end of the job.
    fn play_boxes(&mut self, stage: &mut Stage<'_>, remarks: &mut Vec<Remark>) {
        if self.ended {
            return;
        }
        if self.node.journal.is_none() {
            let hello = Kind::Hello(self.node.hello.clone());
            self.apply(vec![hello], stage);
        }
        for it in std::mem::take(&mut self.node.boxes) {
            self.play_box(&it, stage, remarks);
        }
        for marker in std::mem::take(&mut self.node.no_boxes) {
            let marker = marker.marker;
            stage.events.push(Event::Note {
                process: None,
                kind: NoteKind::NoBlackBox,
                rank: marker.rank,
                pid: Some(marker.pid),
                text: "it found no room for a black box".into(),
                at: Timestamp(self.node.hello.started_unix_ns),
            });
        }
        for gap in std::mem::take(&mut self.node.gaps) {
            stage.events.push(Event::Note {
                process: None,
                kind: NoteKind::Unreadable,
                rank: None,
                pid: None,
                text: gap.into(),
                at: Timestamp(self.node.hello.started_unix_ns),
            });
        }
        self.decoder.release(&mut stage.events);
        stage.feed();
    }

    fn play_box(&mut self, it: &BoxFile, stage: &mut Stage<'_>, remarks: &mut Vec<Remark>) {
        let identity = &it.identity;
        // A process may create several boxes, one after each `exec`.
        let is_its = |known: &KnownProcess<'_>| {
            known.identity.pid == identity.pid
                && known.identity.start_ticks == identity.start_ticks
                && known.identity.anchor_mono_ns == identity.anchor_mono_ns
                && known.layer.as_ref() == identity.layer
        };
        let known = self.decoder.processes().find(is_its);
        let last = self.decoder.processes().last().map_or(0, |it| it.number);
        let (number, begin, has_ended) = known.map_or((last + 1, 0, false), |known| {
            (known.number, known.next_record, known.has_ended)
        });
        if has_ended {
            return;
        }
        let mut reader = match it.open() {
            Ok(reader) => reader,
            Err(error) => {
                return remarks.push(Remark { path: it.path.clone(), text: error.to_string() });
            }
        };
        reader.begin_at(begin);
        let lives = self.is_here() && proc::is_alive(identity.pid, identity.start_ticks);
        // The rank in the journal may be older than that in the box.
        let joined = blackbox::joined(number, reader.identity());
        let mut batch = vec![Kind::ProcessJoined(joined)];
        let mut full = Vec::new();
        let mut sink = |item| {
            batch.push(blackbox::message(number, item));
            if batch.len() >= AT_ONCE {
                full.push(std::mem::take(&mut batch));
            }
        };
        if lives {
            reader.poll(usize::MAX, &mut sink);
        } else {
            reader.finish(&mut sink);
        }
        full.push(batch);
        for batch in full {
            self.apply(batch, stage);
        }
        self.read_whole.push(number);
    }

    fn apply(&mut self, kinds: Vec<Kind>, stage: &mut Stage<'_>) {
        let events = kinds.into_iter().map(|kind| v1::Event { kind: Some(kind) });
        let report = v1::Report {
            sent_unix_ns: stage.now.0,
            events: events.collect(),
            ..v1::Report::default()
        };
        self.decoder.decode(report, &mut stage.events);
        stage.feed();
    }

    /// Latest time known for this node. Times in a black box are unverified: those in the future
    /// are limited to the current time.
    fn latest(&self, wall: Timestamp) -> Timestamp {
        let records = self.decoder.processes().map(|process| process.latest).map(|at| at.min(wall));
        records.chain(self.watched).max().unwrap_or_default()
    }

    /// Processes without a recorded end, and their fates.
    fn open_ends(&self) -> Vec<(KnownProcess<'_>, Fate)> {
        self.decoder
            .processes()
            .filter(|process| !process.has_ended)
            .map(|process| (process, self.fate(&process)))
            .collect()
    }

    fn fate(&self, process: &KnownProcess<'_>) -> Fate {
        if self.ended || self.goes_on() || self.node.hello.attached {
            return Fate::Watched;
        }
        let (pid, start) = (process.identity.pid, process.identity.start_ticks);
        if !self.is_here() {
            return self.left(process).map_or(Fate::Unknown, Fate::Left);
        }
        let Ok(watched) = Watched::new(pid, start) else {
            return Fate::Unknown;
        };
        match watched {
            Some(watched) if !watched.has_ended() => Fate::Lives(state_of(&watched)),
            gone => {
                let exit = gone.map(|watched| watched.exit()).unwrap_or_default();
                match self.left(process) {
                    Some((code, at)) if exit == Exit::default() => {
                        let code = Some(code);
                        Fate::Gone(Exit { code, signal: None }, Some(at))
                    }
                    _ => Fate::Gone(exit, None),
                }
            }
        }
    }

    /// Announced exit status and its time, if the process can be assumed to have exited: it made no
    /// call afterwards, and was not seen alive for long after it.
    fn left(&self, process: &KnownProcess<'_>) -> Option<(i32, Timestamp)> {
        let (code, at) = process.announced?;
        let lived_on = self.watched.is_some_and(|until| until > at.plus(TEARDOWN));
        let knows_its_status = code >= 0;
        (knows_its_status && !lived_on && !process.is_inside).then_some((code, at))
    }
}

/// What is known of a process without a recorded end.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is being followed, or was until the end of the job: it had not ended.
    Watched,
    /// It is alive, in this state.
    Lives(ProcessState),
    /// It has ended. Its exit comes from the kernel if available, otherwise from its announcement,
    /// with the time of that.
    Gone(Exit, Option<Timestamp>),
    /// It announced its exit with this status and time. Its end was not observed.
    Left((i32, Timestamp)),
    /// Unknown: it ran on another machine, or this one was restarted since.
    Unknown,
}

fn state_of(watched: &Watched) -> ProcessState {
    let frozen = watched.cgroup().is_some_and(proc::is_frozen);
    match watched.stat() {
        _ if frozen => ProcessState::Stopped,
        Some(stat) => stat.state(),
        None => ProcessState::Unspecified,
    }
}

/// Reports the ends of processes to the engine, and advances the time to the end of the evidence.
fn conclude(parts: Vec<Part>, stage: &mut Stage<'_>, remarks: &mut Vec<Remark>) {
    let fates: Vec<Vec<(KnownProcess<'_>, Fate)>> = parts.iter().map(Part::open_ends).collect();
    let lives = fates.iter().flatten().any(|(_, fate)| matches!(fate, Fate::Lives(_)));
    let goes_on = parts.iter().any(Part::goes_on);
    let latest = parts.iter().map(|part| part.latest(stage.wall)).max().unwrap_or_default();
    // The time advances as far as it was observed: to the present if ranks are still alive.
    let now = if lives || goes_on { stage.wall } else { latest };
    for (part, fates) in parts.iter().zip(&fates) {
        for (process, fate) in fates {
            let since = part.watched.unwrap_or_default();
            let ended = |exit, at| Event::ProcessChanged {
                process: process.id,
                state: ProcessState::Dead,
                exit,
                oom_kills: OomKills::default(),
                at,
            };
            let unwatched = Event::Unwatched {
                process: process.id,
                since,
                read_whole: part.read_whole.contains(&process.number),
                exit: Exit::default(),
            };
            match *fate {
                Fate::Watched | Fate::Lives(ProcessState::Unspecified) => {}
                Fate::Lives(state) => stage.events.push(Event::ProcessChanged {
                    process: process.id,
                    state,
                    exit: Exit::default(),
                    oom_kills: OomKills::default(),
                    at: now,
                }),
                // A process that is gone while its peers still wait ended before them.
                Fate::Gone(exit, at) if lives || exit != Exit::default() => {
                    let at = at.unwrap_or(since.max(process.latest));
                    stage.events.push(ended(exit, at));
                }
                Fate::Left((code, at)) => {
                    // An exit whose status the process did not know is announced as negative.
                    let code = Some(code).filter(|&code| code >= 0);
                    let exit = Exit { code, signal: None };
                    stage.events.extend([unwatched, ended(exit, at)]);
                }
                Fate::Gone(..) | Fate::Unknown => stage.events.push(unwatched),
            }
        }
    }
    // What was read of a running job is complete as it is.
    let is_complete = parts.iter().all(|part| part.ended || part.node.hello.attached);
    if !is_complete && !lives && !goes_on {
        stage.events.push(Event::EvidenceEnded { at: now });
    }
    if let Some(part) = parts.iter().find(|part| part.goes_on()) {
        remarks.push(Remark {
            path: part.path().unwrap_or_else(|| Path::new("").into()),
            text: "the job is still running: this is its current state".into(),
        });
    }
    stage.go_to(now);
    stage.feed();
    stage.engine.handle_timeout(stage.now);
    stage.look();
}

#[cfg(test)]
#[path = "play_tests.rs"]
mod tests;
