//! How ranks ended, and what they state about their models.

use std::sync::Arc;

use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::{ExceptionKind, Op, ParameterFact, ProcessState};

use super::events::{Job, Topic};
use super::facts::{Facts, GroupName};
use super::groups::UNNAMED;
use super::rank::{OfModel, Rank, SAME_MODEL};
use crate::diagnosis::event::{Event, OomKills, Parameters};
use crate::diagnosis::evidence::transport;
use crate::diagnosis::situation::contract::{GRAPH_CHANGED, READY_TWICE, UNFINISHED};
use crate::diagnosis::words;
use crate::ingest::process;

impl Job {
    /// Takes the exceptions with which the output of ranks ends as those that ended them, if no other failure is
    /// known and others stopped as well: they lost a peer, or write to the same log and state no later progress.
    /// Before PyTorch 2.3, nothing marks exceptions that are not caught.
    pub(super) fn take_last_exceptions(&mut self, all: &[&Facts]) {
        let fails = |rank: &Rank| {
            let mut raised = rank.raised.iter();
            let is_uncaught =
                raised.any(|it| it.uncaught && !transport::is_due_to_others(&it.text));
            is_uncaught || rank.ended.is_some() || !rank.waits.is_empty()
        };
        let lost = |rank: &Rank| {
            let mut raised = rank.raised.iter();
            raised.any(|it| transport::is_due_to_others(&it.text))
        };
        let is_shared = all.len() == 1 && self.ranks.len() > 1;
        let stopped = is_shared || self.ranks.values().any(lost);
        let has_progressed = all.iter().any(|it| it.has_progressed);
        let is_finished = has_progressed || self.finished.is_some();
        if !stopped || is_finished || self.ranks.values().any(fails) {
            return;
        }
        for it in self.ranks.values_mut().flat_map(|rank| &mut rank.raised) {
            it.uncaught |= it.is_last;
        }
    }

    /// Adds how ranks ended, what they raised, and where they stood.
    pub(super) fn add_ends(&mut self) {
        let mut notes = Vec::new();
        for (&number, rank) in &self.ranks {
            let exits = [rank.ended.map(|(_, how)| how.exit()), rank.ended_later];
            let failed = exits.iter().flatten().any(|exit| exit.code != Some(0));
            for raised in &rank.raised {
                if !raised.uncaught && !failed {
                    let (text, at) = (&raised.text, words::at(raised.place.as_ref()));
                    notes.push(format!("rank {number} logged an exception: {text}{at}"));
                    continue;
                }
                let kinds = [
                    raised.is_of_others(number).then_some(ExceptionKind::LeftCollective),
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

    /// Adds what ranks state about the parameters of their models.
    pub(super) fn add_models(&mut self) {
        let mut statements: Vec<(u32, Timestamp, Parameters)> = Vec::new();
        let lacking = self.ranks.values().filter(|it| it.lacks_gradients()).count();
        let mut others = self.ranks.values().filter(|it| !it.lacks_gradients());
        let has_waits = others.any(|rank| rank.waits.keys().any(GroupName::is_world));
        let world_size = self.names.world.map_or(self.ranks.len(), |size| size as usize);
        // The parameters without a gradient on some ranks decide nothing if others may lack more.
        let is_decisive = has_waits || lacking == world_size && lacking > 1;
        for (&number, rank) in &self.ranks {
            for report in &rank.of_model {
                let words = match report.fact {
                    ParameterFact::WithoutGradient if !is_decisive => continue,
                    ParameterFact::WithoutGradient => UNFINISHED,
                    ParameterFact::ReadyTwice => READY_TWICE,
                    ParameterFact::GraphChanged => GRAPH_CHANGED,
                    _ => SAME_MODEL,
                };
                let raised = rank.raised.iter().find(|it| it.text.contains(words));
                let at = raised.map_or(report.at, |it| it.at.min(report.at));
                let place = raised.and_then(|it| it.place.clone());
                statements.push((number, at, parameters(report, place)));
            }
        }
        if statements.is_empty() {
            return;
        }
        let is_named = |rank: &Rank| !rank.waits.contains_key(&model_group());
        let name = if self.ranks.values().all(is_named) { "0" } else { UNNAMED };
        let group = self.world(name, "");
        let first = statements.iter().map(|it| it.1).min().unwrap_or_default();
        for &rank in self.ranks.keys() {
            let joined = Event::GroupJoined { process: process(rank), group: Arc::clone(&group) };
            self.events.push((first, joined));
        }
        for (rank, at, said) in statements {
            let stated =
                Event::Parameters { process: process(rank), group: Arc::clone(&group), said, at };
            self.events.push((at, stated));
        }
    }

    /// Names the group of reductions that wait for a rank whose parameters got no gradient: it did not
    /// complete its own.
    pub(super) fn name_reductions(&mut self) {
        if !self.ranks.values().any(Rank::lacks_gradients) {
            return;
        }
        let others = self.ranks.values_mut().filter(|it| !it.lacks_gradients());
        for rank in others {
            let unnamed = GroupName::default();
            if let Some(waiting) = rank.waits.remove(&unnamed) {
                let is_reduction = waiting.op == Op::AllReduce;
                let group = if is_reduction { model_group() } else { unnamed };
                rank.waits.insert(group, waiting);
            }
        }
    }
}

/// The group of the world that the text does not name.
fn model_group() -> GroupName {
    GroupName { name: UNNAMED.into(), description: "default_pg".into() }
}

fn parameters(report: &OfModel, place: Option<Where>) -> Parameters {
    Parameters {
        fact: report.fact,
        model: 1,
        total: report.total,
        lines: Arc::clone(&report.lines),
        place: place.map(Arc::new),
        ..Parameters::default()
    }
}
