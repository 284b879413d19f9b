//! The memory screen: the highest gauge as a curve, a list of all ranks, and a forecast for gauges
//! that grow.

use std::cmp::Reverse;
use std::rc::Rc;

use ddp_doctor_proto::viewer::{Gauge, GrowthEnd};
use ddp_doctor_proto::words::plain;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::text::Put;
use super::values::{clock, curve, measured};
use crate::app::App;
use crate::state::{RankView, share};
use crate::theme::Tone;

/// Height of the large curve, in lines.
const CURVE_LINES: u16 = 8;
/// Width of the labels before it, in columns.
const LABEL: u16 = 11;
/// Range of the share of the forecast in the curve, in percent. Within it the forecast gets the
/// share that its time has in the whole.
const FORECAST_SHARE: (f64, f64) = (15.0, 70.0);

pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let gauges = app.state.ranks.gauges();
    app.gauge = app.gauge.min(gauges.len().saturating_sub(1));
    let Some(name) = gauges.get(app.gauge).cloned() else {
        let text = "no memory measured yet";
        buffer.put(area.x + 1, area.y + 1, area.width - 1, Line::raw(text));
        return;
    };
    let theme = app.theme;
    let mut tabs = Vec::new();
    for (index, gauge) in gauges.iter().enumerate() {
        let style =
            if index == app.gauge { theme.banner(Tone::Plain) } else { theme.style(Tone::Dim) };
        tabs.push(Span::styled(format!(" {} ", plain(gauge)), style));
    }
    tabs.push(Span::styled("  ← →", theme.style(Tone::Dim)));
    buffer.put(area.x + 1, area.y, area.width - 1, Line::from(tabs));
    let order = &order(app, &name).1;
    let nth = |index: &u32| app.state.ranks.nth(*index as usize);
    // The rank whose memory is exhausted first is more relevant than the one with the most.
    let ending = order.iter().filter_map(nth).filter_map(|view| {
        let end = end_of(view.gauge(&name)?)?;
        Some((end.steps, view))
    });
    let first_to_end = ending.min_by_key(|(steps, _)| *steps).map(|it| it.1);
    let Some(shown) = first_to_end.or_else(|| order.first().and_then(nth)) else {
        return;
    };
    let Some(gauge) = shown.gauge(&name) else {
        return;
    };
    let high = CURVE_LINES.min(area.height / 3);
    let chart = Rect { x: area.x + 1, y: area.y + 2, width: area.width - 1, height: high };
    let cells = usize::from(chart.width.saturating_sub(LABEL + 1));
    let forecast = forecast_cells(app, shown, gauge, cells);
    large_curve(app, shown.curve(&name), gauge, forecast, chart, buffer);
    let title = match first_to_end {
        Some(_) => format!("rank {}", shown.rank()),
        None => format!("rank {}, the highest of all ranks", shown.rank()),
    };
    let y = area.y + 2 + high;
    let width = usize::from(area.width) - 2;
    buffer.put(area.x + 1, y, area.width - 1, axis(app, &title, gauge, forecast, width));
    if let Some(text) = grows(gauge) {
        let text = format!("rank {}: {text}", shown.rank());
        let line = Line::styled(text, theme.style(Tone::Warn));
        buffer.put(area.x + 1, y + 1, area.width - 1, line);
    }
    let list = Rect { y: y + 2, height: area.bottom().saturating_sub(y + 2), ..area };
    let room = usize::from(list.height).saturating_sub(1);
    let first = app.scroll.min(order.len().saturating_sub(room));
    let titles = format!("{:>8}  {:>9}  {:>9}  {:>6}  ", "rank", "now", "peak", "used");
    buffer.put(list.x + 1, list.y, list.width - 1, Line::styled(titles, theme.style(Tone::Label)));
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

/// The expected end of the growth, if any.
fn end_of(gauge: &Gauge) -> Option<&GrowthEnd> {
    gauge.growth.as_ref()?.end.as_ref()
}

/// Text about the growth: "+20 MiB a step; its control group used up in about 35 steps (28 to 42)".
fn grows(gauge: &Gauge) -> Option<String> {
    let growth = gauge.growth.as_ref()?;
    let by = measured(growth.per_step.max(0.0) as u64, &gauge.unit);
    let Some(end) = &growth.end else {
        return Some(format!("+{by} a step, since step {}", growth.from_step));
    };
    let between = match end.most {
        Some(most) => format!("{} to {most}", end.least),
        None => format!("{} at least", end.least),
    };
    Some(format!(
        "+{by} a step; {} used up in about {} steps ({between})",
        plain(&end.of),
        end.steps
    ))
}

/// Number of cells, out of `cells`, for the forecast.
fn forecast_cells(app: &App, view: &RankView, gauge: &Gauge, cells: usize) -> usize {
    let Some(end) = end_of(gauge) else { return 0 };
    let times = app.state.ranks.measured();
    let first = times.first().copied().unwrap_or_default();
    let so_far = app.state.at.since(first).as_millis() as f64;
    let steps = end.most.unwrap_or(end.steps).max(end.steps);
    let forecast = steps as f64 * view.step_ms.unwrap_or(0) as f64;
    let share = 100.0 * forecast / (so_far + forecast).max(1.0);
    (cells as f64 * share.clamp(FORECAST_SHARE.0, FORECAST_SHARE.1) / 100.0) as usize
}

/// Indexes of the ranks with a gauge, the highest value first.
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
    app.cache.memory.get(version, |it| it.0 == app.gauge, make)
}

/// Draws a curve of several lines from zero to its highest value, and in the last `forecast` cells
/// the forecast up to the limit.
fn large_curve(
    app: &App,
    values: &[f32],
    gauge: &Gauge,
    forecast: usize,
    area: Rect,
    buffer: &mut Buffer,
) {
    const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
    let highest = |of: &[f32]| of.iter().copied().fold(0.0, f32::max);
    let end = end_of(gauge);
    let limit = end.map_or(0.0, |end| end.value as f32);
    let high = highest(values).max(limit).max(f32::MIN_POSITIVE);
    let theme = app.theme;
    let row_of = |value: f32| {
        let eighths = value / high * f32::from(area.height) * 8.0;
        (eighths.ceil() as u16).div_ceil(8).clamp(1, area.height) - 1
    };
    let limit_row = end.map(|_| row_of(limit));
    for (row, y) in (0..area.height).zip((area.y..area.bottom()).rev()) {
        let label = match row {
            _ if limit_row == Some(row) => measured(limit as u64, &gauge.unit),
            _ if row + 1 == area.height => measured(high as u64, &gauge.unit),
            0 => "0".into(),
            _ => String::new(),
        };
        let tone = if limit_row == Some(row) { Tone::Bad } else { Tone::Dim };
        let label = format!("{label:>width$} ", width = usize::from(LABEL) - 2);
        buffer.put(area.x, y, LABEL, Line::styled(label, theme.style(tone)));
    }
    let cells = usize::from(area.width.saturating_sub(LABEL + 1));
    let room = cells.saturating_sub(forecast);
    if values.is_empty() || room == 0 {
        return;
    }
    let mut put = |cell: usize, row: u16, sign: &'static str, tone| {
        let line = Line::styled(sign, theme.style(tone));
        let (x, y) = (area.x + LABEL + cell as u16, area.bottom() - 1 - row);
        buffer.put(x, y, 1, line);
    };
    // The line of the limit; the curve is drawn over it.
    for cell in limit_row.map_or(0..0, |_| 0..cells) {
        put(cell, limit_row.unwrap_or(0), "─", Tone::Dim);
    }
    for cell in 0..room {
        // With fewer values than cells, a value fills several cells.
        let of = if values.len() >= room {
            share(values.len(), room, cell)
        } else {
            let at = cell * values.len() / room;
            at..at + 1
        };
        let eighths = (highest(&values[of]) / high * f32::from(area.height) * 8.0) as u16;
        for row in 0..area.height {
            let left = eighths.saturating_sub(row * 8).min(8);
            if left > 0 {
                put(cell, row, EIGHTHS[usize::from(left)], Tone::Good);
            }
        }
    }
    let Some(end) = end else { return };
    let last = end.most.unwrap_or(end.steps).max(end.steps).max(1) as f32;
    let step_of = |cell: usize| (cell + 1) as f32 / forecast as f32 * last;
    let per_step = (limit - gauge.value as f32) / end.steps.max(1) as f32;
    for cell in 0..forecast {
        let step = step_of(cell);
        let value = per_step.mul_add(step, gauge.value as f32).min(limit);
        put(room + cell, row_of(value), "·", Tone::Warn);
        let may_be = step >= end.least as f32 && step <= last;
        if may_be {
            put(room + cell, row_of(limit), "░", Tone::Bad);
        }
    }
}

/// The axis below the curve: first and last time, title, and the last step of the forecast.
fn axis(app: &App, title: &str, gauge: &Gauge, forecast: usize, width: usize) -> Line<'static> {
    let times = app.state.ranks.measured();
    let first = times.first().copied().unwrap_or_default();
    let (from, to) = (clock(first), clock(app.state.at));
    let growth = gauge.growth.as_ref();
    let steps = growth.and_then(|growth| Some((growth.to_step, growth.end.as_ref()?)));
    let until = steps
        .map(|(step, end)| {
            let last = end.most.unwrap_or(end.steps);
            format!("step {}", step.saturating_add(last))
        })
        .filter(|it| it.len() < forecast)
        .unwrap_or_default();
    let used = 11 + from.len() + to.len() + title.chars().count() + 1 + forecast;
    let gap = width.saturating_sub(used) / 2;
    let text = format!("{:11}{from}{:gap$}{title}{:gap$}{to}{until:>forecast$}", "", "", "");
    Line::styled(text, app.theme.style(Tone::Dim))
}
