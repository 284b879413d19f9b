//! Latest stacks of the ranks: equal stacks grouped, the smallest group first.

use ddp_doctor_proto::words::plain;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::text::{Put, aligned};
use super::values::clock;
use crate::app::App;
use crate::contents::Stacks;
use crate::feed::Link;
use crate::sources::in_library;
use crate::theme::Tone;

pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let version = app.state.version;
    let stacks = app.cache.stacks.get(version, |_| true, || Stacks::new(&app.state));
    let theme = app.theme;
    let mut head = match stacks.at.0 {
        0 => "no stacks were captured".to_owned(),
        _ => format!("captured at {}", clock(stacks.at)),
    };
    match (&app.state.link, app.stacks_requested) {
        (Link::Live, Some(requested)) if requested > stacks.at => {
            head.push_str(&format!(" · requested again at {}", clock(requested)));
        }
        (Link::Live, _) => head.push_str(" · d captures again"),
        _ => {}
    }
    let mut lines = vec![Line::styled(head, theme.style(Tone::Dim))];
    let width = usize::from(area.width).saturating_sub(4);
    for group in &stacks.groups {
        lines.push(Line::default());
        let channel = match group.channel.as_str() {
            "" => String::new(),
            channel => format!("   sleeping in {channel}"),
        };
        let since = if group.has_continued { "   has progressed since" } else { "" };
        lines.push(Line::from(vec![
            Span::styled(format!("rank {}", group.who), theme.style(Tone::Strong)),
            Span::styled(channel + since, theme.style(Tone::Dim)),
        ]));
        let rows: Vec<[String; 3]> = group
            .frames
            .iter()
            .map(|frame| {
                // The user cannot change library code.
                let is_library = in_library(&frame.file).is_some();
                let line = if is_library { None } else { app.sources.line(frame) };
                let source = line.unwrap_or_default();
                [plain(&frame.function), app.sources.shown(frame, 44), source]
            })
            .collect();
        let style = |_: usize, column: usize| match column {
            0 => theme.style(Tone::Plain),
            1 => theme.style(Tone::Label),
            _ => theme.style(Tone::Dim),
        };
        for mut line in aligned(&rows, width, style) {
            line.spans.insert(0, Span::raw("    "));
            lines.push(line);
        }
    }
    if !stacks.unknown.is_empty() && !stacks.groups.is_empty() {
        let who = &stacks.unknown;
        let text = format!("rank {who}: not captured");
        lines.push(Line::default());
        lines.push(Line::styled(text, theme.style(Tone::Dim)));
    }
    let room = usize::from(area.height);
    app.scroll = app.scroll.min(lines.len().saturating_sub(room));
    for (y, line) in (area.y..area.bottom()).zip(lines.into_iter().skip(app.scroll)) {
        buffer.put(area.x + 1, y, area.width - 1, line);
    }
}
