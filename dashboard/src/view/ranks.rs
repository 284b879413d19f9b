//! The ranks screen: state, current call, waiting time and ranks waited for, per rank.

use ddp_doctor_proto::words::{self, brief, plain};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::text::{Put, window};
use super::values::{curve, late, measured};
use crate::app::App;
use crate::state::{Health, RankView};
use crate::theme::{Theme, Tone};

/// A column of the table.
struct Column {
    title: String,
    width: u16,
    right: bool,
    cell: Cell,
}

/// Content of a column.
enum Cell {
    State,
    Rank,
    Step,
    In,
    Waited,
    WaitsFor,
    Place,
    Host,
    Pid,
    StepTime,
    Gauge(String),
    Trend,
    Late,
}

pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let theme = app.theme;
    let list = &app.ranks;
    let mut head = format!(
        " {} of {} ranks, by {}{}",
        list.len(),
        app.state.ranks.len(),
        list.sort.word(),
        if list.reverse { ", reversed" } else { "" }
    );
    if list.only_unusual {
        head.push_str(" · only unusual");
    }
    if !list.search.is_empty() {
        head.push_str(&format!(" · {:?}", plain(&list.search)));
    }
    let line = Line::styled(head, theme.style(Tone::Dim));
    buffer.put(area.x, area.y, area.width, line);
    let all = strip(app, usize::from(area.width).saturating_sub(2));
    buffer.put(area.x + 1, area.y + 1, area.width - 1, all);
    let table_area = Rect { y: area.y + 2, height: area.height.saturating_sub(2), ..area };
    if app.ranks.grid {
        grid(app, table_area, buffer);
    } else {
        table(app, table_area, buffer, Some(app.ranks.position));
    }
}

/// One cell per rank, one line per host, or several for a host with many ranks.
fn grid(app: &App, area: Rect, buffer: &mut Buffer) {
    const LABEL: usize = 22;
    let theme = app.theme;
    let width = usize::from(area.width).saturating_sub(LABEL + 2).max(8) / 8 * 8;
    let hosts = app.state.ranks.hosts();
    let lines = |host: &std::ops::Range<usize>| host.len().div_ceil(width);
    let selected = app.ranks.nth(app.ranks.position, &app.state).map(RankView::rank);
    // Host ranges give the line of the selected rank without a loop over all ranks.
    let at = selected.and_then(|rank| app.state.ranks.place(rank));
    let mut before = 0;
    let mut of_selected = 0;
    for (_, host) in hosts {
        if let Some(at) = at.filter(|at| host.contains(at)) {
            of_selected = before + (at - host.start) / width;
        }
        before += lines(host);
    }
    let room = usize::from(area.height);
    let first = window(of_selected, before, room);
    let mut line = 0;
    for (name, host) in hosts {
        let count = lines(host);
        for part in 0..count {
            line += 1;
            if line <= first || line > first + room {
                continue;
            }
            let from = host.start + part * width;
            let until = host.end.min(from + width);
            let title = match part {
                0 => plain(name),
                _ => String::new(),
            };
            let label: String = title.chars().take(12).collect();
            let number = app.state.ranks.nth(from).map_or(0, RankView::rank);
            let label = format!("{label:<13}{number:>7}  ");
            let mut spans = vec![Span::styled(label, theme.style(Tone::Dim))];
            for index in from..until {
                let Some(view) = app.state.ranks.nth(index) else {
                    continue;
                };
                let of_health = theme.style(Theme::of_health(view.health));
                let style = if Some(view.rank()) == selected {
                    of_health.add_modifier(ratatui::style::Modifier::REVERSED)
                } else {
                    of_health
                };
                spans.push(Span::styled(Theme::mark(view.health), style));
            }
            let y = area.y + (line - first - 1) as u16;
            buffer.put(area.x + 1, y, area.width - 1, Line::from(spans));
        }
    }
}

/// The list of ranks, as far as it fits.
pub(super) fn table(app: &App, area: Rect, buffer: &mut Buffer, selected: Option<usize>) {
    let theme = app.theme;
    let rows = usize::from(area.height).saturating_sub(1);
    let columns = columns(app, area.width - 1);
    let title = |column: &Column| Span::raw(padded(&column.title, column));
    let titles: Vec<Span<'_>> = columns.iter().map(title).collect();
    let style = theme.style(Tone::Label);
    buffer.put(area.x + 1, area.y, area.width - 1, Line::from(titles).style(style));
    let first = window(selected.unwrap_or(0), app.ranks.len(), rows);
    for (row, index) in (first..app.ranks.len()).take(rows).enumerate() {
        let Some(view) = app.ranks.nth(index, &app.state) else {
            continue;
        };
        let spans: Vec<Span<'_>> = columns
            .iter()
            .map(|column| {
                let (text, style) = cell(app, view, &column.cell, column.width);
                Span::styled(padded(&text, column), style)
            })
            .collect();
        let y = area.y + 1 + row as u16;
        buffer.put(area.x + 1, y, area.width - 1, Line::from(spans));
        if selected == Some(index) {
            buffer.select(area.x, y, area.width, theme);
        }
    }
    let left = app.ranks.len().saturating_sub(first + rows);
    if left > 0 && selected.is_none() {
        let text = format!(" … {left} more: press 2 ");
        let x = area.right().saturating_sub(text.len() as u16);
        buffer.put(x, area.bottom() - 1, area.width, Line::styled(text, theme.style(Tone::Dim)));
    }
}

/// The columns that fit; the most important ones get room first.
fn columns(app: &App, width: u16) -> Vec<Column> {
    let column =
        |title: &str, width, right, cell| Column { title: title.to_owned(), width, right, cell };
    let digits = app.state.ranks.len().max(1000).ilog10() as u16 + 1;
    // In the order of display, each with the turn in which it gets room.
    let mut columns = vec![
        (0, column("", 9, false, Cell::State)),
        (0, column("rank", digits.max(4), true, Cell::Rank)),
        (4, column("host", 10, false, Cell::Host)),
        (7, column("pid", 8, true, Cell::Pid)),
        (0, column("step", 6, true, Cell::Step)),
        (5, column("a step", 7, true, Cell::StepTime)),
        (6, column("late", 7, true, Cell::Late)),
        (1, column("in", 16, false, Cell::In)),
        (1, column("for", 7, true, Cell::Waited)),
        (2, column("waits for", 9, false, Cell::WaitsFor)),
    ];
    for (index, name) in app.state.ranks.gauges().iter().enumerate() {
        let title = plain(name);
        let width = (title.chars().count() as u16).clamp(8, 16);
        let turn = if index == 0 { 6 } else { 9 + index };
        let cell = Cell::Gauge(name.clone());
        columns.push((turn, column(&title, width, true, cell)));
        if index == 0 {
            columns.push((8, column("trend", 12, false, Cell::Trend)));
        }
    }
    columns.push((3, column("at", 14, false, Cell::Place)));
    let mut turns: Vec<usize> = columns.iter().map(|it| it.0).collect();
    turns.sort_unstable();
    turns.dedup();
    let needs = |turn: usize| -> u16 {
        let until = columns.iter().filter(|it| it.0 <= turn);
        until.map(|it| it.1.width + 2).sum()
    };
    let last = turns.into_iter().take_while(|&turn| needs(turn) <= width + 2).last().unwrap_or(0);
    let spare = width.saturating_sub(needs(last));
    let mut columns: Vec<Column> =
        columns.into_iter().filter(|it| it.0 <= last).map(|it| it.1).collect();
    // File names are long: the last column gets the spare width.
    if let Some(place) = columns.last_mut().filter(|it| matches!(it.cell, Cell::Place)) {
        place.width += spare.min(40);
    }
    columns
}

fn padded(text: &str, column: &Column) -> String {
    let width = usize::from(column.width);
    let length = super::text::width(text);
    let pad = " ".repeat(width.saturating_sub(length));
    let text = if length > width {
        text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
    } else {
        text.to_owned()
    };
    if column.right { format!("{pad}{text}  ") } else { format!("{text}{pad}  ") }
}

/// A number, of which zero stands for an unknown one.
fn known(number: u64) -> String {
    match number {
        0 => String::new(),
        number => number.to_string(),
    }
}

fn cell(app: &App, view: &RankView, cell: &Cell, width: u16) -> (String, Style) {
    let theme = app.theme;
    let style = |tone| theme.style(tone);
    let status = &view.status;
    let waiting = status.waiting_in.as_ref();
    let plain_text = |text: String| (text, style(Tone::Plain));
    match cell {
        Cell::State => {
            let mark = Theme::mark(view.health);
            let word = match view.state {
                Health::Dead | Health::Exited => short_end(view),
                other => other.word().to_owned(),
            };
            let tone = Theme::of_health(view.health);
            (format!("{mark} {word}"), style(tone))
        }
        Cell::Rank => plain_text(view.rank().to_string()),
        Cell::Host => (plain(&status.host), style(Tone::Dim)),
        Cell::Pid => (known(u64::from(status.pid)), style(Tone::Dim)),
        Cell::Step => plain_text(known(status.step)),
        Cell::StepTime => plain_text(view.step_ms.map(brief).unwrap_or_default()),
        Cell::In => plain_text(match waiting {
            Some(waiting) => {
                let seq = waiting.seq.map(|seq| format!(" #{seq}"));
                format!("{}{}", plain(&waiting.op), seq.unwrap_or_default())
            }
            None => plain(&view.detail.phase),
        }),
        Cell::Waited => {
            let waited = view.waited_ms().map(brief).unwrap_or_default();
            (waited, style(Tone::Warn))
        }
        Cell::WaitsFor => plain_text(waits_for(view)),
        Cell::Place => {
            let place = status.place.as_ref();
            let shown = place.map(|it| app.sources.shown(it, usize::from(width)));
            (shown.unwrap_or_default(), style(Tone::Dim))
        }
        Cell::Gauge(name) => match view.gauge(name) {
            Some(gauge) => {
                let full = gauge.limit.filter(|&it| it > 0);
                let is_high = full.is_some_and(|it| gauge.value / 9 >= it / 10);
                let tone = if is_high { Tone::Bad } else { Tone::Plain };
                (measured(gauge.value, &gauge.unit), style(tone))
            }
            None => plain_text(String::new()),
        },
        Cell::Trend => {
            let first = view.curves.first();
            let values = first.map_or(&[][..], |curve| &curve.values);
            (curve(values, usize::from(width)), style(Tone::Good))
        }
        Cell::Late => plain_text(view.detail.late_us.map_or_else(String::new, late)),
    }
}

/// How a rank ended, in a few letters: "exit 1", "SIGKILL".
fn short_end(view: &RankView) -> String {
    let exit = view.status.exit;
    match (exit.signal, exit.code) {
        (Some(signal), _) => words::signal_name(signal),
        (None, Some(0)) => Health::Exited.word().into(),
        // Seven letters fit.
        (None, Some(code)) if code > 99 => format!("exit{code}"),
        (None, Some(code)) => format!("exit {code}"),
        (None, None) => view.state.word().into(),
    }
}

fn waits_for(view: &RankView) -> String {
    let detail = &view.detail;
    let mut text = words::rank_list(&detail.waits_for);
    if detail.waits_for_more > 0 {
        text.push_str(&format!(" + {}", detail.waits_for_more));
    }
    text
}

/// The health of all ranks in at most `width` cells.
pub(super) fn strip(app: &App, width: usize) -> Line<'static> {
    let all = app.state.ranks.strip();
    let cells = all.len().min(width);
    let worst = (0..cells).map(|cell| {
        let of = crate::state::share(all.len(), cells, cell);
        all[of].iter().max().copied().unwrap_or_default()
    });
    let span = |health| {
        let tone = Theme::of_health(health);
        Span::styled(Theme::mark(health), app.theme.style(tone))
    };
    Line::from(worst.map(span).collect::<Vec<_>>())
}
