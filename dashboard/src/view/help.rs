//! The help: the table of key bindings, and the marks of ranks.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::text::Put;
use crate::app::App;
use crate::keys;
use crate::state::Health;
use crate::theme::{Theme, Tone};

pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
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
    lines.push(Line::default());
    lines.push(Line::styled("marks", theme.style(Tone::Label)));
    for health in Health::ALL {
        let style = theme.style(Theme::of_health(health));
        lines.push(Line::from(vec![
            Span::styled(format!("{:<18}", Theme::mark(health)), style),
            Span::raw(health.word()),
        ]));
    }
    // Two columns if one is too long.
    let rows = usize::from(area.height);
    let columns = if lines.len() > rows && area.width >= 76 { 2 } else { 1 };
    let left = area.width / columns as u16;
    let lines_in_column = lines.len().div_ceil(columns).max(rows);
    app.help_scroll = app.help_scroll.min(lines_in_column - rows);
    for (column, lines) in (0..).zip(lines.chunks(lines_in_column)) {
        let shown = lines.iter().skip(app.help_scroll).take(rows);
        for (y, line) in (area.y..).zip(shown) {
            buffer.put(area.x + 1 + column * left, y, left - 1, line.clone());
        }
    }
}
