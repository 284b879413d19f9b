//! The pages in `docs/logs`: every line that a page lists is read, and leads to what the page says. Every
//! dialect has a page, and excerpts.

use std::fs;
use std::path::{Path, PathBuf};

use crate::analyze::logs::report_of;

/// What separates lines in a cell.
const NEXT_LINE: &str = " ⏎ ";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Names of files in a folder with this suffix, without it.
fn stems(folder: &str, suffix: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap();
    let names = entries.map(|it| it.unwrap().file_name().to_string_lossy().into_owned());
    let mut stems: Vec<String> =
        names.filter_map(|it| it.strip_suffix(suffix).map(str::to_owned)).collect();
    stems.sort();
    stems
}

/// The rows of the table of a page: lines, and what they lead to.
fn rows(page: &str) -> Vec<(String, String)> {
    let rows = page
        .lines()
        .filter_map(|row| row.strip_prefix("| `")?.strip_suffix(" |"))
        .filter_map(|row| row.split_once("` | "));
    rows.map(|(lines, reported)| {
        (lines.replace("\\|", "|").replace(NEXT_LINE, "\n"), reported.to_owned())
    })
    .collect()
}

/// The rank that a cell names: "DD101: rank 7".
fn rank(reported: &str) -> Option<u32> {
    reported.split_once(": rank ")?.1.parse().ok()
}

fn check(dir: &Path, lines: &str, reported: &str) -> Result<(), String> {
    let path = dir.join("job.log");
    fs::write(&path, format!("{lines}\n")).unwrap();
    let report = report_of(&path)?;
    let leading = report.findings.first().ok_or("no finding")?;
    if !reported.starts_with(&leading.code) {
        return Err(format!("{} {}", leading.code, leading.summary));
    }
    match rank(reported) {
        Some(rank) if leading.ranks.root != [rank] => Err(format!("root {:?}", leading.ranks.root)),
        _ => Ok(()),
    }
}

#[test]
fn lines_on_pages_lead_to_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let mut failures = Vec::new();
    for name in stems("docs/logs", ".md").iter().filter(|it| *it != "README") {
        let page = fs::read_to_string(root().join(format!("docs/logs/{name}.md"))).unwrap();
        let rows = rows(&page);
        assert!(!rows.is_empty(), "{name}");
        for (lines, reported) in rows {
            if let Err(failure) = check(dir.path(), &lines, &reported) {
                failures.push(format!("{name}: {lines}\n    {reported}, but {failure}"));
            }
        }
        for link in page.split("(../../tests/fixtures/logs/").skip(1) {
            let file = link.split(')').next().unwrap();
            let exists = root().join("tests/fixtures/logs").join(file).is_file();
            assert!(exists, "{name} refers to {file}");
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_dialect_has_a_page() {
    let pages = stems("docs/logs", ".md");
    let index = fs::read_to_string(root().join("docs/logs/README.md")).unwrap();
    for dialect in stems("src/ingest/logs/facts/dialects", ".rs") {
        assert!(dialect == "mod" || pages.contains(&dialect), "{dialect}");
    }
    for page in pages.iter().filter(|it| *it != "README") {
        assert!(index.contains(&format!("({page}.md)")), "{page}");
    }
}
