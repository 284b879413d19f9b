//! The data of the page. Times are microseconds since the beginning of the job's timeline.

use std::collections::BTreeMap;

use ddp_doctor_diagnosis::event::ThreadStack;
use ddp_doctor_diagnosis::{findings, source::cause};
use ddp_doctor_host::source_files::{SourceFolders, SourceLines};
use ddp_doctor_proto::catalogue::Code;
use ddp_doctor_proto::dump::Thread;
use ddp_doctor_proto::facts;
use ddp_doctor_proto::report::{
    Certificate, Evidence, Finding, Parameter, Rank, RankCall, RankDevice, RankState, Report,
    Timestamp, Where,
};
use ddp_doctor_proto::words::{call_text, captured_in, certainty, of_group, rank_list};
use serde::Serialize;

use super::super::dump;
use super::super::explain::Page as Explanation;
use super::super::text::{self, RankTable, short_path};
use super::super::timeline::{Blocked, Event, Mark, Spent, TimedCall, Timeline, Track};

use super::shares::Span;

/// Maximum number of calls on the page …
const MAX_CALLS: usize = 120_000;
/// … and of each process, depending on the number of processes.
const CALLS_PER_PROCESS: [usize; 2] = [24, 512];
/// Maximum number of points of memory curves on the page …
const MAX_POINTS: usize = 60_000;
/// … and of each curve, depending on the number of curves.
const POINTS_PER_CURVE: [usize; 2] = [12, 240];
/// Maximum number of source excerpts of a finding.
const MAX_EXCERPTS: usize = 4;
/// Lines of source shown before and after a line.
const CONTEXT_LINES: u32 = 2;
/// Maximum number of nodes in the graph of waits.
const MAX_NODES: usize = 256;

/// The data of a page.
#[derive(Debug, Serialize)]
pub(super) struct Page {
    version: &'static str,
    jobs: Vec<PageJob>,
}

#[derive(Debug, Serialize)]
struct PageJob {
    id: String,
    verdict: String,
    about: String,
    attempt: u32,
    /// Beginning of the timeline, in Unix microseconds.
    base: u64,
    until: u64,
    evidence: Evidence,
    /// Where calls were captured: "PyTorch and NCCL".
    captured_in: String,
    findings: Vec<Entry>,
    ranks: Vec<RankRow>,
    /// Distinct calls, by the index in the rows of `tracks`.
    kinds: Vec<Kind>,
    tracks: Vec<Lane>,
    /// For a slow job: start and end of the time for which `shares` of the tracks are given.
    shares: Option<[u64; 2]>,
    waits: Vec<Node>,
    stacks: Vec<Stack>,
}

/// A finding.
#[derive(Debug, Serialize)]
struct Entry {
    code: String,
    name: String,
    severity: String,
    effect: String,
    confidence: String,
    role: String,
    caused_by: Vec<usize>,
    summary: String,
    context: String,
    /// "attempt 1", if the ranks were restarted; otherwise empty.
    attempt: String,
    cause: Option<String>,
    root: Vec<u32>,
    root_text: String,
    root_confidence: String,
    victims: Vec<u32>,
    sides: Vec<Side>,
    excerpts: Vec<Excerpt>,
    parameters: Vec<Parameter>,
    why: Vec<String>,
    fix: Vec<String>,
    proof: Option<Proof>,
    meaning: Vec<String>,
    blocked: Option<u64>,
    detected: u64,
}

/// Ranks that did the same at the place of a finding.
#[derive(Debug, Serialize)]
struct Side {
    ranks: String,
    root: bool,
    state: String,
    place: String,
    source: String,
    call: String,
}

/// Lines of a source file.
#[derive(Debug, Serialize)]
struct Excerpt {
    ranks: String,
    root: bool,
    place: String,
    function: String,
    line: u32,
    lines: Vec<(u32, String)>,
}

#[derive(Debug, Serialize)]
struct Proof {
    kind: String,
    facts: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RankRow {
    rank: u32,
    host: String,
    pid: u32,
    state: String,
    exit: Option<String>,
    step: u64,
    place: Option<String>,
    call: Option<String>,
    waited_ms: Option<u64>,
    device: Option<Device>,
    /// Links with faults.
    ports: Vec<String>,
}

/// A GPU.
#[derive(Debug, Serialize)]
struct Device {
    #[serde(flatten)]
    device: RankDevice,
    is_slowed: bool,
}

/// What calls may have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Kind {
    op: String,
    call: String,
    group: String,
    layer: String,
    place: String,
    function: String,
    p2p: bool,
    hidden: bool,
    thread: u32,
}

/// A process on the timeline.
#[derive(Debug, Serialize)]
struct Lane {
    rank: u32,
    host: String,
    pid: u32,
    began: u64,
    ended: Option<(u64, String)>,
    omitted: u64,
    /// Kind, number, step, time issued since the call before, and from there until: returned, wait
    /// began, wait ended, completed. -1: not recorded. Last: 1 if the wait is inferred.
    calls: Vec<[i64; 9]>,
    /// Time, kind, text.
    marks: Vec<(u64, &'static str, String)>,
    memory: Vec<(String, Vec<(u64, u64)>)>,
    /// Times spent on input and garbage collection: kind, start, length.
    spent: Vec<(&'static str, u64, u64)>,
    /// Own work, input, waiting, garbage collection.
    shares: Option<[u64; 4]>,
}

/// Ranks that wait in the same call for the same ranks.
#[derive(Debug, Serialize)]
struct Node {
    ranks: Vec<u32>,
    text: String,
    call: String,
    group: String,
    place: String,
    since: u64,
    needs: Vec<u32>,
}

/// Ranks whose main threads have the same frames.
#[derive(Debug, Serialize)]
struct Stack {
    ranks: Vec<u32>,
    text: String,
    /// Function, place and source, outermost first.
    frames: Vec<[String; 3]>,
    state: String,
    trouble: String,
}

/// The data of all jobs.
pub(super) fn page(jobs: &[(&Report, &Timeline)], folders: &[SourceFolders]) -> Page {
    let job = |(&(report, timeline), folders): (&(&Report, &Timeline), &SourceFolders)| {
        let started = report.job.started_at.unwrap_or(timeline.begins());
        let clock = Clock(started.min(timeline.begins()));
        let mut sources = SourceLines::below(folders);
        let span = Span::new(report, timeline);
        let ranks = RankTable::new(&report.ranks);
        let (kinds, tracks) = lanes(timeline, span, clock);
        PageJob {
            id: report.job.id.clone(),
            verdict: report.verdict.to_string(),
            about: text::about(report),
            attempt: report.job.attempt,
            base: clock.0.0 / 1000,
            until: clock.us(timeline.until),
            evidence: report.evidence.clone(),
            captured_in: captured_in(&report.evidence.layers),
            findings: report
                .findings
                .iter()
                .map(|finding| entry(finding, &ranks, clock, &mut sources))
                .collect(),
            ranks: report.ranks.iter().map(rank_row).collect(),
            kinds,
            tracks,
            shares: span.map(|span| [clock.us(span.from), clock.us(span.to)]),
            waits: nodes(&timeline.waits, clock),
            stacks: stacks(timeline, &mut sources),
        }
    };
    Page { version: ddp_doctor_proto::VERSION, jobs: jobs.iter().zip(folders).map(job).collect() }
}

/// Converts times to microseconds since a beginning.
#[derive(Clone, Copy)]
struct Clock(Timestamp);

impl Clock {
    const fn us(self, at: Timestamp) -> u64 {
        at.0.saturating_sub(self.0.0) / 1000
    }
}

fn entry(
    finding: &Finding,
    ranks: &RankTable<'_>,
    clock: Clock,
    sources: &mut SourceLines,
) -> Entry {
    let side = |[who, state, place, source, call]: [String; 5]| Side {
        root: who.starts_with('▸'),
        ranks: who.trim_start_matches(['▸', ' ']).replacen("rank ", "", 1),
        state,
        place,
        source,
        call,
    };
    let code = Code::find(&finding.code).filter(|it| findings::detects(it.code));
    let cause = finding
        .cause
        .and_then(|it| Some(format!("{} ({})", cause::sentence(it)?, certainty(it.confidence))));
    Entry {
        code: finding.code.clone(),
        name: finding.name.clone(),
        severity: finding.severity.to_string(),
        effect: finding.effect.to_string(),
        confidence: finding.confidence.to_string(),
        role: finding.role.to_string(),
        caused_by: finding.caused_by.clone(),
        summary: finding.title().to_owned(),
        context: text::context(finding, true),
        attempt: ranks.attempt(finding).unwrap_or_default(),
        cause,
        root: finding.ranks.root.clone(),
        root_text: rank_list(&finding.ranks.root),
        root_confidence: finding.ranks.root_confidence.to_string(),
        victims: finding.ranks.victims.clone(),
        sides: text::rows(finding, ranks, sources).into_iter().map(side).collect(),
        excerpts: excerpts(finding, sources),
        parameters: finding.parameters.clone(),
        why: finding.reasons(),
        fix: finding.next.clone(),
        proof: finding.certificate.as_ref().map(proof),
        meaning: code.map(|it| Explanation::new(it).meaning()).unwrap_or_default(),
        blocked: finding.blocked_at.map(|at| clock.us(at)),
        detected: clock.us(finding.detected_at),
    }
}

/// The source around the lines of a finding, those of root cause ranks first, and of these the line that the
/// title names first. A line is attributed to root cause ranks alone if they are there.
fn excerpts(finding: &Finding, sources: &mut SourceLines) -> Vec<Excerpt> {
    let is_root = |call: &&RankCall| finding.ranks.root.contains(&call.rank);
    let (roots, others): (Vec<_>, Vec<_>) = finding.per_rank.iter().partition(is_root);
    let mut places: Vec<(bool, &Where, Vec<u32>)> = Vec::new();
    for (call, is_root) in
        roots.into_iter().map(|it| (it, true)).chain(others.into_iter().map(|it| (it, false)))
    {
        let Some(place) = &call.place else { continue };
        match places.iter_mut().find(|(_, at, _)| *at == place) {
            Some((root, _, ranks)) if *root == is_root => ranks.push(call.rank),
            Some(_) => {}
            None => places.push((is_root, place, vec![call.rank])),
        }
    }
    let title = finding.title();
    let named_at = |place: &Where| {
        let file = place.file.rsplit('/').next().unwrap_or_default();
        title.find(&format!("{file}:{}", place.line)).unwrap_or(usize::MAX)
    };
    places.sort_by_key(|(root, place, _)| (!root, named_at(place)));
    let excerpt = |(root, place, ranks): (bool, &Where, Vec<u32>)| Excerpt {
        ranks: rank_list(&ranks),
        root,
        place: short_path(place),
        function: std::iter::once(&place.function)
            .chain(place.features().into_iter().map(|frame| &frame.function))
            .map(String::as_str)
            .filter(|name| *name != "<module>")
            .collect::<Vec<_>>()
            .join(" › "),
        line: place.line,
        lines: sources.around(place, CONTEXT_LINES),
    };
    places.into_iter().take(MAX_EXCERPTS).map(excerpt).collect()
}

fn proof(certificate: &Certificate) -> Proof {
    let facts = certificate.facts.iter().map(facts::text);
    Proof { kind: certificate.kind.to_string(), facts: facts.collect() }
}

fn rank_row(rank: &Rank) -> RankRow {
    let is_over = matches!(rank.state, RankState::Exited | RankState::Dead);
    let waiting = rank.waiting_in.as_ref();
    let call = waiting.map(|it| {
        let seq = it.seq.map(|seq| format!(" #{seq}")).unwrap_or_default();
        let group = of_group(&it.group);
        format!("{}{seq}{group}", it.op)
    });
    RankRow {
        rank: rank.rank,
        host: rank.host.clone(),
        pid: rank.pid,
        state: rank.state.to_string(),
        exit: is_over.then(|| text::ended(rank.exit)),
        step: rank.step,
        place: rank.place.as_ref().map(short_path),
        call,
        waited_ms: waiting.and_then(|it| it.waited_ms),
        device: rank.device.clone().map(|device| Device { is_slowed: device.is_slowed(), device }),
        ports: rank.ports.iter().map(ToString::to_string).collect(),
    }
}

// --- The timeline --------------------------------------------------------------------------------

fn lanes(timeline: &Timeline, span: Option<Span>, clock: Clock) -> (Vec<Kind>, Vec<Lane>) {
    let tracks = timeline.tracks.len().max(1);
    let room = (MAX_CALLS / tracks).clamp(CALLS_PER_PROCESS[0], CALLS_PER_PROCESS[1]);
    let curves: usize = timeline.tracks.iter().map(|it| it.memory.len()).sum();
    let points = (MAX_POINTS / curves.max(1)).clamp(POINTS_PER_CURVE[0], POINTS_PER_CURVE[1]);
    let mut kinds = BTreeMap::new();
    let lane = |track: &Track| {
        let (calls, dropped) = calls(track, room, clock, &mut kinds);
        Lane {
            rank: track.rank,
            host: track.host.to_string(),
            pid: track.pid,
            began: clock.us(track.began),
            ended: track.ended.map(|(at, exit)| (clock.us(at), text::ended(exit))),
            omitted: track.omitted + dropped,
            calls,
            marks: track.marks.iter().map(|it| mark(it, clock)).collect(),
            memory: track
                .memory
                .iter()
                .map(|curve| (curve.name.clone(), thinned(&curve.points, points, clock)))
                .collect(),
            spent: track.spent.iter().map(|it| spent(it, clock)).collect(),
            shares: span.map(|span| {
                let it = span.shares(track);
                [it.compute, it.input, it.waiting, it.garbage].map(|time| time.as_micros() as u64)
            }),
        }
    };
    let lanes = timeline.tracks.iter().map(lane).collect();
    let mut by_index: Vec<(usize, Kind)> = kinds.into_iter().map(|(kind, at)| (at, kind)).collect();
    by_index.sort_by_key(|(at, _)| *at);
    let kinds = by_index.into_iter().map(|(_, kind)| kind).collect();
    (kinds, lanes)
}

/// The latest calls of a process and those that have not ended, and how many are left out.
fn calls(
    track: &Track,
    room: usize,
    clock: Clock,
    kinds: &mut BTreeMap<Kind, usize>,
) -> (Vec<[i64; 9]>, u64) {
    let latest = track.calls.len().saturating_sub(room);
    let is_shown = |(index, call): &(usize, &TimedCall)| *index >= latest || call.is_open();
    let mut rows = Vec::new();
    let mut before = 0;
    for (_, call) in track.calls.iter().enumerate().filter(is_shown) {
        let new = kinds.len();
        let kind = *kinds.entry(kind(call, track.rank)).or_insert(new);
        let issued = clock.us(call.call.at);
        let since =
            |at: Option<Timestamp>| at.map_or(-1, |at| clock.us(at).saturating_sub(issued) as i64);
        // Without the time, only the moment of the call is drawn.
        let complete = call.is_complete.then_some(call.call.at);
        let completed = call.completed.or(complete);
        rows.push([
            kind as i64,
            call.call.seq as i64,
            call.call.step as i64,
            issued as i64 - before,
            since(call.returned),
            since(call.wait.map(|(began, _)| began)),
            since(call.wait.and_then(|(_, ended)| ended)),
            since(completed),
            i64::from(call.inferred),
        ]);
        before = issued as i64;
    }
    let dropped = track.calls.len() - rows.len();
    (rows, dropped as u64)
}

fn kind(call: &TimedCall, rank: u32) -> Kind {
    let mut entry = call.describe(rank);
    entry.seq = None;
    let group = call.call.group.as_deref();
    let place = call.call.place.as_deref();
    Kind {
        op: call.call.op.to_string(),
        call: call_text(&entry),
        group: group.map(group_name).unwrap_or_default(),
        layer: group.map(|it| it.key.layer.clone()).unwrap_or_default(),
        place: place.map(short_path).unwrap_or_default(),
        function: place.map(|it| it.function.clone()).unwrap_or_default(),
        p2p: call.call.op.is_point_to_point(),
        hidden: call.call.hidden,
        thread: call.call.thread.0,
    }
}

fn group_name(group: &ddp_doctor_diagnosis::event::GroupInfo) -> String {
    match &*group.description {
        "default_pg" => "default group".into(),
        "" | "undefined" => format!("group {}", group.key.name),
        description => format!("group {description}"),
    }
}

fn mark(mark: &Mark, clock: Clock) -> (u64, &'static str, String) {
    let (kind, text) = match &mark.what {
        Event::Step(step) => ("step", step.to_string()),
        Event::PhaseBegan(name) => ("phase", name.to_string()),
        Event::PhaseEnded(name) => ("phase-end", name.to_string()),
        Event::Exception(text, place) => {
            let place = place.as_deref().map(|it| format!(" at {}", short_path(it)));
            ("exception", format!("{text}{}", place.unwrap_or_default()))
        }
        Event::InputEnded => ("input", "input exhausted".to_owned()),
        Event::Exit(how) => ("exit", how.to_string()),
    };
    (clock.us(mark.at), kind, text)
}

fn spent(spent: &Spent, clock: Clock) -> (&'static str, u64, u64) {
    let from = clock.us(spent.from);
    (spent.on.name().unwrap_or_default(), from, clock.us(spent.to).saturating_sub(from))
}

/// At most `most` points, evenly chosen, with the last one.
fn thinned(points: &[(Timestamp, u64)], most: usize, clock: Clock) -> Vec<(u64, u64)> {
    let every = points.len().div_ceil(most.max(1)).max(1);
    let last = points.len().saturating_sub(1);
    let chosen = points.iter().enumerate();
    chosen
        .filter(|(index, _)| (last - index).is_multiple_of(every))
        .map(|(_, &(at, value))| (clock.us(at), value))
        .collect()
}

// --- Waits and stacks ----------------------------------------------------------------------------

fn nodes(waits: &[Blocked], clock: Clock) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut known = BTreeMap::new();
    for it in waits {
        let timed = TimedCall {
            call: it.call.clone(),
            returned: None,
            wait: None,
            inferred: false,
            completed: None,
            is_complete: false,
        };
        let kind = kind(&timed, it.rank);
        let seq = match it.call.seq {
            0 => String::new(),
            seq => format!(" #{seq}"),
        };
        let call = format!("{}{seq}", kind.op);
        let key = (call.clone(), kind.group.clone(), kind.place.clone(), it.needs.clone());
        let at = *known.entry(key).or_insert_with(|| {
            nodes.push(Node {
                ranks: Vec::new(),
                text: String::new(),
                call,
                group: kind.group,
                place: kind.place,
                since: clock.us(it.since),
                needs: it.needs.clone(),
            });
            nodes.len() - 1
        });
        nodes[at].ranks.push(it.rank);
        nodes[at].since = nodes[at].since.min(clock.us(it.since));
    }
    for node in &mut nodes {
        node.text = rank_list(&node.ranks);
    }
    nodes.truncate(MAX_NODES);
    nodes
}

fn stacks(timeline: &Timeline, sources: &mut SourceLines) -> Vec<Stack> {
    let mut groups: BTreeMap<Vec<[String; 3]>, Stack> = BTreeMap::new();
    for track in &timeline.tracks {
        let Some(stacks) = &track.stacks else {
            continue;
        };
        let Some(main) = stacks.main() else { continue };
        let mut frames = dump::thread_rows(&thread(main), sources);
        frames.reverse();
        let group = groups.entry(frames.clone()).or_insert_with(|| Stack {
            ranks: Vec::new(),
            text: String::new(),
            frames,
            state: dump::thread_state(&thread(main)),
            trouble: stacks.trouble.to_string(),
        });
        group.ranks.push(track.rank);
    }
    let mut stacks: Vec<Stack> = groups.into_values().collect();
    for stack in &mut stacks {
        stack.ranks.dedup();
        stack.text = rank_list(&stack.ranks);
    }
    stacks.sort_by_key(|stack| (stack.ranks.len(), stack.ranks.first().copied()));
    stacks
}

fn thread(stack: &ThreadStack) -> Thread {
    Thread {
        tid: stack.tid,
        name: stack.name.to_string(),
        state: stack.state.map(String::from),
        wait_channel: stack.wait_channel.as_deref().map(str::to_owned),
        cpu_ms: stack.cpu_time.map(|it| it.as_millis() as u64),
        holds_gil: stack.holds_gil,
        python: stack.python.clone(),
        native: stack.native.clone(),
        blocked_on: None,
    }
}
