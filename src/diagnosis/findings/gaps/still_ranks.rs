//! DD901 evidence-incomplete: ranks that `attach` saw asleep for longer than the stall limit, without another finding.
//!
//! Stacks do not show every wait of one rank for another: such a job may hang, and does not count as healthy.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::Confidence;

use crate::findings::draft::{Draft, KeyPlace};
use crate::findings::process_end::death::ended as ended_by;
use crate::input::event::Stacks;
use crate::situation::{OriginKind, Situation};
use crate::stacks;
use crate::words::{self, Ranks, number};

/// Maximum number of ranks that move, and of those that have ended, of which this is stated.
const MAX_STATED: usize = 4;

/// A rank as its captures show it, the oldest first.
struct Seen<'a> {
    rank: u32,
    looks: &'a [Arc<Stacks>],
    is_inside: bool,
}

impl Seen<'_> {
    fn moves(&self) -> bool {
        match self.looks {
            [first, .., last] => stacks::move_between(first, last),
            _ => false,
        }
    }

    /// Time for which its main thread has been asleep, unless that sleep ends by itself within `limit`.
    fn asleep(&self, limit: Duration) -> Option<Duration> {
        let thread = self.looks.last()?.threads.first()?;
        let ends_in = thread.blocked_on.as_ref().and_then(|it| it.ends_in);
        thread.asleep.filter(|_| ends_in.is_none_or(|it| it > limit))
    }
}

/// DD901: ranks inside a call, or anywhere if no rank moves, whose main threads have slept for the stall limit.
pub(crate) fn detect(situation: &Situation<'_>) -> Option<Draft> {
    if !situation.config.provenance.is_attached() {
        return None;
    }
    let model = situation.model;
    let joined = model.processes.values().filter(|it| !it.has_ended()).filter_map(|it| {
        Some(Seen { rank: it.rank?, looks: &it.stacks, is_inside: it.is_inside_a_call() })
    });
    let started = model.started_ranks.values().filter(|it| it.end.is_none()).map(|it| Seen {
        rank: it.rank,
        looks: &it.looks,
        is_inside: false,
    });
    let seen: Vec<Seen<'_>> = joined.chain(started).collect();
    let idle = idle_ranks(situation);
    let limit = situation.config.stall_after;
    let nothing_moves = !seen.iter().any(Seen::moves);
    let asleep: Vec<(&Seen<'_>, Duration)> = seen
        .iter()
        .filter(|it| (it.is_inside || nothing_moves) && !idle.contains(&it.rank))
        .filter_map(|it| Some((it, it.asleep(limit)?)))
        .collect();
    // A rank that is about to reach the limit may be what the others wait for, and then explains them.
    if asleep.iter().any(|(_, it)| (limit / 2..limit).contains(it)) {
        return None;
    }
    let still: Vec<(&Seen<'_>, Duration)> =
        asleep.into_iter().filter(|(_, it)| *it >= limit).collect();
    let least = still.iter().map(|(_, asleep)| *asleep).min()?;
    let mut ranks: Vec<u32> = still.iter().map(|(it, _)| it.rank).collect();
    ranks.sort_unstable();
    let last = still.iter().filter_map(|(it, _)| it.looks.last()).max_by_key(|it| it.at)?;
    let mut draft = Draft::new(&catalogue::DD901, KeyPlace::Ranks(ranks.clone()), last.at);
    draft.summary = format!(
        "{} been asleep for at least {}{}, and the stacks do not show what {} for",
        Ranks(&ranks).with("has", "have"),
        words::seconds(least),
        words::at(stacks::line_of(last, None)),
        number(&ranks, "it waits", "they wait"),
    );
    let ended = model.processes.values().filter_map(|it| Some((it.rank?, it.end?.exit)));
    for (rank, exit) in ended.take(MAX_STATED) {
        draft.say(format!("Rank {rank} {}.", ended_by(exit)));
    }
    let moving = seen.iter().filter(|it| it.moves());
    for it in moving.take(MAX_STATED) {
        let at = words::at(it.looks.last().and_then(|it| stacks::line_of(it, None)));
        draft.say(format!(
            "Rank {} is making progress{at}: it may still arrive, or be in an endless loop.",
            it.rank
        ));
    }
    draft.say(
        "Stacks show the call that each rank is in, but not the calls that ranks made before. What a rank waits for \
         outside of calls, such as a key of a store, a file or a message, may depend on another rank as well.",
    );
    draft.advise(
        "Run ddp-doctor attach again in a minute: if these ranks have not moved, compare what each of them waits for \
         (ddp-doctor attach --format json, ranks[].blocked_on).",
    );
    draft.blame(ranks, Confidence::Suspected);
    draft.confidence = Confidence::Supported;
    Some(draft)
}

/// Ranks that wait for a request, and those that wait for them to pass it on: nothing is wrong with these.
fn idle_ranks(situation: &Situation<'_>) -> BTreeSet<u32> {
    let idle = situation.stalls.iter().filter(|it| it.origin.why == OriginKind::Idle);
    idle.flat_map(|it| it.waiting.iter().chain(&it.origin.ranks)).copied().collect()
}
