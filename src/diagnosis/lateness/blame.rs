//! Who waited, and for whom in the end.
//!
//! Whoever comes last to a encounter keeps those who came before waiting. That rank may have waited itself,
//! in another group or for a message: so its own waits are followed, piece by piece, to whoever did not
//! wait. No duration of a call says so: with one slow rank all of them measure the same step.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ddp_doctor_proto::Op;
use ddp_doctor_proto::report::Timestamp;
use ddp_doctor_proto::vocabulary::Direction;

use crate::diagnosis::event::Call;
use crate::diagnosis::model::{Came, Encounter, GroupId, Model};

/// Waits that are followed one after another.
const FURTHEST: usize = 16;

/// A rank waited, and another one was not waiting meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub struct Blame {
    /// Who waited.
    pub waiting: u32,
    /// Who was awaited in the end.
    pub late: u32,
    /// From when …
    pub from: Timestamp,
    /// … until when.
    pub to: Timestamp,
    /// In which group …
    pub group: GroupId,
    /// … and for which call: that of the first to be named of those who met there.
    pub call: Arc<Call>,
}

/// A rank waited for another one.
#[derive(Clone, Copy, Debug)]
struct Held<'a> {
    on: u32,
    from: Timestamp,
    to: Timestamp,
    encounter: &'a Encounter,
}

/// The waits of each rank, by time, none over another.
type Waits<'a> = BTreeMap<u32, Vec<Held<'a>>>;

/// All waits that ended after `since`, by rank and time.
#[must_use]
pub fn blame(model: &Model, since: Timestamp) -> Vec<Blame> {
    let waits = waits(model, since);
    let mut blames = Vec::new();
    for (&waiting, held) in &waits {
        for held in held {
            let piece = Piece {
                waiting,
                encounter: held.encounter,
                from: held.from,
                to: held.to,
            };
            follow(&waits, piece, held.on, 0, &mut blames);
        }
    }
    blames
}

#[derive(Clone, Copy)]
struct Piece<'a> {
    waiting: u32,
    encounter: &'a Encounter,
    from: Timestamp,
    to: Timestamp,
}

fn follow(waits: &Waits<'_>, piece: Piece<'_>, on: u32, depth: usize, blames: &mut Vec<Blame>) {
    let mut at = piece.from;
    let mut own = |from, to| {
        if from < to {
            blames.push(Blame {
                waiting: piece.waiting,
                late: on,
                from,
                to,
                group: piece.encounter.group,
                call: Arc::clone(&piece.encounter.call),
            });
        }
    };
    let held = waits.get(&on).map_or(&[][..], Vec::as_slice);
    let first = held.partition_point(|held| held.to <= piece.from);
    let mut further = Vec::new();
    if depth < FURTHEST {
        for held in held[first..].iter().take_while(|it| it.from < piece.to) {
            own(at, held.from.max(at));
            let (from, to) = (held.from.max(at), held.to.min(piece.to));
            // A rank that waits for one which waits for it: clocks differ, or a wait was guessed.
            if held.on == piece.waiting {
                own(from, to);
            } else {
                further.push((held.on, from, to));
            }
            at = to;
        }
    }
    own(at, piece.to);
    for (on, from, to) in further {
        follow(waits, Piece { from, to, ..piece }, on, depth + 1, blames);
    }
}

fn waits(model: &Model, since: Timestamp) -> Waits<'_> {
    let encounters: Vec<&Encounter> = model
        .arrivals
        .latest()
        .filter(|encounter| encounter.last().is_some_and(|last| last.at >= since))
        .collect();
    let active = activity(model, &encounters);
    let averaged = averaged(&encounters);
    let mut waits = Waits::new();
    for encounter in encounters {
        let holds = model
            .group(encounter.group)
            .holds_threads(encounter.call.op);
        for came in &encounter.came {
            let Some(on) = encounter.waits_for(came.rank) else {
                continue;
            };
            let active = active.get(&came.rank).map_or(&[][..], Vec::as_slice);
            let seen = averaged.get(&came.rank).map_or(&[][..], Vec::as_slice);
            let seen = seen_begin(encounter, came, seen, active);
            let Some(from) = seen.or_else(|| begin(encounter, came, &on, holds, active)) else {
                continue;
            };
            let apart = apart(model, came.rank, on.rank).as_nanos() as u64;
            let to = Timestamp(on.at.0.saturating_sub(apart));
            if from < to {
                waits.entry(came.rank).or_default().push(Held {
                    on: on.rank,
                    from,
                    to,
                    encounter,
                });
            }
        }
    }
    for held in waits.values_mut() {
        held.sort_by_key(|held| (held.to, held.from));
        let mut accounted = Timestamp::default();
        held.retain_mut(|held| {
            held.from = held.from.max(accounted);
            accounted = accounted.max(held.to);
            held.from < held.to
        });
    }
    waits
}

/// When each rank began to wait for DDP's buckets, by time, as far as that was seen.
fn averaged(encounters: &[&Encounter]) -> BTreeMap<u32, Vec<Timestamp>> {
    let mut averaged: BTreeMap<u32, Vec<Timestamp>> = BTreeMap::new();
    let last = encounters.iter().filter(|it| it.buckets.is_some());
    for came in last.flat_map(|encounter| &encounter.came) {
        if let Some(from) = came.waits {
            averaged.entry(came.rank).or_default().push(from);
        }
    }
    for from in averaged.values_mut() {
        from.sort_unstable();
    }
    averaged
}

/// When a rank began to wait for this bucket and the others of its backward; `None`: that was not seen. A
/// backward may have much to do when all of them are on their way, and then ranks are apart and nobody waits.
fn seen_begin(
    encounter: &Encounter,
    came: &Came,
    averaged: &[Timestamp],
    active: &[Active],
) -> Option<Timestamp> {
    let next = averaged.partition_point(|from| *from < came.at);
    let from = *averaged.get(next).filter(|_| is_bucket(encounter, came))?;
    // That wait is another backward's where the rank was somewhere else in between.
    let next = active.partition_point(|active| active.at <= came.at);
    let mut until = active[next..].iter().take_while(|it| it.at < from);
    until.all(|active| active.is_bucket).then_some(from)
}

/// From when on a rank waited for the one that came later; `None`: it did not, as far as is known.
fn begin(
    encounter: &Encounter,
    came: &Came,
    on: &Came,
    holds: bool,
    active: &[Active],
) -> Option<Timestamp> {
    if !holds || is_bucket(encounter, came) {
        // The wait itself is not seen. It is over before the rank does anything else, and lasts from what
        // it did last before its peer came. DDP waits for its buckets once all of them are on their way.
        let next = active.partition_point(|active| active.at <= on.at);
        if active.get(next).is_some_and(|next| next.is_bucket) {
            return None;
        }
        let last = next.checked_sub(1).and_then(|last| active.get(last));
        return Some(last.map_or(came.at, |last| last.at.max(came.at)));
    }
    if came.hidden {
        return Some(came.at);
    }
    if came.until.is_some_and(|until| until < on.at) {
        return None;
    }
    if came.is_async {
        return came.waits;
    }
    Some(came.at)
}

/// A rank was seen to do something of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Active {
    at: Timestamp,
    /// DDP sent a bucket of gradients.
    is_bucket: bool,
}

/// What each rank was seen to do, by time.
fn activity(model: &Model, encounters: &[&Encounter]) -> BTreeMap<u32, Vec<Active>> {
    let mut active: BTreeMap<u32, Vec<Active>> = BTreeMap::new();
    for encounter in encounters {
        for came in &encounter.came {
            active.entry(came.rank).or_default().push(Active {
                at: came.at,
                is_bucket: is_bucket(encounter, came),
            });
        }
    }
    for (&rank, active) in &mut active {
        let Some(process) = model.process_of(rank) else {
            continue;
        };
        let pace = &process.pace;
        let steps = pace.steps.iter().copied();
        let other = steps.chain(pace.spent.iter().map(|spent| spent.to));
        active.extend(other.map(|at| Active {
            at,
            is_bucket: false,
        }));
        active.sort_unstable();
    }
    active
}

/// Whether DDP averages gradients there.
fn is_bucket(encounter: &Encounter, came: &Came) -> bool {
    came.hidden && encounter.direction == Direction::Symmetric && encounter.call.op == Op::AllReduce
}

/// How far the clocks of two ranks may be apart.
#[must_use]
pub fn apart(model: &Model, one: u32, other: u32) -> Duration {
    let host = |rank| model.process_of(rank).map(|process| &process.host);
    if host(one) == host(other) {
        Duration::ZERO
    } else {
        model.clock_uncertainty()
    }
}
