//! Captures stacks in a separate thread, so that the follower never waits for it.
//!
//! A capture takes some milliseconds, but needs the kernel's lock of the process' memory map, which
//! a hanging device can hold indefinitely. If a capture takes too long, another thread captures the
//! next process. A late capture, on a busy host, is still reported; a second one of its process would not be earlier.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;

use crate::stack_reader::native::FunctionCache;

/// Time after which another thread captures the next process.
const MAX_CAPTURE: Duration = Duration::from_secs(3);

/// Why a process is not captured again.
const UNFINISHED: &str =
    "an earlier capture has not returned: its memory map is locked, or the host is too busy";

/// When stacks are captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// Never.
    Never,
    /// When ranks are blocked for long, and on request.
    #[default]
    Stall,
    /// On request.
    OnRequest,
}

/// A process whose stacks are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackRequest {
    /// Its number in messages.
    pub process: u64,
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot, which distinguishes processes with the same pid.
    pub start_ticks: u64,
}

/// Captures the stacks of the process with this pid and start time.
type CaptureFn = dyn Fn(u32, u64) -> v1::Stacks + Send + Sync;

/// Captures stacks in a separate thread.
pub struct StackSampler {
    when: When,
    capture: Arc<CaptureFn>,
    worker: Option<Worker>,
    /// Unanswered requests, in order.
    pending: VecDeque<StackRequest>,
    /// Answers that [`Self::poll`] returns next.
    ready: Vec<v1::Stacks>,
    /// Process and answers of each thread whose capture takes too long.
    overdue: Vec<(u64, Receiver<Answer>)>,
}

/// A capturing thread.
struct Worker {
    requests: Sender<StackRequest>,
    answers: Receiver<Answer>,
    /// Process of the capture in progress, and its start.
    busy: Option<(u64, Instant)>,
}

enum Answer {
    Started(u64),
    Captured(v1::Stacks),
}

impl std::fmt::Debug for StackSampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StackSampler")
            .field("when", &self.when)
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}

impl StackSampler {
    /// Creates a stack_sampler without a thread, which starts with the first request.
    #[must_use]
    pub fn new(when: When) -> Self {
        let cache = FunctionCache::default();
        let capture =
            move |pid, start_ticks| crate::stack_reader::capture(pid, start_ticks, &cache);
        Self::with(when, Arc::new(capture))
    }

    fn with(when: When, capture: Arc<CaptureFn>) -> Self {
        Self {
            when,
            capture,
            worker: None,
            pending: VecDeque::new(),
            ready: Vec::new(),
            overdue: Vec::new(),
        }
    }

    /// Requests stacks. `on_request` is whether a user requested them.
    pub fn request(&mut self, requests: impl Iterator<Item = StackRequest>, on_request: bool) {
        if self.when != When::Stall && !on_request {
            return;
        }
        for request in requests {
            let is_unfinished = self.overdue.iter().any(|it| it.0 == request.process);
            if self.when == When::Never {
                self.answer(request.process, "stack capture is disabled (--stacks never)");
            } else if is_unfinished {
                self.answer(request.process, UNFINISHED);
            } else if !self.pending.contains(&request) {
                self.pending.push_back(request);
                self.send_request(request);
            }
        }
    }

    /// Whether requests are unanswered, or answers were not returned yet.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.pending.is_empty() || !self.ready.is_empty()
    }

    /// Returns the stacks captured since the last call, and the errors.
    pub fn poll(&mut self) -> Vec<v1::Stacks> {
        if let Some(worker) = &mut self.worker {
            for answer in worker.answers.try_iter() {
                match answer {
                    Answer::Started(process) => worker.busy = Some((process, Instant::now())),
                    Answer::Captured(stacks) => {
                        worker.busy = None;
                        self.pending.retain(|request| request.process != stacks.process);
                        self.ready.push(stacks);
                    }
                }
            }
        }
        self.replace_worker_if_overdue();
        self.overdue.retain(|(_, answers)| {
            let late = answers.try_iter().find_map(|answer| match answer {
                Answer::Captured(stacks) => Some(stacks),
                Answer::Started(_) => None,
            });
            let is_unfinished = late.is_none();
            self.ready.extend(late);
            is_unfinished
        });
        std::mem::take(&mut self.ready)
    }

    fn replace_worker_if_overdue(&mut self) {
        let is_overdue = |worker: &mut Worker| {
            let busy = worker.busy;
            busy.is_some_and(|(_, since)| since.elapsed() >= MAX_CAPTURE)
        };
        let Some(worker) = self.worker.take_if(is_overdue) else {
            return;
        };
        let Some((process, _)) = worker.busy else {
            return;
        };
        // The thread ends after its capture, when `answers` is dropped.
        self.overdue.push((process, worker.answers));
        self.pending.retain(|request| request.process != process);
        self.answer(
            process,
            &format!("a capture of its stacks has not returned for {} s", MAX_CAPTURE.as_secs()),
        );
        for request in self.pending.clone() {
            self.send_request(request);
        }
    }

    fn send_request(&mut self, request: StackRequest) {
        if self.worker.is_none() {
            self.worker = Worker::start(Arc::clone(&self.capture));
        }
        let worker = self.worker.as_ref();
        if worker.is_none_or(|worker| worker.requests.send(request).is_err()) {
            self.pending.retain(|other| *other != request);
            self.answer(request.process, "the capture thread cannot be started");
        }
    }

    fn answer(&mut self, process: u64, trouble: &str) {
        self.ready.push(v1::Stacks {
            process,
            unix_ns: Timestamp::now().0,
            trouble: trouble.into(),
            ..v1::Stacks::default()
        });
    }
}

impl Worker {
    fn start(capture: Arc<CaptureFn>) -> Option<Self> {
        let (requests, receiver) = channel::<StackRequest>();
        let (sender, answers) = channel();
        let work = move || {
            for request in receiver {
                if sender.send(Answer::Started(request.process)).is_err() {
                    return;
                }
                let mut stacks = capture(request.pid, request.start_ticks);
                stacks.process = request.process;
                if sender.send(Answer::Captured(stacks)).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("ddp-stacks".into());
        thread.spawn(work).ok()?;
        Some(Self { requests, answers, busy: None })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::*;

    fn request(process: u64) -> StackRequest {
        StackRequest { process, pid: process as u32, start_ticks: 0 }
    }

    /// Waits for `count` answers; returns their `trouble` by process.
    fn answers(stack_sampler: &mut StackSampler, count: usize) -> BTreeMap<u64, String> {
        let started = Instant::now();
        let mut answers = BTreeMap::new();
        while answers.len() < count {
            assert!(started.elapsed() < Duration::from_secs(60), "{answers:?}");
            answers.extend(stack_sampler.poll().into_iter().map(|it| (it.process, it.trouble)));
            thread::sleep(Duration::from_millis(10));
        }
        assert!(stack_sampler.pending.is_empty() && stack_sampler.poll().is_empty());
        answers
    }

    #[test]
    fn blocked_capture_is_abandoned() {
        let capture = |pid, _| {
            if pid == 2 {
                loop {
                    thread::park();
                }
            }
            v1::Stacks::default()
        };
        let mut stack_sampler = StackSampler::with(When::Stall, Arc::new(capture));
        stack_sampler.request((1..=3).map(request), false);
        let answered = answers(&mut stack_sampler, 3);
        assert_eq!((answered[&1].as_str(), answered[&3].as_str()), ("", ""));
        assert!(answered[&2].contains("has not returned"), "{answered:?}");
        stack_sampler.request([request(2)].into_iter(), true);
        assert_eq!(answers(&mut stack_sampler, 1)[&2], UNFINISHED);
        assert_eq!(stack_sampler.overdue.len(), 1);
    }

    #[test]
    fn late_capture_is_reported() {
        let (finish, is_finished) = channel();
        let is_finished = Mutex::new(is_finished);
        let capture = move |_, _| {
            is_finished.lock().unwrap().recv().unwrap();
            v1::Stacks::default()
        };
        let mut stack_sampler = StackSampler::with(When::Stall, Arc::new(capture));
        stack_sampler.request([request(1)].into_iter(), false);
        assert!(answers(&mut stack_sampler, 1)[&1].contains("has not returned"));
        finish.send(()).unwrap();
        assert_eq!(answers(&mut stack_sampler, 1)[&1], "");
        assert!(stack_sampler.overdue.is_empty());
    }

    #[test]
    fn mode_decides_which_requests_are_served() {
        for (when, stall, by_user) in [
            (When::Never, None, Some("stack capture is disabled (--stacks never)")),
            (When::OnRequest, None, Some("")),
            (When::Stall, Some(""), Some("")),
        ] {
            for (on_request, expected) in [(false, stall), (true, by_user)] {
                let mut stack_sampler =
                    StackSampler::with(when, Arc::new(|_, _| v1::Stacks::default()));
                // A repeated request is served once.
                stack_sampler.request([request(1), request(1)].into_iter(), on_request);
                match expected {
                    None => {
                        assert!(
                            stack_sampler.pending.is_empty() && stack_sampler.poll().is_empty()
                        );
                    }
                    Some(text) => assert_eq!(answers(&mut stack_sampler, 1)[&1], text),
                }
            }
        }
    }
}
