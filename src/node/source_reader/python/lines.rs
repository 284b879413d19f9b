//! Logical lines of a source.

use ddp_doctor_diagnosis::source::python::is_of_word;

/// Maximum number of lines read of a file.
const MAX_LINES: usize = 200_000;
/// Maximum nesting of a file, as in Python.
const MAX_NESTING: usize = 100;
/// Width of a tab, in columns.
const TAB: usize = 8;

/// A logical line.
#[derive(Debug)]
pub(super) struct Line {
    /// First and last physical line, 1-based.
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) indent: usize,
    /// Text without comments and line breaks.
    pub(super) text: String,
}

impl Line {
    /// Whether it is the header of the function or class of this name.
    pub(super) fn defines(&self, name: &str) -> bool {
        let header = self.text.strip_prefix("async ").unwrap_or(&self.text);
        let mut words = header.split(|c: char| !is_of_word(c));
        matches!(words.next(), Some("def" | "class")) && words.next() == Some(name)
    }
}

/// Whether the nesting is within Python's limit; deeper nesting would take too much time.
pub(super) fn is_plausible(lines: &[Line]) -> bool {
    let mut open: Vec<usize> = Vec::new();
    lines.iter().all(|line| {
        while open.last().is_some_and(|&outer| outer >= line.indent) {
            open.pop();
        }
        open.push(line.indent);
        open.len() <= MAX_NESTING
    })
}

/// Joins lines that are continued by brackets, backslashes or multi-line strings; drops comments
/// and empty lines.
pub(super) fn logical_lines(text: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut open: Option<Line> = None;
    let mut depth = 0_usize;
    // Closing quotes of an open multi-line string.
    let mut long: Option<&'static str> = None;
    for (i, physical) in text.lines().enumerate().take(MAX_LINES) {
        let number = i as u32 + 1;
        let mut line = open.take().unwrap_or_else(|| Line {
            first: number,
            last: number,
            indent: indent_of(physical),
            text: String::new(),
        });
        line.last = number;
        if !line.text.is_empty() && !line.text.ends_with(' ') && long.is_none() {
            line.text.push(' ');
        }
        let goes_on = scan(physical.trim_start(), &mut line.text, &mut depth, &mut long);
        if depth > 0 || long.is_some() || goes_on {
            open = Some(line);
            continue;
        }
        line.text.truncate(line.text.trim_end().len());
        if !line.text.is_empty() {
            lines.push(line);
        }
    }
    lines
}

/// Appends a physical line without its comment. Returns whether a backslash continues it.
fn scan(
    physical: &str,
    out: &mut String,
    depth: &mut usize,
    long: &mut Option<&'static str>,
) -> bool {
    let mut rest = physical;
    let mut quote: Option<char> = None;
    while let Some(c) = rest.chars().next() {
        let mut length = c.len_utf8();
        if let Some(end) = *long {
            if rest.starts_with(end) {
                *long = None;
                length = end.len();
                out.push('"');
            } else if c == '\\' {
                length += rest[1..].chars().next().map_or(0, char::len_utf8);
            }
        } else if let Some(open) = quote {
            if c == '\\' {
                length += rest[1..].chars().next().map_or(0, char::len_utf8);
                out.push_str(&rest[..length]);
            } else {
                out.push(c);
                if c == open {
                    quote = None;
                }
            }
        } else {
            match c {
                '#' => return false,
                '"' | '\'' => {
                    let three = if c == '"' { "\"\"\"" } else { "'''" };
                    if rest.starts_with(three) {
                        *long = Some(three);
                        length = three.len();
                        out.push('"');
                    } else {
                        quote = Some(c);
                        out.push(c);
                    }
                }
                '\\' if rest.len() == 1 => return true,
                _ => {
                    match c {
                        '(' | '[' | '{' => *depth += 1,
                        ')' | ']' | '}' => *depth = depth.saturating_sub(1),
                        _ => {}
                    }
                    let spaced = c.is_whitespace();
                    if !spaced || !out.ends_with(' ') {
                        out.push(if spaced { ' ' } else { c });
                    }
                }
            }
        }
        rest = &rest[length..];
    }
    false
}

fn indent_of(line: &str) -> usize {
    let mut columns = 0;
    for c in line.chars() {
        match c {
            ' ' => columns += 1,
            '\t' => columns = (columns / TAB + 1) * TAB,
            _ => break,
        }
    }
    columns
}
