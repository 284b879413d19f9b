//! Scenarios: the events of ranks in a compact notation, and the findings that must follow.
//!
//! ```toml
//! about = "rank 1 exits while the others still train, which is an early exit"
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
//! A line is a time in seconds, ranks (`*`, `0`, `0,2`, `0-3`; `-` for the job) and an event:
//!
//! | words | meaning |
//! |---|---|
//! | `all_reduce[/GROUP] [DTYPE[DIMS]] [REDUCE_OP] [root=R] [peer=R] [tag=N] [splits=N,N/N,N] [async] [hidden] [unreturned\|unwaited] [as LABEL] [tN] [@FILE:LINE]` | a call; a synchronous one is waited for at once. `recv` without `peer`: from any rank. `hidden`: issued by DDP; `unwaited`: it returns without a wait, as over NCCL; `splits`: of an `all_to_all`, input and output |
//! | `… [stream=N] [launch=N] [followed]`, `completes [LABEL]` | with `layer = "nccl"`: the call returns after it is enqueued on a stream (default 1), in one launch with the calls of the same number; `followed`: its completion will be recorded. The call completes |
//! | `… nccl:[REDUCE_OP][@STREAM]`, `within [FUNCTION]` | the NCCL call that c10d issues for this call, on a stream (default 1); the rank enters a function of NCCL, or returns from it |
//! | `halts send\|receive [network\|peer\|device] peer=N [channel=N]`, `moves …` | a transfer of its last call makes no progress, or makes progress again |
//! | `input SECONDS [@FILE:LINE]`, `garbage SECONDS`, `buckets SECONDS` | it has just spent this time on waiting for a batch, on garbage collection, or on waiting for DDP's buckets |
//! | `host ran=N queued=N threads=N throttled=N stolen=N cpu=N memory=N faults=N on=PROCESSORS` | how its host scheduled the process over the second before: thousandths of the time, major page faults per second; `cpu`, `memory`: pressure |
//! | `unawaited @FILE:LINE` | an `all_reduce` issued there was never waited for |
//! | `returns [LABEL]`, `wait LABEL`, `done [LABEL]` | a call that is `unreturned` returns; a wait begins, or ends: for the labeled call, otherwise for the last one |
//! | `group NAME MEMBERS` | joins a further group |
//! | `makes NAME MEMBERS [lazy] [@FILE:LINE]`, `made NAME` | begins to create a group, and returns from it; `lazy`: creation does not wait for other ranks |
//! | `destroys [GROUP]` | leaves it |
//! | `restarts` | a new process replaces the rank's and joins the default group; a restart by the launcher if the old one has ended, which `uncounted` says that it does not count |
//! | `inits SIZE ADDRESS[:PORT] [BACKEND] [launcher=PID] [env-size=N] [@FILE:LINE]`, `inited` | with `starting = true`: begins to join a world, and returns from it. `begins SIZE`: its process is captured without joining yet |
//! | `started`, `stands STACK`, `ended STATUS` | a process that will become the rank, before it joins: it is seen, its stacks are captured (as `stack`), it exits (negative: by a signal) |
//! | `sets NAME=VALUE` | a version or a setting of the process |
//! | `step N`, `phase NAME`, `endphase NAME`, `input-ended` | marks |
//! | `forward N [@PATH] [batch=N] [repeated] [no-sync] [updated\|not-updated]` | DDP's training forward, which begins step N; whether parameters were updated since the one before |
//! | `layout "DTYPE SIZES NAME"… [@FILE:LINE]` | DDP wraps a model with these parameters |
//! | `values ROUND INDEX NUMBER…` | float32 elements of the model's parameter with this index, read before the forward after that many synchronized backward passes |
//! | `without-gradient [after=N] …`, `complete`, `ready-twice …`, `graph-changed …`, `outside`, `thawed …`, `never-unused` | DDP's reducer reports this of these parameters, after N complete backward passes |
//! | `used-at "DTYPE SIZES NAME"… @FILE:LINE` | that line of the program uses them |
//! | `guard FORM SUBJECT "TEST" @FILE:LINE @FILE:LINE [other=FIRST-LAST] [other-calls=FIRST-LAST]` | the source: the test at the first line guards the second; its other branch, which calls the same function |
//! | `reading @FILE:LINE` | the source around the line is being read, until a `guard` or `called` for that line |
//! | `called @FILE:LINE @FILE:LINE` | the second line calls the function that contains the first |
//! | `raises KIND "TEXT" [@FILE:LINE]` | an exception: `uncaught`, `in-flight`, `left-forward`, `left-backward`, `left-collective`; `ignored-call`: PyTorch ignored a call there |
//! | `memory NAME=BYTES… NAME=USED/ALL…` | a memory sample: `rss`, `host`, `cgroup`, `shm`, `virtual`, `gpu`, `tensors`, `reserved`, `peak`, `split`, `retries`, `largest`, `nccl`; bytes as in `300M+20M*$`, `1G+64M*$%8` |
//! | `gpu NAME=NUMBER…`, `gpu-fault xid=N\|errors=N\|lost` | a sample of the rank's GPU, `GPU-RANK`: `busy`, `memory-busy` in percent; `power`, `limit` in watts; `clock`, `max-clock`; `free`, `total` in MiB; `width`, `max-width`, `generation`, `max-generation`, `replays`; `celsius`, `links`, `active-links`, `link-errors`, `link-retries`; `slowdown=heat`; `process=PID`. The GPU reports a fault. `sets gpu=GPU-RANK` says that the rank uses it |
//! | `port NAME up\|down [downs=N] [errors=N] [retries=N] [mib=N]` | a sample of a port of the rank's host: `eth…` is Ethernet, `roce…` RoCE, others InfiniBand; `mib`: what it has carried |
//! | `announces CODE HOW [@file:line]`, `exits CODE`, `killed SIGNAL [oom=N] [host-oom=N]`, `vanishes`, `stops`, `continues` | the process |
//! | `stack [STATE] [WAIT_CHANNEL] [cpu=SECONDS] [asleep=SECONDS] [ends-in=SECONDS] [gil] @FILE:LINE:FUNCTION… FILE!FUNCTION… [\| …]` | stacks of its threads, the main thread first, innermost frames first; `ends-in`: of a sleep; with `!`: native frames; `child=PID/STATE/WAIT_CHANNEL/SECONDS[/ENDS-IN]`: a process below it; `holds=PATH`: a file lock that it holds |
//! | `dump [starts] GROUP:FIRST-LAST:OP[:SEQ,SEQ+][:SECONDS]…` | a dump of PyTorch's Flight Recorder, requested now: the collectives of each group that it shows, those that are not complete (`+`: begun), and the latest completion; `starts`: it records when calls begin |
//! | `lost N`, `frontier GROUP N [p2p=N]`, `note KIND "TEXT"` | the evidence |
//! | `clock HOST AHEAD UNCERTAINTY`, `silent HOST SINCE`, `speaks HOST` | for `-`: the state of a node, in seconds |
//! | `interrupted`, `ends [STATUS]`, nothing | for `-`: SIGTERM asks the job to end; the job has ended; time passes |
//!
//! `loop 1-6 from 1.0 every 0.5` … `end` repeats its lines six times, with times relative to the
//! start of each round; `$` is the number of the round, `$+1` and `$-1` the next and the previous
//! number, `$*2-1` and `$*2` those of two steps in each round.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor::diagnosis::event::Event;
use ddp_doctor::diagnosis::input::provenance::Provenance;
use ddp_doctor::diagnosis::model::STACK_LAYER;
use ddp_doctor::diagnosis::timing::{TimeScale, Timing};
use ddp_doctor::diagnosis::{Config, Engine, proof};
use ddp_doctor::report::text;
use ddp_doctor_proto::report::{Confidence, Finding, MAX_HEADLINE_CHARS, Report, Role, Timestamp};
use serde::Deserialize;

mod example;
mod gpus;
mod journal;
mod loops;
mod memory;
mod script;
mod values;

/// Start of every scenario, in Unix nanoseconds.
const START: u64 = 1_800_000_000_000_000_000;

/// A scenario file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Scenario {
    /// The situation and the expected diagnosis, in a sentence of at least three words.
    about: String,
    /// Code of the finding on whose page this is the example.
    example: Option<String>,
    world: u32,
    #[serde(default = "gloo")]
    backend: String,
    /// Layer of the calls: "c10d" or "nccl"; "stack": `attach` has read them from stacks.
    #[serde(default = "c10d")]
    layer: String,
    /// Ranks by host; empty for a single host.
    #[serde(default)]
    hosts: BTreeMap<String, Vec<u32>>,
    /// Timeout of process groups, in seconds; `None` if ranks do not record it.
    timeout: Option<f64>,
    /// Ranks that are not captured.
    #[serde(default)]
    unseen: Vec<u32>,
    /// Whether the scenario starts before any rank has joined the world.
    #[serde(default)]
    starting: bool,
    /// Stall limit in seconds, not scaled; `None` for the scaled default.
    stall_after: Option<f64>,
    /// Factor of all other time limits.
    time_scale: Option<f64>,
    events: String,
    /// Seconds that the scenario continues after its last event.
    #[serde(default)]
    continues_for: f64,
    /// No finding above a note may appear before this second.
    #[serde(default)]
    silent_until: f64,
    /// Step in which memory ran out. If set, every forecast must have been right.
    ends_in_step: Option<u64>,
    verdict: Option<String>,
    /// What ranks do at the end while others wait for them: "idle, waiting for a request at engine.py:16".
    #[serde(default)]
    activities: BTreeMap<String, String>,
    /// The findings at the end; no other initiating finding is allowed.
    #[serde(default)]
    expect: Vec<Expect>,
}

/// Expected properties of a finding; those left out are not compared.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Expect {
    code: String,
    role: Option<String>,
    severity: Option<String>,
    effect: Option<String>,
    /// Restart of the ranks that it belongs to, from 0.
    attempt: Option<u32>,
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
    /// Second in which it was detected.
    detected: Option<f64>,
    /// The whole headline.
    headline: Option<String>,
    summary_has: Option<String>,
    /// Text in one of its reasons.
    why_has: Option<String>,
    /// Text in one of its recommendations.
    next_has: Option<String>,
    /// Texts that neither the headline nor a reason or recommendation contains.
    #[serde(default)]
    says_not: Vec<String>,
}

fn c10d() -> String {
    "c10d".into()
}

fn gloo() -> String {
    "gloo".into()
}

impl Scenario {
    /// Parses a scenario file.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let scenario: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        match scenario.about.split_whitespace().count() {
            0..3 => Err("`about` must describe the scenario in a sentence".into()),
            _ => Ok(scenario),
        }
    }

    /// Codes of the expected findings.
    pub(crate) fn expected_codes(&self) -> Vec<&str> {
        self.expect.iter().map(|it| it.code.as_str()).collect()
    }

    /// Plays the scenario and compares the findings with the expected ones. Other orders of
    /// arrival, and the journals of its nodes, must lead to the same findings.
    pub(crate) fn check(&self) -> Result<(), String> {
        let script = Script::parse(self)?;
        let (report, first) = script.play_live(self);
        if let Some(at) = first.filter(|&at| at < seconds(self.silent_until)) {
            let at = at.since(Timestamp(START)).as_secs_f64();
            return Err(format!("a finding appeared at {at} s, before {} s", self.silent_until));
        }
        self.compare(&report)?;
        if let Some(code) = &self.example {
            example::compare(code, &shown(&report, code)?)?;
        }
        if let Some(last) = self.ends_in_step {
            self.forecasts_hold(&script, last)?;
        }
        // The diagnosis follows from the times of events, not from their order of arrival.
        for backwards in [false, true] {
            let other = script.play_by_rank(self, backwards);
            let (a, b) = (gist(&report), gist(&other));
            if a != b {
                return Err(format!(
                    "played rank by rank{}, the diagnosis differs:\n  live:   {a:?}\n  played: {b:?}",
                    if backwards { " from the last" } else { "" }
                ));
            }
        }
        self.check_journals(&report)
    }

    /// Fails unless the bounds of every forecast contain the last step, and the first forecast was made
    /// at least twenty steps before it.
    fn forecasts_hold(&self, script: &Script, last: u64) -> Result<(), String> {
        let mut engine = Script::engine(self);
        let mut first = None;
        let (mut looks, mut wrong) = (0, Vec::new());
        for (at, _, event) in &script.events {
            let is_step = matches!(event, Event::Step { .. });
            engine.handle(event.clone(), *at);
            engine.poll_change();
            let report = engine.report();
            let mut findings = report.findings.iter();
            let Some(finding) = findings.find(|it| it.code == "DD502").filter(|_| is_step) else {
                continue;
            };
            let step = report.ranks.iter().map(|it| it.step).max().unwrap_or(0);
            let summary = &finding.summary;
            let (least, most) = bounds(summary).ok_or(format!("no bounds: {summary}"))?;
            first.get_or_insert(step);
            looks += 1;
            if !(step + least..=most.saturating_add(step)).contains(&last) {
                wrong.push(format!("  in step {step}: {summary}"));
            }
        }
        let first = first.ok_or("there was no forecast")?;
        println!(
            "{}: {} forecasts from step {first} to {last}, {} wrong",
            self.about,
            looks,
            wrong.len()
        );
        if first + 20 > last {
            return Err(format!("the first forecast came in step {first}, the end in {last}"));
        }
        match &wrong[..] {
            [] => Ok(()),
            wrong => Err(format!(
                "it ended in step {last}; wrong were {} of {looks} forecasts:\n{}",
                wrong.len(),
                wrong.join("\n")
            )),
        }
    }

    fn compare(&self, report: &Report) -> Result<(), String> {
        let found = || {
            let lines: Vec<String> = report
                .findings
                .iter()
                .map(|f| {
                    format!(
                        "  attempt {} {} {} {} {} root {:?} ({}) victims {:?} seq {:?}: {}",
                        f.attempt,
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
            format!("\nfound (verdict {}):\n{}", report.verdict, lines.join("\n"))
        };
        for finding in &report.findings {
            check_proof(finding).map_err(|e| e + &found())?;
        }
        for expect in &self.expect {
            let candidates: Vec<&Finding> =
                report.findings.iter().filter(|finding| finding.code == expect.code).collect();
            if candidates.is_empty() {
                return Err(format!("no {} was found{}", expect.code, found()));
            }
            let differences: Vec<String> = candidates
                .iter()
                .map(|finding| expect.differences(finding, report).join("; "))
                .collect();
            if differences.iter().all(|difference| !difference.is_empty()) {
                return Err(format!("{}: {}{}", expect.code, differences.join(" | "), found()));
            }
        }
        for finding in &report.findings {
            let expected = self.expect.iter().any(|expect| expect.code == finding.code);
            if finding.role == Role::Initiating && !expected {
                return Err(format!("{} was not expected{}", finding.code, found()));
            }
        }
        for (rank, expected) in &self.activities {
            let rank = report.ranks.iter().find(|it| it.rank.to_string() == *rank);
            let activity = rank.and_then(|it| it.activity.as_ref()).map(|it| {
                let line = it.place.as_ref().map(|at| format!(" at {}:{}", at.file, at.line));
                format!("{}, {}{}", it.kind, it.text, line.unwrap_or_default())
            });
            if activity.as_ref() != Some(expected) {
                return Err(format!("activity {activity:?}, not {expected:?}{}", found()));
            }
        }
        match &self.verdict {
            Some(verdict) if *verdict != report.verdict.to_string() => {
                Err(format!("verdict {}, not {verdict}{}", report.verdict, found()))
            }
            None if self.expect.is_empty() && report.verdict.as_str() != "healthy" => {
                Err(format!("verdict {}, not healthy{}", report.verdict, found()))
            }
            _ => Ok(()),
        }
    }
}

/// Text output of the first finding with this code.
fn shown(report: &Report, code: &str) -> Result<String, String> {
    let finding = report
        .findings
        .iter()
        .find(|found| found.code == code)
        .ok_or(format!("no {code} was found"))?;
    let mut shown = Vec::new();
    text::finding(&mut shown, finding, &report.ranks, text::Style::default(), &Default::default())
        .map_err(|error| error.to_string())?;
    String::from_utf8(shown).map_err(|error| error.to_string())
}

/// Fails unless a proved finding has a certificate that the checker accepts, and any other finding
/// has none.
pub(crate) fn check_proof(finding: &Finding) -> Result<(), String> {
    match (&finding.certificate, finding.confidence) {
        (Some(proof), Confidence::Proved) => {
            proof::check(proof).map_err(|e| format!("{}: {e}: {proof:?}", finding.code))
        }
        (None, Confidence::Suspected | Confidence::Supported) => Ok(()),
        _ => Err(format!(
            "{}: a proved finding needs a certificate, and no other may have one",
            finding.code
        )),
    }
}

/// The properties of findings that must not depend on the order of arrival.
pub(crate) fn gist(report: &Report) -> Vec<String> {
    let gist = |f: &Finding| {
        let (root, victims) = (&f.ranks.root, &f.ranks.victims);
        format!(
            "{} {} {} {root:?} {victims:?} {:?} {}",
            f.attempt, f.role, f.code, f.seq, f.confidence
        )
    };
    // Episodes that are over are known to an engine that was evaluated while they lasted.
    let lasting = report.findings.iter().filter(|finding| finding.held.is_empty());
    lasting.map(gist).collect()
}

impl Expect {
    /// Differences between the finding and the expectation.
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
        word("confidence", &self.confidence, finding.confidence.to_string());
        word("root-confidence", &self.root_confidence, finding.ranks.root_confidence.to_string());
        word("op", &self.op, finding.op.clone().unwrap_or_default());
        let group = finding.group.as_ref().map(|group| group.name.clone());
        word("group", &self.group, group.unwrap_or_default());
        let proof = finding.certificate.as_ref().map(|proof| proof.kind.to_string());
        word("certificate", &self.certificate, proof.unwrap_or_default());
        let cause = finding.cause.map(|cause| cause.kind.to_string());
        word("cause", &self.cause, cause.unwrap_or_default());
        let caused_by = finding.caused_by.first().map(|&i| report.findings[i].code.clone());
        word("caused-by", &self.caused_by, caused_by.unwrap_or_default());
        for (rank, want) in &self.lines {
            let call = finding.per_rank.iter().find(|call| call.rank.to_string() == *rank);
            let is = call
                .and_then(|call| call.place.as_ref())
                .map(|place| format!("{}:{}", place.file, place.line));
            word(&format!("line of rank {rank}"), &Some(want.clone()), is.unwrap_or_default());
        }
        for (rank, want) in &self.states {
            let call = finding.per_rank.iter().find(|call| call.rank.to_string() == *rank);
            let is = call.map(|call| call.state.to_string()).unwrap_or_default();
            word(&format!("state of rank {rank}"), &Some(want.clone()), is);
        }
        if let Some(root) = self.root.as_ref().filter(|root| **root != finding.ranks.root) {
            found.push(format!("root is {:?}, not {root:?}", finding.ranks.root));
        }
        if let Some(victims) = self.victims.as_ref().filter(|v| **v != finding.ranks.victims) {
            found.push(format!("victims are {:?}, not {victims:?}", finding.ranks.victims));
        }
        if self.attempt.is_some_and(|it| it != finding.attempt) {
            found.push(format!("attempt is {}, not {:?}", finding.attempt, self.attempt));
        }
        if self.seq.is_some() && self.seq != finding.seq {
            found.push(format!("seq is {:?}, not {:?}", finding.seq, self.seq));
        }
        if let Some(at) = self.detected.filter(|&at| seconds(at) != finding.detected_at) {
            let is = finding.detected_at.since(Timestamp(START)).as_secs_f64();
            found.push(format!("detected at {is} s, not {at} s"));
        }
        if let Some(text) =
            self.why_has.as_ref().filter(|t| !finding.why.iter().any(|why| why.contains(*t)))
        {
            found.push(format!("no reason has {text:?}: {:?}", finding.why));
        }
        if let Some(text) =
            self.next_has.as_ref().filter(|t| !finding.next.iter().any(|next| next.contains(*t)))
        {
            found.push(format!("it does not advise {text:?}: {:?}", finding.next));
        }
        let said = || finding.why.iter().chain(&finding.next).chain(&finding.headline);
        let wrongly = |text: &&String| said().any(|it| it.contains(*text));
        for text in self.says_not.iter().filter(wrongly) {
            found.push(format!("a sentence contains {text:?}"));
        }
        let headline = finding.headline.as_deref().unwrap_or_default();
        if self.headline.as_deref().is_some_and(|it| it != headline) {
            found.push(format!("the headline is {headline:?}"));
        }
        if !(1..=MAX_HEADLINE_CHARS).contains(&headline.chars().count()) {
            found.push(format!("no headline fits: {headline:?}"));
        }
        if let Some(text) = self.summary_has.as_ref().filter(|t| !finding.summary.contains(*t)) {
            found.push(format!("summary {:?} does not contain {text:?}", finding.summary));
        }
        found
    }
}

/// The bounds in "in about 92 steps (between 80 and 110)".
fn bounds(summary: &str) -> Option<(u64, u64)> {
    let (_, inside) = summary.split_once(" steps (")?;
    let (inside, _) = inside.split_once(')')?;
    if let Some(least) = inside.strip_suffix(" at least") {
        return Some((least.parse().ok()?, u64::MAX));
    }
    let (least, most) = inside.strip_prefix("between ")?.split_once(" and ")?;
    Some((least.parse().ok()?, most.parse().ok()?))
}

fn seconds(seconds: f64) -> Timestamp {
    Timestamp(START).plus(Duration::from_secs_f64(seconds))
}

/// The events of a scenario with their times.
pub(crate) struct Script {
    /// In the order of the file, each with its rank; `None` for events of no rank.
    pub(crate) events: Vec<(Timestamp, Option<u32>, Event)>,
    pub(crate) end: Timestamp,
}

impl Script {
    pub(crate) fn parse(scenario: &Scenario) -> Result<Self, String> {
        let mut writer = script::Writer::new(scenario);
        let mut before = 0.0;
        for (i, line) in loops::unrolled(&scenario.events)? {
            let at = writer.line(&line).map_err(|e| format!("event line {i}: {e}: {line}"))?;
            if at < before {
                return Err(format!("event line {i}: time runs backwards: {line}"));
            }
            before = at;
        }
        Ok(Self { events: writer.events, end: seconds(before + scenario.continues_for) })
    }

    pub(crate) fn engine(scenario: &Scenario) -> Engine {
        let scale = scenario.time_scale.map(|it| TimeScale::new(it).unwrap());
        let mut config = Config::with_timing(Timing::default().scaled(scale.unwrap_or_default()));
        if let Some(seconds) = scenario.stall_after {
            config.stall_after = Duration::from_secs_f64(seconds);
        }
        if scenario.layer == STACK_LAYER {
            config.provenance = Provenance::Attached;
        }
        Engine::new(config)
    }

    /// Plays events and timeouts in order of time. Also returns when the first finding above a note
    /// appeared.
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

    /// Plays the events of one rank after the other, all of which arrive at the end.
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
