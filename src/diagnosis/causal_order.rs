//! The causal order of findings: which is initiating, and which followed.
//!
//! Each cause has one initiating finding. A finding is a cascade if the table in `known_causes` or its
//! rule names its cause ([`Draft::follows`]). A fact about the process of a rank is also one if the
//! rank was already blocked by something else, if the transport reports the failure of a peer, or
//! if the launcher ended the rest of the job. All other findings are initiating.
//!
//! Findings of different attempts are independent of each other. Those of the last attempt come
//! first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use ddp_doctor_proto::catalogue;
use ddp_doctor_proto::report::{Confidence, Effect, Severity, Timestamp};

use crate::common_root;
use crate::findings::draft::{Draft, Key, Precedence, ProcessFact, ReportPolicy};
use crate::findings::gaps::evidence_incomplete;
use crate::known_causes;
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
    known_causes::link(situation, &mut found);
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
    let known = Causes::new(&found, &worlds);
    let mut causes: Vec<Option<usize>> = (0..found.len()).map(|at| known.cause(at)).collect();
    break_circles(&found, &mut causes);
    let keys: Vec<Key> = found.iter().map(|it| it.key.clone()).collect();
    let is_current = |it: &Draft| !situation.attempts.is_over(it.attempt);
    let is_open = !found.iter().any(|it| is_current(it) && has_effect(it));
    let severities: Vec<Severity> =
        (0..found.len()).map(|at| severity(&found, &causes, at)).collect();
    for ((it, cause), severity) in found.iter_mut().zip(causes).zip(severities) {
        it.severity = severity;
        if it.policy == ReportPolicy::LeavesOpen && is_open {
            it.severity = Severity::Error;
        }
        if let Some(cause) = cause {
            it.caused_by = Some(keys[cause].clone());
            // Its cause is what needs advice.
            it.next.clear();
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
    let gaps = found.iter_mut().filter(|it| it.policy == ReportPolicy::LeavesOpen);
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

/// The findings that may be causes of others. Thousands of ranks may end, each with a finding of its own, so those
/// that may have caused one of them are looked up.
struct Causes<'a> {
    found: &'a [Draft],
    worlds: &'a [Option<&'a World>],
    /// The first finding of a key and an attempt.
    by_key: BTreeMap<(&'a Key, Attempt), usize>,
    /// Findings that a rank was drawn into.
    of_rank: HashMap<u32, Vec<usize>>,
    /// Findings about processes, by time: of their ends, and those which the transport of a peer reported.
    ends: [Vec<(ProcessFact, usize)>; 2],
    /// Findings that are not about a process.
    of_no_process: Vec<usize>,
    /// All findings, by precedence and time.
    in_order: Vec<usize>,
}

impl<'a> Causes<'a> {
    fn new(found: &'a [Draft], worlds: &'a [Option<&'a World>]) -> Self {
        let mut by_key = BTreeMap::new();
        let mut of_rank: HashMap<u32, Vec<usize>> = HashMap::new();
        let mut ends = [Vec::new(), Vec::new()];
        let mut of_no_process = Vec::new();
        for (at, draft) in found.iter().enumerate() {
            by_key.entry((&draft.key, draft.attempt)).or_insert(at);
            let is_about_calls = draft.place.is_some() || draft.precedence == Precedence::Start;
            let blocked = draft.root.iter().filter(|_| draft.fact.is_none() && is_about_calls);
            let drawn_in: BTreeSet<u32> = draft.victims.iter().chain(blocked).copied().collect();
            drawn_in.into_iter().for_each(|rank| of_rank.entry(rank).or_default().push(at));
            match draft.fact {
                Some(fact) => ends[usize::from(fact.from_communication)].push((fact, at)),
                None => of_no_process.push(at),
            }
        }
        ends.iter_mut().for_each(|ends| ends.sort_by_key(|(fact, _)| fact.at));
        let mut in_order: Vec<usize> = (0..found.len()).collect();
        in_order.sort_by_key(|&at| (found[at].precedence, found[at].evidence_at));
        Self { found, worlds, by_key, of_rank, ends, of_no_process, in_order }
    }

    /// The finding that this one followed from, if any.
    fn cause(&self, at: usize) -> Option<usize> {
        let draft = &self.found[at];
        let parent = draft.follows.as_ref();
        if let Some(parent) = parent.and_then(|key| self.by_key.get(&(key, draft.attempt))) {
            return Some(*parent);
        }
        let fact = draft.fact?;
        self.blocked_earlier(at, fact)
            .or_else(|| self.broke_communication(at, fact))
            .or_else(|| self.ended_job(at, fact))
    }

    /// Whether a finding may be the cause of another one: it is of the same attempt and world, neither followed from
    /// it nor is the same event, and is not a hint.
    fn may_cause(&self, other: usize, at: usize) -> bool {
        let (it, draft) = (&self.found[other], &self.found[at]);
        let is_same = it.follows.as_ref() == Some(&draft.key)
            || (draft.event.is_some() && it.event == draft.event);
        let worlds = self.worlds[other].zip(self.worlds[at]);
        let is_elsewhere = it.attempt != draft.attempt || worlds.is_some_and(|(a, b)| a != b);
        other != at && it.precedence != Precedence::Hint && !is_elsewhere && !is_same
    }

    /// The finding that already blocked the rank for another reason.
    fn blocked_earlier(&self, at: usize, fact: ProcessFact) -> Option<usize> {
        let drawn_in = self.of_rank.get(&fact.rank)?.iter().copied();
        let blocked = drawn_in.filter(|&other| {
            let it = &self.found[other];
            it.blocked_at.unwrap_or(it.evidence_at) <= fact.at
                && self.may_cause(other, at)
                && !is_caused_by(it, fact, &self.found[at])
        });
        blocked.min_by_key(|&other| (self.found[other].precedence, self.found[other].evidence_at))
    }

    /// The end of another rank, if the transport reported it, or a text explains that of the other one alone.
    fn broke_communication(&self, at: usize, fact: ProcessFact) -> Option<usize> {
        if fact.is_unexplained && fact.signal.is_none() {
            let mut explained = self.ends[0].iter().filter(|(other, _)| !other.is_unexplained);
            let first = explained.find(|(other, place)| {
                other.at <= fact.at.plus(ECHO) && self.may_cause(*place, at)
            });
            return first.map(|(_, place)| *place);
        }
        if !fact.from_communication {
            return None;
        }
        let [ended, reported] = &self.ends;
        let ended = ended.iter().take_while(|(other, _)| other.at <= fact.at.plus(ECHO));
        let reported = reported.iter().take_while(|(other, _)| other.at < fact.at);
        let first = ended
            .chain(reported)
            .find(|(other, place)| other.rank != fact.rank && self.may_cause(*place, at));
        if let Some((_, place)) = first {
            return Some(*place);
        }
        // The peer may also have left in order, after all its calls.
        let mut others = self.of_no_process.iter().copied();
        let left = others
            .find(|&other| self.found[other].evidence_at <= fact.at && self.may_cause(other, at));
        left.filter(|&other| self.found[other].precedence < Precedence::Settings)
    }

    /// The finding after which the launcher or a user ended the remaining ranks.
    fn ended_job(&self, at: usize, fact: ProcessFact) -> Option<usize> {
        let grace = match fact.signal {
            Some(libc_signal::TERM | libc_signal::INT | libc_signal::HUP | libc_signal::QUIT) => {
                Duration::ZERO
            }
            Some(libc_signal::KILL) => GRACE,
            _ => return None,
        };
        let mut others = self.in_order.iter().copied();
        others.find(|&other| {
            let it = &self.found[other];
            it.precedence < Precedence::Settings
                && begin(it).plus(grace) <= fact.at
                && it.fact.is_none_or(|f| f.signal != fact.signal || f.at < fact.at)
                && self.may_cause(other, at)
        })
    }
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
    let places = Places::new(&found);
    for draft in found {
        let key = EventKey::new(&draft).map(|key| places.complete(key));
        if let Some(&twin) = key.as_ref().and_then(|key| known.get(key)) {
            merged[twin].others.push(draft);
            continue;
        }
        known.extend(key.map(|key| (key, merged.len())));
        merged.push(Merged { first: draft, others: Vec::new() });
    }
    merged.into_iter().map(Merged::into_draft).collect()
}

/// Findings of one event.
struct Merged {
    first: Draft,
    others: Vec<Draft>,
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
    fn new(draft: &Draft) -> Option<Self> {
        let caused_by = draft.caused_by.clone();
        let event = match &caused_by {
            Some(_) => None,
            None => Some(without_differences(draft.event.as_deref()?)),
        };
        Some(Self { code: draft.code.code, attempt: draft.attempt, caused_by, event })
    }
}

/// The lines at which events with one text happened.
struct Places(BTreeMap<EventKey, BTreeSet<String>>);

impl Places {
    fn new(found: &[Draft]) -> Self {
        let mut places: BTreeMap<EventKey, BTreeSet<String>> = BTreeMap::new();
        for mut key in found.iter().filter_map(EventKey::new) {
            let line = key.event.as_mut().map(|event| std::mem::take(&mut event.1));
            let lines = places.entry(key).or_default();
            lines.extend(line.filter(|it| !it.is_empty()));
        }
        Self(places)
    }

    /// Adds the line of the other events to one whose line is unknown, if they have one line.
    fn complete(&self, mut key: EventKey) -> EventKey {
        let only = self.0.get(&key).filter(|lines| lines.len() == 1).and_then(|it| it.first());
        if let (Some((_, line)), Some(only)) = (key.event.as_mut(), only) {
            line.clone_from(only);
        }
        key
    }
}

/// Whether two events differ at most in numbers, such as ports, process ids and addresses, and
/// happened at one line as far as their lines are known.
fn is_alike(a: &str, b: &str) -> bool {
    let ((text, line), (other, others)) = (without_differences(a), without_differences(b));
    text == other && (line == others || line.is_empty() || others.is_empty())
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

/// Two events that differ in numbers alone, with [`ANY`] in place of these, and without a line that one of them lacks.
fn shared(a: &str, b: &str) -> String {
    let pairs = words(a).zip(words(b));
    let shared = pairs.map(|(one, other)| [if one.0 == other.0 { one.0 } else { ANY }, one.1]);
    shared.flatten().collect::<String>().trim_end().to_owned()
}

impl Merged {
    fn into_draft(self) -> Draft {
        let Self { first: mut into, others } = self;
        if others.is_empty() {
            return into;
        }
        // It names the first rank alone.
        (into.mistake, into.suspect) = (None, None);
        let mut known: HashSet<u32> = into.per_rank.iter().map(|call| call.rank).collect();
        let mut victims = BTreeSet::new();
        let mut first = into.summary.clone();
        let mut alike = None;
        for other in others {
            into.root.extend(other.root);
            victims.extend(other.victims);
            into.per_rank.extend(other.per_rank.into_iter().filter(|call| known.insert(call.rank)));
            into.root_confidence = into.root_confidence.min(other.root_confidence);
            // A certificate of the first fact does not prove the others.
            if into.certificate.is_some() && other.certificate.is_none() {
                into.confidence = into.confidence.min(Confidence::Supported);
                into.certificate = None;
            }
            into.event = match (&into.event, &other.event) {
                (Some(event), Some(theirs)) if is_alike(event, theirs) => {
                    let event = shared(event, theirs);
                    alike = Some((into.root.len(), event.clone()));
                    Some(event)
                }
                _ => None,
            };
            into.evidence_at = into.evidence_at.max(other.evidence_at);
        }
        if let Some((ranks, event)) = alike {
            first = format!("{} {event}", Ranks(&ascending(&into.root[..ranks])));
        }
        into.root = ascending(&into.root);
        into.add_victims(victims);
        into.summary = match into.event {
            Some(_) => first,
            None => format!("{} affected; first: {first}", Ranks(&into.root).with("is", "are")),
        };
        into
    }
}

/// The ranks in ascending order, each once.
fn ascending(ranks: &[u32]) -> Vec<u32> {
    let ranks: BTreeSet<u32> = ranks.iter().copied().collect();
    ranks.into_iter().collect()
}
