//! How ranks ended, and what they state about their models.

use std::sync::Arc;

use ddp_doctor_proto::{ExceptionKind, ParameterFact, ProcessState};

use super::events::{Job, process};
use crate::diagnosis::event::{Event, OomKills, Parameters};
use crate::diagnosis::situation::contract::UNFINISHED;

impl Job {
    /// Adds how ranks ended, what they raised, and where they stood.
    pub(super) fn add_ends(&mut self) {
        let mut notes = Vec::new();
        for (&number, rank) in &self.ranks {
            let failed = rank.ended.is_some_and(|(_, how)| how.code != Some(0));
            for raised in &rank.raised {
                if !raised.uncaught && !failed {
                    notes.push(format!(
                        "rank {number} logged an exception: {}",
                        raised.text
                    ));
                    continue;
                }
                let kinds = [
                    is_from_peers(&raised.text).then_some(ExceptionKind::LeftCollective),
                    Some(ExceptionKind::Uncaught),
                ];
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
            if let Some((at, how)) = rank.ended {
                let kills = how.for_memory.then_some(1);
                let event = Event::ProcessChanged {
                    process: process(number),
                    state: ProcessState::Dead,
                    exit: how.exit(),
                    oom_kills: OomKills {
                        in_cgroup: kills,
                        on_host: None,
                    },
                    at,
                };
                self.events.push((at, event));
            }
            for stacks in &rank.stacks {
                let event = Event::Stacks {
                    process: process(number),
                    stacks: Arc::clone(stacks),
                };
                self.events.push((stacks.at, event));
            }
        }
        for note in notes {
            self.note(note);
        }
    }

    /// Adds what ranks state about the parameters of their models.
    pub(super) fn add_models(&mut self) {
        let group = self.world("0", "");
        let said = |total, lines: Arc<str>, fact| Parameters {
            fact,
            model: 1,
            total,
            lines,
            ..Parameters::default()
        };
        let lack = self
            .ranks
            .values()
            .filter(|rank| rank.without.is_some())
            .count();
        let waited = self.ranks.values().any(|rank| !rank.waits.is_empty());
        let everybody = self
            .names
            .world
            .map_or(self.ranks.len(), |size| size as usize);
        // What one rank lacks says nothing about others that only might exist.
        let tells = waited || lack == everybody && lack > 1;
        let mut events = Vec::new();
        for (&number, rank) in &self.ranks {
            let parameters = rank.parameters.map(|(at, total)| {
                let mut said = said(total, Arc::default(), ParameterFact::Layout);
                said.place = rank
                    .raised
                    .first()
                    .and_then(|it| it.place.clone())
                    .map(Arc::new);
                (at, said)
            });
            let without = rank
                .without
                .clone()
                .filter(|_| tells)
                .map(|(at, total, lines)| {
                    let raised = rank.raised.iter().find(|it| it.text.contains(UNFINISHED));
                    let mut said = said(total, lines, ParameterFact::WithoutGradient);
                    said.place = raised.and_then(|it| it.place.clone()).map(Arc::new);
                    (raised.map_or(at, |it| it.at.min(at)), said)
                });
            for (at, said) in parameters.into_iter().chain(without) {
                let process = process(number);
                let group = Arc::clone(&group);
                let joined = Event::GroupJoined {
                    process,
                    group: Arc::clone(&group),
                };
                let told = Event::Parameters {
                    process,
                    group,
                    said,
                    at,
                };
                events.extend([(at, joined), (at, told)]);
            }
        }
        self.events.extend(events);
    }
}

/// Whether an exception says that something is wrong with another rank.
fn is_from_peers(text: &str) -> bool {
    [
        "DDP expects same model",
        "Detected mismatch between collectives",
        "DistStoreError",
        "store based barrier",
        "monitoredBarrier",
    ]
    .iter()
    .any(|it| text.contains(it))
}
