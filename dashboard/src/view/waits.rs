//! The waits screen: cycles of waits, then ranks that block others without waiting themselves.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::text::Put;
use crate::app::App;
use crate::contents::Waits;
use crate::theme::Tone;

pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let state = &app.state;
    let waits = app.cache.waits.get(state.version, |_| true, || Waits::new(state, &app.sources));
    if waits.0.is_empty() {
        let text = "no rank waits for another rank";
        buffer.put(area.x + 1, area.y + 1, area.width - 1, Line::raw(text));
        return;
    }
    let room = usize::from(area.height);
    app.scroll = app.scroll.min(waits.0.len().saturating_sub(room));
    let theme = app.theme;
    for (y, row) in (area.y..area.bottom()).zip(waits.0.iter().skip(app.scroll)) {
        let line = Line::from(vec![
            Span::styled(row.lead.clone(), theme.style(Tone::Dim)),
            Span::styled(row.who.clone(), theme.style(row.tone)),
            Span::raw(row.what.clone()),
        ]);
        buffer.put(area.x + 1, y, area.width - 1, line);
    }
}
