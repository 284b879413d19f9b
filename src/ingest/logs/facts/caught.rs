//! Exceptions that a program caught and logged in a line of its own: "fetch failed: RuntimeError('x'), retrying".

use ddp_doctor_proto::report::Timestamp;

use super::{Facts, Statement};
use crate::logs::lines::{Label, Line};
use crate::logs::scan::{self, cut, has};

/// How the names of most exceptions end.
const ERROR: &str = "Error";
/// Maximum length of the text of an exception.
const MAX_TEXT: usize = 512;

/// Reads a line of a rank.
pub(super) fn read(line: &Line<'_>, at: Timestamp, facts: &mut Facts) {
    // Libraries state their errors in lines with a place in their source, and tracebacks quote indented lines.
    let is_of_program = !line.text.contains(".cpp:") && !line.text.starts_with(char::is_whitespace);
    if !is_of_program || !has(line.text, ERROR) {
        return;
    }
    // Programs put the rank in front of their lines as PyTorch does, without a colon.
    let (rank, text) =
        prefix(line.text).map_or((line.label.rank, line.text), |(rank, text)| (Some(rank), text));
    if rank.is_some()
        && let Some(text) = stated(text)
    {
        let who = Label { rank, ..line.label };
        facts.add(who.into(), at, Statement::Caught { text: cut(&text, MAX_TEXT).into() });
    }
}

/// The rank in "[rank5] fetch failed", which a container's name and a time may precede, and what follows.
fn prefix(text: &str) -> Option<(u32, &str)> {
    let (rank, text) = text.split_once("[rank")?.1.split_once("] ")?;
    rank.bytes().all(|it| it.is_ascii_digit()).then(|| Some((scan::rank(rank)?, text)))?
}

/// The exception that a line states within other words, as Python prints it: `KeyError: 'x'`, or its `repr`,
/// `KeyError('x')`.
fn stated(text: &str) -> Option<String> {
    let is_separator = |it: char| !it.is_ascii_alphanumeric();
    let mut classes = text.match_indices(ERROR).filter_map(|(at, error)| {
        let before = text[..at].char_indices().rfind(|(_, it)| is_separator(*it));
        let (class, separator) = before.map(|(at, it)| (at + it.len_utf8(), it))?;
        Some((class, separator, at + error.len()))
    });
    let is_stated = |&(class, separator, end): &(usize, char, usize)| {
        text[class..].starts_with(|it: char| it.is_ascii_uppercase())
            && separator != '.'
            && ["('", "(\"", ": "].iter().any(|it| text[end..].starts_with(it))
    };
    let (class, _, end) = classes.find(is_stated)?;
    let (name, rest) = (&text[class..end], &text[end..]);
    let Some(inner) = rest.strip_prefix('(') else {
        return Some(text[class..].trim().to_owned());
    };
    let quote = inner.chars().next()?;
    let mut message = String::new();
    let mut chars = inner.chars().skip(1);
    while let Some(next) = chars.next().filter(|it| *it != quote) {
        message.extend(if next == '\\' { chars.next() } else { Some(next) });
    }
    Some(format!("{name}: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_within_other_words_are_read_as_python_prints_them() {
        let cases = [
            (
                "fetch failed: RuntimeError('worker\\'s (pid 8) end'), retrying",
                Some("RuntimeError: worker's (pid 8) end"),
            ),
            (
                "WARNING save failed with OSError: [Errno 28] No space left",
                Some("OSError: [Errno 28] No space left"),
            ),
            ("KeyError: 'x'", None),
            ("12 Errors: none", None),
            ("see torch.OutOfMemoryError(…)", None),
        ];
        for (text, expected) in cases {
            assert_eq!(stated(text).as_deref(), expected, "{text}");
        }
    }
}
