//! What findings mean: the text of `ddp-doctor explain`.

mod page;

use std::io::{self, Write};

use ddp_doctor_diagnosis::findings::{self, advice};
use ddp_doctor_diagnosis::source::cause::Detail;
use ddp_doctor_proto::catalogue::{self, Code};

pub use page::Page;

use super::text::{Style, WIDTH, wrapped};

/// Number of similar codes suggested for an unknown one.
const MAX_SUGGESTIONS: usize = 3;

/// Finds the code that a user typed: "DD102", "dd102", "102" or "early-exit".
///
/// # Errors
///
/// If there is no such code, returns the most similar codes.
pub fn find(query: &str) -> Result<&'static Code, Vec<&'static Code>> {
    let query = query.trim().to_lowercase().replace(['_', ' '], "-");
    let is_it = |code: &&&Code| {
        let number = code.code.to_lowercase();
        [number.as_str(), number.trim_start_matches("dd"), code.name].contains(&query.as_str())
    };
    if let Some(code) = catalogue::ALL.iter().find(is_it) {
        return Ok(code);
    }
    let mut near: Vec<(usize, &Code)> = catalogue::ALL
        .iter()
        .map(|code| {
            let by_code = distance(&query, &code.code.to_lowercase());
            let by_name = distance(&query, code.name);
            // Part of a name counts as similar, however long the rest.
            let is_part = query.len() >= 3 && code.name.contains(&query);
            (if is_part { 0 } else { by_code.min(by_name) }, *code)
        })
        .collect();
    near.sort_by_key(|(distance, _)| *distance);
    Err(near.into_iter().take(MAX_SUGGESTIONS).map(|(_, code)| code).collect())
}

/// Prints everything about one code.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn one(out: &mut dyn Write, code: &Code, style: Style) -> io::Result<()> {
    let (on, off) = style.label();
    let page = Page::new(code);
    writeln!(out, "{on}{} {}{off}: {}", code.code, code.name, page.summary())?;
    if !findings::detects(code.code) {
        return writeln!(out, "\nThis version of ddp-doctor does not detect it.");
    }
    writeln!(out, "{}", rule(code))?;
    for text in page.meaning() {
        writeln!(out)?;
        paragraph(out, "", &text)?;
    }
    writeln!(out, "\n{on}Example{off}\n")?;
    for line in page.example().lines() {
        writeln!(out, "{}", format!("    {line}").trim_end())?;
    }
    for (title, items) in sections(page) {
        writeln!(out, "\n{on}{title}{off}\n")?;
        for item in items {
            paragraph(out, "- ", &item)?;
        }
    }
    Ok(())
}

/// Prints all codes, a line each.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn list(out: &mut dyn Write, style: Style) -> io::Result<()> {
    let (on, off) = style.label();
    let widest = catalogue::ALL.iter().map(|code| code.name.len()).max();
    let width = widest.unwrap_or_default();
    let line = |out: &mut dyn Write, code: &Code| {
        let summary = Page::new(code).summary();
        writeln!(out, "{on}{}{off} {:<width$}  {summary}", code.code, code.name)
    };
    let (here, not_here): (Vec<&Code>, Vec<&Code>) =
        catalogue::ALL.iter().partition(|code| findings::detects(code.code));
    for code in here {
        line(out, code)?;
    }
    if !not_here.is_empty() {
        writeln!(out, "\nNot detected by this version:\n")?;
    }
    for code in not_here {
        line(out, code)?;
    }
    Ok(())
}

/// All findings that this version detects, as a Markdown table. `pages` is the folder of their pages,
/// relative to the file that the table is for.
#[must_use]
pub fn table(pages: &str) -> String {
    let mut table = String::from("| code | name | meaning |\n|---|---|---|\n");
    for code in catalogue::ALL.iter().filter(|it| findings::detects(it.code)) {
        let summary = Page::new(code).summary();
        let Code { code, name, .. } = code;
        table += &format!("| [{code}]({pages}{code}.md) | {name} | {summary} |\n");
    }
    table
}

/// The advice against each cause, as a Markdown table.
#[must_use]
pub fn advice_table() -> String {
    let mut table = String::from("| cause | of | findings | advice |\n|---|---|---|---|\n");
    for row in advice::ROWS {
        let of = match row.detail {
            Detail::Any => "",
            Detail::Loop => "a loop over a collection of the program",
            Detail::Clock => "the clock of each rank",
            Detail::Awaited => "a decision for which other ranks wait",
            Detail::Cache => "a cached result",
            Detail::Branches => "a call in each branch of a test",
            Detail::Handler => "a call in an exception handler",
            Detail::Return => "a function that returns before the call",
            Detail::Membership => "a group that does not include the rank",
            Detail::Exit => "a line that ends the process of one rank",
            Detail::Completion => "results in the order in which they are ready",
            Detail::Exchange => "all send first, or all receive first",
        };
        let codes = if row.codes.is_empty() { "all".to_owned() } else { row.codes.join(", ") };
        table += &format!("| {} | {of} | {codes} | {} |\n", row.kind.as_str(), row.text);
    }
    table
}

/// Severity and effect that a code usually has: "critical, crashes the job".
fn rule(code: &Code) -> String {
    use ddp_doctor_proto::report::Effect;
    let effect = match code.effect {
        Effect::Blocks => "blocks the job",
        Effect::Crashes => "crashes the job",
        Effect::Corrupts => "corrupts the results of the job",
        Effect::Slows => "slows the job down",
        Effect::None => "has no effect on the job",
    };
    format!("{}, {effect}", code.severity)
}

/// Title and items of each list of a page.
pub(super) fn sections(page: Page) -> [(&'static str, Vec<String>); 3] {
    [
        ("Usual causes", page.causes()),
        ("What to change", page.fix()),
        ("What it is not", page.exclusions()),
    ]
}

fn paragraph(out: &mut dyn Write, mark: &str, text: &str) -> io::Result<()> {
    let mut mark = mark.to_owned();
    for line in wrap_code(text, WIDTH - mark.len()) {
        writeln!(out, "{mark}{line}")?;
        mark = " ".repeat(mark.len());
    }
    Ok(())
}

/// Wraps text; code between backquotes is kept on one line.
fn wrap_code(text: &str, width: usize) -> Vec<String> {
    let mut in_code = false;
    let glued: String = text
        .chars()
        .map(|c| {
            in_code ^= c == '`';
            if in_code && c == ' ' { '\u{a0}' } else { c }
        })
        .collect();
    let lines = wrapped(&glued, width).into_iter();
    lines.map(|line| line.replace('\u{a0}', " ")).collect()
}

/// Levenshtein distance, computed row by row.
fn distance(a: &str, b: &str) -> usize {
    // A text longer than any name is rejected at once.
    if a.len() > 64 {
        return a.len();
    }
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(write: impl Fn(&mut dyn Write) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn code_is_found_in_any_spelling() {
        for query in ["DD102", "dd102", "102", "early-exit", "Early_Exit", " DD102 "] {
            assert_eq!(find(query).map(|code| code.code), Ok("DD102"), "{query:?}");
        }
    }

    #[test]
    fn unknown_code_is_answered_with_similar_codes() {
        for (query, near) in [
            ("DD1O2", "DD102"),
            ("erly-exit", "DD102"),
            ("mismatch", "DD103"),
            ("deadlock", "DD111"),
        ] {
            let found: Vec<_> = find(query).unwrap_err().iter().map(|it| it.code).collect();
            assert!(found.contains(&near), "{query:?}: {found:?}");
        }
        assert_eq!(find("").unwrap_err().len(), MAX_SUGGESTIONS);
        assert_eq!(find(&"x".repeat(1 << 20)).unwrap_err().len(), MAX_SUGGESTIONS);
    }

    #[test]
    fn distance_counts_edited_letters() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", "abc"), 0);
    }

    #[test]
    fn every_detected_code_is_explained() {
        for code in catalogue::ALL {
            let text = shown(|out| one(out, code, Style::default()));
            assert!(text.starts_with(&format!("{} {}: ", code.code, code.name)));
            let sections = ["Example", "Usual causes", "What to change", "What it is not"];
            let here = findings::detects(code.code);
            for section in sections {
                assert_eq!(text.contains(section), here, "{text}");
            }
            assert_ne!(text.contains("does not detect it"), here, "{text}");
        }
    }

    #[test]
    fn list_contains_every_code() {
        let text = shown(|out| list(out, Style::default()));
        for code in catalogue::ALL {
            assert!(text.contains(&format!("{} {}", code.code, code.name)));
        }
    }
}
