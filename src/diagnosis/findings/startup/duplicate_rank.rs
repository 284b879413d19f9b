//! DD302 duplicate-rank: two processes join the world as the same rank.

use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::startup::joining::{both_begun, contradiction, describe_joiners};
use crate::situation::Situation;
use crate::situation::startup::{Forming, Joiner, by_place, formed_twice};
use crate::words::{self, Ranks};

/// Maximum number of ranks that are searched for missing ones.
const MAX_RANKS: u32 = 1 << 16;

/// For each rank that two processes use at the same time, the first two of them.
fn doubles<'a>(forming: &Forming<'a>) -> Vec<[Joiner<'a>; 2]> {
    let mut by_rank: BTreeMap<u32, Vec<Joiner<'a>>> = BTreeMap::new();
    for joiner in &forming.joiners {
        by_rank.entry(joiner.rank).or_default().push(*joiner);
    }
    let pair = |joiners: Vec<Joiner<'a>>| {
        joiners.iter().enumerate().find_map(|(i, one)| {
            let other = joiners[i + 1..].iter().find(|other| one.meets(other))?;
            Some([*one, *other])
        })
    };
    by_rank.into_values().filter_map(pair).collect()
}

/// DD302: two processes with one rank.
pub(crate) fn detect(situation: &Situation<'_>) -> Vec<Draft> {
    let forming = by_place(situation.model).into_iter().chain(formed_twice(situation.model));
    forming.filter_map(|world| draft(situation, &world)).collect()
}

fn draft(situation: &Situation<'_>, forming: &Forming<'_>) -> Option<Draft> {
    let due = |pair: &[Joiner<'_>; 2]| {
        let [one, other] = pair;
        let elsewhere = one.process.host != other.process.host;
        let grace = situation.model.timing.duplicate_rank_grace;
        both_begun(pair).plus(if elsewhere { grace } else { Duration::ZERO })
    };
    let mut doubles = doubles(forming);
    doubles.retain(|pair| due(pair) <= situation.now);
    doubles.sort_by_key(|pair| due(pair));
    let first = *doubles.first()?;
    let [one, other] = &first;
    let mut draft = Draft::new(&catalogue::DD302, KeyPlace::Ranks(vec![one.rank]), due(&first));
    draft.root = doubles.iter().map(|[one, _]| one.rank).collect();
    draft.root.sort_unstable();
    draft.root_confidence = Confidence::Proved;
    describe_joiners(situation, forming, &mut draft);
    let rank = one.rank;
    let place = words::place(one.place);
    draft.summary = match &draft.root[..] {
        [_] => format!(
            "two processes join the world at {place} as rank {rank}: {}",
            processes(one, other)
        ),
        ranks => format!(
            "{} join the world at {place} twice each; as rank {rank} {}",
            Ranks(ranks),
            processes(one, other)
        ),
    };
    draft.say(
        "Each rank of a world is one process. A second process with the same rank is refused, or \
         replaces the first.",
    );
    let size = one.init.world_size.or(other.init.world_size).unwrap_or(0);
    let present = |rank: &u32| forming.joiners.iter().any(|joiner| joiner.rank == *rank);
    let missing: Vec<u32> = (0..size.min(MAX_RANKS)).filter(|rank| !present(rank)).collect();
    if !missing.is_empty() && missing.len() <= forming.joiners.len() {
        draft.say(format!("No process has joined as {} of {size} so far.", Ranks(&missing)));
    }
    draft.advise(
        "Give every process a different rank: find out what sets RANK (or --node-rank) for these \
         processes.",
    );
    draft.advise("If one of them is left over from an earlier start, end it, or use another port.");
    Some(draft.proved_by(contradiction(&first)))
}

/// "process 1001 on node-a and process 1002 on node-b".
fn processes(one: &Joiner<'_>, other: &Joiner<'_>) -> String {
    let (a, b) = (one.process, other.process);
    if a.host == b.host {
        return format!("processes {} and {} on {}", a.pid, b.pid, a.host);
    }
    format!("process {} on {} and process {} on {}", a.pid, a.host, b.pid, b.host)
}
