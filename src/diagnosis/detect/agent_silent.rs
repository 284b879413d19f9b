//! DD904 agent-silent: a node has stopped reporting, so the state of its ranks is unknown.

use std::collections::BTreeMap;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Timestamp};

use super::early_exit::victims;
use super::view::last_call;
use super::{About, Detector, Draft, KeyPlace, order};
use crate::diagnosis::model::Process;
use crate::diagnosis::situation::{Origin, Situation, Stall};
use crate::diagnosis::words::{Ranks, number};

static ABOUT: About = About {
    code: &catalogue::DD904,
    order: order::EVIDENCE,
};

/// DD904: nodes that have stopped reporting.
pub(super) struct AgentSilent;

impl Detector for AgentSilent {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let mut nodes: BTreeMap<u32, Vec<&Process>> = BTreeMap::new();
        for process in situation.model.processes.values() {
            if process.rank.is_some() && situation.model.silent_since(process).is_some() {
                nodes.entry(process.id.node()).or_default().push(process);
            }
        }
        nodes
            .into_values()
            .filter_map(|processes| draft(situation, &processes))
            .collect()
    }
}

fn draft(situation: &Situation<'_>, processes: &[&Process]) -> Option<Draft> {
    let first = processes.first()?;
    let since: Timestamp = situation.model.silent_since(first)?;
    let mut ranks: Vec<u32> = processes
        .iter()
        .filter_map(|process| process.rank)
        .collect();
    ranks.sort_unstable();
    ranks.dedup();
    let mut draft = Draft::new(&ABOUT, KeyPlace::Ranks(ranks.clone()), since);
    let waits: Vec<&Stall> = situation
        .stalls
        .iter()
        .filter(|stall| match &stall.origin {
            Origin::Silent(silent) => silent.iter().any(|rank| ranks.contains(rank)),
            _ => false,
        })
        .collect();
    draft.victims = victims(&waits);
    draft.victims.retain(|rank| !ranks.contains(rank));
    draft.blocked_at = waits.iter().map(|stall| stall.since).min();
    draft.per_rank = ranks
        .iter()
        .filter_map(|&rank| Some(last_call(rank, situation.model.process_of(rank)?)))
        .collect();
    draft.summary = format!(
        "no reports from {} on host {} since {since}",
        Ranks(&ranks),
        first.host,
    );
    let mut why = format!(
        "A live node reports every second. {} may still be running: what {} {} since then is unknown, \
         and findings that depend on it cannot be made.",
        number(&ranks, "Its rank", "Its ranks"),
        number(&ranks, "it", "they"),
        number(&ranks, "has done", "have done"),
    );
    if !draft.victims.is_empty() {
        why.push_str(&format!(
            " {} {} for {}.",
            crate::diagnosis::words::Capital(Ranks(&draft.victims)),
            number(&draft.victims, "waits", "wait"),
            number(&ranks, "it", "them"),
        ));
    }
    draft.why = vec![why];
    draft.next = vec![format!(
        "Check that host {} is up and reachable, and that ddp-doctor runs there.",
        first.host
    )];
    draft.root = ranks;
    draft.root_confidence = Confidence::Supported;
    Some(draft)
}

#[cfg(test)]
mod tests {
    use super::ABOUT;
    use crate::diagnosis::testing::{holds, shows};

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            r#"
            world = 4
            hosts = { node-a = [0, 1], node-b = [2, 3] }
            events = """
            1.0 * all_reduce f32[4096] sum @train.py:31
            1.1 * done
            2.0 0,1 all_reduce f32[4096] sum @train.py:31
            12.0 - silent node-b 1.2
            """
            "#,
        );
    }

    #[test]
    fn silent_node_is_a_note_and_its_ranks_are_not_the_origin() {
        holds(
            r#"
            world = 4
            hosts = { a = [0, 1], b = [2, 3] }
            stall-after = 30
            events = """
            1.0 * all_reduce f32[8] sum @train.py:5
            1.1 * done
            2.0 0,1 all_reduce f32[8] sum @train.py:5
            12.0 - silent b 1.2
            """
            look-on = 100
            verdict = "insufficient"
            [[expect]]
            code = "DD904"
            severity = "note"
            confidence = "supported"
            root = [2, 3]
            victims = [0, 1]
            detected = 12.0
            "#,
        );
    }

    #[test]
    fn silence_is_withdrawn_when_the_node_reports_again() {
        holds(
            r#"
            world = 4
            hosts = { a = [0, 1], b = [2, 3] }
            events = """
            1.0 0,1 all_reduce f32[8] sum @train.py:5
            12.0 - silent b 1.2
            20.0 - speaks b
            20.1 2,3 all_reduce f32[8] sum @train.py:5
            20.2 * done
            """
            look-on = 100
            "#,
        );
    }

    #[test]
    fn rank_without_calls_is_not_silent() {
        holds(
            r#"
            world = 2
            hosts = { a = [0], b = [1] }
            events = """
            1.0 * all_reduce f32[8] sum @train.py:5
            1.1 * done
            """
            look-on = 500
            "#,
        );
    }

    #[test]
    fn missing_rank_beside_a_silent_node_is_the_origin() {
        holds(
            r#"
            world = 4
            hosts = { a = [0, 1], b = [2, 3] }
            stall-after = 30
            events = """
            2.0 0 all_reduce f32[8] sum @train.py:5
            12.0 - silent b 1.2
            """
            look-on = 100
            verdict = "hang"
            [[expect]]
            code = "DD101"
            root = [1]
            [[expect]]
            code = "DD904"
            root = [2, 3]
            "#,
        );
    }
}
