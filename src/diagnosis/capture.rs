//! When to capture stacks, and of which processes: those that wait longer than usual.
//!
//! Captured stacks are evidence like any other. Requests are remembered only to avoid repetition;
//! no finding depends on them.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_proto::report::Timestamp;

use crate::dump_requests;
use crate::input::event::ProcessId;
use crate::model::{Doing, Model, Process};
use crate::situation::Situation;
use crate::stacks;
use crate::timing::Timing;

/// The first two intervals are at most the stall limit divided by this: two captures precede the
/// limit.
const SHARE: u32 = 4;
/// A process that was captured in this many waits often waits for long: after that, only waits of
/// [`LATEST`] of the stall limit are captured.
const OFTEN: u32 = 8;
/// Part of the stall limit (its inverse) after which a first capture leaves time for a second one, whatever was
/// captured before the wait.
const LATEST: u32 = 3;

/// The captures requested so far, by process.
#[derive(Debug, Default)]
pub struct CaptureRequests(BTreeMap<ProcessId, CaptureRequest>);

#[derive(Clone, Copy, Debug)]
struct CaptureRequest {
    /// Time of the latest request.
    at: Timestamp,
    /// Number of distinct waits in which captures were requested.
    stands: u32,
}

impl CaptureRequests {
    /// Processes to capture now; they count as requested.
    pub fn wanted(&mut self, situation: &Situation<'_>) -> Vec<ProcessId> {
        let model = situation.model;
        self.0.retain(|id, _| model.processes.get(id).is_some_and(|it| !it.has_ended()));
        let mut wanted = Vec::new();
        for (id, since) in standing(situation) {
            let process = &model.processes[&id];
            if let Some(stands) = self.due(process, since, situation) {
                let at = situation.now;
                self.0.insert(id, CaptureRequest { at, stands });
                wanted.push(id);
            }
        }
        wanted
    }

    /// Whether a process is to be captured now; returns the number of waits in which it was,
    /// including this one.
    fn due(&self, process: &Process, since: Timestamp, situation: &Situation<'_>) -> Option<u32> {
        let (limit, now) = (situation.config.stall_after, situation.now);
        let timing = &situation.model.timing;
        let taken = process.stacks.last().map(|stacks| stacks.at);
        let asked = self.0.get(&process.id);
        let stands = asked.map_or(0, |asked| asked.stands);
        let Some(last) = taken.max(asked.map(|asked| asked.at)) else { return Some(1) };
        if last >= since && last >= process.last_at {
            let pause = last.since(since).max(timing.second_capture.min(limit / SHARE));
            // What was seen of a wait says nothing of the time after its end.
            let end = stacks::activity(process, timing).and_then(|it| it.waits_until);
            let after = end.map(|at| at.plus(timing.visible_wait)).filter(|&at| at > last);
            let next = last.plus(pause);
            return (after.map_or(next, |after| after.min(next)) <= now).then_some(stands);
        }
        let least = if stands < OFTEN { Duration::ZERO } else { limit / LATEST };
        let is_due = last.plus(cooldown(timing, limit)) <= now && since.plus(least) <= now;
        is_due.then_some(stands + 1)
    }
}

/// Time after a capture in which a process that made progress since is not captured again.
fn cooldown(timing: &Timing, limit: Duration) -> Duration {
    timing.capture_cooldown.min(limit / LATEST)
}

/// Processes that have been in a call or wait, kept others waiting, or gone on after the end of their
/// program, for longer than usual, and since when.
fn standing(situation: &Situation<'_>) -> BTreeMap<ProcessId, Timestamp> {
    let model = situation.model;
    let first = model.timing.first_capture;
    let at_least = first.min(situation.config.stall_after / SHARE);
    let is_long = |since: Timestamp, usual: Duration| {
        since.plus(at_least.max(usual + usual / 2)) <= situation.now
    };
    let mut found: BTreeMap<ProcessId, Timestamp> = BTreeMap::new();
    let mut add = |process: Option<&Process>, since: Timestamp| {
        if let Some(process) = process.filter(|it| !it.has_ended() && it.rank.is_some()) {
            let known = found.entry(process.id).or_insert(since);
            *known = since.min(*known);
        }
    };
    for process in model.processes.values() {
        for thread in process.threads.values() {
            let (place, since) = match &thread.doing {
                Doing::Call(call) => (call.place.as_ref(), call.at),
                Doing::Wait(_, since, place) => (place.as_ref(), *since),
                Doing::Nothing => continue,
            };
            let usual = place.and_then(|place| process.places.longest_wait(place));
            if is_long(since, Duration::from_nanos(usual.unwrap_or(0))) {
                add(Some(process), since);
            }
        }
    }
    for process in model.processes.values().filter(|it| may_stand_unseen(model, it)) {
        let share = situation.config.stall_after / SHARE;
        if process.last_at.plus(share) <= situation.now {
            add(Some(process), process.last_at);
        }
    }
    for (group, since) in situation.settled() {
        if is_long(since, Duration::ZERO) {
            group.members.keys().for_each(|&rank| add(model.member(group.id, rank), since));
        }
    }
    for stall in &situation.stalls {
        if is_long(stall.since, situation.usual_wait(stall)) {
            let missing = stall.missing.iter().map(|absent| absent.rank);
            for rank in stall.waiting.iter().copied().chain(missing) {
                add(model.member(stall.group, rank), stall.since);
            }
        }
    }
    found
}

/// Whether a process may stand although none of its calls is incomplete: its devices may wait for
/// each other, it may go on after the end of its program, and a dump may show a call that its device has not
/// completed.
pub fn may_stand_unseen(model: &Model, process: &Process) -> bool {
    let on_device = process.groups().filter(|&id| model.group(id).backend.is_on_stream);
    process.left_in_order().is_some()
        || on_device.count() > 1
        || dump_requests::has_recorder(model, process)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ddp_doctor_proto::Op;
    use ddp_doctor_proto::report::Where;

    use super::*;
    use crate::input::event::{CallId, GroupInfo, Stacks, ThreadId};
    use crate::testing::{call, group};
    use crate::{Config, Engine, Event};

    const BOTH: [u64; 2] = [1, 2];

    fn seconds(at: f64) -> Timestamp {
        Timestamp(0).plus(Duration::from_secs_f64(at))
    }

    /// A job of two ranks in one group.
    struct Job {
        engine: Engine,
        group: Arc<GroupInfo>,
    }

    impl Job {
        fn new(stall_after: u64) -> Self {
            let config =
                Config { stall_after: Duration::from_secs(stall_after), ..Config::default() };
            let mut job = Self { engine: Engine::new(config), group: group("0", "gloo", &[0, 1]) };
            for rank in 0..2 {
                let process = ProcessId(u64::from(rank) + 1);
                job.apply(
                    0.0,
                    Event::ProcessJoined {
                        process,
                        rank: Some(rank),
                        world_size: Some(2),
                        host: "h".into(),
                        pid: 100 + rank,
                        layer: "c10d".into(),
                        world: "".into(),
                        restarts: 0,
                        at: Timestamp(0),
                    },
                );
                let group = Arc::clone(&job.group);
                job.apply(0.0, Event::GroupJoined { process, group });
            }
            job
        }

        fn apply(&mut self, at: f64, event: Event) {
            self.engine.handle(event, seconds(at));
        }

        fn barrier(&mut self, process: u64, seq: u64, at: f64) {
            let mut call = call(Op::Barrier);
            call.id = CallId(seq);
            call.seq = seq;
            call.group = Some(Arc::clone(&self.group));
            call.at = seconds(at);
            call.place = Some(Arc::new(Where {
                file: "train.py".into(),
                line: 5,
                function: "f".into(),
                ..Where::default()
            }));
            let (process, call) = (ProcessId(process), Arc::new(call));
            self.apply(at, Event::Issued { process, call });
        }

        fn returned(&mut self, seq: u64, at: f64) {
            for process in BOTH {
                let process = ProcessId(process);
                let (thread, call, at) = (ThreadId(1), CallId(seq), seconds(at));
                self.apply(
                    at.0 as f64 / 1e9,
                    Event::Returned { process, thread, call, followed: false, at },
                );
            }
        }

        /// The processes requested, with the time in seconds; evaluates when the engine asks for it, up to ten
        /// times a second.
        /// `answers`: those whose stacks are delivered.
        fn asked(&mut self, from: f64, until: f64, answers: &[u64]) -> Vec<(u64, f64)> {
            let mut asked = Vec::new();
            for tenth in (from * 10.0) as u64..=(until * 10.0) as u64 {
                let at = tenth as f64 / 10.0;
                if self.engine.poll_timeout().is_some_and(|due| due <= seconds(at)) {
                    self.engine.handle_timeout(seconds(at));
                }
                self.engine.poll_change();
                for process in self.engine.poll_capture() {
                    asked.push((process.0, at));
                    if answers.contains(&process.0) {
                        let at = seconds(at);
                        let stacks = Arc::new(Stacks { at, ..Stacks::default() });
                        self.engine.handle(Event::Stacks { process, stacks }, at);
                    }
                }
            }
            asked
        }
    }

    #[test]
    fn waiting_and_missing_ranks_are_captured_a_few_times() {
        let mut job = Job::new(60);
        job.barrier(1, 1, 1.0);
        let times = [3.0, 8.0, 15.0, 29.0, 57.0];
        let expected = times.iter().flat_map(|&at| BOTH.map(|process| (process, at)));
        let asked = job.asked(1.0, 60.0, &BOTH);
        assert_eq!(asked, expected.collect::<Vec<_>>());
        // Without answers, requests do not become more frequent.
        let mut job = Job::new(60);
        job.barrier(1, 1, 1.0);
        assert_eq!(job.asked(1.0, 60.0, &[]), asked);
    }

    #[test]
    fn short_stall_limit_allows_two_captures() {
        let mut job = Job::new(4);
        job.barrier(1, 1, 1.0);
        let asked = job.asked(1.0, 5.0, &BOTH);
        assert_eq!(asked[..4], [(1, 2.0), (2, 2.0), (1, 3.0), (2, 3.0)]);
    }

    #[test]
    fn usual_wait_is_not_captured() {
        let mut job = Job::new(60);
        let mut at = 0.0;
        let mut asked = Vec::new();
        for seq in 1..=20 {
            job.barrier(1, seq, at);
            asked.extend(job.asked(at, at + 6.0, &BOTH));
            job.barrier(2, seq, at + 6.0);
            job.returned(seq, at + 6.0);
            asked.extend(job.asked(at + 6.1, at + 8.0, &BOTH));
            at += 8.0;
        }
        assert_eq!(asked, [(1, 2.0), (2, 2.0)]);
    }

    #[test]
    fn recurring_waits_of_unknown_length_are_captured_rarely() {
        let mut job = Job::new(60);
        let mut asked = Vec::new();
        // Not a collective: its usual duration is unknown.
        for seq in 1..=100 {
            let at = 4.0 * seq as f64;
            let mut call = call(Op::InitProcessGroup);
            (call.id, call.at, call.group, call.seq) = (CallId(seq), seconds(at), None, 0);
            let (process, call) = (ProcessId(1), Arc::new(call));
            job.apply(at, Event::Issued { process, call });
            asked.extend(job.asked(at, at + 3.0, &BOTH));
            job.returned(seq, at + 3.0);
        }
        assert_eq!(asked.len(), 8, "then only long waits: {asked:?}");
        let gaps = asked.windows(2).map(|pair| pair[1].1 - pair[0].1);
        assert!(gaps.min_by(f64::total_cmp) >= Some(20.0), "{asked:?}");
        let mut call = call(Op::InitProcessGroup);
        (call.id, call.at, call.group, call.seq) = (CallId(500), seconds(500.0), None, 0);
        let (process, call) = (ProcessId(1), Arc::new(call));
        job.apply(500.0, Event::Issued { process, call });
        let asked = job.asked(500.0, 560.0, &BOTH);
        assert_eq!(asked, [(1, 520.0), (1, 540.0)], "two before the limit");
    }

    #[test]
    fn silent_rank_with_several_groups_on_its_device_is_captured() {
        for (backend, expected) in [("nccl", vec![(1, 16.0), (2, 16.0)]), ("gloo", vec![])] {
            let mut job = Job::new(60);
            for name in ["1", "2"] {
                let group = group(name, backend, &[0, 1]);
                for process in BOTH.map(ProcessId) {
                    job.apply(0.5, Event::GroupJoined { process, group: Arc::clone(&group) });
                }
            }
            for process in BOTH {
                job.barrier(process, 1, 1.0);
            }
            job.returned(1, 1.0);
            let asked = job.asked(1.0, 20.0, &BOTH);
            assert_eq!(asked, expected, "every call with {backend} has returned");
        }
    }

    #[test]
    fn process_that_goes_on_after_its_program_is_captured() {
        let mut job = Job::new(60);
        for process in BOTH {
            job.barrier(process, 1, 1.0);
        }
        job.returned(1, 1.0);
        let (process, thread, at) = (ProcessId(2), ThreadId(1), seconds(2.0));
        let how = "".into();
        job.apply(2.0, Event::ExitAnnounced { process, thread, code: 0, how, place: None, at });
        assert_eq!(job.asked(2.0, 40.0, &BOTH), [(2, 17.0), (2, 32.0)]);
    }

    #[test]
    fn ended_process_is_not_captured() {
        let mut job = Job::new(60);
        job.barrier(1, 1, 1.0);
        job.apply(
            1.5,
            Event::ProcessChanged {
                process: ProcessId(2),
                state: ddp_doctor_proto::ProcessState::Dead,
                exit: ddp_doctor_proto::report::Exit::default(),
                oom_kills: crate::input::event::OomKills::default(),
                at: seconds(1.5),
            },
        );
        assert_eq!(job.asked(1.0, 4.0, &BOTH), [(1, 3.0)]);
    }

    #[test]
    fn two_captures_precede_the_limit_whatever_was_captured_before() {
        let timing = Timing::default();
        for limit in [3, 8, 15, 60, 600].map(Duration::from_secs) {
            let first = cooldown(&timing, limit);
            let second = first + first.max(timing.second_capture.min(limit / SHARE));
            assert!(second < limit, "{second:?} of {limit:?}");
        }
    }
}
