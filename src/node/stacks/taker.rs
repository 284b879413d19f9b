//! Captures stacks in a separate thread, so that the follower never waits for it.
//!
//! A capture takes some milliseconds, but needs the kernel's lock of the process' memory map, which
//! a hanging device can hold indefinitely. If a capture takes too long, another thread captures the
//! next process. A late capture, on a busy host, is still reported.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;

use crate::node::stacks::native::FunctionCache;

/// Time after which another thread captures the next process.
const PATIENCE: Duration = Duration::from_secs(3);
/// Maximum number of unfinished captures of one process.
const MAX_UNFINISHED: usize = 3;

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
    /// Process and answers of each thread whose capture takes too long.
    overdue: Vec<(u64, Receiver<Answer>)>,
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
        let look = move |pid, start_ticks| crate::node::stacks::take(pid, start_ticks, &known);
        Self::with(when, Arc::new(look))
    }

    fn with(when: When, look: Arc<Capture>) -> Self {
        Self {
            when,
            look,
            worker: None,
            awaited: VecDeque::new(),
            ready: Vec::new(),
            overdue: Vec::new(),
        }
    }

    /// Requests stacks. `on_request` is whether a user requested them.
    pub fn ask(&mut self, wanted: impl Iterator<Item = Wanted>, on_request: bool) {
        if self.when != When::Stall && !on_request {
            return;
        }
        for wanted in wanted {
            let unfinished = self.overdue.iter().filter(|it| it.0 == wanted.process);
            if self.when == When::Never {
                self.answer(
                    wanted.process,
                    "taking stacks is switched off (--stacks never)",
                );
            } else if unfinished.count() >= MAX_UNFINISHED {
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
        self.replace_worker_if_overdue();
        self.overdue.retain(|(_, answers)| {
            let late = answers.try_iter().find_map(|answer| match answer {
                Answer::Taken(stacks) => Some(stacks),
                Answer::Begun(_) => None,
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
            busy.is_some_and(|(_, since)| since.elapsed() >= PATIENCE)
        };
        let Some(worker) = self.worker.take_if(is_overdue) else {
            return;
        };
        let Some((process, _)) = worker.busy else {
            return;
        };
        // The thread ends after its capture, when `answers` is dropped.
        self.overdue.push((process, worker.answers));
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
    use std::collections::BTreeMap;
    use std::sync::Mutex;

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
        let unfinished = || (2, channel().1);
        taker.overdue = vec![unfinished(), unfinished(), unfinished()];
        taker.ask([wanted(2)].into_iter(), true);
        assert!(answers(&mut taker, 1)[&2].contains("do not come back"));
    }

    #[test]
    fn late_capture_is_reported() {
        let (finish, is_finished) = channel();
        let is_finished = Mutex::new(is_finished);
        let look = move |_, _| {
            is_finished.lock().unwrap().recv().unwrap();
            v1::Stacks::default()
        };
        let mut taker = Taker::with(When::Stall, Arc::new(look));
        taker.ask([wanted(1)].into_iter(), false);
        assert!(answers(&mut taker, 1)[&1].contains("has not come back"));
        finish.send(()).unwrap();
        assert_eq!(answers(&mut taker, 1)[&1], "");
        assert!(taker.overdue.is_empty());
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
