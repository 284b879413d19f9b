//! When to ask PyTorch's Flight Recorder what the devices of ranks have completed.
//!
//! A request lets a thread of PyTorch write a dump, and print a line. So it is made only while ranks wait for their
//! devices, and no finding says why. Like requests of stacks, requests of dumps are remembered only to avoid repetition.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_proto::report::{Effect, Finding, Timestamp};

use crate::input::event::ProcessId;
use crate::input::settings;
use crate::model::{Model, Process};
use crate::situation::Situation;
use crate::waits::device;

/// The requests so far: time of the latest record of the process, and of the latest request since.
#[derive(Debug, Default)]
pub(crate) struct DumpRequests(BTreeMap<ProcessId, (Timestamp, Timestamp)>);

impl DumpRequests {
    /// Processes to ask now; they count as asked.
    pub(crate) fn wanted(
        &mut self,
        situation: &Situation<'_>,
        findings: &[Finding],
    ) -> Vec<ProcessId> {
        let model = situation.model;
        self.0.retain(|id, (last_at, _)| {
            model.processes.get(id).is_some_and(|it| !it.has_ended() && it.last_at == *last_at)
        });
        if findings.iter().any(|it| it.effect == Effect::Blocks) {
            return Vec::new();
        }
        let limit = situation.config.stall_after;
        let is_silent = |it: &Process, time: Duration| it.last_at.plus(time) <= situation.now;
        let waits = |it: &Process| is_silent(it, first_after(limit)) && waits_for_device(model, it);
        if !asked(model).any(waits) {
            return Vec::new();
        }
        // The others may have made their latest call a little later.
        let silent: Vec<&Process> = asked(model).filter(|it| is_silent(it, limit / 2)).collect();
        let is_due = |it: &&&Process| match self.0.get(&it.id) {
            None => true,
            Some((last_at, asked_at)) => asked_at.plus(asked_at.since(*last_at)) <= situation.now,
        };
        let due: Vec<&Process> = silent.iter().filter(is_due).copied().collect();
        self.0.extend(due.iter().map(|it| (it.id, (it.last_at, situation.now))));
        due.iter().map(|it| it.id).collect()
    }
}

/// When the first request is due, unless processes record anything before.
pub(crate) fn due_at(situation: &Situation<'_>) -> impl Iterator<Item = Timestamp> {
    let first = first_after(situation.config.stall_after);
    asked(situation.model).map(move |it| it.last_at.plus(first))
}

/// Time of silence after which a process is asked: a dump arrives some seconds later, still before the stall limit, and
/// one of the first half of a wait does not count.
fn first_after(stall_after: Duration) -> Duration {
    stall_after * 2 / 3
}

/// Living ranks with a pipe to their Flight Recorder that are members of groups on devices.
fn asked(model: &Model) -> impl Iterator<Item = &Process> {
    let all = model.processes.values();
    all.filter(move |it| !it.has_ended() && it.rank.is_some() && has_recorder(model, it))
}

/// Whether a process is a member of a group on a device, and can be asked what its device has completed.
pub(crate) fn has_recorder(model: &Model, process: &Process) -> bool {
    process.settings.contains_key(settings::FLIGHT_RECORDER)
        && process.groups().any(|id| model.group(id).backend.is_on_stream)
}

/// Whether a process is in a call or a wait, or its stacks show it waiting for its device.
fn waits_for_device(model: &Model, process: &Process) -> bool {
    process.threads.values().any(|it| it.is_under_way())
        || device::is_waited_for(process, &model.timing)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ddp_doctor_proto::{Op, ProcessState};

    use super::*;
    use crate::event::{CallId, GroupInfo, ThreadId};
    use crate::testing::{call, group};
    use crate::{Config, Engine, Event};

    fn seconds(at: f64) -> Timestamp {
        Timestamp(0).plus(Duration::from_secs_f64(at))
    }

    /// An engine with two ranks in a group of this backend, of which those in `asked` have a pipe.
    fn with_ranks(backend: &str, asked: &[u64]) -> (Engine, Arc<GroupInfo>) {
        let config = Config { stall_after: Duration::from_secs(60), ..Config::default() };
        let mut engine = Engine::new(config);
        let group = group("0", backend, &[0, 1]);
        for rank in 0..2 {
            let process = ProcessId(u64::from(rank) + 1);
            let joined = Event::ProcessJoined {
                process,
                rank: Some(rank),
                world_size: Some(2),
                host: "h".into(),
                pid: 100 + rank,
                layer: "c10d".into(),
                world: "".into(),
                restarts: 0,
                at: Timestamp(0),
            };
            engine.handle(joined, Timestamp(0));
            let joined = Event::GroupJoined { process, group: Arc::clone(&group) };
            engine.handle(joined, Timestamp(0));
            if asked.contains(&process.0) {
                let name = settings::FLIGHT_RECORDER.into();
                let setting =
                    Event::Setting { process, name, value: "/run/7_".into(), at: Timestamp(0) };
                engine.handle(setting, Timestamp(0));
            }
        }
        (engine, group)
    }

    /// Rank 0 is in a barrier from second 1 on, and rank 1 from second 1.5.
    fn enter_barrier(engine: &mut Engine, group: &Arc<GroupInfo>) {
        for (process, at) in [(1, 1.0), (2, 1.5)] {
            let call = crate::event::Call {
                id: CallId(1),
                seq: 1,
                group: Some(Arc::clone(group)),
                at: seconds(at),
                ..call(Op::Barrier)
            };
            let (process, call) = (ProcessId(process), Arc::new(call));
            engine.handle(Event::Issued { process, call }, seconds(at));
        }
    }

    /// The processes asked until a second, with the seconds.
    fn asked(engine: &mut Engine, until: u64) -> Vec<(u64, f64)> {
        let mut asked = Vec::new();
        for tenth in 0..=until * 10 {
            let at = tenth as f64 / 10.0;
            engine.handle_timeout(seconds(at));
            engine.poll_change();
            asked.extend(engine.poll_dumps().into_iter().map(|process| (process.0, at)));
        }
        asked
    }

    #[test]
    fn waiting_ranks_are_asked_together_before_the_stall_limit() {
        let (mut engine, group) = with_ranks("nccl", &[1, 2]);
        enter_barrier(&mut engine, &group);
        assert_eq!(asked(&mut engine, 60), [(1, 41.0), (2, 41.0)]);
    }

    #[test]
    fn ranks_without_a_pipe_or_a_device_are_not_asked() {
        for (backend, pipes, expected) in
            [("nccl", &[][..], &[][..]), ("nccl", &[2], &[(2, 41.5)]), ("gloo", &[1, 2], &[])]
        {
            let (mut engine, group) = with_ranks(backend, pipes);
            enter_barrier(&mut engine, &group);
            assert_eq!(asked(&mut engine, 60), expected, "{backend}");
        }
    }

    #[test]
    fn ranks_that_wait_for_nothing_or_have_ended_are_not_asked() {
        let (mut engine, group) = with_ranks("nccl", &[1, 2]);
        enter_barrier(&mut engine, &group);
        for process in [1, 2].map(ProcessId) {
            let (thread, call, at) = (ThreadId(1), CallId(1), seconds(2.0));
            let returned = Event::Returned { process, thread, call, followed: false, at };
            engine.handle(returned, at);
        }
        assert_eq!(asked(&mut engine, 60), []);
        let (mut engine, group) = with_ranks("nccl", &[1]);
        enter_barrier(&mut engine, &group);
        let ended = Event::ProcessChanged {
            process: ProcessId(1),
            state: ProcessState::Dead,
            exit: ddp_doctor_proto::report::Exit::default(),
            oom_kills: crate::event::OomKills::default(),
            at: seconds(3.0),
        };
        engine.handle(ended, seconds(3.0));
        assert_eq!(asked(&mut engine, 60), []);
    }
}
