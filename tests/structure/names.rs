//! Names and words that a reader needs no key for.

use std::fs;
use std::path::Path;

use super::{CODE, files_below, root};

/// Words that limits of a second name would begin or end with.
const OTHER_LIMITS: [&str; 13] = [
    "MOST",
    "KEPT",
    "LEAST",
    "LIMIT",
    "UPPER",
    "CAP",
    "SHOWN",
    "LONGEST",
    "SHORTEST",
    "DEEPEST",
    "FEWEST",
    "INNERMOST",
    "BUDGET",
];
/// What predicates begin with.
const PREDICATES: [&str; 8] = ["is_", "are_", "has_", "can_", "was_", "were_", "may_", "does_"];
/// What a predicate that acts would call.
const ACTIONS: [&str; 5] = [".store(", ".swap(", ".send(", "fs::write(", "mem::take("];

/// British spellings, by a part of the word.
const BRITISH: [&str; 19] = [
    "ynchronis",
    "nitialis",
    "ecognis",
    "inimis",
    "erialis",
    "ormalis",
    "rganis",
    "ummaris",
    "inalis",
    "andomis",
    "olour",
    "eighbour",
    "ehaviour",
    "onour",
    "avour",
    "abelled",
    "ancelled",
    "anitis",
    "udgement",
];

/// Phrases that do not sound like English, each with the one to use.
const PHRASES: [(&str, &str); 26] = [
    ("is no finding", "is not a finding"),
    ("are no findings", "are not findings"),
    ("is no rank", "is not a rank"),
    ("are no ranks", "are not ranks"),
    ("stands still", "is stuck"),
    ("stand still", "are stuck"),
    ("stood still", "was stuck"),
    ("that are no daemons", "non-daemon"),
    ("is meant", "is intended"),
    ("for ever", "forever"),
    ("in a circle", "in a cycle"),
    ("as often on", "the same number of times on"),
    ("went on", "continued"),
    ("left out a call", "skipped a call"),
    ("leaves out a call", "skips a call"),
    ("made once more", "repeated"),
    ("another line than", "a different line from"),
    ("another thread than the one", "a different thread from the one"),
    ("another job than", "a different job from"),
    ("fit together", "match"),
    ("or the like", "or similar"),
    ("clean-up", "cleanup"),
    ("processor time", "CPU time"),
    ("interpreter's lock", "GIL"),
    ("run into their timeout", "time out"),
    ("has the call as", "shows the call as"),
];

/// Files with words of other programs, of recorded programs, or of past versions.
fn quotes_others(file: &Path) -> bool {
    let relative = file.strip_prefix(root()).unwrap();
    [
        "tests/jobs",
        "tests/fixtures",
        "tests/recordings",
        "tests/structure",
        "target",
        "src/report/html/base.js",
    ]
    .iter()
    .any(|it| relative.starts_with(it))
}

fn assert_no_line(
    folders: &[&str],
    extensions: &[&str],
    has_fault: impl Fn(&str) -> Option<String>,
) {
    for folder in folders {
        for extension in extensions {
            let files = files_below(folder, extension);
            for file in files.iter().filter(|it| !quotes_others(it)) {
                let text = fs::read_to_string(file).unwrap();
                for (i, line) in text.lines().enumerate() {
                    if let Some(fault) = has_fault(line) {
                        panic!("{}:{}: {fault}", file.display(), i + 1);
                    }
                }
            }
        }
    }
}

/// The name of the function that is declared in a line, and what follows it.
fn declared(line: &str) -> Option<(&str, &str)> {
    let code = line.split("//").next()?;
    let (_, rest) =
        code.split_once("fn ").filter(|(before, _)| !before.ends_with(char::is_alphanumeric))?;
    Some(rest.split_at(rest.find(['(', '<'])?))
}

#[test]
fn functions_have_names() {
    assert_no_line(&CODE, &["rs"], |line| {
        (declared(line)?.0 == "of").then(|| "a function needs a name, not `of`".to_owned())
    });
}

/// The functions of a file: name, parameters and return type, and body.
fn functions(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    text.split("fn ").skip(1).filter_map(|function| {
        let name = &function[..function.find(['(', '<'])?];
        let (signature, rest) = function.split_once('{')?;
        // rustfmt closes a function in a line of its own, less deep than its body.
        let deeper = rest.lines().skip(1).find(|it| !it.is_empty())?;
        let depth = deeper.len() - deeper.trim_start().len();
        let end = format!("\n{}}}\n", " ".repeat(depth.saturating_sub(4)));
        Some((name, signature, &rest[..rest.find(&end).unwrap_or(rest.len())]))
    })
}

#[test]
fn predicates_only_ask() {
    for file in CODE.iter().flat_map(|folder| files_below(folder, "rs")) {
        if quotes_others(&file) {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        for (name, signature, body) in functions(&text) {
            let acts = signature.contains("&mut") || ACTIONS.iter().any(|it| body.contains(it));
            let is_predicate = PREDICATES.iter().any(|it| name.starts_with(it));
            assert!(
                !is_predicate || !acts,
                "{}: {name} changes what it asks about",
                file.display()
            );
        }
    }
}

#[test]
fn limits_have_one_prefix() {
    assert_no_line(&CODE, &["rs"], |line| {
        let (_, rest) = line.split_once("const ")?;
        let (name, value) = rest.split_once(": ")?;
        let is_number = ["u", "i", "f", "Duration"].iter().any(|it| value.starts_with(it));
        let mut words = [name.split('_').next()?, name.split('_').next_back()?].into_iter();
        let other = words.find(|it| OTHER_LIMITS.contains(it)).filter(|_| is_number)?;
        let is_prefixed = name.starts_with("MAX_") || name.starts_with("MIN_");
        (!is_prefixed).then(|| format!("the prefix of limits is MAX_ or MIN_, not {other}: {name}"))
    });
}

#[test]
fn words_are_american() {
    let folders = ["src", "agent", "proto/src", "dashboard", "tests", "benches", "docs"];
    assert_no_line(&folders[..6], &["rs"], british);
    assert_no_line(&folders[6..], &["md"], british);
    assert_no_line(&["agent/python"], &["py"], british);
}

fn british(line: &str) -> Option<String> {
    let british = BRITISH.iter().find(|it| line.contains(*it))?;
    // An attribute of HTML, and a class of Ray.
    let is_foreign = line.contains("labelledby");
    (!is_foreign).then(|| format!("British spelling: …{british}…"))
}

#[test]
fn phrases_are_english() {
    let phrase = |line: &str| {
        let line = line.replace("here is no", "").replace("here are no", "");
        // "for every" does not contain "for ever".
        let is_whole = |after: &str| !after.starts_with(char::is_alphabetic);
        let mut phrases = PHRASES.iter();
        let (wrong, right) = phrases.find(|(it, _)| line.split(it).skip(1).any(is_whole))?;
        Some(format!("\"{wrong}\": write \"{right}\""))
    };
    assert_no_line(&["src", "agent", "proto/src", "dashboard"], &["rs"], phrase);
    assert_no_line(&["docs"], &["md"], phrase);
}

#[test]
fn text_of_documents_has_120_columns() {
    const COLUMNS: usize = 120;
    let documents = files_below("docs", "md").into_iter();
    let top = ["README.md", "CHANGELOG.md", "SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];
    for file in documents.chain(top.map(|it| root().join(it))) {
        let text = fs::read_to_string(&file).unwrap();
        let mut is_code = false;
        for (i, line) in text.lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            // Tables and links cannot be wrapped.
            let is_one_word = !line.trim_start_matches(['-', '*', ' ']).contains(' ');
            let may_be_long = is_code || is_one_word || line.trim_start().starts_with('|');
            let is_long = line.chars().count() > COLUMNS;
            assert!(
                may_be_long || !is_long,
                "{}:{} is longer than {COLUMNS}",
                file.display(),
                i + 1
            );
        }
    }
}
