//! Scenarios: what ranks did, as compact lines, and the findings that must follow.
//!
//! ```toml
//! about = "rank 1 ends while the others still train"
//! world = 3
//! events = """
//! 1.0 *   all_reduce f32[8] sum @train.py:9
//! 1.1 *   done
//! 2.0 0,2 all_reduce f32[8] sum @train.py:9
//! 2.1 1   exits 0
//! """
//!
//! [[expect]]
//! code = "DD102"
//! root = [1]
//! ```
//!
//! A line is a time in seconds, ranks (`*`, `0`, `0,2`, `0-3`; `-` for the job) and what they do:
//!
//! | words | meaning |
//! |---|---|
//! | `all_reduce[/GROUP] [DTYPE[DIMS]] [REDUCE_OP] [root=R] [peer=R] [async] [hidden] [unreturned] [as LABEL] [tN] [@FILE:LINE]` | a call; a synchronous one is waited for at once. `hidden`: DDP's own |
//! | `wait LABEL`, `done [LABEL]` | a wait begins, or ends: of the labelled call, else of the last one |
//! | `group NAME MEMBERS` | joins a further group |
//! | `destroys [GROUP]` | leaves it |
//! | `restarts` | a new process takes the rank's place and joins the default group |
//! | `step N`, `phase NAME`, `endphase NAME`, `input-ended` | marks |
//! | `raises KIND "TEXT" [@FILE:LINE]` | an exception: `uncaught`, `in-flight`, `left-forward`, `left-backward`, `left-collective` |
//! | `announces CODE HOW`, `exits CODE`, `killed SIGNAL`, `vanishes`, `stops`, `continues` | the process |
//! | `lost N`, `frontier GROUP N`, `note KIND "TEXT"` | the evidence |
//! | `ends`, `-` | the job is over; nothing: time passes |

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor::diagnosis::event::{Call, CallId, Event, GroupInfo, ProcessId, ThreadId};
use ddp_doctor::diagnosis::{Config, Engine, certificate};
use ddp_doctor_proto::report::{
    Confidence, Exit, Finding, GroupRef, Report, Role, Timestamp, Where,
};
use ddp_doctor_proto::{DType, ExceptionKind, NoteKind, Op, ProcessState, ReduceOp};
use serde::Deserialize;

/// The first second of every scenario, on the clock of the world.
const START: u64 = 1_800_000_000_000_000_000;

/// A scenario file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Scenario {
    /// What it is about, in a sentence.
    pub(crate) about: String,
    world: u32,
    #[serde(default = "gloo")]
    backend: String,
    /// Ranks that no probe sees.
    #[serde(default)]
    unseen: Vec<u32>,
    #[serde(default = "minute")]
    stall_after: f64,
    events: String,
    /// How long to look on after the last event, in seconds.
    #[serde(default)]
    look_on: f64,
    /// No finding stands at any time before this.
    #[serde(default)]
    silent_until: f64,
    verdict: Option<String>,
    /// The findings at the end. No other initiating one may stand.
    #[serde(default)]
    expect: Vec<Expect>,
}

/// What a finding must be like; says only what the scenario is about.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Expect {
    code: String,
    role: Option<String>,
    severity: Option<String>,
    effect: Option<String>,
    confidence: Option<String>,
    root: Option<Vec<u32>>,
    root_confidence: Option<String>,
    victims: Option<Vec<u32>>,
    group: Option<String>,
    seq: Option<u64>,
    op: Option<String>,
    certificate: Option<String>,
    cause: Option<String>,
    caused_by: Option<String>,
    /// Line per rank, "train.py:9".
    #[serde(default)]
    lines: BTreeMap<String, String>,
    /// State per rank.
    #[serde(default)]
    states: BTreeMap<String, String>,
    /// The second at which it was first seen.
    detected: Option<f64>,
    summary_has: Option<String>,
}

fn gloo() -> String {
    "gloo".into()
}

const fn minute() -> f64 {
    60.0
}

impl Scenario {
    /// Reads a scenario file.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Parses a scenario.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|e| e.to_string())
    }

    /// Runs it as it happened and in other orders, and compares the findings with what it expects.
    pub(crate) fn check(&self) -> Result<(), String> {
        let script = Script::of(self)?;
        let (report, first) = script.play_live(self);
        if let Some(at) = first.filter(|&at| at < seconds(self.silent_until)) {
            let at = at.since(Timestamp(START)).as_secs_f64();
            return Err(format!(
                "a finding stood at {at} s, before {} s",
                self.silent_until
            ));
        }
        self.compare(&report)?;
        // What processes did to each other is in the times, not in the order in which it is heard.
        for backwards in [false, true] {
            let other = script.play_by_rank(self, backwards);
            let (a, b) = (gist(&report), gist(&other));
            if a != b {
                return Err(format!(
                    "heard rank by rank{}, it is another diagnosis:\n  live: {a:?}\n  so:   {b:?}",
                    if backwards { " from the last" } else { "" }
                ));
            }
        }
        Ok(())
    }

    fn compare(&self, report: &Report) -> Result<(), String> {
        let found = || {
            let lines: Vec<String> = report
                .findings
                .iter()
                .map(|f| {
                    format!(
                        "  {} {} {} {} root {:?} ({}) victims {:?} seq {:?}: {}",
                        f.role,
                        f.severity,
                        f.code,
                        f.confidence,
                        f.ranks.root,
                        f.ranks.root_confidence,
                        f.ranks.victims,
                        f.seq,
                        f.summary
                    )
                })
                .collect();
            format!(
                "\nfound (verdict {}):\n{}",
                report.verdict,
                lines.join("\n")
            )
        };
        for finding in &report.findings {
            check_proof(finding).map_err(|e| e + &found())?;
        }
        for expect in &self.expect {
            let candidates: Vec<&Finding> = report
                .findings
                .iter()
                .filter(|finding| finding.code == expect.code)
                .collect();
            if candidates.is_empty() {
                return Err(format!("no {} was found{}", expect.code, found()));
            }
            let differences: Vec<String> = candidates
                .iter()
                .map(|finding| expect.differences(finding, report).join("; "))
                .collect();
            if differences.iter().all(|difference| !difference.is_empty()) {
                return Err(format!(
                    "{}: {}{}",
                    expect.code,
                    differences.join(" | "),
                    found()
                ));
            }
        }
        for finding in &report.findings {
            let expected = self.expect.iter().any(|expect| expect.code == finding.code);
            if finding.role == Role::Initiating && !expected {
                return Err(format!("{} was not expected{}", finding.code, found()));
            }
        }
        match &self.verdict {
            Some(verdict) if *verdict != report.verdict.to_string() => Err(format!(
                "verdict {}, not {verdict}{}",
                report.verdict,
                found()
            )),
            None if self.expect.is_empty() && report.verdict.as_str() != "healthy" => Err(format!(
                "verdict {}, not healthy{}",
                report.verdict,
                found()
            )),
            _ => Ok(()),
        }
    }
}

/// A certificate stands exactly beside what is proved, and its checker accepts it.
fn check_proof(finding: &Finding) -> Result<(), String> {
    match (&finding.certificate, finding.confidence) {
        (Some(proof), Confidence::Proved) => {
            certificate::check(proof).map_err(|e| format!("{}: {e}: {proof:?}", finding.code))
        }
        (None, Confidence::Suspected | Confidence::Supported) => Ok(()),
        _ => Err(format!(
            "{}: proved and certificate do not go together",
            finding.code
        )),
    }
}

/// What must not depend on the order of hearing.
fn gist(report: &Report) -> Vec<(String, String, Vec<u32>, Vec<u32>, Option<u64>, String)> {
    let gist = |f: &Finding| {
        let confidence = f.confidence.to_string();
        let (root, victims) = (f.ranks.root.clone(), f.ranks.victims.clone());
        (
            f.role.to_string(),
            f.code.clone(),
            root,
            victims,
            f.seq,
            confidence,
        )
    };
    report.findings.iter().map(gist).collect()
}

impl Expect {
    /// In what the finding is not as expected.
    fn differences(&self, finding: &Finding, report: &Report) -> Vec<String> {
        let mut found = Vec::new();
        let mut word = |name: &str, want: &Option<String>, is: String| {
            if let Some(want) = want.as_ref().filter(|want| **want != is) {
                found.push(format!("{name} is {is}, not {want}"));
            }
        };
        word("role", &self.role, finding.role.to_string());
        word("severity", &self.severity, finding.severity.to_string());
        word("effect", &self.effect, finding.effect.to_string());
        word(
            "confidence",
            &self.confidence,
            finding.confidence.to_string(),
        );
        word(
            "root-confidence",
            &self.root_confidence,
            finding.ranks.root_confidence.to_string(),
        );
        word("op", &self.op, finding.op.clone().unwrap_or_default());
        let group = finding.group.as_ref().map(|group| group.name.clone());
        word("group", &self.group, group.unwrap_or_default());
        let proof = finding
            .certificate
            .as_ref()
            .map(|proof| proof.kind.to_string());
        word("certificate", &self.certificate, proof.unwrap_or_default());
        let cause = finding.cause.map(|cause| cause.kind.to_string());
        word("cause", &self.cause, cause.unwrap_or_default());
        let caused_by = finding
            .caused_by
            .first()
            .map(|&i| report.findings[i].code.clone());
        word("caused-by", &self.caused_by, caused_by.unwrap_or_default());
        for (rank, want) in &self.lines {
            let call = finding
                .per_rank
                .iter()
                .find(|call| call.rank.to_string() == *rank);
            let is = call.and_then(|call| call.place.as_ref());
            let is = is.map(|place| format!("{}:{}", place.file, place.line));
            word(
                &format!("line of rank {rank}"),
                &Some(want.clone()),
                is.unwrap_or_default(),
            );
        }
        for (rank, want) in &self.states {
            let call = finding
                .per_rank
                .iter()
                .find(|call| call.rank.to_string() == *rank);
            let is = call.map(|call| call.state.to_string()).unwrap_or_default();
            word(&format!("state of rank {rank}"), &Some(want.clone()), is);
        }
        if let Some(root) = self
            .root
            .as_ref()
            .filter(|root| **root != finding.ranks.root)
        {
            found.push(format!("root is {:?}, not {root:?}", finding.ranks.root));
        }
        if let Some(victims) = self
            .victims
            .as_ref()
            .filter(|v| **v != finding.ranks.victims)
        {
            found.push(format!(
                "victims are {:?}, not {victims:?}",
                finding.ranks.victims
            ));
        }
        if self.seq.is_some() && self.seq != finding.seq {
            found.push(format!("seq is {:?}, not {:?}", finding.seq, self.seq));
        }
        if let Some(at) = self
            .detected
            .filter(|&at| seconds(at) != finding.detected_at)
        {
            let is = finding.detected_at.since(Timestamp(START)).as_secs_f64();
            found.push(format!("detected at {is} s, not {at} s"));
        }
        if let Some(text) = self
            .summary_has
            .as_ref()
            .filter(|t| !finding.summary.contains(*t))
        {
            found.push(format!(
                "summary {:?} does not say {text:?}",
                finding.summary
            ));
        }
        found
    }
}

fn seconds(seconds: f64) -> Timestamp {
    Timestamp(START).plus(Duration::from_secs_f64(seconds))
}

/// A scenario as events with their times.
struct Script {
    /// In the order of the file; `None`: of no rank.
    events: Vec<(Timestamp, Option<u32>, Event)>,
    end: Timestamp,
}

impl Script {
    fn of(scenario: &Scenario) -> Result<Self, String> {
        let mut writer = Writer::new(scenario);
        let mut before = 0.0;
        for (i, line) in scenario.events.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let at = writer
                .line(line)
                .map_err(|e| format!("event line {}: {e}: {line}", i + 1))?;
            if at < before {
                return Err(format!("event line {}: time runs backwards: {line}", i + 1));
            }
            before = at;
        }
        Ok(Self {
            events: writer.events,
            end: seconds(before + scenario.look_on),
        })
    }

    fn engine(scenario: &Scenario) -> Engine {
        Engine::new(Config {
            stall_after: Duration::from_secs_f64(scenario.stall_after),
        })
    }

    /// Every event in its moment, and every timeout between. Returns also when the first finding
    /// above a note stood.
    fn play_live(&self, scenario: &Scenario) -> (Report, Option<Timestamp>) {
        let mut engine = Self::engine(scenario);
        let mut first = None;
        let mut look = |engine: &mut Engine, now| {
            engine.poll_change();
            let report = engine.report();
            let speaks = |f: &Finding| f.severity > ddp_doctor_proto::report::Severity::Note;
            if first.is_none() && report.findings.iter().any(speaks) {
                first = Some(now);
            }
        };
        let wait = |engine: &mut Engine, until, look: &mut dyn FnMut(&mut Engine, Timestamp)| {
            while let Some(at) = engine.poll_timeout().filter(|&at| at < until) {
                engine.handle_timeout(at);
                look(engine, at);
            }
        };
        for (at, _, event) in &self.events {
            wait(&mut engine, *at, &mut look);
            engine.handle(event.clone(), *at);
            look(&mut engine, *at);
        }
        wait(&mut engine, self.end, &mut look);
        engine.handle_timeout(self.end);
        look(&mut engine, self.end);
        (engine.report(), first)
    }

    /// All that one rank did, then all that the next did, long after it happened.
    fn play_by_rank(&self, scenario: &Scenario, backwards: bool) -> Report {
        let mut engine = Self::engine(scenario);
        let mut ranks: Vec<u32> = (0..scenario.world).collect();
        if backwards {
            ranks.reverse();
        }
        let of = |rank: Option<u32>| self.events.iter().filter(move |(_, who, _)| *who == rank);
        let (before, after): (Vec<_>, Vec<_>) =
            of(None).partition(|(_, _, event)| !matches!(event, Event::JobEnded { .. }));
        let ranks = ranks.iter().flat_map(|&rank| of(Some(rank)));
        for (_, _, event) in before.into_iter().chain(ranks).chain(after) {
            engine.handle(event.clone(), self.end);
        }
        engine.poll_change();
        engine.report()
    }
}

/// Turns lines into events.
struct Writer<'a> {
    scenario: &'a Scenario,
    events: Vec<(Timestamp, Option<u32>, Event)>,
    /// Each rank has its own copy of what a group is, as ranks do.
    groups: BTreeMap<(u32, String), Arc<GroupInfo>>,
    seqs: BTreeMap<(u32, String, String), u64>,
    next_call: BTreeMap<u32, u64>,
    last_call: BTreeMap<u32, (ThreadId, CallId)>,
    labels: BTreeMap<(u32, String), (ThreadId, CallId)>,
    steps: BTreeMap<u32, u64>,
    /// How often each rank was restarted.
    restarts: BTreeMap<u32, u64>,
}

impl<'a> Writer<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let mut writer = Self {
            scenario,
            events: Vec::new(),
            groups: BTreeMap::new(),
            seqs: BTreeMap::new(),
            next_call: BTreeMap::new(),
            last_call: BTreeMap::new(),
            labels: BTreeMap::new(),
            steps: BTreeMap::new(),
            restarts: BTreeMap::new(),
        };
        writer.events.push((
            seconds(0.0),
            None,
            Event::JobStarted {
                job: "scenario".into(),
                attempt: 0,
                host: "node".into(),
                at: seconds(0.0),
            },
        ));
        for rank in (0..scenario.world).filter(|rank| !scenario.unseen.contains(rank)) {
            writer.join(rank, 0.0);
        }
        writer
    }

    /// The rank's process joins the world.
    fn join(&mut self, rank: u32, at: f64) {
        let world: Vec<u32> = (0..self.scenario.world).collect();
        self.push(
            rank,
            at,
            Event::ProcessJoined {
                process: self.process(rank),
                rank: Some(rank),
                world_size: Some(self.scenario.world),
                host: "node".into(),
                pid: 1000 + rank + 100 * self.restarts.get(&rank).copied().unwrap_or(0) as u32,
                layer: "c10d".into(),
            },
        );
        self.join_group(rank, at, "0", "default_pg", &world);
    }

    fn process(&self, rank: u32) -> ProcessId {
        ProcessId(u64::from(rank) + 1000 * self.restarts.get(&rank).copied().unwrap_or(0))
    }

    fn push(&mut self, rank: u32, at: f64, event: Event) {
        if !self.scenario.unseen.contains(&rank) {
            self.events.push((seconds(at), Some(rank), event));
        }
    }

    fn join_group(&mut self, rank: u32, at: f64, name: &str, description: &str, members: &[u32]) {
        let group = Arc::new(GroupInfo {
            key: GroupRef {
                layer: "c10d".into(),
                epoch: 0,
                name: name.into(),
                ordinal: 0,
                members: members.into(),
            },
            description: description.into(),
            backend: self.scenario.backend.as_str().into(),
        });
        self.groups.insert((rank, name.into()), Arc::clone(&group));
        let process = self.process(rank);
        self.push(rank, at, Event::GroupJoined { process, group });
    }

    /// Takes one line; returns its time.
    fn line(&mut self, line: &str) -> Result<f64, String> {
        let mut words = words(line)?.into_iter();
        let at: f64 = words.next().and_then(|w| w.parse().ok()).ok_or("no time")?;
        let who = words.next().ok_or("no ranks")?;
        let rest: Vec<String> = words.collect();
        if who == "-" {
            if rest.first().is_some_and(|word| word == "ends") {
                self.events.push((
                    seconds(at),
                    None,
                    Event::JobEnded {
                        status: 0,
                        at: seconds(at),
                    },
                ));
            } else if !rest.is_empty() {
                return Err(format!("the job cannot {:?}", rest[0]));
            }
            return Ok(at);
        }
        for rank in ranks(&who, self.scenario.world)? {
            let (verb, args) = rest.split_first().ok_or("nothing happens")?;
            self.act(rank, at, verb, args)?;
        }
        Ok(at)
    }

    fn act(&mut self, rank: u32, at: f64, verb: &str, args: &[String]) -> Result<(), String> {
        let process = self.process(rank);
        let moment = seconds(at);
        let arg = |i: usize| {
            args.get(i)
                .map(String::as_str)
                .ok_or(format!("{verb} what?"))
        };
        let number = |i: usize| arg(i)?.parse::<i32>().map_err(|e| e.to_string());
        let place = args
            .iter()
            .find_map(|arg| arg.strip_prefix('@'))
            .map(place)
            .transpose()?;
        let changed = |state, exit| Event::ProcessChanged {
            process,
            state,
            exit,
            at: moment,
        };
        let dead = |code, signal| changed(ProcessState::Dead, Exit { code, signal });
        let event = match verb {
            "group" => {
                let members = ranks(arg(1)?, self.scenario.world)?;
                self.join_group(rank, at, arg(0)?, "", &members);
                return Ok(());
            }
            "restarts" => {
                *self.restarts.entry(rank).or_default() += 1;
                self.seqs.retain(|(other, ..), _| *other != rank);
                self.next_call.remove(&rank);
                self.join(rank, at);
                return Ok(());
            }
            "destroys" => {
                let group = self.group(rank, args.first().map_or("0", String::as_str))?;
                Event::GroupDestroyed {
                    process,
                    group,
                    at: moment,
                }
            }
            "wait" | "done" => {
                let (thread, call) = match args.first() {
                    Some(label) => *self
                        .labels
                        .get(&(rank, label.clone()))
                        .ok_or(format!("no call is labelled {label:?}"))?,
                    None => *self.last_call.get(&rank).ok_or("no call to be done with")?,
                };
                let call = Some(call);
                if verb == "wait" {
                    Event::WaitBegin {
                        process,
                        thread,
                        call,
                        place: None,
                        at: moment,
                    }
                } else {
                    Event::WaitEnd {
                        process,
                        thread,
                        call,
                        at: moment,
                    }
                }
            }
            "step" => {
                let step = number(0)? as u64;
                self.steps.insert(rank, step);
                Event::Step {
                    process,
                    step,
                    at: moment,
                }
            }
            "phase" => Event::PhaseBegin {
                process,
                name: arg(0)?.into(),
                at: moment,
            },
            "endphase" => Event::PhaseEnd {
                process,
                name: arg(0)?.into(),
                at: moment,
            },
            "input-ended" => Event::InputEnded {
                process,
                place,
                at: moment,
            },
            "raises" => Event::Exception {
                process,
                kind: ExceptionKind::from_name(&arg(0)?.replace('-', " "))
                    .or((arg(0)? == "left-collective").then_some(ExceptionKind::LeftCollective))
                    .ok_or(format!("no such kind of exception: {}", arg(0)?))?,
                text: arg(1)?.into(),
                place,
                at: moment,
            },
            "announces" => {
                let how = args.get(1).map_or("main returned", String::as_str).into();
                Event::ExitAnnounced {
                    process,
                    code: number(0)?,
                    how,
                    at: moment,
                }
            }
            "exits" => dead(Some(number(0)?), None),
            "killed" => dead(None, Some(number(0)?)),
            "vanishes" => dead(None, None),
            "stops" => changed(ProcessState::Stopped, Exit::default()),
            "continues" => changed(ProcessState::Running, Exit::default()),
            "lost" => Event::RecordsLost {
                process,
                count: number(0)? as u64,
            },
            "frontier" => {
                let group = self.group(rank, arg(0)?)?;
                Event::Frontier {
                    process,
                    group,
                    issued: number(1)? as u64,
                    p2p_issued: 0,
                }
            }
            "note" => {
                let event = Event::Note {
                    process: None,
                    kind: NoteKind::from_name(&arg(0)?.replace('-', " "))
                        .ok_or(format!("no such note: {}", arg(0)?))?,
                    rank: Some(rank),
                    pid: Some(1000 + rank),
                    text: arg(1)?.into(),
                    at: moment,
                };
                self.events.push((moment, None, event));
                return Ok(());
            }
            _ => return self.call(rank, at, verb, args),
        };
        self.push(rank, at, event);
        Ok(())
    }

    fn group(&self, rank: u32, name: &str) -> Result<Arc<GroupInfo>, String> {
        let known = self.groups.get(&(rank, name.into()));
        known
            .cloned()
            .ok_or(format!("rank {rank} is not in a group {name:?}"))
    }

    fn call(&mut self, rank: u32, at: f64, verb: &str, args: &[String]) -> Result<(), String> {
        let (op, group) = verb.split_once('/').unwrap_or((verb, "0"));
        let op = Op::from_name(op).ok_or(format!("{verb:?} is nothing a rank can do"))?;
        if self.scenario.unseen.contains(&rank) {
            return Ok(());
        }
        let grouped = op.is_collective() || op.is_point_to_point();
        let info = grouped.then(|| self.group(rank, group)).transpose()?;
        let id = self
            .next_call
            .entry(rank)
            .and_modify(|id| *id += 1)
            .or_insert(1);
        let mut call = Call {
            id: CallId(*id),
            at: seconds(at),
            thread: ThreadId(1),
            group: info,
            seq: 0,
            op,
            dtype: DType::Unspecified,
            reduce_op: ReduceOp::Unspecified,
            root: None,
            peer: None,
            tag: None,
            numel: None,
            shape: None,
            tensors: 1,
            is_async: false,
            hidden: false,
            splits: [Vec::new(), Vec::new()],
            step: self.steps.get(&rank).copied().unwrap_or(0),
            phase: None,
            place: None,
        };
        let (mut returned, mut label) = (true, None);
        let mut args = args.iter().map(String::as_str);
        while let Some(arg) = args.next() {
            if let Some(at) = arg.strip_prefix('@') {
                call.place = Some(place(at)?);
            } else if let Some(root) = arg.strip_prefix("root=") {
                call.root = Some(root.parse().map_err(|_| format!("no rank: {root}"))?);
            } else if let Some(peer) = arg.strip_prefix("peer=") {
                call.peer = Some(peer.parse().map_err(|_| format!("no rank: {peer}"))?);
            } else if let Some(reduce_op) = ReduceOp::from_name(arg) {
                call.reduce_op = reduce_op;
            } else if let Some(thread) = arg.strip_prefix('t').and_then(|n| n.parse().ok()) {
                call.thread = ThreadId(thread);
            } else if let Some((dtype, shape)) = tensor(arg) {
                call.dtype = dtype;
                call.numel = Some(shape.iter().map(|&dim| u64::from(dim)).product());
                call.shape = Some(shape);
            } else {
                match arg {
                    "async" => call.is_async = true,
                    "hidden" => (call.is_async, call.hidden) = (true, true),
                    "unreturned" => returned = false,
                    "as" => label = args.next(),
                    _ => return Err(format!("what is {arg:?}?")),
                }
            }
        }
        if grouped {
            let channel = call
                .peer
                .map_or_else(String::new, |peer| format!("{op} {peer}"));
            let seq = self.seqs.entry((rank, group.into(), channel)).or_default();
            *seq += 1;
            call.seq = *seq;
        }
        let (process, thread, id) = (self.process(rank), call.thread, call.id);
        let waits = grouped && !call.is_async && returned;
        self.last_call.insert(rank, (thread, id));
        if let Some(label) = label {
            self.labels.insert((rank, label.into()), (thread, id));
        }
        let moment = call.at;
        self.push(
            rank,
            at,
            Event::Issued {
                process,
                call: Arc::new(call),
            },
        );
        if returned {
            self.push(
                rank,
                at,
                Event::Returned {
                    process,
                    thread,
                    call: id,
                    at: moment,
                },
            );
        }
        if waits {
            let begin = Event::WaitBegin {
                process,
                thread,
                call: Some(id),
                place: None,
                at: moment,
            };
            self.push(rank, at, begin);
        }
        Ok(())
    }
}

/// Splits a line into words; a quoted text is one.
fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    for (i, part) in line.split('"').enumerate() {
        if i % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    if line.matches('"').count() % 2 == 1 {
        Err("a quote is open".into())
    } else {
        Ok(words)
    }
}

/// `*`, `0`, `0,2`, `0-3`.
fn ranks(text: &str, world: u32) -> Result<Vec<u32>, String> {
    if text == "*" {
        return Ok((0..world).collect());
    }
    let number = |text: &str| {
        text.parse::<u32>()
            .map_err(|_| format!("no rank: {text:?}"))
    };
    let mut ranks = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => ranks.extend(number(first)?..=number(last)?),
            None => ranks.push(number(part)?),
        }
    }
    match ranks.iter().find(|&&rank| rank >= world) {
        Some(rank) => Err(format!("rank {rank} is not in a world of {world}")),
        None => Ok(ranks),
    }
}

fn place(text: &str) -> Result<Arc<Where>, String> {
    let (file, line) = text.rsplit_once(':').ok_or(format!("no line: {text:?}"))?;
    let line = line.parse().map_err(|_| format!("no line: {text:?}"))?;
    Ok(Arc::new(Where {
        file: file.into(),
        line,
        function: "train".into(),
    }))
}

/// `f32[2,3]`.
fn tensor(text: &str) -> Option<(DType, Vec<u32>)> {
    let (dtype, dims) = text.strip_suffix(']')?.split_once('[')?;
    let dtype = match dtype {
        "f16" => DType::Float16,
        "bf16" => DType::BFloat16,
        "f32" => DType::Float32,
        "f64" => DType::Float64,
        "i32" => DType::Int32,
        "i64" => DType::Int64,
        "u8" => DType::UInt8,
        _ => return None,
    };
    let dims: Option<Vec<u32>> = dims
        .split(',')
        .filter(|dim| !dim.is_empty())
        .map(|dim| dim.parse().ok())
        .collect();
    Some((dtype, dims?))
}
