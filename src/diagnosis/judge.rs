//! The causal order of findings: which is initiating, and which followed.
//!
//! Each cause has one initiating finding. A fact about the process of a rank is a cascade if the
//! rank was already blocked by something else, if the transport reports the failure of a peer, or
//! if the launcher ended the rest of the job. All other findings are initiating.

use std::time::Duration;

use ddp_doctor_proto::catalogue::{self, Code};
use ddp_doctor_proto::report::{Confidence, Effect, Role, Severity, Timestamp};

use crate::findings::draft::{Draft, Key, KeyPlace, Precedence, ProcessFact};
use crate::findings::memory::out_of_memory::lead;
use crate::model::{World, libc_signal};
use crate::situation::Situation;
use crate::words::Ranks;

/// Findings about one process, and those about the same process that they follow from.
static OF_ONE_PROCESS: [(&Code, &Code); 2] = [
    (&catalogue::DD201, &catalogue::DD506),
    (&catalogue::DD201, &catalogue::DD501),
];

/// Maximum time by which the failure of a peer may be observed before the end of that peer.
const ECHO: Duration = Duration::from_secs(2);
/// Minimum time between a launcher's request to exit and the kill that follows it.
const GRACE: Duration = Duration::from_secs(2);

/// A draft with its place in the causal chain.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The draft.
    pub draft: Draft,
    /// Its role in the causal order.
    pub role: Role,
    /// The finding that it followed from.
    pub caused_by: Option<Key>,
}

/// Orders drafts by cause: first the initiating ones, by precedence, then the ones that followed,
/// by time.
#[must_use]
pub fn judge(situation: &Situation<'_>, mut drafts: Vec<Draft>) -> Vec<Judged> {
    link_findings_of_one_process(&mut drafts);
    lead(situation, &mut drafts);
    if drafts
        .iter()
        .any(|draft| draft.effect != Effect::None && draft.precedence() < Precedence::Hint)
    {
        // Hints are reported only if there is no other finding with an effect.
        drafts.retain(|draft| draft.precedence() != Precedence::Hint);
    }
    let worlds: Vec<Option<World>> = drafts.iter().map(|draft| world(situation, draft)).collect();
    let causes: Vec<Option<usize>> = (0..drafts.len())
        .map(|at| cause(situation, &drafts, &worlds, at))
        .collect();
    let found = |draft: &Draft| draft.effect != Effect::None;
    let nothing_found = !drafts.iter().any(found);
    let mut judged: Vec<Judged> = drafts
        .iter()
        .zip(&causes)
        .map(|(draft, cause)| Judged {
            draft: Draft {
                severity: if draft.leaves_open && nothing_found {
                    Severity::Error
                } else {
                    draft.severity
                },
                ..draft.clone()
            },
            role: if cause.is_some() {
                Role::Cascade
            } else {
                Role::Initiating
            },
            caused_by: cause.map(|at| drafts[at].key.clone()),
        })
        .collect();
    judged.sort_by(|a, b| {
        let rank = |j: &Judged| (j.role != Role::Initiating, j.draft.precedence());
        rank(a)
            .cmp(&rank(b))
            .then(b.draft.severity.cmp(&a.draft.severity))
            .then(a.draft.evidence_at.cmp(&b.draft.evidence_at))
            // Make the order of drafts deterministic.
            .then(a.draft.key.code.cmp(b.draft.key.code))
    });
    merge(judged)
}

fn link_findings_of_one_process(drafts: &mut [Draft]) {
    for (effect, cause) in OF_ONE_PROCESS {
        let causes: Vec<Key> = drafts
            .iter()
            .filter(|it| it.key.code == cause.code && !it.only_as_cause)
            .map(|it| it.key.clone())
            .collect();
        for draft in drafts.iter_mut() {
            if draft.key.code == effect.code && draft.follows.is_none() {
                let is_same = |it: &&Key| it.place == draft.key.place;
                draft.follows = causes.iter().find(is_same).cloned();
            }
        }
    }
}

/// The world that a draft concerns, if any. A failure in a world that the launcher started later
/// does not follow from it.
fn world(situation: &Situation<'_>, draft: &Draft) -> Option<World> {
    let model = situation.model;
    let process = match (&draft.key.place, draft.place) {
        (KeyPlace::Process(rank, pid), _) => model
            .processes
            .values()
            .find(|process| process.rank == Some(*rank) && process.pid == *pid),
        (_, Some((group, _))) => {
            let member = model.group(group).members.values().next();
            member.and_then(|member| model.processes.get(&member.process))
        }
        _ => None,
    };
    process.map(|process| process.world.clone())
}

/// The draft that this one followed from, if any.
fn cause(
    situation: &Situation<'_>,
    drafts: &[Draft],
    worlds: &[Option<World>],
    at: usize,
) -> Option<usize> {
    let draft = &drafts[at];
    if let Some(parent) = &draft.follows
        && let Some(at) = drafts.iter().position(|other| other.key == *parent)
    {
        return Some(at);
    }
    let fact = draft.fact?;
    let others = || {
        // Drafts that followed from this one, or are the same event, are no cause of it.
        let own = move |other: &Draft| {
            other.follows.as_ref() == Some(&draft.key)
                || (draft.event.is_some() && other.event == draft.event)
        };
        let elsewhere = move |i: usize| {
            worlds[i]
                .as_ref()
                .zip(worlds[at].as_ref())
                .is_some_and(|(a, b)| a != b)
        };
        drafts
            .iter()
            .enumerate()
            .filter(move |(i, other)| *i != at && !own(other) && !elsewhere(*i))
    };

    // The rank was already blocked for another reason.
    let held = others()
        .filter(|(_, other)| {
            let began = other.blocked_at.unwrap_or(other.evidence_at);
            let is_about_calls = other.place.is_some() || other.precedence() == Precedence::Start;
            let drawn_in = other.victims.contains(&fact.rank)
                || (other.fact.is_none() && other.root.contains(&fact.rank) && is_about_calls);
            drawn_in && began <= fact.at && !is_caused_by(other, fact, draft)
        })
        .min_by_key(|(_, other)| (other.precedence(), other.evidence_at));
    if let Some((i, _)) = held {
        return Some(i);
    }
    // The transport reported the end of another rank.
    if fact.from_communication {
        let first = others()
            .filter_map(|(i, other)| Some((i, other.fact?)))
            .filter(|(_, other)| {
                other.rank != fact.rank
                    && other.at <= fact.at.plus(ECHO)
                    && (!other.from_communication || other.at < fact.at)
            })
            .min_by_key(|(_, other)| (other.from_communication, other.at));
        if let Some((i, _)) = first {
            return Some(i);
        }
        // The peer may also have left in order, after all its calls.
        let left = others().find(|(_, other)| other.fact.is_none() && other.evidence_at <= fact.at);
        if let Some((i, other)) = left
            && other.precedence() < Precedence::Settings
        {
            return Some(i);
        }
    }
    // The launcher or a user ended the remaining ranks.
    let grace = match fact.signal {
        Some(libc_signal::TERM | libc_signal::INT | libc_signal::HUP | libc_signal::QUIT) => {
            Duration::ZERO
        }
        Some(libc_signal::KILL) => GRACE,
        _ => return None,
    };
    others()
        .filter(|(_, other)| {
            other.precedence() < Precedence::Settings
                && begins(situation, other).plus(grace) <= fact.at
                && !other
                    .fact
                    .is_some_and(|f| f.signal == fact.signal && f.at > fact.at)
        })
        .filter(|(_, other)| {
            other
                .fact
                .is_none_or(|f| f.signal != fact.signal || f.at < fact.at)
        })
        .min_by_key(|(_, other)| (other.precedence(), other.evidence_at))
        .map(|(i, _)| i)
}

/// Whether the other finding was caused by this fact.
fn is_caused_by(other: &Draft, fact: ProcessFact, draft: &Draft) -> bool {
    other
        .fact
        .is_some_and(|theirs| draft.victims.contains(&theirs.rank) && fact.at <= theirs.at)
}

fn begins(_situation: &Situation<'_>, draft: &Draft) -> Timestamp {
    draft
        .blocked_at
        .map_or(draft.evidence_at, |at| at.min(draft.evidence_at))
}

/// Merges findings of one event, such as one exception on every rank, or a launcher that ends 511
/// ranks.
fn merge(judged: Vec<Judged>) -> Vec<Judged> {
    let mut merged: Vec<Judged> = Vec::new();
    for one in judged {
        let twin = merged.iter_mut().find(|other| is_one_event(other, &one));
        match twin {
            Some(twin) => absorb(&mut twin.draft, one.draft),
            None => merged.push(one),
        }
    }
    merged
}

fn is_one_event(a: &Judged, b: &Judged) -> bool {
    let same_words = a.draft.event.is_some() && a.draft.event == b.draft.event;
    a.draft.code.code == b.draft.code.code
        && a.role == b.role
        && a.caused_by == b.caused_by
        && (a.role == Role::Cascade || same_words)
}

fn absorb(into: &mut Draft, other: Draft) {
    into.root.extend(other.root);
    into.root.sort_unstable();
    into.root.dedup();
    into.victims.extend(other.victims);
    into.victims.retain(|rank| !into.root.contains(rank));
    into.victims.sort_unstable();
    into.victims.dedup();
    let known: Vec<u32> = into.per_rank.iter().map(|call| call.rank).collect();
    into.per_rank.extend(
        other
            .per_rank
            .into_iter()
            .filter(|call| !known.contains(&call.rank)),
    );
    into.per_rank.sort_by_key(|call| call.rank);
    into.root_confidence = into.root_confidence.min(other.root_confidence);
    // A certificate of the first fact does not prove the others.
    if into.certificate.is_some() && other.certificate.is_none() {
        into.confidence = into.confidence.min(Confidence::Supported);
        into.certificate = None;
    }
    into.summary = match (&into.event, into.event == other.event) {
        (Some(event), true) => format!("{} {event}", Ranks(&into.root)),
        _ => format!(
            "{} ended likewise, the first of them so: {}",
            Ranks(&into.root),
            strip(&into.summary)
        ),
    };
    if into.event != other.event {
        into.event = None;
    }
    into.evidence_at = into.evidence_at.max(other.evidence_at);
}

/// The summary of a merged finding without the prefix added by merging.
fn strip(summary: &str) -> &str {
    summary
        .split_once("the first of them so: ")
        .map_or(summary, |(_, rest)| rest)
}
