//! A diagnosis as text for a terminal, in the style of a compiler error: what happened, the calls
//! of both sides with their lines, why, and what to change.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

use ddp_doctor_proto::report::{Finding, Rank, Report, Role, Severity, Where};

use ddp_doctor_host::source_files::{self, SourceFolders, SourceLines};
pub(super) use ddp_doctor_proto::words::{context, duration, ended};
use ddp_doctor_proto::words::{has_several_hosts, sides};
pub use ddp_doctor_proto::words::{plain, wrapped};

mod explanation;

use explanation::{explanation, shortened};

/// Width at which text is wrapped, in columns, unless a terminal has less.
pub(super) const WIDTH: usize = 100;
/// Minimum width of text.
const MIN_WIDTH: usize = 40;
/// Maximum number of culprits in the table of a finding, and usual maximum of its rows.
const MAX_ROWS: usize = 8;
/// Maximum number of lines of a finding.
pub const MAX_LINES: usize = 20;

/// Style of terminal output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Whether colors may be used.
    pub color: bool,
    /// Whether the job is over. The latency of findings is then left out.
    pub past: bool,
    /// Columns of the terminal; `None`: the output goes elsewhere.
    pub columns: Option<usize>,
}

impl Style {
    const fn severity(self, severity: Severity) -> (&'static str, &'static str) {
        match (self.color, severity) {
            (false, _) => ("", ""),
            (true, Severity::Note) => ("\x1b[1;36m", "\x1b[0m"),
            (true, Severity::Warning) => ("\x1b[1;33m", "\x1b[0m"),
            (true, Severity::Error | Severity::Critical) => ("\x1b[1;31m", "\x1b[0m"),
        }
    }

    /// Width of text.
    fn width(self) -> usize {
        self.columns.unwrap_or(WIDTH).clamp(MIN_WIDTH, WIDTH)
    }

    /// A headline, wrapped for the terminal. `taken`: columns that precede it in its first line.
    fn headline(self, taken: usize, text: &str) -> String {
        let text = plain(text);
        let Some(columns) = self.columns else {
            return text;
        };
        // The label takes its columns as a word of that length.
        let label = "x".repeat(taken);
        let lines = wrapped(&format!("{label}{text}"), columns.max(MIN_WIDTH) - 4);
        lines.join("\n    ")[taken..].to_owned()
    }

    pub(super) const fn label(self) -> (&'static str, &'static str) {
        if self.color { ("\x1b[1;34m", "\x1b[0m") } else { ("", "") }
    }
}

/// Writes a whole report: the job and its findings. Findings of severity "note", and those that follow from others,
/// take one line each, unless `all` is set. Source lines are read below `folders`.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn report(
    out: &mut dyn Write,
    report: &Report,
    style: Style,
    all: bool,
    folders: &SourceFolders,
) -> io::Result<()> {
    let (on, off) = style.label();
    let verdict = report.verdict;
    let label = format!("{verdict}: ");
    let job = style.headline(label.len(), &format!("job {}, {}", report.job.id, about(report)));
    writeln!(out, "{on}{verdict}{off}: {job}")?;
    findings(out, report, style, all, folders)?;
    if report.findings.is_empty() {
        writeln!(out, "    no problems found")?;
    }
    Ok(())
}

/// Writes the findings of a report only.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn findings(
    out: &mut dyn Write,
    report: &Report,
    style: Style,
    all: bool,
    folders: &SourceFolders,
) -> io::Result<()> {
    let ranks = RankTable::new(&report.ranks);
    let mut sources = SourceLines::below(folders);
    let is_brief = |it: &&Finding| !all && (it.severity == Severity::Note || follows(it));
    let mut long = report.findings.iter().filter(|it| !is_brief(it)).peekable();
    while let Some(it) = long.next() {
        writeln!(out)?;
        let used = calls(out, it, &ranks, style, &mut sources)?;
        if !long.peek().is_some_and(|next| is_explained_alike(it, next)) {
            let left = if all { usize::MAX } else { MAX_LINES.saturating_sub(used) };
            explanation(out, it, style, left)?;
        }
    }
    let short = report.findings.iter().filter(is_brief);
    let (notes, consequences): (Vec<&Finding>, Vec<&Finding>) =
        short.partition(|it| it.severity == Severity::Note);
    for group in [consequences, notes].iter().filter(|it| !it.is_empty()) {
        writeln!(out)?;
        for it in group {
            brief(out, it, style)?;
        }
    }
    Ok(())
}

/// Whether a finding follows from another one, which explains it.
fn follows(finding: &Finding) -> bool {
    finding.role == Role::Cascade
}

/// Writes the headline of a finding in one line, which a narrow terminal wraps.
fn brief(out: &mut dyn Write, finding: &Finding, style: Style) -> io::Result<()> {
    let (on, off) = style.severity(finding.severity);
    let label = format!("{}[{}]", word(finding.severity), finding.code);
    let role = if follows(finding) { "follows: " } else { "" };
    let title = style.headline(label.len() + 1, &format!("{role}{}", finding.title()));
    writeln!(out, "{on}{label}{off} {title}")
}

/// The severity as a reader of compiler errors knows it.
const fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Error | Severity::Critical => "error",
    }
}

/// One line about the job of a report: size, backends, start, duration, records.
#[must_use]
pub fn about(report: &Report) -> String {
    let job = &report.job;
    let count = |n: u64, what: &str| match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    let ranks = match (job.world_size, report.ranks.len() as u64) {
        (Some(size), _) => count(u64::from(size), "rank"),
        (None, 0) => "no rank seen".into(),
        (None, seen) => format!("{} seen", count(seen, "rank")),
    };
    // The number of nodes may be unknown.
    let nodes = match job.nodes {
        0 => String::new(),
        nodes => format!(" on {}", count(u64::from(nodes), "node")),
    };
    let mut parts = vec![ranks + &nodes];
    if !job.backends.is_empty() {
        parts.push(plain(&job.backends.join(", ")));
    }
    let attempts = report.ranks.iter().map(|rank| rank.attempt);
    if let Some(restarts) = attempts.max().filter(|&it| it > 0) {
        parts.push(count(u64::from(restarts), "restart"));
    }
    if let Some(started) = job.started_at {
        let lasted = job.ended_at.map(|ended| {
            let lasted = ended.since(started).as_millis() as u64;
            format!(", ended after {}", duration(lasted))
        });
        parts.push(format!("began {started}{}", lasted.unwrap_or_default()));
    }
    let records = report.evidence.records;
    let lost = match report.evidence.records_lost {
        0 => String::new(),
        lost => format!(", {lost} lost"),
    };
    parts.push(format!("{}{lost}", count(records, "record")));
    parts.join(" · ")
}

/// Whether two findings have one explanation, which is written once.
fn is_explained_alike(one: &Finding, other: &Finding) -> bool {
    let parts = |it: &Finding| (it.code.clone(), it.why.clone(), it.next.clone());
    parts(one) == parts(other) && one.cause.is_none() && other.cause.is_none()
}

/// Writes one finding. `ranks` are the states of the processes. Source lines are read below `folders`.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn finding(
    out: &mut dyn Write,
    finding: &Finding,
    ranks: &[Rank],
    style: Style,
    folders: &SourceFolders,
) -> io::Result<()> {
    let sources = &mut SourceLines::below(folders);
    let used = calls(out, finding, &RankTable::new(ranks), style, sources)?;
    explanation(out, finding, style, MAX_LINES.saturating_sub(used))
}

/// Writes the headline of a finding and the calls of its ranks. Returns the number of lines.
fn calls(
    out: &mut dyn Write,
    finding: &Finding,
    ranks: &RankTable<'_>,
    style: Style,
    sources: &mut SourceLines,
) -> io::Result<usize> {
    let (on, off) = style.severity(finding.severity);
    let word = word(finding.severity);
    let name = plain(&finding.name);
    let label = format!("{word}[{}] {name}: ", finding.code);
    let title = style.headline(label.len(), finding.title());
    writeln!(out, "{on}{word}[{}]{off} {name}: {title}", finding.code)?;
    let mut lines = title.lines().count();
    let context = context(finding, style.past);
    if !context.is_empty() {
        let context = style.headline(0, &context);
        writeln!(out, "    {context}")?;
        lines += context.lines().count();
    }
    let mut rows = rows(finding, ranks, sources);
    if !rows.is_empty() {
        writeln!(out)?;
        let omitted = omit(&mut rows);
        let width = |column: usize| {
            rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
        };
        let widths = [width(0), width(1), width(2), width(3)];
        for row in &rows {
            let mut line = String::from("    ");
            for (cell, width) in row.iter().zip(widths) {
                line.push_str(&format!("{cell:<width$}   "));
            }
            line.push_str(&row[4]);
            writeln!(out, "{}", shortened(line.trim_end(), style.columns))?;
        }
        if omitted > 0 {
            writeln!(out, "      … {omitted} more lines: ddp-doctor watch shows every rank")?;
        }
        lines += 1 + rows.len() + usize::from(omitted > 0);
    }
    Ok(lines)
}

/// The ranks of a report, and what every finding needs to know of all of them.
pub(super) struct RankTable<'a> {
    by_number: HashMap<u32, &'a Rank>,
    on_several_hosts: bool,
    were_restarted: bool,
}

impl<'a> RankTable<'a> {
    pub(super) fn new(ranks: &'a [Rank]) -> Self {
        Self {
            // The first of equal numbers counts.
            by_number: ranks.iter().rev().map(|rank| (rank.rank, rank)).collect(),
            on_several_hosts: has_several_hosts(ranks),
            were_restarted: ranks.iter().any(|rank| rank.attempt > 0),
        }
    }

    /// "attempt 1" for a finding of a job whose ranks were restarted; `None` for other jobs.
    pub(super) fn attempt(&self, finding: &Finding) -> Option<String> {
        let is_one_of_several = self.were_restarted || finding.attempt > 0;
        is_one_of_several.then(|| format!("attempt {}", finding.attempt))
    }
}

/// Rows of a finding: ranks, state, place, source text, call.
pub(super) fn rows(
    finding: &Finding,
    ranks: &RankTable<'_>,
    sources: &mut SourceLines,
) -> Vec<[String; 5]> {
    let rank = |number| ranks.by_number.get(&number).copied();
    sides(finding, ranks.on_several_hosts, rank, short_path, |place| sources.line(place))
}

/// Shortens a long table to the rows of culprits and the first of the others. Returns how many rows it
/// removed.
fn omit(rows: &mut Vec<[String; 5]>) -> usize {
    let all = rows.len();
    let is_culprit = |row: &[String; 5]| row[0].starts_with('▸');
    let culprits = rows.iter().filter(|row| is_culprit(row)).count();
    let mut others = MAX_ROWS.saturating_sub(culprits).max(MAX_ROWS / 4);
    let mut culprits = MAX_ROWS;
    rows.retain(|row| {
        let left = if is_culprit(row) { &mut culprits } else { &mut others };
        let keeps = *left > 0;
        *left = left.saturating_sub(1);
        keeps
    });
    all - rows.len()
}

/// Formats a place, relative to the working directory if the file is in it.
pub(super) fn short_path(place: &Where) -> String {
    let here = std::env::current_dir().ok();
    let below = here.as_ref().and_then(|here| {
        Path::new(&place.file).strip_prefix(here).ok()?.to_str().map(str::to_owned)
    });
    format!("{}:{}", below.unwrap_or_else(|| place.file.clone()), place.line)
}

/// Whether findings name source files, and none may be read. Nothing is looked up: the evidence chose the paths.
#[must_use]
pub fn withholds_sources(report: &Report, folders: &SourceFolders) -> bool {
    let calls = report.findings.iter().flat_map(|it| &it.per_rank);
    let mut places = calls.filter_map(|call| call.place.as_ref());
    folders.is_empty() && places.any(|it| source_files::is_source(Path::new(&it.file)))
}

#[cfg(test)]
mod tests;
