//! The causal order of findings: which is initiating, and which followed.
//!
//! Each cause has one initiating finding. A finding is a cascade if the table in `causality` or its
//! rule names its cause ([`Draft::follows`]). A fact about the process of a rank is also one if the
//! rank was already blocked by something else, if the transport reports the failure of a peer, or
//! if the launcher ended the rest of the job. All other findings are initiating.
//!
//! Findings of different attempts are independent of each other. Those of the last attempt come
//! first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Effect, Severity, Timestamp};

use crate::causality;
use crate::common_root;
use crate::findings::draft::{Draft, Key, Precedence, ProcessFact, Standing};
use crate::findings::evidence::evidence_incomplete;
use crate::model::{Attempt, World, libc_signal};
use crate::restarts;
use crate::situation::Situation;
use crate::words::Ranks;

/// Maximum time by which the failure of a peer may be observed before the end of that peer.
const ECHO: Duration = Duration::from_secs(2);
/// Maximum time by which the connections of a process are closed before its end is reported.
const CLOSING: Duration = Duration::from_millis(200);
/// Minimum time between a launcher's request to exit and the kill that follows it.
const GRACE: Duration = Duration::from_secs(2);

/// Orders drafts by cause: first the initiating ones, by precedence, then the ones that followed,
/// by time.
pub fn judge(situation: &Situation<'_>, mut found: Vec<Draft>) -> Vec<Draft> {
    causality::link(situation, &mut found);
    for it in &mut found {
        it.attempt = restarts::attempt_of(situation, it);
    }
    common_root::blame(situation, &mut found);
    let has_effect = |it: &Draft| it.effect != Effect::None;
    withhold_hints(&mut found);
    // All dumps lack the ends of ranks: that matters if they show nothing else.
    if situation.config.provenance.dumps().is_some() && found.len() > 1 {
        found.retain(|it| !evidence_incomplete::is_about_ends(it));
    }
    // A failure in a world that the launcher started later does not follow from one before it.
    let world = |it: &Draft| Some(&restarts::process_of(situation, it)?.world);
    let worlds: Vec<Option<&World>> = found.iter().map(world).collect();
    let mut causes: Vec<Option<usize>> =
        (0..found.len()).map(|at| cause(&found, &worlds, at)).collect();
    break_circles(&found, &mut causes);
    let keys: Vec<Key> = found.iter().map(|it| it.key.clone()).collect();
    let is_current = |it: &Draft| !situation.attempts.is_over(it.attempt);
    let is_open = !found.iter().any(|it| is_current(it) && has_effect(it));
    let severities: Vec<Severity> =
        (0..found.len()).map(|at| severity(&found, &causes, at)).collect();
    for ((it, cause), severity) in found.iter_mut().zip(causes).zip(severities) {
        it.severity = severity;
        if it.standing == Standing::LeavesOpen && is_open {
            it.severity = Severity::Error;
        }
        if let Some(cause) = cause {
            it.caused_by = Some(keys[cause].clone());
            if it.fact.is_some() {
                // Its cause is what needs advice.
                it.next.clear();
            }
        }
    }
    found.sort_by_key(|draft| {
        let age = situation.attempts.last(draft.attempt) - draft.attempt.index;
        let is_cascade = draft.caused_by.is_some();
        let severity = Reverse(draft.severity);
        // The code makes the order of drafts deterministic.
        (age, is_cascade, draft.precedence, severity, draft.evidence_at, draft.key.code)
    });
    quiet_further_gaps(&mut found);
    let mut judged = merge(found);
    restarts::describe(situation, &mut judged);
    judged
}

/// One finding states why the verdict is open; further gaps add to it.
fn quiet_further_gaps(found: &mut [Draft]) {
    let gaps = found.iter_mut().filter(|it| it.standing == Standing::LeavesOpen);
    for gap in gaps.skip(1) {
        gap.severity = gap.severity.min(gap.code.severity);
    }
}

/// Drops hints that another finding with an effect may explain. What held over time before the other one
/// began stays, unless memory ran out, which says as much.
fn withhold_hints(found: &mut Vec<Draft>) {
    let others = found.iter().filter(|it| it.effect != Effect::None);
    let explained: Vec<(Attempt, Timestamp)> = others
        .filter(|it| it.precedence < Precedence::Hint)
        .map(|it| match it.precedence {
            Precedence::Memory => (it.attempt, Timestamp::default()),
            _ => (it.attempt, begin(it)),
        })
        .collect();
    found.retain(|it| {
        let held_from = Some(it.evidence_at).filter(|_| catalogue::is_over_time(it.code.code));
        let explains = |(attempt, at): &(Attempt, Timestamp)| {
            *attempt == it.attempt && held_from.is_none_or(|held_from| *at <= held_from)
        };
        it.precedence != Precedence::Hint || !explained.iter().any(explains)
    });
}

/// Severity of a draft: a consequence is not graver than what it followed from.
fn severity(found: &[Draft], causes: &[Option<usize>], at: usize) -> Severity {
    let chain = std::iter::successors(Some(at), |&at| causes[at]);
    let severities = chain.take(found.len()).map(|at| found[at].severity);
    severities.min().unwrap_or(found[at].severity)
}

/// The draft that this one followed from, if any.
fn cause(found: &[Draft], worlds: &[Option<&World>], at: usize) -> Option<usize> {
    let draft = &found[at];
    if let Some(parent) = &draft.follows
        && let Some(at) =
            found.iter().position(|other| other.key == *parent && other.attempt == draft.attempt)
    {
        return Some(at);
    }
    let fact = draft.fact?;
    let others = others(found, worlds, at);
    blocked_earlier(&others, draft, fact)
        .or_else(|| broke_communication(&others, fact))
        .or_else(|| ended_job(&others, fact))
}

/// Of findings that follow from each other, the earliest has no cause: a launcher ends the other ranks after
/// the transport of one has failed, and the end of a rank makes transports fail.
fn break_circles(found: &[Draft], causes: &mut [Option<usize>]) {
    let began = |&at: &usize| {
        let draft = &found[at];
        let fact = draft.fact.map(|fact| {
            let closing = if fact.from_communication { CLOSING } else { Duration::ZERO };
            fact.at.plus(closing)
        });
        (fact.unwrap_or(draft.evidence_at), at)
    };
    for start in 0..causes.len() {
        let mut path = vec![start];
        while let Some(next) = causes[path[path.len() - 1]] {
            if next == start {
                let first = path.iter().min_by_key(|at| began(at));
                first.copied().into_iter().for_each(|at| causes[at] = None);
                break;
            }
            // A circle that does not contain the start is found from its own members.
            if path.contains(&next) {
                break;
            }
            path.push(next);
        }
    }
}

/// A draft that may be the cause of another one, with its index.
type Other<'a> = (usize, &'a Draft);

/// The drafts that may be the cause of this one: those of the same attempt and world that neither
/// followed from it nor are the same event. Hints are not causes.
fn others<'a>(found: &'a [Draft], worlds: &[Option<&World>], at: usize) -> Vec<Other<'a>> {
    let draft = &found[at];
    let own = |other: &Draft| {
        other.follows.as_ref() == Some(&draft.key)
            || (draft.event.is_some() && other.event == draft.event)
    };
    let elsewhere = |i: usize| {
        found[i].attempt != draft.attempt || worlds[i].zip(worlds[at]).is_some_and(|(a, b)| a != b)
    };
    let others = found.iter().enumerate();
    let is_hint = |other: &Draft| other.precedence == Precedence::Hint;
    let may_be = |i: usize, other: &Draft| i != at && !own(other) && !is_hint(other);
    others.filter(|(i, other)| may_be(*i, other) && !elsewhere(*i)).collect()
}

/// The draft that already blocked the rank for another reason.
fn blocked_earlier(others: &[Other<'_>], draft: &Draft, fact: ProcessFact) -> Option<usize> {
    let blocked = others.iter().filter(|(_, other)| {
        let began = other.blocked_at.unwrap_or(other.evidence_at);
        let is_about_calls = other.place.is_some() || other.precedence == Precedence::Start;
        let drawn_in = other.victims.contains(&fact.rank)
            || (other.fact.is_none() && other.root.contains(&fact.rank) && is_about_calls);
        drawn_in && began <= fact.at && !is_caused_by(other, fact, draft)
    });
    blocked.min_by_key(|(_, other)| (other.precedence, other.evidence_at)).map(|(i, _)| *i)
}

/// The end of another rank, if the transport reported it.
fn broke_communication(others: &[Other<'_>], fact: ProcessFact) -> Option<usize> {
    if !fact.from_communication {
        return None;
    }
    let first = others
        .iter()
        .filter_map(|(i, other)| Some((*i, other.fact?)))
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
    let left =
        others.iter().find(|(_, other)| other.fact.is_none() && other.evidence_at <= fact.at);
    left.filter(|(_, other)| other.precedence < Precedence::Settings).map(|(i, _)| *i)
}

/// The draft after which the launcher or a user ended the remaining ranks.
fn ended_job(others: &[Other<'_>], fact: ProcessFact) -> Option<usize> {
    let grace = match fact.signal {
        Some(libc_signal::TERM | libc_signal::INT | libc_signal::HUP | libc_signal::QUIT) => {
            Duration::ZERO
        }
        Some(libc_signal::KILL) => GRACE,
        _ => return None,
    };
    let earlier = others.iter().filter(|(_, other)| {
        other.precedence < Precedence::Settings
            && begin(other).plus(grace) <= fact.at
            && other.fact.is_none_or(|f| f.signal != fact.signal || f.at < fact.at)
    });
    earlier.min_by_key(|(_, other)| (other.precedence, other.evidence_at)).map(|(i, _)| *i)
}

/// Whether the other finding was caused by this fact.
fn is_caused_by(other: &Draft, fact: ProcessFact, draft: &Draft) -> bool {
    other.fact.is_some_and(|theirs| draft.victims.contains(&theirs.rank) && fact.at <= theirs.at)
}

/// Time at which the finding began to affect the job.
fn begin(draft: &Draft) -> Timestamp {
    draft.blocked_at.map_or(draft.evidence_at, |at| at.min(draft.evidence_at))
}

/// Merges findings of one event, such as one exception on every rank, or a launcher that ends 511
/// ranks.
fn merge(found: Vec<Draft>) -> Vec<Draft> {
    let mut merged: Vec<Merged> = Vec::new();
    let mut known: BTreeMap<EventKey, usize> = BTreeMap::new();
    for draft in found {
        let key = EventKey::of(&draft);
        if let Some(&twin) = key.as_ref().and_then(|key| known.get(key)) {
            absorb(&mut merged[twin], draft);
            continue;
        }
        known.extend(key.map(|key| (key, merged.len())));
        merged.push(Merged { first: draft.summary.clone(), draft });
    }
    merged.into_iter().map(|it| it.draft).collect()
}

/// A finding with those of the same event.
struct Merged {
    draft: Draft,
    /// Summary of the first of them.
    first: String,
}

/// What findings of one event have in common: a cause, or else a text and a line.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct EventKey {
    code: &'static str,
    attempt: Attempt,
    caused_by: Option<Key>,
    event: Option<(String, String)>,
}

impl EventKey {
    /// `None`: no other finding is of the same event.
    fn of(draft: &Draft) -> Option<Self> {
        let caused_by = draft.caused_by.clone();
        let event = match &caused_by {
            Some(_) => None,
            None => Some(without_differences(draft.event.as_deref()?)),
        };
        Some(Self { code: draft.code.code, attempt: draft.attempt, caused_by, event })
    }
}

/// Whether two events differ at most in numbers, such as ports, process ids and addresses, and
/// happened at one line.
fn is_alike(a: Option<&str>, b: Option<&str>) -> bool {
    let (Some(a), Some(b)) = (a, b) else { return false };
    a == b || without_differences(a) == without_differences(b)
}

/// The text of an event without its numbers, and its line.
fn without_differences(event: &str) -> (String, String) {
    let (text, at) = event.rsplit_once(" at ").unwrap_or((event, ""));
    (without_numbers(text), at.to_owned())
}

/// The words of a text, each with the characters that separate it from the next.
fn words(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let words = text.split_inclusive(|c: char| !c.is_ascii_alphanumeric());
    words.map(|word| {
        let end = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).len();
        word.split_at(end)
    })
}

/// A text with "#" in place of each number that is not part of a word.
fn without_numbers(text: &str) -> String {
    let is_number = |word: &str| {
        let digits = word.strip_prefix("0x").unwrap_or(word);
        let is_hex = word.starts_with(|c: char| c.is_ascii_digit())
            && digits.chars().all(|c| c.is_ascii_hexdigit());
        is_hex || word == ANY
    };
    let shown =
        words(text).map(|(word, separator)| [if is_number(word) { "#" } else { word }, separator]);
    shown.flatten().collect()
}

/// What stands in merged events for numbers that differ.
const ANY: &str = "N";

/// Two events that differ in numbers alone, with [`ANY`] in place of these.
fn shared(a: &str, b: &str) -> String {
    let pairs = words(a).zip(words(b));
    let shared = pairs.map(|(one, other)| [if one == other { one.0 } else { ANY }, one.1]);
    shared.flatten().collect()
}

fn absorb(merged: &mut Merged, other: Draft) {
    let into = &mut merged.draft;
    // It names the first rank alone.
    into.mistake = None;
    into.root.extend(other.root);
    into.root.sort_unstable();
    into.root.dedup();
    into.add_victims(other.victims);
    let known: Vec<u32> = into.per_rank.iter().map(|call| call.rank).collect();
    into.per_rank.extend(other.per_rank.into_iter().filter(|call| !known.contains(&call.rank)));
    into.root_confidence = into.root_confidence.min(other.root_confidence);
    // A certificate of the first fact does not prove the others.
    if into.certificate.is_some() && other.certificate.is_none() {
        into.confidence = into.confidence.min(Confidence::Supported);
        into.certificate = None;
    }
    match (&into.event, &other.event) {
        (Some(event), Some(theirs)) if is_alike(Some(event), Some(theirs)) => {
            let event = shared(event, theirs);
            into.summary = format!("{} {event}", Ranks(&into.root));
            into.event = Some(event);
            merged.first.clone_from(&into.summary);
        }
        _ => {
            let are = Ranks(&into.root).with("is", "are");
            into.summary = format!("{are} affected; first: {}", merged.first);
            into.event = None;
        }
    }
    into.evidence_at = into.evidence_at.max(other.evidence_at);
}
