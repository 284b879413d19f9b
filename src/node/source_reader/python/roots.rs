//! Roots of collectives that follow from the rank: `broadcast(x, src=1 - rank)`.

use ddp_doctor_diagnosis::source::python::{end_of_argument, is_of_word};
use ddp_doctor_proto::{GuardForm, GuardSubject};

use super::expression::value_of;
use super::sizes::calls;
use super::{Guard, Source};

/// Collectives with a root, and the index of that argument.
const ROOTED: [(&str, usize); 7] = [
    ("broadcast", 1),
    ("reduce", 1),
    ("gather", 2),
    ("scatter", 2),
    ("broadcast_object_list", 1),
    ("gather_object", 2),
    ("scatter_object_list", 2),
];
/// Names of that argument.
const NAMES: [&str; 4] = ["src", "dst", "group_src", "group_dst"];

impl Source {
    /// The expression with the rank that a collective of the line has as its root, in the line or in the latest assignment
    /// to the variable that it is given.
    pub(super) fn root_of_rank(&self, at: usize) -> Option<Guard> {
        let roots = calls(&self.lines[at].text).filter_map(|(name, arguments)| {
            let (_, index) = ROOTED.iter().find(|it| it.0 == name)?;
            root(arguments, *index)
        });
        let of_rank = |it: &str| self.names.subject(it) == GuardSubject::Rank && self.is_number(it);
        let mut roots = roots.filter_map(|root| {
            let assigned = || {
                let before = self.assignment(root, at)?;
                Some((before, value_of(&self.lines[before].text)))
            };
            Some((at, root))
                .filter(|it| of_rank(it.1))
                .or_else(|| assigned().filter(|it| of_rank(it.1)))
        });
        let (line, root) = roots.next()?;
        let guard = self.guard(self.lines[line].first, root, GuardForm::Roots);
        Some(Guard { subject: GuardSubject::Rank, ..guard })
    }
}

/// The root among the arguments of a call, in a text that begins behind its bracket.
fn root(mut rest: &str, index: usize) -> Option<&str> {
    let mut at = 0;
    loop {
        let argument = &rest[..end_of_argument(rest)];
        let text = argument.trim();
        if text.is_empty() {
            return None;
        }
        let named = text.split_once('=').map(|(name, value)| (name.trim(), value));
        match named.filter(|(name, value)| name.chars().all(is_of_word) && !value.starts_with('='))
        {
            Some((name, value)) if NAMES.contains(&name) => return Some(value.trim()),
            None if at == index => return Some(text),
            _ => {}
        }
        rest = rest[argument.len()..].strip_prefix(',')?;
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use ddp_doctor_proto::GuardForm;

    use super::super::sizes::tests::origin;

    #[test]
    fn root_follows_from_the_rank() {
        for (text, line, said) in [
            ("dist.broadcast(x, src=1 - rank)  # here\n", 1, "1 - rank"),
            ("dist.broadcast(x, rank // 2 * 2, group=g)  # here\n", 1, "rank // 2 * 2"),
            ("dist.gather(x, parts if rank == 0 else None, rank)  # here\n", 1, "rank"),
            (
                "owner = (rank + 1) % world\nwork = dist.reduce(x, dst=owner)  # here\n",
                1,
                "(rank + 1) % world",
            ),
            ("dist.broadcast(x, 1 if rank == 0 else 0)  # here\n", 1, "1 if rank == 0 else 0"),
        ] {
            assert_eq!(origin(text, GuardForm::Roots), Some((line, said.to_owned())), "{text}");
        }
    }

    #[test]
    fn root_that_is_equal_on_all_ranks_is_not_shown() {
        for text in [
            "dist.broadcast(x, src=0)  # here\n",
            "dist.broadcast(x[rank], 0)  # here\n",
            "owner = 0\ndist.reduce(x, dst=owner, group=groups[rank])  # here\n",
            "dist.send(x, dst=rank + 1)  # here\n",
        ] {
            assert_eq!(origin(text, GuardForm::Roots), None, "{text}");
        }
    }
}
