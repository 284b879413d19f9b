//! What ranks hold: the most of all as a curve, and rank by rank.

use std::cmp::Reverse;
use std::rc::Rc;

use ddp_doctor_proto::words::plain;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::text::Put;
use super::{clock, curve, measured};
use crate::app::App;
use crate::state::share;
use crate::theme::Tone;

/// Lines of the large curve.
const HIGH: u16 = 8;

pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let gauges = app.state.ranks.gauges();
    app.gauge = app.gauge.min(gauges.len().saturating_sub(1));
    let Some(name) = gauges.get(app.gauge).cloned() else {
        let text = "nothing was measured of any rank yet";
        buffer.put(area.x + 1, area.y + 1, area.width - 1, Line::raw(text));
        return;
    };
    let theme = app.theme;
    let mut tabs = Vec::new();
    for (index, gauge) in gauges.iter().enumerate() {
        let style = match index == app.gauge {
            true => theme.banner(Tone::Plain),
            false => theme.style(Tone::Dim),
        };
        tabs.push(Span::styled(format!(" {} ", plain(gauge)), style));
    }
    tabs.push(Span::styled("  ← →", theme.style(Tone::Dim)));
    buffer.put(area.x + 1, area.y, area.width - 1, Line::from(tabs));
    let order = &order(app, &name).1;
    let most = order
        .first()
        .and_then(|&index| app.state.ranks.nth(index as usize));
    let Some(most) = most else { return };
    let high = HIGH.min(area.height / 3);
    let unit = most.gauge(&name).map_or("", |it| it.unit.as_str());
    let chart = Rect {
        x: area.x + 1,
        y: area.y + 2,
        width: area.width - 1,
        height: high,
    };
    large_curve(app, most.curve(&name), unit, chart, buffer);
    let title = format!("rank {}, of all the one with the most", most.rank());
    let y = area.y + 2 + high;
    buffer.put(
        area.x + 1,
        y,
        area.width - 1,
        axis(app, &title, usize::from(area.width) - 2),
    );
    if let Some(told) = told(app) {
        buffer.put(area.x + 1, y + 1, area.width - 1, told);
    }
    let list = Rect {
        y: y + 2,
        height: area.bottom().saturating_sub(y + 2),
        ..area
    };
    let room = usize::from(list.height).saturating_sub(1);
    let first = app.scroll.min(order.len().saturating_sub(room));
    let titles = format!(
        "{:>8}  {:>9}  {:>9}  {:>6}  ",
        "rank", "now", "peak", "full"
    );
    buffer.put(
        list.x + 1,
        list.y,
        list.width - 1,
        Line::styled(titles, theme.style(Tone::Label)),
    );
    for (y, &index) in (list.y + 1..list.bottom()).zip(&order[first..]) {
        let Some(view) = app.state.ranks.nth(index as usize) else {
            continue;
        };
        let Some(gauge) = view.gauge(&name) else {
            continue;
        };
        let limit = gauge.limit.filter(|&it| it > 0);
        let share = limit.map(|limit| gauge.value as f64 / limit as f64);
        let full = share.map(|it| format!("{:.0} %", it * 100.0));
        let text = format!(
            "{:>8}  {:>9}  {:>9}  {:>6}  ",
            view.rank(),
            measured(gauge.value, &gauge.unit),
            measured(gauge.peak, &gauge.unit),
            full.unwrap_or_default()
        );
        let room = usize::from(list.width).saturating_sub(text.chars().count() + 2);
        let tone = match share {
            Some(share) if share >= 0.9 => Tone::Bad,
            Some(share) if share >= 0.75 => Tone::Warn,
            _ => Tone::Good,
        };
        let line = Line::from(vec![
            Span::raw(text),
            Span::styled(curve(view.curve(&name), room), theme.style(tone)),
        ]);
        buffer.put(list.x + 1, y, list.width - 1, line);
    }
    app.scroll = first;
}

/// What is told of memory: when it runs out, or that it did.
fn told(app: &App) -> Option<Line<'static>> {
    let mut findings = app.state.findings.iter();
    let finding = findings.find(|finding| finding.code.starts_with("DD50"))?;
    let text = format!(
        "{:11}{}: {}",
        "",
        plain(&finding.code),
        plain(&finding.summary)
    );
    Some(Line::styled(text, app.theme.style(Tone::Warn)))
}

/// Places of the ranks of which this is measured, the most first.
fn order(app: &App, name: &str) -> Rc<(usize, Vec<u32>)> {
    let make = || {
        let value = |index: u32| {
            let view = app.state.ranks.nth(index as usize);
            view.and_then(|view| view.gauge(name)).map(|it| it.value)
        };
        let all = 0..app.state.ranks.len() as u32;
        let mut order: Vec<u32> = all.filter(|&index| value(index).is_some()).collect();
        order.sort_by_key(|&index| (Reverse(value(index)), index));
        (app.gauge, order)
    };
    let version = app.state.version;
    app.kept.memory.get(version, |it| it.0 == app.gauge, make)
}

/// A curve of several lines, from nothing to its highest value.
fn large_curve(app: &App, values: &[f32], unit: &str, area: Rect, buffer: &mut Buffer) {
    const LABEL: u16 = 11;
    const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
    let highest = |of: &[f32]| of.iter().copied().fold(0.0, f32::max);
    let high = highest(values).max(f32::MIN_POSITIVE);
    let theme = app.theme;
    for (row, y) in (area.y..area.bottom()).enumerate() {
        let label = match row {
            0 => measured(high as u64, unit),
            _ if y + 1 == area.bottom() => "0".into(),
            _ => String::new(),
        };
        let label = format!("{label:>width$} ", width = usize::from(LABEL) - 2);
        buffer.put(
            area.x,
            y,
            LABEL,
            Line::styled(label, theme.style(Tone::Dim)),
        );
    }
    let room = usize::from(area.width.saturating_sub(LABEL + 1));
    if values.is_empty() || room == 0 {
        return;
    }
    for cell in 0..room {
        // Fewer values than cells: each takes several.
        let of = match values.len() >= room {
            true => share(values.len(), room, cell),
            false => {
                let at = cell * values.len() / room;
                at..at + 1
            }
        };
        let eighths = highest(&values[of]) / high * f32::from(area.height) * 8.0;
        let eighths = eighths as u16;
        for (row, y) in (area.y..area.bottom()).rev().enumerate() {
            let left = eighths.saturating_sub(row as u16 * 8).min(8);
            let style = theme.style(Tone::Good);
            let line = Line::styled(EIGHTHS[usize::from(left)], style);
            buffer.put(area.x + LABEL + cell as u16, y, 1, line);
        }
    }
}

/// From when to when.
fn axis(app: &App, title: &str, width: usize) -> Line<'static> {
    let times = app.state.ranks.measured();
    let first = times.first().copied().unwrap_or_default();
    let (from, to) = (clock(first), clock(app.state.at));
    let used = 11 + from.len() + to.len() + title.chars().count() + 1;
    let gap = width.saturating_sub(used) / 2;
    let text = format!("{:11}{from}{:gap$}{title}{:gap$}{to}", "", "", "");
    Line::styled(text, app.theme.style(Tone::Dim))
}
