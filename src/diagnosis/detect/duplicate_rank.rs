//! DD302 duplicate-rank: two processes join the world as the same rank.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use super::joining::{contradiction, describe_joiners};
use super::{About, Detector, Draft, KeyPlace, order};
use crate::diagnosis::situation::Situation;
use crate::diagnosis::startup::{Forming, Joiner, by_place};
use crate::diagnosis::words::{self, Ranks};

/// Maximum number of ranks that are searched for missing ones.
const MOST_RANKS: u32 = 1 << 16;

static ABOUT: About = About {
    code: &catalogue::DD302,
    order: order::START,
};

/// DD302: two processes with one rank.
pub(super) struct DuplicateRank;

impl Detector for DuplicateRank {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn detect(&self, situation: &Situation<'_>) -> Vec<Draft> {
        let forming = by_place(situation.model);
        let drafts = forming.iter().filter_map(|it| draft(situation, it));
        drafts.collect()
    }
}

/// For each rank that two processes use at the same time, the first two of them.
fn doubles<'a>(forming: &Forming<'a>) -> Vec<[Joiner<'a>; 2]> {
    let mut by_rank: BTreeMap<u32, Vec<Joiner<'a>>> = BTreeMap::new();
    for joiner in &forming.joiners {
        by_rank.entry(joiner.rank).or_default().push(*joiner);
    }
    let pair = |joiners: Vec<Joiner<'a>>| {
        let pairs = joiners.iter().enumerate().flat_map(|(i, one)| {
            let others = joiners[i + 1..].iter();
            others.map(move |other| [*one, *other])
        });
        let mut pairs = pairs.filter(|[one, other]| one.meets(other));
        pairs.next()
    };
    by_rank.into_values().filter_map(pair).collect()
}

fn draft(situation: &Situation<'_>, forming: &Forming<'_>) -> Option<Draft> {
    let due = |[one, other]: &[Joiner<'_>; 2]| {
        let began = one.init.call.at.max(other.init.call.at);
        let elsewhere = one.process.host != other.process.host;
        began.plus(if elsewhere {
            situation.model.timing.duplicate_rank_grace
        } else {
            Duration::ZERO
        })
    };
    let mut doubles = doubles(forming);
    doubles.retain(|pair| due(pair) <= situation.now);
    doubles.sort_by_key(|pair| due(pair));
    let first = *doubles.first()?;
    let [one, other] = first;
    let mut draft = Draft::new(&ABOUT, KeyPlace::Ranks(vec![one.rank]), due(&first));
    draft.root = doubles.iter().map(|[one, _]| one.rank).collect();
    draft.root.sort_unstable();
    draft.root_confidence = Confidence::Proved;
    describe_joiners(situation, forming, &mut draft);
    let rank = one.rank;
    let place = words::place(one.place);
    draft.summary = match &draft.root[..] {
        [_] => format!(
            "two processes join the world at {place} as rank {rank}: {}",
            processes(&one, &other)
        ),
        ranks => format!(
            "{} join the world at {place} twice each; as rank {rank} {}",
            Ranks(ranks),
            processes(&one, &other)
        ),
    };
    draft.why = vec![
        "A world has each rank once. The second process of a rank is refused, or takes the place of \
         the first."
            .into(),
    ];
    let size = one.init.world_size.or(other.init.world_size).unwrap_or(0);
    let present = |rank: &u32| forming.joiners.iter().any(|joiner| joiner.rank == *rank);
    let missing: Vec<u32> = (0..size.min(MOST_RANKS))
        .filter(|rank| !present(rank))
        .collect();
    if !missing.is_empty() && missing.len() <= forming.joiners.len() {
        draft.why.push(format!(
            "No process has joined as {} of {size} so far.",
            Ranks(&missing)
        ));
    }
    draft.next = vec![
        "Give every process a rank of its own: find out what sets RANK (or --node-rank) for these \
         processes."
            .into(),
        "If one of them is left over from an earlier start, end it, or use another port.".into(),
    ];
    Some(draft.proved_by(Some(contradiction(&one, &other))))
}

/// "process 1001 on node-a and process 1002 on node-b".
fn processes(one: &Joiner<'_>, other: &Joiner<'_>) -> String {
    let (a, b) = (one.process, other.process);
    if a.host == b.host {
        return format!("processes {} and {} on {}", a.pid, b.pid, a.host);
    }
    format!(
        "process {} on {} and process {} on {}",
        a.pid, a.host, b.pid, b.host
    )
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
            world = 3
            starting = true
            events = """
            1.0 0,1 inits 3 node-a:29500 @train.py:12
            1.5 1 restarts
            1.6 1 inits 3 node-a:29500 @train.py:12
            """
            "#,
        );
    }

    #[test]
    fn second_process_of_a_rank_is_proved_when_it_joins() {
        holds(
            r#"
            world = 3
            starting = true
            events = """
            1.0 0,1 inits 3 node-a:29500 @train.py:12
            1.5 1 restarts
            1.6 1 inits 3 node-a:29500 @train.py:12
            """
            verdict = "hang"
            [[expect]]
            code = "DD302"
            confidence = "proved"
            certificate = "contradiction"
            root = [1]
            root-confidence = "proved"
            victims = [0]
            detected = 1.6
            summary-has = "processes 1001 and 1101 on node"
            "#,
        );
    }

    #[test]
    fn second_process_is_found_after_the_world_is_complete() {
        holds(
            r#"
            world = 2
            starting = true
            events = """
            1.0 0,1 inits 2 node-a:29500 @train.py:12
            1.2 0,1 inited
            1.5 1 restarts
            1.6 1 inits 2 node-a:29500 @train.py:12
            """
            [[expect]]
            code = "DD302"
            confidence = "proved"
            root = [1]
            detected = 1.6
            "#,
        );
    }

    #[test]
    fn restarted_rank_is_not_a_duplicate() {
        holds(
            r#"
            world = 2
            starting = true
            events = """
            1.0 * inits 2 node-a:29500 @train.py:12
            1.2 * exits 0
            1.5 * restarts
            1.6 * inits 2 node-a:29500 @train.py:12
            1.7 * inited
            """
            look-on = 100
            "#,
        );
    }

    #[test]
    fn same_rank_of_another_world_is_not_a_duplicate() {
        holds(
            r#"
            world = 2
            starting = true
            events = """
            1.0 0 inits 2 node-a:29500 @train.py:12
            1.5 0 restarts
            1.6 0 inits 2 node-a:29501 @train.py:12
            """
            look-on = 20
            "#,
        );
    }
}
