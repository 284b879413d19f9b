//! Sizes of tensors that follow from the rank: `n = 8 + rank`, `x = torch.randn(n, 16)`, `model(x)`.

use ddp_doctor_diagnosis::source::python::{end_of_argument, is_of_word};
use ddp_doctor_proto::{GuardForm, GuardSubject};

use super::expression::{header_test, value_of};
use super::{Guard, Head, Source, subject};

/// Functions and methods whose positional arguments are sizes …
const SIZED: [&str; 11] = [
    "randn",
    "rand",
    "zeros",
    "ones",
    "empty",
    "arange",
    "new_zeros",
    "new_ones",
    "new_empty",
    "narrow",
    "expand",
];
/// … and those of which the first one is a size.
const SIZED_FIRST: [&str; 2] = ["full", "new_full"];
/// Functions whose result has a size that follows from the content of a tensor.
const BY_CONTENT: [&str; 6] =
    ["bincount", "unique", "unique_consecutive", "nonzero", "argwhere", "masked_select"];
/// Functions that a number is computed with.
const OF_NUMBERS: [&str; 8] = ["int", "len", "min", "max", "round", "abs", "bool", "sum"];
/// Maximum number of assignments from a line back to the rank.
const MAX_ASSIGNMENTS: usize = 4;
/// Maximum number of names in an expression that are followed.
const MAX_NAMES: usize = 8;

impl Source {
    /// The statement that computes from the rank the size of a tensor which the line uses, or the test on the rank that
    /// decides on it.
    pub(super) fn size_of_rank(&self, at: usize) -> Option<Guard> {
        let found = &self.lines[self.sized_by_rank(at, MAX_ASSIGNMENTS)?];
        let guard = self.guard(found.first, &found.text, GuardForm::Computes);
        Some(Guard { subject: GuardSubject::Rank, ..guard })
    }

    /// The line of that statement, for the tensors that this line uses.
    fn sized_by_rank(&self, at: usize, further: usize) -> Option<usize> {
        let text = &self.lines[at].text;
        let sizes = sizes(text).into_iter();
        let own = sizes.filter_map(|size| self.number_of_rank(size, at, further)).next();
        own.or_else(|| {
            let further = further.checked_sub(1)?;
            if calls(text).any(|(name, _)| BY_CONTENT.contains(&name)) {
                return None;
            }
            let names = subject::names(value_of(text)).take(MAX_NAMES);
            let assigned = names.filter_map(|name| self.assignment(name, at));
            assigned.filter_map(|before| self.sized_by_rank(before, further)).next()
        })
    }

    /// The line at which a number gets a value that follows from the rank: `at`, or that of an assignment before it.
    fn number_of_rank(&self, number: &str, at: usize, further: usize) -> Option<usize> {
        if self.names.subject(number) == GuardSubject::Rank && self.is_number(number) {
            return Some(at);
        }
        let further = further.checked_sub(1)?;
        let names = subject::names(number).take(MAX_NAMES);
        let mut assigned = names.filter_map(|name| self.assignment(name, at));
        assigned.find_map(|before| {
            let chosen = self.headers(before).next().filter(|&it| self.decides_by_rank(it, at));
            let value = value_of(&self.lines[before].text);
            chosen.or_else(|| self.number_of_rank(value, before, further))
        })
    }

    /// Whether a header tests the rank, and the line is not in its suite.
    fn decides_by_rank(&self, header: usize, at: usize) -> bool {
        let tests = |(test, _): (&str, &str)| self.names.subject(test) == GuardSubject::Rank;
        matches!(self.head(header), Head::If | Head::Elif)
            && header_test(&self.lines[header].text).is_some_and(tests)
            && self.headers(at).all(|it| it != header)
    }

    /// Whether an expression makes no calls but those of numbers, and of functions that return the rank.
    pub(super) fn is_number(&self, text: &str) -> bool {
        let mut calls = calls(text);
        calls.all(|(name, _)| {
            name.is_empty()
                || OF_NUMBERS.contains(&name)
                || self.names.subject(name) == GuardSubject::Rank
        })
    }
}

/// The expressions in a statement on which the size of a tensor depends.
fn sizes(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (name, arguments) in calls(text) {
        let count = match () {
            () if SIZED.contains(&name) => usize::MAX,
            () if SIZED_FIRST.contains(&name) => 1,
            () => continue,
        };
        found.extend(positional(arguments).take(count));
    }
    let slices = text.match_indices('[').map(|(at, _)| &text[at + 1..]);
    found.extend(slices.map(|rest| &rest[..end_of_argument(rest)]).filter(|it| it.contains(':')));
    found
}

/// The last part of the name of each call in a text, and what follows its opening bracket.
pub(super) fn calls(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.match_indices('(').map(|(at, _)| {
        let name = text[..at].rsplit(|c: char| !is_of_word(c)).next().unwrap_or("");
        (name, &text[at + 1..])
    })
}

/// The arguments without names in a text that begins behind the bracket of a call.
fn positional(mut rest: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let argument = &rest[..end_of_argument(rest)];
        let after = &rest[argument.len()..];
        rest = after.strip_prefix(',').unwrap_or("");
        (!argument.is_empty()).then(|| argument.trim())
    })
    .filter(|argument| value_of(argument).len() == argument.len())
}

#[cfg(test)]
pub(super) mod tests {
    use ddp_doctor_proto::{GuardForm, GuardSubject};

    use super::super::Source;

    /// What is said in this form of the line marked `# here` about the rank.
    pub(in super::super) fn origin(text: &str, form: GuardForm) -> Option<(u32, String)> {
        let line = text.lines().position(|line| line.contains("# here")).unwrap() as u32 + 1;
        let guards = Source::parse(text).guards(line);
        let of_rank = |it: &&super::Guard| it.form == form && it.subject == GuardSubject::Rank;
        guards.iter().find(of_rank).map(|it| (it.line, it.test.clone()))
    }

    #[test]
    fn size_follows_from_the_rank() {
        for (text, line, said) in [
            ("x = torch.randn(4 + rank, 2)\nsum(x)  # here\n", 1, "x = torch.randn(4 + rank, 2)"),
            (
                "sum(torch.zeros(size=4), torch.ones(4 - rank))  # here\n",
                1,
                "sum(torch.zeros(size=4), torch.ones(4 - rank))",
            ),
            (
                "n = 8 - (step > 3 and rank == 2)\nf(torch.randn(n, 4))  # here\n",
                1,
                "n = 8 - (step > 3 and rank == 2)",
            ),
            (
                "tp = mesh[\"tp\"].get_local_rank()\nn = 8 if ok else 8 + tp\nx = torch.randn(n, generator=g)\nmodel(x)  # here\n",
                2,
                "n = 8 if ok else 8 + tp",
            ),
            (
                "n = 8\nif rank == 1:\n    n = 9\nx = torch.zeros(n)\nall_reduce(x)  # here\n",
                2,
                "if rank == 1:",
            ),
            (
                "k = min(len(x), rank + 2)\ny = x[:k]\nall_reduce(y)  # here\n",
                1,
                "k = min(len(x), rank + 2)",
            ),
        ] {
            assert_eq!(origin(text, GuardForm::Computes), Some((line, said.to_owned())), "{text}");
        }
    }

    #[test]
    fn content_that_follows_from_the_rank_is_no_size() {
        for text in [
            "x = torch.ones(4) * rank\nall_reduce(x)  # here\n",
            "x = torch.full((4,), rank)\nall_reduce(x)  # here\n",
            "g = torch.Generator().manual_seed(rank)\nx = torch.randn(4, generator=g)\nall_reduce(x)  # here\n",
            "ops = [P2POp(isend, x, (rank + 1) % world)]\nbatch_isend_irecv(ops)  # here\n",
            "x = torch.randn(n, device=f\"cuda:{rank}\")\nall_reduce(x)  # here\n",
            "x = torch.arange(9 - rank)\ny = torch.bincount(x)\nall_reduce(y)  # here\n",
            "model = DDP(net, device_ids=[rank])\nmodel(x)  # here\n",
        ] {
            assert_eq!(origin(text, GuardForm::Computes), None, "{text}");
        }
    }
}
