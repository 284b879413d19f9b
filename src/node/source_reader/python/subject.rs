//! Determines the subject of a test by the names in it.

use std::collections::{HashMap, HashSet};

use ddp_doctor_diagnosis::source::python::{at_depth_zero, end_of_argument, is_of_word};
use ddp_doctor_proto::GuardSubject;

use super::lines::Line;

/// Maximum number of names of a file.
const MAX_NAMES: usize = 4096;
/// Maximum number of passes that follow names to other names.
const ROUNDS: usize = 4;

/// Names that refer to a rank, besides those with the part "rank".
const RANK: [&str; 25] = [
    "is_main_process",
    "is_local_main_process",
    "is_main",
    "main_process",
    "is_master",
    "is_master_process",
    "master_process",
    "is_primary",
    "is_global_zero",
    "is_world_process_zero",
    "is_local_process_zero",
    "is_chief",
    "is_root_process",
    "is_writer",
    "process_index",
    "local_process_index",
    "rank0",
    "rank_zero_only",
    "is_rank0",
    "is_last_process",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "local_procid",
    "procid",
];
/// Attributes of a trainer that are true on one rank alone. Functions of these names decide on more.
const RANK_ATTRIBUTES: [&str; 2] = ["should_save", "should_log"];
/// Functions whose result has the subject of their arguments, and words before a bracket that are not functions.
const CONVERSIONS: [&str; 11] =
    ["int", "bool", "get", "getenv", "getattr", "not", "and", "or", "in", "if", "else"];
/// Parts of names with "rank" that do not refer to a rank.
const NO_RANK: [&str; 11] = [
    "matrix", "lora", "low", "tensor", "loss", "ranking", "score", "metric", "max", "reduced",
    "full",
];
const FINITE: [&str; 8] =
    ["isnan", "isfinite", "isinf", "nan", "inf", "is_nan", "found_inf", "nan_to_num"];
const DATA: [&str; 31] = [
    "item",
    "loss",
    "losses",
    "batch",
    "inputs",
    "input",
    "targets",
    "target",
    "labels",
    "label",
    "mask",
    "tokens",
    "numel",
    "logits",
    "outputs",
    "output",
    "grad",
    "grads",
    "norm",
    "images",
    "image",
    "any",
    "sample",
    "samples",
    "input_ids",
    "seq_len",
    "length",
    "lengths",
    "sum",
    "data",
    "positives",
];
/// Functions that read a clock.
const CLOCK: [&str; 6] = ["time", "monotonic", "perf_counter", "datetime", "now", "process_time"];
/// A name for what only this rank has.
const LOCAL: &str = "local";
const STATE: [&str; 35] = [
    "path",
    "exists",
    "isfile",
    "isdir",
    "is_file",
    "is_dir",
    "glob",
    "listdir",
    "stat",
    "getmtime",
    "random",
    "rand",
    "randint",
    "choice",
    "uniform",
    "seed",
    "config",
    "cfg",
    "args",
    "opt",
    "hparams",
    "environ",
    "getenv",
    "hostname",
    "gethostname",
    "node",
    "platform",
    "patience",
    "early_stop",
    "early_stopping",
    "stop",
    "should_stop",
    "best",
    "cache",
    "cached",
];

/// Subjects of the names in a file.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: HashMap<String, GuardSubject>,
    /// Variables with the result of a test on such a subject.
    results: HashSet<String>,
}

impl Names {
    /// Follows the simple assignments in the lines of a file, and functions that return one value.
    pub(super) fn new(lines: &[Line]) -> Self {
        let mut names = Self::default();
        let returned: Vec<(&str, &str, &str)> =
            (0..lines.len()).filter_map(|at| returned(&lines[at..])).collect();
        for _ in 0..ROUNDS {
            let before = names.known.len();
            for statement in lines.iter().flat_map(|line| parts(&line.text, ';')) {
                names.assigned(statement);
            }
            for (name, parameters, value) in &returned {
                names.set(name, value);
                // Without an argument, a method decides on what its object keeps.
                if let Some(subject @ GuardSubject::Data) = names.known.get_mut(*name)
                    && *parameters == "self"
                {
                    *subject = GuardSubject::State;
                }
            }
            if names.known.len() == before {
                break;
            }
        }
        names
    }

    fn assigned(&mut self, line: &str) {
        let Some((left, right)) = line.split_once(" = ").or_else(|| line.split_once('=')) else {
            return;
        };
        if right.starts_with('=') {
            return;
        }
        let (left, right) = (parts(left, ','), parts(right, ','));
        let pairs: Vec<(&str, &str)> = if left.len() == right.len() {
            left.into_iter().zip(right).collect()
        } else {
            Vec::new()
        };
        for (name, value) in pairs {
            let name = name.split(':').next().unwrap_or(name).trim();
            self.set(name.rsplit('.').next().unwrap_or(name), value);
        }
    }

    /// Takes over the subject of the value that a name stands for.
    fn set(&mut self, name: &str, value: &str) {
        let is_name = !name.is_empty() && name.chars().all(is_of_word);
        // A value computed from a subject, such as a device or a seed, is not that subject. A duration is computed
        // from the clock.
        if !is_name
            || !is_test(value) && !reads_clock(value)
            || self.known.contains_key(name)
            || self.known.len() >= MAX_NAMES
        {
            return;
        }
        let subject = if reads_clock(value) { GuardSubject::Clock } else { self.subject(value) };
        // What is computed for a rank, such as its part of the data, is not the rank.
        let is_computed = || self.subject(&without_arguments(value)) != GuardSubject::Rank;
        if subject == GuardSubject::Other || subject == GuardSubject::Rank && is_computed() {
            return;
        }
        if super::expression::is_comparison(value) {
            self.results.insert(name.to_owned());
        }
        self.known.insert(name.to_owned(), subject);
    }

    /// Whether a variable holds the result of a test.
    pub(super) fn is_result_of_test(&self, name: &str) -> bool {
        self.results.contains(name)
    }

    /// Subject of a test. The rank takes precedence, since it distinguishes ranks by itself.
    pub(super) fn subject(&self, test: &str) -> GuardSubject {
        let mut best = GuardSubject::Other;
        let weight = |subject| match subject {
            GuardSubject::Rank => 4,
            GuardSubject::Finite => 3,
            GuardSubject::State | GuardSubject::Clock => 2,
            GuardSubject::Data => 1,
            _ => 0,
        };
        let is_attribute = |word| !test.contains(&format!("{word}("));
        let (test, has_own_part) = without_own_parts(test);
        let test = test.as_str();
        if has_own_part {
            best = GuardSubject::Data;
        }
        for word in words(test) {
            let subject = match word {
                _ if RANK_ATTRIBUTES.contains(&word) && is_attribute(word) => GuardSubject::Rank,
                // The method of a tensor; a variable of this name is anything.
                "item" if is_attribute(word) => GuardSubject::Other,
                _ => self.word(word),
            };
            if weight(subject) > weight(best) {
                best = subject;
            }
        }
        best
    }

    fn word(&self, word: &str) -> GuardSubject {
        if is_rank(word) {
            return GuardSubject::Rank;
        }
        if let Some(known) = self.known.get(word) {
            return *known;
        }
        if FINITE.contains(&word) {
            return GuardSubject::Finite;
        }
        let in_parts =
            |list: &[&str]| list.contains(&word) || word.split('_').any(|it| list.contains(&it));
        if CLOCK.contains(&word) {
            GuardSubject::Clock
        } else if word == LOCAL || in_parts(&STATE) {
            GuardSubject::State
        } else if in_parts(&DATA) {
            GuardSubject::Data
        } else {
            GuardSubject::Other
        }
    }
}

/// Whether an expression calls a function that reads a clock.
fn reads_clock(value: &str) -> bool {
    CLOCK.iter().any(|it| {
        let mut calls = value.match_indices(it);
        calls.any(|(at, _)| {
            let is_whole = value[..at].chars().next_back().is_none_or(|c| !is_of_word(c));
            is_whole && value[at + it.len()..].starts_with("()")
        })
    })
}

/// Whether a name in the text refers to a rank.
pub(super) fn mentions_rank(text: &str) -> bool {
    words(text).any(is_rank)
}

fn is_rank(word: &str) -> bool {
    if RANK.contains(&word) {
        return true;
    }
    let lower = word.to_ascii_lowercase();
    let parts: Vec<&str> = lower.split('_').collect();
    parts.contains(&"rank") && !parts.iter().any(|part| NO_RANK.contains(part))
}

/// Whether a value is a rank or the result of a test, and not computed, formatted or built from
/// one.
fn is_test(value: &str) -> bool {
    let allowed = |c: char| c.is_alphanumeric() || "_.()[]\"' =!<>%,/".contains(c);
    let builds = ["f\"", "f'", "torch.full", "torch.tensor", "float(", "str(", "device(", "range("];
    value.chars().all(allowed) && !builds.iter().any(|word| value.contains(word))
}

/// A value without the arguments of its calls.
fn without_arguments(value: &str) -> String {
    let is_call = |before: &str| {
        let name = before.rsplit(|c: char| !is_of_word(c)).next();
        name.is_some_and(|name| !name.is_empty() && !CONVERSIONS.contains(&name))
    };
    let mut kept = String::new();
    let mut depth = 0_usize;
    for (at, c) in value.char_indices() {
        match c {
            '(' if depth > 0 || is_call(value[..at].trim_end()) => depth += 1,
            ')' if depth > 0 => depth -= 1,
            _ if depth == 0 => kept.push(c),
            _ => {}
        }
    }
    kept
}

/// A test without the ranks with which it takes a part of a collection, as in `counts[rank] == 0`: that part is content,
/// unless it is the role of the rank. Second: whether there are any.
fn without_own_parts(test: &str) -> (String, bool) {
    const ROLES: [&str; 5] = ["role", "roles", "stage", "stages", "device"];
    if test.contains(['"', '\'']) || words(test).any(|it| ROLES.contains(&it)) {
        return (test.to_owned(), false);
    }
    let (mut kept, mut rest, mut has_own_part) = (String::new(), test, false);
    while let Some(open) = rest.find('[') {
        let inside = &rest[open + 1..];
        let close = end_of_argument(inside);
        let is_of_name = rest[..open].ends_with(is_of_word);
        kept.push_str(&rest[..=open]);
        let is_own =
            is_of_name && inside[close..].starts_with(']') && mentions_rank(&inside[..close]);
        if is_own {
            has_own_part = true;
            rest = &inside[close..];
        } else {
            rest = inside;
        }
    }
    kept.push_str(rest);
    (kept, has_own_part)
}

/// The name of a function that does nothing but return a value, its parameters, and that value.
fn returned(lines: &[Line]) -> Option<(&str, &str, &str)> {
    let (header, rest) = lines.split_first()?;
    let (name, parameters) = header.text.strip_prefix("def ")?.split_once('(')?;
    let parameters = parameters[..parameters.find(')')?].trim();
    let is_text = |line: &&Line| line.text.starts_with(['"', '\'']);
    let mut suite = rest.iter().skip(usize::from(rest.first().is_some_and(|it| is_text(&it))));
    let value = suite.next()?.text.strip_prefix("return ")?;
    let ends = suite.next().is_none_or(|it| it.indent <= header.indent);
    ends.then_some((name, parameters, value))
}

/// Names and the contents of strings.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !is_of_word(c));
    words.filter(|word| !word.is_empty())
}

/// Names in an expression, of variables, functions and classes: not of attributes and keyword
/// arguments.
pub(super) fn names(text: &str) -> impl Iterator<Item = &str> {
    let mut before = ' ';
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let start = rest.find(|c: char| c.is_alphabetic() || c == '_')?;
            before = rest[..start].chars().next_back().unwrap_or(before);
            let from = &rest[start..];
            let end = from.find(|c: char| !is_of_word(c));
            let (word, after) = from.split_at(end.unwrap_or(from.len()));
            rest = after;
            let is_attribute = std::mem::replace(&mut before, 'x') == '.';
            let is_keyword = after.starts_with('=') && !after.starts_with("==");
            if !is_attribute && !is_keyword {
                return Some(word);
            }
        }
    })
}

/// Names of the methods of `self` that are called in an expression.
pub(super) fn own_methods(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("self.").filter_map(|(at, word)| {
        let name = &text[at + word.len()..];
        let end = name.find(|c: char| !is_of_word(c))?;
        name[end..].starts_with('(').then_some(&name[..end])
    })
}

/// Splits a text at a separator of one byte outside brackets and strings.
fn parts(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = at_depth_zero(rest, |rest| rest.starts_with(separator)) {
        parts.push(rest[..at].trim());
        rest = &rest[at + 1..];
    }
    parts.push(rest.trim());
    parts
}
