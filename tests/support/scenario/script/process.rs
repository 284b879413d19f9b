//! Processes: their start, initialization, settings, restarts and end.

use std::sync::Arc;

use ddp_doctor::diagnosis::event::{Call, CallId, Event, OomKills, StartedRank, ThreadId};
use ddp_doctor_proto::report::{Exit, Where};
use ddp_doctor_proto::{NoteKind, Op, ProcessState};

use super::calls::blank;
use super::{Line, Writer};
use crate::support::scenario::seconds;
use crate::support::scenario::values::stacks;

impl Writer<'_> {
    /// Returns false if the line is not about a process.
    pub(super) fn process_acts(&mut self, line: &Line<'_>) -> Result<bool, String> {
        let &Line { rank, at, verb, args } = line;
        if matches!(verb, "exits" | "killed" | "vanishes") {
            self.ended.insert(rank);
        }
        let process = self.process(rank);
        let changed = |state, exit| Event::ProcessChanged {
            process,
            state,
            exit,
            oom_kills: OomKills { in_cgroup: line.value("oom="), on_host: line.value("host-oom=") },
            at: line.moment(),
        };
        let dead = |code, signal| changed(ProcessState::Dead, Exit { code, signal });
        let event = match verb {
            "begins" => {
                self.begin(rank, at, line.number(0)? as u32);
                return Ok(true);
            }
            "inits" => {
                self.inits(rank, at, args, line.place()?)?;
                return Ok(true);
            }
            "inited" => {
                self.inited(rank, at)?;
                return Ok(true);
            }
            "sets" => {
                let (name, value) = line.arg(0)?.split_once('=').ok_or("expected NAME=VALUE")?;
                self.sets(rank, at, name, value);
                return Ok(true);
            }
            "restarts" => {
                self.restarts(line);
                return Ok(true);
            }
            "note" => {
                let event = self.note(line)?;
                self.events.push((line.moment(), None, event));
                return Ok(true);
            }
            "started" | "stands" | "ended" => {
                let started = self.started(rank, at, verb, args)?;
                Event::RankStarted(Box::new(started))
            }
            "announces" => Event::ExitAnnounced {
                process,
                thread: ThreadId(1),
                code: line.number(0)?,
                how: args.get(1).map_or("main returned", String::as_str).into(),
                place: line.place()?,
                at: line.moment(),
            },
            "exits" => dead(Some(line.number(0)?), None),
            "killed" => dead(None, Some(line.number(0)?)),
            "vanishes" => dead(None, None),
            "stops" => changed(ProcessState::Stopped, Exit::default()),
            "continues" => changed(ProcessState::Running, Exit::default()),
            "lost" => Event::RecordsLost { process, count: line.number(0)? as u64 },
            _ => return Ok(false),
        };
        self.push(rank, at, event);
        Ok(true)
    }

    /// Adds the events of a rank whose process joins the world.
    pub(super) fn join(&mut self, rank: u32, at: f64) {
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
        let size: u32 =
            args.first().and_then(|size| size.parse().ok()).ok_or("the world size is missing")?;
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
            ("init.launched_world_size", value("env-size=").unwrap_or_default()),
        ] {
            self.sets(rank, at, name, value);
        }
        let id = self.next_call.entry(rank).or_default();
        *id += 1;
        let id = CallId(*id);
        self.last_call.insert(rank, (ThreadId(1), id));
        let call = Arc::new(Call { place, ..blank(id, seconds(at), Op::InitProcessGroup) });
        let process = self.process(rank);
        self.push(rank, at, Event::Issued { process, call });
        Ok(())
    }

    /// Adds the return from initialization and the membership of the default group.
    fn inited(&mut self, rank: u32, at: f64) -> Result<(), String> {
        let (thread, call) =
            *self.last_call.get(&rank).ok_or("it has not begun to join a world")?;
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
                let status: i32 =
                    args.first().and_then(|status| status.parse().ok()).ok_or("ended how?")?;
                let exit = match status {
                    0.. => Exit { code: Some(status), signal: None },
                    _ => Exit { code: None, signal: Some(-status) },
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

    /// Begins the next process of a rank.
    fn restarts(&mut self, line: &Line<'_>) {
        let rank = line.rank;
        *self.restarts.entry(rank).or_default() += 1;
        if self.ended.remove(&rank) && line.args.is_empty() {
            *self.counted.entry(rank).or_default() += 1;
        }
        self.seqs.retain(|(other, ..), _| *other != rank);
        self.next_call.remove(&rank);
        if !self.scenario.starting {
            self.join(rank, line.at);
        }
    }

    fn note(&self, line: &Line<'_>) -> Result<Event, String> {
        let kind = line.arg(0)?;
        Ok(Event::Note {
            process: None,
            kind: NoteKind::from_name(&kind.replace('-', " "))
                .ok_or(format!("no such note: {kind}"))?,
            rank: Some(line.rank),
            pid: Some(1000 + line.rank),
            text: line.arg(1)?.into(),
            at: line.moment(),
        })
    }
}
