//! The finding screen: rows with source text, the causal chain and the proof.

use std::rc::Rc;

use ddp_doctor_proto::facts;
use ddp_doctor_proto::report::{Finding, Role, Severity};
use ddp_doctor_proto::words::{self, plain};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::overview::{cause, paragraphs, side_lines};
use super::text::{Put, labeled, window};
use crate::app::App;
use crate::theme::Tone;

/// Maximum number of findings listed at the top.
const MAX_LISTED: usize = 5;
/// Maximum number of rows of the finding.
const MAX_ROWS: usize = 64;
/// Number of source lines shown before and after a place.
const CONTEXT_LINES: u32 = 3;
/// Maximum number of facts of a proof shown, and of parameters.
const MAX_FACTS: usize = 32;

pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let findings = app.state.findings.len();
    let Some(finding) = app.state.findings.get(app.finding).map(Rc::clone) else {
        let text = "no findings";
        buffer.put(area.x + 1, area.y + 1, area.width - 1, Line::raw(text));
        return;
    };
    let mut y = area.y;
    if findings > 1 {
        let first = window(app.finding, findings, MAX_LISTED);
        for index in (first..findings).take(MAX_LISTED) {
            let line = listed(app, index);
            buffer.put(area.x + 1, y, area.width - 1, line);
            if index == app.finding {
                buffer.select(area.x, y, area.width, app.theme);
            }
            y += 1;
        }
        y += 1;
    }
    let width = usize::from(area.width).saturating_sub(2);
    let lines = lines(app, &finding, width);
    let room = usize::from(area.bottom().saturating_sub(y));
    app.scroll = app.scroll.min(lines.len().saturating_sub(room));
    let more = lines.len().saturating_sub(app.scroll + room);
    for (y, line) in (y..area.bottom()).zip(lines.into_iter().skip(app.scroll)) {
        buffer.put(area.x + 1, y, area.width - 1, line);
    }
    if more > 0 {
        let text = format!(" ▾ {more} more ");
        let x = area.right().saturating_sub(text.chars().count() as u16);
        let line = Line::styled(text, app.theme.banner(Tone::Dim));
        buffer.put(x, area.bottom() - 1, area.width, line);
    }
}

fn listed(app: &App, index: usize) -> Line<'static> {
    let finding = &app.state.findings[index];
    let tone = match finding.severity {
        Severity::Note => Tone::Dim,
        Severity::Warning => Tone::Warn,
        Severity::Error | Severity::Critical => Tone::Bad,
    };
    let indent = match finding.role {
        Role::Initiating => "",
        Role::Cascade => "  → ",
    };
    Line::from(vec![
        Span::raw(indent),
        Span::styled(format!("{} {} ", finding.code, finding.severity), app.theme.style(tone)),
        Span::raw(plain(finding.title())),
    ])
}

fn lines(app: &mut App, finding: &Finding, width: usize) -> Vec<Line<'static>> {
    let theme = app.theme;
    let head = format!("{} {}", finding.code, plain(&finding.name));
    let about = format!("  {} · {}", finding.severity, finding.effect);
    let context = words::context(finding, app.state.ended);
    let mut lines = vec![Line::from(vec![
        Span::styled(head, theme.style(Tone::Bad)),
        Span::styled(about, theme.style(Tone::Dim)),
    ])];
    for line in words::wrapped(&plain(finding.title()), width) {
        lines.push(Line::styled(line, theme.style(Tone::Strong)));
    }
    lines.push(Line::styled(context, theme.style(Tone::Dim)));
    let mut section = |part: Vec<Line<'static>>| {
        if !part.is_empty() {
            lines.push(Line::default());
            lines.extend(part);
        }
    };
    section(side_lines(app, app.finding, width, MAX_ROWS));
    section(sources(app, width));
    section(paragraphs(theme, "why", &finding.reasons(), width));
    let mut advice = cause(app, finding, width);
    advice.extend(paragraphs(theme, "fix", &finding.next, width));
    section(advice);
    section(parameters(app, finding, width));
    section(chain(app, finding, width));
    section(proof(app, finding, width));
    lines
}

/// The source text around the call sites of the finding.
fn sources(app: &mut App, width: usize) -> Vec<Line<'static>> {
    let theme = app.theme;
    let sides = app.sides(app.finding);
    let mut lines = Vec::new();
    for (place, ranks) in &sides.places {
        let around = app.sources.around(place, CONTEXT_LINES);
        if around.is_empty() {
            continue;
        }
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        lines.push(Line::from(vec![
            Span::styled(app.sources.shown(place, 60), theme.style(Tone::Label)),
            Span::styled(format!("   rank {ranks}"), theme.style(Tone::Dim)),
        ]));
        for (number, text) in around {
            let is_it = number == place.line;
            let (mark, tone) = if is_it { ("▸", Tone::Strong) } else { (" ", Tone::Dim) };
            let text = format!("{mark} {number:>5} │ {text}");
            lines.push(Line::styled(text, theme.style(tone)));
        }
    }
    let withheld = app.sources.withheld.filter(|_| !sides.places.is_empty());
    for line in withheld.map(|why| words::wrapped(why, width)).unwrap_or_default() {
        lines.push(Line::styled(line, theme.style(Tone::Dim)));
    }
    lines
}

fn parameters(app: &App, finding: &Finding, width: usize) -> Vec<Line<'static>> {
    let texts: Vec<String> = finding
        .parameters
        .iter()
        .take(MAX_FACTS)
        .map(|it| {
            let missing = words::rank_list(&it.missing_on);
            format!("{} {:?}, no gradient on rank {missing}", it.name, it.shape)
        })
        .collect();
    paragraphs(app.theme, "params", &texts, width)
}

/// The findings that caused it, and those that follow from it.
fn chain(app: &App, finding: &Finding, width: usize) -> Vec<Line<'static>> {
    let all = &app.state.findings;
    let line = |other: &Rc<Finding>| format!("{} {}", other.code, other.title());
    let before: Vec<String> =
        finding.caused_by.iter().filter_map(|&index| all.get(index)).map(line).collect();
    let after: Vec<String> =
        all.iter().filter(|other| other.caused_by.contains(&app.finding)).map(line).collect();
    let mut lines = paragraphs(app.theme, "from", &before, width);
    lines.extend(paragraphs(app.theme, "then", &after, width));
    lines
}

/// The facts of the certificate.
fn proof(app: &App, finding: &Finding, width: usize) -> Vec<Line<'static>> {
    let Some(certificate) = &finding.certificate else {
        return Vec::new();
    };
    let kind = certificate.kind.to_string();
    let mut lines = labeled(app.theme, "proof", &kind, width);
    for fact in certificate.facts.iter().take(MAX_FACTS) {
        lines.extend(labeled(app.theme, "", &facts::text(fact), width));
    }
    let more = certificate.facts.len().saturating_sub(MAX_FACTS);
    if more > 0 {
        lines.extend(labeled(app.theme, "", &format!("… {more} more facts"), width));
    }
    lines
}
