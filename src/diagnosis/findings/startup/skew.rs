//! Shared by the findings about versions, settings and devices.

use ddp_doctor_proto::catalogue::{self, Code};
use ddp_doctor_proto::report::{CallState, RankCall, Timestamp};

use crate::findings::draft::{Draft, Key, KeyPlace};
use crate::findings::startup::joining::blame;
use crate::findings::startup::settings::{self, Peers, Side, Skew};
use crate::findings::view::{describe, no_call, waiting_until};
use crate::input::settings::meaning;
use crate::model::Process;
use crate::situation::Situation;
use crate::words::{Ranks, joined};

/// Variables that make a rank wait for all others inside `init_process_group`.
const WAIT_IN_INIT: [&str; 2] = ["TORCH_DISTRIBUTED_DEBUG", "TORCH_DIST_INIT_BARRIER"];
/// Maximum number of differences that a sentence names per side.
const NAMED: usize = 4;

/// A draft without sentences about settings that differ; `None` unless two sides are known.
pub(crate) fn draft(
    situation: &Situation<'_>,
    code: &'static Code,
    peers: &Peers<'_>,
    skew: &Skew<'_>,
) -> Option<Draft> {
    let sides: Vec<Vec<u32>> = skew.sides.iter().map(|side| side.ranks.clone()).collect();
    let [_, _, ..] = &sides[..] else { return None };
    let first = peers.ranks.values().next()?;
    let mut draft = Draft::new(code, KeyPlace::Process(first.rank?, first.pid), skew.at);
    blame(&mut draft, &sides);
    draft.per_rank = per_rank(situation.now, peers, &sides.concat());
    Some(draft.proved_by(skew.proof.clone()))
}

/// Identifies the finding about the world of a process.
pub(crate) fn place(situation: &Situation<'_>, process: &Process) -> Option<KeyPlace> {
    let processes = situation.model.processes.values();
    let peers = processes.filter(|other| other.world == process.world && other.rank.is_some());
    let first = peers.min_by_key(|other| other.rank)?;
    Some(KeyPlace::Process(first.rank?, first.pid))
}

/// Key of the finding that explains ranks which do not return from `init_process_group`: all of
/// them have set a variable of [`WAIT_IN_INIT`], and other ranks have not.
pub(crate) fn keeps_from_joining(
    situation: &Situation<'_>,
    waiting: &[u32],
    one_of_them: &Process,
) -> Option<Key> {
    let worlds = settings::worlds(situation.model);
    let is_in = |peers: &&Peers<'_>| peers.ranks.values().any(|it| it.id == one_of_them.id);
    let variables = worlds.iter().find(is_in)?.variables()?;
    let explains = |name: &&str| {
        let with = have(&variables, name);
        !with.is_empty() && waiting.iter().all(|rank| with.contains(rank))
    };
    WAIT_IN_INIT.iter().find(|name| explains(name))?;
    Some(Key { code: catalogue::DD306.code, place: place(situation, one_of_them)? })
}

/// Ranks whose value of the variable has an effect.
fn have(variables: &Skew<'_>, name: &str) -> Vec<u32> {
    let sides = variables.sides.iter();
    let has = |(it, value): &(&str, Option<&str>)| *it == name && meaning(name, *value).is_some();
    let with = sides.filter(|side| side.has.iter().any(has));
    with.flat_map(|side| side.ranks.iter().copied()).collect()
}

/// Rows of these ranks: their calls of `init_process_group`.
pub(crate) fn per_rank(now: Timestamp, peers: &Peers<'_>, ranks: &[u32]) -> Vec<RankCall> {
    let peers = peers.ranks.iter().filter(|(rank, _)| ranks.contains(rank));
    peers.map(|(&rank, process)| row(now, rank, process)).collect()
}

fn row(now: Timestamp, rank: u32, process: &Process) -> RankCall {
    // A log states no return of a call.
    let init = process.init.as_ref().filter(|_| !process.is_from_text());
    let Some(init) = init else { return no_call(rank) };
    if init.over.is_some() || process.has_ended() {
        return describe(rank, CallState::Returned, None, &init.call);
    }
    waiting_until(rank, now, &init.call)
}

/// "ranks 0 and 2 have PyTorch 2.15.0, rank 1 has PyTorch 2.14.0".
pub(crate) fn said(skew: &Skew<'_>, thing: impl Fn(&str, Option<&str>) -> String) -> String {
    let side = |side: &Side<'_>| {
        let mut things: Vec<String> =
            side.has.iter().take(NAMED).map(|(name, value)| thing(name, *value)).collect();
        let more = side.has.len().saturating_sub(NAMED);
        if more > 0 {
            things.push(format!("{more} more"));
        }
        let listed = match &things[..] {
            [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
            all => all.concat(),
        };
        format!("{} {listed}", Ranks(&side.ranks).with("has", "have"))
    };
    joined(skew.sides.iter().map(side), ", ")
}
