//! Collects the timeline of a job while its evidence is played.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::{Call, CallId, MemorySample, ProcessId, Stacks, ThreadId};
use ddp_doctor_diagnosis::model::Ending;
use ddp_doctor_diagnosis::waits::Waits;
use ddp_doctor_diagnosis::{Engine, Event};
use ddp_doctor_ingest::Observer;
use ddp_doctor_proto::report::{CallState, Effect, Report, Timestamp, Verdict};
use ddp_doctor_proto::{ProcessState, Spending};
use ddp_doctor_report::timeline::Event as What;
use ddp_doctor_report::timeline::{Blocked, Curve, Mark, Spent, TimedCall, Timeline, Track};

/// Maximum number of calls kept for all processes together …
const CALLS: usize = 200_000;
/// … and for each process, depending on the number of processes.
const CALLS_EACH: [usize; 2] = [32, 512];
/// Maximum number of marks of each kind kept per process.
const MARKS: usize = 256;
/// Maximum number of times spent kept per process.
const SPENT: usize = 512;
/// Maximum number of points per curve.
const POINTS: usize = 256;
/// Maximum number of curves per process.
const CURVES: usize = 32;

/// Builds a [`Timeline`] from the events passed to an engine.
#[derive(Debug, Default)]
pub(super) struct Collector {
    processes: BTreeMap<ProcessId, Process>,
    /// The latest graph of waits before a blocked rank ended.
    waits: Vec<Blocked>,
    /// Time of that graph.
    waited_at: Timestamp,
    until: Timestamp,
}

/// One process.
#[derive(Debug, Default)]
struct Process {
    rank: Option<u32>,
    track: Track,
    /// Calls that may be dropped when newer ones need room, by id.
    calls: BTreeMap<CallId, TimedCall>,
    /// Older calls that had not ended when they would have been dropped.
    open: BTreeMap<CallId, TimedCall>,
    last: BTreeMap<ThreadId, CallId>,
    steps: VecDeque<Mark>,
    marks: VecDeque<Mark>,
    spent: VecDeque<Spent>,
}

impl Observer for Collector {
    fn event(&mut self, event: &Event) {
        let room = (CALLS / self.processes.len().max(1)).clamp(CALLS_EACH[0], CALLS_EACH[1]);
        match event {
            Event::ProcessJoined { process, rank, host, pid, layer, at, .. } => {
                let it = self.processes.entry(*process).or_insert_with(|| Process {
                    track: Track {
                        host: Arc::clone(host),
                        pid: *pid,
                        layer: Arc::clone(layer),
                        began: *at,
                        ..Track::default()
                    },
                    ..Process::default()
                });
                it.rank = it.rank.or(*rank);
            }
            Event::Issued { process, call } => {
                self.with(*process, |it| it.issued(call, room));
            }
            Event::Returned { process, call, at, .. } => self.with(*process, |it| {
                it.call(*call, |call| call.returned = Some(*at));
            }),
            Event::WaitBegin { process, thread, call, at, .. } => {
                self.with(*process, |it| it.wait(*thread, *call, *at, false));
            }
            Event::WaitEnd { process, thread, call, at } => {
                self.with(*process, |it| it.wait(*thread, *call, *at, true));
            }
            Event::Completed { process, call, at } => self.complete(*process, *call, Some(*at)),
            _ => self.mark(event),
        }
    }

    fn complete(&mut self, process: ProcessId, call: CallId, at: Option<Timestamp>) {
        self.with(process, |it| {
            it.call(call, |call| {
                call.completed = at;
                call.is_complete = true;
            });
        });
    }

    fn evaluated(&mut self, engine: &Engine, now: Timestamp, changed: bool) {
        self.until = engine.model().over().unwrap_or(now);
        if !changed {
            return;
        }
        let stalls = matches!(engine.verdict(), Verdict::Hang | Verdict::Crash | Verdict::Wrong);
        if !stalls {
            self.waits.clear();
            return;
        }
        // Ranks that are ended because of the stall no longer wait.
        let model = engine.model();
        let has_ended = |it: &Blocked| {
            model.process_of(it.rank).is_some_and(|process| process.ending() != Ending::None)
        };
        if self.waits.iter().any(has_ended) {
            return;
        }
        self.waited_at = now;
        let blocked = Waits::new(model, now).blocked.into_values();
        let threads = blocked.filter_map(|it| it.into_iter().next());
        self.waits = threads
            .map(|it| Blocked {
                rank: it.rank,
                call: it.call,
                since: it.since,
                needs: it.needs.to_vec(),
            })
            .collect();
    }
}

impl Collector {
    fn with(&mut self, process: ProcessId, apply: impl FnOnce(&mut Process)) {
        self.processes.get_mut(&process).map(apply);
    }

    /// Applies the events that are not calls.
    fn mark(&mut self, event: &Event) {
        let (process, at, what) = match event {
            Event::Step { process, step, at, .. } => (*process, *at, What::Step(*step)),
            Event::PhaseBegin { process, name, at } => {
                (*process, *at, What::PhaseBegan(Arc::clone(name)))
            }
            Event::PhaseEnd { process, name, at } => {
                (*process, *at, What::PhaseEnded(Arc::clone(name)))
            }
            Event::Exception { process, text, place, at, .. } => {
                let what = What::Exception(Arc::clone(text), place.clone());
                (*process, *at, what)
            }
            Event::InputEnded { process, batches: None, at, .. } => {
                (*process, *at, What::InputEnded)
            }
            Event::ExitAnnounced { process, how, at, .. } => {
                (*process, *at, What::Exit(Arc::clone(how)))
            }
            Event::Memory { process, sample, at } => {
                return self.with(*process, |it| it.measured(sample, *at));
            }
            Event::Spent { process, on, took, at, .. } => {
                let spent = Spent { on: *on, from: at.minus(*took), to: *at };
                return self.with(*process, |it| it.spent(spent));
            }
            Event::Stacks { process, stacks } => {
                return self.with(*process, |it| it.stood(stacks));
            }
            Event::ProcessChanged { process, state: ProcessState::Dead, exit, at, .. } => {
                return self.with(*process, |it| it.track.ended = Some((*at, *exit)));
            }
            _ => return,
        };
        self.with(process, |it| it.marked(Mark { at, what }));
    }

    /// The timeline of the job that led to this report.
    pub(super) fn finish(self, report: &Report) -> Timeline {
        let processes = self.processes.into_values();
        let mut tracks: Vec<Track> = processes.filter_map(Process::finish).collect();
        tracks.sort_by_key(|track| (track.rank, track.began));
        let mut timeline = Timeline { until: self.until, tracks, waits: self.waits };
        infer_waits(&mut timeline, self.waited_at, report);
        timeline
    }
}

/// Adds waits that were not recorded, such as those of DDP and those for a device: a call in which a
/// finding or the graph of waits has a rank wait longer than was recorded.
fn infer_waits(timeline: &mut Timeline, waited_at: Timestamp, report: &Report) {
    let mut waited_until = BTreeMap::new();
    for it in &timeline.waits {
        waited_until.insert((it.rank, it.call.id), waited_at);
    }
    let blocking = report.findings.iter();
    for finding in blocking.filter(|it| it.effect == Effect::Blocks) {
        let group = finding.group.as_ref().map(|group| group.name.as_str());
        for entry in &finding.per_rank {
            let waited = entry.waited_ms.filter(|_| entry.state == CallState::Waiting);
            if let Some((ms, call)) = waited.zip(timeline.call(entry, group)) {
                let until = call.call.at.plus(Duration::from_millis(ms));
                let known = waited_until.entry((entry.rank, call.call.id)).or_default();
                *known = until.max(*known);
            }
        }
    }
    for track in &mut timeline.tracks {
        for call in &mut track.calls {
            let until = waited_until.get(&(track.rank, call.call.id));
            if !call.is_open() && until.is_some_and(|&until| call.continued() < Some(until)) {
                let began = call.wait.map_or(call.call.at, |(began, _)| began);
                call.wait = Some((began, None));
                call.inferred = true;
            }
        }
    }
}

impl Process {
    fn issued(&mut self, call: &Arc<Call>, room: usize) {
        self.last.insert(call.thread, call.id);
        let timed = TimedCall {
            call: Arc::clone(call),
            returned: None,
            wait: None,
            inferred: false,
            completed: None,
            is_complete: false,
        };
        self.calls.insert(call.id, timed);
        while self.calls.len() > room {
            match self.calls.pop_first() {
                Some((id, call)) if call.is_open() && self.open.len() < room => {
                    self.open.insert(id, call);
                }
                _ => self.track.omitted += 1,
            }
        }
    }

    fn call(&mut self, id: CallId, apply: impl FnOnce(&mut TimedCall)) {
        let known = self.calls.get_mut(&id);
        if let Some(call) = known.or_else(|| self.open.get_mut(&id)) {
            apply(call);
        }
    }

    /// A wait begins or ends. A wait for an unknown call belongs to the last call of its thread.
    fn wait(&mut self, thread: ThreadId, call: Option<CallId>, at: Timestamp, ends: bool) {
        let Some(id) = call.or_else(|| self.last.get(&thread).copied()) else {
            return;
        };
        self.call(id, |call| {
            let began = call.wait.map_or(at, |(began, _)| began);
            call.wait = Some((began, ends.then_some(at)));
        });
    }

    fn marked(&mut self, mark: Mark) {
        let marks = match mark.what {
            What::Step(_) => &mut self.steps,
            _ => &mut self.marks,
        };
        if marks.len() == MARKS {
            marks.pop_front();
        }
        marks.push_back(mark);
    }

    /// Time was spent. At the end of DDP's wait for its buckets, all of them are complete.
    fn spent(&mut self, spent: Spent) {
        if spent.on != Spending::Buckets {
            if self.spent.len() == SPENT {
                self.spent.pop_front();
            }
            return self.spent.push_back(spent);
        }
        let calls = self.calls.values_mut().rev().take_while(|call| call.completed.is_none());
        let is_bucket = |it: &&mut TimedCall| it.call.is_bucket() && it.call.at <= spent.to;
        for call in calls.filter(is_bucket) {
            call.wait = Some((spent.from.max(call.call.at), Some(spent.to)));
            call.completed = Some(spent.to);
            call.is_complete = true;
        }
    }

    /// Keeps the latest capture that has frames: those of an ending process have none.
    fn stood(&mut self, stacks: &Arc<Stacks>) {
        let main = stacks.main();
        let has_frames = main.is_some_and(|it| !it.python.is_empty() || !it.native.is_empty());
        if has_frames || self.track.stacks.is_none() {
            self.track.stacks = Some(Arc::clone(stacks));
        }
    }

    fn measured(&mut self, sample: &MemorySample, at: Timestamp) {
        let host = sample.host_total.zip(sample.host_available);
        let mut values = vec![
            ("resident set".to_owned(), sample.rss),
            ("control group".to_owned(), sample.cgroup_used),
            ("host".to_owned(), host.map(|(total, free)| total.saturating_sub(free))),
        ];
        if let Some(device) = sample.device {
            values.push((format!("GPU {device} tensors"), sample.gpu_allocated));
            values.push((format!("GPU {device} reserved"), sample.gpu_reserved));
            values.push((format!("GPU {device} largest free block"), sample.gpu_largest));
            values.push((format!("GPU {device} in use"), sample.gpu_used));
        }
        for (name, value) in values {
            let Some(value) = value else { continue };
            let curves = &mut self.track.memory;
            if let Some(curve) = curves.iter_mut().find(|curve| curve.name == name) {
                add(&mut curve.points, (at, value));
            } else if curves.len() < CURVES {
                let points = vec![(at, value)];
                curves.push(Curve { name, points });
            }
        }
    }

    /// The track of the process; `None`: it is not a rank.
    fn finish(mut self) -> Option<Track> {
        let mut track = self.track;
        track.rank = self.rank?;
        self.calls.append(&mut self.open);
        track.calls = self.calls.into_values().collect();
        track.calls.sort_by_key(|call| call.call.at);
        track.spent = self.spent.into();
        track.marks = self.steps.into_iter().chain(self.marks).collect();
        track.marks.sort_by_key(|mark| mark.at);
        Some(track)
    }
}

/// Appends a point. Points stay evenly spread over the time from the first to the last: a last point
/// close to the one before it is replaced, and every second one is dropped if there are many.
fn add(points: &mut Vec<(Timestamp, u64)>, point: (Timestamp, u64)) {
    if let [first, .., before, last] = points[..]
        && last.0.since(before.0) < point.0.since(first.0) / (POINTS as u32 / 2)
    {
        points.pop();
    }
    if points.len() >= POINTS {
        let mut index = 0;
        points.retain(|_| {
            index += 1;
            index % 2 == 1
        });
    }
    points.push(point);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ddp_doctor_diagnosis::Config;
    use ddp_doctor_report::testing::call;

    const PROCESS: ProcessId = ProcessId(1);
    const THREAD: ThreadId = ThreadId(1);

    fn collector() -> Collector {
        let mut collector = Collector::default();
        collector.event(&Event::ProcessJoined {
            process: PROCESS,
            rank: Some(0),
            world_size: Some(2),
            host: "node".into(),
            pid: 1,
            layer: "c10d".into(),
            world: "".into(),
            restarts: 0,
            at: Timestamp(0),
        });
        collector
    }

    fn issued(id: u64) -> Event {
        let call = call(id, Timestamp(id * 10));
        Event::Issued { process: PROCESS, call: Arc::new(call) }
    }

    fn returned(id: u64) -> Event {
        Event::Returned {
            process: PROCESS,
            thread: THREAD,
            call: CallId(id),
            followed: false,
            at: Timestamp(id * 10 + 1),
        }
    }

    fn track(collector: Collector) -> Track {
        let report = Engine::new(Config::default()).report();
        collector.finish(&report).tracks.remove(0)
    }

    #[test]
    fn latest_calls_and_those_that_have_not_ended_are_kept() {
        let mut collector = collector();
        collector.event(&issued(1));
        for id in 2..=1000 {
            collector.event(&issued(id));
            collector.event(&returned(id));
        }
        let track = track(collector);
        let ids: Vec<u64> = track.calls.iter().map(|it| it.call.id.0).collect();
        let latest: Vec<u64> = [1].into_iter().chain(489..=1000).collect();
        assert_eq!(ids, latest);
        assert_eq!(track.omitted, 487);
        assert!(track.calls[0].is_open() && !track.calls[1].is_open());
    }

    #[test]
    fn repeated_waits_are_one_from_the_first_to_the_last() {
        let mut collector = collector();
        collector.event(&issued(1));
        collector.event(&returned(1));
        for (at, call) in [(20, Some(CallId(1))), (30, None)] {
            let thread = THREAD;
            let begin =
                Event::WaitBegin { process: PROCESS, thread, call, place: None, at: Timestamp(at) };
            collector.event(&begin);
            collector.event(&Event::WaitEnd {
                process: PROCESS,
                thread,
                call,
                at: Timestamp(at + 5),
            });
        }
        let call = &track(collector).calls[0];
        assert_eq!(call.wait, Some((Timestamp(20), Some(Timestamp(35)))));
        assert_eq!(call.continued(), Some(Timestamp(35)));
    }

    #[test]
    fn curve_of_a_long_job_stays_within_its_bound() {
        let mut points = Vec::new();
        for at in 0..10_000 {
            add(&mut points, (Timestamp(at), at));
        }
        assert!((POINTS / 2..=POINTS).contains(&points.len()), "{}", points.len());
        let widest = points.windows(2).map(|pair| pair[1].1 - pair[0].1).max();
        assert!(widest <= Some(4 * 10_000 / POINTS as u64), "{widest:?}");
        assert_eq!(points[0].1, 0);
        assert_eq!(points.last(), Some(&(Timestamp(9999), 9999)));
    }

    #[test]
    fn process_without_a_rank_has_no_track() {
        let mut collector = Collector::default();
        collector.event(&issued(1));
        let report = Engine::new(Config::default()).report();
        assert!(collector.finish(&report).tracks.is_empty());
    }
}
