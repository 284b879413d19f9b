//! Parses the lines of a scenario into events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor::diagnosis::event::{
    Call, CallId, Event, GroupInfo, Guard, LowerCall, OnStream, OomKills, Parameters, ProcessId,
    Standing, StartedRank, ThreadId, Transfer, WaitsFor,
};
use ddp_doctor_proto::report::{Exit, GroupRef, Timestamp, Where};
use ddp_doctor_proto::{
    DType, ExceptionKind, GuardForm, GuardSubject, NoteKind, Op, ParameterFact, ProcessState,
    ReduceOp, Spending,
};

use super::values::{forward, place, ranks, scheduling, stacks, tensor, two_places, words};
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

    /// Adds the events of a rank whose process joins the world.
    fn join(&mut self, rank: u32, at: f64) {
        let world: Vec<u32> = (0..self.scenario.world).collect();
        self.begin(rank, at, self.scenario.world);
        self.join_group(rank, at, "0", "default_pg", &world);
    }

    /// Adds the start of capture in the rank's process.
    fn begin(&mut self, rank: u32, at: f64, world_size: u32) {
        self.push(
            rank,
            at,
            Event::ProcessJoined {
                process: self.process(rank),
                rank: Some(rank),
                world_size: Some(world_size),
                host: self.host(rank).1.into(),
                pid: 1000 + rank + 100 * self.restarts.get(&rank).copied().unwrap_or(0) as u32,
                layer: self.scenario.layer.as_str().into(),
                world: "".into(),
                restarts: self.counted.get(&rank).copied().unwrap_or(0),
                at: seconds(at),
            },
        );
    }

    /// Adds the events of a rank that begins to join the world in `args`.
    fn inits(
        &mut self,
        rank: u32,
        at: f64,
        args: &[String],
        place: Option<Arc<Where>>,
    ) -> Result<(), String> {
        let size = args.first().and_then(|size| size.parse().ok());
        let size: u32 = size.ok_or("the world size is missing")?;
        let meeting = args.get(1).ok_or("the rendezvous address is missing")?;
        let (address, port) = match meeting.rsplit_once(':') {
            Some((address, port)) if port.parse::<u16>().is_ok() => (address, port),
            _ => (meeting.as_str(), ""),
        };
        let value = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name));
        let backend = args.get(2).filter(|it| !it.contains(['@', '=']));
        self.begin(rank, at, size);
        let (own, all) = (rank.to_string(), size.to_string());
        for (name, value) in [
            ("init.rank", own.as_str()),
            ("init.world_size", all.as_str()),
            ("init.address", address),
            ("init.port", port),
            ("init.backend", backend.map_or("gloo", String::as_str)),
            ("init.launcher", value("launcher=").unwrap_or_default()),
            (
                "init.launched_world_size",
                value("env-size=").unwrap_or_default(),
            ),
        ] {
            self.sets(rank, at, name, value);
        }
        let id = self.next_call.entry(rank).or_default();
        *id += 1;
        let id = CallId(*id);
        self.last_call.insert(rank, (ThreadId(1), id));
        let call = Arc::new(Call {
            place,
            ..blank(id, seconds(at), Op::InitProcessGroup)
        });
        let process = self.process(rank);
        self.push(rank, at, Event::Issued { process, call });
        Ok(())
    }

    /// Adds the return from initialization and the membership of the default group.
    fn inited(&mut self, rank: u32, at: f64) -> Result<(), String> {
        let (thread, call) = *self
            .last_call
            .get(&rank)
            .ok_or("it has not begun to join a world")?;
        let returned = Event::Returned {
            process: self.process(rank),
            thread,
            call,
            followed: false,
            at: seconds(at),
        };
        self.push(rank, at, returned);
        let world: Vec<u32> = (0..self.scenario.world).collect();
        self.join_group(rank, at, "0", "default_pg", &world);
        Ok(())
    }

    /// Updates the process that will become this rank: it was seen, its stacks were captured, or it
    /// exited.
    fn started(
        &mut self,
        rank: u32,
        at: f64,
        verb: &str,
        args: &[String],
    ) -> Result<StartedRank, String> {
        let (node, host) = self.host(rank);
        let new = StartedRank {
            node,
            host: host.into(),
            pid: 1000 + rank,
            start_ticks: 1,
            rank,
            world_size: Some(self.scenario.world),
            seen: seconds(at),
            end: None,
            looks: Vec::new(),
        };
        let started = self.started.entry(rank).or_insert(new);
        match verb {
            "stands" => started.looks.push(Arc::new(stacks(seconds(at), args)?)),
            "ended" => {
                let status: i32 = args
                    .first()
                    .and_then(|status| status.parse().ok())
                    .ok_or("ended how?")?;
                let exit = match status {
                    0.. => Exit {
                        code: Some(status),
                        signal: None,
                    },
                    _ => Exit {
                        code: None,
                        signal: Some(-status),
                    },
                };
                started.end = Some((seconds(at), exit));
            }
            _ => {}
        }
        Ok(started.clone())
    }

    fn sets(&mut self, rank: u32, at: f64, name: &str, value: &str) {
        let setting = Event::Setting {
            process: self.process(rank),
            name: name.into(),
            value: value.into(),
            at: seconds(at),
        };
        self.push(rank, at, setting);
    }

    fn process(&self, rank: u32) -> ProcessId {
        let restarts = self.restarts.get(&rank).copied().unwrap_or(0);
        ProcessId::of(self.host(rank).0, rank + 1000 * restarts as u32)
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

    fn join_group(&mut self, rank: u32, at: f64, name: &str, description: &str, members: &[u32]) {
        let group = Arc::new(info(self.scenario, name, description, members));
        self.groups.insert((rank, name.into()), Arc::clone(&group));
        let process = self.process(rank);
        let info = Arc::clone(&group);
        self.push(rank, at, Event::GroupJoined { process, group });
        if let Some(timeout) = self.scenario.timeout {
            let timeout = Event::GroupTimeout {
                process,
                group: info,
                timeout: Duration::from_secs_f64(timeout),
                at: seconds(at),
            };
            self.push(rank, at, timeout);
        }
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
            self.act(rank, at, verb, args)?;
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
        let event = match verb.as_str() {
            "interrupted" => Some(Event::Interrupted {
                signal: 15,
                at: moment,
            }),
            "ends" => Some(Event::JobEnded {
                status: number(1).unwrap_or(0.0) as i32,
                at: moment,
            }),
            "clock" => number(2)
                .zip(number(3))
                .map(|(ahead, uncertainty)| Event::Clock {
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
            "speaks" => node(1).map(|node| Event::Silent {
                node,
                since: None,
                at: moment,
            }),
            _ => None,
        };
        let event = event.ok_or(format!("unknown event of the job: {words:?}"))?;
        self.events.push((moment, None, event));
        Ok(())
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
            .filter(|_| !matches!(verb, "stack" | "stands"))
            .map(place)
            .transpose()?;
        let counted = |name: &str| {
            let count = args.iter().find_map(|arg| arg.strip_prefix(name));
            count.and_then(|count| count.parse().ok())
        };
        let changed = |state, exit| Event::ProcessChanged {
            process,
            state,
            exit,
            oom_kills: OomKills {
                in_cgroup: counted("oom="),
                on_host: counted("host-oom="),
            },
            at: moment,
        };
        let dead = |code, signal| changed(ProcessState::Dead, Exit { code, signal });
        if matches!(verb, "exits" | "killed" | "vanishes") {
            self.ended.insert(rank);
        }
        let event = match verb {
            "group" => {
                let members = ranks(arg(1)?, self.scenario.world)?;
                self.join_group(rank, at, arg(0)?, "", &members);
                return Ok(());
            }
            "makes" => {
                let members = ranks(arg(1)?, self.scenario.world)?;
                let lazy = args.iter().any(|arg| arg == "lazy");
                self.makes(rank, at, arg(0)?, members, lazy, place);
                return Ok(());
            }
            "made" => {
                let name = arg(0)?;
                let made = self.making.remove(&(rank, name.into()));
                let (call, members) = made.ok_or(format!("it is not creating a group {name:?}"))?;
                let returned = Event::Returned {
                    process,
                    thread: ThreadId(1),
                    call,
                    followed: false,
                    at: moment,
                };
                if members.contains(&rank) {
                    self.join_group(rank, at, name, "", &members);
                }
                returned
            }
            "restarts" => {
                *self.restarts.entry(rank).or_default() += 1;
                if self.ended.remove(&rank) && args.is_empty() {
                    *self.counted.entry(rank).or_default() += 1;
                }
                self.seqs.retain(|(other, ..), _| *other != rank);
                self.next_call.remove(&rank);
                if !self.scenario.starting {
                    self.join(rank, at);
                }
                return Ok(());
            }
            "inits" => return self.inits(rank, at, args, place),
            "inited" => return self.inited(rank, at),
            "started" | "stands" | "ended" => {
                let started = self.started(rank, at, verb, args)?;
                Event::RankStarted(Box::new(started))
            }
            "begins" => {
                self.begin(rank, at, number(0)? as u32);
                return Ok(());
            }
            "sets" => {
                let (name, value) = arg(0)?.split_once('=').ok_or("expected NAME=VALUE")?;
                self.sets(rank, at, name, value);
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
            "completes" => {
                let known = match args.first() {
                    Some(label) => self.labels.get(&(rank, label.clone())),
                    None => self.last_call.get(&rank),
                };
                let (_, call) = *known.ok_or("no call to complete")?;
                Event::Completed {
                    process,
                    call,
                    at: moment,
                }
            }
            "halts" | "moves" => {
                let (_, call) = *self.last_call.get(&rank).ok_or("no call to transfer for")?;
                let number = |name: &str| {
                    let value = args.iter().find_map(|arg| arg.strip_prefix(name));
                    value.and_then(|it| it.parse().ok())
                };
                let way = arg(0)?;
                let [is_send, is_receive] = [way == "send", way == "receive"];
                if !is_send && !is_receive {
                    return Err(format!("neither send nor receive: {way}"));
                }
                let waits_for = match arg(1).unwrap_or_default() {
                    "network" => WaitsFor::Network,
                    "peer" => WaitsFor::Peer,
                    "device" => WaitsFor::Device,
                    _ => WaitsFor::Unknown,
                };
                Event::Transfer {
                    process,
                    call,
                    transfer: Transfer {
                        peer: number("peer=").ok_or("no peer")?,
                        is_send,
                        channel: number("channel=").unwrap_or(0),
                    },
                    standing: (verb == "halts").then_some(Standing {
                        waits_for,
                        done: 1,
                        steps: 8,
                    }),
                    at: moment,
                }
            }
            "wait" | "done" => {
                let (thread, call) = match args.first() {
                    Some(label) => *self
                        .labels
                        .get(&(rank, label.clone()))
                        .ok_or(format!("no call is labelled {label:?}"))?,
                    None => *self.last_call.get(&rank).ok_or("no call to wait for")?,
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
            "step" | "forward" => {
                let step = number(0)? as u64;
                self.steps.insert(rank, step);
                let forward = (verb == "forward")
                    .then(|| forward(&args[1..]))
                    .transpose()?;
                Event::Step {
                    process,
                    step,
                    forward,
                    at: moment,
                }
            }
            "guard" => {
                let [line, place] = two_places(args)?;
                let subject = GuardSubject::from_name(arg(1)?);
                let form = GuardForm::from_name(arg(0)?);
                Event::Site {
                    process,
                    place,
                    caller: None,
                    guards: Arc::new([Guard {
                        line: line.line,
                        test: arg(2)?.into(),
                        subject: subject.ok_or("unknown subject of a test")?,
                        form: form.ok_or("unknown form of a guard")?,
                    }]),
                    reading: false,
                }
            }
            "reading" => Event::Site {
                process,
                place: place.ok_or("the line is missing")?,
                caller: None,
                guards: Arc::new([]),
                reading: true,
            },
            "called" => {
                let [place, caller] = two_places(args)?;
                Event::Site {
                    process,
                    place,
                    caller: Some(caller),
                    guards: Arc::new([]),
                    reading: false,
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
            "input" | "garbage" | "buckets" => {
                let seconds = arg(0)?.parse::<f64>().map_err(|e| e.to_string())?;
                Event::Spent {
                    process,
                    thread: ThreadId(1),
                    on: Spending::from_name(verb).unwrap_or_default(),
                    took: Duration::from_secs_f64(seconds),
                    place,
                    at: moment,
                }
            }
            "host" => Event::Scheduled {
                process,
                sample: scheduling(args)?,
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
            "layout" | "without-gradient" | "complete" | "ready-twice" | "graph-changed"
            | "outside" | "never-unused" | "used-at" => {
                let fact = ParameterFact::from_name(&verb.replace('-', " "));
                let after = args.iter().find_map(|arg| arg.strip_prefix("after="));
                let after = after.and_then(|after| after.parse().ok());
                let listed = args
                    .iter()
                    .filter(|arg| !arg.starts_with('@') && !arg.starts_with("after="));
                let lines: String = listed.map(|line| format!("{line}\n")).collect();
                Event::Parameters {
                    process,
                    group: self.group(rank, "0")?,
                    said: Parameters {
                        fact: fact.unwrap_or_default(),
                        model: 1,
                        first: match verb {
                            "never-unused" => 1500,
                            _ => after.unwrap_or(0),
                        },
                        total: lines.lines().count() as u64,
                        lines: lines.into(),
                        place,
                        step: self.steps.get(&rank).copied().unwrap_or(0),
                        ..Parameters::default()
                    },
                    at: moment,
                }
            }
            "values" => {
                let listed = args.get(2..).unwrap_or_default().iter();
                let listed = listed.filter(|arg| !arg.starts_with('@'));
                let bits: Result<Vec<u32>, String> = listed
                    .map(|arg| {
                        arg.parse()
                            .map(f32::to_bits)
                            .map_err(|e| format!("{arg}: {e}"))
                    })
                    .collect();
                Event::Parameters {
                    process,
                    group: self.group(rank, "0")?,
                    said: Parameters {
                        fact: ParameterFact::Values,
                        model: 1,
                        first: u32::try_from(number(1)?).map_err(|e| e.to_string())?,
                        total: u64::try_from(number(0)?).map_err(|e| e.to_string())?,
                        place,
                        step: self.steps.get(&rank).copied().unwrap_or(0),
                        dtype: DType::Float32,
                        values: bits?,
                        ..Parameters::default()
                    },
                    at: moment,
                }
            }
            "within" => Event::Within {
                process,
                thread: ThreadId(1),
                function: args.first().map(|it| it.as_str().into()),
                at: moment,
            },
            "unawaited" => Event::Unawaited {
                process,
                call: CallId(1),
                op: Op::AllReduce,
                group: Some(self.group(rank, "0")?),
                place,
                at: moment,
            },
            "stack" => Event::Stacks {
                process,
                stacks: Arc::new(stacks(moment, args)?),
            },
            "announces" => {
                let how = args.get(1).map_or("main returned", String::as_str).into();
                Event::ExitAnnounced {
                    process,
                    thread: ThreadId(1),
                    code: number(0)?,
                    how,
                    at: moment,
                }
            }
            "memory" => Event::Memory {
                process,
                sample: Box::new(super::memory::sample(args)?),
                at: moment,
            },
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
                    p2p_issued: match args.get(2).and_then(|arg| arg.strip_prefix("p2p=")) {
                        Some(count) => count.parse().ok().ok_or(format!("no count: {count}"))?,
                        None => 0,
                    },
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

    fn makes(
        &mut self,
        rank: u32,
        at: f64,
        name: &str,
        members: Vec<u32>,
        lazy: bool,
        place: Option<Arc<Where>>,
    ) {
        let info = info(self.scenario, name, "", &members);
        let id = self.next_call.entry(rank).or_default();
        *id += 1;
        let id = CallId(*id);
        let call = Call {
            group: Some(Arc::new(info)),
            takes_all: !lazy,
            place,
            ..blank(id, seconds(at), Op::NewGroup)
        };
        self.making.insert((rank, name.into()), (id, members));
        let (process, call) = (self.process(rank), Arc::new(call));
        self.push(rank, at, Event::Issued { process, call });
    }

    fn group(&self, rank: u32, name: &str) -> Result<Arc<GroupInfo>, String> {
        let known = self.groups.get(&(rank, name.into()));
        known
            .cloned()
            .ok_or(format!("rank {rank} is not in a group {name:?}"))
    }

    fn call(&mut self, rank: u32, at: f64, verb: &str, args: &[String]) -> Result<(), String> {
        let (op, group) = verb.split_once('/').unwrap_or((verb, "0"));
        let op = Op::from_name(op).ok_or(format!("unknown event {verb:?}"))?;
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
            group: info,
            step: self.steps.get(&rank).copied().unwrap_or(0),
            ..blank(CallId(*id), seconds(at), op)
        };
        let on_device = self.scenario.layer == "nccl" && grouped;
        let (mut returned, mut followed, mut label) = (true, false, None);
        let mut lower_call: Option<LowerCall> = None;
        call.on_stream = on_device.then_some(OnStream {
            stream: 1,
            launch: 0,
        });
        let mut args = args.iter().map(String::as_str);
        while let Some(arg) = args.next() {
            if let Some(at) = arg.strip_prefix('@') {
                call.place = Some(place(at)?);
            } else if let Some(root) = arg.strip_prefix("root=") {
                call.root = Some(root.parse().ok().ok_or(format!("no rank: {root}"))?);
            } else if let Some(peer) = arg.strip_prefix("peer=") {
                call.peer = Some(peer.parse().ok().ok_or(format!("no rank: {peer}"))?);
            } else if let Some(splits) = arg.strip_prefix("splits=") {
                let (input, output) = splits.split_once('/').ok_or("splits=INPUT/OUTPUT")?;
                let sizes = |text: &str| text.split(',').map(|it| it.parse::<u32>()).collect();
                let sizes = |text| Result::<Vec<u32>, _>::map_err(sizes(text), |it| it.to_string());
                call.splits = [sizes(input)?, sizes(output)?];
            } else if let Some(tag) = arg.strip_prefix("tag=") {
                call.tag = Some(tag.parse().ok().ok_or(format!("no tag: {tag}"))?);
            } else if let Some(stream) = arg.strip_prefix("stream=") {
                let on = call.on_stream.as_mut().ok_or("only NCCL has streams")?;
                on.stream = stream.parse().ok().ok_or(format!("no stream: {stream}"))?;
            } else if let Some(launch) = arg.strip_prefix("launch=") {
                let on = call.on_stream.as_mut().ok_or("only NCCL has launches")?;
                on.launch = launch.parse().ok().ok_or(format!("no launch: {launch}"))?;
            } else if let Some(asked) = arg.strip_prefix("nccl:") {
                let (name, stream) = asked.split_once('@').unwrap_or((asked, "1"));
                let stream = stream.parse().ok().ok_or(format!("no stream: {stream}"))?;
                lower_call = Some(LowerCall {
                    op,
                    reduce_op: ReduceOp::from_name(name).unwrap_or_default(),
                    root: None,
                    on_stream: Some(OnStream { stream, launch: 0 }),
                });
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
                    "followed" => followed = true,
                    "as" => label = args.next(),
                    _ => return Err(format!("unknown word {arg:?}")),
                }
            }
        }
        // A receive from any source belongs to no channel.
        if grouped && (op.is_collective() || call.peer.is_some()) {
            let channel = call
                .peer
                .map_or_else(String::new, |peer| format!("{op} {peer}"));
            let seq = self.seqs.entry((rank, group.into(), channel)).or_default();
            *seq += 1;
            call.seq = *seq;
        }
        let (process, thread, id) = (self.process(rank), call.thread, call.id);
        let waits = grouped && !call.is_async && returned && !on_device;
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
        if let Some(lower_call) = lower_call {
            let told = Event::LowerCall {
                process,
                call: id,
                lower_call: Arc::new(lower_call),
                at: moment,
            };
            self.push(rank, at, told);
        }
        if returned {
            self.push(
                rank,
                at,
                Event::Returned {
                    process,
                    thread,
                    call: id,
                    followed,
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

fn info(scenario: &Scenario, name: &str, description: &str, members: &[u32]) -> GroupInfo {
    GroupInfo {
        key: GroupRef {
            layer: scenario.layer.clone(),
            epoch: 0,
            name: name.into(),
            ordinal: 0,
            members: members.into(),
        },
        description: description.into(),
        backend: scenario.backend.as_str().into(),
        seat: None,
    }
}

/// A call with only an id, a time and an operation.
fn blank(id: CallId, at: Timestamp, op: Op) -> Call {
    Call {
        // c10d's default tag.
        tag: op.is_point_to_point().then_some(0),
        ..Call::new(id, at, ThreadId(1), op)
    }
}
