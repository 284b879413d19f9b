//! The headline of a finding: the mistake, and what the other ranks do because of it.

use std::borrow::Borrow;
use std::collections::HashSet;

use ddp_doctor_proto::report::{CallState, Effect, MAX_HEADLINE_CHARS, RankCall, Where};

use crate::findings::draft::Draft;
use crate::input::event::Call;
use crate::model::Join;
use crate::situation::Situation;
use crate::source::cause::{Mistake, Suspect};
use crate::words::{self, Ranks, number};

/// The headline of a draft: its mistake with the consequence, as far as they fit, or else its summary with the statement
/// that may be the mistake.
pub(super) fn write(situation: &Situation<'_>, draft: &Draft) -> String {
    let mistake = draft.mistake.as_ref();
    let fact = mistake.map_or(&draft.summary, |it| &it.clause);
    if let Some(suspect) = &draft.suspect {
        return with_suspect(fact, suspect, &draft.per_rank);
    }
    let consequences = mistake.map(|it| consequences(situation, draft, it)).unwrap_or_default();
    let with_them = consequences.into_iter().map(|it| format!("{fact}; {it}"));
    let mut wholes = with_them.chain(wordings(fact, &draft.per_rank));
    wholes.find(|it| fits(it)).unwrap_or_else(|| shortened(fact, MAX_HEADLINE_CHARS))
}

/// The fact, followed by the statement that may be the mistake.
fn with_suspect(fact: &str, suspect: &Suspect, calls: &[RankCall]) -> String {
    let after = |start: &str, text: &str| {
        format!("{start}; suspected: {text}{}", beside(Some(&suspect.line), start))
    };
    let [whole, cut] = &suspect.texts;
    let mut wholes =
        wordings(fact, calls).into_iter().flat_map(|it| [after(&it, whole), after(&it, cut)]);
    wholes.find(|it| fits(it)).unwrap_or_else(|| {
        let room = MAX_HEADLINE_CHARS.saturating_sub(after("", cut).chars().count());
        after(&shortened(fact, room), cut)
    })
}

/// A fact in words that become fewer: as it is, with each file named once, then without functions of libraries, and
/// without the lines of the calls, which the calls themselves have.
fn wordings(fact: &str, calls: &[RankCall]) -> [String; 4] {
    let places: Vec<&Where> = calls.iter().filter_map(|it| it.place.as_ref()).collect();
    let with_files_once = |rest_of: fn(&str) -> &str| {
        let mut named = HashSet::new();
        with_places(fact, &places, |place, rest| {
            let line = if named.insert(&place.file) {
                words::source_line(place)
            } else {
                format!("line {}", place.line)
            };
            format!(" at {line}{}", rest_of(rest))
        })
    };
    [
        fact.to_owned(),
        with_files_once(|rest| rest),
        with_files_once(after_function),
        with_places(fact, &places, |_, rest| after_function(rest).to_owned()),
    ]
}

/// The text with other words for " at FILE:LINE" and what follows it, wherever it names one of the places.
fn with_places<'a>(
    text: &str,
    places: &[&'a Where],
    mut other: impl FnMut(&'a Where, &str) -> String,
) -> String {
    let mut parts = text.split(" at ");
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let place = places.iter().find_map(|&place| {
            let rest = part.strip_prefix(&*words::source_line(place))?;
            let is_longer_number = rest.starts_with(|it: char| it.is_ascii_digit());
            (!is_longer_number).then_some((place, rest))
        });
        result.push_str(&match place {
            Some((place, rest)) => other(place, rest),
            None => format!(" at {part}"),
        });
    }
    result
}

/// What follows the function of a library at the start of the text: " of rank 0" of " › Trainer.fit of rank 0".
fn after_function(text: &str) -> &str {
    let Some(function) = text.strip_prefix(" › ") else { return text };
    &function[function.find([' ', ',', ':', ';']).unwrap_or(function.len())..]
}

fn fits(text: &str) -> bool {
    text.chars().count() <= MAX_HEADLINE_CHARS
}

/// The text, or as many of its clauses as fit into this many characters.
fn shortened(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    // The ellipsis takes one character.
    let end = text.char_indices().nth(max - 1).map_or(text.len(), |it| it.0);
    let kept = &text[..end];
    let clause = kept
        .rfind([';', ':', ','])
        // A clause that is much shorter states too little.
        .filter(|&at| at > max / 2);
    let words = || kept.rfind(' ').filter(|&at| at > max / 2);
    let mut kept = &kept[..clause.or_else(words).unwrap_or(end)];
    while let Some(shorter) =
        [" at", " and", " of", " in", " with", " for"].iter().find_map(|it| kept.strip_suffix(it))
    {
        kept = shorter;
    }
    format!("{kept}…")
}

/// What the ranks that did not make the mistake do, the longest wording first: "rank 1 waits for its
/// gradients at train.py:9".
fn consequences(situation: &Situation<'_>, draft: &Draft, mistake: &Mistake) -> Vec<String> {
    // Wrong gradients make no rank wait.
    if mistake.ranks.is_empty() || draft.effect == Effect::Corrupts {
        return Vec::new();
    }
    let join = draft.place.and_then(|(group, seq)| situation.join(group, seq));
    let call_of = |rank: u32| Some(&*join?.calls.get(&rank)?.call);
    let own = mistake.ranks.iter().find_map(|&rank| call_of(rank));
    let others = draft.per_rank.iter().filter(|it| !mistake.ranks.contains(&it.rank));
    if let Some(own) = own {
        let theirs = others.clone().find_map(|it| Some((it.rank, call_of(it.rank)?)));
        return match theirs {
            None => waits_for_others(situation, draft, mistake).into_iter().collect(),
            Some((rank, theirs)) if differs(join, own, theirs) => {
                let its = number(&mistake.ranks, "its", "their");
                let at = beside(own.place.as_ref(), &mistake.clause);
                // After its own line, which can be in another file than the mistake.
                let there = beside(theirs.place.as_ref(), &format!("{}{at}", mistake.clause));
                let is_alike = |it: &RankCall| {
                    it.rank == rank
                        || call_of(it.rank)
                            .is_some_and(|it| it.op == theirs.op && it.place == theirs.place)
                };
                let alike: Vec<u32> = others.filter(|it| is_alike(it)).map(|it| it.rank).collect();
                let (op, peer) = (own.op, format!("{} of {}", named(theirs), Ranks(&alike)));
                vec![
                    format!("{its} {op}{at} is paired with {peer}{there}"),
                    format!(
                        "{its} {op} is paired with {peer}{}",
                        beside(theirs.place.as_ref(), &mistake.clause)
                    ),
                    format!("{its} {op} is paired with {peer}"),
                ]
            }
            Some(_) => Vec::new(),
        };
    }
    let is_waiting = |it: &&RankCall| it.state == CallState::Waiting;
    let first = others.clone().find(is_waiting).or_else(|| others.clone().next());
    let Some(first) = first.filter(|it| draft.victims.contains(&it.rank)) else {
        return Vec::new();
    };
    let is_alike = |it: &&RankCall| it.state == first.state && it.place == first.place;
    let waiting: Vec<u32> = others.filter(is_alike).map(|it| it.rank).collect();
    let wait = Ranks(&waiting).with("waits", "wait");
    let what = if call_of(first.rank).is_some_and(Call::is_bucket) {
        format!("for {} gradients", number(&mistake.ranks, "its", "their"))
    } else {
        let op = first.op.as_deref().map(|op| format!(" in {op}")).unwrap_or_default();
        format!("for {}{op}", number(&mistake.ranks, "it", "them"))
    };
    let at = beside(first.place.as_ref(), &mistake.clause);
    vec![format!("{wait} {what}{at}"), format!("{wait} {what}")]
}

/// Whether calls of two ranks that met were not meant for each other.
fn differs(join: Option<&Join>, one: &Call, other: &Call) -> bool {
    join.is_some_and(|join| join.mismatch.is_some()) || one.place != other.place
}

fn named(call: &Call) -> String {
    if call.is_bucket() { "the gradients".into() } else { call.op.to_string() }
}

/// The ranks with the mistake wait for the members of the group that have not made the call.
fn waits_for_others(situation: &Situation<'_>, draft: &Draft, mistake: &Mistake) -> Option<String> {
    let (group, seq) = draft.place?;
    let join = situation.join(group, seq)?;
    let has_called = |rank: &u32| join.calls.contains_key(rank);
    let is_member = |rank: &u32| situation.model.member(group, *rank).is_some();
    let mut others: Vec<u32> = [&draft.root[..], &draft.victims].concat();
    others.retain(|rank| is_member(rank) && !mistake.ranks.contains(rank) && !has_called(rank));
    others.sort_unstable();
    others.dedup();
    let waiting: Vec<u32> = mistake.ranks.iter().copied().filter(has_called).collect();
    let wait = if waiting == mistake.ranks {
        number(&waiting, "it waits", "they wait").to_owned()
    } else {
        Ranks(&waiting).with("waits", "wait")
    };
    (!others.is_empty()).then(|| format!("{wait} there for {}", Ranks(&others)))
}

/// " at train.py:9", without the file if the clause before names it, and empty if that names the line.
fn beside(place: Option<&(impl Borrow<Where> + ?Sized)>, clause: &str) -> String {
    let Some(place) = place.map(Borrow::borrow) else { return String::new() };
    let line = words::source_line(place);
    let file = line.split(':').next().unwrap_or(&line);
    let names_line = clause.match_indices(&line).any(|(at, _)| {
        let after = clause[at + line.len()..].chars().next();
        !after.is_some_and(|it| it.is_ascii_digit())
    });
    match names_line {
        true => String::new(),
        false if clause.contains(&format!("{file}:")) => format!(" at line {}", place.line),
        false => format!(" at {line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_summary_is_cut_between_clauses() {
        let start = "Ranks disagree on the root of call #1 of the default group: rank 0 calls broadcast at a.py:22";
        let long = format!("{start}, {}", "x".repeat(200));
        assert_eq!(shortened(&long, MAX_HEADLINE_CHARS), format!("{start}…"));
        assert_eq!(shortened("short: one", MAX_HEADLINE_CHARS), "short: one");
        assert_eq!(
            shortened(&"x".repeat(200), MAX_HEADLINE_CHARS).chars().count(),
            MAX_HEADLINE_CHARS
        );
    }

    #[test]
    fn long_fact_names_each_file_once_or_no_line() {
        let call = |rank, line| RankCall {
            rank,
            place: Some(Where { file: "/src/a_train.py".into(), line, ..Where::default() }),
            ..RankCall::default()
        };
        let fact = "all_reduce of rank 0 at a_train.py:9 is paired with barrier of rank 1 at a_train.py:91";
        let calls = [call(0, 9), call(1, 91)];
        let [_, once, _, without] = wordings(fact, &calls);
        assert_eq!(
            once,
            "all_reduce of rank 0 at a_train.py:9 is paired with barrier of rank 1 at line 91"
        );
        assert_eq!(without, "all_reduce of rank 0 is paired with barrier of rank 1");
        let in_library = "broadcast at a_train.py:9 › dispatch, barrier at a_train.py:91 › wait";
        let [_, once, without_functions, without] = wordings(in_library, &calls);
        assert_eq!(once, "broadcast at a_train.py:9 › dispatch, barrier at line 91 › wait");
        assert_eq!(without_functions, "broadcast at a_train.py:9, barrier at line 91");
        assert_eq!(without, "broadcast, barrier");
    }

    #[test]
    fn line_is_named_once() {
        let place = Where { file: "/src/train.py".into(), line: 9, ..Where::default() };
        let beside = |clause| beside(Some(&place), clause);
        assert_eq!(beside("rank 1 has ended"), " at train.py:9");
        assert_eq!(beside("rank 1 has ended after its call at train.py:9"), "");
        assert_eq!(beside("rank 1 has ended after its call at train.py:91"), " at line 9");
    }
}
