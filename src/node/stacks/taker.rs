//! Takes stacks beside the following of black boxes, in a thread of its own.
//!
//! A look takes some milliseconds, but it goes through the kernel's lock of a process's memory map, and
//! there are devices that hold that lock for as long as they hang. Whoever waits for it then is one
//! thread that is left behind; the next process is looked at by another.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::v1;

use super::native::Known;

/// How long a look may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Looks at one process that may be left behind.
const MOST_LEFT_BEHIND: u32 = 3;

/// When stacks are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// Not at all.
    Never,
    /// Where ranks stand for long, and where somebody asks.
    #[default]
    Stall,
    /// Where somebody asks.
    Ask,
}

/// A process to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its name in messages.
    pub process: u64,
    /// Its number.
    pub pid: u32,
    /// Its start time, which tells it from a later one with that number.
    pub start_ticks: u64,
}

/// How a process is looked at.
type Look = dyn Fn(u32, u64) -> v1::Stacks + Send + Sync;

/// Takes stacks.
pub struct Taker {
    when: When,
    look: Arc<Look>,
    worker: Option<Worker>,
    /// What was asked for and has not come, in that order.
    awaited: VecDeque<Wanted>,
    /// Answers that took no look.
    ready: Vec<v1::Stacks>,
    /// How many looks at a process were left behind.
    left_behind: BTreeMap<u64, u32>,
}

/// A thread that looks.
struct Worker {
    orders: Sender<Wanted>,
    answers: Receiver<Answer>,
    /// What it is looking at, and since when.
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
    /// One that takes stacks when it may.
    #[must_use]
    pub fn new(when: When) -> Self {
        let known = Known::default();
        let look = move |pid, start_ticks| super::take(pid, start_ticks, &known);
        Self::with(when, Arc::new(look))
    }

    fn with(when: When, look: Arc<Look>) -> Self {
        Self {
            when,
            look,
            worker: None,
            awaited: VecDeque::new(),
            ready: Vec::new(),
            left_behind: BTreeMap::new(),
        }
    }

    /// Asks for stacks; `on_request`: because somebody wants to see them.
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

    /// What was taken since, and what could not be.
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

    /// Goes on without a worker that does not come back.
    fn leave_behind(&mut self) {
        let busy = self.worker.as_ref().and_then(|worker| worker.busy);
        let Some((process, since)) = busy else { return };
        if since.elapsed() < PATIENCE {
            return;
        }
        // It ends by itself once it can: nobody takes its answers.
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
    fn start(look: Arc<Look>) -> Option<Self> {
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

    /// All answers to this, by process.
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
    fn a_look_that_does_not_come_back_is_left_behind() {
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
    fn they_are_taken_when_they_may_be() {
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
                // Asked for twice, it is taken once.
                taker.ask([wanted(1), wanted(1)].into_iter(), on_request);
                match expected {
                    None => assert!(taker.awaited.is_empty() && taker.poll().is_empty()),
                    Some(text) => assert_eq!(answers(&mut taker, 1)[&1], text),
                }
            }
        }
    }
}
