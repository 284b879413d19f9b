//! Lines that the program reaches in the order in which something completes: results of tasks, futures or
//! threads. The timing of each rank decides on that order.

use ddp_doctor_diagnosis::source::python::{at_depth_zero, end_of_argument, is_of_word};
use ddp_doctor_proto::{GuardForm, GuardSubject};

use super::expression::{header_test, value_of};
use super::{Guard, Head, Source, subject};

/// Functions that return results in the order in which they are complete.
const RETURN_AS_COMPLETED: [&str; 5] =
    ["as_completed", "imap_unordered", "asyncio.wait", "futures.wait", "ray.wait"];
/// Function that runs its arguments beside each other.
const RUN_SIDE_BY_SIDE: &str = "asyncio.gather";
/// Functions that start a function, or run it when something is complete: several of these run in any order.
const START_ONE: [&str; 8] = [
    "create_task",
    "ensure_future",
    "start_soon",
    "to_thread",
    "run_in_executor",
    "submit",
    "Thread",
    "add_done_callback",
];
/// Maximum number of assignments that are followed.
const MAX_ASSIGNMENTS: usize = 2;

impl Source {
    /// What completes in the order in which the line at `at` is reached.
    pub(super) fn completion(&self, at: usize) -> Option<Guard> {
        let loops = self.headers(at).filter(|&it| self.head(it) == Head::For);
        let in_loop = loops.into_iter().find_map(|header| {
            let (_, over) = header_test(&self.lines[header].text)?.0.split_once(" in ")?;
            if returns_as_completed(over) {
                return Some((header, over));
            }
            self.completed_before(over, header, MAX_ASSIGNMENTS)
        });
        let found = in_loop
            .or_else(|| self.completed_before(value_of(&self.lines[at].text), at, MAX_ASSIGNMENTS))
            .or_else(|| self.start_of(at));
        let (line, text) = found?;
        let guard = self.guard(self.lines[line].first, text, GuardForm::Completes);
        Some(Guard { subject: GuardSubject::Other, ..guard })
    }

    /// The assignment of a completed result to a variable of an expression, and the call that returned it.
    fn completed_before<'a>(
        &'a self,
        text: &str,
        at: usize,
        follow: usize,
    ) -> Option<(usize, &'a str)> {
        let scope = self.scope(at);
        let is_assigned = |i: usize, name: &str| {
            self.scope(i) == scope && targets(&self.lines[i].text).any(|it| it == name)
        };
        subject::names(text).find_map(|name| {
            let assigned = (0..at).rev().find(|&i| is_assigned(i, name))?;
            let value = value_of(&self.lines[assigned].text);
            if returns_as_completed(value) {
                return Some((assigned, value.strip_prefix("await ").unwrap_or(value)));
            }
            let follow = follow.checked_sub(1)?;
            self.completed_before(value, assigned, follow)
        })
    }

    /// The statement that starts the function around a line several times, or beside others. A coroutine runs in
    /// the order in which it was started until it waits for the first time.
    fn start_of(&self, at: usize) -> Option<(usize, &str)> {
        let is_callback = |text: &str| calls(text, "add_done_callback");
        if is_callback(&self.lines[at].text) && self.is_repeated(at) {
            return Some((at, value_of(&self.lines[at].text)));
        }
        let function = self.scope(at).filter(|&it| !self.lines[it].text.starts_with("class"))?;
        let header = &self.lines[function].text;
        if header.starts_with("async ") {
            let mut before = self.lines[function + 1..at].iter();
            before.find(|it| it.text.contains("await ") || it.text.starts_with("async "))?;
        }
        let (_, named) = header.split_once("def ")?;
        let name = named.split(|c: char| !is_of_word(c)).next()?;
        (0..self.lines.len()).find_map(|i| {
            let text = self.lines[i].text.as_str();
            let uses = |it: &str| subject::words(it).any(|word| word == name);
            if i == function || !uses(text) {
                return None;
            }
            let is_side_by_side = calls(text, RUN_SIDE_BY_SIDE)
                && (is_comprehension(text) || has_several(text, RUN_SIDE_BY_SIDE));
            let is_one_of_several = START_ONE.iter().any(|it| calls(text, it))
                && (self.is_repeated(i) || self.is_started_with_others(i));
            (is_side_by_side || is_one_of_several).then(|| (i, value_of(text)))
        })
    }

    /// Whether a statement is in a loop of its function, or contains one.
    fn is_repeated(&self, at: usize) -> bool {
        let mut around = self.headers(at);
        is_comprehension(&self.lines[at].text)
            || around.any(|it| matches!(self.head(it), Head::For | Head::While))
    }

    /// Whether another statement of the same function starts something in the same way.
    fn is_started_with_others(&self, at: usize) -> bool {
        let text = self.lines[at].text.as_str();
        let Some(way) = START_ONE.iter().find(|it| calls(text, it)) else { return false };
        let scope = self.scope(at);
        let mut others = (0..self.lines.len()).filter(|&i| i != at && self.scope(i) == scope);
        others.any(|i| calls(&self.lines[i].text, way))
    }
}

/// Whether an expression has the results of a function in the order in which they are complete.
fn returns_as_completed(text: &str) -> bool {
    RETURN_AS_COMPLETED.iter().any(|it| calls(text, it))
}

/// Whether a statement calls a function of this name, with its module if that is given.
fn calls(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        text[at + name.len()..].starts_with('(') && !text[..at].ends_with(is_of_word)
    })
}

/// The variables to which a statement assigns.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let end = at_depth_zero(text, |rest| rest.starts_with('=') && !rest.starts_with("=="));
    let left = end.map_or("", |end| &text[..end]);
    left.split(',').map(|it| it.trim_matches(['(', ')', ' ']))
}

/// Whether a statement contains a comprehension.
fn is_comprehension(text: &str) -> bool {
    text.contains(" for ")
}

/// Whether a call of this function in a statement has several arguments that are calls.
fn has_several(text: &str, function: &str) -> bool {
    let arguments = text.split_once(function).and_then(|(_, rest)| rest.strip_prefix('('));
    let mut rest = arguments;
    let all = std::iter::from_fn(|| {
        let (argument, after) = rest?.split_at(end_of_argument(rest?));
        rest = after.strip_prefix(',');
        Some(argument)
    });
    all.filter(|argument| argument.contains('(')).count() > 1
}
