//! The overview: health of the job, culprit ranks and reasons, without a key press.

use std::rc::Rc;

use ddp_doctor_proto::report::{Finding, Role, Severity, Verdict};
use ddp_doctor_proto::words::{self, duration, plain};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::ranks::{self, strip};
use super::text::{Put, aligned, fit, labeled};
use crate::app::App;
use crate::state::Health;
use crate::theme::{Theme, Tone};

/// Maximum width of text: wider lines are hard to read.
const MAX_TEXT_COLUMNS: usize = 120;
/// Maximum number of rows of a finding; the finding screen shows all rows.
const MAX_ROWS: usize = 8;
/// Number of lines from which on the ranks are listed below a finding …
const MIN_ROOM: usize = 20;
/// … and minimum number of rows for them.
const MIN_TABLE_ROWS: usize = 3;
/// Maximum number of other findings listed.
const MAX_OTHERS: usize = 6;

pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let width = usize::from(area.width).saturating_sub(2);
    let room = usize::from(area.height);
    let below = below(app, width);
    let mut lines = vec![first(app)];
    if let Some(leading) = app.state.reason().map(Rc::clone) {
        // The table of ranks keeps its titles and a few rows, with an empty line above.
        let table =
            if room >= MIN_ROOM { app.state.ranks.len().min(MIN_TABLE_ROWS) + 2 } else { 0 };
        let left = room.saturating_sub(below.len() + 2 + table);
        lines.extend(leading_lines(app, &leading, width.min(MAX_TEXT_COLUMNS), left));
    }
    lines.push(Line::default());
    lines.extend(below);
    let mut y = area.y;
    for line in lines.into_iter().take(room) {
        buffer.put(area.x + 1, y, area.width - 1, line);
        y += 1;
    }
    let rest = Rect { y: y + 1, height: area.bottom().saturating_sub(y + 1), ..area };
    if rest.height >= 3 {
        ranks::table(app, rest, buffer, None);
    }
}

/// The verdict and the finding that explains it.
fn first(app: &App) -> Line<'static> {
    let theme = app.theme;
    let (word, tone) = verdict(app);
    let mut spans = vec![Span::styled(format!(" {word} "), theme.banner(tone))];
    match app.state.reason() {
        Some(finding) => {
            let head = format!("  {} {}", finding.code, plain(&finding.name));
            spans.push(Span::styled(head, theme.style(Tone::Strong)));
            let root = &finding.ranks.root;
            if !root.is_empty() {
                let who = match root.len() {
                    1 => format!("   rank {}", root[0]),
                    _ => format!("   ranks {}", words::rank_list(root)),
                };
                spans.push(Span::styled(who, theme.style(Tone::Bad)));
                let sure = format!(" ({})", words::certainty(finding.ranks.root_confidence));
                spans.push(Span::styled(sure, theme.style(Tone::Dim)));
            }
        }
        None => spans.push(Span::raw(format!("  {}", pace(app)))),
    }
    Line::from(spans)
}

/// Progress of a job without a problem.
fn pace(app: &App) -> String {
    let ranks = &app.state.ranks;
    let mut parts = Vec::new();
    match ranks.steps() {
        (_, 0) => {}
        (low, high) if low == high => parts.push(format!("all ranks at step {high}")),
        (low, high) => parts.push(format!("ranks at steps {low}–{high}")),
    }
    parts.extend(ranks.longest_step_ms().map(|ms| format!("{} a step", duration(ms))));
    if ranks.is_empty() {
        parts.push("no rank has joined yet".into());
    }
    if parts.is_empty() {
        parts.push("no problems found".into());
    }
    parts.join(" · ")
}

/// The leading finding in at most `room` lines.
fn leading_lines(
    app: &mut App,
    finding: &Finding,
    width: usize,
    room: usize,
) -> Vec<Line<'static>> {
    let theme = app.theme;
    let summary = words::wrapped(&plain(finding.title()), width)
        .into_iter()
        .map(|line| Line::styled(line, theme.style(Tone::Strong)));
    let past = app.state.ended;
    let context = Line::styled(words::context(finding, past), theme.style(Tone::Dim));
    let mut parts = [
        summary.collect(),
        vec![context],
        side_lines(app, 0, width, MAX_ROWS),
        paragraphs(theme, "why", &finding.reasons(), width),
        cause(app, finding, width),
        paragraphs(theme, "fix", &finding.next, width),
    ];
    // Empty lines between the parts if there is room.
    let gaps = if room >= 14 { 3 } else { 1 };
    let steps = [
        (3, 3),
        (5, 3),
        (2, 5),
        (5, 2),
        (3, 2),
        (4, 1),
        (2, 3),
        (5, 1),
        (3, 1),
        (1, 0),
        (0, 2),
        (4, 0),
    ];
    fit(&mut parts, &steps, room.saturating_sub(gaps));
    let mut lines = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        let begins = match index {
            0 => true,
            2 | 3 => gaps > 1,
            _ => false,
        };
        if begins && !part.is_empty() {
            lines.push(Line::default());
        }
        lines.extend(part);
    }
    lines
}

/// Rows of a finding, root cause ranks first.
pub(super) fn side_lines(
    app: &mut App,
    index: usize,
    width: usize,
    most: usize,
) -> Vec<Line<'static>> {
    let sides = app.sides(index);
    let more = sides.rows.len().saturating_sub(most);
    let rows = &sides.rows[..sides.rows.len().min(most)];
    let theme = app.theme;
    let is_root: Vec<bool> = rows.iter().map(|row| row[0].starts_with('▸')).collect();
    let style = |row: usize, column: usize| -> Style {
        match column {
            0 if is_root[row] => theme.style(Tone::Bad),
            0 => theme.style(Tone::Strong),
            2 => theme.style(Tone::Label),
            3 => theme.style(Tone::Dim),
            _ => theme.style(Tone::Plain),
        }
    };
    let mut lines = aligned(rows, width, style);
    if more > 0 {
        let text = format!("  … {more} more");
        lines.push(Line::styled(text, theme.style(Tone::Dim)));
    }
    lines
}

pub(super) fn paragraphs(
    theme: Theme,
    label: &str,
    texts: &[String],
    width: usize,
) -> Vec<Line<'static>> {
    let labels = std::iter::once(label).chain(std::iter::repeat(""));
    let lines = labels.zip(texts);
    lines.flat_map(|(label, text)| labeled(theme, label, text, width)).collect()
}

pub(super) fn cause(app: &App, finding: &Finding, width: usize) -> Vec<Line<'static>> {
    let sentence = finding.cause.and_then(|cause| {
        let sentence = words::cause(cause)?;
        Some(format!("{sentence} ({})", words::certainty(cause.confidence)))
    });
    let lines = sentence.map(|it| labeled(app.theme, "cause", &it, width));
    lines.unwrap_or_default()
}

/// Summary of the ranks, the other findings and the evidence.
fn below(app: &App, width: usize) -> Vec<Line<'static>> {
    let theme = app.theme;
    let label = |text: &'static str| Span::styled(format!("{text:<8}"), theme.style(Tone::Label));
    let mut lines = Vec::new();
    let mut strip = strip(app, width.saturating_sub(8));
    strip.spans.insert(0, label("ranks"));
    lines.push(strip);
    lines.push(counts(app));
    lines.extend(others(app));
    lines.push(evidence(app));
    lines
}

/// Number of ranks per health: "▪ 6 running  w 2 waiting".
fn counts(app: &App) -> Line<'static> {
    let theme = app.theme;
    let mut spans = vec![Span::raw(" ".repeat(8))];
    for health in Health::ALL.into_iter().rev() {
        let count = app.state.ranks.count(health);
        if count > 0 {
            let style = theme.style(Theme::of_health(health));
            spans.push(Span::styled(Theme::mark(health), style));
            spans.push(Span::raw(format!(" {count} {}   ", health.word())));
        }
    }
    Line::from(spans)
}

/// The other findings, one line each.
fn others(app: &App) -> Vec<Line<'static>> {
    let theme = app.theme;
    let leads = app.state.reason().is_some();
    let others = app.state.findings.iter().skip(usize::from(leads));
    let mut lines: Vec<Line<'static>> = others
        .clone()
        .take(MAX_OTHERS)
        .map(|finding| {
            let tone = match finding.severity {
                Severity::Note => Tone::Dim,
                Severity::Warning => Tone::Warn,
                Severity::Error | Severity::Critical => Tone::Bad,
            };
            let follows = match finding.role {
                Role::Cascade => "follows: ",
                Role::Initiating => "",
            };
            Line::from(vec![
                Span::styled("also    ", theme.style(Tone::Label)),
                Span::styled(format!("{} ", finding.code), theme.style(tone)),
                Span::raw(format!("{follows}{}", plain(finding.title()))),
            ])
        })
        .collect();
    let more = others.count().saturating_sub(MAX_OTHERS);
    if more > 0 {
        let text = format!("        … {more} more");
        lines.push(Line::styled(text, theme.style(Tone::Dim)));
    }
    lines
}

/// The evidence for the diagnosis.
fn evidence(app: &App) -> Line<'static> {
    let theme = app.theme;
    let evidence = &app.state.evidence;
    let mut text = format!("{} records", evidence.records);
    if let Some(rate) = app.state.records_per_second.filter(|_| !app.state.ended) {
        text.push_str(&format!(", {rate}/s"));
    }
    let mut spans = vec![Span::styled("seen    ", theme.style(Tone::Label)), Span::raw(text)];
    let lost = match evidence.records_lost {
        0 => Span::styled(" · none lost", theme.style(Tone::Dim)),
        lost => Span::styled(format!(" · {lost} LOST"), theme.style(Tone::Bad)),
    };
    spans.push(lost);
    let missing = evidence.missing_ranks.len();
    if missing > 0 {
        let ranks = if missing == 1 { "rank" } else { "ranks" };
        let text = format!(" · {missing} {ranks} never seen");
        spans.push(Span::styled(text, theme.style(Tone::Warn)));
    }
    let mut rest = Vec::new();
    if !evidence.layers.is_empty() {
        rest.push(format!("from {}", words::captured_in(&evidence.layers)));
    }
    if evidence.clock_uncertainty_ms > 0.0 {
        rest.push(format!("clocks ±{:.1} ms", evidence.clock_uncertainty_ms));
    }
    for part in rest {
        spans.push(Span::styled(format!(" · {part}"), theme.style(Tone::Dim)));
    }
    Line::from(spans)
}

/// The verdict in capitals, and its tone.
fn verdict(app: &App) -> (String, Tone) {
    let tone = match app.state.verdict {
        Verdict::Healthy => Tone::Good,
        Verdict::Slow | Verdict::Insufficient => Tone::Warn,
        _ => Tone::Bad,
    };
    (app.state.verdict.as_str().to_uppercase(), tone)
}
