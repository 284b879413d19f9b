//! Groups: their creation, members, progress and destruction.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor::diagnosis::event::{Call, CallId, Event, GroupInfo, ThreadId};
use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::{GroupRef, Where};

use super::calls::blank;
use super::{Line, Writer};
use crate::support::scenario::values::ranks;
use crate::support::scenario::{Scenario, seconds};

impl Writer<'_> {
    /// Returns false if the line is not about a group.
    pub(super) fn group_acts(&mut self, line: &Line<'_>) -> Result<bool, String> {
        let &Line { rank, at, args, .. } = line;
        let process = self.process(rank);
        let event = match line.verb {
            "group" => {
                let members = ranks(line.arg(1)?, self.scenario.world)?;
                self.join_group(rank, at, line.arg(0)?, "", &members);
                return Ok(true);
            }
            "makes" => {
                let members = ranks(line.arg(1)?, self.scenario.world)?;
                let lazy = args.iter().any(|arg| arg == "lazy");
                self.makes(rank, at, line.arg(0)?, members, lazy, line.place()?);
                return Ok(true);
            }
            "made" => {
                let name = line.arg(0)?;
                let made = self.making.remove(&(rank, name.into()));
                let (call, members) = made.ok_or(format!("it is not creating a group {name:?}"))?;
                if members.contains(&rank) {
                    self.join_group(rank, at, name, "", &members);
                }
                Event::Returned {
                    process,
                    thread: ThreadId(1),
                    call,
                    followed: false,
                    at: line.moment(),
                }
            }
            "destroys" => Event::GroupDestroyed {
                process,
                group: self.group(rank, args.first().map_or("0", String::as_str))?,
                at: line.moment(),
            },
            "frontier" => Event::Frontier {
                process,
                group: self.group(rank, line.arg(0)?)?,
                issued: line.number(1)? as u64,
                p2p_issued: match args.get(2).and_then(|arg| arg.strip_prefix("p2p=")) {
                    Some(count) => count.parse().ok().ok_or(format!("no count: {count}"))?,
                    None => 0,
                },
            },
            _ => return Ok(false),
        };
        self.push(rank, at, event);
        Ok(true)
    }

    pub(super) fn join_group(
        &mut self,
        rank: u32,
        at: f64,
        name: &str,
        description: &str,
        members: &[u32],
    ) {
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

    pub(super) fn group(&self, rank: u32, name: &str) -> Result<Arc<GroupInfo>, String> {
        let known = self.groups.get(&(rank, name.into()));
        known.cloned().ok_or(format!("rank {rank} is not in a group {name:?}"))
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
        ..GroupInfo::default()
    }
}
