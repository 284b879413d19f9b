//! DD407 needless-unused-search: DDP searches for unused parameters and never finds any.

use std::time::Duration;

use ddp_doctor_proto::ParameterFact;
use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::view::{last_call, with_place};
use crate::model::{Group, Process, ReducerReport, Replica};
use crate::situation::Situation;
use crate::words;

/// Maximum number of models of a group that are examined.
const MAX_MODELS: u32 = 64;

/// DD407: searches for unused parameters without a result on any rank.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let groups = situation.model.groups();
    groups
        .flat_map(|group| {
            let models = 1..=MAX_MODELS;
            models.filter_map(|model| draft(situation, group, model))
        })
        .collect()
}

fn draft(situation: &Situation<'_>, group: &Group, model: u32) -> Option<Draft> {
    let mut reports: Vec<(u32, &Process, &Replica, &ReducerReport)> = Vec::new();
    for &rank in group.members.keys() {
        let process = situation.model.member(group.id, rank)?;
        let replica = process.models.get(group.id, model)?;
        reports.push((rank, process, replica, replica.report(ParameterFact::NeverUnused)?));
    }
    if reports.len() < group.info.key.members.len() {
        return None;
    }
    let at = reports.iter().map(|(.., report)| report.at).max()?;
    let place = KeyPlace::Join(group.id, u64::from(model));
    let mut draft = Draft::new(&catalogue::DD407, place, at);
    let ranks: Vec<u32> = reports.iter().map(|(rank, ..)| *rank).collect();
    draft.blame(ranks, Confidence::Supported);
    draft.place = Some((group.id, 0));
    draft.per_rank = reports
        .iter()
        .map(|(rank, process, replica, _)| {
            with_place(last_call(*rank, process), replica.place.as_deref())
        })
        .collect();
    let (_, process, replica, first) = reports.first()?;
    let longest = reports.iter().map(|(.., report)| report.number).max()?;
    let took = Duration::from_micros(u64::from(longest));
    draft.summary = format!(
        "find_unused_parameters=True{} has found no unused parameter in {} steps; the search takes \
         up to {:.2} ms of each",
        words::at(replica.place.as_deref()),
        process.optimizer.at(first.step),
        took.as_secs_f64() * 1e3,
    );
    draft.say(format!(
        "In each step, DDP traverses the graph of the forward and issues an additional all_reduce of {} \
         elements.",
        first.total.max(replica.total)
    ));
    draft.advise("Wrap the model without find_unused_parameters=True.");
    Some(draft)
}
