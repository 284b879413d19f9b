//! Names of a file whose value is the same on all ranks: assigned once, at the top of the file, from numbers, texts and
//! textual arguments of the program. A test on these decides nothing. Numbers among the arguments may differ: programs
//! that are started one by one get their rank so.

use std::collections::{HashMap, HashSet};

use ddp_doctor_diagnosis::source::python::{at_depth_zero, is_of_word};
use ddp_doctor_proto::{GuardForm, GuardSubject};

use super::lines::Line;
use super::{Guard, subject};

/// Names in the value of a constant, besides constants.
const IN_VALUES: [&str; 17] = [
    "sys", "len", "int", "float", "str", "bool", "min", "max", "True", "False", "None", "if",
    "else", "and", "or", "not", "in",
];
/// Words of statements that bind names without a sign of assignment.
const BINDS: [&str; 11] =
    ["global", "nonlocal", "for", "import", "from", "def", "class", "with", "as", "del", "lambda"];

/// The constants of a file.
pub(super) fn find(lines: &[Line]) -> HashSet<String> {
    let texts: Vec<String> = lines.iter().map(|line| without_texts(&line.text)).collect();
    let mut times: HashMap<&str, usize> = HashMap::new();
    for text in &texts {
        words(may_change(text)).for_each(|name| *times.entry(name).or_default() += 1);
    }
    let mut found = HashSet::new();
    for (line, text) in lines.iter().zip(&texts).filter(|(line, _)| line.indent == 0) {
        let Some((name, value)) = text.split_once(" = ") else { continue };
        let is_constant = |word: &str| found.contains(word) || IN_VALUES.contains(&word);
        let reads_more = if line.text.contains("sys.argv") {
            words(value).any(|word| word == "int")
        } else {
            value.contains('.')
        };
        if times.get(name) == Some(&1) && !reads_more && subject::names(value).all(is_constant) {
            found.insert(name.to_owned());
        }
    }
    found
}

/// Whether the result of a test is the same on all ranks.
pub(super) fn decides_nothing(guard: &Guard, constants: &HashSet<String>) -> bool {
    use GuardForm::{Fails, Holds, Leaves, Returns, Skips};
    let test = without_texts(&guard.test);
    let mut names = subject::names(&test).filter(|it| !IN_VALUES.contains(it)).peekable();
    matches!(guard.form, Fails | Holds | Leaves | Returns | Skips)
        && guard.subject != GuardSubject::Rank
        && !test.contains('.')
        && names.peek().is_some()
        && names.all(|name| constants.contains(name))
}

/// The part of a statement in which names may get a value.
fn may_change(text: &str) -> &str {
    if words(text).any(|word| BINDS.contains(&word)) {
        return text;
    }
    let mut end = text.rfind(":=").unwrap_or(0);
    let mut from = 0;
    let sign = |rest: &str| rest.starts_with('=');
    while let Some(at) = at_depth_zero(&text[from..], sign) {
        end = end.max(from + at);
        from += at + 1;
    }
    &text[..end]
}

/// An expression without the texts in it, and without the signs of comparisons that contain a sign of assignment.
fn without_texts(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut quote: Option<char> = None;
    let mut escaped = false;
    for c in text.chars() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None => kept.push(c),
        }
    }
    ["==", "!=", "<=", ">="].iter().fold(kept, |text, sign| text.replace(sign, "<"))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !is_of_word(c)).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::Source;

    /// Whether the test is shown that decides on the line marked `# here`.
    fn is_shown(text: &str) -> bool {
        let line = text.lines().position(|line| line.contains("# here")).unwrap() as u32 + 1;
        !Source::parse(text).guards(line).is_empty()
    }

    #[test]
    fn test_on_a_constant_decides_nothing() {
        for start in [
            "MODE = \"save\"\n",
            "MODE = sys.argv[1] if len(sys.argv) > 1 else \"save\"\n",
            "SAVES = True\nMODE = int(SAVES) + 1\n",
        ] {
            assert!(
                !is_shown(&format!("{start}if MODE == \"save\":\n    save()  # here\n")),
                "{start}"
            );
        }
    }

    #[test]
    fn name_that_changes_or_differs_between_ranks_is_no_constant() {
        for start in [
            "MODE = False\ndef stop(signum, frame):\n    global MODE\n    MODE = True\n",
            "MODE = 0\nMODE += 1\n",
            "MODE = os.environ[\"MODE\"]\n",
            "MODE = args.mode\n",
            "MODE = rank\n",
            "MODE = int(sys.argv[1])\n",
            "MODE = 0\nfor MODE in range(3):\n    pass\n",
            "MODE = 0\nif (MODE := read()):\n    pass\n",
            "MODE = OTHER = 0\nMODE, b = read()\n",
            "def mode():\n    MODE = 1\n",
        ] {
            assert!(is_shown(&format!("{start}if MODE == 1:\n    save()  # here\n")), "{start}");
        }
        assert!(is_shown("MODE = 1\nif MODE == 1 and rank == 0:\n    save()  # here\n"));
        assert!(is_shown("MODE = 1\nif trainer.MODE:\n    save()  # here\n"));
        assert!(is_shown("rank = sys.argv[1]\nif rank == \"0\":\n    save()  # here\n"));
    }
}
