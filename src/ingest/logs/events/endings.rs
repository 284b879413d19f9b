//! How ranks ended, what they raised, and their stacks.

use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_diagnosis::event::{Event, NoteText, OomKills, Stated};
use ddp_doctor_diagnosis::input::{allocation, known_errors};
use ddp_doctor_diagnosis::model::libc_signal::ABRT;
use ddp_doctor_diagnosis::words;
use ddp_doctor_proto::report::{Exit, Timestamp};
use ddp_doctor_proto::{ExceptionKind, ProcessState};

use crate::logs::job::{LoggedJob, Topic, went_on_after};
use crate::process;

/// Maximum time from an exception that a rank caught to the call in which others wait for it.
const STEP: Duration = Duration::from_secs(60);

impl LoggedJob {
    /// Adds what ranks stated that waited for no other rank, while others did: of those that others waited for to the
    /// calls, of others as notes.
    pub(in super::super) fn add_statements(&mut self) {
        let waits = self.ranks.values().flat_map(|it| it.waits.values());
        let since = waits.map(|it| it.since).min();
        let Some((since, given_up)) = since.zip(self.given_up) else { return };
        let mut notes = Vec::new();
        for (&number, rank) in self.ranks.iter().filter(|(_, rank)| rank.waits.is_empty()) {
            let is_of_wait = |at: Timestamp| at.plus(STEP) >= since && at <= given_up;
            let caught = rank.caught.iter().rev().find(|it| is_of_wait(it.0));
            let is_absent = self.absent.contains(&number);
            let blocked_for = if is_absent { self.joins.take_stuck(number) } else { None };
            let stuck = blocked_for.map(|seconds| (given_up, Stated::WatchdogBlocked(seconds)));
            let caught = caught.map(|(at, text)| (*at, Stated::Caught(Arc::clone(text))));
            let stated = stuck.into_iter().chain(caught);
            for (at, what) in stated {
                match what {
                    Stated::Caught(text) if !is_absent => {
                        let what = went_on_after(&format!("rank {number}"), &text, None).into();
                        let advice = known_errors::advice(&text).map(Arc::from);
                        notes.push(NoteText { what, advice });
                    }
                    what => {
                        let process = process(number);
                        self.events.push((at, Event::Stated { process, what, at }));
                    }
                }
            }
        }
        for note in notes {
            self.note(Topic::Exception, note);
        }
    }

    /// Adds how ranks ended, what they raised, and where they stood.
    pub(in super::super) fn add_ends(&mut self) {
        let mut notes = Vec::new();
        for (&number, rank) in &self.ranks {
            let exits = [rank.ended.map(|(_, how)| how.exit()), rank.ended_later];
            // A watchdog aborts its process whatever that raised before.
            let is_of_watchdog = |exit: &Exit| !rank.waits.is_empty() && exit.signal == Some(ABRT);
            let is_failure = |exit: &Exit| exit.code != Some(0) && !is_of_watchdog(exit);
            let failed = exits.iter().flatten().any(is_failure);
            for raised in &rank.raised {
                // A failed allocation that was caught leads to what the rank did next.
                let is_noted = if raised.is_caught {
                    allocation::failed(&raised.text).is_none()
                } else {
                    !raised.uncaught && !failed
                };
                if is_noted {
                    let (text, at) = (&raised.text, words::at(raised.place.as_ref()));
                    notes.push(format!("rank {number} logged an exception: {text}{at}"));
                    continue;
                }
                let how = if raised.is_caught {
                    ExceptionKind::LeftForward
                } else {
                    ExceptionKind::Uncaught
                };
                let of_others = raised.is_of_others(number);
                let kinds = [of_others.then_some(ExceptionKind::LeftCollective), Some(how)];
                for kind in kinds.into_iter().flatten() {
                    let event = Event::Exception {
                        process: process(number),
                        kind,
                        text: Arc::clone(&raised.text),
                        place: raised.place.clone().map(Arc::new),
                        at: raised.at,
                    };
                    self.events.push((raised.at, event));
                }
            }
            if let Some((at, failure)) = rank.ended.map(|it| it.0).zip(rank.node_failure.as_ref()) {
                let (process, failure) = (process(number), Arc::clone(failure));
                self.events.push((at, Event::NodeFailed { process, failure }));
            }
            if let Some((at, how)) = rank.ended {
                let kills = how.for_memory.then_some(1);
                let event = Event::ProcessChanged {
                    process: process(number),
                    state: ProcessState::Dead,
                    exit: how.exit(),
                    oom_kills: OomKills { in_cgroup: kills, on_host: None },
                    at,
                };
                self.events.push((at, event));
            }
            for stacks in &rank.stacks {
                let event = Event::Stacks { process: process(number), stacks: Arc::clone(stacks) };
                self.events.push((stacks.at, event));
            }
        }
        for note in notes {
            self.note(Topic::Exception, note);
        }
    }
}
