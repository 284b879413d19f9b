//! The result as text and as JSON.

use std::io::{self, Write};

use ddp_doctor_proto::words::wrapped;
use ddp_doctor_report::json;
use ddp_doctor_report::text::Style;
use serde::Serialize;

use super::rules::{Level, Line};

/// Name of the layout of the JSON document.
const SCHEMA: &str = "ddp-doctor/check";
/// Its version.
const SCHEMA_VERSION: &str = "1.0";
/// Width of a line.
const WIDTH: usize = 100;
/// Indentation of text below the level.
const INDENT: usize = 10;
/// Maximum number of names of nodes in a line.
const MAX_NAMES: usize = 8;

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    schema_version: &'static str,
    tool: Tool,
    level: Level,
    nodes: &'a [String],
    lines: &'a [Line],
}

#[derive(Serialize)]
struct Tool {
    name: &'static str,
    version: &'static str,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Names of the nodes that were checked.
    pub nodes: Vec<String>,
    /// The lines, the gravest first.
    pub lines: Vec<Line>,
}

/// Writes the JSON document.
///
/// # Errors
///
/// If `out` cannot be written.
pub fn json(out: &mut dyn Write, checked: &Checked) -> io::Result<()> {
    let document = Document {
        schema: SCHEMA,
        schema_version: SCHEMA_VERSION,
        tool: Tool { name: "ddp-doctor", version: env!("CARGO_PKG_VERSION") },
        level: worst(checked),
        nodes: &checked.nodes,
        lines: &checked.lines,
    };
    out.write_all(json::text(&document)?.as_bytes())
}

/// Writes the lines of at least this level, each with its fix, and their number.
///
/// # Errors
///
/// If `out` cannot be written.
pub fn text(out: &mut dyn Write, checked: &Checked, least: Level, style: Style) -> io::Result<()> {
    let shown = checked.lines.iter().filter(|it| it.level >= least);
    for line in shown {
        let (on, off) = color(line.level, style);
        let nodes = match names(line, checked) {
            Some(names) => format!("{names}: "),
            None => String::new(),
        };
        let text = format!("{}: {nodes}{}", line.check, line.reason);
        let level = line.level.name();
        for (index, part) in wrapped(&text, WIDTH - INDENT).iter().enumerate() {
            let label = if index == 0 { level } else { "" };
            writeln!(out, "{on}{label:<INDENT$}{off}{part}")?;
        }
        let fix = line.fix.iter().flat_map(|it| wrapped(&format!("fix: {it}"), WIDTH - INDENT));
        for part in fix {
            writeln!(out, "{:INDENT$}{part}", "")?;
        }
    }
    if least == Level::Pass {
        writeln!(out, "{}", summary(checked))?;
    }
    Ok(())
}

/// The nodes of a line; `None`: all of them.
fn names(line: &Line, checked: &Checked) -> Option<String> {
    if line.nodes.is_empty() || line.nodes.len() == checked.nodes.len() {
        return None;
    }
    let names: Vec<&str> = line.nodes.iter().take(MAX_NAMES).map(String::as_str).collect();
    let shown = names.join(", ");
    Some(match line.nodes.len().saturating_sub(MAX_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} others"),
    })
}

/// One line with the number of lines of each level.
fn summary(checked: &Checked) -> String {
    let levels = [Level::Critical, Level::Unknown, Level::Warning, Level::Info, Level::Pass];
    let counts: Vec<String> = levels
        .iter()
        .filter_map(|&level| {
            let count = checked.lines.iter().filter(|it| it.level == level).count();
            (count > 0).then(|| format!("{count} {}", level.name()))
        })
        .collect();
    let nodes = match checked.nodes.len() {
        1 => checked.nodes.concat(),
        count => format!("{count} nodes"),
    };
    format!("{nodes}: {}", counts.join(", "))
}

/// The gravest level.
#[must_use]
pub fn worst(checked: &Checked) -> Level {
    let levels = checked.lines.iter().map(|it| it.level);
    levels.max().unwrap_or(Level::Unknown)
}

fn color(level: Level, style: Style) -> (&'static str, &'static str) {
    if !style.color {
        return ("", "");
    }
    let on = match level {
        Level::Pass => "\x1b[32m",
        Level::Info => "\x1b[1;36m",
        Level::Warning | Level::Unknown => "\x1b[1;33m",
        Level::Critical => "\x1b[1;31m",
    };
    (on, "\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked() -> Checked {
        let line = |level, nodes: &[&str], fix: Option<&str>| Line {
            level,
            check: "disk".into(),
            nodes: nodes.iter().map(|it| (*it).to_owned()).collect(),
            reason: "Something is so.".into(),
            fix: fix.map(str::to_owned),
        };
        Checked {
            nodes: vec!["a".into(), "b".into()],
            lines: vec![
                line(Level::Critical, &["b"], Some("Do that.")),
                line(Level::Pass, &["a", "b"], None),
            ],
        }
    }

    #[test]
    fn text_has_level_nodes_reason_and_fix() {
        let mut out = Vec::new();
        text(&mut out, &checked(), Level::Pass, Style::default()).unwrap();
        let expected = "CRITICAL  disk: b: Something is so.\n          fix: Do that.\n\
                        PASS      disk: Something is so.\n2 nodes: 1 CRITICAL, 1 PASS\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        text(&mut out, &checked(), Level::Warning, Style::default()).unwrap();
        let short = String::from_utf8(out).unwrap();
        assert_eq!(short.lines().count(), 2, "{short}");
    }

    #[test]
    fn json_has_every_line() {
        let mut out = Vec::new();
        json(&mut out, &checked()).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["schema"], "ddp-doctor/check");
        assert_eq!(value["level"], "CRITICAL");
        assert_eq!(value["nodes"], serde_json::json!(["a", "b"]));
        let first = serde_json::json!({
            "level": "CRITICAL", "check": "disk", "nodes": ["b"],
            "reason": "Something is so.", "fix": "Do that.",
        });
        assert_eq!(value["lines"][0], first);
        assert_eq!(value["lines"][1]["fix"], serde_json::Value::Null);
    }
}
