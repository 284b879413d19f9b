//! Latest stacks of the ranks: equal stacks grouped, the smallest group first.

use std::collections::BTreeMap;

use ddp_doctor_proto::report::{Timestamp, Where};
use ddp_doctor_proto::words::{self, plain};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::clock;
use super::text::{Put, aligned};
use crate::app::App;
use crate::feed::Link;
use crate::sources::in_library;
use crate::theme::Tone;

/// Maximum number of different stacks shown.
const MAX_SHOWN: usize = 32;
/// Maximum length of a list of ranks, in characters.
const MAX_RANKS_CHARS: usize = 160;

/// Ranks grouped by their stacks.
#[derive(Debug)]
pub(crate) struct Stacks {
    groups: Vec<Group>,
    /// Ranks without a known stack, as text.
    unknown: String,
    /// Time of the latest capture.
    at: Timestamp,
}

/// Ranks with the same stack.
#[derive(Debug)]
struct Group {
    ranks: Vec<u32>,
    /// The ranks as text.
    who: String,
    frames: Vec<Where>,
    channel: String,
}

impl Stacks {
    fn of(app: &App) -> Self {
        let mut by_stack: BTreeMap<Vec<Where>, Group> = BTreeMap::new();
        let mut unknown = Vec::new();
        let mut at = 0;
        for view in app.state.ranks.iter() {
            let detail = &view.detail;
            if detail.stack.is_empty() {
                unknown.push(view.rank());
                continue;
            }
            at = at.max(detail.stack_unix_ns);
            let frames: Vec<Where> = detail.stack.iter().cloned().map(Where::from).collect();
            let group = by_stack.entry(frames).or_insert_with_key(|frames| Group {
                ranks: Vec::new(),
                who: String::new(),
                frames: frames.clone(),
                channel: plain(&detail.wait_channel),
            });
            group.ranks.push(view.rank());
        }
        let mut groups: Vec<Group> = by_stack.into_values().collect();
        groups.sort_by_key(|group| (group.ranks.len(), group.ranks[0]));
        groups.truncate(MAX_SHOWN);
        let text = |ranks: &[u32]| {
            words::rank_list(ranks)
                .chars()
                .take(MAX_RANKS_CHARS)
                .collect()
        };
        for group in &mut groups {
            group.who = text(&group.ranks);
        }
        Self {
            groups,
            unknown: text(&unknown),
            at: Timestamp(at),
        }
    }
}

pub(super) fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let version = app.state.version;
    let stacks = app.cache.stacks.get(version, |_| true, || Stacks::of(app));
    let theme = app.theme;
    let mut head = match stacks.at.0 {
        0 => "no stacks of blocked ranks".to_owned(),
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
        lines.push(Line::from(vec![
            Span::styled(format!("rank {}", group.who), theme.style(Tone::Strong)),
            Span::styled(channel, theme.style(Tone::Dim)),
        ]));
        let rows: Vec<[String; 3]> = group
            .frames
            .iter()
            .map(|frame| {
                // The user cannot change library code.
                let is_library = in_library(&frame.file).is_some();
                let source = if is_library {
                    None
                } else {
                    app.sources.line(frame)
                };
                let source = source.unwrap_or_default();
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
        let text = format!("rank {who}: not captured, or progressed since");
        lines.push(Line::default());
        lines.push(Line::styled(text, theme.style(Tone::Dim)));
    }
    let room = usize::from(area.height);
    app.scroll = app.scroll.min(lines.len().saturating_sub(room));
    for (y, line) in (area.y..area.bottom()).zip(lines.into_iter().skip(app.scroll)) {
        buffer.put(area.x + 1, y, area.width - 1, line);
    }
}
