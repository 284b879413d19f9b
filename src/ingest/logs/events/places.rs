//! Where ranks were, if their stacks do not show that they wait.

use std::collections::BTreeMap;

use ddp_doctor_diagnosis::event::NoteText;
use ddp_doctor_diagnosis::stacks;
use ddp_doctor_diagnosis::words;
use ddp_doctor_proto::report::Where;

use super::were;
use crate::logs::job::{LoggedJob, Topic, in_collective, place_of};

/// Ranks at one place.
struct Group {
    text: String,
    ranks: Vec<u32>,
    /// Lines of the program, outermost first.
    lines: Vec<Where>,
    /// They are in a call of PyTorch that may wait for other ranks.
    is_inside: bool,
}

/// Adds a note on where ranks were.
pub(super) fn describe(job: &mut LoggedJob) {
    let groups = groups(job);
    if groups.is_empty() {
        return;
    }
    let places: Vec<String> = groups.iter().map(|it| place(it, &groups)).collect();
    let next = match odd(&groups) {
        Some(ranks) => format!(": if they are still there, find out why {} there", were(ranks)),
        None => String::new(),
    };
    let text = format!("{}; these stacks do not show whether ranks wait", places.join("; "));
    let advice = format!(
        "Add a second dump of every rank, a minute later, with the time before each{next}."
    );
    job.note(Topic::Waits, NoteText::new(text, advice));
}

/// Ranks by their places, the largest group first.
fn groups(job: &LoggedJob) -> Vec<Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for (&number, rank) in &job.ranks {
        let Some(last) = rank.stacks.last().filter(|_| rank.ended.is_none()) else { continue };
        let text = place_of(last);
        let group = groups.entry(text.clone()).or_insert_with(|| Group {
            text,
            ranks: Vec::new(),
            lines: stacks::lines_of(last).into_iter().rev().cloned().collect(),
            is_inside: in_collective(last).is_some(),
        });
        group.ranks.push(number);
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by_key(|it| (usize::MAX - it.ranks.len(), it.ranks[0]));
    groups
}

/// "rank 2 was at data.py:77, called at train.py:118", where the line of the caller is the outermost that other
/// ranks are not at.
fn place(group: &Group, all: &[Group]) -> String {
    let is_shared = |line: &&Where| all.iter().all(|it| it.lines.contains(line));
    let caller = group
        .lines
        .iter()
        .find(|it| !is_shared(it))
        .filter(|it| all.len() > 1 && Some(*it) != group.lines.last())
        .map_or_else(String::new, |it| format!(", called at {}", words::line(it)));
    format!("{} {}{caller}", were(&group.ranks), group.text)
}

/// The ranks that keep the others waiting if all of them wait: the only ones outside of PyTorch, or those that made
/// another call than most.
fn odd(groups: &[Group]) -> Option<&[u32]> {
    let outside: Vec<&Group> = groups.iter().filter(|it| !it.is_inside).collect();
    match (groups, &outside[..]) {
        ([_, _, ..], [only]) => Some(&only.ranks),
        ([most, other], []) if other.ranks.len() < most.ranks.len() => Some(&other.ranks),
        _ => None,
    }
}
