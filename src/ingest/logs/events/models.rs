//! What ranks state about their models.

use std::sync::Arc;

use ddp_doctor_diagnosis::event::{Event, GroupInfo, Parameters};
use ddp_doctor_diagnosis::situation::contract::{GRAPH_CHANGED, READY_TWICE, UNFINISHED};
use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::{ExceptionKind, Op, ParameterFact};

use super::collectives::named;
use crate::logs::facts::GroupName;
use crate::logs::job::{LoggedJob, OfModel, Rank, SAME_MODEL};
use crate::process;

impl LoggedJob {
    /// Adds what ranks state about the parameters of their models.
    pub(super) fn add_models(&mut self) {
        let mut statements: Vec<(u32, Timestamp, Parameters)> = Vec::new();
        let lacking = self.ranks.values().filter(|it| it.lacks_gradients()).count();
        let mut others = self.ranks.values().filter(|it| !it.lacks_gradients());
        let has_waits = others.any(|rank| rank.waits.keys().any(GroupName::is_world));
        let world_size = self.names.world.map_or(self.ranks.len(), |size| size as usize);
        // The parameters without a gradient on some ranks decide nothing if others that the text shows may lack more.
        let is_of_all = lacking == world_size && lacking > 1 || lacking == self.ranks.len();
        let is_decisive = has_waits || is_of_all;
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
                if report.fact == ParameterFact::WithoutGradient && raised.is_none() {
                    // Only this exception lists them.
                    let text = format!("RuntimeError: {UNFINISHED}").into();
                    let (process, kind) = (process(number), ExceptionKind::Uncaught);
                    let event =
                        Event::Exception { process, kind, text, place: None, at: report.at };
                    self.events.push((report.at, event));
                }
                let at = raised.map_or(report.at, |it| it.at.min(report.at));
                let place = raised.and_then(|it| it.place.clone());
                statements.push((number, at, parameters(report, place)));
            }
        }
        if statements.is_empty() {
            return;
        }
        let is_named = |rank: &Rank| !rank.waits.contains_key(&model_group());
        let mut group = self.world("0", "");
        if !self.ranks.values().all(is_named) {
            group = named(GroupInfo::clone(&group), &model_group());
        }
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
    GroupName { name: String::new(), description: "default_pg".into() }
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
