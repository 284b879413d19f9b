//! Parses the lines of a scenario into events.

mod calls;
mod groups;
mod process;
mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;

use ddp_doctor::diagnosis::event::{CallId, Event, GroupInfo, ProcessId, StartedRank, ThreadId};
use ddp_doctor_proto::report::{Timestamp, Where};

use super::values::{place, ranks, words};
use super::{Scenario, seconds};

/// Turns lines into events.
pub(super) struct Writer<'a> {
    scenario: &'a Scenario,
    pub(super) events: Vec<(Timestamp, Option<u32>, Event)>,
    /// By rank and name: each rank has its own copy of a group, as with real evidence.
    groups: BTreeMap<(u32, String), Arc<GroupInfo>>,
    seqs: BTreeMap<(u32, String, String), u64>,
    next_call: BTreeMap<u32, u64>,
    last_call: BTreeMap<u32, (ThreadId, CallId)>,
    labels: BTreeMap<(u32, String), (ThreadId, CallId)>,
    /// Groups that ranks are creating, by rank and name: call and members.
    making: BTreeMap<(u32, String), (CallId, Vec<u32>)>,
    steps: BTreeMap<u32, u64>,
    /// How often each rank was restarted.
    restarts: BTreeMap<u32, u64>,
    /// How often the launcher restarted each rank, that is, after its process had ended.
    counted: BTreeMap<u32, u32>,
    ended: BTreeSet<u32>,
    /// Processes that will become ranks and have not joined.
    started: BTreeMap<u32, StartedRank>,
}

/// What one rank does: a line of a scenario, for one of its ranks.
struct Line<'a> {
    rank: u32,
    at: f64,
    verb: &'a str,
    args: &'a [String],
}

impl Line<'_> {
    fn moment(&self) -> Timestamp {
        seconds(self.at)
    }

    fn arg(&self, index: usize) -> Result<&str, String> {
        let arg = self.args.get(index).map(String::as_str);
        arg.ok_or(format!("{} what?", self.verb))
    }

    fn number(&self, index: usize) -> Result<i32, String> {
        self.arg(index)?.parse::<i32>().map_err(|e| e.to_string())
    }

    /// The value of the first argument that begins with `name`, such as `peer=`.
    fn value<T: FromStr>(&self, name: &str) -> Option<T> {
        let value = self.args.iter().find_map(|arg| arg.strip_prefix(name));
        value.and_then(|value| value.parse().ok())
    }

    /// The place in the first argument that begins with `@`.
    fn place(&self) -> Result<Option<Arc<Where>>, String> {
        let named = self.args.iter().find_map(|arg| arg.strip_prefix('@'));
        named.map(place).transpose()
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Self {
        let mut writer = Self {
            scenario,
            events: Vec::new(),
            groups: BTreeMap::new(),
            seqs: BTreeMap::new(),
            next_call: BTreeMap::new(),
            last_call: BTreeMap::new(),
            labels: BTreeMap::new(),
            making: BTreeMap::new(),
            steps: BTreeMap::new(),
            restarts: BTreeMap::new(),
            counted: BTreeMap::new(),
            ended: BTreeSet::new(),
            started: BTreeMap::new(),
        };
        let hosts: Vec<&str> = scenario.hosts.keys().map(String::as_str).collect();
        let one = ["node"];
        for host in if hosts.is_empty() { &one[..] } else { &hosts } {
            let started = Event::JobStarted {
                job: "scenario".into(),
                attempt: 0,
                host: (*host).into(),
                at: seconds(0.0),
            };
            writer.events.push((seconds(0.0), None, started));
        }
        let seen = |rank: &u32| !scenario.starting && !scenario.unseen.contains(rank);
        for rank in (0..scenario.world).filter(seen) {
            writer.join(rank, 0.0);
        }
        writer
    }

    /// Parses one line; returns its time in seconds.
    pub(super) fn line(&mut self, line: &str) -> Result<f64, String> {
        let mut words = words(line)?.into_iter();
        let at: f64 = words.next().and_then(|w| w.parse().ok()).ok_or("no time")?;
        let who = words.next().ok_or("no ranks")?;
        let rest: Vec<String> = words.collect();
        if who == "-" {
            self.of_the_job(at, &rest)?;
            return Ok(at);
        }
        for rank in ranks(&who, self.scenario.world)? {
            let (verb, args) = rest.split_first().ok_or("nothing happens")?;
            self.act(&Line { rank, at, verb, args })?;
        }
        Ok(at)
    }

    fn of_the_job(&mut self, at: f64, words: &[String]) -> Result<(), String> {
        let moment = seconds(at);
        let number = |i: usize| words.get(i)?.parse::<f64>().ok();
        let node = |i: usize| {
            let mut hosts = self.scenario.hosts.keys();
            let host = words.get(i)?;
            Some(hosts.position(|known| known == host)? as u32)
        };
        let Some(verb) = words.first() else {
            return Ok(());
        };
        let parsed = match verb.as_str() {
            "interrupted" => Some(Event::Interrupted { signal: 15, at: moment }),
            "ends" => Some(Event::JobEnded {
                status: number(1).unwrap_or(0.0) as i32,
                reason: None,
                at: moment,
            }),
            "clock" => number(2).zip(number(3)).map(|(ahead, uncertainty)| Event::Clock {
                host: words[1].as_str().into(),
                ahead_ns: (ahead * 1e9) as i64,
                uncertainty_ns: (uncertainty * 1e9) as u64,
                at: moment,
            }),
            "silent" => node(1).zip(number(2)).map(|(node, since)| Event::Silent {
                node,
                since: Some(seconds(since)),
                at: moment,
            }),
            "speaks" => node(1).map(|node| Event::Silent { node, since: None, at: moment }),
            _ => None,
        };
        let event = parsed.ok_or(format!("unknown event of the job: {words:?}"))?;
        self.events.push((moment, None, event));
        Ok(())
    }

    fn act(&mut self, line: &Line<'_>) -> Result<(), String> {
        let is_done = self.process_acts(line)?
            || self.group_acts(line)?
            || self.call_acts(line)?
            || self.program_acts(line)?;
        if is_done { Ok(()) } else { self.call(line) }
    }

    fn process(&self, rank: u32) -> ProcessId {
        let restarts = self.restarts.get(&rank).copied().unwrap_or(0);
        ProcessId::new(self.host(rank).0, rank + 1000 * restarts as u32)
    }

    /// Number and name of a rank's host.
    fn host(&self, rank: u32) -> (u32, &str) {
        let mut hosts = self.scenario.hosts.iter().enumerate();
        let host = hosts.find(|(_, (_, ranks))| ranks.contains(&rank));
        host.map_or((0, "node"), |(number, (name, _))| (number as u32, name))
    }

    fn push(&mut self, rank: u32, at: f64, event: Event) {
        if !self.scenario.unseen.contains(&rank) {
            self.events.push((seconds(at), Some(rank), event));
        }
    }
}
