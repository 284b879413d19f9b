//! DD904 agent-silent: a node has stopped reporting, so the state of its ranks is unknown.

use std::collections::{BTreeMap, BTreeSet};

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::view::last_calls;
use crate::model::Process;
use crate::situation::{OriginKind, Situation, Stall};
use crate::words::{Ranks, begin, number};

/// DD904: nodes that have stopped reporting.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let mut nodes: BTreeMap<u32, Vec<&Process>> = BTreeMap::new();
    for process in situation.model.processes.values() {
        if process.rank.is_some() && situation.model.silent_since(process).is_some() {
            nodes.entry(process.id.node()).or_default().push(process);
        }
    }
    nodes.into_values().filter_map(|processes| draft(situation, &processes)).collect()
}

fn draft(situation: &Situation<'_>, processes: &[&Process]) -> Option<Draft> {
    let first = processes.first()?;
    let since = situation.model.silent_since(first)?;
    let distinct: BTreeSet<u32> = processes.iter().filter_map(|process| process.rank).collect();
    let ranks = Vec::from_iter(distinct);
    let mut draft = Draft::new(&catalogue::DD904, KeyPlace::Ranks(ranks.clone()), since);
    let waits: Vec<&Stall> = situation
        .stalls
        .iter()
        .filter(|stall| stall.origin.why == OriginKind::Silent)
        .filter(|stall| stall.origin.ranks.iter().any(|rank| ranks.contains(rank)))
        .collect();
    draft.blame(&ranks[..], Confidence::Supported);
    draft.set_victims(Stall::victims(&waits));
    draft.blocked_at = waits.iter().map(|stall| stall.since).min();
    draft.per_rank = last_calls(situation, &ranks);
    draft.summary =
        format!("no reports from {} on host {} since {since}", Ranks(&ranks), first.host,);
    let mut why = format!(
        "A live node reports every second. {} may still be running: what {} {} since then is unknown, \
         and findings that depend on it cannot be made.",
        number(&ranks, "Its rank", "Its ranks"),
        number(&ranks, "it", "they"),
        number(&ranks, "has done", "have done"),
    );
    if !draft.victims.is_empty() {
        why += &format!(" {}.", begin(draft.waits_for_root()));
    }
    draft.say(why);
    draft.advise(format!(
        "Check that host {} is up and reachable, and that ddp-doctor runs there.",
        first.host
    ));
    Some(draft)
}
