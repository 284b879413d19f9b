//! DD407 needless-unused-search: DDP searches for unused parameters and never finds any.

use std::time::Duration;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use super::view::{last_call, with_place};
use super::{About, Detector, Draft, KeyPlace, order};
use crate::diagnosis::model::{Group, Process, Replica, Said};
use crate::diagnosis::situation::Situation;
use crate::diagnosis::words;

/// Maximum number of models of a group that are examined.
const MOST_MODELS: u32 = 64;

static ABOUT: About = About {
    code: &catalogue::DD407,
    order: order::HINT,
};

/// DD407: searches for unused parameters without a result on any rank.
pub(super) struct NeedlessUnusedSearch;

impl Detector for NeedlessUnusedSearch {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let groups = situation.model.groups();
        groups
            .flat_map(|group| {
                let models = 1..=MOST_MODELS;
                models.filter_map(|model| draft(situation, group, model))
            })
            .collect()
    }
}

fn draft(situation: &Situation<'_>, group: &Group, model: u32) -> Option<Draft> {
    let mut said: Vec<(u32, &Process, &Replica, &Said)> = Vec::new();
    for &rank in group.members.keys() {
        let process = situation.model.member(group.id, rank)?;
        let replica = process.models.get(group.id, model)?;
        said.push((rank, process, replica, replica.never_unused.as_ref()?));
    }
    if said.len() < group.info.key.members.len() {
        return None;
    }
    let at = said.iter().map(|(.., said)| said.at).max()?;
    let place = KeyPlace::Join(group.id, u64::from(model));
    let mut draft = Draft::new(&ABOUT, place, at);
    draft.root = said.iter().map(|(rank, ..)| *rank).collect();
    draft.root_confidence = Confidence::Supported;
    draft.place = Some((group.id, 0));
    draft.per_rank = said
        .iter()
        .map(|(rank, process, replica, _)| {
            with_place(last_call(*rank, process), replica.place.as_deref())
        })
        .collect();
    let (_, _, replica, first) = said.first()?;
    let longest = said.iter().map(|(.., said)| said.number).max()?;
    let took = Duration::from_micros(u64::from(longest));
    draft.summary = format!(
        "find_unused_parameters=True{} has found nothing unused in {} steps; the search takes up to \
         {:.2} ms of each",
        words::at(replica.place.as_deref()),
        first.step,
        took.as_secs_f64() * 1e3,
    );
    draft.why = vec![format!(
        "Each step traverses the graph of the forward, and sends one all_reduce of {} numbers \
         more.",
        first.total.max(replica.total)
    )];
    draft.next = vec!["Wrap the model without find_unused_parameters=True.".into()];
    Some(draft)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::testing::{holds, shows};

    const NEVER: &str = r#"
        0.5 * layout "float32 16,32 body.weight" "float32 4,16 head.weight" @train.py:12
        0.6 * all_gather hidden i64[1] @train.py:12
        0.7 * done
        2.0 * forward 200 @train.py:17
    "#;

    #[test]
    fn example_matches_output() {
        shows(
            &ABOUT,
            &format!("world = 2\nevents = \"\"\"\n{NEVER}\n3.0 * never-unused\n\"\"\"\n"),
        );
    }

    #[test]
    fn search_without_a_result_on_all_ranks_is_reported() {
        holds(&format!(
            r#"
            world = 2
            events = """{NEVER}
            3.0 0 never-unused
            3.5 1 never-unused
            """
            silent-until = 3.5
            verdict = "slow"
            [[expect]]
            code = "DD407"
            severity = "note"
            confidence = "supported"
            root = [0, 1]
            lines = {{ 0 = "train.py:12" }}
            "#
        ));
    }

    #[test]
    fn search_is_needed_if_one_rank_finds_a_parameter() {
        holds(&format!(
            r#"
            world = 2
            events = """{NEVER}
            3.0 0 never-unused
            """
            look-on = 100
            "#
        ));
    }
}
