//! The help: the table of key bindings, and the marks of ranks.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::text::Put;
use crate::app::App;
use crate::keys;
use crate::state::Health;
use crate::theme::{Theme, Tone};

pub(super) fn draw(app: &App, area: Rect, buffer: &mut Buffer) {
    let theme = app.theme;
    let mut lines = Vec::new();
    for binding in keys::bindings_on(app.screen) {
        let keys: Vec<String> = binding.keys.iter().map(|&key| keys::label(key)).collect();
        let key = format!("{:<18}", keys.join(" "));
        lines.push(Line::from(vec![
            Span::styled(key, theme.style(Tone::Label)),
            Span::raw(binding.description),
        ]));
    }
    let mut legend = vec![Line::styled("marks", theme.style(Tone::Label))];
    for health in Health::ALL {
        let style = theme.style(Theme::of_health(health));
        legend.push(Line::from(vec![
            Span::styled(format!("{:<18}", Theme::mark(health)), style),
            Span::raw(health.word()),
        ]));
    }
    // Beside the keys if there is room, otherwise below them.
    let rows = usize::from(area.height);
    let columns = lines.len().div_ceil(rows.max(1)).max(1);
    if area.width >= 76 || lines.len() + legend.len() > rows {
        let left = area.width / 2;
        for (row, line) in lines.into_iter().take(rows * columns).enumerate() {
            let (column, row) = ((row / rows.max(1)) as u16, (row % rows.max(1)) as u16);
            buffer.put(area.x + 1 + column * left, area.y + row, left - 1, line);
        }
        let first = if columns > 1 { rows.saturating_sub(legend.len()) } else { 0 };
        for (row, line) in legend.into_iter().enumerate() {
            let y = area.y + (first + row) as u16;
            buffer.put(area.x + 1 + left, y, left.saturating_sub(1), line);
        }
    } else {
        lines.extend(legend);
        for (row, line) in (0..).zip(lines.into_iter().take(rows)) {
            buffer.put(area.x + 1, area.y + row, area.width - 1, line);
        }
    }
}
