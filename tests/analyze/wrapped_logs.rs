//! Logs that were copied from a terminal, which breaks long lines: the truth of each excerpt holds at any width.

use std::fs;
use std::path::Path;

use crate::analyze::logs::{self, Truth};

/// Widths of the terminals.
const WIDTHS: [usize; 4] = [80, 100, 120, 132];
/// Excerpts, with the width of the terminal, in which a break removes what the truth follows from: a space in the
/// last column, or the columns of a table.
const LOST: [(&str, usize); 0] = [];

/// A text as a terminal of this width shows it. Some remove the spaces at the ends of lines.
fn wrapped(text: &str, width: usize, removes_spaces: bool) -> String {
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let letters: Vec<char> = line.chars().collect();
        let pieces: Vec<String> = letters.chunks(width).map(|it| it.iter().collect()).collect();
        let (last, others) = pieces
            .split_last()
            .map_or((String::new(), &[][..]), |(last, others)| (last.clone(), others));
        let shorten = |it: &String| if removes_spaces { it.trim_end() } else { it }.to_owned();
        lines.extend(others.iter().map(shorten));
        lines.push(last);
    }
    lines.join("\n")
}

#[test]
fn truths_hold_for_lines_that_a_terminal_broke() {
    let dir = tempfile::tempdir().unwrap();
    let (mut failures, mut count) = (Vec::new(), 0);
    for path in logs::excerpts() {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let truth = Truth::read(&path);
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        for width in WIDTHS.into_iter().filter(|it| !LOST.contains(&(&name, *it))) {
            for removes_spaces in [false, true] {
                let broken = wrapped(&text, width, removes_spaces);
                if broken == text {
                    continue;
                }
                count += 1;
                let copy = dir.path().join(Path::new(path.file_name().unwrap()));
                fs::write(&copy, broken).unwrap();
                fs::File::open(&copy).unwrap().set_modified(written).unwrap();
                let report = logs::report_of(&copy);
                if let Err(failure) = report.and_then(|it| logs::check(&it, &truth)) {
                    failures.push(format!("{name} at {width}: {failure}"));
                }
            }
        }
    }
    assert!(count > 1000, "{count}");
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
}
