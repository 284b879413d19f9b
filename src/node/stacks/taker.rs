//! Captures stacks in a separate thread, so that the follower never waits for it.
//!
//! A capture takes some milliseconds, but needs the kernel's lock of the process' memory map, which
//! a hanging device can hold indefinitely. A thread that blocks on this lock is abandoned, and
//! another thread captures the next process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;

use super::native::FunctionCache;

/// Time limit of a capture.
const PATIENCE: Duration = Duration::from_secs(3);
/// Maximum number of abandoned captures of one process.
const MOST_LEFT_BEHIND: u32 = 3;

/// When stacks are captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// Never.
    Never,
    /// When ranks are blocked for long, and on request.
    #[default]
    Stall,
    /// On request.
    Ask,
}

/// A process whose stacks are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its number in messages.
    pub process: u64,
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot, which distinguishes processes with the same pid.
    pub start_ticks: u64,
}

/// Captures the stacks of the process with this pid and start time.
type Capture = dyn Fn(u32, u64) -> v1::Stacks + Send + Sync;

/// Captures stacks in a separate thread.
pub struct Taker {
    when: When,
    look: Arc<Capture>,
    worker: Option<Worker>,
    /// Unanswered requests, in order.
    awaited: VecDeque<Wanted>,
    /// Answers that [`Self::poll`] returns next.
    ready: Vec<v1::Stacks>,
    /// Number of abandoned captures by process.
    left_behind: BTreeMap<u64, u32>,
}

/// A capturing thread.
struct Worker {
    orders: Sender<Wanted>,
    answers: Receiver<Answer>,
    /// Process of the capture in progress, and its start.
    busy: Option<(u64, Instant)>,
}

enum Answer {
    Begun(u64),
    Taken(v1::Stacks),
}

impl std::fmt::Debug for Taker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taker")
            .field("when", &self.when)
            .field("awaited", &self.awaited)
            .finish_non_exhaustive()
    }
}

impl Taker {
    /// Creates a taker without a thread, which starts with the first request.
    #[must_use]
    pub fn new(when: When) -> Self {
        let known = FunctionCache::default();
        let look = move |pid, start_ticks| super::take(pid, start_ticks, &known);
        Self::with(when, Arc::new(look))
    }

    fn with(when: When, look: Arc<Capture>) -> Self {
        Self {
            when,
            look,
            worker: None,
            awaited: VecDeque::new(),
            ready: Vec::new(),
            left_behind: BTreeMap::new(),
        }
    }

    /// Requests stacks. `on_request` is whether a user requested them.
    pub fn ask(&mut self, wanted: impl Iterator<Item = Wanted>, on_request: bool) {
        if self.when != When::Stall && !on_request {
            return;
        }
        for wanted in wanted {
            let left_behind = self.left_behind.get(&wanted.process).copied().unwrap_or(0);
            if self.when == When::Never {
                self.answer(
                    wanted.process,
                    "taking stacks is switched off (--stacks never)",
                );
            } else if left_behind >= MOST_LEFT_BEHIND {
                self.answer(
                    wanted.process,
                    "the kernel does not let go of its memory map: looks at it do not come back",
                );
            } else if !self.awaited.contains(&wanted) {
                self.awaited.push_back(wanted);
                self.order(wanted);
            }
        }
    }

    /// Takes the captured stacks since the last call, and the errors.
    pub fn poll(&mut self) -> Vec<v1::Stacks> {
        if let Some(worker) = &mut self.worker {
            for answer in worker.answers.try_iter() {
                match answer {
                    Answer::Begun(process) => worker.busy = Some((process, Instant::now())),
                    Answer::Taken(stacks) => {
                        worker.busy = None;
                        self.awaited
                            .retain(|wanted| wanted.process != stacks.process);
                        self.ready.push(stacks);
                    }
                }
            }
        }
        self.leave_behind();
        std::mem::take(&mut self.ready)
    }

    /// Abandons a worker that exceeds the time limit.
    fn leave_behind(&mut self) {
        let busy = self.worker.as_ref().and_then(|worker| worker.busy);
        let Some((process, since)) = busy else { return };
        if since.elapsed() < PATIENCE {
            return;
        }
        // The thread ends once it is unblocked, since its channel is closed.
        self.worker = None;
        *self.left_behind.entry(process).or_insert(0) += 1;
        self.awaited.retain(|wanted| wanted.process != process);
        self.answer(
            process,
            &format!(
                "a look at it has not come back for {} s",
                PATIENCE.as_secs()
            ),
        );
        for wanted in self.awaited.clone() {
            self.order(wanted);
        }
    }

    fn order(&mut self, wanted: Wanted) {
        if self.worker.is_none() {
            self.worker = Worker::start(Arc::clone(&self.look));
        }
        let worker = self.worker.as_ref();
        if worker.is_none_or(|worker| worker.orders.send(wanted).is_err()) {
            self.awaited.retain(|other| *other != wanted);
            self.answer(wanted.process, "there is no thread to look at it");
        }
    }

    fn answer(&mut self, process: u64, trouble: &str) {
        self.ready.push(v1::Stacks {
            process,
            unix_ns: Timestamp::now().0,
            threads: Vec::new(),
            trouble: trouble.into(),
        });
    }
}

impl Worker {
    fn start(look: Arc<Capture>) -> Option<Self> {
        let (orders, receiver) = channel::<Wanted>();
        let (sender, answers) = channel();
        let work = move || {
            for wanted in receiver {
                if sender.send(Answer::Begun(wanted.process)).is_err() {
                    return;
                }
                let mut stacks = look(wanted.pid, wanted.start_ticks);
                stacks.process = wanted.process;
                if sender.send(Answer::Taken(stacks)).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("ddp-stacks".into());
        thread.spawn(work).ok()?;
        Some(Self {
            orders,
            answers,
            busy: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(process: u64) -> Wanted {
        Wanted {
            process,
            pid: process as u32,
            start_ticks: 0,
        }
    }

    /// Waits for `count` answers; returns their `trouble` by process.
    fn answers(taker: &mut Taker, count: usize) -> BTreeMap<u64, String> {
        let started = Instant::now();
        let mut answers = BTreeMap::new();
        while answers.len() < count {
            assert!(started.elapsed() < Duration::from_secs(60), "{answers:?}");
            answers.extend(taker.poll().into_iter().map(|it| (it.process, it.trouble)));
            thread::sleep(Duration::from_millis(10));
        }
        assert!(taker.awaited.is_empty() && taker.poll().is_empty());
        answers
    }

    #[test]
    fn blocked_capture_is_abandoned() {
        let look = |pid, _| {
            if pid == 2 {
                loop {
                    thread::park();
                }
            }
            v1::Stacks::default()
        };
        let mut taker = Taker::with(When::Stall, Arc::new(look));
        taker.ask((1..=3).map(wanted), false);
        let said = answers(&mut taker, 3);
        assert_eq!((said[&1].as_str(), said[&3].as_str()), ("", ""));
        assert!(said[&2].contains("has not come back"), "{said:?}");
        taker.left_behind.insert(2, MOST_LEFT_BEHIND);
        taker.ask([wanted(2)].into_iter(), true);
        assert!(answers(&mut taker, 1)[&2].contains("do not come back"));
    }

    #[test]
    fn mode_decides_which_requests_are_served() {
        for (when, stall, ask) in [
            (
                When::Never,
                None,
                Some("taking stacks is switched off (--stacks never)"),
            ),
            (When::Ask, None, Some("")),
            (When::Stall, Some(""), Some("")),
        ] {
            for (on_request, expected) in [(false, stall), (true, ask)] {
                let mut taker = Taker::with(when, Arc::new(|_, _| v1::Stacks::default()));
                // A repeated request is served once.
                taker.ask([wanted(1), wanted(1)].into_iter(), on_request);
                match expected {
                    None => assert!(taker.awaited.is_empty() && taker.poll().is_empty()),
                    Some(text) => assert_eq!(answers(&mut taker, 1)[&1], text),
                }
            }
        }
    }
}
