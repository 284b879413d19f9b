//! The timeline screen: one lane per rank, time from left to right.

use ddp_doctor_proto::report::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::text::{Put, window};
use super::values::{clock, late};
use crate::app::App;
use crate::state::{Health, Moment, share};
use crate::theme::{Theme, Tone};

/// Width of the column for lateness.
const LATENESS_WIDTH: u16 = 8;

pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let theme = app.theme;
    let moments = app.state.ranks.moments();
    if moments.is_empty() {
        return;
    }
    let digits = app.state.ranks.len().max(1000).ilog10() as u16 + 1;
    let label = digits + 4;
    let room = usize::from(area.width.saturating_sub(label + 2 + LATENESS_WIDTH));
    let late_at = area.right().saturating_sub(LATENESS_WIDTH);
    let heading = Line::styled(
        format!("{:>LATENESS_WIDTH$}", "late", LATENESS_WIDTH = usize::from(LATENESS_WIDTH)),
        theme.style(Tone::Dim),
    );
    buffer.put(late_at, area.y, LATENESS_WIDTH, heading);
    let shown = section(moments.len(), app.zoom, app.pan);
    let cells = shown.len().min(room).max(1);
    let head = axis(app, moments, &shown, cells);
    buffer.put(area.x + 1 + label, area.y, area.width - 1 - label, head);
    let rows = usize::from(area.height).saturating_sub(2);
    let first = window(app.ranks.position, app.ranks.len(), rows);
    for (row, index) in (first..app.ranks.len()).take(rows).enumerate() {
        let Some(view) = app.ranks.nth(index, &app.state) else {
            continue;
        };
        let y = area.y + 1 + row as u16;
        let tone = Theme::of_health(view.health);
        let text = format!(
            "{:>width$} {} ",
            view.rank(),
            Theme::mark(view.health),
            width = usize::from(digits) + 1
        );
        let mut spans = vec![Span::styled(text, theme.style(tone))];
        for cell in 0..cells {
            let part = share(shown.len(), cells, cell);
            let of = shown.start + part.start..shown.start + part.end;
            let moments = view.lane.get(of.start..of.end.min(view.lane.len()));
            spans.push(one_cell(theme, moments.unwrap_or_default()));
        }
        buffer.put(area.x + 1, y, area.width - 1, Line::from(spans));
        // Lateness too small for a lane is shown in its own column.
        let lateness = view.detail.late_us.map_or_else(String::new, late);
        let arrivals =
            format!("{lateness:>LATENESS_WIDTH$}", LATENESS_WIDTH = usize::from(LATENESS_WIDTH));
        buffer.put(late_at, y, LATENESS_WIDTH, Line::from(arrivals));
        if index == app.ranks.position {
            buffer.select(area.x, y, label, theme);
        }
    }
    let mut legend = vec![
        Span::styled("▪", theme.style(Tone::Good)),
        Span::styled(" a step began   ", theme.style(Tone::Dim)),
        Span::styled("·", theme.style(Tone::Good)),
        Span::styled(" at work   ", theme.style(Tone::Dim)),
    ];
    for health in [Health::Waiting, Health::Stopped, Health::Dead, Health::Exited] {
        let style = theme.style(Theme::of_health(health));
        legend.push(Span::styled(Theme::mark(health), style));
        let text = format!(" {}   ", health.word());
        legend.push(Span::styled(text, theme.style(Tone::Dim)));
    }
    buffer.put(area.x + 1, area.bottom() - 1, area.width - 1, Line::from(legend));
}

/// Indexes of the moments shown: each `zoom` halves the section, each `pan` moves it back from the
/// end by half of its length.
fn section(moments: usize, zoom: u32, pan: usize) -> std::ops::Range<usize> {
    let length = (moments >> zoom).clamp(1, moments.max(1));
    let back = (length / 2).max(1).saturating_mul(pan);
    let end = moments.saturating_sub(back).max(length.min(moments));
    end - length.min(end)..end
}

/// The cell shows the worst state, and whether a step began. A rank is shown as waiting if it waited in most of
/// the samples: ranks of a healthy job wait in every step.
fn one_cell(theme: Theme, moments: &[Moment]) -> Span<'static> {
    let sum = |of: fn(&Moment) -> u32| moments.iter().map(of).sum::<u32>();
    let waits = 2 * sum(|it| it.waiting) > sum(|it| it.samples);
    let worst = match moments.iter().map(|it| it.state).max() {
        Some(Health::Waiting) if !waits => Some(Health::Running),
        worst => worst,
    };
    let stepped = moments.iter().any(|it| it.stepped);
    match worst {
        None | Some(Health::Missing) => Span::raw(" "),
        Some(Health::Running) if stepped => Span::styled("▪", theme.style(Tone::Good)),
        Some(Health::Running) => Span::styled("·", theme.style(Tone::Good)),
        Some(other) => Span::styled(Theme::mark(other), theme.style(Theme::of_health(other))),
    }
}

fn axis(
    app: &App,
    moments: &[Timestamp],
    shown: &std::ops::Range<usize>,
    cells: usize,
) -> Line<'static> {
    let at = |index: usize| moments.get(index).copied().unwrap_or_default();
    let (from, to) = (clock(at(shown.start)), clock(at(shown.end.saturating_sub(1))));
    let gap = cells.saturating_sub(from.len() + to.len()).max(1);
    let text = format!("{from}{:gap$}{to}", "");
    Line::styled(text, app.theme.style(Tone::Dim))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_stay_within_all_moments() {
        for moments in [1, 2, 7, 100] {
            for zoom in 0..8 {
                for pan in [0, 1, 2, 300] {
                    let shown = section(moments, zoom, pan);
                    assert!(!shown.is_empty() && shown.end <= moments, "{shown:?}");
                }
            }
        }
        assert_eq!(section(100, 0, 0), 0..100);
        assert_eq!(section(100, 1, 0), 50..100);
        assert_eq!(section(100, 1, 1), 25..75);
        assert_eq!(section(100, 1, 9), 0..50);
    }

    #[test]
    fn cell_shows_its_worst_state() {
        let moment = Moment::new;
        let shown = |moments: &[Moment]| one_cell(Theme::BARE, moments).content.into_owned();
        let (run, wait) = (Health::Running, Health::Waiting);
        assert_eq!(shown(&[moment(run, false), moment(run, true)]), "▪");
        assert_eq!(shown(&[moment(run, true), moment(wait, false), moment(wait, false)]), "w");
        assert_eq!(shown(&[moment(run, true), moment(wait, false), moment(run, false)]), "▪");
        assert_eq!(shown(&[moment(run, true), moment(Health::Dead, false)]), "x");
        let merged = Moment { state: wait, samples: 8, waiting: 3, stepped: false };
        assert_eq!(shown(&[merged]), "·");
        assert_eq!(shown(&[]), " ");
    }
}
