//! How ranks ended, what they raised, and their stacks.

use std::sync::Arc;

use ddp_doctor_diagnosis::event::{Event, OomKills};
use ddp_doctor_diagnosis::input::allocation;
use ddp_doctor_diagnosis::words;
use ddp_doctor_proto::{ExceptionKind, ProcessState};

use crate::logs::job::{LoggedJob, Topic};
use crate::process;

impl LoggedJob {
    /// Adds how ranks ended, what they raised, and where they stood.
    pub(in super::super) fn add_ends(&mut self) {
        let mut notes = Vec::new();
        for (&number, rank) in &self.ranks {
            let exits = [rank.ended.map(|(_, how)| how.exit()), rank.ended_later];
            let failed = exits.iter().flatten().any(|exit| exit.code != Some(0));
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
